"""Deletion vectors: the deleted rows of a data file, as Delta's protocol stores them.

A vector is a RoaringBitmapArray in its portable form: a magic number, the count of 32-bit bitmaps, and each bitmap in
the standard Roaring format after its high 32 bits. All numbers of it are little-endian. It stands in a file
(`deletion_vector_<uuid>.bin`: a byte with the format's version, then per vector its length, its bytes and their CRC-32,
both numbers big-endian), or in the log itself, spelled in Z85.

Source: Delta's PROTOCOL.md, "Deletion Vectors".
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator_target_delta.storage import Storage, absolute

_MAGIC: Final = struct.pack("<i", 1681511377)
_HEAD: Final = struct.Struct("<4sq")
_HIGH: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_FORMAT: Final = b"\x01"
_UUID_CHARS: Final = 20

# Z85 and Python's base 85 differ in their alphabets only.
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_B85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The location of a vector, as the log has it."""

    storage: str
    location: str
    offset: int | None
    size: int
    cardinality: int

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> Descriptor:
        """Read `deletionVector` of an action; KeyError if it is something else."""
        return cls(
            storage=action["storageType"],
            location=action["pathOrInlineDv"],
            offset=action.get("offset"),
            size=action["sizeInBytes"],
            cardinality=action["cardinality"],
        )

    @property
    def id(self) -> tuple[str, str, int | None]:
        """The identity of a vector, by the protocol."""
        return (self.storage, self.location, self.offset)

    def to_json(self) -> dict[str, Any]:
        """The JSON form in an action."""
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.location,
            **offset,
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        }


def bitmap(rows: npt.NDArray[Any]) -> BitMap:
    """A set of row numbers."""
    return BitMap(np.ascontiguousarray(rows, dtype=np.uint32))


def numbers(rows: BitMap) -> npt.NDArray[np.uint32]:
    """The row numbers of a set, ascending."""
    return np.frombuffer(rows.to_array(), dtype=np.uint32)


def encode(rows: BitMap) -> bytes:
    """A vector's bytes."""
    compact = rows.copy()
    compact.run_optimize()
    return _HEAD.pack(_MAGIC, 1) + _HIGH.pack(0) + bytes(compact.serialize())


def decode(data: bytes) -> BitMap:
    """Read a vector's bytes.

    Raises:
        EngineNeededError: They are in another form, or of a file of more than 2³² rows.
    """
    if len(data) < _HEAD.size:
        raise EngineNeededError("a deletion vector is cut off")
    magic, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise EngineNeededError("a deletion vector has an unknown form")
    if count == 0 and len(data) == _HEAD.size:
        return BitMap()
    body = _HEAD.size + _HIGH.size
    if count != 1 or len(data) < body or _HIGH.unpack_from(data, _HEAD.size)[0] != 0:
        raise EngineNeededError("a deletion vector is of a file of more than 2^32 rows")
    try:
        return BitMap.deserialize(data[body:])
    except ValueError as error:
        raise EngineNeededError("a deletion vector cannot be read") from error


def read(vector: Descriptor, storage: Storage, table: str) -> BitMap:
    """Read a vector of the table at the path `table`.

    Raises:
        EngineNeededError: It differs from the log, or is outside of the target's path.
    """
    rows = decode(_bytes_of(vector, storage, table))
    if len(rows) != vector.cardinality:
        raise EngineNeededError(f"a deletion vector has {len(rows)} rows, the log says {vector.cardinality}")
    return rows


class VectorFile:
    """The new vectors of one commit, in one file."""

    def __init__(self) -> None:
        self._uuid = uuid4()
        self._data = bytearray(_FORMAT)

    @property
    def name(self) -> str:
        """The file's name in the table's folder."""
        return f"deletion_vector_{self._uuid}.bin"

    @property
    def data(self) -> bytes:
        """The file's bytes; empty if it has no vector."""
        return bytes(self._data) if len(self._data) > len(_FORMAT) else b""

    def add(self, rows: BitMap) -> Descriptor:
        """Add a vector; return its location."""
        vector, offset = encode(rows), len(self._data)
        self._data += _LENGTH.pack(len(vector)) + vector + _CRC.pack(zlib.crc32(vector))
        return Descriptor(
            storage="u", location=z85(self._uuid.bytes), offset=offset, size=len(vector), cardinality=len(rows)
        )


def name_of(vector: Descriptor) -> str:
    """The vector's file, below the table's path.

    Raises:
        EngineNeededError: It is somewhere else.
    """
    if vector.storage != "u":
        raise EngineNeededError("a deletion vector stands outside of its table")
    prefix, encoded = vector.location[:-_UUID_CHARS], vector.location[-_UUID_CHARS:]
    name = f"deletion_vector_{UUID(bytes=from_z85(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def end_of(vector: Descriptor) -> int:
    """Bytes that the vector's file has at least."""
    return (vector.offset or 0) + _LENGTH.size + vector.size + _CRC.size


def z85(data: bytes) -> str:
    """Spell bytes, a multiple of four of them."""
    return base64.b85encode(data).translate(_TO_Z85).decode()


def from_z85(text: str) -> bytes:
    """Read what `z85` spelled.

    Raises:
        EngineNeededError: It is something else.
    """
    try:
        return base64.b85decode(text.encode().translate(_FROM_Z85))
    except ValueError as error:
        raise EngineNeededError("a deletion vector's location cannot be read") from error


def _bytes_of(vector: Descriptor, storage: Storage, table: str) -> bytes:
    match vector.storage:
        case "i":
            return from_z85(vector.location)[: vector.size]
        case "u":
            path = f"{table}/{name_of(vector)}"
        case "p":
            path = absolute(re.sub(r"^file:/(?!/)", "file:///", vector.location))
        case _:
            raise EngineNeededError("a deletion vector is stored in an unknown way")
    if not path.startswith(f"{storage.root}/"):
        raise EngineNeededError("a deletion vector stands outside of the target's path")
    try:
        with storage.open_input(path) as file:
            file.seek(vector.offset or 0)
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            data, (crc,) = bytes(file.read(vector.size)), _CRC.unpack(file.read(_CRC.size))
    except (FileNotFoundError, struct.error) as error:
        raise EngineNeededError("a deletion vector is missing or cut off") from error
    if length != vector.size or len(data) != length or crc != zlib.crc32(data):
        raise EngineNeededError("a deletion vector is damaged")
    return data
