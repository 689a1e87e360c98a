"""Tables without a key, read while others write: exactly the transactions below the boundary, by replaying the change table."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyodbc
import pytest
from typing_extensions import override

from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.reads import ChunkBounds
from replicator.plugins.source import Seen, Visibility
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.connecting.connection import Connection, Session
from replicator_source_sqlserver.lsn import ZERO, lsn_to_text
from replicator_source_sqlserver.snapshot.reader import TableReader
from replicator_source_sqlserver.snapshot.whole_reads import WholeReads, WholeVisibility
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.job import utc_now
from replicator_testbed.sqlserver.drivers import Driver
from replicator_testbed.sqlserver.engine.permissions import EVERYWHERE
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import SqlServerModel
from replicator_testing.waiting import wait_until

Open = Callable[..., pyodbc.Connection]
OpenSession = Callable[..., Session]
Rows = Counter[tuple[int, str | None]]
TABLE = TableId("dbo", "notes")
WRITERS = 3
STATE = ("VIEW SERVER STATE", "VIEW SERVER PERFORMANCE STATE")
LATE = dt.timedelta(seconds=10)
CHANGES = (
    "SELECT [__$start_lsn], [__$operation], n, note FROM cdc.dbo_notes_CT"
    " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
)


@dataclass(frozen=True, slots=True)
class UpTo(Visibility):
    """Everything that was captured up to a commit."""

    lsn: str

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        seen = [Seen.SEEN if lsn <= self.lsn else Seen.UNKNOWN for lsn in transaction_ids.to_pylist()]
        return pa.array([int(one) for one in seen], pa.int8())


def captured(connection: Connection) -> UpTo:
    """What is captured by now. The model's transactions are visible some microseconds behind that."""
    ((lsn,),) = connection.rows("SELECT sys.fn_cdc_get_max_lsn()")
    return UpTo(lsn_to_text(ZERO if lsn is None else bytes(lsn)))


class Database:
    """A model with a clock that can be set, a captured table without a key, and others' sessions."""

    def __init__(self, model: SqlServerModel, open_: Open) -> None:
        self.model = model
        self._open = open_
        self.owner = self.open()

    def open(self) -> pyodbc.Connection:
        """Another session."""
        return self._open(self.model, Driver.FREETDS)

    def captured(self) -> list[tuple[str, int, int, str | None]]:
        """The change table, in the order of the log."""
        return [(lsn_to_text(bytes(row[0])), *row[1:]) for row in self.owner.execute(CHANGES).fetchall()]

    def until(self, boundary: str) -> Rows:
        """The table as the transactions below the boundary have left it."""
        rows: Rows = Counter()
        for lsn, operation, n, note in self.captured():
            if lsn < boundary:
                rows[n, note] += 1 if operation in (2, 4) else -1
        assert not -rows
        return +rows


class Clock:
    """The time, and how far it was set ahead; `step` more with each look."""

    def __init__(self) -> None:
        self.ahead = self.step = dt.timedelta(0)

    def __call__(self) -> dt.datetime:
        self.ahead += self.step
        return utc_now() + self.ahead


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def model(postgres: PostgresServer, clock: Clock) -> Iterator[SqlServerModel]:
    with server_under_test(postgres, clock=clock) as model:
        yield model


@pytest.fixture
def database(model: SqlServerModel, open_: Open) -> Iterator[Database]:
    database = Database(model, open_)
    for statement in (
        "ALTER DATABASE shop SET ALLOW_SNAPSHOT_ISOLATION ON",
        "EXEC sys.sp_cdc_enable_db",
        "CREATE TABLE dbo.notes (n int NOT NULL, note nvarchar(50))",
        "CREATE TABLE dbo.others (n int NOT NULL)",
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'notes', @role_name = NULL",
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'others', @role_name = NULL",
    ):
        database.owner.execute(statement)
    model.capture.scan_all()
    yield database
    model.capture.stop()
    for statement in ("EXEC sys.sp_cdc_disable_db", "DROP TABLE dbo.notes", "DROP TABLE dbo.others"):
        database.owner.execute(statement)


