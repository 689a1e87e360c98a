"""Versions of change tracking: positions in the log, the visibility of reads, and marks.

Each commit that changed a tracked table gets the next version. What a SNAPSHOT transaction sees is a version, too: everything up to it, and
nothing above it. So what a read saw is known exactly, without a wait.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from replicator.model.errors import CorruptStreamError
from replicator.model.offset import Offset
from replicator.plugins.source import Seen, Visibility

_DIGITS: Final = 19
"""The number of digits of the largest bigint."""


def spelled(version: int) -> str:
    """Spell a version so that texts are in its order: the id of the transaction that a round ends at."""
    return f"{version:0{_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class VersionPosition:
    """Every change up to and including `version` is durable, of all tables."""

    version: int

    @classmethod
    def of(cls, offset: Offset) -> Self:
        """Read an offset of ours.

        Raises:
            CorruptStreamError: It is not one of ours.
        """
        version = offset.value.get("version")
        if not isinstance(version, int):
            raise CorruptStreamError(
                f"{offset} is not an offset of a SQL Server source with change tracking.", code="corrupt_offset"
            )
        return cls(version)

    @property
    def offset(self) -> Offset:
        """The position as an offset."""
        return Offset.of({"version": self.version})


@dataclass(frozen=True, slots=True)
class VersionVisibility(Visibility):
    """A read that saw every version up to `version`, and none above it.

    A round that ends above it is not seen, although its rows may be: what it delivered of them is newer.
    """

    version: int

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        return _classified(transaction_ids, self.version, Seen.UNSEEN)


@dataclass(frozen=True, slots=True)
class StateVisibility(Visibility):
    """The visibility of a state that is verified: it saw every version up to `version`.

    Of a round that ends above it, the rows that were changed up to it are in the state, and the others are not: it is unknown, so a row of
    such a round that differs is compared again.
    """

    version: int

    @override
    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        return _classified(transaction_ids, self.version, Seen.UNKNOWN)


def _classified(transaction_ids: pa.StringArray, version: int, above: Seen) -> pa.Int8Array:
    """Classify rounds: those that end at a version or below it are seen. A transaction that is no round has a number after the version."""
    versions = pc.utf8_slice_codeunits(transaction_ids, 0, _DIGITS)
    is_seen = pc.less_equal(versions, pa.scalar(spelled(version)))
    return pc.if_else(is_seen, pa.scalar(int(Seen.SEEN), pa.int8()), pa.scalar(int(above), pa.int8()))


class VersionMarks:
    """Marks: versions that the log's reader has to reach. Thread-safe; shared by all that one source object does."""

    def __init__(self, prefix: str) -> None:
        """Begin without marks. `prefix`: differs from that of every other object."""
        self._prefix = prefix
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: list[tuple[str, int]] = []

    def add(self, version: int) -> str:
        """Return a new mark at a version."""
        with self._lock:
            self._count += 1
            text = f"{self._prefix}:{self._count}"
            self._waiting.append((text, version))
            return text

    def reached(self, version: int) -> list[str]:
        """Take the marks up to a version, in the order in which they were made."""
        with self._lock:
            taken = [text for text, at in self._waiting if at <= version]
            self._waiting = [(text, at) for text, at in self._waiting if at > version]
            return taken
