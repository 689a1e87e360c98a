"""What statements of others do to a table of ours: each is harmless, or the table stops and says what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from replicator.model.errors import SchemaConflictError, TableError
from replicator.model.schema import Column, TableSchema

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

import pyarrow as pa

from replicator.model.schema import TableId

SCHEMA = TableSchema(
    table=TableId("public", "people"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
        Column(name="b", type=pa.string(), source_type="text"),
        Column(name="n", type=pa.int64(), source_type="bigint"),
        Column(name="i", type=pa.int32(), source_type="int"),
    ),
    key=("id",),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What somebody does, `{t}` being the table; `said`: why it stops, None if it continues; `audit`: what the alarm names."""

    statements: Sequence[str]
    said: str | None = None
    audit: Sequence[str] = ()


ALTER = "ALTER TABLE {t} "
HARMLESS = {
    "comment": Case(statements=[ALTER + "ALTER COLUMN a COMMENT 'x'", "COMMENT ON TABLE {t} IS 'y'"]),
    "property": Case(statements=[ALTER + "SET TBLPROPERTIES ('owner.team' = 'x', delta.checkpointInterval = 20)"]),
    "change data feed": Case(statements=[ALTER + "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"]),
    "row tracking": Case(statements=[ALTER + "SET TBLPROPERTIES (delta.enableRowTracking = true)"]),
    "column added": Case(statements=[ALTER + "ADD COLUMN mine STRING"]),
    "column added in the middle": Case(statements=[ALTER + "ADD COLUMN mine STRUCT<x: INT> AFTER a"]),
    "column moved": Case(statements=[ALTER + "ALTER COLUMN b AFTER id"]),
    "not null dropped": Case(statements=[ALTER + "ALTER COLUMN id DROP NOT NULL"]),
    "default": Case(
        statements=[
            ALTER + "SET TBLPROPERTIES (delta.feature.allowColumnDefaults = 'supported')",
            ALTER + "ALTER COLUMN a SET DEFAULT 'x'",
        ]
    ),
    "constraint that holds": Case(statements=[ALTER + "ADD CONSTRAINT c CHECK (n > -5)"]),
    "clustering": Case(statements=[ALTER + "CLUSTER BY (a)"]),
    "clustering off": Case(statements=[ALTER + "CLUSTER BY NONE"]),
    "feature": Case(statements=[ALTER + "SET TBLPROPERTIES (delta.feature.v2Checkpoint = 'supported')"]),
    "deletion vectors off": Case(statements=[ALTER + "SET TBLPROPERTIES (delta.enableDeletionVectors = false)"]),
    "renamed back": Case(
        statements=[ALTER + "RENAME COLUMN a TO z", ALTER + "RENAME COLUMN z TO a"],
        audit=["RENAME COLUMN"],
    ),
    "restored to a version without a change": Case(
        statements=[ALTER + "SET TBLPROPERTIES (x = 'y')", "RESTORE TABLE {t} TO VERSION AS OF {v}"]
    ),
}
STOPS = {
    "names exchanged": Case(
        statements=[
            ALTER + "RENAME COLUMN a TO z",
            ALTER + "RENAME COLUMN b TO a",
            ALTER + "RENAME COLUMN z TO b",
        ],
        said="Column a was renamed to b. Column b was renamed to a.",
        audit=["RENAME COLUMN"] * 3,
    ),
    "dropped and added": Case(
        statements=[ALTER + "DROP COLUMN b", ALTER + "ADD COLUMN b STRING AFTER a"],
        said="Column b was dropped, and another one of that name was added.",
        audit=["DROP COLUMNS", "ADD COLUMNS"],
    ),
    "dropped": Case(statements=[ALTER + "DROP COLUMN b"], said="Column b was dropped.", audit=["DROP COLUMNS"]),
    "renamed": Case(
        statements=[ALTER + "RENAME COLUMN a TO z"], said="Column a was renamed to z.", audit=["RENAME COLUMN"]
    ),
    "renamed in another case": Case(
        statements=[ALTER + "RENAME COLUMN a TO A"], said="Column a was renamed to A.", audit=["RENAME COLUMN"]
    ),
    "key exchanged": Case(
        statements=[
            ALTER + "CLUSTER BY NONE",
            ALTER + "RENAME COLUMN id TO z",
            ALTER + "RENAME COLUMN n TO id",
            ALTER + "RENAME COLUMN z TO n",
        ],
        said="Column id was renamed to n. Column n was renamed to id.",
        audit=["RENAME COLUMN"] * 3,
    ),
    "own column dropped and added": Case(
        statements=[ALTER + "DROP COLUMN _sequence_num", ALTER + "ADD COLUMN _sequence_num BIGINT"],
        said="Column _sequence_num was dropped, and another one of that name was added.",
        audit=["DROP COLUMNS", "ADD COLUMNS"],
    ),
    "wider type": Case(
        statements=[
            ALTER + "SET TBLPROPERTIES (delta.enableTypeWidening = true)",
            ALTER + "ALTER COLUMN i TYPE BIGINT",
        ],
        said="Column i got another type or other settings.",
        audit=["CHANGE COLUMN"],
    ),
    "mapping removed": Case(
        statements=[ALTER + "SET TBLPROPERTIES (delta.columnMapping.mode = 'none')"],
        said="Column id was",
        audit=["REMOVE COLUMN MAPPING"],
    ),
    "our property removed": Case(
        statements=[ALTER + "UNSET TBLPROPERTIES ('replicator.columns')"],
        said="Its property replicator.columns was removed",
        audit=["UNSET TBLPROPERTIES"],
    ),
}
ENGINES = ["auto", "spark"]


