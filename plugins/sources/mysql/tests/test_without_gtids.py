"""MySQL without GTIDs: positions are files and bytes, reads are told apart by watermarks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import (
    ConfigError,
    FatalError,
    LogGapError,
    OffsetExpiredError,
    Severity,
    SourceUnavailableError,
    TableError,
)
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import Chunk, ChunkRequest, LogBatch, LogReader, PullLimits, Seen
from replicator_source_mysql import snapshot
from replicator_source_mysql.assessment.server import assess_server
from replicator_source_mysql.config import MysqlConfig
from replicator_source_mysql.coordinates import file
from replicator_source_mysql.coordinates.lineage import event_at
from replicator_source_mysql.coordinates.watermark import end_of_log, ordered_end_of_log, seen_but_for_others
from replicator_source_mysql.filters import Filters
from replicator_source_mysql.positions.file_position import WRAP, FilePosition
from replicator_source_mysql.rows.chunk_statements import ReadPlan, chunk_query, whole_query
from replicator_source_mysql.server import read_facts
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import WATERMARK_TABLE, MysqlDatabase, MysqlServer
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import PATIENCE

Make = Callable[..., MysqlSource]
LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=0.2)
WAIT_S = 300 * PATIENCE
STEPS = ("OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")


@pytest.fixture(scope="module")
def own_server() -> Iterator[MysqlServer]:
    """One that these tests may change, and leave as it was."""
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one")
    with MysqlServer.without_gtids() as server:
        yield server


@pytest.fixture
def database(own_server: MysqlServer) -> Iterator[MysqlDatabase]:
    with own_server.database() as database:
        yield database


class Log:
    """An open log of one table, and what it has delivered."""

    def __init__(self, source: MysqlSource, table: TableId, after: Offset | None = None) -> None:
        self.source = source
        self.schema = source.describe([table])[table].schema
        self.offset = after or source.prepare([table], is_first=True)
        self.reader: LogReader = source.open_log(self.offset, {table: self.schema})
        self.ids: list[str] = []

    def rows(self) -> list[tuple[Any, ...]]:
        """The new rows of every change up to now."""
        found: list[tuple[Any, ...]] = []
        for batch in self.batches(self.source.mark()):
            found += rows_of(batch)
            for changes in batch.changes:
                self.ids += changes.rows.column("_transaction_id").to_pylist()
            self.offset = batch.offset or self.offset
        return found

    def batches(self, mark: str, limits: PullLimits = LIMITS) -> Iterator[LogBatch]:
        """Pulls up to a mark. They are not counted: a large event comes in many, and so do those of many writers."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            batch = self.reader.pull(limits)
            yield batch
            if mark in batch.marks:
                return
        raise AssertionError("the mark did not come")

    def close(self) -> None:
        self.reader.close()
        self.source.close()


def rows_of(batch: LogBatch) -> list[tuple[Any, ...]]:
    """The new rows of its changes."""
    return [tuple((row or {}).values()) for changes in batch.changes for row in changes.rows.column("row").to_pylist()]


def set_gtid_mode(server: MysqlServer, mode: str) -> None:
    """Step by step, as the server wants it."""
    ((now,),) = server.execute("SELECT @@GLOBAL.gtid_mode")
    way = STEPS.index(mode) - STEPS.index(now)
    if way > 0:
        server.execute("SET GLOBAL enforce_gtid_consistency = ON")
    for step in range(abs(way)):
        server.execute(f"SET GLOBAL gtid_mode = {STEPS[STEPS.index(now) + (step + 1) * (1 if way > 0 else -1)]}")


def make_table(database: MysqlDatabase, key: str = "PRIMARY KEY") -> TableId:
    database.execute(f"CREATE TABLE t (id int {key})")
    return TableId(database.name, "t")


# --- positions -------------------------------------------------------------------------------------------------------


