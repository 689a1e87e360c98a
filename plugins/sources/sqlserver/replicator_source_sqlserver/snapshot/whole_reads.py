"""Reads of whole tables: they have all rows of some transactions, and none of the others.

A table without a key is a multiset. No row of it can be dropped because a transaction may have touched it, so the host keeps such a
read only if each transaction of the table that the log brings meanwhile was either seen or not seen. One statement under READ
COMMITTED sees parts of many. So the table is read in a SNAPSHOT transaction, and what that saw is told by commit LSNs:

1.  *Low.* What a read surely sees is asked before the transaction begins, as for a chunk.
2.  The transaction's first read makes the snapshot: BEGIN does not.
3.  *Boundary*: after the end of the log (`logend`), asked after that read. What the snapshot saw was in the log by then, so it is below
    the boundary, and nothing from the boundary on was seen. Then this waits until the capture job has read so far: a few seconds; up to
    five minutes on a database where nothing changes. The snapshot is kept meanwhile, and no lock.
4.  Where the server does not say where its log ends, the boundary is told by its clock, the *moment* after that read: the lowest commit
    LSN whose time is later than the moment by more than clocks and their rounding differ (`MARGIN`). A commit takes its time from that
    clock before its record is appended to the log. This is right as long as nobody sets the clock back meanwhile.
5.  What touched the table and was captured less than a minute before, or committed between low and boundary, may have been seen or not.
    If the change table has such a transaction, nothing is read: `no_quiet_moment`, and the host tries again. A table without a
    key that is written to every minute needs 6.
6.  With `chunk_isolation: locking` the snapshot is made while another session of ours has a shared lock on the table (TABLOCK,
    HOLDLOCK), from before the first read until the end of the log is known, or until the clock is past the moment by twice the margin.
    A session that has written to the table has an intent lock on it until its transaction has ended: when ours is granted, all of them have
    ended and are visible. Nobody commits a change of the table before the lock is released, and a later commit is after the boundary,
    or has a time that puts it there. Writers of this table wait for that time, a fraction of a second, and while the lock is waited
    for (`lock_timeout`).

By 5 or by 6, every transaction that touched the table and is below the boundary was seen, and none of the others: the read is exact.

The host takes what is called seen for seen by later reads, of other tables too. By 6 they are locking, and begin when the boundary
has been captured. Otherwise the read ends no sooner than `settle_s` after that, if it calls anything seen that low did not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.schema import TableId
from replicator.plugins.kit.session import Session
from replicator.plugins.source import Seen, Visibility
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.connecting.connection import Connection, Row
from replicator_source_sqlserver.log_end import log_end
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text, next_lsn
from replicator_source_sqlserver.names import quoted, quoted_table

MARGIN: Final = timedelta(milliseconds=100)
_LATEST: Final = timedelta(minutes=15)
"""Upper bound of a boundary's delay: `lsn_time_mapping` has local times, and those from before the end of summer time are later still."""

_STATE: Final = "SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()"
_ON: Final = 1
_MAX_LSN: Final = "SELECT sys.fn_cdc_get_max_lsn()"
_CLOCK: Final = "SELECT SYSDATETIME()"
TOUCH: Final = "SELECT TOP (1) 1 AS found FROM {table} {hint}"
WHOLE_TABLE: Final = "WITH (TABLOCK, HOLDLOCK)"
_BEHIND: Final = """
SELECT TOP (1) m.start_lsn FROM cdc.lsn_time_mapping m WHERE m.start_lsn > CONVERT(binary(10), ?, 1){times} ORDER BY m.start_lsn
"""
_TIMES: Final = (
    " AND m.tran_end_time > CONVERT(datetime2(6), ?, 121) AND m.tran_end_time < CONVERT(datetime2(6), ?, 121)"
)
_NEWEST: Final = """
SELECT TOP (1) c.{lsn} FROM {relation} c WHERE c.{lsn} < CONVERT(binary(10), ?, 1) ORDER BY c.{lsn} DESC
"""


