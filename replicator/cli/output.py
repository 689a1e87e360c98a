"""Makes what commands print safe for a terminal, no matter who wrote it: the one module that does.

Names of tables and words of servers are printed by every command, and an escape sequence in one of them could rewrite the screen, set a
title, or hide what follows. Everything that is written to the standard streams goes through `CleanStream`; what rich renders is cleaned
before rich adds its own colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from replicator.model.terminal import cleaned

_LABEL: Final = re.compile(r"^(\x1b\[3[134]m(?:error|check|blocking|warning|notice)\x1b\[0m)", re.MULTILINE)
"""How `click.style` colours the word before a message: one of these words at the beginning of a line, in a colour that can be read."""


class CleanStream:
    """A text stream that hands on what it is given, cleaned.

    Attributes:
        rich_proxied_file: The stream itself. By this name rich looks for it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write."""
        if not isinstance(text, str):
            raise TypeError("a stream of text takes no bytes")
        parts = _LABEL.split(text)
        # Every second one is a label.
        return self.rich_proxied_file.write("".join(part if at % 2 else cleaned(part) for at, part in enumerate(parts)))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own, but the way around it."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """Clean what is written to the standard streams inside the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(sys.stdout), CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
