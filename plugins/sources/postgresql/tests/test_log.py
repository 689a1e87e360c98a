"""The log of a real server: what is done there is what a pull brings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from psycopg import conninfo

from replicator.model.errors import (
    AccessDeniedError,
    LogGapError,
    ReplicatorError,
    SourceUnavailableError,
    TransientError,
)
from replicator.model.events import DDLOperation
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import LogBatch, PullLimits
from replicator_source_postgresql.connecting.connection import SameServer, Session
from replicator_source_postgresql.connecting.errors import translate
from replicator_source_postgresql.log.feed import Feed
from replicator_source_postgresql.log.lookups import LogCatalogue
from replicator_source_postgresql.log.reader import LsnMarks, PgLogReader, mark_prefix
from replicator_source_postgresql.lsn import lsn_from_text
from replicator_source_postgresql.source import VERSION_WITH_MESSAGES
from replicator_source_postgresql.types import SESSION_OPTIONS, TYPES_QUERY, TypeInfo, column_type, type_infos
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

MANY = PullLimits(rows=10_000, bytes=64 << 20, wait_s=5)
PULLS_MAX = 10_000


class Log:
    """A database with a publication, a slot, and readers of it."""

    def __init__(self, database: ScratchDatabase) -> None:
        self.database = database
        self.connection = database.connect(options=SESSION_OPTIONS)
        self.slot = database.name
        self.uuid = "u1"
        self.lsn_marks = LsnMarks()
        self._readers: list[PgLogReader] = []
        parameters = {key: str(value) for key, value in conninfo.conninfo_to_dict(database.dsn).items()}
        self._session = Session(parameters, SameServer(), settings={}, server="the test's")
        self.start_lsn = 0
        self.connection.execute("CREATE PUBLICATION p WITH (publish_via_partition_root = true)")
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,))

    def table(self, name: str, columns: str, identity: str = "DEFAULT") -> TableId:
        for statement in (
            f'CREATE TABLE public."{name}" ({columns})',
            f'ALTER TABLE public."{name}" REPLICA IDENTITY {identity}',
            f'ALTER PUBLICATION p ADD TABLE public."{name}"',
        ):
            self.connection.execute(statement)
        return TableId("public", name)

    def schema(self, table: TableId, key: tuple[str, ...] = ("id",)) -> TableSchema:
        rows = self.connection.execute(
            "SELECT attname, atttypid::int8, atttypmod, attnotnull, attnum FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (f'public."{table.name}"',),
        ).fetchall()
        infos = self.types([row[1] for row in rows])
        columns = []
        for name, oid, typmod, not_null, number in rows:
            mapping = column_type(oid, typmod, infos[oid])
            assert mapping is not None
            columns.append(
                Column(name=name, type=mapping.arrow, source_type=mapping.source_type, nullable=not not_null, id=number)
            )
        return TableSchema(table=table, columns=tuple(columns), key=key)

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        return type_infos(self.connection.execute(TYPES_QUERY, (list(oids),)).fetchall())

    def open(self, *schemas: TableSchema, server: PostgresServer | None = None, **settings: Any) -> PgLogReader:
        ((near,),) = self.connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchall()
        info = conninfo.conninfo_to_dict(self.database.dsn)
        start_lsn, slot = settings.pop("start_lsn", self.start_lsn), settings.pop("slot", self.slot)
        reader = PgLogReader(
            Feed.open(info, SameServer(), slot=slot, publication="p", start_lsn=start_lsn, is_raw=False),
            **{
                "start_lsn": start_lsn,
                "schemas": {s.table: s for s in schemas},
                "lookups": LogCatalogue(self._session, "p"),
                "xid_near": int(near),
                "marks": mark_prefix(self.uuid),
                "lsn_marks": self.lsn_marks,
                "offset_fields": {"timeline": 1},
                "objects": {},
                "accepted": {},
                "unrepresentable": "fail",
                "log_end": None,
                "has_early_keepalives": False,
                "idle_move_s": 10.0,
                **settings,
            },
        )
        self._readers.append(reader)
        return reader

    def mark(self, text: str) -> str:
        """Write a mark as the source does: servers before 14 do not send its text."""
        ((lsn,),) = self.connection.execute(
            "SELECT pg_logical_emit_message(true, %s, %s)::text", (mark_prefix(self.uuid), text)
        ).fetchall()
        if self.connection.info.server_version < VERSION_WITH_MESSAGES:
            return self.lsn_marks.expect(lsn_from_text(lsn))
        return text

    def run(self, *statements: str) -> None:
        """Run the statements in one transaction."""
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement)

    def rows(self, reader: PgLogReader) -> list[dict[str, Any]]:
        """Every change up to now, with its table, in order."""
        return [row for batch in self.batches(reader) for row in _rows(batch)]

    def batches(self, reader: PgLogReader, limits: PullLimits = MANY) -> list[LogBatch]:
        """Pulls up to a mark written now."""
        mark = self.mark(f"end {datetime.now(UTC)}")
        return list(until(reader, lambda batch: mark in batch.marks, limits))

    def abandon(self) -> None:
        """Close the connections; the slot goes with the server."""
        for reader in self._readers:
            reader.close()
        self._session.close()
        self.connection.close()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._session.close()
        with self.database.connect(replication="database") as replication:
            replication.execute(f'DROP_REPLICATION_SLOT "{self.slot}" WAIT')
        self.connection.close()


def _brings(mark: str) -> Callable[[LogBatch], bool]:
    return lambda batch: mark in batch.marks


def until(reader: PgLogReader, ends: Callable[[LogBatch], bool], limits: PullLimits = MANY) -> Iterator[LogBatch]:
    for _ in range(PULLS_MAX):
        batch = reader.pull(limits)
        for changes in batch.changes:
            changes.rows.validate(full=True)
        assert batch.table_errors == {}
        yield batch
        if ends(batch):
            return
    pytest.fail("what was waited for never came")


def _rows(batch: LogBatch) -> list[dict[str, Any]]:
    rows = [
        {**row, "table": changes.schema.table.name} for changes in batch.changes for row in changes.rows.to_pylist()
    ]
    return sorted(rows, key=lambda row: row["_sequence_num"])


@pytest.fixture
def log(database: ScratchDatabase) -> Iterator[Log]:
    log = Log(database)
    yield log
    log.close()


@pytest.fixture
def any_log(any_database: ScratchDatabase) -> Iterator[Log]:
    log = Log(any_database)
    yield log
    log.close()


def test_changes_of_a_table_come_in_order(any_log: Log) -> None:
    table = any_log.table("t", "id int PRIMARY KEY, v text, at timestamptz")
    reader = any_log.open(any_log.schema(table))
    any_log.run(
        "INSERT INTO public.t VALUES (1, 'a', '2024-01-01 12:00+02'), (2, NULL, NULL)",
        "UPDATE public.t SET id = 3 WHERE id = 1",
    )
    any_log.run("DELETE FROM public.t WHERE id = 2")
    rows = any_log.rows(reader)
    at = datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert [(r["_operation"], r["before"], r["row"]) for r in rows] == [
        ("INSERT", None, {"id": 1, "v": "a", "at": at}),
        ("INSERT", None, {"id": 2, "v": None, "at": None}),
        ("UPDATE", {"id": 1}, {"id": 3, "v": "a", "at": at}),
        ("DELETE", {"id": 2}, None),
    ]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX t_code"])
def test_unchanged_large_values_with_every_replica_identity(log: Log, identity: str) -> None:
    columns = "id int PRIMARY KEY, code text NOT NULL CONSTRAINT t_code UNIQUE, big text, n int"
    table = log.table("t", columns, identity)
    log.run(
        "ALTER TABLE public.t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO public.t VALUES (1, 'a', repeat('x', 5000), 0)",
    )
    key = ("code",) if "INDEX" in identity else ("id",)
    reader = log.open(log.schema(table, key))
    log.run("UPDATE public.t SET n = 1")
    log.run("UPDATE public.t SET id = 2, code = 'b'")
    log.run("UPDATE public.t SET big = NULL", "DELETE FROM public.t")
    first, plain, moved, nulled, deleted = log.rows(reader)
    assert first["row"]["big"] == "x" * 5000
    if identity == "FULL":
        assert (plain["row"]["big"], plain["_absent"]) == ("x" * 5000, None)
        assert moved["row"]["big"] == "x" * 5000
    else:
        assert plain["row"] == {"id": 1, "code": "a", "big": None, "n": 1}
        assert plain["_absent"] == ["big"]
        assert moved["_absent"] == ["big"]
    old, new = {"code": "a"} if key == ("code",) else {"id": 1}, {"code": "b"} if key == ("code",) else {"id": 2}
    assert [r["before"] for r in (plain, moved, nulled, deleted)] == [None, old, None, new]
    assert not nulled["_absent"]
    assert nulled["row"]["big"] is None


def test_a_large_unchanged_key_is_known(log: Log) -> None:
    table = log.table("t", "id text PRIMARY KEY, n int")
    log.run("ALTER TABLE public.t ALTER id SET STORAGE EXTERNAL", "INSERT INTO public.t VALUES (repeat('k', 2500), 0)")
    reader = log.open(log.schema(table))
    log.run("UPDATE public.t SET n = 1")
    _, updated = log.rows(reader)
    assert updated["row"] == {"id": "k" * 2500, "n": 1}
    assert updated["before"] is None


def test_a_table_without_a_key_brings_whole_old_rows(log: Log) -> None:
    table = log.table("t", "a int, b text", "FULL")
    reader = log.open(log.schema(table, ()))
    log.run(
        "INSERT INTO public.t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
        "UPDATE public.t SET b = 'y' WHERE a = 1",
        "DELETE FROM public.t WHERE a IS NULL",
    )
    rows = log.rows(reader)
    assert [(r["before"], r["row"]) for r in rows[3:]] == [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}),
        ({"a": None, "b": None}, None),
    ]


def test_truncating_several_tables_is_one_event_for_each_followed(log: Log) -> None:
    tables = [log.table(name, "id int PRIMARY KEY") for name in ("a", "b", "c")]
    reader = log.open(*(log.schema(t) for t in tables[:2]))
    log.run(
        "INSERT INTO public.a VALUES (1)",
        "INSERT INTO public.b VALUES (1)",
        "TRUNCATE public.a, public.b, public.c",
        "INSERT INTO public.a VALUES (2)",
    )
    batches = log.batches(reader)
    (with_ddl,) = [b for b in batches if b.ddl]
    assert sorted((e.operation, e.table.name) for e in with_ddl.ddl) == [
        (DDLOperation.TRUNCATE_TABLE, "a"),
        (DDLOperation.TRUNCATE_TABLE, "b"),
    ]
    assert with_ddl.open_transaction is not None
    behind = batches[batches.index(with_ddl) + 1 :]
    assert [row["row"]["id"] for b in behind for row in _rows(b)] == [2]
    assert {t for b in batches for t in b.transactions.column("id").to_pylist()} == {with_ddl.open_transaction}


def test_another_shape_is_an_event_between_the_rows_of_the_old_and_the_new(any_log: Log) -> None:
    table = any_log.table("t", "id int PRIMARY KEY, v int")
    reader = any_log.open(any_log.schema(table))
    any_log.run(
        "INSERT INTO public.t VALUES (1, 1)",
        "ALTER TABLE public.t ADD COLUMN w numeric(5,1) DEFAULT 7",
        "INSERT INTO public.t VALUES (2, 2)",
    )
    any_log.run("ANALYZE public.t", "INSERT INTO public.t VALUES (3, 3)")
    batches = any_log.batches(reader)
    any_log.run(
        "CREATE TYPE public.mood AS ENUM ('sad')",
        "ALTER TABLE public.t ADD COLUMN m public.mood DEFAULT 'sad'",
    )
    any_log.run("INSERT INTO public.t VALUES (4)")
    batches += any_log.batches(reader)
    events = [e for b in batches for e in b.ddl]
    assert [[c.name for c in e.schema.columns] for e in events if e.schema] == [["id", "v", "w"], ["id", "v", "w", "m"]]
    assert [sorted(r["row"]) for b in batches for r in _rows(b)] == [
        ["id", "v"],
        ["id", "v", "w"],
        ["id", "v", "w"],
        ["id", "m", "v", "w"],
    ]
    order = [
        [r["row"]["id"] for r in _rows(b)] or [e.operation.value for e in b.ddl] for b in batches if b.changes or b.ddl
    ]
    assert order == [[1], ["ALTER_TABLE"], [2, 3], ["ALTER_TABLE"], [4]]


def test_a_new_primary_key_is_an_event(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY, other int NOT NULL")
    reader = log.open(log.schema(table))
    log.run("INSERT INTO public.t VALUES (1, 1)")
    log.run(
        "ALTER TABLE public.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (other)", "INSERT INTO public.t VALUES (2, 2)"
    )
    (event,) = [e for b in log.batches(reader) for e in b.ddl]
    assert event.schema is not None
    assert event.schema.key == ("other",)


def test_a_partitioned_table_comes_under_its_roots_name(log: Log) -> None:
    log.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t1 (v text, id int NOT NULL)",
    )
    log.run(
        "ALTER TABLE public.t ATTACH PARTITION public.t1 FOR VALUES FROM (0) TO (100)",
        "ALTER PUBLICATION p ADD TABLE public.t",
    )
    table = TableId("public", "t")
    reader = log.open(log.schema(table))
    log.run("INSERT INTO public.t VALUES (1, 'a')", "UPDATE public.t SET v = 'b'")
    assert [(r["table"], r["row"]) for r in log.rows(reader)] == [
        ("t", {"id": 1, "v": "a"}),
        ("t", {"id": 1, "v": "b"}),
    ]


def test_a_big_transaction_comes_in_bounded_pulls(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY, v text")
    reader = log.open(log.schema(table))
    log.run("INSERT INTO public.t SELECT i, repeat('v', 100) FROM generate_series(1, 20000) i")
    batches = log.batches(reader, PullLimits(rows=1500, bytes=1 << 30, wait_s=5))
    inside = [b for b in batches if b.open_transaction]
    assert len(inside) >= 13
    assert all(b.offset is None and b.transactions.num_rows == 0 for b in inside)
    assert max(b.events for b in batches) <= 1500
    assert [r["row"]["id"] for b in batches for r in _rows(b)] == list(range(1, 20_001))
    assert sum(b.transactions.num_rows for b in batches) == 1


def test_many_small_transactions_keep_their_order_and_ids(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY, xid text")
    reader = log.open(log.schema(table))
    with log.connection.pipeline():
        for number in range(3000):
            log.connection.execute("INSERT INTO public.t VALUES (%s, pg_current_xact_id()::text)", (number,))
            log.connection.execute("SELECT txid_current()")
    with log.database.connect() as other:
        other.execute(
            "DO $$ BEGIN FOR i IN 3000..3999 LOOP INSERT INTO public.t VALUES (i, pg_current_xact_id()::text); COMMIT; END LOOP; END $$"
        )
    batches = log.batches(reader)
    rows = [row for b in batches for row in _rows(b)]
    assert [r["row"]["id"] for r in rows] == list(range(4000))
    assert [r["_transaction_id"] for r in rows] == [r["row"]["xid"] for r in rows]
    for batch in batches:
        ends = dict(
            zip(
                batch.transactions.column("id").to_pylist(),
                batch.transactions.column("end_ordinal").to_pylist(),
                strict=True,
            )
        )
        assert sorted(ends.values()) == list(ends.values())
        last = {r["_transaction_id"]: r["_sequence_num"] for r in _rows(batch)}
        assert all(ends[xid] == ordinal + 1 for xid, ordinal in last.items() if xid != batch.open_transaction)


def test_a_rolled_back_transaction_leaves_nothing(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    reader = log.open(log.schema(table))
    with log.connection.transaction(force_rollback=True):
        log.connection.execute("INSERT INTO public.t VALUES (1)")
    with log.connection.transaction():
        log.connection.execute("INSERT INTO public.t VALUES (2)")
        with log.connection.transaction(force_rollback=True):
            log.connection.execute("INSERT INTO public.t VALUES (3)")
    assert [r["row"]["id"] for r in log.rows(reader)] == [2]


def test_marks_come_behind_what_committed_before_them(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    reader = log.open(log.schema(table))
    seen: set[int] = set()
    for number in range(30):
        log.run(f"INSERT INTO public.t VALUES ({number})")
        mark = log.mark(f"m{number}")
        log.run(f"UPDATE public.t SET id = -id - 1 WHERE id = {number}")
        for batch in until(reader, _brings(mark)):
            seen |= {r["row"]["id"] for r in _rows(batch)}
        assert number in seen
        assert -number - 1 not in seen


def test_what_is_not_acknowledged_comes_again_whole(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    schema = log.schema(table)
    reader = log.open(schema)
    log.run("INSERT INTO public.t VALUES (1)")
    (first,) = [b for b in log.batches(reader) if b.changes]
    assert first.offset is not None
    reader.acknowledge(first.offset)
    log.run("INSERT INTO public.t SELECT generate_series(100, 5099)")
    part = next(
        b for b in until(reader, lambda b: bool(b.changes), PullLimits(rows=100, bytes=1 << 20, wait_s=5)) if b.changes
    )
    assert part.open_transaction is not None
    reader.close()
    again = _reopened(log, schema, lsn_from_text(first.offset.value["lsn"]))
    batches = log.batches(again)
    assert [r["row"]["id"] for b in batches for r in _rows(b)] == list(range(100, 5100))
    assert part.open_transaction in {t for b in batches for t in b.transactions.column("id").to_pylist()}


def test_only_what_was_acknowledged_is_confirmed(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    reader = log.open(log.schema(table))
    log.run("INSERT INTO public.t VALUES (1)")
    first = log.batches(reader)
    offset = next(b.offset for b in first if b.offset)
    reader.acknowledge(offset)
    log.run("INSERT INTO public.t VALUES (2)")
    log.batches(reader)
    reader.keep_alive()
    reader.close()
    lsn = lsn_from_text(offset.value["lsn"])
    _reopened(log, log.schema(table), lsn).close()
    ((confirmed,),) = log.connection.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (log.slot,)
    ).fetchall()
    assert lsn_from_text(confirmed) == lsn


def test_where_the_log_ends_tells_what_keepalives_in_a_backlog_do_not(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    moment, end = datetime(2026, 1, 1, tzinfo=UTC), [1 << 62]
    reader = log.open(log.schema(table), idle_move_s=0, log_end=lambda: (end[0], moment), has_early_keepalives=True)
    log.run("INSERT INTO public.t VALUES (1)")
    assert moment not in [batch.source_time for batch in log.batches(reader)]
    reader.close()
    end[0] = 1
    reader = log.open(log.schema(table), idle_move_s=0, log_end=lambda: (end[0], moment), has_early_keepalives=True)
    assert list(until(reader, lambda batch: batch.source_time == moment))


def test_an_idle_database_moves_its_offset(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY")
    log.connection.execute("CREATE TABLE public.unpublished (id int)")
    reader = log.open(log.schema(table), idle_move_s=0)
    log.connection.execute("INSERT INTO public.unpublished SELECT generate_series(1, 1000)")
    ((flushed,),) = log.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    batches = list(
        until(reader, lambda b: b.offset is not None and lsn_from_text(b.offset.value["lsn"]) >= lsn_from_text(flushed))
    )
    assert all(b.events == 0 for b in batches)
    assert batches[-1].source_time is not None
    assert abs(batches[-1].source_time - datetime.now(UTC)) < timedelta(hours=1)


@pytest.fixture
def own_log() -> Iterator[Log]:
    """A log on a server that the test may stop."""
    with PostgresServer.distribution() as server:
        server.execute("CREATE DATABASE own")
        log = Log(ScratchDatabase(server=server, name="own"))
        yield log
        log.abandon()


def test_a_stopping_server_gets_its_last_changes_acknowledged(own_log: Log) -> None:
    table = own_log.table("t", "id int PRIMARY KEY")
    schema = own_log.schema(table)
    reader = own_log.open(schema, idle_move_s=3600)
    own_log.run("INSERT INTO public.t VALUES (1)")
    assert [r["row"]["id"] for r in own_log.rows(reader)] == [1]
    own_log.run("INSERT INTO public.t VALUES (2)")
    server = own_log.database.server
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    seen = []
    acknowledged = None
    try:
        for batch in _until_lost(reader):
            seen += [r["row"]["id"] for r in _rows(batch)]
            if batch.offset is not None:
                acknowledged = batch.offset
                reader.acknowledge(acknowledged)
    finally:
        stopper.join()
        reader.close()
    assert seen == [2]
    server.start()
    own_log.connection.close()
    own_log.connection = own_log.database.connect(options=SESSION_OPTIONS)
    # Up to 16 a server forgets at its restart what was confirmed last; the reader's own position counts.
    assert acknowledged is not None
    again = own_log.open(schema, start_lsn=lsn_from_text(acknowledged.value["lsn"]))
    assert own_log.rows(again) == []


def test_a_killed_server_is_a_transient_error_everywhere(own_log: Log) -> None:
    schema = own_log.schema(own_log.table("t", "id int PRIMARY KEY"))
    reader = own_log.open(schema)
    own_log.database.server.kill9()
    assert all(batch.events == 0 for batch in _until_lost(reader))
    with pytest.raises(TransientError):
        reader.keep_alive()
    with pytest.raises(TransientError):
        Feed.open(
            conninfo.conninfo_to_dict(own_log.database.dsn),
            SameServer(),
            slot="own",
            publication="p",
            start_lsn=0,
            is_raw=False,
        )
    reader.close()
    reader.close()


def test_a_slot_in_use_a_missing_one_and_a_closed_reader(log: Log) -> None:
    reader = log.open()
    with pytest.raises(SourceUnavailableError) as busy:
        log.open()
    assert busy.value.code == "slot_active"
    with pytest.raises(LogGapError) as gone:
        log.open(slot="no_such_slot")
    assert gone.value.code == "slot_or_publication_missing"
    assert gone.value.action is not None
    reader.close()
    with pytest.raises(SourceUnavailableError):
        reader.pull(MANY)


def test_a_role_without_privilege_is_told_so(log: Log) -> None:
    role = f"r_{log.slot}"
    log.connection.execute(f'CREATE ROLE "{role}" LOGIN')
    info = {**conninfo.conninfo_to_dict(log.database.dsn), "user": role}
    try:
        with pytest.raises(AccessDeniedError):
            Feed.open(info, SameServer(), slot=log.slot, publication="p", start_lsn=0, is_raw=False)
    finally:
        log.connection.execute(f'DROP ROLE "{role}"')


def test_errors_about_values_do_not_quote_them(log: Log) -> None:
    import psycopg

    with pytest.raises(psycopg.Error) as caught:
        log.connection.execute("SELECT 'canary'::int")
    error: ReplicatorError = translate(caught.value, doing="reading", table="public.t")
    assert "canary" not in str(error)
    assert "22P02" in str(error)


def test_names_that_need_quoting(log: Log) -> None:
    name = "we\"ird ' näme.x"
    table = TableId("public", name)
    quoted = '"' + name.replace('"', '""') + '"'
    log.run(
        f'CREATE TABLE public.{quoted} (id int PRIMARY KEY, "a.b" int, "A.B" int)',
        f"ALTER PUBLICATION p ADD TABLE public.{quoted}",
    )
    columns = tuple(
        Column(name=n, type=pa.int32(), source_type="int4", id=number)
        for number, n in enumerate(("id", "a.b", "A.B"), start=1)
    )
    reader = log.open(TableSchema(table=table, columns=columns, key=("id",)))
    log.run(f"INSERT INTO public.{quoted} VALUES (1, 2, 3)")
    (row,) = log.rows(reader)
    assert row["row"] == {"id": 1, "c2": 2, "c3": 3}


def test_a_large_value_comes_whole(log: Log) -> None:
    table = log.table("t", "id int PRIMARY KEY, v text")
    reader = log.open(log.schema(table))
    log.run("INSERT INTO public.t SELECT i, repeat(i::text, 3000000) FROM generate_series(1, 3) i")
    batches = log.batches(reader, PullLimits(rows=10, bytes=1 << 20, wait_s=5))
    assert [len(r["row"]["v"]) for b in batches for r in _rows(b)] == [3_000_000] * 3
    assert max(b.events for b in batches) == 1


def _until_lost(reader: PgLogReader) -> Iterator[LogBatch]:
    """Pulls until the connection is lost."""
    for _ in range(PULLS_MAX):
        try:
            batch = reader.pull(PullLimits(rows=100, bytes=1 << 20, wait_s=1))
        except SourceUnavailableError:
            return
        yield batch
    pytest.fail("the connection was not lost")


def _reopened(log: Log, schema: TableSchema, lsn: int) -> PgLogReader:
    """Open again, once the server has noticed that the last reader has left."""
    for _ in range(PULLS_MAX):
        try:
            return log.open(schema, start_lsn=lsn)
        except SourceUnavailableError as error:
            if error.code != "slot_active":
                raise
    pytest.fail("the slot stays in use")
