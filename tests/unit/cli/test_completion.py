"""What the shell offers, asked as the shell asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from replicator.cli.entry import main
from replicator.model.schema import TableId
from replicator.state import holder_id, table_life
from replicator.state.records import Desired, Stage
from replicator.state.store import StateStore
from replicator_testbed.present import present


def offered(*words: str) -> list[str]:
    """What is offered for the last word."""
    *before, incomplete = words
    asked = ShellComplete(main, {}, "replicator", "_REPLICATOR_COMPLETE")
    return [item.value for item in asked.get_completions(before, incomplete)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With two replicators; one has tables."""
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    for name in ("shop", "crm"):
        store.create_replicator(name, f"name: {name}\n", "/j")
    store.set_desired("crm", Desired.PAUSED)
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    names = ("t10", "t2", "orders")
    tables = [table_life.added(TableId("public", name)) for name in names]
    gone = table_life.removed(table_life.added(TableId("public", "t3")))
    assert gone.stage is Stage.REMOVED
    store.put_tables("shop", lease.epoch, [*tables, gone])
    store.close()
    return tmp_path


def test_commands_are_offered() -> None:
    assert offered("sta") == ["start", "status"]


@pytest.mark.parametrize("command", ["status", "pause", "delete", "logs", "verify", "snapshot", "history"])
def test_names_of_replicators_are_offered(home: Path, command: str) -> None:
    assert offered(command, "") == ["crm", "shop"]
    assert offered(command, "s") == ["shop"]


@pytest.mark.parametrize("command", [["snapshot"], ["verify"], ["history"], ["ddl", "accept"]])
def test_tables_of_the_named_replicator_are_offered_by_their_whole_name_or_the_last_part(
    home: Path, command: list[str]
) -> None:
    assert offered(*command, "shop", "") == ["public.orders", "public.t2", "public.t10"]
    assert offered(*command, "shop", "public.t") == ["public.t2", "public.t10"]
    assert offered(*command, "shop", "or") == ["public.orders"]
    assert offered(*command, "crm", "") == []


def test_a_table_is_offered_once(home: Path) -> None:
    assert offered("snapshot", "shop", "public.t2", "") == ["public.orders", "public.t10"]


def test_plugins_are_offered_by_kind() -> None:
    assert offered("init", "post") == ["postgresql"]
    assert "delta" not in offered("init", "")
    assert "delta" in offered("init", "postgresql", "")
    assert {"delta", "mysql"} <= set(offered("schema", ""))


def test_where_there_is_no_store_nothing_is_offered_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    assert offered("status", "") == []
    assert not (tmp_path / "none").exists()


def test_a_store_that_is_damaged_is_no_error_for_the_shell(home: Path) -> None:
    (home / "state.db").write_bytes(b"no database" * 1000)
    assert offered("status", "") == []


@pytest.mark.parametrize(
    "name", ["a;id", "a b", "$(id)", "`id`", "a\nplain,b", "a'b", "a|b", "!x", "{a,b}", "~", "a\u202eb", "a\x1b[8mb"]
)
def test_a_name_that_the_shell_would_act_on_is_not_offered(home: Path, name: str) -> None:
    store = StateStore(f"sqlite:///{home / 'state.db'}")
    lease = present(store.leases.acquire("crm", holder_id(), 60))
    store.put_tables("crm", lease.epoch, [table_life.added(TableId("public", one)) for one in (name, "café_1")])
    store.close()
    assert offered("snapshot", "crm", "") == ["public.café_1"]
