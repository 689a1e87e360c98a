"""Captures of PostgreSQL databases: what their tests write, wait for and compare."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from replicator.model.schema import TableId
from replicator.plugins.source import Chunk, ChunkRequest, DeltaSource
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testing.waiting import wait_until

Make = Callable[..., Captured]


def table(name: str) -> TableId:
    return TableId("public", name)


def source_rows(database: ScratchDatabase, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(database.execute(f'SELECT * FROM public."{name}"'))


def assert_equal(captured: Captured, database: ScratchDatabase, *names: str) -> None:
    """The journal replays to what the source holds now."""
    for name in names:
        found, wanted = captured.rows(table(name)), source_rows(database, name)
        assert found == wanted, (
            f"{name}: too many {list((found - wanted).items())[:5]}, lacking {list((wanted - found).items())[:5]}"
        )


def fill(database: ScratchDatabase, name: str, rows: int) -> None:
    """A table with a key, a value and some rows."""
    database.execute(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, v bigint NOT NULL, note text)",
        f"INSERT INTO {name} SELECT i, 0, 'note ' || i FROM generate_series(1, {rows}) AS i",
    )


@contextmanager
def open_transaction(database: ScratchDatabase, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has run the statements and has not ended."""
    with database.connect(autocommit=False) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


class Writers:
    """Sessions that write until told to stop; each commit waits for the standby if there is one."""

    def __init__(
        self, database: ScratchDatabase, count: int, write: Callable[[psycopg.Connection[Any], random.Random], None]
    ) -> None:
        self._database = database
        self._write = write
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.done = 0
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), name=f"writer{seed}") for seed in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.done >= len(self._threads), "everybody writes")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        assert not self._errors, self._errors

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._stop.is_set():
                try:
                    with self._database.connect(options="-c synchronous_commit=on") as connection:
                        while not self._stop.is_set():
                            self._write(connection, chance)
                            self.done += 1
                except psycopg.OperationalError:
                    # The server was stopped under it, or ended a deadlock.
                    self._stop.wait(0.05)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self._errors.append(error)


@contextmanager
def committing(database: ScratchDatabase, *statements: str) -> Iterator[threading.Thread]:
    """Statements whose commit waits for the standby, in a thread of their own; joined at the end."""

    def run() -> None:
        with database.connect(autocommit=False, options="-c synchronous_commit=on") as connection:
            for statement in statements:
                connection.execute(statement.encode())
            connection.commit()

    thread = threading.Thread(target=run, name="committing")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(timeout=60)
        assert not thread.is_alive(), "the standby has not acknowledged"


def before_reads(source: DeltaSource[Any], act: Callable[[int, ChunkRequest], None]) -> None:
    """Call `act` with the number of each chunk, from 1, before it is read."""
    read, count = source.read_chunk, [0]

    def acting(request: ChunkRequest) -> Chunk:
        count[0] += 1
        act(count[0], request)
        return read(request)

    source.read_chunk = acting  # type: ignore[method-assign]


def after_reads(source: DeltaSource[Any], act: Callable[[int, ChunkRequest], None]) -> None:
    """Call `act` after each chunk was read, before its mark is written."""
    read, count = source.read_chunk, [0]

    def acting(request: ChunkRequest) -> Chunk:
        chunk = read(request)
        count[0] += 1
        act(count[0], request)
        return chunk

    source.read_chunk = acting  # type: ignore[method-assign]


def has_sealed_chunks(captured: Captured, name: str) -> bool:
    """Whether a chunk of the table's newest snapshot is sealed; one commit may hold all of them, and the snapshot's end."""
    progress = captured.record(table(name)).snapshot
    return progress is not None and (progress.is_complete or progress.ranges[0].after is not None)


def update_one(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    connection.execute("UPDATE hot SET v = v + 1 WHERE id = %s", (chance.randint(1, 40),))


def wait_for_failed(captured: Captured, running: RunningCapture, name: str, code: str) -> None:
    running.wait_until(lambda: captured.stage(table(name)) is Stage.FAILED, f"{name} has failed")
    error = captured.record(table(name)).error
    assert error is not None
    assert error.code == code


def move_one(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    one, other = chance.randint(1, 60), chance.randint(1, 60)
    statement = chance.choice(
        [
            f"UPDATE hot SET v = v + 1 WHERE id = {one}",
            f"UPDATE hot SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT FROM hot WHERE id = {other})",
            f"DELETE FROM hot WHERE id = {one}",
            f"INSERT INTO hot VALUES ({one}, 0, 'new') ON CONFLICT (id) DO UPDATE SET v = hot.v + 1",
            f"UPDATE hot SET note = repeat('long', 900) || {one} WHERE id = {one}",
            (
                f"BEGIN; UPDATE hot SET v = v + 1 WHERE id = {one}; SAVEPOINT s; DELETE FROM hot WHERE id = {one}; "
                f"ROLLBACK TO s; INSERT INTO bag VALUES ({one}); COMMIT"
            ),
        ]
    )
    try:
        connection.execute(statement.encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        connection.rollback()
