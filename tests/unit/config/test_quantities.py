"""Durations and sizes are read with their units and spelled so that they are read back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from replicator.config import Duration, Size, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("200ms", 0.2), ("1h30m", 5400), ("1.5h", 5400), ("24h", 86400), ("7d", 604800), ("0s", 0)],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5S", "5x", "1h 30m", "٥s", "9" * 30 + "d", "1s" * 30])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(0)))
def test_spelled_duration_is_read_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "size"),
    [("512B", 512), ("64MiB", 64 << 20), ("50GiB", 50 << 30), ("1GB", 10**9), ("1.5KiB", 1536), ("0B", 0)],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "MiB", "-1B", "5 MiB", "5mib", "1MiB1KiB", "٥B", "9" * 50 + "B"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 62))
def test_spelled_size_is_read_back(value: int) -> None:
    assert parse_size(format_size(value)) == value


def test_models_take_quantities_and_their_python_values() -> None:
    duration, size = TypeAdapter(Duration), TypeAdapter(Size)
    assert duration.validate_python("5s") == duration.validate_python(timedelta(seconds=5))
    assert size.validate_python("1KiB") == size.validate_python(1024)
    assert duration.dump_python(timedelta(minutes=90), mode="json") == "1h30m"
    assert size.dump_python(1 << 20, mode="json") == "1MiB"


def test_duration_without_unit_is_refused() -> None:
    with pytest.raises(ValidationError, match="no unit"):
        TypeAdapter(Duration).validate_python(5)
