"""The capture job: it reads PostgreSQL's log and fills the change tables, scan by scan, and the cleanup that empties them.

A test calls `scan` itself, or lets a thread do it (`start`). One scan is one transaction: all tables, in the order of commits.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from replicator_testbed.scratch_servers import TIMEOUT_SECONDS
from replicator_testbed.sqlserver.capture.decoding import Decoder, Transaction
from replicator_testbed.sqlserver.capture.instances import PUBLICATION
from replicator_testbed.sqlserver.capture.rows import (
    CapturedColumn,
    Hazards,
    Instance,
    by_source,
    change_rows,
    to_lsn,
)
from replicator_testbed.sqlserver.engine import errors
from replicator_testbed.sqlserver.engine.names import quoted
from replicator_testbed.sqlserver.engine.types import column_type, from_domain, reference
from replicator_testbed.sqlserver.sqltypes import parse

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database

DUMMY_EVERY: Final = dt.timedelta(seconds=305)
"""On an idle database lsn_time_mapping gets a row without a transaction about every 305 s [LAB t1: rule 1]."""
PEEK_CHANGES_MAX: Final = 50_000
SESSIONS_MAX: Final = 32
"""Rows of dm_cdc_log_scan_sessions that are kept [K]."""
NO_TRANSACTION: Final = b"\0"

_PEEK: Final = (
    "SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1',"
    " 'publication_names', %s, 'messages', 'true')"
)
_INSTANCES: Final = """
SELECT i.capture_instance, i.object_id, i.source_object_id, i.start_lsn,
  (SELECT json_agg(json_build_array(c.column_name, c.column_type, c.is_computed, c.is_dropped,
     (SELECT a.attnotnull FROM pg_attribute a WHERE a.attrelid = i.source_object_id AND a.attnum = c.column_id)) ORDER BY c.column_ordinal)
   FROM sqlserver.cdc_captured c WHERE c.object_id = i.object_id),
  coalesce((SELECT json_agg(k.column_name) FROM sqlserver.cdc_keys k WHERE k.object_id = i.object_id), '[]')
FROM sqlserver.cdc_instances i ORDER BY i.create_date FOR SHARE OF i
"""

Clock = Callable[[], dt.datetime]


_REFER: Final = (
    "Refer to previous errors in the current session to identify the cause and correct any associated problems."
)
_FOLLOWING: Final = (
    (22863, f"Failed to insert rows into Change Data Capture change tables. {_REFER}"),
    (22859, f"Log Scan process failed in processing log records. {_REFER}"),
)
"""What a scan notes behind the error that it failed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a scan fails with, such as 2628 after a column became smaller [rule 10]."""

    number: int
    text: str


@dataclass(slots=True, kw_only=True)
class _Active:
    """An instance as a scan knows it; `start_lsn` is None until the scan that meets its enable in the log."""

    instance: Instance
    object_id: int
    source: int
    start_lsn: bytes | None


def utc_now() -> dt.datetime:
    """The time, in UTC, without a zone: as the model's server writes it."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def _with(instance: Instance, old: CapturedColumn, new: CapturedColumn) -> Instance:
    """The instance with one column in place of another."""
    return replace(instance, columns=tuple(new if column is old else column for column in instance.columns))


