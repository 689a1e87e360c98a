"""What `verify` takes for one value. The tests of each source and target compare what they compute with these texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replicator.plugins.kit.canonical import row_texts


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_both_zeros_are_one_value_and_neighbours_are_two(type_: pa.DataType) -> None:
    for kind, wrap in ((type_, lambda value: value), (pa.list_(type_), lambda value: [1.5, value])):
        values = pa.array([wrap(value) for value in (-0.0, 0.0, 1e-45)], kind)
        minus, plus, other = row_texts(pa.RecordBatch.from_arrays([values], ["v"]))
        assert minus == plus != other
