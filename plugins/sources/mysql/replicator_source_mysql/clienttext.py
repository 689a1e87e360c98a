"""Statements' bytes to text, in which exactly those bytes are quotes and backslashes that the server took for them."""

from __future__ import annotations

import re
from typing import Final

from replicator_source_mysql.binlog.charsets import UTF8, charset_of, label
from replicator_source_mysql.flavors import Flavor

DEFAULT_CHARSET: Final = "utf8mb4"

# Characters of several bytes whose last ones may look like ASCII, and Python's codec.
_PAIRS: Final = {
    "big5": (re.compile(rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]|.", re.DOTALL), "big5"),
    "cp932": (re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|.", re.DOTALL), "cp932"),
    "gb18030": (
        re.compile(
            rb"[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]|[\x81-\xfe][\x40-\x7e\x80-\xfe]|.",
            re.DOTALL,
        ),
        "gb18030",
    ),
    "gbk": (re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|.", re.DOTALL), "gbk"),
    "sjis": (re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|.", re.DOTALL), "shift_jis"),
}
_REPLACEMENT: Final = "\ufffd"


def charset_name(collation: int | None, flavor: Flavor) -> str:
    """The client's character set; an unknown collation is taken for UTF-8: no collations of other sets are added any more."""
    found = charset_of(collation, flavor) if collation is not None else None
    return DEFAULT_CHARSET if found is None or found in UTF8 else found


def decoded(raw: bytes, charset: str) -> str:
    """The text; invalid bytes become U+FFFD."""
    if raw.isascii():
        return raw.decode("ascii")
    if charset in _PAIRS:
        pattern, codec = _PAIRS[charset]
        return "".join(_character(found[0], codec) for found in pattern.finditer(raw))
    if charset not in UTF8:
        try:
            return label(raw, charset)
        except (KeyError, ValueError):
            pass
    return raw.decode("utf-8", "replace")


def _character(raw: bytes, codec: str) -> str:
    text = raw.decode(codec, "replace")
    return text if len(text) == 1 else _REPLACEMENT
