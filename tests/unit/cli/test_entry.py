"""What the command loads, and how it lists what it has not loaded."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pyarrow as pa
import pytest

from replicator.cli.entry import COMMANDS, main
from replicator.model.identity import TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import holder_id, table_life
from replicator.state.records import SnapshotProgress
from replicator.state.store import StateStore
from replicator_testbed.present import present

HEAVY = (
    "pyarrow", "numpy", "pyspark", "structlog", "yaml", "pluggy", "psycopg", "pymysql", "duckdb", "replicator.config",
    "replicator.plugins", "replicator.capture", "replicator.apply", "replicator.verify", "replicator.spark", "replicator.observability",
)  # fmt: skip
"""What takes a large part of a second to load, or leads to it."""


def loaded(*arguments: str, home: Path) -> set[str]:
    """Run a command in a process of its own; which of HEAVY it loaded, and what `--help` needs nothing of."""
    program = (
        "import sys\n"
        "from replicator.cli.entry import main\n"
        "try:\n"
        f"    main({list(arguments)!r}, prog_name='replicator')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print(*[name for name in {(*HEAVY, 'sqlalchemy', 'pydantic', 'rich')!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"REPLICATOR_HOME": str(home)}
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split()) if done.stderr.strip() else set()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a replicator that has a table with a shape, and a schedule of nothing."""
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop\n", "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    column = Column(name="id", type=pa.int64(), source_type="bigint")
    shape = TableSchema(table=TableId("public", "a"), columns=(column,), key=("id",))
    added = table_life.added(shape.table)
    begun = table_life.begun(added, shape, TableIdentity(object="1"), incarnation=1, snapshot=SnapshotProgress(rows=7))
    store.put_tables("shop", lease.epoch, [begun])
    store.close()
    return tmp_path


@pytest.mark.parametrize("arguments", [("--help",), ("validate", "--help")], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert loaded(*arguments, home=tmp_path) == set()


@pytest.mark.parametrize("arguments", [("list",), ("status",), ("status", "shop", "--json")])
def test_what_only_looks_loads_the_state_store_and_nothing_that_works_on_data(
    home: Path, arguments: tuple[str, ...]
) -> None:
    assert loaded(*arguments, home=home) - {"sqlalchemy", "pydantic", "rich"} == set()


def test_the_list_says_of_each_command_what_its_own_help_says() -> None:
    context = click.Context(main)
    found = {name: present(main.get_command(context, name)) for name in main.list_commands(context)}
    first = {name: " ".join((command.help or "").split("\n\n")[0].split()) for name, command in found.items()}
    assert first == {name: text for name, (_, text) in COMMANDS.items()}


def test_every_command_of_the_modules_is_listed() -> None:
    modules = {module for module, _ in COMMANDS.values()}
    assert {name for module in modules for name in import_module(module).commands.commands} == set(COMMANDS)


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replicator.cli", "statsu"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "No such command 'statsu'" in done.stderr