class CaptureJob:
    """The job of one database. `scan` and the cleanup may be called from any thread.

    Attributes:
        lag: What was committed less than this long ago is left for a later scan.
        failure: What every scan fails with, while it is set.
        hazards: Values that are missing where reports say that they may be.
    """

    def __init__(self, model: Database, *, clock: Clock = utc_now, hazards: Hazards | None = None) -> None:
        """Make the slot from which the log is read: what is committed from now on can be captured."""
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = psycopg.connect(model.dsn, autocommit=True)
        self._reader = psycopg.connect(model.dsn, autocommit=True)
        self._slot = f"sqlserver_{self._connection.info.dbname}".lower()[:60]
        self._execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)
        self._execute("INSERT INTO sqlserver.cdc_progress SELECT pg_current_wal_lsn()")
        self._last_entry = clock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.lag = dt.timedelta(0)
        self.failure: Failure | None = None
        self.hazards = hazards or Hazards()
        self.unexpected: Exception | None = None

    def close(self) -> None:
        """Stop the thread, and remove the slot."""
        self.stop()
        self._execute("SELECT pg_drop_replication_slot(%s)", self._slot)
        self._connection.close()
        self._reader.close()

    # -- a thread ----------------------------------------------------------------------------------------------------

    @property
    def is_started(self) -> bool:
        """Whether a thread scans."""
        return self._thread is not None

    def start(self, *, every_s: float = 0.02) -> None:
        """Scan again and again, until `stop`."""

        def run() -> None:
            try:
                while not self._stopping.wait(every_s):
                    self.scan()
            except Exception as failed:  # noqa: BLE001 - raised by stop
                self.unexpected = failed

        self._stopping.clear()
        self._thread = threading.Thread(target=run, name="sqlserver-capture", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one; raise what ended it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(TIMEOUT_SECONDS)
        if self.unexpected is not None:
            raise self.unexpected

    @contextmanager
    def scanning(self, *instances: str, has_victims: bool = False) -> Iterator[None]:
        """A long scan, which has written rows of these instances, and no other: what it wrote stays locked until the context is left."""
        with self._lock, self._model.scan_locks.held(instances, has_victims=has_victims):
            yield

    # -- scans -------------------------------------------------------------------------------------------------------

    def scan_all(self) -> int:
        """Scan until nothing is left to read; how many transactions were captured."""
        total = 0
        while (count := self.scan()) is not None:
            total += count
        return total

    def scan(self) -> int | None:
        """Capture at most `maxtrans` transactions; how many had captured changes, None where there was nothing to read."""
        with self._lock:
            job = self._execute(
                "SELECT maxtrans FROM sqlserver.cdc_jobs CROSS JOIN sqlserver.database"
                " WHERE job_type = 'capture' AND is_running AND is_agent_running"
            )
            if not job:
                return None
            started = self._clock()
            idle_at = self._mark_of_idleness(started)
            waiting = self._waiting()
            if self.failure is not None and waiting:
                self._note_failure(started, self.failure.number, self.failure.text)
                return None
            taken = waiting[: job[0][0]]
            try:
                captured = self._capture(taken, started, idle_at if len(taken) == len(waiting) else None)
            except psycopg.Error as failed:
                error = errors.from_postgresql(failed)
                self._note_failure(started, error.number, error.text)
                return None
            if taken and captured is not None:
                self._execute(
                    "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)", self._slot, taken[-1].end_lsn
                )
            return captured if taken else None

    def _mark_of_idleness(self, now: dt.datetime) -> int | None:
        """Where the log is, if it is time for a row without a transaction: everything before it is read in this scan."""
        if now - self._last_entry < DUMMY_EVERY:
            return None
        ((position,),) = self._execute(
            "SELECT (pg_logical_emit_message(true, 'sqlserver.idle', '') - '0/0'::pg_lsn)::bigint"
        )
        return int(position)

    def _waiting(self) -> list[Transaction]:
        """The transactions behind what was read, in the order of their commits."""
        rows = self._reader.execute(_PEEK, [self._slot, PEEK_CHANGES_MAX, PUBLICATION]).fetchall()
        ((done,),) = self._execute("SELECT (read_up_to - '0/0'::pg_lsn)::bigint FROM sqlserver.cdc_progress")
        self._decoder = Decoder()
        found: list[Transaction] = []
        latest = self._clock() - self.lag
        for transaction in self._decoder.transactions((int(lsn), bytes(data)) for lsn, data in rows):
            if self.lag and transaction.committed_at > latest:
                break
            if transaction.end_lsn > done:
                found.append(transaction)
        return found

    def _capture(self, taken: Sequence[Transaction], started: dt.datetime, idle_at: int | None) -> int | None:
        """Write what the transactions changed; None if one of them is not visible yet, to be read again."""
        count = commands = 0
        is_complete = False
        with self._connection.transaction():
            instances = self._instances()
            for transaction in taken:
                if not self._meet_events(transaction, instances):
                    raise psycopg.Rollback
                rows = self._write(transaction, instances)
                commands += rows
                count += rows > 0
            if not count and idle_at is not None:
                self._enter(to_lsn(idle_at), started, NO_TRANSACTION)
            if taken:
                self._execute(
                    "UPDATE sqlserver.cdc_progress SET read_up_to = '0/0'::pg_lsn + %s::numeric", taken[-1].end_lsn
                )
            self._note_session(started, count, commands, taken)
            is_complete = True
        return count if is_complete else None

    def _instances(self) -> list[_Active]:
        return [
            _Active(
                instance=Instance(
                    name=name,
                    columns=tuple(
                        CapturedColumn(
                            name=column,
                            type=parse(kind),
                            is_computed=bool(computed),
                            is_dropped=bool(dropped),
                            is_required=bool(required),
                        )
                        for column, kind, computed, dropped, required in columns
                    ),
                    key=frozenset(keys),
                ),
                object_id=object_id,
                source=source,
                start_lsn=start_lsn,
            )
            for name, object_id, source, start_lsn, columns, keys in self._execute(_INSTANCES)
        ]

    def _meet_events(self, transaction: Transaction, instances: list[_Active]) -> bool:
        """Take what the log says of instances and definitions; False if the transaction cannot be seen yet."""
        for change in transaction.changes:
            relation = self._decoder.relation(change.source)
            if relation is None or relation.table.name != "cdc_events" or change.new is None:
                continue
            ((is_visible,),) = self._execute(
                "SELECT pg_visible_in_snapshot(%s::text::xid8, pg_current_snapshot())", str(transaction.xid)
            )
            if not is_visible:
                return False
            event = change.new
            lsn = to_lsn(transaction.commit_lsn)
            if event["kind"] == "enable":
                for active in instances:
                    if active.instance.name == event["capture_instance"] and active.start_lsn is None:
                        active.start_lsn = lsn
                        self._execute(
                            "UPDATE sqlserver.cdc_instances SET start_lsn = %s WHERE capture_instance = %s",
                            *(lsn, active.instance.name),
                        )
            else:
                self._alter(transaction, lsn, event, instances)
        return True

    def _alter(self, transaction: Transaction, lsn: bytes, event: Any, instances: list[_Active]) -> None:
        """Note a changed definition in ddl_history; a changed type is taken over by the change table [LAB: rule 7]."""
        for index, active in enumerate(instances):
            if active.source != int(event["source_object_id"]) or active.start_lsn is None:
                continue
            named = [c for c in active.instance.columns if c.name == event["column_name"] and not c.is_dropped]
            changes_type = event["kind"] == "alter" and bool(named)
            if changes_type:
                kind = from_domain(event["column_type"])
                table, column = f"cdc.{quoted(active.instance.name + '_CT')}", quoted(named[0].name)
                self._connection.execute(
                    f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {column_type(kind)}"
                    f" USING {column}::{reference(kind)}".encode()
                )
                self._execute(
                    "UPDATE sqlserver.cdc_captured SET column_type = %s WHERE object_id = %s AND column_name = %s",
                    *(str(kind), active.object_id, named[0].name),
                )
                instances[index].instance = _with(active.instance, named[0], replace(named[0], type=kind))
            if event["kind"] == "drop" and named:
                self._execute(
                    "UPDATE sqlserver.cdc_captured SET is_dropped = 1 WHERE object_id = %s AND column_name = %s",
                    *(active.object_id, named[0].name),
                )
                instances[index].instance = _with(active.instance, named[0], replace(named[0], is_dropped=True))
            self._execute(
                "INSERT INTO sqlserver.cdc_ddl VALUES (%s, %s, %s, %s, %s, date_trunc('minute', %s::timestamp))",
                *(active.source, active.object_id, int(changes_type), event["command"], lsn, transaction.committed_at),
            )
        self._model.changed()

    def _write(self, transaction: Transaction, instances: Sequence[_Active]) -> int:
        """Write a transaction's change rows; how many there were."""
        count = 0
        commit = to_lsn(transaction.commit_lsn)
        changed = by_source(transaction.changes)
        for active in instances:
            if active.start_lsn is None or active.start_lsn > commit or active.source not in changed:
                continue
            rows = change_rows(changed[active.source], active.instance, self.hazards)
            columns = [quoted(c.name) for c in active.instance.columns]
            statement = sql.SQL(
                'INSERT INTO cdc.{} ("__$start_lsn", "__$seqval", "__$operation", "__$update_mask", "__$command_id"'
                + "".join(f", {column}" for column in columns).replace("{", "{{").replace("}", "}}")
                + ") VALUES ("
                + ", ".join(["%s"] * (5 + len(columns)))
                + ")"
            ).format(sql.Identifier(f"{active.instance.name}_CT"))
            with self._connection.cursor() as cursor:
                cursor.executemany(
                    statement,
                    [(commit, row.seqval, int(row.operation), row.mask, row.command_id, *row.values) for row in rows],
                )
            count += len(rows)
        if count:
            self._enter(
                commit, transaction.committed_at, transaction.xid.to_bytes(6, "big"), to_lsn(transaction.begin_lsn)
            )
        return count

    def _enter(self, lsn: bytes, at: dt.datetime, tran_id: bytes, begin_lsn: bytes | None = None) -> None:
        """A row of lsn_time_mapping; its times are datetimes, of 1/300 s."""
        self._execute(
            "INSERT INTO sqlserver.cdc_lsn_time"
            " VALUES (%s, sqlserver.to_datetime(sqlserver.server_time(%s::timestamp)),"
            " sqlserver.to_datetime(sqlserver.server_time(%s::timestamp)), %s, %s)",
            *(lsn, at, at, tran_id, begin_lsn),
        )
        self._last_entry = self._clock()

    def _note_session(self, started: dt.datetime, count: int, commands: int, taken: Sequence[Transaction]) -> None:
        first, last = (to_lsn(taken[0].commit_lsn), to_lsn(taken[-1].commit_lsn)) if taken else (None, None)
        self._execute(
            "INSERT INTO sqlserver.cdc_sessions (start_time, end_time, tran_count, command_count, start_lsn, end_lsn, error_count)"
            " VALUES (%s, %s, %s, %s, %s, %s, 0)",
            *(started, self._clock(), count, commands, first, last),
        )
        self._execute(
            "DELETE FROM sqlserver.cdc_sessions WHERE session_id <= (SELECT max(session_id) FROM sqlserver.cdc_sessions) - %s",
            SESSIONS_MAX,
        )

    def _note_failure(self, started: dt.datetime, number: int, text: str) -> None:
        """A scan that failed is a session with errors: what it failed with, and behind it what failed because of that [K: rule 10]."""
        errors_ = ((number, text), *_FOLLOWING)
        ((session,),) = self._execute(
            "INSERT INTO sqlserver.cdc_sessions (start_time, end_time, tran_count, command_count, error_count)"
            " VALUES (%s, %s, 0, 0, %s) RETURNING session_id",
            *(started, self._clock(), len(errors_)),
        )
        for one, why in errors_:
            self._execute("INSERT INTO sqlserver.cdc_errors VALUES (%s, %s, %s, %s)", session, self._clock(), one, why)

    # -- cleanup and failover ------------------------------------------------------------------------------------------

    def raise_low_watermark(self, low: bytes, instance: str | None = None) -> None:
        """The first half of cleanup: start_lsn of every instance, or of one, rises [DOC, LAB: rule 4, rule 5]."""
        self._execute(
            "UPDATE sqlserver.cdc_instances SET start_lsn = %s WHERE start_lsn < %s AND (%s::text IS NULL OR capture_instance = %s)",
            *(low, low, instance, instance),
        )

    def delete_below(self) -> None:
        """The second half: what is below the start_lsn of its instance is deleted."""
        for name, start_lsn in self._execute("SELECT capture_instance, start_lsn FROM sqlserver.cdc_instances"):
            self._connection.execute(
                sql.SQL('DELETE FROM cdc.{} WHERE "__$start_lsn" < %s').format(sql.Identifier(f"{name}_CT")),
                [start_lsn],
            )
        self._execute(
            "DELETE FROM sqlserver.cdc_lsn_time"
            " WHERE start_lsn < (SELECT start_lsn FROM sqlserver.cdc_instances ORDER BY start_lsn LIMIT 1)"
        )

    def clean_up(self) -> None:
        """What the cleanup job does: everything that is older than the retention goes."""
        settings = self._execute("SELECT retention FROM sqlserver.cdc_jobs WHERE job_type = 'cleanup' AND is_running")
        if not settings:
            return
        oldest = self._clock() - dt.timedelta(minutes=settings[0][0])
        kept = self._execute(
            "SELECT start_lsn FROM sqlserver.cdc_lsn_time WHERE tran_end_time >= %s ORDER BY start_lsn LIMIT 1", oldest
        )
        low = kept[0][0] if kept else self._execute("SELECT sys.fn_cdc_get_max_lsn()")[0][0]
        if low is not None:
            self.raise_low_watermark(low)
            self.delete_below()

    def fail_over(self) -> None:
        """An Always On failover: msdb of the new primary has no jobs, and nothing says so [ISS: Estuary #4902, Redis docs #3850]."""
        self._execute("DELETE FROM sqlserver.cdc_jobs")
        self._execute("DELETE FROM sqlserver.cdc_sessions")

    def _execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), list(parameters) or None)
        return cursor.fetchall() if cursor.description else []
