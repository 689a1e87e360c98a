"""Which changes of a table's columns matter, by its metadata alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TargetTable
from replicator_target_delta.lane.creation import first_version
from replicator_target_delta.log.mapping import conflict
from replicator_target_delta.shape.tables import new_table

TABLE = TargetTable(table=TableId("shop", "items"), uuid="u", incarnation=0, epoch=1)
TYPES: Mapping[str, pa.DataType] = {
    "id": pa.int64(), "a": pa.string(), "b": pa.string(), "n": pa.int32(), "list": pa.list_(pa.string()),
    "été ${x}": pa.decimal128(9, 2),
}  # fmt: skip
SCHEMA = TableSchema(
    table=TABLE.table,
    columns=tuple(Column(name=name, type=type_, source_type="?") for name, type_ in TYPES.items()),
    key=("id",),
)
Fields = dict[str, dict[str, Any]]


def metadata() -> dict[str, Any]:
    actions = first_version(new_table(TABLE, SCHEMA, clustering=False), {}, 0)
    return copy.deepcopy(next(dict(action["metaData"]) for action in actions if "metaData" in action))


def changed(change: Callable[[Fields], object]) -> str | None:
    """What is said of a table whose columns, by the names that they had, somebody changed."""
    found = metadata()
    fields = json.loads(found["schemaString"])["fields"]
    by_name = {field["name"]: field for field in fields}
    change(by_name)
    # As Spark writes it: in another order of keys.
    found["schemaString"] = json.dumps({"type": "struct", "fields": list(by_name.values())}, sort_keys=True)
    return conflict(found)


def new(name: str) -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": 99, "delta.columnMapping.physicalName": "col-new"}
    return {"name": name, "type": "string", "nullable": True, "metadata": mapping}


def exchanged(fields: Fields, one: str, other: str) -> None:
    fields[one]["name"], fields[other]["name"] = other, one


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda fields: fields.update(mine=new("mine")),
        lambda fields: fields.update(a=fields.pop("a")),
        lambda fields: fields["id"].update(nullable=True),
        lambda fields: fields["a"]["metadata"].update(comment="x"),
        lambda fields: fields["a"]["metadata"].update(CURRENT_DEFAULT="'x'", EXISTS_DEFAULT="'x'"),
    ],
    ids=["nothing", "added", "moved", "nullable", "comment", "default"],
)
def test_what_changes_no_value_does_not_matter(change: Callable[[Fields], object]) -> None:
    assert changed(change) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.pop("b"), "Column b was dropped."),
        (lambda f: f.update(b=new("b")), "Column b was dropped, and another one of that name was added."),
        (lambda f: f["a"].update(name="z"), "Column a was renamed to z."),
        (lambda f: f["a"].update(name="A"), "Column a was renamed to A."),
        (lambda f: exchanged(f, "a", "b"), "Column a was renamed to b. Column b was renamed to a."),
        (lambda f: exchanged(f, "id", "n"), "Column id was renamed to n. Column n was renamed to id."),
        (lambda f: f.pop("_sequence_num"), "Column _sequence_num was dropped."),
        (lambda f: f["n"].update(type="long"), "Column n got another type or other settings."),
        (lambda f: f["list"]["type"].update(elementType="binary"), "Column list got another type or other settings."),
        (lambda f: f["id"]["metadata"].update(__COLLATIONS={"id": "UTF8_LCASE"}), "Column id got another type or other settings."),
        (lambda f: f.update({"été ${x}": new("été ${x}")}), "Column été ${x} was dropped, and another one of that name was added."),
    ],
)  # fmt: skip
def test_what_changes_values_is_told(change: Callable[[Fields], object], said: str) -> None:
    assert changed(change) == said


def test_a_table_that_does_not_say_what_is_ours_is_not_the_one_that_we_made() -> None:
    found = metadata()
    del found["configuration"]["replicator.columns"]
    assert conflict(found) == "Its property replicator.columns was removed, or the table was replaced."
