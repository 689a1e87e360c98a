"""Tables without a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.target import TableOptions

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

SCHEMA = TableSchema(
    table=TableId("public", "readings of März (1)"),
    columns=(
        Column(name="name", type=pa.string(), source_type="text"),
        Column(name="value", type=pa.float64(), source_type="double precision"),
    ),
)


def row(name: str | None, value: float | None) -> dict[str, Any]:
    return {"name": name, "value": value}


@pytest.mark.matrix
def test_equal_rows_are_counted(new_lake: Callable[..., Lake]) -> None:
    lake = new_lake(SCHEMA)
    one, zero, minus, null = row("a", 1.0), row("z", 0.0), row("z", -0.0), row(None, None)
    lake.apply(*[lake.change("INSERT", row=r) for r in (one, one, one, zero, minus, null, null)])
    lake.apply(
        lake.change("DELETE", before=one),
        lake.change("UPDATE", before=one, row=row("b", 2.0)),
        lake.change("DELETE", before=minus),
        lake.change("DELETE", before=null),
        lake.change("INSERT", row=row("a", 5.0)),
        lake.change("DELETE", before=row("a", 5.0)),
    )
    rows = [
        tuple(r)
        for r in lake.spark.read.format("delta").load(str(lake.path)).select("name", "value", "_sequence_num").collect()
    ]
    assert Counter(repr(r[:2]) for r in rows) == Counter(["('a', 1.0)", "('b', 2.0)", "('z', 0.0)", "(None, None)"])
    assert len({r[2] for r in rows}) == len(rows)
    # The copy that came first stays, as a stack would have it.
    assert ("a", 1.0, 1) in rows


def test_soft_deletes_are_refused(new_lake: Callable[..., Lake]) -> None:
    with pytest.raises(TableError) as caught:
        new_lake(SCHEMA, TableOptions(deletes="soft"))
    assert caught.value.code == "soft_deletes_need_key"
