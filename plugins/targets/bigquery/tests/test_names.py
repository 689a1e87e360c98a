"""Names and comments of the source that break what is careless with text, through every statement of an emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.errors import SchemaConflictError
from replicator.model.events import DDLOperation
from replicator.model.naming import cut, folded
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_bigquery.tables import DESCRIPTION_MAX, TABLE_DESCRIPTION_MAX
from replicator_testbed import hostile
from replicator_testing.batches import delete, insert, update
from replicator_testing.target_harness import UUID, Copy, as_tuples

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

# What the statements call their own values, and what BigQuery calls its pseudo columns.
HELPERS = [
    "n", "o", "moment", "k0", "k1", "f0", "f1", "f2", "s0", "s1", "b0", "b1", "v1", "i0", "removed", "has_row", "half",
    "op", "moves", "is_partial", "arrives", "departs", "wrote_before", "begins", "life", "root", "is_root",
    "from_k0", "origin0", "is_moved", "written", "touches", "changes", "lives", "folded", "rooted", "carried",
    "last_lives", "last_touches", "steps", "named", "heights", "balanced", "held", "lost", "ordinal", "height",
    "removes", "step", "id", "s", "t", "row", "before", "key", "_operation", "_absent", "_is_snapshot",
    "_transaction_id", "within", "staging", "target",
]  # fmt: skip


# The emulator makes SQL of the fields of a record and quotes none of the first, and it puts times for the last, in texts too.
NAMES = hostile.names(unfit={"NULL", "null", "true", "select", "from", "_PARTITIONTIME", "_PARTITIONDATE"}) + HELPERS


# What something resolves, that with the canary first, and emoji.
RESOLVED = sorted(
    (c for c in hostile.COMMENTS if "${" in c or "😀" in c),
    key=lambda c: (f"${{env.{hostile.CANARY_VARIABLE}}}" not in c[:30], hostile.CANARY_VARIABLE not in c),
)


def schema_of(
    names: Sequence[str],
    key: Sequence[str],
    table: TableId,
    comment: str | None = None,
    comments: Sequence[str] = hostile.COMMENTS,
) -> TableSchema:
    columns = [
        Column(
            name=name,
            type=pa.int64() if name in key else pa.string(),
            source_type="text",
            comment=comments[position % len(comments)],
        )
        for position, name in enumerate(names)
    ]
    return TableSchema(table=table, columns=tuple(columns), key=tuple(key), comment=comment)


def fitting(warehouse: Warehouse, names: Sequence[str]) -> list[str]:
    """Those that stay apart in BigQuery."""
    return list({folded(warehouse.names.column(name)): name for name in names}.values())


def run(warehouse: Warehouse, folder: Path, schema: TableSchema, *, deletes: str = "hard") -> None:
    """Create, append, merge whole and partial rows with changes of keys, complete a snapshot, clear, drop."""
    table = TargetTable(
        table=schema.table,
        uuid=UUID,
        incarnation=1,
        epoch=1,
        options=TableOptions(deletes=deletes, source_timestamp=True),
    )
    copy = Copy(harness=warehouse, folder=folder, schema=schema, table=table, target=warehouse.target())
    half = [c.name for c in schema.columns if c.name not in schema.key][::2]

    def row(number: int, word: str = "old", **more: Any) -> dict[str, Any]:
        return {c.name: number if c.name in schema.key else f"{word} {number} {c.name}" for c in schema.columns} | more

    def key(number: int) -> dict[str, Any]:
        return dict.fromkeys(schema.key, number)

    copy.create()
    made = warehouse.client.get_table(warehouse.names.path(schema.table))
    by_name = {f.name: f.description for f in made.schema}
    columns = warehouse.names.columns(schema)
    for column in schema.columns:
        assert by_name[columns[column.name]] == cut(column.comment or "", DESCRIPTION_MAX), column.name
    assert made.description == cut(schema.comment or "", TABLE_DESCRIPTION_MAX)
    copy.apply(*[insert(n + 1, row(n)) for n in range(4)], is_append=True)
    copy.apply(
        update(11, row(11, "new"), before=key(1), absent=half),
        update(12, row(2, "new"), absent=half),
        delete(13, key(3)),
    )

    def mixed(old: int, number: int) -> dict[str, Any]:
        return row(number, "new") | {name: f"old {old} {name}" for name in half}

    assert copy.live() == as_tuples(schema, [row(0), mixed(1, 11), mixed(2, 2)])
    copy.apply(update(20, row(7, "whole"), before=key(0)), update(21, row(2, "whole")))
    assert copy.live() == as_tuples(schema, [mixed(1, 11), row(7, "whole"), row(2, "whole")])
    copy.target.complete_snapshot(copy.table, 20, 30)
    assert copy.live() == as_tuples(schema, [row(7, "whole"), row(2, "whole")])
    copy.ddl(DDLOperation.TRUNCATE_TABLE, 31)
    assert copy.live() == as_tuples(schema, [])
    copy.ddl(DDLOperation.DROP_TABLE, 32)
    copy.target.drop(copy.table)


def test_hostile_names_and_comments_go_through_every_statement(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Descriptions are compared with the comments: nothing of it may stand there.
    monkeypatch.setenv(hostile.CANARY_VARIABLE, hostile.CANARY)
    names = fitting(
        warehouse,
        ["i😀`d.", "${user.name}", "_PARTITIONTIME", "_FILE_NAME", "n", "moment", "k0", "row", "s", "t", "%s", "life"],
    )
    table = TableId("it's ${env:PATH}", "${env:HOME}`'\\ \n😀%s{}")
    schema = schema_of(names, names[:1], table, " ".join(RESOLVED), RESOLVED)
    assert {c.comment for c in schema.columns} >= {c for c in RESOLVED if hostile.CANARY_VARIABLE in c or "😀" in c}
    run(warehouse, tmp_path, schema, deletes="soft")


@pytest.mark.matrix
@pytest.mark.parametrize("names_as", ["ascii", "unicode"])
@pytest.mark.parametrize("part", range(3))
def test_every_hostile_column_goes_through_every_statement(
    new_warehouse: Callable[..., Warehouse], tmp_path: Path, names_as: str, part: int
) -> None:
    warehouse = new_warehouse(names=names_as)
    names = fitting(warehouse, NAMES)[part::3]
    run(warehouse, tmp_path, schema_of(names, names[:2], TableId("s", f"t{part}"), "c"))


@pytest.mark.matrix
def test_every_hostile_table_is_made(warehouse: Warehouse, tmp_path: Path) -> None:
    for position, name in enumerate(hostile.names()[::4]):
        folder = tmp_path / str(position)
        folder.mkdir()
        comment = hostile.COMMENTS[position % len(hostile.COMMENTS)]
        run(warehouse, folder, schema_of(["id", "c"], ["id"], TableId(f"s{position}", name), comment))


def test_columns_that_were_never_validated_are_refused_when_the_table_is_made(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    schema = schema_of(["id", "_IS_deleted"], ["id"], TableId("s", "t"))
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=warehouse.target())
    with pytest.raises(SchemaConflictError) as caught:
        copy.create()
    assert (caught.value.code, caught.value.table) == ("column_name_reserved", "s.t")