@dataclass(frozen=True, slots=True)
class WholeVisibility(Visibility):
    """A snapshot's view of its table: it sees the commits below a boundary. Their LSNs, spelled by `lsn_to_text`, are transaction ids.

    Attributes:
        low: The position up to which everything was surely seen, of any table.
        boundary: The position from which on nothing was seen.
    """

    low: Visibility
    boundary: str

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        # All have one length and capital digits: their order is that of the numbers.
        is_below = pc.less(transaction_ids, self.boundary)
        return pc.if_else(is_below, Seen.SEEN.value, Seen.UNSEEN.value).cast(pa.int8())

    @override
    def is_beyond(self, earlier: Visibility) -> bool:
        return self.low.is_beyond(earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """The position, and the time of the server's clock, that an entry has to be later than."""

    lsn: bytes
    moment: datetime | None

    def query(self) -> tuple[str, Sequence[str]]:
        """Return the query of the lowest such entry."""
        if self.moment is None:
            return _BEHIND.format(times=""), [lsn_to_text(self.lsn)]
        times = [str(self.moment + MARGIN), str(self.moment + _LATEST)]
        return _BEHIND.format(times=_TIMES), [lsn_to_text(self.lsn), *times]

    def __str__(self) -> str:
        """Return the position or the time, for messages."""
        return lsn_to_text(self.lsn) if self.moment is None else f"{self.moment} by the server's clock"


@dataclass(slots=True)
class Begun:
    """A SNAPSHOT transaction that has begun, and what it sees. `settle`: returns when the read may end."""

    visibility: WholeVisibility
    settle: Callable[[], None]
    _connection: Connection
    has_ended: bool = False

    def end(self) -> None:
        """End the transaction."""
        self._connection.end_snapshot()
        self.has_ended = True
        self.settle()


@dataclass(slots=True, kw_only=True)
class WholeReads:
    """Begins reads of whole tables.

    Attributes:
        capture_wait_s: Seconds to wait for the capture job. It moves at least every five minutes.
        settle_s: Seconds after its capture from which on a transaction is surely visible to every read that begins.
        poll_s: Seconds between two looks.
        nudge: Causes something to be captured, so that the boundary comes soon; None where nothing may be written.
    """

    capture_wait_s: float = 610.0
    settle_s: float = 60.0
    poll_s: float = 0.5
    nudge: Callable[[], object] | None = None
    clock: Callable[[], float] = time.monotonic
    _pause: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def begun(
        self,
        connection: Connection,
        other: Session[Connection],
        table: CatalogTable,
        low: Visibility,
        *,
        is_locking: bool,
    ) -> Iterator[Begun]:
        """Begin a read on a connection that has no transaction.

        Args:
            connection: Reads the table.
            other: A session on which the table is locked, and the capture job is watched: the snapshot would not see it.
            table: The table, as the catalogue has it.
            low: The visibility that a read which begins now surely has.
            is_locking: True if the table may be locked for a moment.

        Raises:
            TableError: `snapshot_isolation_off`.
            SourceUnavailableError: `no_quiet_moment`, `capture_behind`.
        """
        verify_snapshot_allowed(
            connection,
            table.table,
            "a table without a key is read",
            "or give the table a primary key. Then run `replicator snapshot NAME TABLE`.",
        )
        before = _max_lsn(connection)
        connection.begin_snapshot()
        with _locked(other, table.table) if is_locking else nullcontext() as locker:
            connection.rows(TOUCH.format(table=quoted_table(table.table), hint=""))
            end = log_end(connection)
            moment: datetime = connection.rows(_CLOCK)[0][0]
            if locker is not None and end is None:
                _wait_past(locker, moment + 2 * MARGIN)
        found = self._boundary(other, table.table, _Behind(lsn=end or before, moment=None if end else moment))
        visibility = WholeVisibility(low, lsn_to_text(next_lsn(end) if end else found))
        captured_at = self.clock()

        def settle() -> None:
            while self.clock() < captured_at + self.settle_s:
                self._pause.wait(self.poll_s)
                # Fails when the source was closed meanwhile.
                _rows(other, "waiting", _CLOCK)

        is_settled = is_locking or _verify_quiet(other, table, visibility)
        yield Begun(visibility, (lambda: None) if is_settled else settle, connection)

    def _boundary(self, other: Session[Connection], table: TableId, behind: _Behind) -> bytes:
        """Return the lowest commit, or entry without one, that is surely later than the snapshot, once it has been captured."""
        query, parameters = behind.query()
        until = self.clock() + self.capture_wait_s
        if self.nudge is not None:
            if behind.moment is not None:
                with other.use("waiting for the server's clock") as connection:
                    _wait_past(connection, behind.moment + MARGIN)
            self.nudge()
        while not (found := _rows_unless_blocked(other, "waiting for the capture job", query, parameters)):
            if self.clock() >= until:
                raise SourceUnavailableError(
                    f"the capture job has read nothing of the log that is later than {behind}.",
                    code="capture_behind",
                    table=str(table),
                    action="See that SQL Server Agent and the capture job run (`EXEC sys.sp_cdc_help_jobs`).",
                )
            self._pause.wait(self.poll_s)
        return bytes(found[0][0])


def verify_snapshot_allowed(connection: Connection, table: TableId, doing: str, otherwise: str) -> None:
    """Verify that the database allows SNAPSHOT transactions.

    Args:
        connection: Any.
        table: The table that is to be read.
        doing: The operation, for the message.
        otherwise: The rest of the error's action, after the statement that allows them.

    Raises:
        TableError: `snapshot_isolation_off`.
    """
    if int(connection.rows(_STATE)[0][0]) != _ON:
        raise TableError(
            f"{doing} in a SNAPSHOT transaction, which the database does not allow.",
            code="snapshot_isolation_off",
            table=str(table),
            action=f"Run `ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON`, {otherwise}",
        )


def _verify_quiet(other: Session[Connection], table: CatalogTable, visibility: WholeVisibility) -> bool:
    """Check the last transactions below the boundary: that of the table, which has to be seen, and that of all.

    Returns:
        True if that of all was surely seen, too.
    """
    change_tables = [f"cdc.{quoted(instance.name + '_CT')}" for instance in table.instances]
    if not all(
        _is_seen(other, _NEWEST.format(relation=name, lsn="[__$start_lsn]"), visibility) for name in change_tables
    ):
        raise SourceUnavailableError(
            "the table has no key and was written to within the last minute: it is not known which transactions a read sees.",
            code="no_quiet_moment",
            table=str(table.table),
            action="Nothing, if it is written to rarely. Otherwise set `source.chunk_isolation: locking`, or give it a primary key.",
        )
    return _is_seen(other, _NEWEST.format(relation="cdc.lsn_time_mapping", lsn="start_lsn"), visibility)


def _is_seen(other: Session[Connection], query: str, visibility: WholeVisibility) -> bool:
    found = _rows(other, "looking at the last change", query, [visibility.boundary])
    if not found:
        return True
    (seen,) = visibility.low.classify(pa.array([lsn_to_text(bytes(found[0][0]))])).to_pylist()
    return bool(seen == Seen.SEEN)


@contextmanager
def _locked(other: Session[Connection], table: TableId) -> Iterator[Connection]:
    """Take a shared lock on the whole table. An error closes the session, and so ends the transaction."""
    with other.use("locking a table", table=table) as connection:
        connection.execute("BEGIN TRANSACTION")
        connection.rows(TOUCH.format(table=quoted_table(table), hint=WHOLE_TABLE))
        yield connection
        connection.execute("ROLLBACK TRANSACTION")


def _wait_past(connection: Connection, until: datetime) -> None:
    while connection.rows(_CLOCK)[0][0] <= until:
        connection.execute("WAITFOR DELAY '00:00:00.050'")


def _rows(session: Session[Connection], doing: str, query: str, parameters: Sequence[str] = ()) -> list[Row]:
    with session.use(doing) as connection:
        return connection.rows(query, parameters)


def _rows_unless_blocked(session: Session[Connection], doing: str, query: str, parameters: Sequence[str]) -> list[Row]:
    """Return the rows; none while a scan of the capture job, say, locks what comes next."""
    try:
        return _rows(session, doing, query, parameters)
    except SourceUnavailableError as error:
        if error.code not in {"lock_timeout", "deadlock"}:
            raise
        return []


def _max_lsn(connection: Connection) -> bytes:
    found = connection.rows(_MAX_LSN)[0][0]
    return ZERO if found is None else bytes(found)