@pytest.fixture(params=[Driver.FREETDS, pytest.param(Driver.MICROSOFT, marks=pytest.mark.matrix)])
def make(
    model: SqlServerModel, open_session: OpenSession, request: pytest.FixtureRequest
) -> Callable[..., TableReader]:
    def reader(
        *,
        is_locking: bool = False,
        visibility: Callable[[Connection], Visibility] = captured,
        watch_every_s: float = 60.0,
        settle_s: float = 0.0,
        capture_wait_s: float = 60.0,
    ) -> TableReader:
        return TableReader(
            session=open_session(model, request.param),
            watch_session=open_session(model, request.param),
            watch_every_s=watch_every_s,
            bounds=ChunkBounds(1 << 20),
            visibility=visibility,
            whole=WholeReads(settle_s=settle_s, capture_wait_s=capture_wait_s, poll_s=0.02),
            is_locking=is_locking,
        )

    return reader


def schema_of(reader: TableReader) -> TableSchema:
    with reader.session.use("reading the catalogue") as connection:
        return read_tables(connection, [TABLE])[TABLE].schema


def whole(reader: TableReader, schema: TableSchema) -> tuple[Rows, WholeVisibility]:
    """Read the table as the host does."""
    rows: Rows = Counter()
    with reader.read_whole(schema) as read:
        assert isinstance(read.visibility, WholeVisibility)
        for batch in read.batches:
            rows.update((row["n"], row["note"]) for row in batch.to_pylist())
        assert read.identity() is not None
    return rows, read.visibility


@contextmanager
def written(database: Database, table: str) -> Iterator[None]:
    """Sessions that change a table all the time, in transactions of one statement or several, some of which are rolled back."""
    stop = threading.Event()
    failures: list[Exception] = []

    def write(seed: int, connection: pyodbc.Connection) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                n = chance.randrange(5)
                statements = {
                    "notes": [
                        f"INSERT INTO dbo.notes VALUES ({n}, N'a'), ({n}, N'a'), ({n}, NULL)",
                        f"UPDATE dbo.notes SET note = N'b{n}' WHERE n = {n}",
                        f"DELETE FROM dbo.notes WHERE n = {n}",
                    ],
                    "others": [f"INSERT INTO dbo.others VALUES ({n})"],
                }[table]
                try:
                    connection.execute("BEGIN TRANSACTION")
                    for _ in range(chance.randrange(1, 4)):
                        connection.execute(chance.choice(statements))
                    connection.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
                except pyodbc.Error as ended:
                    # 1205: the transaction was the victim of a deadlock, and is undone.
                    if ended.args[0] != "40001":
                        raise
        except Exception as failed:  # noqa: BLE001 - raised below
            failures.append(failed)

    threads = [threading.Thread(target=write, args=(seed, database.open())) for seed in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def settled(database: Database) -> None:
    """Capture what is left."""
    database.model.capture.stop()
    database.model.capture.scan_all()


# -- exactness -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def silent(model: SqlServerModel) -> Iterator[Callable[[], None]]:
    """Makes the server say no more where its log ends."""

    def change(*, to: bool | None) -> None:
        model.database.permissions.change(model.address.user, STATE, EVERYWHERE, to=to)

    yield lambda: change(to=False)
    change(to=None)


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.condition("D14")
def test_a_locking_read_is_exact_while_others_write(
    make: Callable[..., TableReader], database: Database, silent: Callable[[], None], *, is_silent: bool
) -> None:
    if is_silent:
        silent()
    reader = make(is_locking=True)
    schema = schema_of(reader)
    database.model.capture.start()
    with written(database, "notes"):
        reads = [whole(reader, schema) for _ in range(5)]
    settled(database)
    for rows, visibility in reads:
        assert rows == database.until(visibility.boundary)
    assert len({visibility.boundary for _, visibility in reads}) == len(reads)


@pytest.mark.matrix
def test_a_server_whose_clock_was_set_back_is_read_exactly(
    make: Callable[..., TableReader], database: Database, model: SqlServerModel
) -> None:
    """What was committed before it was set back has a later time than the snapshot, and is in it."""
    database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a')")
    model.set_clock(-dt.timedelta(minutes=1))

    def capturing(connection: Connection) -> Visibility:
        low = captured(connection)
        model.capture.start()
        return low

    reader = make(is_locking=True, visibility=capturing)
    schema = schema_of(reader)
    with written(database, "others"):
        rows, visibility = whole(reader, schema)
    settled(database)
    model.set_clock(dt.timedelta(0))
    assert rows == database.until(visibility.boundary) == Counter({(1, "a"): 1})


@pytest.mark.matrix
def test_a_read_of_a_quiet_table_is_exact_while_others_are_written(
    make: Callable[..., TableReader], database: Database
) -> None:
    database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a'), (1, N'a'), (2, NULL)")
    database.model.capture.scan_all()
    reader = make()
    schema = schema_of(reader)
    database.model.capture.start()
    with written(database, "others"):
        rows, visibility = whole(reader, schema)
        database.owner.execute("INSERT INTO dbo.notes VALUES (3, N'later')")
    settled(database)
    assert rows == database.until(visibility.boundary) == Counter({(1, "a"): 2, (2, None): 1})
    # Every transaction of the table is seen or not: none is unknown.
    ids = pa.array([lsn for lsn, *_ in database.captured()])
    assert visibility.classify(ids).to_pylist() == [Seen.SEEN] * 3 + [Seen.UNSEEN]


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["before the snapshot", "behind the snapshot"])
def test_a_table_that_is_written_to_meanwhile_is_not_read_without_locks(
    make: Callable[..., TableReader], database: Database, when: str
) -> None:
    """Between what is surely seen and the boundary a transaction may be on either side."""

    def asked(connection: Connection) -> Visibility:
        low = captured(connection)
        if when == "before the snapshot":
            database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a')")
        return low

    reader = make(visibility=asked)
    schema = schema_of(reader)
    database.model.capture.start()
    if when == "before the snapshot":
        with written(database, "others"), pytest.raises(SourceUnavailableError) as caught:
            whole(reader, schema)
    else:
        with written(database, "notes"), pytest.raises(SourceUnavailableError) as caught:
            whole(reader, schema)
    assert caught.value.code == "no_quiet_moment"
    assert caught.value.table == "dbo.notes"
    settled(database)


