"""The state store: configurations, desired state, leases, the journal's index, table states, runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from replicator.model.counts import BatchCount, Counts
from replicator.model.errors import ConfigError
from replicator.model.offset import Offset
from replicator.model.processes.reports import Report
from replicator.model.schema import TableId, TableSchema
from replicator.state import counters, histories, index, leases, requests
from replicator.state.alerts import Alerts
from replicator.state.codec import (
    read_applied,
    read_outline,
    read_replicator,
    read_reports,
    read_table,
    write_applied,
    write_error,
    write_report,
    write_table,
)
from replicator.state.database.engine import Database, check_exists, upsert, utc_now
from replicator.state.histories import Histories
from replicator.state.index import JournalIndex
from replicator.state.leases import Leases
from replicator.state.points import Points
from replicator.state.reached import Reached
from replicator.state.records import (
    AppliedRecord,
    Desired,
    ErrorRecord,
    HistoryEntry,
    Lease,
    Preparation,
    ReplicatorRecord,
    Reports,
    Segment,
    TableOutline,
    TableRecord,
)
from replicator.state.requests import Requests
from replicator.state.runs import Runs
from replicator.state.tables import APPLIED, LEASES, OWNED, REPLICATORS, REQUESTS, STATUSES, STORE, TABLES
from replicator.state.tokens import Tokens
from replicator.state.verification.outcomes import Verifications
from replicator.state.watches import Watches
from replicator.state.workers import Workers

BUSY_TIMEOUT_S: Final = 10.0


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
        self.leases, self.runs = Leases(self._database), Runs(self._database)
        self.journal, self.histories = JournalIndex(self._database), Histories(self._database)
        self.requests, self.verifications = Requests(self._database), Verifications(self._database)

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

    def drop_segments(self, name: str, epoch: int, ids: Sequence[int], *, tables: Sequence[TableRecord] = ()) -> None:
        """Delete segments, and upsert the records of tables that lose changes by it, in one transaction; fenced by epoch.

        The caller deletes their files afterwards. The newest segment of a replicator is never dropped (it has offset and numbering).
        """
        with self._database.write() as connection:
            leases.check_epoch(connection, name, epoch)
            index.drop_segments(connection, name, ids)
            _put_tables(connection, name, tables)

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

    # Requests, status, runs

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

    def _set(self, name: str, **values: Any) -> None:
        with self._database.write() as connection:
            _set(connection, name, **values)


def _set(connection: Connection, name: str, **values: Any) -> None:
    check_exists(connection, name)
    connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == name).values(values))


def _put_tables(connection: Connection, name: str, tables: Sequence[TableRecord]) -> None:
    counters.add(connection, name, counters.of_failed_tables(connection, name, tables))
    upsert(connection, TABLES, [{"replicator": name, **write_table(record)} for record in tables])
