"""Columns called like the columns that the statements add themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions
from replicator.spark import reduce
from replicator_target_delta import merge

# Every string in these modules that may be the name of a column, so that a new helper column is met by itself.
HELPERS = sorted(
    {
        name
        for module in (reduce, merge)
        for name in re.findall(r"[\"'](_?[A-Za-z]\w*)[\"']", Path(module.__file__).read_text())
    }
    | {"key", "row", "before", "s", "t", "_operation", "_absent", "_is_snapshot", "_transaction_id", "c1", "col2", "f0"}
)
NAMES = [name for name in HELPERS if name.casefold() not in {"id", "int64"}]


def schema_of(names, key=("id",)):
    columns = [Column(name="id", type=pa.int64(), source_type="bigint")]
    columns += [Column(name=name, type=pa.string(), source_type="text") for name in names]
    return TableSchema(table=TableId("public", "helpers"), columns=tuple(columns), key=key)


def test_columns_may_be_called_like_helpers(new_lake):
    lake = new_lake(schema_of(NAMES), TableOptions(deletes="soft", source_timestamp=True))

    def row(id_, word):
        return {"id": id_, **{name: f"{word} {name}" for name in NAMES}}

    half = NAMES[::2]
    lake.apply(*[lake.change("INSERT", row=row(i, "old")) for i in range(4)], is_append=True, has_absent=False)
    # Columns that were not sent of a row that moved, of one that stayed, and of one that moved twice.
    lake.apply(
        lake.change("UPDATE", before={"id": 1}, row=row(11, "new"), absent=half),
        lake.change("UPDATE", row=row(2, "new"), absent=half),
        lake.change("UPDATE", before={"id": 3}, row=row(13, "new"), absent=half),
        lake.change("UPDATE", before={"id": 13}, row=row(23, "newer"), absent=half),
    )

    def mixed(id_, word):
        return tuple({**row(id_, word), **{name: f"old {name}" for name in half}}.values())

    wanted = {tuple(row(0, "old").values()), mixed(11, "new"), mixed(2, "new"), mixed(23, "newer")}
    assert {r[:-1] for r in lake.rows("id", *NAMES, "_is_deleted") if not r[-1]} == wanted


@pytest.mark.slow
def test_columns_without_a_key_may_be_called_like_helpers(new_lake):
    lake = new_lake(schema_of(NAMES, key=()))

    def row(id_):
        return {"id": id_, **{name: f"{id_} {name}" for name in NAMES}}

    lake.apply(*[lake.change("INSERT", row=row(i)) for i in range(3)])
    lake.apply(lake.change("DELETE", before=row(0)), lake.change("UPDATE", before=row(1), row=row(4)))
    assert lake.rows() == {tuple(row(i).values()) for i in (2, 4)}
