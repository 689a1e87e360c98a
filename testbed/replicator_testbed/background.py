"""Work that continues while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run it in a thread during the block, then set the event, wait for its end, and raise what it raised."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, stop)
        try:
            yield
        finally:
            stop.set()
        done.result()
