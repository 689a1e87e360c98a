"""Tables that are renamed in the source are followed, and a name that another table takes means that table."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from replicator.config.model import DDLConfig
from replicator.model.errors import SourceUnavailableError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

A, B, NEW = TableId("public", "a"), TableId("public", "b"), TableId("public", "a_new")
OUTSIDE = TableId("old", "a")


def of_log(source: MemorySource) -> None:
    """The log alone tells of names, as on MySQL."""
    source.can_locate = False


@pytest.fixture
def renaming(bench: Bench) -> Bench:
    """Everything in the schema `public` is replicated, and looked for all the time."""
    bench.settings = replace(bench.settings, compare_every_s=0.02, selects=lambda table: table.namespace == "public")
    bench.select = lambda: tuple(t for t in sorted(bench.database.tables) if t.namespace == "public")
    bench.create(bench.schema("a"))
    bench.fill(A, 3)
    return bench


def snapshots(bench: Bench, table: TableId) -> list[SnapshotKind]:
    """The kinds of the snapshots that were completed."""
    items = [item for _, item in bench.items(table) if isinstance(item, SnapshotEvent)]
    return [item.kind for item in items if item.phase is SnapshotPhase.COMPLETED]


def is_failed(bench: Bench, table: TableId, code: str) -> Callable[[], bool]:
    def found() -> bool:
        record = bench.record(table)
        return record is not None and record.error is not None and record.error.code == code

    return found


def is_called(bench: Bench, table: TableId, source: TableId | None) -> Callable[[], bool]:
    """Whether the table is durable as the one of this name in the source, and captured."""

    def found() -> bool:
        record = bench.record(table)
        return record is not None and record.source_table == source and record.stage is Stage.STREAMING

    return found


def rename(bench: Bench, names: Mapping[TableId, TableId], **how: Any) -> None:
    bench.database.rename_tables(names, **how)


@pytest.mark.parametrize("is_logged", [True, False], ids=["by the log", "by the catalogue"])
def test_a_renamed_table_continues_without_a_snapshot(renaming: Bench, is_logged: bool) -> None:
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B}, is_logged=is_logged)
        if not is_logged:
            running.until(is_called(renaming, A, B))
        renaming.fill(B, 2, first=10)
        running.until(lambda: is_called(renaming, A, B)() and renaming.holds(A, B)())
    assert snapshots(renaming, A) == [SnapshotKind.FIRST]
    assert renaming.record(B) is None or renaming.known(B).stage is Stage.REMOVED
    assert renaming.known(A).incarnation == 1


def test_a_table_that_gets_its_name_back_has_it(renaming: Bench) -> None:
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B})
        renaming.fill(B, 1, first=10)
        rename(renaming, {B: A})
        renaming.fill(A, 1, first=20)
        running.until(lambda: is_called(renaming, A, None)() and renaming.holds(A)())
    assert snapshots(renaming, A) == [SnapshotKind.FIRST]


@pytest.mark.parametrize("can_locate", [True, False], ids=["by the catalogue", "by the log"])
def test_a_table_that_is_renamed_while_nobody_looks_is_followed(renaming: Bench, can_locate: bool) -> None:
    with renaming.running() as running:
        running.until(renaming.holds(A))
    rename(renaming, {A: B}, is_logged=not can_locate)
    renaming.fill(B, 2, first=10)
    renaming.tables = [B]
    with renaming.running(lambda source: setattr(source, "can_locate", can_locate)) as running:
        running.until(lambda: is_called(renaming, A, B)() and renaming.holds(A, B)())
        renaming.fill(B, 2, first=20)
        running.until(renaming.holds(A, B))
    assert snapshots(renaming, A) == [SnapshotKind.FIRST]
    assert renaming.record(B) is None or renaming.known(B).schema is None


def test_a_restart_looks_for_the_table_under_its_new_name(renaming: Bench) -> None:
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B})
        running.until(is_called(renaming, A, B))
    renaming.tables = [B]
    renaming.fill(B, 2, first=10)
    with renaming.running(of_log) as running:
        running.until(renaming.holds(A, B))
        renaming.fill(B, 2, first=20)
        running.until(renaming.holds(A, B))
    assert snapshots(renaming, A) == [SnapshotKind.FIRST]
    assert [r.table for r in renaming.store.tables("test") if r.stage is not Stage.REMOVED] == [A]


def test_a_table_that_is_renamed_out_of_the_patterns_fails_and_returns_with_its_name(renaming: Bench) -> None:
    renaming.create(renaming.schema("b"))
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: OUTSIDE})
        running.until(is_failed(renaming, A, "table_renamed"))
        assert "`tables.include`" in present(renaming.known(A).error).message
        (noted,) = [e for e in renaming.store.histories.latest("test", 10) if e.operation is DDLOperation.RENAME_TABLE]
        assert noted.reason == "No pattern of `tables.include` matches that name."
        renaming.fill(OUTSIDE, 2, first=10)
        renaming.fill(B, 2)
        running.until(renaming.holds(B))
        rename(renaming, {OUTSIDE: A})
        running.until(lambda: is_called(renaming, A, None)() and renaming.holds(A)())
    assert snapshots(renaming, A) == [SnapshotKind.FIRST, SnapshotKind.IN_PLACE]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("old", [OUTSIDE, B], ids=["out of the patterns", "inside them"])
@pytest.mark.parametrize("statements", [1, 2, 3])
@pytest.mark.parametrize("can_locate", [True, False], ids=["oids", "names"])
def test_a_table_that_was_swapped_is_the_one_that_has_its_name(
    renaming: Bench, old: TableId, statements: int, can_locate: bool
) -> None:
    renaming.create(renaming.schema("a_new", extra=["c"]))
    rename(renaming, {NEW: TableId("old", "a_new")})
    new = TableId("old", "a_new")
    renaming.tables.remove(NEW)
    renaming.write(new, {"id": 1, "a": "new", "b": "x", "c": "y"})
    with renaming.running(lambda source: setattr(source, "can_locate", can_locate)) as running:
        running.until(renaming.holds(A))
        if statements == 1:
            rename(renaming, {A: old, new: A})
        else:
            rename(renaming, {A: old})
            if statements == 3:
                running.until(lambda: is_failed(renaming, A, "table_renamed")() or is_called(renaming, A, old)())
            rename(renaming, {new: A})
        renaming.write(A, {"id": 2, "a": "new", "b": "x", "c": "y"})
        running.until(lambda: is_called(renaming, A, None)() and renaming.holds(A)())
        if old == B:
            running.until(lambda: is_called(renaming, B, None)() and renaming.holds(B)())
    assert renaming.known(A).incarnation == 1
    # Its readers saw the old rows until they saw the new ones.
    assert snapshots(renaming, A) == [SnapshotKind.FIRST, SnapshotKind.IN_PLACE]
    made = [i for _, i in renaming.items(A) if isinstance(i, DDLEvent) and i.operation is DDLOperation.CREATE_TABLE]
    assert len(made) == 1


@pytest.mark.parametrize("can_locate", [True, False], ids=["oids", "names"])
def test_two_tables_that_swap_their_names_swap_their_rows(renaming: Bench, can_locate: bool) -> None:
    renaming.create(renaming.schema("b"))
    renaming.fill(B, 2, first=100)
    with renaming.running(lambda source: setattr(source, "can_locate", can_locate)) as running:
        running.until(lambda: renaming.holds(A)() and renaming.holds(B)())
        for _ in range(2):
            rename(renaming, {A: OUTSIDE})
            rename(renaming, {B: A})
            rename(renaming, {OUTSIDE: B})
            renaming.fill(A, 1, first=len(renaming.database.log) * 1000)
        running.until(
            lambda: all(is_called(renaming, t, None)() for t in (A, B)) and renaming.holds(A)() and renaming.holds(B)()
        )


def test_names_that_move_on_in_a_circle_end_where_the_names_are(renaming: Bench) -> None:
    third = renaming.create(renaming.schema("c"))
    renaming.create(renaming.schema("b"))
    renaming.fill(B, 2, first=100)
    renaming.fill(third, 2, first=200)
    with renaming.running() as running:
        running.until(lambda: all(renaming.holds(t)() for t in (A, B, third)))
        rename(renaming, {A: B, B: third, third: A})
        running.until(lambda: all(renaming.holds(t)() and is_called(renaming, t, None)() for t in (A, B, third)))


def test_a_table_that_gets_the_name_of_a_dropped_one_is_that_one(renaming: Bench) -> None:
    renaming.create(renaming.schema("b"))
    renaming.fill(B, 2, first=100)
    with renaming.running() as running:
        running.until(lambda: renaming.holds(A)() and renaming.holds(B)())
        renaming.database.drop_table(A)
        running.until(is_failed(renaming, A, "table_missing"))
        rename(renaming, {B: A})
        running.until(lambda: is_called(renaming, A, None)() and renaming.holds(A)())
        assert is_failed(renaming, B, "table_renamed")()
        assert "Another replicated table has that name" in present(renaming.known(B).error).message


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("can_locate", [True, False], ids=["oids", "names"])
def test_a_table_that_is_created_under_the_name_of_a_renamed_one_that_was_dropped_is_new(
    renaming: Bench, can_locate: bool, is_watched: bool
) -> None:
    def logged(source: MemorySource) -> None:
        source.can_locate = can_locate

    with renaming.running(logged) as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B})
        running.until(is_called(renaming, A, B))
        if is_watched:
            renaming.database.drop_table(B)
            running.until(is_failed(renaming, A, "table_missing"))
            renaming.create(renaming.schema("b"))
            renaming.fill(B, 2)
            running.until(lambda: is_called(renaming, B, None)() and renaming.holds(B)())
    if not is_watched:
        renaming.database.drop_table(B)
        renaming.create(renaming.schema("b"))
        renaming.fill(B, 2)
    renaming.tables = [B]
    with renaming.running(logged) as running:
        running.until(lambda: every_name_has_its_rows(renaming))


@pytest.mark.parametrize(
    ("policy", "code", "cause"),
    [
        ("stop", "ddl_stop", "ddl.rename_table is `stop`"),
        ("ignore", "table_renamed", "ddl.rename_table is `ignore`"),
        ("follow", "table_renamed", "rename_starts_new_table is `true`"),
    ],
)
def test_policies_end_the_table(renaming: Bench, policy: Any, code: str, cause: str) -> None:
    if policy == "follow":
        renaming.settings = replace(renaming.settings, rename_starts_new_table=lambda _: True)
    else:
        renaming.settings = replace(renaming.settings, ddl=lambda _: DDLConfig(rename_table=policy))
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B})
        running.until(is_failed(renaming, A, code))
        assert cause in present(renaming.known(A).error).message
        renaming.fill(B, 1, first=10)
        if policy != "stop":
            running.until(lambda: is_called(renaming, B, None)() and renaming.holds(B)())


def test_a_renaming_in_the_midst_of_a_snapshot_is_followed(renaming: Bench) -> None:
    renaming.fill(A, 40, first=10)

    def prepare(source: MemorySource) -> None:
        source.faults.script("read_chunk.after", *[None] * 3, lambda: rename(renaming, {A: B}))

    with renaming.running(prepare) as running:
        running.until(lambda: is_called(renaming, A, B)() and renaming.holds(A, B)())


@pytest.mark.parametrize(
    ("step", "nth"), [("mark", 0), ("mark", 1), ("describe", 0), ("describe", 1), ("describe", 4), ("visibility", 2)]
)
def test_a_renaming_while_the_catalogue_is_asked_costs_nothing(renaming: Bench, step: str, nth: int) -> None:
    def prepare(source: MemorySource) -> None:
        source.can_locate = False
        source.faults.script(step, *[None] * nth, lambda: rename(renaming, {A: B}))

    with renaming.running(prepare) as running:
        running.until(lambda: is_captured_somewhere(renaming) and A not in renaming.database.tables)
        renaming.fill(B, 1, first=100)
        tracked = {is_called(renaming, A, B): (A, B), is_called(renaming, B, None): (B, B)}
        running.until(lambda: any(is_so() and renaming.holds(*names)() for is_so, names in tracked.items()))


def is_captured_somewhere(bench: Bench) -> bool:
    return any(record.stage is Stage.STREAMING for record in bench.store.tables("test"))


def test_what_is_altered_under_the_new_name_is_altered(renaming: Bench) -> None:
    with renaming.running() as running:
        running.until(renaming.holds(A))
        rename(renaming, {A: B})
        with renaming.database.begin() as transaction:
            transaction.alter(renaming.schema("b", extra=["c"]), fill={"c": "filled"})
        renaming.write(B, {"id": 10, "a": "x", "b": "y", "c": "z"})
        running.until(lambda: is_called(renaming, A, B)() and renaming.holds(A, B)())
    assert snapshots(renaming, A) == [SnapshotKind.FIRST]


NAMES = [TableId("public", name) for name in "abcd"]


def every_name_has_its_rows(bench: Bench) -> bool:
    """Whether each table of the patterns is one tracked table, which has its rows, and no other claims to have some."""
    held = [r for r in bench.store.tables("test") if r.stage not in (Stage.REMOVED, Stage.FAILED)]
    sources = [r.source_table or r.table for r in held]
    wanted = [t for t in NAMES if t in bench.database.tables]
    return (
        sorted(sources) == sorted(wanted)
        and all(r.stage is Stage.STREAMING for r in held)
        and all(bench.holds(r.table, r.source_table or r.table)() for r in held)
    )


def some_step(bench: Bench, chance: random.Random) -> None:
    """Write, rename, or let tables move on in a circle."""
    there = sorted(bench.database.tables)
    match chance.randint(0, 3):
        case 0 | 1:
            bench.fill(chance.choice(there), 1, first=chance.randint(10**3, 10**9))
        case 2:
            free = [t for t in [*NAMES, OUTSIDE] if t not in there]
            rename(bench, {chance.choice(there): chance.choice(free)})
        case _:
            circle = chance.sample(there, k=min(len(there), chance.randint(2, 3)))
            rename(bench, dict(zip(circle, [*circle[1:], circle[0]], strict=True)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_renamed_and_wherever_it_ends_the_names_have_their_rows(renaming: Bench, seed: int) -> None:
    chance = random.Random(seed)
    for name in NAMES[1:3]:
        renaming.create(renaming.schema(name.name))
        renaming.fill(name, 2, first=chance.randint(10, 99) * 10)
    with renaming.running() as running:
        running.until(lambda: every_name_has_its_rows(renaming))
    for _ in range(4):
        for _ in range(chance.randint(0, 2)):
            some_step(renaming, chance)
        renaming.tables = [t for t in NAMES if t in renaming.database.tables]
        point = chance.choice(["pull", "acknowledge", "describe", "visibility", "prepare.after"])

        def ends(source: MemorySource, point: str = point) -> None:
            source.can_locate = False
            gone = SourceUnavailableError("it ends", code="source_unavailable")
            source.faults.script(point, *[None] * chance.randint(1, 6), gone)

        with suppress(SourceUnavailableError), renaming.running(ends) as running:
            for _ in range(3):
                some_step(renaming, chance)
            running.until(lambda: every_name_has_its_rows(renaming))
    renaming.tables = [t for t in NAMES if t in renaming.database.tables]
    with renaming.running(of_log) as running:
        running.until(lambda: every_name_has_its_rows(renaming))