@pytest.mark.matrix
def test_a_locking_read_waits_for_who_has_written_and_keeps_nobody_for_long(
    make: Callable[..., TableReader], database: Database
) -> None:
    """A transaction that is open when the read begins is waited for; while rows are read, others write."""
    database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a')")
    database.owner.execute("BEGIN TRANSACTION")
    database.owner.execute("INSERT INTO dbo.notes VALUES (2, N'open')")
    reader = make(is_locking=True)
    with reader.watch_session.use("limiting a wait") as connection:
        connection.execute("SET LOCK_TIMEOUT 50")
    schema = schema_of(reader)
    database.model.capture.start()
    with pytest.raises(SourceUnavailableError) as caught:
        whole(reader, schema)
    assert caught.value.code == "lock_timeout"
    database.owner.execute("COMMIT")
    with written(database, "others"), reader.read_whole(schema) as read:
        database.owner.execute("INSERT INTO dbo.notes VALUES (3, N'later')")
        rows = [row["n"] for batch in read.batches for row in batch.to_pylist()]
        assert read.identity() is not None
    assert sorted(rows) == [1, 2]
    settled(database)
    ids = pa.array([lsn for lsn, *_ in database.captured()])
    assert read.visibility.classify(ids).to_pylist() == [Seen.SEEN, Seen.SEEN, Seen.UNSEEN]


# -- waiting -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ahead(clock: Clock) -> Iterator[Clock]:
    yield clock
    clock.ahead = clock.step = dt.timedelta(0)


@pytest.mark.matrix
def test_on_an_idle_database_a_row_without_a_transaction_is_the_boundary(
    make: Callable[..., TableReader], database: Database, ahead: Clock
) -> None:
    database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a')")
    database.model.capture.scan_all()

    def idle(connection: Connection) -> Visibility:
        ahead.step = LATE
        return captured(connection)

    reader = make(visibility=idle)
    schema = schema_of(reader)
    database.model.capture.start()
    rows, _ = whole(reader, schema)
    assert rows == Counter({(1, "a"): 1})


