"""What `plan --ddl` says of a statement is what becomes of the table: every family of `docs/schema-changes.md`, by every policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from replicator.config import DDLConfig
from replicator.model.events import DDLOperation
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.service.plan.ddl import plan_statement
from replicator.service.plan.rehearsal import Rehearsed
from replicator.state.records import Decision, TableRecord
from replicator_source_mysql.source import MysqlSource
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.databases import Database
from replicator_testbed.journals.captured import QUICK, Captured
from replicator_testbed.present import present
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig
from tests.integration.test_schema_machine import make_source

if TYPE_CHECKING:
    from tests.integration.conftest import SourceOf

Family = tuple[str, Sequence[str], Sequence[str]]
"""A policy, what it is set to, and statements: `{t}` is the table, `{new}` a name that the configuration selects, too."""

EACH = ("apply", "ignore", "stop")
BOTH: Final[dict[str, Family]] = {
    "added": ("add_column", EACH, ["ALTER TABLE {t} ADD b int", "ALTER TABLE {t} ADD b varchar(9) DEFAULT 'x'"]),
    "dropped": ("drop_column", ("keep", "apply", "ignore", "stop"), ["ALTER TABLE {t} DROP COLUMN a"]),
    "renamed": ("rename_column", EACH, ["ALTER TABLE {t} RENAME COLUMN a TO b"]),
    "key renamed": ("rename_column", EACH, ["ALTER TABLE {t} RENAME COLUMN id TO b"]),
    "default": ("change_default", EACH, ["ALTER TABLE {t} ALTER COLUMN n SET DEFAULT 7"]),
    "two at once": ("drop_column", ("apply", "stop"), ["ALTER TABLE {t} ADD b int, DROP COLUMN a"]),
    "made again": ("drop_column", ("keep", "apply", "stop"), ["ALTER TABLE {t} DROP COLUMN n, ADD n int"]),
    "index": ("add_column", ("stop",), ["CREATE INDEX i_{t} ON {t} (n)"]),
    "truncated": ("truncate_table", EACH, ["TRUNCATE TABLE {t}"]),
    "table dropped": ("drop_table", EACH, ["DROP TABLE {t}"]),
    "table renamed": ("rename_table", EACH, ["ALTER TABLE {t} RENAME TO {new}", "ALTER TABLE {t} RENAME TO x{t}"]),
}  # fmt: skip
POSTGRESQL: Final[dict[str, Family]] = {
    "values unknown": ("add_column", EACH, [
        "ALTER TABLE {t} ADD b double precision DEFAULT random()", "ALTER TABLE {t} ADD b int GENERATED ALWAYS AS (n + 1) STORED",
    ]),
    "widened": ("widen_type", EACH, ["ALTER TABLE {t} ALTER n TYPE bigint", "ALTER TABLE {t} ALTER a TYPE text"]),
    "retyped": ("change_type", EACH, ["ALTER TABLE {t} ALTER n TYPE text", "ALTER TABLE {t} ALTER d TYPE numeric(6,1)"]),
    "nullable": ("change_nullability", EACH, ["ALTER TABLE {t} ALTER n SET NOT NULL"]),
    "rekeyed": ("change_key", ("apply", "stop"), ["ALTER TABLE {t} DROP CONSTRAINT k_{t}, ADD PRIMARY KEY (id, n)"]),
    "no key": ("change_key", ("apply", "stop"), ["ALTER TABLE {t} REPLICA IDENTITY FULL, DROP CONSTRAINT k_{t}"]),
    "comment": ("add_column", ("stop",), ["COMMENT ON COLUMN {t}.a IS 'x'"]),
    "identity": ("add_column", ("stop",), ["ALTER TABLE {t} REPLICA IDENTITY FULL"]),
}  # fmt: skip
MYSQL: Final[dict[str, Family]] = {
    "values unknown": ("add_column", EACH, [
        "ALTER TABLE {t} ADD b datetime DEFAULT CURRENT_TIMESTAMP", "ALTER TABLE {t} ADD b int AS (n + 1) STORED",
    ]),
    "widened": ("widen_type", EACH, ["ALTER TABLE {t} MODIFY n bigint", "ALTER TABLE {t} MODIFY a varchar(30)"]),
    "retyped": ("change_type", EACH, ["ALTER TABLE {t} MODIFY n varchar(20)", "ALTER TABLE {t} MODIFY d decimal(6,1)"]),
    "rekeyed": ("change_key", ("apply", "stop"), ["ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)"]),
    "no key": ("change_key", ("apply", "stop"), ["ALTER TABLE {t} DROP PRIMARY KEY"]),
    "moved": ("add_column", ("stop",), ["ALTER TABLE {t} MODIFY n int FIRST"]),
    "swapped": ("rename_column", EACH, ["ALTER TABLE {t} CHANGE a e varchar(20), CHANGE e a varchar(20)"]),
    "comment": ("add_column", ("stop",), ["ALTER TABLE {t} COMMENT 'x'"]),
    "nullable": ("change_nullability", ("stop", "ignore", "apply"), ["ALTER TABLE {t} MODIFY n int NOT NULL"]),
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Case:
    """A table and what is done to it. `said`: before; `new`: its name afterwards, if it has one that the configuration selects."""

    name: str
    policies: DDLConfig
    statement: str
    said: Sequence[Rehearsed] = ()

    @property
    def new(self) -> str | None:
        if self.statement.startswith("DROP TABLE") or f" x{self.name}" in self.statement:
            return None
        return f"{self.name}_new" if f"{self.name}_new" in self.statement else self.name


def cases(families: Mapping[str, Family], every: int) -> list[Case]:
    """Each `every`th of all, and the last: it is found by a comparison with the catalogue, which finds the others, too."""
    found = [
        Case(
            name=f"c{number}",
            policies=DDLConfig.model_validate({kind: policy}),
            statement=statement.format(t=f"c{number}", new=f"c{number}_new"),
        )
        for number, (kind, policy, statement) in enumerate(
            (kind, policy, statement)
            for kind, policies, statements in families.values()
            for policy in policies
            for statement in statements
        )
    ]
    return [*found[:-1:every], found[-1]]


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("kind", ["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
@pytest.mark.timeout(300)
def test_what_is_said_is_what_becomes_of_the_table(
    request: pytest.FixtureRequest, tmp_path: Path, mysql_source_of: SourceOf, kind: str, every: int
) -> None:
    server = request.getfixturevalue(kind)
    families = BOTH | (POSTGRESQL if kind == "postgres" else MYSQL)
    with server.database() as database:
        check(database, cases(families, every), tmp_path, make_source(database, mysql_source_of))


def check(database: Database, found: Sequence[Case], folder: Path, source: Any) -> None:
    """Ask about every statement, execute all, and compare."""
    for case in found:
        database.execute(
            f"CREATE TABLE {case.name} (id int, a varchar(20), n int, d decimal(8,2), e varchar(20),"
            f" CONSTRAINT k_{case.name} PRIMARY KEY (id))",
            f"INSERT INTO {case.name} VALUES (1, 'x', 1, 1.5, 'e'), (2, 'y', 2, 2.5, 'f')",
        )
    ids = {case.name: TableId(database.namespace, case.name) for case in found}
    policies = {ids[case.name]: case.policies for case in found}
    with closing(
        MemoryTarget(MemoryTargetConfig(database=str(folder)), target_context(replicator="outcome"))
    ) as target:
        widens = target.widens
    captured = Captured(
        folder=folder,
        name="outcome",
        make_source=source,
        tables=list(ids.values()),
        settings=replace(
            QUICK,
            compare_every_s=0.2,
            ddl=lambda table: policies.get(table, DDLConfig()),
            selects=lambda table: table.name.startswith("c"),
            widens=widens,
        ),
    )
    with closing(captured), captured.running() as running:
        captured.wait_for_streaming(running)
        ask(database, found, captured)
        for case in found:
            database.execute(case.statement)
            if case.new is not None:
                key = "b" if "COLUMN id TO b" in case.statement else "id"
                database.execute(f"INSERT INTO {case.new} ({key}, n) VALUES (9, 9)")
        captured.tables[:] = [TableId(database.namespace, case.new) for case in found if case.new is not None]
        last = ids[found[-1].name]
        running.wait_until(lambda: is_read_again(captured, last), "the last case was found by a comparison")
        captured.catch_up(running)
        captured.wait_for_streaming(running, *(ids[case.name] for case in found if is_alive(case)))
        records = {record.table: record for record in captured.store.tables(captured.name)}
        differences = {
            case.statement: difference
            for case in found
            if (difference := compared(case, records[ids[case.name]], captured)) is not None
        }
    assert differences == {}


def ask(database: Database, found: Sequence[Case], captured: Captured) -> None:
    """`plan --ddl`, of each statement."""
    document = {
        "name": "outcome",
        "source": {**database.source, "password": "${env:SOURCE_PASSWORD}"},
        "target": {"type": "memory", "database": str(captured.folder)},
        "tables": {
            "include": [f"{database.namespace}.c*"],
            "settings": {
                f"{database.namespace}.{case.name}": {"ddl": case.policies.model_dump(exclude_unset=True)}
                for case in found
            },
        },
    }
    registry = Registry.of(sources=[PostgresqlSource, MysqlSource], targets=[MemoryTarget])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_PASSWORD", database.server.password or "none")
        loaded = registry.load(yaml.safe_dump(document), origin="file")
        stored = captured.store.tables(captured.name)
        for case in found:
            plan = plan_statement(loaded, registry, case.statement, stored=stored)
            case.said = [present(table.rehearsed) for table in plan.tables]


def is_alive(case: Case) -> bool:
    return all(said.error is None for said in case.said)


def is_read_again(captured: Captured, table: TableId) -> bool:
    history = captured.store.histories.latest(captured.name, 1_000, table=table)
    return any(entry.decision in (Decision.SNAPSHOT, Decision.REBUILD) for entry in history)


def compared(case: Case, record: TableRecord, captured: Captured) -> str | None:
    """How what came differs from what was said."""
    may_be_read = any(
        "if the server gives the table other storage" in text for one in case.said for text in one.effects
    )
    history = [
        (entry.decision, entry.changes)
        for entry in captured.store.histories.latest(captured.name, 1_000, table=record.table)
        if entry.operation is not DDLOperation.CREATE_TABLE
    ]
    if may_be_read:
        history = [entry for entry in history if entry != (Decision.SNAPSHOT, ())]
    said = [(one.decision, tuple(change.value for change in one.changes)) for one in case.said]
    if said != history:
        return f"said {said}, came {history}"
    codes = next((one.error.code for one in case.said if one.error), None), record.error and record.error.code
    if codes[0] != codes[1]:
        return f"said {codes[0]}, came {codes[1]}"
    was_read = is_read_again(captured, record.table)
    if was_read is not any(one.is_read_again for one in case.said) and not may_be_read:
        return f"it was {'' if was_read else 'not '}read again"
    last = case.said[-1] if case.said and is_alive(case) else None
    if last is None or last.tracked is None:
        return None
    shapes = [[(column.name, column.type) for column in shape.held] for shape in (last.tracked, present(record.schema))]
    ignored = [
        [(entry.column, entry.name) for entry in entries] for entries in (last.projection.ignored, record.ignored)
    ]
    return (
        None
        if shapes[0] == shapes[1] and ignored[0] == ignored[1]
        else f"said {shapes[0]} {ignored[0]}, came {shapes[1]} {ignored[1]}"
    )
