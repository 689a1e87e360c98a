"""Waiting for something to become true, with a bound, in tests that drive other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = threading.Event()


def wait_until(
    look: Callable[[], T | None], what: str | Callable[[], str], *, timeout_s: float = 120.0, every_s: float = 0.2
) -> T:
    """Call `look` until it returns something true, and return that.

    `what` ends the message of the failure; a function is called then, to tell how things stand.

    Raises:
        AssertionError: Not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := look():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain until {what if isinstance(what, str) else what()}")
        _PAUSE.wait(every_s)
