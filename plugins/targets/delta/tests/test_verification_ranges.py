"""Ranges of keys: a range has in a Delta table the rows that it has for everybody else, and ranges have every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from plugins.targets.delta.tests.test_verification import VALUES, batch_of, inserted, schema_of, state_of
from replicator.plugins.kit.keyranges import is_ordered
from replicator.plugins.verification import Bound, KeyRange
from replicator_testing.table_states import assert_ranges

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

KEY_TYPES = [name for name in VALUES if not pa.types.is_list(VALUES[name][0])]
RANGED = [name for name in KEY_TYPES if is_ordered(VALUES[name][0]) and name != "d65"]
"""`d65` is stored as text."""
UUIDS = [f"{d * 8}-{d * 4}-4{d * 3}-8{d * 3}-{d * 12}" for d in "019abf"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*sorted(RANGED), "uuid"])
@pytest.mark.parametrize("rung", [pytest.param("L0", marks=pytest.mark.matrix), "L1"])
def test_a_range_has_the_rows_that_it_has_for_everybody(lake_by: Callable[..., Lake], rung: str, name: str) -> None:
    """Whatever wrote them; some are deleted."""
    type_, values = (pa.string(), UUIDS) if name == "uuid" else VALUES[name]
    schema = schema_of({"v": pa.string(), "n": pa.int32(), "k": type_}, key=("k", "n"))
    lake = lake_by(rung, schema)
    rows = [{"k": k, "n": n, "v": "x"} for k in dict.fromkeys(values) for n in (-1, 1, 2)]
    lake.apply_batch(inserted(lake, batch_of(schema, rows)))
    lake.apply(*(lake.delete(k=row["k"], n=1) for row in rows if row["n"] == 1))
    left = batch_of(schema, [row for row in rows if row["n"] != 1])
    with state_of(lake) as state:
        assert_ranges(state, left, schema, columns=2)


@pytest.mark.parametrize("name", sorted(name for name in KEY_TYPES if name not in RANGED and name != "text"))
def test_a_key_that_has_another_order_here_has_no_ranges(lake_by: Callable[..., Lake], name: str) -> None:
    schema = schema_of({"n": pa.int32(), "k": VALUES[name][0]}, key=("k", "n"))
    lake = lake_by("L1", schema)
    with state_of(lake) as state:
        assert state.range_key == []


@pytest.mark.parametrize(
    ("type_", "odd", "bounds"),
    [
        (pa.int64(), [None, -5, 1, 2, 3, 99], [("1",), ("2",)]),
        (pa.string(), [None, "", "\U0001f600", UUIDS[1].upper(), UUIDS[4].upper(), *UUIDS], [(f"36:{u}",) for u in UUIDS[1:3]]),
    ],
    ids=["number", "uuid"],
)  # fmt: skip
def test_a_row_that_no_source_can_have_is_in_a_range(
    lake_by: Callable[..., Lake], type_: pa.DataType, odd: Sequence[Any], bounds: Sequence[Bound]
) -> None:
    """What others have written: NULL in the key, and text that is no uuid."""
    loose = schema_of({"n": pa.int32(), "k": type_}, key=("n",))
    lake = lake_by("L1", loose)
    lake.apply_batch(inserted(lake, batch_of(loose, [{"k": k, "n": n} for n, k in enumerate(odd)])))
    schema = replace(loose, key=("k",))
    columns = {column.name: column.name for column in schema.columns}
    with lake.target.open_state(lake.table, schema, columns=columns, at=lake.next - 1) as state:
        ranges = [KeyRange(("k",), after, upto) for after, upto in pairwise([None, *bounds, None])]
        found = [state.rows([""], within).num_rows for within in ranges]
        assert sum(found) == len(odd)
        assert found[0] >= 2, "what is NULL comes first"
        assert sum(c.rows for within in ranges for c in state.checksums(2, None, within).values()) == len(odd)
