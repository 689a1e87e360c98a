"""SIGTERM and Ctrl-C before anything has begun: set in the first lines of a program, before it loads anything else."""

import os
import signal
from types import FrameType


def end_at_once_on_signals() -> None:
    """Have the process end with status 0, wherever it is: until a handler of its own takes over, nothing runs that had to be ended first.

    What is being stored is one transaction of the state store, which an end leaves done or undone.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(0)
