"""Waiting for something to become true, with a bound, in tests that drive other processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = float(os.environ.get("REPLICATOR_TEST_PATIENCE", "1"))
"""Factor by which tests wait longer than usual, for machines that are busy. No test passes by it that would not pass without."""

_PAUSE = threading.Event()


def wait_until(
    look: Callable[[], T | None], what: str | Callable[[], str], *, timeout_s: float = 120.0, every_s: float = 0.2
) -> T:
    """Call `look` until it returns something true, and return that.

    `what` ends the message of the failure; a function is called then, to describe the state.

    Raises:
        AssertionError: Nothing true within `timeout_s` times `PATIENCE`.
    """
    deadline = time.monotonic() + timeout_s * PATIENCE
    while True:
        if answer := look():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"waited {timeout_s * PATIENCE:.0f} s in vain until {what if isinstance(what, str) else what()}"
            )
        _PAUSE.wait(every_s)
