"""Deletion vectors: the deleted rows of a data file, as Delta's protocol stores them.

Their bytes are those of `kit.lake.vectors`. A vector stands in a file (`deletion_vector_<uuid>.bin`: a byte with the format's version,
then each vector in its frame), or in the log itself, spelled in Z85.

Source: Delta's PROTOCOL.md, "Deletion Vectors".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from pyroaring import BitMap

from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.kit.lake.vectors import FRAME_BYTES, decode, encode, framed, unframed
from replicator_target_delta.storage import Storage, absolute

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
        self._data += framed(vector)
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
    return (vector.offset or 0) + vector.size + FRAME_BYTES


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
            return unframed(bytes(file.read(vector.size + FRAME_BYTES)), vector.size)
    except FileNotFoundError as error:
        raise EngineNeededError("a deletion vector is missing or cut off") from error
