"""What `reload` says that a changed file changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.cli import show
from replicator.model.errors import ConfigError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.attending import next_step
from replicator.service.reloading import Reloaded, reload
from replicator.state import holder_id, table_life
from replicator.state.records import Desired, Role
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget

REGISTRY = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
A, B, C = (TableId("public", name) for name in "abc")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """With a replicator of two of three tables."""
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    database = MemoryDatabase.open(str(tmp_path))
    for table in (A, B, C):
        column = Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)
        database.create_table(TableSchema(table=table, columns=(column,), key=("id",)))
    store.create_replicator("shop", document(tmp_path), f"file://{tmp_path}/journal")
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    store.put_tables("shop", lease.epoch, [table_life.added(table) for table in (A, B)])
    yield store
    store.close()


def document(folder: Path, include: str = "public.a, public.b", extra: str = "", name: str = "shop") -> str:
    tables = f"tables:\n  include: [{include}]\n{extra}"
    blocks = f"source: {{type: memory, database: {folder}}}\ntarget: {{type: memory, database: {folder}}}\n"
    return f"name: {name}\n{blocks}journal: {{uri: 'file://{folder}/journal'}}\n{tables}"


def reloaded(store: StateStore, folder: Path, text: str) -> Reloaded:
    home = Home(folder=folder, state_url=f"sqlite:///{folder / 'state.db'}")
    return reload(store, home, REGISTRY, REGISTRY.load(text))


def test_the_same_file_changes_nothing(store: StateStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = reloaded(store, tmp_path, document(tmp_path))
    assert (found.sections, found.roles, found.added, found.removed) == ((), frozenset(), (), ())
    show.reloaded(found, "")
    assert capsys.readouterr().out == "shop: nothing changed: the file says what is stored.\n"


def test_tables_that_come_go_and_need_a_new_target_table_are_named(
    store: StateStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft = "  settings: {public.*: {deletes: soft}}\n"
    found = reloaded(store, tmp_path, document(tmp_path, "public.a, public.c", soft))
    assert (found.sections, set(found.roles)) == (("tables",), {Role.CAPTURE, Role.APPLY})
    assert (found.added, found.removed, found.recreated) == ((C,), (B,), (A,))
    assert present(store.replicator("shop")).config == found.record.config
    show.reloaded(found, "")
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "shop: tables changed. Its worker keeps running and starts capture and apply again, at a clean point."
    )
    assert others == [
        "  added: public.c, which gets a snapshot while the others continue",
        "  removed: public.b; its target table stays",
        "  needs a new target table (deletes, source_timestamp): public.a. Run: replicator snapshot shop public.a --recreate",
    ]


def test_tables_that_were_renamed_or_dropped_in_the_source_neither_come_nor_go(
    store: StateStore, tmp_path: Path
) -> None:
    lease = present(store.leases.current("shop"))
    gone = TableId("public", "gone")
    renamed = replace(table_life.added(gone), source_table=C)
    store.put_tables("shop", lease.epoch, [renamed, table_life.added(TableId("public", "dropped"))])
    found = reloaded(store, tmp_path, document(tmp_path, "public.*"))
    assert (found.sections, found.added, found.removed) == (("tables",), (), ())


def test_without_a_worker_the_next_one_uses_it(
    store: StateStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.leases.release(present(store.leases.current("shop")))
    show.reloaded(reloaded(store, tmp_path, document(tmp_path, "public.a")), next_step(store, "shop"))
    said = "shop: tables changed; the next start has it. No worker is running. To start one: replicator serve (or run FILE)\n"
    assert said in capsys.readouterr().out


ALERTS = "alerts: {commands: {ops: {argv: ['true']}}}\n"
AGAIN = "and starts capture and apply again, at a clean point."


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "",
            ALERTS,
            "alerts changed. Its worker keeps running and starts nothing again. The process that sends alerts has it within seconds.",
        ),
        ("", "retry: {give_up_after: 2h}\n", f"retry changed. Its worker keeps running {AGAIN}"),
        ("", "verify: {every: 1d}\n", "verify changed. Its worker keeps running and begins scheduled verification."),
        ("verify: {every: 1d}\n", "", "verify changed. Its worker keeps running and ends scheduled verification."),
        ("", "verify: {rows_per_second: 9}\n", "verify changed. Its worker keeps running and starts nothing again."),
        ("verify: {every: 1d}\n", "verify: {every: 2d}\n", "and starts verification again, at a clean point."),
        (
            "",
            f"{ALERTS}apply: {{max_wait: 7s}}\n",
            "alerts, apply changed. Its worker keeps running and starts apply again",
        ),
    ],
    ids=["alerts", "retry", "begins", "ends", "no schedule", "another schedule", "both"],
)
def test_only_what_starts_again_is_named(
    store: StateStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, said: str
) -> None:
    store.set_config("shop", document(tmp_path, extra=before))
    show.reloaded(reloaded(store, tmp_path, document(tmp_path, extra=after)), "")
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("apply_paused", [True, False])
def test_what_is_paused_starts_nothing_again(store: StateStore, tmp_path: Path, apply_paused: bool) -> None:
    store.set_desired("shop", Desired.RUNNING if apply_paused else Desired.PAUSED, apply_paused=apply_paused)
    found = reloaded(store, tmp_path, document(tmp_path, "public.a"))
    assert set(found.roles) == ({Role.CAPTURE} if apply_paused else set())


def test_a_replicator_that_is_not_stored_cannot_be_reloaded(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        reloaded(store, tmp_path, document(tmp_path, name="other"))
    assert refused.value.code == "unknown_replicator"
    assert store.replicator("other") is None
