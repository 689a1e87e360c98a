"""Positions in the write-ahead log and transaction ids, as numbers and as text."""

from __future__ import annotations

import re
from typing import Final

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_to_text(lsn: int) -> str:
    """Spell a position as PostgreSQL does: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_from_text(text: str) -> int:
    """Read what `lsn_to_text` or PostgreSQL's `pg_lsn` wrote.

    Raises:
        ValueError: `text` is not a position.
    """
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a position in the write-ahead log")
    return int(match[1], 16) << 32 | int(match[2], 16)


def widen_xid(xid: int, near: int) -> int:
    """Give a 32-bit transaction id its epoch: the 64-bit id with these low bits that lies nearest to `near`.

    Ids that are alive at the same time lie less than 2^31 apart, so any recent 64-bit id serves as `near`.
    """
    distance = (xid - near) & 0xFFFFFFFF
    return max(near + (distance if distance < 1 << 31 else distance - (1 << 32)), xid)