def run(lake: Lake, case: Case) -> None:
    for statement in case.statements:
        lake.spark.sql(statement.format(t=f"delta.`{lake.path}`", v=lake.version()))


def begun(new_lake: Callable[..., Lake], engine: str, **parts: Any) -> Lake:
    lake = new_lake(SCHEMA, engine=engine, **parts)
    lake.apply(*[row(lake, i) for i in range(4)])
    return lake


def row(lake: Lake, number: int, operation: str = "insert") -> dict[str, Any]:
    change: dict[str, Any] = getattr(lake, operation)(id=number, a=f"a{number}", b=f"b{number}", n=number, i=number)
    return change


def next_process(lake: Lake) -> None:
    """Replicator is started again."""
    lake.target = lake.process()
    lake.table = replace(lake.table, epoch=lake.table.epoch + 1)


def named(found: Sequence[str]) -> list[str]:
    return [text.partition(": ")[2] for text in found]


@pytest.mark.matrix
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_stopped", [False, True], ids=["while it runs", "while it is stopped"])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_others_do_without_harm_is_followed(
    new_lake: Callable[..., Lake], engine: str, name: str, is_stopped: bool
) -> None:
    case, lake = HARMLESS[name], begun(new_lake, engine)
    position = lake.target.audit(lake.table, None).position
    run(lake, case)
    if is_stopped:
        next_process(lake)
    lake.apply(row(lake, 1, "update"), row(lake, 9), lake.delete(id=0))
    assert lake.rows() == {(i, f"a{i}", f"b{i}", i, i) for i in (1, 2, 3, 9)}
    assert named(lake.target.audit(lake.table, position).changed_by_others) == list(case.audit)


@pytest.mark.parametrize(
    ("engine", "is_stopped", "name"),
    [
        pytest.param(
            engine,
            stopped,
            name,
            marks=[] if (engine, stopped, name) == ("auto", False, "names exchanged") else pytest.mark.matrix,
        )
        for engine in ENGINES
        for stopped in (False, True)
        for name in STOPS
    ],
)
def test_what_others_do_to_our_columns_stops_the_table_until_it_is_recreated(
    new_lake: Callable[..., Lake], engine: str, name: str, is_stopped: bool
) -> None:
    case, lake = STOPS[name], begun(new_lake, engine)
    columns = {column.name: column.name for column in SCHEMA.columns}
    position, last = lake.target.audit(lake.table, None).position, lake.next - 1
    run(lake, case)
    version = lake.version()
    assert named(lake.target.audit(lake.table, position).changed_by_others) == list(case.audit)
    if is_stopped:
        next_process(lake)
    for _ in range(2):
        with pytest.raises(SchemaConflictError) as caught:
            lake.apply(row(lake, 1, "update"), row(lake, 9))
        assert str(case.said) in caught.value.message
        assert (caught.value.code, "--recreate" in (caught.value.action or "")) == ("schema_conflict", True)
    with (
        pytest.raises(TableError, match="changed its columns") as unread,
        lake.target.open_state(lake.table, SCHEMA, columns=columns, at=last),
    ):
        pass
    assert unread.value.code == "state_not_readable"
    # Only claims were committed meanwhile.
    assert lake.version() <= version + 1
    recreated(lake)
    lake.apply(row(lake, 9), row(lake, 1, "update"))
    assert lake.rows() == {(i, f"a{i}", f"b{i}", i, i) for i in (0, 1, 2, 3, 9)}
    with lake.target.open_state(lake.table, SCHEMA, columns=columns, at=lake.next - 1):
        pass


def recreated(lake: Lake) -> None:
    """What `snapshot --recreate` makes the target do."""
    lake.table = replace(lake.table, incarnation=lake.table.incarnation + 1)
    lake.target.claim(lake.table)
    lake.create()
    lake.apply(*[row(lake, i) for i in range(4)], is_append=True)
    lake.target.publish(lake.table, lake.number())
