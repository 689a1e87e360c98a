"""How values are shown to a person, those too that a target has and no source could."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replicator.verify.verdicts import shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", "00:00:00"),
        ("37230500000", "10:20:30.500000"),
        ("86399999999", "23:59:59.999999"),
        ("362439000000", "100:40:39"),
        ("?noon", "noon"),
        ("?", ""),
    ],
)
def test_a_time_of_day_and_what_somebody_has_written_for_one(text: str, found: str) -> None:
    assert shown(text, pa.time64("us")) == found