def test_another_server_is_refused(database: MysqlDatabase, source_of: Make) -> None:
    table = make_table(database)
    log = Log(source_of(database.server), table)
    value = {**log.offset.value, "server": "aaaaaaaa-0000-0000-0000-00000000000a"}
    log.close()
    with pytest.raises(LogGapError) as found:
        source_of(database.server).open_log(Offset.of(value), {})
    assert found.value.code == "other_server"
    assert "--restart" in (found.value.action or "")


def test_a_purged_file_is_expired_and_an_idle_log_leaves_it_in_time(own_server: MysqlServer, source_of: Make) -> None:
    with own_server.database() as database:
        table = make_table(database)
        log = Log(source_of(own_server), table)
        database.execute("INSERT INTO t VALUES (1)")
        assert log.rows() == [(1,)]
        early = log.offset
        own_server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        assert log.rows() == []
        assert log.offset != early, "the next file's beginning is a position"
        last = own_server.execute("SHOW BINARY LOGS")[-1][0]
        own_server.execute(f"PURGE BINARY LOGS TO '{last}'")
        log.close()
        database.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(OffsetExpiredError) as found:
            source_of(own_server).open_log(early, {})
        assert found.value.code == "log_removed"
        assert "--restart" in (found.value.action or "")
        again = Log(source_of(own_server), table, after=log.offset)
        assert again.rows() == [(2,)]
        again.close()


@pytest.mark.parametrize("how", ["shorter", "longer", "within an event", "other files"])
def test_a_log_begun_again_is_a_gap(own_server: MysqlServer, source_of: Make, how: str) -> None:
    with own_server.database() as database:
        table = make_table(database)
        own_server.execute(own_server.reset_log)
        log = Log(source_of(own_server), table)
        database.execute("INSERT INTO t VALUES (1)")
        log.rows()
        offset = log.offset
        log.close()
        own_server.execute(own_server.reset_log)
        # As long as before to the byte, where it can be.
        if how == "longer":
            database.execute(*[f"INSERT INTO t VALUES ({n})" for n in range(2, 8)])
        if how == "within an event":
            database.execute(f"CREATE TABLE long_one (id int) COMMENT '{'x' * 2000}'")
        if how == "other files":
            offset = Offset.of({**offset.value, "at": "binlog.000009:157"})
        source = source_of(own_server)
        with pytest.raises(LogGapError) as found:
            Log(source, table, after=offset).rows()
        assert found.value.code == "other_history"


def test_a_server_killed_and_started_again_is_read_on(own_server: MysqlServer, source_of: Make) -> None:
    with own_server.database() as database:
        table = make_table(database)
        log = Log(source_of(own_server), table)
        database.execute("INSERT INTO t VALUES (1)")
        assert log.rows() == [(1,)]
        log.close()
        database.execute("INSERT INTO t VALUES (2)")
        own_server.kill9()
        own_server.start()
        log = Log(source_of(own_server), table, after=log.offset)
        assert log.rows() == [(2,)]
        log.close()


