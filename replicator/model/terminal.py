"""Removes characters that a terminal would act on from texts of others: names, messages of servers, settings."""

from __future__ import annotations

import re
from typing import Final

# Control characters except line breaks and tabs, separators of lines, and those that turn the direction of the following text.
_ACTED_ON: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def cleaned(text: str) -> str:
    """Return the text with a question mark for each character that a terminal would act on."""
    return _ACTED_ON.sub("?", text)


def in_one_line(text: str) -> str:
    """The text with a question mark for line breaks and tabs, too: a name that has one makes no line of its own."""
    return cleaned(text).replace("\n", "?").replace("\t", "?")


def continued(text: str) -> str:
    """The text, every line but the first indented: what spans lines, such as a statement, looks like no other line."""
    return text.replace("\n", "\n      ")
