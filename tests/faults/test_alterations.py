"""Tables whose columns are added, dropped and renamed under load, while processes of the replicator are killed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from replicator_testbed.databases import Database
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig
from tests.faults.conftest import QUICK

if TYPE_CHECKING:
    from tests.faults.conftest import Reading

TABLES: Final = ("keyed", "bag")
NAMES: Final = ("a", "b", "c", "d", "e f")
_TYPES: Final = {
    "int": ("7", "-1"),
    "varchar(30)": ("'x'", "''"),
    "decimal(10,2)": ("12.50", "0"),
    "date": ("'2024-02-29'",),
    "bigint": ("9007199254740993",),
}


@dataclass
class Work:
    """Changes and alters two tables, one with a key and one without, as a random draw says."""

    database: Database
    kind: str
    draw: random.Random
    columns: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table, key in zip(TABLES, (" PRIMARY KEY", ""), strict=True):
            self.columns[table] = {"a": "varchar(30)", "b": "int"}
            self.database.execute(f"CREATE TABLE {table} (id int NOT NULL{key}, a varchar(30), b int)")
            if self.kind == "postgresql" and not key:
                self.database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            self.database.execute(*(f"INSERT INTO {table} VALUES ({n}, 'first', {n})" for n in range(40)))

    def step(self) -> None:
        """A statement or a few."""
        table = self.draw.choice(TABLES)
        if self.draw.random() < 0.3:
            self.alter(table)
        else:
            self.database.execute(*(self.change(table) for _ in range(self.draw.randint(1, 4))))

    def change(self, table: str) -> str:
        """One change of a row."""
        draw, columns = self.draw, self.columns[table]
        key = draw.randint(0, 60)
        names = [name for name in columns if draw.random() < 0.7]
        values = [draw.choice([*_TYPES[columns[name]], "NULL"]) for name in names]
        match draw.choice(["insert", "update", "move", "delete"]):
            case "update" if names:
                sets = ", ".join(f"{self.quoted(n)} = {v}" for n, v in zip(names, values, strict=True))
                return f"UPDATE {table} SET {sets} WHERE id = {key}"
            case "move":
                return f"UPDATE {table} SET id = {1000 + draw.randint(0, 10**6)} WHERE id = {key}"
            case "delete":
                return f"DELETE FROM {table} WHERE id = {key}"
            case _:
                new = 10_000 + draw.randint(0, 10**8) if table == "keyed" else key
                listed = ", ".join(["id", *map(self.quoted, names)])
                return f"INSERT INTO {table} ({listed}) VALUES ({', '.join([str(new), *values])})"

    def alter(self, table: str) -> None:
        """Alter the table in one to three statements, which on PostgreSQL are one transaction."""
        statements = [s for _ in range(self.draw.randint(1, 3)) if (s := self.alteration(table)) is not None]
        self.database.execute(*statements)

    def alteration(self, table: str) -> str | None:
        draw, columns = self.draw, self.columns[table]
        free = [name for name in NAMES if name not in columns]
        action = draw.choice(["add", "add", "drop", "rename", "again"])
        if action == "add" and free:
            return f"ALTER TABLE {table} {self.added(columns, draw.choice(free))}"
        if not columns:
            return None
        name = draw.choice(list(columns))
        if action == "drop":
            del columns[name]
            return f"ALTER TABLE {table} DROP COLUMN {self.quoted(name)}"
        if action == "rename" and free:
            new = draw.choice(free)
            columns[new] = columns.pop(name)
            return f"ALTER TABLE {table} RENAME COLUMN {self.quoted(name)} TO {self.quoted(new)}"
        if action == "again":
            del columns[name]
            return f"ALTER TABLE {table} DROP COLUMN {self.quoted(name)}, {self.added(columns, name)}"
        return None

    def added(self, columns: dict[str, str], name: str) -> str:
        type_ = self.draw.choice(list(_TYPES))
        columns[name] = type_
        default = self.draw.choice(["", "", f" DEFAULT {self.draw.choice(_TYPES[type_])}"])
        return f"ADD COLUMN {self.quoted(name)} {type_}{default}"

    def quoted(self, name: str) -> str:
        return f'"{name}"' if self.kind == "postgresql" else f"`{name}`"


def _kill_one(rig: Rig, process: subprocess.Popen[str], draw: random.Random) -> subprocess.Popen[str]:
    """Kill one of its processes; a worker that runs."""
    if process.poll() is None:
        kill_one(process, draw)
    return process if process.poll() is None else rig.start()


@pytest.fixture
def altered(tmp_path: Path, origin: Database, target: str) -> Iterator[Rig]:
    """A replicator of both tables, which drops what the source drops."""
    rig = Rig(folder=tmp_path, database=origin, tables=TABLES, extra=f"{QUICK}\nddl: {{drop_column: apply}}\n")
    rig.write_to(target)
    yield rig
    rig.kill()


@pytest.mark.parametrize(
    ("kind", "target", "seed", "steps"),
    [
        *((k, "duckdb", s, 16) for k, s in (("mariadb", 2), ("mysql", 3))),
        *(
            pytest.param(k, "delta", s, 60, marks=pytest.mark.matrix)
            for k, s in (("postgresql", 1), ("mariadb", 2), ("mysql", 3))
        ),
        *(
            pytest.param(k, "delta", s, 150, marks=pytest.mark.soak)
            for k in ("postgresql", "mariadb", "mysql")
            for s in range(30)
        ),
    ],
)
def test_columns_that_come_and_are_renamed_under_kills_leave_equal_tables(
    altered: Rig, origin: Database, reading: Reading, kind: str, seed: int, steps: int
) -> None:
    draw = random.Random(seed)
    work = Work(origin, kind, draw)
    target_tables = reading(altered)
    process = altered.start()
    # Each is followed by the start of a process, of a Delta target most often of one with a Spark.
    pauses = {steps // 2} if steps < 60 else {steps // 3, 2 * steps // 3, steps - 1}
    for step in range(steps):
        work.step()
        if step in pauses:
            process = process if process.poll() is None else altered.start()
            altered.settle(process)
            assert altered.differences(target_tables) == {}, f"step {step}"
            process = _kill_one(altered, process, draw)
        elif draw.random() < 3 / steps:
            process = _kill_one(altered, process, draw)
    altered.settle(process)
    assert altered.stop(process) == 0, altered.output()
    assert altered.differences(target_tables) == {}