def test_start_at_is_where_the_first_start_begins_and_must_be_a_boundary(
    database: MysqlDatabase, source_of: Make
) -> None:
    table = make_table(database)
    ((file, pos, *_),) = database.execute(database.server.end_of_log)
    database.execute("INSERT INTO t VALUES (1)")
    log = Log(source_of(database.server, start_at=f"{file}:{pos}"), table)
    assert log.rows() == [(1,)]
    log.close()
    inside = [row[1] for row in database.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {pos}")][1:4]
    for wrong in [f"{file}:{p}" for p in (*inside, pos + 1, 1 << 30)] + ["binlog.999999:4", "somewhere", "x.1:2"]:
        with pytest.raises(ConfigError) as found:
            source_of(database.server, start_at=wrong).prepare([table], is_first=True)
        assert found.value.code == "invalid_start", wrong


def test_what_is_prepared_is_read_again_and_what_was_sealed_since_is_not(
    database: MysqlDatabase, source_of: Make
) -> None:
    table = make_table(database)
    log = Log(source_of(database.server), table)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for text in ("XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(text)
    database.execute("INSERT INTO t VALUES (2)")
    assert log.rows() == [(2,)]
    log.close()
    database.execute("FLUSH BINARY LOGS")
    for _ in range(2):
        log = Log(source_of(database.server), table, after=log.offset)
        assert log.rows() == []
        assert log.source.status().retention.oldest_open is not None
        log.close()
    log = Log(source_of(database.server), table, after=log.offset)
    database.execute("XA COMMIT 'x'", "INSERT INTO t VALUES (3)")
    assert log.rows() == [(1,), (3,)]
    log.close()


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_a_file_of_more_than_4_gib_is_read_on_at_every_position(own_server: MysqlServer, source_of: Make) -> None:
    with own_server.database() as database:
        table = make_table(database)
        database.execute(
            "CREATE TABLE hole (a longblob) ENGINE = BLACKHOLE",
            "CREATE TABLE many (n int)",
            "INSERT INTO many VALUES " + ", ".join(f"({n})" for n in range(90)),
        )
        log = Log(source_of(own_server), table)
        database.execute("INSERT INTO t VALUES (1)")
        assert log.rows() == [(1,)]
        large = threading.Thread(
            target=database.execute, args=("INSERT INTO hole SELECT REPEAT('x', 50000000) FROM many",)
        )
        numbers = itertools.count(2)

        def write() -> None:
            # Some come behind the large one, into its file: the server ends that file only once it has committed.
            while large.is_alive():
                database.execute(f"INSERT INTO t VALUES ({next(numbers)})")

        others = [threading.Thread(target=write) for _ in range(4)]
        for thread in (large, *others):
            thread.start()
        for thread in (large, *others):
            thread.join()
        positions = [(log.offset, 0)]
        found: list[tuple[Any, ...]] = []
        mark = log.source.mark()
        # Row by row, so that positions behind the large transaction are among those that are given.
        for batch in log.batches(mark, replace(LIMITS, rows=1)):
            found += rows_of(batch)
            if batch.offset is not None:
                # Of a transaction that is open the row is here, and the position lies before it.
                positions.append((batch.offset, len(found) - (batch.open_transaction is not None)))
        log.close()
        assert sorted(found) == [(n,) for n in range(2, next(numbers))]
        beyond = [(offset, count) for offset, count in positions if FilePosition.of(offset.value["at"]).pos >= WRAP]
        assert beyond, "nothing came behind the large transaction"
        assert {offset.value.get("restart") is not None for offset, _ in beyond} == {True}
        database.execute("INSERT INTO t VALUES (-1)")
        for offset, count in (positions[0], beyond[0], beyond[-1]):
            again = Log(source_of(own_server), table, after=offset)
            assert again.rows() == [*found[count:], (-1,)]
            again.close()


# --- the setting of GTIDs -----------------------------------------------------------------------------------------------


def test_gtids_that_are_switched_on_and_off_under_a_reader_lose_nothing(
    own_server: MysqlServer, source_of: Make
) -> None:
    with own_server.database() as database:
        table = make_table(database)
        log = Log(source_of(own_server), table)
        for number, mode in enumerate((*STEPS[1:], *reversed(STEPS[:-1])), start=1):
            set_gtid_mode(own_server, mode)
            database.execute(f"INSERT INTO t VALUES ({number})")
            assert log.rows() == [(number,)]
            seen = log.source.visibility().classify(pa.array(log.ids)).to_pylist()
            assert seen == [Seen.SEEN] * number
            again = Log(source_of(own_server), table, after=log.offset)
            assert again.rows() == []
            again.close()
        log.close()


def test_a_new_position_is_by_gtids_once_they_are_on_and_none_in_between(
    own_server: MysqlServer, source_of: Make
) -> None:
    with own_server.database() as database:
        table = make_table(database)
        for mode in STEPS[1:3]:
            set_gtid_mode(own_server, mode)
            assert [
                (p.code, p.location) for p in source_of(own_server).check([table]) if p.severity is Severity.BLOCKING
            ] == [("server_setting", "gtid_mode")]
            with pytest.raises(ConfigError) as found:
                source_of(own_server).prepare([table], is_first=True)
            assert found.value.code == "gtid_mode_between"
        set_gtid_mode(own_server, "ON")
        log = Log(source_of(own_server), table)
        assert "gtids" in log.offset.value
        database.execute("INSERT INTO t VALUES (1)")
        assert log.rows() == [(1,)]
        # And off again: what is known by GTIDs cannot be read on, and is not lost either.
        set_gtid_mode(own_server, "OFF")
        database.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(LogGapError) as gap:
            log.rows()
        assert gap.value.code == "gtid_off"
        log.close()
        source = source_of(own_server)
        source.prepare([table], is_first=False)
        with pytest.raises(LogGapError) as gap:
            source.open_log(log.offset, {table: log.schema})
        assert gap.value.code == "gtid_off"
        assert "ON again" in (gap.value.action or "")


# --- watermarks ---------------------------------------------------------------------------------------------------------


def test_nothing_stays_in_the_table_of_watermarks_and_it_is_not_replicated(
    database: MysqlDatabase, source_of: Make
) -> None:
    table = make_table(database)
    log = Log(source_of(database.server), table)
    database.execute("INSERT INTO t VALUES (1)")
    log.rows()
    for _ in range(3):
        log.source.read_chunk(chunk_request(log.schema))
        log.source.visibility()
    assert database.execute("SELECT COUNT(*) FROM replicator.watermarks") == [(0,)]
    left_out = {str(s.table): s.left_out for s in log.source.list_tables() if s.left_out}
    assert "watermarks" in str(left_out["replicator.watermarks"])
    log.close()


def test_without_the_order_of_commits_nothing_is_read(database: MysqlDatabase, source_of: Make) -> None:
    table = make_table(database)
    log = Log(source_of(database.server), table)
    reads: list[Callable[[], object]] = [
        lambda: log.source.read_chunk(chunk_request(log.schema)),
        log.source.visibility,
    ]
    database.execute("SET GLOBAL binlog_order_commits = OFF")
    try:
        for read in reads:
            with pytest.raises(SourceUnavailableError) as found:
                read()
            assert found.value.code == "commits_unordered"
        assert ("server_setting", "binlog_order_commits") in [(p.code, p.location) for p in log.source.check([table])]
    finally:
        database.execute("SET GLOBAL binlog_order_commits = ON")
    for read in reads:
        read()
    log.close()


def test_the_order_of_commits_is_looked_at_behind_the_read_too(
    database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(database)
    log = Log(source_of(database.server), table)

    def switching(plan: ReadPlan, request: ChunkRequest) -> str:
        database.execute("SET GLOBAL binlog_order_commits = OFF")
        return chunk_query(plan, request)

    monkeypatch.setattr(snapshot, "chunk_query", switching)
    try:
        with pytest.raises(SourceUnavailableError) as found:
            log.source.read_chunk(chunk_request(log.schema))
        assert found.value.code == "commits_unordered"
    finally:
        database.execute("SET GLOBAL binlog_order_commits = ON")
    log.close()


def test_a_watermark_that_cannot_be_written_is_found_and_named(own_server: MysqlServer, source_of: Make) -> None:
    with own_server.database() as database:
        table = make_table(database)
        own_server.execute(
            "CREATE USER low IDENTIFIED BY 'low'",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT, PROCESS ON *.* TO low",
            f"GRANT SELECT ON {database.name}.* TO low",
        )

        def findings() -> list[Any]:
            source = source_of(own_server, user="low", password=Secret("low"))
            return [p for p in source.check([table]) if p.severity is Severity.BLOCKING]

        def refusal() -> FatalError:
            source = source_of(own_server, user="low", password=Secret("low"))
            with pytest.raises(FatalError) as found:
                source.prepare([table], is_first=True)
            return found.value

        (problem,) = findings()
        assert problem.code == refusal().code == "watermark_table"
        assert "GRANT SELECT, INSERT, DELETE ON `replicator`.`watermarks` TO" in problem.action
        own_server.execute(problem.action.rpartition("; ")[2])
        assert findings() == []
        source_of(own_server, user="low", password=Secret("low")).prepare([table], is_first=True)
        own_server.execute("DROP DATABASE replicator")
        (problem,) = findings()
        assert problem.code == refusal().code == "watermark_table"
        for statement in problem.action.rstrip(";").split("; "):
            own_server.execute(statement)
        assert findings() == []
        own_server.execute("ALTER TABLE replicator.watermarks ENGINE = MyISAM")
        assert [p.code for p in findings()] == ["watermark_table"]
        own_server.execute("DROP DATABASE replicator", *WATERMARK_TABLE, "SET GLOBAL read_only = ON")
        try:
            assert [p.location for p in findings()] == ["read_only"]
        finally:
            own_server.execute("SET GLOBAL read_only = OFF", "DROP USER low")


def test_a_filter_that_keeps_watermarks_out_of_the_log_is_found(own_server: MysqlServer, source_of: Make) -> None:
    own_server.configure({"binlog-ignore-db": "replicator"})
    own_server.restart()
    try:
        with own_server.database() as database:
            table = make_table(database)
            source = source_of(own_server)
            assert ("left_out_of_log", "source.watermark_table") in [
                (p.code, p.location) for p in source.check([table]) if p.severity is Severity.BLOCKING
            ]
            with pytest.raises(FatalError) as found:
                source.prepare([table], is_first=True)
            assert found.value.code == "watermark_table"
            database.execute("CREATE TABLE w LIKE replicator.watermarks")
            logged = source_of(own_server, watermark_table=f"{database.name}.w")
            assert [p for p in logged.check([table]) if p.severity is Severity.BLOCKING] == []
            logged.prepare([table], is_first=True)
    finally:
        own_server.configure({"binlog-ignore-db": "nothing"})
        own_server.restart()


def test_the_findings_follow_the_settings(own_server: MysqlServer) -> None:
    config = MysqlConfig(host="127.0.0.1", user="someone")
    with closing(own_server.connect()) as connection:
        facts = read_facts(connection)

    def blocking(**changes: Any) -> list[str | None]:
        found = assess_server(replace(facts, **changes), config)
        assert all(p.action for p in found)
        return [p.location for p in found if p.severity is Severity.BLOCKING]

    facts = replace(facts, filters=Filters())
    assert blocking() == []
    assert [p.code for p in assess_server(facts, config) if p.location == "gtid_mode"] == ["no_gtids"]
    for name, value in (("binlog_order_commits", "OFF"), ("read_only", "ON"), ("gtid_mode", "ON_PERMISSIVE")):
        assert blocking(variables={**facts.variables, name: value}) == [name]
    assert blocking(filters=Filters(log={"binlog_do_db": ("shop",)})) == ["source.watermark_table"]


# --- what a read saw ----------------------------------------------------------------------------------------------------


def test_a_table_without_a_key_is_read_as_of_a_moment_that_is_known(
    database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(database, "")
    database.execute("CREATE TABLE other (id int)", "INSERT INTO t VALUES (1)")
    log = Log(source_of(database.server), table)
    looks = [0]

    def disturbed(connection: Any) -> Any:
        looks[0] += 1
        # Changes of another table do not matter; those of this one do.
        database.execute("INSERT INTO other VALUES (1)", *(["INSERT INTO t VALUES (2)"] if looks[0] < 3 else []))
        return ordered_end_of_log(connection)

    def late(plan: ReadPlan) -> str:
        database.execute("INSERT INTO t VALUES (3)")
        return whole_query(plan)

    monkeypatch.setattr(file, "ordered_end_of_log", disturbed)
    monkeypatch.setattr(snapshot, "whole_query", late)
    with log.source.read_whole(log.schema) as whole:
        rows = [v for batch in whole.batches for v in batch.column("id").to_pylist()]
        assert whole.identity() is not None
        visibility = whole.visibility
    assert looks[0] == 3, "twice somebody changed it in between"
    values = [row[0] for row in log.rows()]
    answers = visibility.classify(pa.array(log.ids)).to_pylist()
    assert Seen.UNKNOWN not in answers
    assert sorted([1, *(v for v, seen in zip(values, answers, strict=True) if seen == Seen.SEEN)]) == sorted(rows)
    assert 3 not in rows
    log.close()


def test_events_that_the_server_cannot_show_are_uncertain(database: MysqlDatabase) -> None:
    """As an event that is being written; here, one that does not begin where it is looked for."""
    table, watermark = TableId(database.name, "t"), TableId(database.name, "w")
    database.execute("CREATE TABLE t (id int)")
    with closing(database.connect()) as connection:
        before = end_of_log(connection)
        database.execute("INSERT INTO t VALUES (1)")
        after, inside = end_of_log(connection), replace(before, pos=before.pos + 1)
        assert seen_but_for_others(connection, table, watermark=watermark, before=inside, after=after) is None
        assert event_at(connection, before.file, before.pos) is not None
        assert event_at(connection, after.file, after.pos) is None
        with pytest.raises(LogGapError):
            event_at(connection, inside.file, inside.pos)


def test_a_table_without_a_key_that_is_written_all_the_time_fails(
    database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(database, "")
    log = Log(source_of(database.server), table)

    def disturbed(connection: Any) -> Any:
        database.execute("INSERT INTO t VALUES (2)")
        return ordered_end_of_log(connection)

    monkeypatch.setattr(file, "ordered_end_of_log", disturbed)
    monkeypatch.setattr(file, "_SNAPSHOT_TRIES", 3)
    with pytest.raises(TableError) as found, log.source.read_whole(log.schema):
        pass
    assert found.value.code == "no_quiet_moment"
    assert database.execute("SELECT COUNT(*) FROM t") == [(3,)]
    log.close()


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["plain", "xa", "compressed"])
def test_reads_under_writers_say_the_truth(database: MysqlDatabase, source_of: Make, kind: str) -> None:
    if kind == "compressed" and database.server.lacks((8, 0, 20)):
        pytest.skip("compressed transactions came with MySQL 8.0.20")
    database.execute("CREATE TABLE t (w int, n int, PRIMARY KEY (w, n))")
    table = TableId(database.name, "t")
    log = Log(source_of(database.server), table)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(w: int) -> None:
        try:
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                if kind == "compressed":
                    cursor.execute("SET SESSION binlog_transaction_compression = ON")
                n = 0
                while not stop.is_set():
                    n += 1
                    insert = f"INSERT INTO t VALUES ({w}, {n})"
                    xa = [f"XA {what} 'w{w}n{n}'" for what in ("START", "END", "PREPARE", "COMMIT")]
                    for text in [xa[0], insert, *xa[1:]] if kind == "xa" else [insert]:
                        cursor.execute(text)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            errors.append(error)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(16)]
    for thread in threads:
        thread.start()
    chunks: list[Chunk] = []
    try:
        while len(chunks) < 40:
            chunks.append(log.source.read_chunk(chunk_request(log.schema)))
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert not errors, errors
    rows = log.rows()
    delivered = pa.array(log.ids)
    unknown = 0
    for chunk in chunks:
        there = set(zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True))
        answers = chunk.visibility.classify(delivered).to_pylist()
        unknown += answers.count(Seen.UNKNOWN)
        assert {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.SEEN} <= there
        assert not {row for row, seen in zip(rows, answers, strict=True) if seen == Seen.UNSEEN} & there
    assert unknown, "somebody was committing"
    assert set(log.source.visibility().classify(delivered).to_pylist()) == {int(Seen.SEEN)}, "none stays unknown"
    log.close()
