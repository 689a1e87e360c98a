"""Answers that are kept for a moment, so that many readers cost as much as one."""

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
    """An answer. `tag`: its ETag."""

    body: bytes
    tag: str

    @classmethod
    def of(cls, body: bytes) -> Self:
        """With the ETag of its bytes."""
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made_at: float = -math.inf
    kept: Kept | None = None


class Recent:
    """The last answers, by key. Of several callers that want the same one, one makes it and the others wait. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def get(self, key: str, make: Callable[[], bytes]) -> Kept:
        """The answer, at most `KEPT_S` old. What `make` raises is not kept."""
        entry = self._entry(key)
        with entry.lock:
            if entry.kept is None or self._clock() - entry.made_at >= KEPT_S:
                began = self._clock()
                entry.kept = Kept.of(make())
                entry.made_at = began
            return entry.kept

    def peek(self, key: str) -> Kept | None:
        """The answer, if there is one that is at most `KEPT_S` old; waits for nobody who makes it."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None or self._clock() - entry.made_at >= KEPT_S else entry.kept

    def forget(self) -> None:
        """Keep none of the answers that were made until now."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: str) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > _KEYS_MAX:
                self._entries.popitem(last=False)
            return entry
