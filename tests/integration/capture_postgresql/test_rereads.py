"""Rows of a table that streams are read again by their keys, while it changes, is altered, and capture restarts."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from replicator.model.errors import SourceUnavailableError
from replicator.plugins.source import ChunkRequest, DeltaSource
from replicator.state.records import RequestKind, Stage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.captures import (
    Make,
    Writers,
    assert_equal,
    before_reads,
    fill,
    table,
)
from replicator_testbed.postgresql.servers import ScratchDatabase

T = table("t")


def is_read_again(captured: Captured, name: str) -> bool:
    return captured.record(table(name)).reread is None


def read_again(captured: Captured, running: RunningCapture, keys: Sequence[Sequence[str]], name: str = "t") -> None:
    """Ask for it, and wait until it is in the journal."""
    asked = captured.request(RequestKind.REREAD, table=str(table(name)), keys=[list(key) for key in keys])
    running.wait_until(lambda: captured.is_done(asked), "it is taken up")
    running.wait_until(partial(is_read_again, captured, name), "the rows are read again")


def snapshot_changes(captured: Captured, name: str = "t") -> list[tuple[str, Any]]:
    """Operation and key of everything that was read and not logged, in order."""
    found = list[tuple[str, Any]]()
    for _, _, item in captured.items(table(name)):
        if isinstance(item, Mapping) and item["_is_snapshot"]:
            row = item["row"] or item["before"]
            found.append((item["_operation"], row["id"]))
    return found


def test_rows_are_those_of_the_source_and_others_are_deleted(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 50)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        before = len(snapshot_changes(captured))
        read_again(captured, running, [("7",), ("1000",), ("8",), ("7",)])
        captured.catch_up(running)
        assert snapshot_changes(captured)[before:] == [("INSERT", 7), ("INSERT", 8), ("DELETE", 1000)]
    assert captured.stage(T) is Stage.STREAMING
    assert_equal(captured, database, "t")


@pytest.mark.matrix
def test_rows_that_change_meanwhile_stay_as_they_are_now(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 60)
    captured = make(database, "t")
    captured.settings = replace(captured.settings, chunk_rows=7)

    def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        old, new = chance.randint(1, 60), chance.randint(1, 60)
        with connection.transaction():
            connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (chance.randint(1, 60),))
        with connection.transaction():
            connection.execute("DELETE FROM t WHERE id = %s", (old,))
            connection.execute("INSERT INTO t VALUES (%s, 1, 'again') ON CONFLICT DO NOTHING", (new,))

    with captured.running() as running:
        captured.wait_for_streaming(running)
        with Writers(database, 3, write):
            for _ in range(5):
                read_again(captured, running, [(str(n),) for n in range(1, 80)])
        captured.catch_up(running)
    assert_equal(captured, database, "t")


@pytest.mark.matrix
def test_what_was_asked_for_is_read_after_a_restart(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 20)
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)

    def refuse(_: int, request: ChunkRequest) -> None:
        raise SourceUnavailableError("not now", code="lock_timeout", table=str(request.schema.table))

    def refusing(source: DeltaSource[Any]) -> None:
        before_reads(source, refuse)

    with captured.running(refusing) as running:
        asked = captured.request(RequestKind.REREAD, table=str(T), keys=[["5"], ["500"]])
        running.wait_until(lambda: captured.is_done(asked), "it is taken up")
        database.execute("UPDATE t SET v = 9 WHERE id = 5")
        captured.catch_up(running)
        assert captured.record(T).reread is not None
    before = len(snapshot_changes(captured))
    with captured.running() as running:
        running.wait_until(lambda: captured.record(T).reread is None, "the rows are read again")
        captured.catch_up(running)
    assert snapshot_changes(captured)[before:] == [("INSERT", 5), ("DELETE", 500)]
    assert_equal(captured, database, "t")


@pytest.mark.matrix
def test_keys_that_the_source_cannot_have_are_deleted(database: ScratchDatabase, make: Make) -> None:
    ids = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(6)]
    database.execute("CREATE TABLE t (id uuid PRIMARY KEY, v int)", *(f"INSERT INTO t VALUES ('{i}', 1)" for i in ids))
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        before = len(snapshot_changes(captured))
        read_again(captured, running, [(ids[0],), ("garbage",), (ids[1],), ("",), (ids[2],)])
        captured.catch_up(running)
        found = snapshot_changes(captured)[before:]
    assert sorted(found) == sorted([*(("INSERT", i) for i in ids[:3]), ("DELETE", "garbage"), ("DELETE", "")])


@pytest.mark.matrix
def test_text_that_no_value_of_the_server_has_is_deleted(database: ScratchDatabase, make: Make) -> None:
    # The driver refuses a NUL before the server sees it.
    database.execute("CREATE TABLE t (id text PRIMARY KEY, v int)", "INSERT INTO t VALUES ('a', 1), ('b', 1)")
    captured = make(database, "t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        before = len(snapshot_changes(captured))
        read_again(captured, running, [("a",), ("a\0",), ("b",)])
        captured.catch_up(running)
        found = snapshot_changes(captured)[before:]
    assert sorted(found) == [("DELETE", "a\0"), ("INSERT", "a"), ("INSERT", "b")]


@pytest.mark.matrix
def test_a_table_that_is_altered_or_emptied_meanwhile_is_read_as_it_is(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 30)
    fill(database, "u", 30)
    captured = make(database, "t", "u")
    held, is_read = threading.Event(), threading.Event()
    # The replay of the journal has a new column only in rows that came later: all are read again.
    keys = [[str(n)] for n in (*range(1, 31), 300)]

    def wait(_: int, request: ChunkRequest) -> None:
        if request.keys is not None:
            is_read.set()
            held.wait(60)

    with captured.running(lambda source: before_reads(source, wait)) as running:
        captured.wait_for_streaming(running)
        for name in ("t", "u"):
            captured.request(RequestKind.REREAD, table=str(table(name)), keys=keys)
        assert is_read.wait(60)
        database.execute("ALTER TABLE t ADD extra int", "UPDATE t SET extra = 5 WHERE id = 2", "TRUNCATE u")
        captured.catch_up(running)
        held.set()
        for name in ("t", "u"):
            running.wait_until(partial(is_read_again, captured, name), "the rows are read again")
        captured.catch_up(running)
        captured.wait_for_streaming(running)
    assert_equal(captured, database, "t", "u")


@pytest.mark.matrix
def test_tables_that_do_not_stream_or_have_no_key_are_left_alone(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 5)
    database.execute("CREATE TABLE bag (id int)", "ALTER TABLE bag REPLICA IDENTITY FULL", "INSERT INTO bag VALUES (1)")
    captured = make(database, "t", "bag")
    captured.settings = replace(captured.settings, compare_every_s=0.1)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        for name in ("bag", "none"):
            asked = captured.request(RequestKind.REREAD, table=str(table(name)), keys=[["1"]])
            running.wait_until(partial(captured.is_done, asked), "it is done")
        database.execute("DROP TABLE t")
        running.wait_until(lambda: captured.stage(T) is Stage.FAILED, "it has failed")
        asked = captured.request(RequestKind.REREAD, table=str(T), keys=[["1"]])
        running.wait_until(lambda: captured.is_done(asked), "it is done")
    assert [captured.record(table(name)).reread for name in ("t", "bag")] == [None, None]
    assert snapshot_changes(captured, "bag") == [("INSERT", 1)]