@pytest.mark.matrix
def test_a_capture_job_that_does_nothing_is_not_waited_for_without_end(
    make: Callable[..., TableReader], database: Database
) -> None:
    reader = make(capture_wait_s=0.2)
    with pytest.raises(SourceUnavailableError) as caught:
        whole(reader, schema_of(reader))
    assert caught.value.code == "capture_behind"


@pytest.mark.matrix
@pytest.mark.parametrize(("is_locking", "settles"), [(False, True), (True, False)])
def test_what_low_did_not_call_seen_is_old_when_the_read_ends(
    make: Callable[..., TableReader], database: Database, *, is_locking: bool, settles: bool
) -> None:
    """Later reads, of other tables too, take it for seen: they begin when it surely is."""
    nothing = UpTo(lsn_to_text(ZERO))
    reader = make(is_locking=is_locking, visibility=lambda _: nothing)
    schema = schema_of(reader)
    waited = threading.Event()

    class Stopped:
        def __init__(self) -> None:
            self.now = 0.0

        def __call__(self) -> float:
            self.now += 1.0
            # So often it is not asked until the job has captured, where each question goes to the server, too.
            if self.now > 450:
                waited.set()
            return self.now

    reader.whole = WholeReads(settle_s=500.0, capture_wait_s=1e9, poll_s=0.001, clock=Stopped())
    database.model.capture.start()
    database.owner.execute("INSERT INTO dbo.others VALUES (1)")
    with written(database, "others"):
        whole(reader, schema)
    assert waited.is_set() == settles


# -- what is refused, and what is left behind ------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_database_without_snapshots_is_told(make: Callable[..., TableReader], database: Database) -> None:
    database.owner.execute("ALTER DATABASE shop SET ALLOW_SNAPSHOT_ISOLATION OFF")
    reader = make()
    with pytest.raises(TableError) as caught:
        whole(reader, schema_of(reader))
    assert caught.value.code == "snapshot_isolation_off"
    assert "ALLOW_SNAPSHOT_ISOLATION ON" in str(caught.value)


@pytest.mark.matrix
@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_cut_short", [False, True])
def test_neither_transaction_nor_isolation_is_left_behind(
    make: Callable[..., TableReader], database: Database, *, is_cut_short: bool
) -> None:
    database.owner.execute("INSERT INTO dbo.notes VALUES (1, N'a')")
    reader = make(is_locking=True)
    schema = schema_of(reader)
    database.model.capture.start()
    with written(database, "others"):
        if is_cut_short:
            with reader.read_whole(schema) as read:
                assert next(read.batches).num_rows == 1
        else:
            whole(reader, schema)
    count = "SELECT COUNT(*) FROM dbo.notes"
    with reader.session.use("looking") as connection:
        assert connection.rows("SELECT @@TRANCOUNT")[0][0] == 0
        connection.execute("BEGIN TRANSACTION")
        before = connection.rows(count)[0][0]
        database.owner.execute("INSERT INTO dbo.notes VALUES (2, N'b')")
        # READ COMMITTED: the snapshot of SNAPSHOT would not have it.
        assert connection.rows(count)[0][0] == before + 1
        connection.execute("ROLLBACK TRANSACTION")


@pytest.mark.matrix
def test_a_read_gives_way_to_a_session_that_alters_the_table(
    make: Callable[..., TableReader], database: Database
) -> None:
    values = ", ".join(f"({n}, N'a')" for n in range(900))
    for _ in range(3):
        database.owner.execute(f"INSERT INTO dbo.notes VALUES {values}")
    reader = make(is_locking=True, watch_every_s=0.05)
    schema = schema_of(reader)
    database.model.capture.start()
    altering = threading.Thread(target=database.open().execute, args=("ALTER TABLE dbo.notes ADD more int",))

    def interrupted() -> None:
        with reader.read_whole(schema) as read:
            next(read.batches)
            connection = reader.session.connection
            assert connection is not None
            altering.start()
            wait_until(lambda: connection.is_cancelled, "the read is cancelled", every_s=0.01)
            list(read.batches)

    with written(database, "others"), pytest.raises(SourceUnavailableError) as caught:
        interrupted()
    assert caught.value.code == "gave_way"
    altering.join()
