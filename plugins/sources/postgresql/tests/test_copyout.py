"""COPY in binary format into columns: what is well-formed is read exactly, what is not is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from replicator_source_postgresql.snapshot.copy_out import column_values, copy_columns
from replicator_source_postgresql.wire import Block, Frames, MalformedError


def row(*fields: bytes | None) -> bytes:
    written = [struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field for field in fields]
    return struct.pack(">h", len(fields)) + b"".join(written)


def frames(*rows: bytes) -> Frames:
    return Frames.join([Block(b"".join(rows), np.array([len(r) for r in rows], np.int64))])


def columns(data: Frames, count: int) -> list[list[bytes | None]]:
    return [column_values(data, slices).to_pylist() for slices in copy_columns(data, count)]


def test_fields_come_as_columns() -> None:
    data = frames(row(b"a", b"12345678", None), row(b"", b"abcdefgh", b"x" * 300), row(b"ccc", b"\x00" * 8, b""))
    assert columns(data, 3) == [[b"a", b"", b"ccc"], [b"12345678", b"abcdefgh", b"\x00" * 8], [None, b"x" * 300, b""]]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 9])
def test_fields_of_one_width_keep_their_bytes(width: int) -> None:
    values = [bytes(range(start, start + width)) for start in range(100)]
    assert columns(frames(*[row(value) for value in values]), 1) == [values]


def test_no_rows_are_empty_columns() -> None:
    assert columns(frames(), 2) == [[], []]


@pytest.mark.parametrize(
    "broken",
    [
        row(b"a"),
        row(b"a", b"b", b"c"),
        row(b"a", b"b")[:-1],
        row(b"a", b"b") + b"x",
        b"\x00",
        struct.pack(">hii", 2, -2, 0),
        struct.pack(">hi", 2, 1 << 30),
        struct.pack(">hi", 2, -(1 << 31)),
        struct.pack(">h", 2),
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_a_malformed_row_is_refused(broken: bytes, is_last: bool) -> None:
    good = [row(b"aa", b"bb")] * 3
    with pytest.raises(MalformedError):
        copy_columns(frames(*good, broken, *([] if is_last else good)), 2)
