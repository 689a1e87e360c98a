"""Positions in the log of SQL Server: ten bytes, ordered as they stand, and spelled in hexadecimal."""

from __future__ import annotations

import re
from typing import Final

SIZE: Final = 10
ZERO: Final = bytes(SIZE)
"""A position below every other. SQL Server answers it, or NULL, where it has none."""

_TEXT: Final = re.compile(r"0[xX]([0-9A-Fa-f]{20})")


def lsn_to_text(lsn: bytes) -> str:
    """Spell a position as SQL Server does: `0x0000002C000001A80003`, in capitals."""
    if len(lsn) != SIZE:
        raise ValueError(f"a position has {SIZE} bytes, not {len(lsn)}")
    return "0x" + lsn.hex().upper()


def lsn_from_text(text: str) -> bytes:
    """Read what `lsn_to_text` or SQL Server wrote.

    Raises:
        ValueError: `text` is not a position.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a position in the log")
    return bytes.fromhex(match[1])


def next_lsn(lsn: bytes) -> bytes:
    """Return the lowest position above another one, as `sys.fn_cdc_increment_lsn` has it.

    Raises:
        OverflowError: There is none.
    """
    return (int.from_bytes(lsn, "big") + 1).to_bytes(SIZE, "big")


def previous_lsn(lsn: bytes) -> bytes:
    """Return the highest position below another one, as `sys.fn_cdc_decrement_lsn` has it.

    Raises:
        OverflowError: There is none.
    """
    return (int.from_bytes(lsn, "big") - 1).to_bytes(SIZE, "big", signed=False)
