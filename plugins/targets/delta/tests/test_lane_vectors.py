"""Deletion vectors are what the protocol says, to the byte, and are read back as they were written."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake.vectors import bitmap, decode, encode, numbers
from replicator_target_delta.lane import vectors
from replicator_target_delta.lane.vectors import Descriptor, VectorFile, from_z85, z85
from replicator_target_delta.storage import Storage
from replicator_testbed.present import present

ROWS = st.one_of(
    st.sets(st.integers(0, 2**32 - 1), max_size=200),
    st.builds(lambda start, count: set(range(start, start + count)), st.integers(0, 200_000), st.integers(0, 70_000)),
    st.sets(st.integers(0, 70_000), max_size=5_000),
)


@given(ROWS)
def test_a_vector_is_read_as_it_was_written(rows: set[int]) -> None:
    assert decode(encode(BitMap(rows))) == BitMap(rows)


@given(ROWS.filter(bool))
def test_a_vector_is_delta_s_portable_array_of_bitmaps(rows: set[int]) -> None:
    """The format of the protocol: a magic number, then Roaring's own 64-bit format."""
    data = encode(BitMap(rows))
    assert struct.unpack_from("<i", data) == (1681511377,)
    assert BitMap64.deserialize(data[4:]) == BitMap64(rows)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<iq", 1681511376, 0),
        struct.pack("<iq", 1681511377, 2),
        struct.pack("<iqI", 1681511377, 1, 5) + BitMap([1]).serialize(),
        struct.pack("<iqI", 1681511377, 1, 0) + b"\x00" * 7,
    ],
)
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(EngineNeededError):
        decode(data)


def test_the_protocol_s_examples_are_read(tmp_path: Path) -> None:
    """From PROTOCOL.md: an inline vector of six rows, and the path that belongs to an encoded uuid."""
    inline = Descriptor(
        storage="i",
        location="^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        offset=None,
        size=44,
        cardinality=6,
    )
    assert list(vectors.read(inline, Storage(str(tmp_path)), str(tmp_path))) == [3, 4, 7, 11, 18, 29]
    assert from_z85("^-aqEH.-t@S}K{vb[*k^").hex() == "d2c639aa8816431aaaf6d3fe2512ff61"
    assert z85(bytes.fromhex("d2c639aa8816431aaaf6d3fe2512ff61")) == "^-aqEH.-t@S}K{vb[*k^"


@given(st.lists(ROWS.filter(bool), min_size=1, max_size=5))
def test_a_file_of_vectors_is_read_by_its_descriptors(
    tmp_path_factory: pytest.TempPathFactory, several: list[set[int]]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    file = VectorFile()
    descriptors = [file.add(BitMap(rows)) for rows in several]
    (folder / file.name).write_bytes(file.data)
    storage = Storage(str(folder.parent))
    for rows, descriptor in zip(several, descriptors, strict=True):
        again = Descriptor.of(descriptor.to_json())
        assert again == descriptor
        assert vectors.read(again, storage, str(folder)) == BitMap(rows)
        absolute = Descriptor(
            storage="p",
            location=(folder / file.name).as_uri(),
            offset=descriptor.offset,
            size=descriptor.size,
            cardinality=descriptor.cardinality,
        )
        assert vectors.read(absolute, storage, str(folder)) == BitMap(rows)


@pytest.mark.parametrize("where", [0, 5, 30, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, where: int) -> None:
    file = VectorFile()
    descriptor = file.add(BitMap(range(0, 1000, 7)))
    data = bytearray(file.data)
    data[where if where < 0 else present(descriptor.offset) + where] ^= 1
    (tmp_path / file.name).write_bytes(data)
    with pytest.raises(EngineNeededError):
        vectors.read(descriptor, Storage(str(tmp_path.parent)), str(tmp_path))


def test_a_missing_file_or_a_wrong_count_is_refused(tmp_path: Path) -> None:
    file = VectorFile()
    descriptor = file.add(BitMap([1, 2]))
    storage = Storage(str(tmp_path.parent))
    with pytest.raises(EngineNeededError, match="missing"):
        vectors.read(descriptor, storage, str(tmp_path))
    (tmp_path / file.name).write_bytes(file.data)
    wrong = Descriptor.of({**descriptor.to_json(), "cardinality": 3})
    with pytest.raises(EngineNeededError, match="2 rows, the log says 3"):
        vectors.read(wrong, storage, str(tmp_path))


def test_crc_and_length_stand_big_endian_around_the_vector() -> None:
    file = VectorFile()
    file.add(BitMap([1]))
    descriptor = file.add(BitMap([5, 9]))
    data = file.data
    assert data[0] == 1
    offset = present(descriptor.offset)
    assert struct.unpack_from(">i", data, offset) == (descriptor.size,)
    vector = data[offset + 4 :][: descriptor.size]
    assert struct.unpack_from(">I", data, offset + 4 + descriptor.size) == (zlib.crc32(vector),)
    assert numbers(decode(vector)).tolist() == [5, 9]
    assert bitmap(np.array([9, 5], np.int64)) == BitMap([5, 9])
