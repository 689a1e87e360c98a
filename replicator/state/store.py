"""The state store: configurations, desired state, leases, the journal's index, table states, runs."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from replicator.model.counts import BatchCount, Counts
from replicator.model.errors import ConfigError
from replicator.model.offset import Offset
from replicator.model.reports import Report
from replicator.model.schema import TableId, TableSchema
from replicator.state import counters, histories, index, leases, requests, runs
from replicator.state.alerts import Alerts
from replicator.state.codec import (
    read_applied,
    read_outline,
    read_replicator,
    read_reports,
    read_request,
    read_table,
    write_applied,
    write_error,
    write_report,
    write_table,
)
from replicator.state.database.engine import Database, check_exists, next_id, upsert, utc_now
from replicator.state.points import Points
from replicator.state.reached import Reached
from replicator.state.records import (
    AppliedRecord,
    Desired,
    ErrorRecord,
    EventEntry,
    HistoryEntry,
    Lease,
    Preparation,
    ReplicatorRecord,
    Reports,
    Request,
    RequestKind,
    Run,
    Segment,
    SegmentFile,
    TableOutline,
    TableRecord,
)
from replicator.state.tables import APPLIED, LEASES, OWNED, REPLICATORS, REQUESTS, STATUSES, STORE, TABLES
from replicator.state.tokens import Tokens
from replicator.state.verification import outcomes as verifications
from replicator.state.verification.records import RangeOutcome, RangeRecord, VerificationOutcome, VerificationRecord
from replicator.state.watches import Watches
from replicator.state.workers import Workers

BUSY_TIMEOUT_S: Final = 10.0
RUNS_KEPT: Final = 1000


class StateStore:
    """SQLite or PostgreSQL through SQLAlchemy Core; every method is one short transaction. Thread-safe; not to be used across a fork.

    Opening it makes missing tables and migrates an older format, under a lock: any number of processes may do so at once.

    Raises (all methods, and opening): StateUnavailableError when locked or unreachable past the busy time-out, CorruptStreamError
    (`corrupt_state`) when the content is damaged or not ours, FatalError (`newer_state`) when its format is newer than this program,
    AccessDeniedError when the server refuses us. Opening: ConfigError for a URL or path that cannot hold a store. Methods that write to
    a replicator that does not exist: ConfigError (`unknown_replicator`), or FencedError where an epoch is given.

    Args:
        url: `sqlite:////absolute/path` or `postgresql://…`.
        busy_timeout_s: Seconds to wait for another process's lock.
        clock: The clock of a SQLite store: this host's. PostgreSQL has its own.
    """

    def __init__(
        self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = Database(url, busy_timeout_s=busy_timeout_s, clock=clock)
        self.tokens, self.workers = Tokens(self._database), Workers(self._database)
        self.watches, self.points = Watches(self._database), Points(self._database)
        self.alerts, self.reached = Alerts(self._database), Reached(self._database)

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._database.close()

    def now(self) -> datetime:
        """Return the store's time (aware, UTC)."""
        with self._database.read() as connection:
            return self._database.now(connection)

    # Replicators

    def create_replicator(self, name: str, config: str, journal_uri: str) -> ReplicatorRecord:
        """Store a new replicator with a fresh uuid and desired = running.

        Raises:
            ConfigError: `exists`: there is one of that name.
        """
        try:
            with self._database.write() as connection:
                values = {
                    "name": name,
                    "uuid": str(uuid.uuid4()),
                    "desired": Desired.RUNNING.value,
                    "config": config,
                    "identity": {},
                    "preparation": Preparation.NONE.value,
                    "journal_uri": journal_uri,
                    "apply_paused": False,
                    "created_at": self._database.now(connection),
                    "journal_bytes": 0,
                }
                connection.execute(insert(REPLICATORS), [values])
                epoch = connection.scalars(select(STORE.c.epoch_floor)).one()
                connection.execute(insert(LEASES), [{"replicator": name, "epoch": epoch, "journal_claims": {}}])
                return read_replicator(connection.execute(select(REPLICATORS).where(REPLICATORS.c.name == name)).one())
        except IntegrityError as error:
            message = f"A replicator named {name} already exists."
            raise ConfigError(message, code="exists", action="Choose another name, or delete it first.") from error

    def replicator(self, name: str) -> ReplicatorRecord | None:
        """Return the replicator of that name, if there is one."""
        with self._database.read() as connection:
            row = connection.execute(select(REPLICATORS).where(REPLICATORS.c.name == name)).one_or_none()
            return None if row is None else read_replicator(row)

    def replicators(self) -> Sequence[ReplicatorRecord]:
        """Return all replicators, by name."""
        with self._database.read() as connection:
            return [read_replicator(r) for r in connection.execute(select(REPLICATORS).order_by(REPLICATORS.c.name))]

    def set_desired(self, name: str, desired: Desired, *, apply_paused: bool = False) -> None:
        """Record the state that the operator wants."""
        self._set(name, desired=desired.value, apply_paused=apply_paused)

    def set_config(self, name: str, config: str) -> None:
        """Replace the YAML document."""
        self._set(name, config=config)

    def set_identity(self, name: str, identity: Mapping[str, Any]) -> None:
        """Record the identities that source and target report."""
        self._set(name, identity=dict(identity))

    def set_preparation(self, lease: Lease, preparation: Preparation, start_offset: Offset | None = None) -> None:
        """Record the state of the source's log resources; `start_offset` None keeps the stored one. Fenced by the lease's epoch."""
        values = {"preparation": preparation.value} | ({"start_offset": start_offset.text} if start_offset else {})
        with self._database.write() as connection:
            leases.check_epoch(connection, lease.replicator, lease.epoch)
            connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == lease.replicator).values(values))

    def set_error(self, name: str, error: ErrorRecord | None, *, epoch: int | None = None) -> None:
        """Record the error that stopped it, fenced by the epoch where one is given; None when it runs again."""
        with self._database.write() as connection:
            if epoch is not None:
                leases.check_epoch(connection, name, epoch)
            _set(connection, name, error=write_error(error))

    def delete_replicator(self, name: str, uuid: str) -> None:
        """Remove all its rows; the last step of `delete`. Does nothing on replay, or if another replicator has the name by now.

        A replicator of the same name made later begins above the last epoch of this one, so its old workers stay fenced.
        """
        with self._database.write() as connection:
            epoch = connection.scalar(select(LEASES.c.epoch).where(LEASES.c.replicator == name).with_for_update())
            if connection.scalar(select(REPLICATORS.c.uuid).where(REPLICATORS.c.name == name)) != uuid:
                return
            if epoch is not None:
                connection.execute(update(STORE).where(STORE.c.epoch_floor < epoch).values(epoch_floor=epoch))
            for table in OWNED:
                connection.execute(delete(table).where(table.c.replicator == name))
            connection.execute(delete(REPLICATORS).where(REPLICATORS.c.name == name))

    # Leases

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Take the lease if it is free, expired, already the holder's, or its holder is a dead process of this host; epoch + 1.

        None if another process holds it. `holder` comes from `replicator.state.holder_id`.
        """
        with self._database.write() as connection:
            check_exists(connection, name)
            return leases.acquire(connection, name, holder, ttl_s, self._database.now(connection))

    def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        """Return the same lease, with a later end. Raises FencedError if another process took it, or it was released."""
        with self._database.write() as connection:
            return leases.renew(connection, lease, ttl_s, self._database.now(connection))

    def release_lease(self, lease: Lease) -> None:
        """Let other processes take it at once. Replay, or another process took it: does nothing."""
        with self._database.write() as connection:
            leases.release(connection, lease)

    def lease(self, name: str) -> Lease | None:
        """Return the lease that a living worker holds; None if it may be taken."""
        with self._database.read() as connection:
            return leases.current(connection, name, self._database.now(connection))

    def check_epoch(self, name: str, epoch: int) -> None:
        """Raise FencedError unless `epoch` is the current one."""
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)

    def claim_journal(self, name: str, epoch: int, token: str, count: int) -> None:
        """Record that the journal's folder is about to be claimed with this token and count (from 1). Errors as those of `check_epoch`."""
        with self._database.write() as connection:
            leases.claim_journal(connection, name, epoch, token, count)

    def journal_claims(self, name: str) -> Mapping[str, int]:
        """Return the highest count of each token that the journal's folder was claimed with; only of the latest tokens."""
        with self._database.read() as connection:
            return leases.journal_claims(connection, name)

    # The journal's index

    def seal(
        self,
        name: str,
        epoch: int,
        segments: Sequence[Segment],
        *,
        schemas: Sequence[TableSchema] = (),
        tables: Sequence[TableRecord] = (),
        history: Sequence[HistoryEntry] = (),
        done_requests: Sequence[int] = (),
        barriers: Sequence[int] = (),
        changes: Mapping[str, int] | None = None,
    ) -> None:
        """Append segments to the index: the commit point of capture.

        In one transaction: check the epoch, check that numbers and ids follow the newest segment's, insert segments, files, events and
        schemas, upsert table records, append to the history, close requests, write the end into those for a barrier, and count. A
        newest segment that is empty makes room for the new ones. `changes`: of the source's log, by operation.

        Raises:
            FencedError: The lease has a newer epoch.
            FatalError: `index_conflict`: the segments do not follow the newest one.
        """
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            index.insert_segments(connection, name, segments, schemas)
            _put_tables(connection, name, tables)
            histories.add_entries(connection, name, history, segments[-1].offset if segments else None)
            counters.add(connection, name, counters.of_seal(segments, changes or {}, history))
            if done_requests:
                requests.close(connection, name, done_requests, self._database.now(connection))
            for barrier in barriers:
                found = {"position": segments[-1].last, "ring": list(segments[-1].ring)}
                asked = connection.scalar(select(REQUESTS.c.payload).where(REQUESTS.c.id == barrier)) or {}
                connection.execute(update(REQUESTS).where(REQUESTS.c.id == barrier).values(payload={**asked, **found}))

    def last_segment(self, name: str) -> Segment | None:
        """Return the newest segment: it has the offset, the ring and the numbering."""
        with self._database.read() as connection:
            return index.last_segment(connection, name)

    def segments(self, name: str, after_id: int, limit: int) -> Sequence[Segment]:
        """Return segments in order, from the first with an id above `after_id`."""
        with self._database.read() as connection:
            return index.list_segments(connection, name, after_id, limit)

    def sealed_by(self, name: str, number: int) -> int | None:
        """Return the newest epoch that assigned numbers up to this one, of those that the journal still has; None if it has none."""
        with self._database.read() as connection:
            return index.sealed_by(connection, name, number)

    def feed(self, name: str, table: TableId, after: int, limit: int) -> Sequence[SegmentFile | EventEntry]:
        """Return files (`last` > after) and events (number > after) of a table over all incarnations, in order of sequence numbers."""
        with self._database.read() as connection:
            return index.feed(connection, name, table, after, limit)

    def feed_tables(self, name: str) -> Mapping[TableId, int]:
        """Return the highest sequence number of each table in the index: files and events."""
        with self._database.read() as connection:
            return index.feed_tables(connection, name)

    def feed_end(self, name: str, table: TableId) -> int | None:
        """Return the highest sequence number of one table in the index; None if it has nothing of the table."""
        with self._database.read() as connection:
            return index.feed_end(connection, name, table)

    def schema(self, name: str, table: TableId, fingerprint: str) -> TableSchema:
        """Return the schema of a file's rows; CorruptStreamError (`corrupt_state`) if it is missing."""
        with self._database.read() as connection:
            return index.find_schema(connection, name, table, fingerprint)

    def segment_uris(self, name: str) -> frozenset[str]:
        """Return the URI of every file that the index names."""
        with self._database.read() as connection:
            return index.list_uris(connection, name)

    def drop_segments(self, name: str, epoch: int, ids: Sequence[int], *, tables: Sequence[TableRecord] = ()) -> None:
        """Delete segments, and upsert the records of tables that lose changes by it, in one transaction; fenced by epoch.

        The caller deletes their files afterwards. The newest segment of a replicator is never dropped (it has offset and numbering).
        """
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            index.drop_segments(connection, name, ids)
            _put_tables(connection, name, tables)

    def dropped(self, name: str, table: TableId) -> tuple[int, int] | None:
        """Return the latest incarnation of which something was dropped, and the highest number dropped of it."""
        with self._database.read() as connection:
            return index.dropped(connection, name, table)

    def journal_bytes(self, name: str) -> int:
        """Return the bytes of all files that the index names."""
        with self._database.read() as connection:
            return index.total_bytes(connection, name)

    def snapshot_rows_above(self, name: str, table: TableId, incarnation: int, after: int) -> int:
        """Count the rows of a table's snapshots that the index has after a sequence number."""
        with self._database.read() as connection:
            return index.snapshot_rows_above(connection, name, table, incarnation, after)

    def oldest_unapplied(self, name: str, applied: Mapping[TableId, int]) -> datetime | None:
        """Return the time when the oldest segment was sealed that has something of a table above its given number; None if none has."""
        with self._database.read() as connection:
            return index.oldest_above(connection, name, applied)

    def history(self, name: str, limit: int, *, table: TableId | None = None) -> Sequence[HistoryEntry]:
        """Return the newest changes of tables' definitions, of one table or of all, in the order in which they were recorded."""
        with self._database.read() as connection:
            return histories.list_entries(connection, name, table, limit)

    # Tables, as capture and apply know them

    def tables(self, name: str) -> Sequence[TableRecord]:
        """Return capture's records, by name."""
        with self._database.read() as connection:
            query = select(TABLES).where(TABLES.c.replicator == name).order_by(TABLES.c.table_name)
            return [read_table(row) for row in connection.execute(query)]

    def outlines(self, name: str) -> Sequence[TableOutline]:
        """Return the records as `tables` does, without the schemas."""
        with self._database.read() as connection:
            return [read_outline(row) for row in connection.execute(select(TABLES).where(TABLES.c.replicator == name))]

    def table(self, name: str, table: TableId) -> TableRecord | None:
        """Return capture's record of a table; None if it knows no such table."""
        with self._database.read() as connection:
            mine = (TABLES.c.replicator == name) & (TABLES.c.table_name == str(table))
            row = connection.execute(select(TABLES).where(mine)).one_or_none()
            return None if row is None else read_table(row)

    def is_comparing(self, name: str) -> bool:
        """Return whether any of its tables is being compared (`Stage.COMPARING`)."""
        with self._database.read() as connection:
            return verifications.is_comparing(connection, name)

    def put_tables(self, name: str, epoch: int, tables: Sequence[TableRecord]) -> None:
        """Upsert capture's records outside a seal; fenced by epoch."""
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            _put_tables(connection, name, tables)

    def applied(self, name: str) -> Mapping[TableId, AppliedRecord]:
        """Return apply's records."""
        with self._database.read() as connection:
            records = [
                read_applied(row) for row in connection.execute(select(APPLIED).where(APPLIED.c.replicator == name))
            ]
            return {record.table: record for record in records}

    def put_applied(
        self, name: str, epoch: int, records: Sequence[AppliedRecord], *, batch: BatchCount | None = None
    ) -> None:
        """Upsert apply's records, and count their batch; fenced by epoch."""
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            failed = counters.of_failed_applied(connection, name, records)
            counters.add(connection, name, failed + counters.of_batch(batch))
            upsert(connection, APPLIED, [{"replicator": name, **write_applied(record)} for record in records])

    def verifications(
        self, name: str, tables: Collection[TableId] | None = None
    ) -> Mapping[TableId, VerificationRecord]:
        """Return the results of comparisons of both sides, of some tables or (None) of all."""
        with self._database.read() as connection:
            return verifications.list_records(connection, name, tables)

    def note_verification(self, name: str, outcome: VerificationOutcome) -> VerificationRecord:
        """Merge a comparison into the record of its table; return the record. Not fenced: it is true whichever process made it."""
        with self._database.write() as connection:
            check_exists(connection, name)
            counters.add(connection, name, counters.of_verification(outcome))
            return verifications.note(connection, name, outcome, self._database.now(connection))

    def note_range(self, name: str, outcome: RangeOutcome) -> VerificationRecord:
        """Merge the comparison of a range of a table into its record, and return that. Not fenced: as `note_verification`."""
        with self._database.write() as connection:
            check_exists(connection, name)
            counters.add(connection, name, counters.of_range(outcome))
            return verifications.note_range(connection, name, outcome, self._database.now(connection))

    def verified_ranges(self, name: str, table: TableId) -> Sequence[RangeRecord]:
        """Return the ranges of a table that were compared, in key order."""
        with self._database.read() as connection:
            return verifications.list_ranges(connection, name, table)

    def begin_verification(self, name: str, epoch: int, table: TableId, incarnation: int) -> None:
        """Record that the schedule begins to compare a table; fenced by epoch."""
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            verifications.note_begin(connection, name, table, incarnation, self._database.now(connection))

    # Requests, status, runs

    def add_request(self, name: str, kind: RequestKind, payload: Mapping[str, Any]) -> int:
        """Ask something of a running replicator; return the request's id, which is never used again."""
        with self._database.write() as connection:
            check_exists(connection, name)
            id_ = next_id(connection)
            moment = self._database.now(connection)
            values = {"id": id_, "replicator": name, "kind": kind.value, "payload": dict(payload), "created_at": moment}
            connection.execute(insert(REQUESTS), [values])
            return id_

    def requests(self, name: str) -> Sequence[Request]:
        """Return the open requests, oldest first."""
        with self._database.read() as connection:
            query = select(REQUESTS).where(REQUESTS.c.replicator == name).order_by(REQUESTS.c.id)
            return [read_request(row) for row in connection.execute(query)]

    def barriers(self, name: str, *, asked_within_s: float = math.inf) -> Sequence[int]:
        """Return the sequence numbers of the barriers that are found (`RequestKind.BARRIER`), of those requested within that time."""
        is_barrier = REQUESTS.c.kind == RequestKind.BARRIER.value
        with self._database.read() as connection:
            query = select(REQUESTS).where(REQUESTS.c.replicator == name, is_barrier).order_by(REQUESTS.c.id)
            found = [read_request(row) for row in connection.execute(query)]
            now = self._database.now(connection) if found else None
        return [
            request.payload["position"]
            for request in found
            if "position" in request.payload
            and (now is None or abs((now - request.created_at).total_seconds()) <= asked_within_s)
        ]

    def set_request(self, id_: int, payload: Mapping[str, Any]) -> None:
        """Replace the payload of a request. Does nothing if it was withdrawn."""
        with self._database.write() as connection:
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == id_).values(payload=dict(payload)))

    def remove_request(self, id_: int) -> None:
        """Withdraw a request, or lift a barrier. Replay: does nothing."""
        with self._database.write() as connection:
            connection.execute(delete(REQUESTS).where(REQUESTS.c.id == id_))

    def put_report(self, name: str, report: Report, *, retried: Mapping[str, int] | None = None) -> None:
        """Replace the report of a process; stamped with the store's time. `retried`: tables since the last one, by error code."""
        with self._database.write() as connection:
            check_exists(connection, name)
            counters.add(connection, name, counters.of_report(report, retried or {}))
            moment = self._database.now(connection)
            upsert(connection, STATUSES, [{"replicator": name, "updated_at": moment, **write_report(report)}])

    def reports(self, name: str) -> Reports:
        """Return the last report of each process, and its time."""
        with self._database.read() as connection:
            return read_reports(connection.execute(select(STATUSES).where(STATUSES.c.replicator == name)))

    def counters(self, name: str) -> Counts:
        """Return the counts since the replicator exists, or since the store counts."""
        with self._database.read() as connection:
            return counters.read(connection, name)

    def start_run(self, lease: Lease) -> int:
        """Record that a supervisor began; return the run's id. Only the latest `RUNS_KEPT` runs are kept."""
        with self._database.write() as connection:
            leases.check_epoch(connection, lease.replicator, lease.epoch)
            return runs.begin(connection, lease, next_id(connection), self._database.now(connection), kept=RUNS_KEPT)

    def end_run(self, lease: Lease, run: int, outcome: str, error: ErrorRecord | None) -> None:
        """Record the end of a run, and with an error why the replicator stopped. Fenced by epoch. Replay: the later call wins."""
        with self._database.write() as connection:
            leases.check_epoch(connection, lease.replicator, lease.epoch)
            if error is not None:
                _set(connection, lease.replicator, error=write_error(error))
            counters.add(connection, lease.replicator, counters.of_error(error))
            runs.end(connection, run, outcome, error, self._database.now(connection))

    def runs(self, name: str, limit: int = 20) -> Sequence[Run]:
        """Return the latest runs, newest first."""
        with self._database.read() as connection:
            return runs.list_latest(connection, name, limit)

    def _set(self, name: str, **values: Any) -> None:
        with self._database.write() as connection:
            _set(connection, name, **values)


def _set(connection: Connection, name: str, **values: Any) -> None:
    check_exists(connection, name)
    connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == name).values(values))


def _put_tables(connection: Connection, name: str, tables: Sequence[TableRecord]) -> None:
    counters.add(connection, name, counters.of_failed_tables(connection, name, tables))
    upsert(connection, TABLES, [{"replicator": name, **write_table(record)} for record in tables])
