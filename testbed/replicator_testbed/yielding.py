"""Threads that yield at random, so that tests meet orders that a quiet machine never shows: `make test-threads`.

`--yield-at-random SEED` is for a whole run. A test whose threads work next to each other uses `yields_at_random` itself.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

import replicator

_OURS: Final = str(Path(replicator.__file__).parent)
_NEVER: Final = frozenset({"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"})
_SWITCH_S: Final = 1e-5
"""So long one thread runs before another may; the interpreter's default is 5 ms."""


class _Yields:
    """Called at every call and return of a thread; lets others run at some of those of the host."""

    def __init__(self, seed: str, every: int, sleep_max_s: float) -> None:
        self._random = random.Random(seed)
        self._every = every
        self._sleep_max_s = sleep_max_s
        self._next = self._random.randint(1, every)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event not in {"call", "return"}:
            return
        code = frame.f_code
        if not code.co_filename.startswith(_OURS) or code.co_name in _NEVER:
            return
        self._next -= 1
        if self._next <= 0:
            self._next = self._random.randint(1, self._every)
            time.sleep(self._random.choice((0.0, self._random.random() * self._sleep_max_s)))


@contextmanager
def yields_at_random(seed: int, *, every: int = 200, sleep_max_s: float = 0.002) -> Iterator[None]:
    """Let this thread, and those that begin meanwhile, yield within the host's code.

    Args:
        seed: Of when and for how long; the schedule itself remains the operating system's.
        every: A thread yields once in half as many calls and returns, on average.
        sleep_max_s: The longest that it lets others run.
    """
    usual, before, of_threads = sys.getswitchinterval(), sys.getprofile(), threading.getprofile()
    started = 0

    def begin(frame: FrameType, event: str, argument: object) -> None:
        nonlocal started
        started += 1
        yields = _Yields(f"{seed}-{started}", every, sleep_max_s)
        sys.setprofile(yields)
        yields(frame, event, argument)

    sys.setswitchinterval(_SWITCH_S)
    threading.setprofile(begin)
    sys.setprofile(_Yields(f"{seed}-0", every, sleep_max_s))
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(of_threads)
        sys.setswitchinterval(usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be one whose threads yield."""
    parser.addoption("--yield-at-random", type=int, metavar="SEED", help="threads yield at random")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let the threads of each test yield, if the run was asked to."""
    seed = item.config.getoption("--yield-at-random")
    if seed is None:
        return (yield)
    with yields_at_random(seed):
        return (yield)
