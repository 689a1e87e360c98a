"""Hashes of rows that have floats. The server sends the row's text in pieces, and the floats in between as they are.

The server converts a float to 17 digits or fewer, and promises nothing about the shortest ones that read back as the same value, which the
canonical form has. So those are found here, of the eight bytes that the driver was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from replicator.plugins.kit.canonical import value_text
from replicator_source_sqlserver.connecting.connection import Row
from replicator_source_sqlserver.names import quoted
from replicator_source_sqlserver.types import ColumnSpec
from replicator_source_sqlserver.verification.canonical import (
    DIGEST_BYTES,
    column_text,
    is_float,
    joined_text,
    text_bytes,
)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The selected parts of a row from which its text can be put together: each a piece of the text, or a float."""

    selected: Sequence[str]

    @classmethod
    def of(cls, columns: Sequence[tuple[str, ColumnSpec]]) -> Pieces:
        """Make the pieces of the columns that are compared, in the order of the row text."""
        found, block = list[str](), list[str]()
        for name, spec in columns:
            if not is_float(spec):
                block.append(column_text(name, spec, is_key=False))
                continue
            if block:
                found.append(text_bytes(joined_text(block)))
            found.append(quoted(name))
            block = []
        return cls([*found, *([text_bytes(joined_text(block))] if block else [])])


def hash_of(row: Row) -> bytes:
    """Return the first bytes of the digest of a row's text, from its pieces."""
    text = b"".join(bytes(piece) if isinstance(piece, (bytes, bytearray)) else _float(piece) for piece in row)
    return hashlib.sha256(text).digest()[:DIGEST_BYTES]


def float_text(value: float | None) -> str | None:
    """Return the canonical form of a float; a `real` is a `float`, too."""
    return value_text(None if value is None else float(value), pa.float64(), is_key=False)


def _float(value: float | None) -> bytes:
    return f"{float_text(value) or ''},".encode()
