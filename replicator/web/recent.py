"""Cache of answers for a moment, so that many readers cost as much as one."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

KEPT_S: Final = 1.0
_KEYS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept answer. `tag`: its ETag."""

    body: bytes
    tag: str

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Create it with the ETag of its bytes."""
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made_at: float = -math.inf
    kept: Kept | None = None


class Recent:
    """Recent answers, by key. Of several callers that want the same one, one creates it and the others wait. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def get(self, key: str, make: Callable[[], bytes]) -> Kept:
        """Return the answer, at most `KEPT_S` old. Errors of `make` are not kept."""
        entry = self._entry(key)
        with entry.lock:
            if entry.kept is None or self._clock() - entry.made_at >= KEPT_S:
                began = self._clock()
                entry.kept = Kept.of(make())
                entry.made_at = began
            return entry.kept

    def peek(self, key: str) -> Kept | None:
        """Return the answer if there is one at most `KEPT_S` old; does not wait for one that is being created."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None or self._clock() - entry.made_at >= KEPT_S else entry.kept

    def forget(self) -> None:
        """Drop all kept answers."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: str) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > _KEYS_MAX:
                self._entries.popitem(last=False)
            return entry
