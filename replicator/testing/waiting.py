"""Waiting for something to become true, with a bound, in tests that drive other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = threading.Event()


def wait_until(look: Callable[[], T | None], what: str, *, timeout_s: float = 120.0, every_s: float = 0.2) -> T:
    """Call `look` until it returns something true, and return that.

    Raises:
        AssertionError: Not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := look():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain until {what}")
        _PAUSE.wait(every_s)
