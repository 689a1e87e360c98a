"""Cleans the output of commands for a terminal, no matter who wrote it; the only module that does.

Every command prints names of tables and words of servers, and an escape sequence in one could rewrite the screen, set a title, or hide
what follows. Everything written to the standard streams goes through `CleanStream`; rich's output is cleaned before rich adds its own
colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from replicator.model.terminal import cleaned

_LABEL: Final = re.compile(r"^(\x1b\[3[134]m(?:error|check|blocking|warning|notice)\x1b\[0m)", re.MULTILINE)
"""Label before a message as `click.style` colours it: one of these words at the beginning of a line, in a readable colour."""


class CleanStream:
    """A text stream that cleans what is written to it.

    Attributes:
        rich_proxied_file: The stream itself, under the name by which rich looks for it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a cleaned text."""
        if not isinstance(text, str):
            raise TypeError("a stream of text takes no bytes")
        parts = _LABEL.split(text)
        # Every second one is a label.
        return self.rich_proxied_file.write("".join(part if at % 2 else cleaned(part) for at, part in enumerate(parts)))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream, except `buffer`, which would bypass the cleaning."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """Clean everything written to the standard streams inside the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(sys.stdout), CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
