"""Values that are not sent, rows without a key, odd names: each arrives."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.source import ChunkRequest
from replicator_testbed.postgresql.captures import (
    Make,
    Writers,
    after_reads,
    assert_equal,
    before_reads,
    fill,
    table,
)
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.standby import LateStandby


def test_unchanged_large_values_survive_moves_and_updates_during_a_snapshot(
    database: ScratchDatabase, make: Make
) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v bigint NOT NULL, a text, b text)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat('a' || i, 1200), repeat('b' || i, 1200) FROM generate_series(1, 40) AS i",
    )

    def change(number: int, _: ChunkRequest) -> None:
        if number > 6:
            return
        n = 5 * number
        database.execute(
            f"UPDATE t SET v = {number} WHERE id IN ({n}, {n - 1}, {41 - n}, {41 - n + 1})",
            f"UPDATE t SET b = repeat('n{number}', 1300) WHERE id IN ({n - 1}, {42 - n})",
            f"UPDATE t SET id = id + 100 WHERE id IN ({n - 2}, {40 - n})",
            f"UPDATE t SET id = id - 50, v = v + 1 WHERE id = {100 + n - 2}",
        )

    captured = make(database, "t")
    with captured.running(
        lambda source: (before_reads(source, change), after_reads(source, lambda n, r: change(n + 3, r)))[0]
    ) as running:
        captured.wait_for_streaming(running)
        database.execute("UPDATE t SET v = v + 1 WHERE id % 4 = 0", "UPDATE t SET id = id + 1000 WHERE id % 7 = 0")
        captured.catch_up(running)
        assert_equal(captured, database, "t")
        captured.snapshot(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


def write_bag(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    value = chance.randint(1, 6)
    connection.execute(
        chance.choice(
            [
                f"INSERT INTO bag VALUES ({value}, 'same'), ({value}, 'same'), ({value + 1}, NULL)",
                f"DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = {value} LIMIT 1)",
                f"UPDATE bag SET a = {chance.randint(1, 6)} WHERE ctid = (SELECT ctid FROM bag WHERE a = {value} LIMIT 1)",
            ]
        ).encode()
    )


@pytest.mark.matrix
def test_table_without_a_key_has_each_row_as_often_as_the_source_through_restarts(
    late: tuple[ScratchDatabase, LateStandby], make: Make
) -> None:
    database, _ = late
    database.execute(
        "CREATE TABLE bag (a bigint, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT i % 6, 'same' FROM generate_series(1, 300) i",
    )
    fill(database, "other", 30)
    captured = make(database, "bag", "other")
    with Writers(database, 6, write_bag):
        for round_ in range(6):
            with captured.running() as running:
                if round_ % 2:
                    # Stopped anywhere: the snapshot may have begun, or be complete.
                    captured.request("snapshot", tables=["public.bag"])
                    captured.catch_up(running)
                else:
                    captured.wait_for_streaming(running)
                    captured.catch_up(running)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        running.wait_until(lambda: not captured.store.requests.open(captured.name), "no request is open")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "bag", "other")


@pytest.mark.matrix
def test_keys_of_odd_collations_and_odd_names_are_read_in_order_and_found_again(
    database: ScratchDatabase, make: Make
) -> None:
    name = 'ta"ble 😀.x'
    quoted = '"ta""ble 😀.x"'
    database.execute(
        "CREATE COLLATION odd (provider = icu, locale = 'de-u-kn-ks-level2', deterministic = false)",
        f"""CREATE TABLE {quoted} ("na""me 😀" text COLLATE odd, "Id" text COLLATE "C", "in%voice's" bigint,"""
        """ PRIMARY KEY ("na""me 😀", "Id"))""",
    )
    words = [
        "a",
        "B",
        "ß",
        "ss ",
        "10",
        "9",
        "é",
        "e\u0301x",
        "'; DROP",
        '"',
        "\\",
        "😀",
        "",
        " ",
        "_",
        "Z1",
        "z 1",
        "\t",
        "%s",
        "ÄÖ",
    ]
    with database.connect() as connection:
        for word in words:
            for other in ("x", "X", "x ", "'", "😀"):
                connection.execute(f"INSERT INTO {quoted} VALUES (%s, %s, 0)", (word, other))
    captured = make(database, name)
    captured.settings = replace(captured.settings, chunk_rows=3)

    def change(number: int, _: ChunkRequest) -> None:
        with database.connect() as connection:
            word = words[number % len(words)]
            column, of = '"na""me 😀"', '"in%%voice\'s"'
            connection.execute(f"UPDATE {quoted} SET {of} = {of} + 1 WHERE {column} = %s", (word,))
            if number in (3, 8):
                connection.execute(
                    f"UPDATE {quoted} SET {column} = upper({column} || 'ü') WHERE {column} = %s", (word,)
                )

    with captured.running(lambda source: after_reads(source, change)) as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        found, wanted = captured.rows(table(name)), Counter(database.execute(f"SELECT * FROM {quoted}"))
        assert found == wanted


@pytest.mark.matrix
def test_a_recreated_table_begins_a_new_incarnation_and_the_others_continue(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "t", 25)
    fill(database, "u", 25)
    captured = make(database, "t", "u")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        request = captured.request("recreate", tables=["public.t"])
        running.wait_until(lambda: captured.is_done(request), "the copy has begun")
        captured.wait_for_streaming(running)
        database.execute("DELETE FROM t WHERE id = 3", "DELETE FROM u WHERE id = 3")
        captured.catch_up(running)
        assert captured.record(table("t")).incarnation == 2
        assert captured.record(table("u")).incarnation == 1
        captured.snapshot(running, table("t"))
        assert captured.record(table("t")).incarnation == 2, "recreated once, not from then on"
        captured.catch_up(running)
    creations = [item.operation for _, _, item in captured.items(table("t")) if isinstance(item, DDLEvent)]
    assert creations == [DDLOperation.CREATE_TABLE] * 2
    assert_equal(captured, database, "t", "u")


@pytest.mark.matrix
def test_a_table_that_comes_is_followed_without_another_start(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 25)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, compare_every_s=0.3)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        fill(database, "u", 25)
        captured.tables.append(table("u"))
        captured.wait_for_streaming(running)
        database.execute("DELETE FROM t WHERE id = 3", "DELETE FROM u WHERE id = 3")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "u")


@pytest.mark.matrix
def test_a_table_with_wide_rows_is_read_whole(database: ScratchDatabase, make: Make) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, 150) i",
    )
    captured = make(database, "t", chunk_bytes_max="5MiB")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")
