"""Publication, slot and position: made, kept in line, compared at the start, and removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from replicator.model.errors import ConfigError, LogGapError, OffsetExpiredError, ReplicatorError, TransientError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins.source import LogReader, PullLimits
from replicator_source_postgresql.position import Position
from replicator_source_postgresql.replication.continuity import System, parse_timeline_history, verify_joins
from replicator_source_postgresql.replication.slot import SlotState, resource_name
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.programs import find_distribution
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

MakeSource = Callable[..., PostgresqlSource]

A, B = TableId("public", "a"), TableId("public", "b")
TABLES = ("CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY, n int)")
PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = '{}' ORDER BY 2"


@pytest.fixture
def tables(any_database: ScratchDatabase) -> ScratchDatabase:
    any_database.execute(*TABLES)
    return any_database


def published(database: ScratchDatabase, name: str) -> list[str]:
    return [table for _, table in database.execute(PUBLISHED.format(name))]


def slots(database: ScratchDatabase) -> list[str]:
    return [
        name
        for (name,) in database.execute(
            f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database.name}' ORDER BY 1"
        )
    ]


def open_log(source: PostgresqlSource, after: Offset, *tables: TableId) -> LogReader:
    return source.open_log(after, {t: d.schema for t, d in source.describe(tables).items()})


def drained(reader: LogReader, source: PostgresqlSource) -> Offset:
    """Read up to a mark, acknowledge, and return the offset."""
    mark = source.mark()
    offset = None
    for _ in range(200):
        batch = reader.pull(PullLimits(rows=1000, bytes=1 << 24, wait_s=1.0))
        offset = batch.offset or offset
        if mark in batch.marks:
            assert offset is not None
            reader.acknowledge(offset)
            return offset
    raise AssertionError("no mark")


# -- names


def test_names_of_different_replicators_never_meet() -> None:
    names = ["shop", "a-b", "a_b", "x" * 63, "x" * 62 + "y", "a-" + "x" * 61]
    made = [resource_name(name) for name in names]
    assert made[0] == "replicator_shop"
    assert made[1].startswith("replicator_a_b_")
    assert len(set(made)) == len(names)
    assert all(len(name) <= 63 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for name in made)


# -- publication


def test_publication_lists_the_tables_by_name_and_is_kept_in_line(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    name = source.identity()["publication"]
    source.prepare([A], is_first=True)
    assert published(tables, name) == ["a"]
    assert tables.execute(
        f"SELECT puballtables, pubviaroot, pubinsert, pubtruncate FROM pg_publication WHERE pubname = '{name}'"
    ) == [(False, True, True, True)]
    before = source.describe([A])[A].identity
    source.prepare([A, B], is_first=False)
    assert published(tables, name) == ["a", "b"]
    assert source.describe([A])[A].identity == before
    source.prepare([B], is_first=False)
    assert published(tables, name) == ["b"]


def test_what_somebody_changed_in_the_publication_is_mended_and_shows_in_the_identity(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    name = source.identity()["publication"]
    source.prepare([A], is_first=True)
    before = source.describe([A])[A].identity.parts
    tables.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    assert source.describe([A])[A].identity.parts["publish"] == ["insert"]
    source.prepare([A], is_first=False)
    after = source.describe([A])[A].identity.parts
    assert after["publish"] == before["publish"]
    assert after["publication"] != before["publication"]


def test_tables_that_are_altered_while_they_are_listed_are_listed(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    """Who alters several tables in one transaction may take their locks in another order than we do."""
    # Who waits first looks for a deadlock first, and loses.
    tables.execute(f"ALTER DATABASE {tables.name} SET deadlock_timeout = '3s'")
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'b'::regclass"
    lost = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with tables.connect(autocommit=False) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("SET deadlock_timeout = '60s'")
        connection.execute("ALTER TABLE b ADD more int")
        prepared = pool.submit(source.prepare, [A, B], is_first=False)
        wait_until(lambda: tables.execute(waiting), "the publication waits", every_s=0.01)
        connection.execute("ALTER TABLE a ADD more int")
        connection.commit()
        prepared.result()
    assert published(tables, source.identity()["publication"]) == ["a", "b"]
    wait_until(lambda: tables.execute(lost) == [(1,)], "the deadlock is counted")


def test_a_table_dropped_from_the_publication_and_put_back_has_another_identity(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    name = source.identity()["publication"]
    source.prepare([A], is_first=True)
    before = source.describe([A])[A].identity.parts
    tables.execute(f"ALTER PUBLICATION {name} DROP TABLE a", f"ALTER PUBLICATION {name} ADD TABLE a")
    after = source.describe([A])[A].identity.parts
    assert {part for part in after if after[part] != before[part]} == {"publication_rel"}


def test_a_row_filter_put_on_our_publication_is_taken_off(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    if tables.server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    source.prepare([A], is_first=True)
    before = source.describe([A])[A].identity.parts
    tables.execute(f"ALTER PUBLICATION {source.identity()['publication']} SET TABLE a WHERE (id > 5)")
    assert source.describe([A])[A].identity.parts["row_filter"] == "(id > 5)"
    source.prepare([A], is_first=False)
    after = source.describe([A])[A].identity.parts
    assert after["row_filter"] is None
    assert after["publication_rel"] != before["publication_rel"]


def test_a_table_without_identity_is_never_published(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    tables.execute("CREATE TABLE c (n int)")
    with pytest.raises(ConfigError, match=r"no usable identity: public\.c"):
        source.prepare([A, TableId("public", "c")], is_first=True)
    assert published(tables, source.identity()["publication"]) == []
    assert slots(tables) == []
    tables.execute("INSERT INTO c VALUES (1)", "UPDATE c SET n = 2")


def test_publication_and_slot_of_another_replicator_of_the_same_name_are_left_alone(
    tables: ScratchDatabase, source: PostgresqlSource, make_source: MakeSource
) -> None:
    source.prepare([A], is_first=True)
    other = make_source(tables, uuid="u2")
    with pytest.raises(ConfigError, match="belong to another replicator") as caught:
        other.prepare([B], is_first=True)
    assert caught.value.code == "publication_of_another"
    assert "publication_of_another" in {p.code for p in other.check([B])}
    other.remove()
    assert slots(tables) == [source.identity()["slot"]]
    assert published(tables, source.identity()["publication"]) == ["a"]


def test_inheritance_children_are_not_published_with_their_parent(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE c (PRIMARY KEY (id)) INHERITS (p)")
    source.prepare([TableId("public", "p")], is_first=True)
    assert published(any_database, source.identity()["publication"]) == ["p"]


def test_names_that_need_quoting(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    table = TableId('Sch"e.ma', "T ä😀'\\%s")
    quoted = psycopg.sql.Identifier(table.namespace, table.name).as_string(None)
    any_database.execute(
        'CREATE SCHEMA "Sch""e.ma"',
        f'CREATE TABLE {quoted} ("Id"" %s" int PRIMARY KEY)',
        f"INSERT INTO {quoted} VALUES (1)",
    )
    start = source.prepare([table], is_first=True)
    reader = open_log(source, start, table)
    any_database.execute(f"INSERT INTO {quoted} VALUES (2)")
    batches, mark = [reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=1.0))], source.mark()
    while mark not in batches[-1].marks:
        batches.append(reader.pull(PullLimits(rows=10, bytes=1 << 20, wait_s=1.0)))
    assert [c.schema.table for batch in batches for c in batch.changes] == [table]
    reader.close()


# -- making the slot


def test_first_preparation_drops_what_an_earlier_one_left(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    first = source.prepare([A], is_first=True)
    tables.execute("INSERT INTO a VALUES (1, 1)")
    second = source.prepare([A], is_first=True)
    assert Position.of(second).lsn > Position.of(first).lsn
    assert slots(tables) == [source.identity()["slot"]]


def test_later_preparation_keeps_the_slot_where_it_is(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    source.prepare([A], is_first=True)
    where = "SELECT restart_lsn, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    before = tables.execute(where)
    source.prepare([A, B], is_first=False)
    assert tables.execute(where) == before


def test_while_the_slot_waits_the_blocking_transactions_are_named(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    assert list(source.status().waiting_for) == []
    with tables.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO a VALUES (1, 1)")
        outcome: list[Offset | BaseException] = []
        thread = in_thread(lambda: source.prepare([A], is_first=True), outcome)
        names = wait_until(lambda: source.status().waiting_for, "the slot waits for the writer")
        assert f"pid {writer.info.backend_pid} " in names[0]
        writer.commit()
    thread.join()
    assert isinstance(outcome[0], Offset)
    assert list(source.status().waiting_for) == []


def test_a_prepared_transaction_that_blocks_is_named(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    with tables.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO a VALUES (1, 1)")
        writer.execute(f"PREPARE TRANSACTION 'left over {tables.name}'")
    outcome: list[Offset | BaseException] = []
    thread = in_thread(lambda: source.prepare([A], is_first=True), outcome)
    names = wait_until(lambda: source.status().waiting_for, "the slot waits for the prepared transaction")
    tables.execute(f"COMMIT PREPARED 'left over {tables.name}'")
    thread.join()
    assert names[0] == f"the prepared transaction 'left over {tables.name}' in {tables.name}"


def test_preparation_that_waits_can_be_cancelled_and_leaves_no_slot(
    tables: ScratchDatabase, source: PostgresqlSource, make_source: MakeSource
) -> None:
    with tables.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO a VALUES (1, 1)")
        outcome: list[Offset | BaseException] = []
        thread = in_thread(lambda: source.prepare([A], is_first=True), outcome)
        wait_until(lambda: source.status().waiting_for, "the slot waits for the writer")
        source.close()
        thread.join()
        assert isinstance(outcome[0], TransientError)
    assert slots(tables) == []
    make_source(tables).prepare([A], is_first=True)


def test_a_slot_of_ours_that_is_read_is_not_taken_away(
    tables: ScratchDatabase, source: PostgresqlSource, make_source: MakeSource
) -> None:
    start = source.prepare([A], is_first=True)
    reader = open_log(source, start, A)
    other = make_source(tables, lock_timeout="50ms")
    (pid,) = tables.execute("SELECT active_pid FROM pg_replication_slots WHERE database = current_database()")[0]
    for attempt in (lambda: other.prepare([A], is_first=True), lambda: open_log(other, start, A), other.remove):
        with pytest.raises(TransientError, match=f"server process {pid}") as caught:
            attempt()
        assert caught.value.code == "slot_active"
    drained(reader, source)
    reader.close()


def test_who_has_a_later_lease_ends_the_reader_of_an_earlier_one(
    tables: ScratchDatabase, make_source: MakeSource
) -> None:
    first = make_source(tables, epoch=7)
    start = first.prepare([A], is_first=True)
    reader = open_log(first, start, A)
    active = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
    shown = tables.execute(f"SELECT application_name FROM pg_stat_activity WHERE pid = ({active})")
    assert shown == [(f"replicator {tables.name} u1/7",)]
    for fenced in (
        make_source(tables, epoch=7),
        make_source(tables, epoch=6),
        make_source(tables, epoch=0),
        make_source(tables, epoch=8, uuid="u2"),
        make_source(tables, epoch=8, uuid=""),
    ):
        with pytest.raises(TransientError) as caught:
            open_log(fenced, start, A)
        assert caught.value.code == "slot_active"
    later = make_source(tables, epoch=8)
    opened: list[LogReader] = []

    def is_open() -> bool:
        # A server before 14 only promises to end the process.
        with suppress(TransientError):
            opened.append(open_log(later, start, A))
        return bool(opened)

    wait_until(is_open, "the slot is free")
    with pytest.raises(TransientError):
        drained(reader, first)
    drained(opened[0], later)
    opened[0].close()
    reader.close()


def test_a_slot_given_by_the_user_is_used_from_where_it_stands_and_stays(
    tables: ScratchDatabase, make_source: MakeSource
) -> None:
    name = f"mine_{tables.name}"
    source = make_source(tables, slot=name)
    with pytest.raises(ConfigError, match="no replication slot"):
        source.prepare([A], is_first=True)
    (lsn,) = tables.execute(f"SELECT lsn::text FROM pg_create_logical_replication_slot('{name}', 'pgoutput')")[0]
    tables.execute("INSERT INTO b VALUES (1, 1)")
    assert source.prepare([A], is_first=True).value["lsn"] == lsn
    assert [statement for statement in source.leftovers() if "slot" in statement.split("(")[0]] == []
    source.remove()
    assert slots(tables) == [name]


@pytest.mark.parametrize("plugin", ["test_decoding", None])
def test_a_slot_of_another_kind_is_refused(
    tables: ScratchDatabase, make_source: MakeSource, plugin: str | None
) -> None:
    name = f"mine_{tables.name}"
    make = (
        f"pg_create_logical_replication_slot('{name}', '{plugin}')"
        if plugin
        else f"pg_create_physical_replication_slot('{name}')"
    )
    try:
        tables.execute(f"SELECT {make}")
    except psycopg.errors.UndefinedFile:
        pytest.skip(f"this server has no {plugin}")
    source = make_source(tables, slot=name)
    try:
        with pytest.raises(ConfigError) as caught:
            source.prepare([A], is_first=True)
        assert caught.value.code == "slot_unusable"
        assert "slot_unusable" in {p.code for p in source.check([A])}
    finally:
        tables.execute(f"SELECT pg_drop_replication_slot('{name}')")


def test_a_publication_given_by_the_user_is_never_altered(tables: ScratchDatabase, make_source: MakeSource) -> None:
    source = make_source(tables, publication="mine")
    with pytest.raises(ConfigError, match="no publication mine"):
        source.prepare([A], is_first=True)
    tables.execute("CREATE PUBLICATION mine FOR TABLE a")
    source.prepare([A], is_first=True)
    with pytest.raises(ConfigError, match=r"does not list public\.b") as caught:
        source.prepare([A, B], is_first=False)
    assert 'ALTER PUBLICATION "mine" ADD TABLE ONLY "public"."b"' in str(caught.value)
    source.remove()
    assert published(tables, "mine") == ["a"]
    assert slots(tables) == []


# -- whether the log joins


def test_a_slot_that_is_missing_is_a_gap(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    start = source.prepare([A], is_first=True)
    tables.execute(f"SELECT pg_drop_replication_slot('{source.identity()['slot']}')")
    with pytest.raises(LogGapError) as caught:
        open_log(source, start, A)
    assert caught.value.code == "slot_missing"
    assert "--restart" in (caught.value.action or "")


def test_a_slot_made_again_or_moved_is_a_gap(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    start = source.prepare([A], is_first=True)
    name = source.identity()["slot"]
    tables.execute(
        f"SELECT pg_drop_replication_slot('{name}')",
        "INSERT INTO a VALUES (1, 1)",
        f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
    )
    with pytest.raises(LogGapError) as caught:
        open_log(source, start, A)
    assert caught.value.code == "slot_ahead"


def test_what_is_acknowledged_is_not_a_gap_and_what_is_beyond_it_is(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    start = source.prepare([A], is_first=True)
    reader = open_log(source, start, A)
    tables.execute("INSERT INTO a VALUES (1, 1)")
    durable = drained(reader, source)
    reader.close()
    confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: tables.execute(confirmed) == [(durable.value["lsn"],)], "the acknowledgement arrived")
    wait_until(lambda: opened(source, durable), "the slot is free")
    with pytest.raises(LogGapError, match="ahead of the recorded position"):
        open_log(source, start, A)


def opened(source: PostgresqlSource, after: Offset) -> bool:
    try:
        open_log(source, after, A).close()
    except TransientError:
        return False
    return True


def test_the_log_of_another_server_is_a_gap(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    start = source.prepare([A], is_first=True)
    with pytest.raises(LogGapError) as caught:
        open_log(source, Offset.of({**start.value, "system": "1"}), A)
    assert caught.value.code == "other_system"


def test_the_log_that_is_left_shrinks_as_the_log_grows(source_of: MakeSource) -> None:
    with PostgresServer(find_distribution(), settings={"max_slot_wal_keep_size": "64MB"}) as server:
        server.execute(*TABLES)
        source = source_of(server)
        assert source.status().retention.bytes_left is None
        source.prepare([A], is_first=True)
        before = source.status().retention
        server.execute("INSERT INTO a SELECT generate_series(1, 100000)", "SELECT pg_switch_wal()")
        after = source.status().retention
        assert before.bytes_max == after.bytes_max == 64 << 20
        assert None not in (before.bytes_left, after.bytes_left, before.bytes_written, after.bytes_written)
        assert present(after.bytes_left) < present(before.bytes_left)
        assert present(after.bytes_written) > present(before.bytes_written)
        source.close()


def test_a_server_without_a_limit_for_slots_has_no_bytes_left(
    tables: ScratchDatabase, source: PostgresqlSource
) -> None:
    source.prepare([A], is_first=True)
    assert (source.status().retention.bytes_left, source.status().retention.bytes_max) == (None, None)


def test_a_slot_that_lost_its_log_is_expired(source_of: MakeSource) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "2MB", "min_wal_size": "2MB"}
    with PostgresServer(find_distribution(), settings=settings, initdb_options=["--wal-segsize=1"]) as server:
        server.execute(*TABLES)
        source = source_of(server)
        start = source.prepare([A], is_first=True)
        server.execute(
            *["INSERT INTO a SELECT coalesce(max(id), 0) + 1 FROM a", "SELECT pg_switch_wal()"] * 6, "CHECKPOINT"
        )
        assert server.execute("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
        with pytest.raises(OffsetExpiredError) as caught:
            open_log(source, start, A)
        assert caught.value.code == "slot_lost"
        again = source.prepare([A], is_first=True)
        open_log(source, again, A).close()
        source.close()


def test_a_new_timeline_is_followed_only_if_it_passes_through_our_position(source_of: MakeSource) -> None:
    """The same cluster ends a recovery, which begins a new timeline and leaves the slot."""
    with PostgresServer(find_distribution(), settings={"restore_command": "false"}) as server:
        server.execute(*TABLES)
        source = source_of(server)
        start = source.prepare([A], is_first=True)
        server.execute("INSERT INTO a VALUES (1, 1)")
        source.close()
        server.stop()
        (server.data_folder / "recovery.signal").touch()
        server.start()
        wait_until(lambda: server.execute("SELECT NOT pg_is_in_recovery()") == [(True,)], "the recovery has ended")
        source = source_of(server)
        reader = open_log(source, start, A)
        offset = drained(reader, source)
        reader.close()
        assert (start.value["timeline"], offset.value["timeline"]) == (1, 2)
        assert Position.of(offset).lsn >= Position.of(start).lsn
        beyond = replace(Position.of(offset), timeline=1).offset
        with pytest.raises(LogGapError) as caught:
            open_log(source, beyond, A)
        assert caught.value.code == "timeline_behind"
        source.close()


def test_timeline_history_is_read_as_the_server_writes_it() -> None:
    text = "1\t0/16B3748\tno recovery target specified\n\n2\t1/0\tbefore 2000-01-01 # comment\n"
    assert parse_timeline_history(text) == {1: 0x16B3748, 2: 1 << 32}


AFTER = Position(lsn=100, timeline=1, system="7")
SLOT = SlotState(
    name="x", plugin="pgoutput", database="d", is_temporary=False, active_pid=None, confirmed_flush=100, lost=None
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("slot", "timeline", "history", "code"),
    [
        (SLOT, 1, {}, None),
        (replace(SLOT, confirmed_flush=99), 1, {}, None),
        (replace(SLOT, confirmed_flush=101), 1, {}, "slot_ahead"),
        (None, 1, {}, "slot_missing"),
        (replace(SLOT, database="e"), 1, {}, "slot_replaced"),
        (replace(SLOT, plugin="wal2json"), 1, {}, "slot_replaced"),
        (replace(SLOT, lost="wal_removed"), 1, {}, "slot_lost"),
        (replace(SLOT, lost="idle_timeout", confirmed_flush=None), 1, {}, "slot_lost"),
        (replace(SLOT, active_pid=5), 1, {}, "slot_active"),
        (SLOT, 3, {1: 100, 2: 200}, None),
        (SLOT, 3, {1: 99, 2: 200}, "timeline_behind"),
        (SLOT, 3, {2: 200}, "other_timeline"),
        (SLOT, 2, {}, "other_timeline"),
    ],
)
def test_the_log_joins_or_the_reason_is_named(
    slot: SlotState | None, timeline: int, history: dict[int, int], code: str | None
) -> None:
    def verify() -> None:
        verify_joins(slot, "x", "d", AFTER, System(identifier="7", timeline=timeline), history, None, "shop")

    if code is None:
        verify()
        return
    with pytest.raises(ReplicatorError) as caught:
        verify()
    assert caught.value.code == code


@pytest.mark.parametrize(("log_end", "is_accepted"), [(None, True), (100, True), (99, False)])
def test_a_log_that_ends_before_our_position_was_set_back(log_end: int | None, is_accepted: bool) -> None:
    def verify() -> None:
        verify_joins(SLOT, "x", "d", AFTER, System(identifier="7", timeline=1), {}, log_end, "shop")

    if is_accepted:
        verify()
        return
    with pytest.raises(ReplicatorError) as caught:
        verify()
    assert caught.value.code == "log_behind"


# -- removal


def test_removal_leaves_nothing_and_can_be_repeated(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    source.remove()
    source.prepare([A], is_first=True)
    source.remove()
    source.remove()
    assert slots(tables) == []
    assert tables.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_leftovers_are_statements_that_remove_everything(tables: ScratchDatabase, source: PostgresqlSource) -> None:
    source.prepare([A], is_first=True)
    tables.execute(*source.leftovers())
    assert slots(tables) == []
    assert tables.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def in_thread(call: Callable[[], Offset], outcome: list[Offset | BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            outcome.append(call())
        except ReplicatorError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread
