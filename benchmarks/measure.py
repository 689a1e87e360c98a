"""Samples of wall and processor time, taken in turns so that a noisy machine is as unkind to one side as to the other."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: how much it did, how long it took, and the processor time (user and system) of this process meanwhile."""

    amount: int
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The median of several runs of one side."""

    samples: Sequence[Sample]

    @property
    def per_second(self) -> float:
        """Median amount per second of wall time."""
        return statistics.median(s.amount / s.wall_s for s in self.samples)

    @property
    def per_cpu_second(self) -> float:
        """Median amount per second of this process's processor time."""
        return statistics.median(s.amount / s.cpu_s for s in self.samples)


class Clock:
    """Measures wall and processor time from the last `begin`. Threads of this process count, child processes and the server do not."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start again: what was done up to here was preparation."""
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def end(self, amount: int) -> Sample:
        """The time since."""
        return Sample(amount=amount, wall_s=time.perf_counter() - self._wall, cpu_s=time.process_time() - self._cpu)


Work = Callable[[Clock], int]
"""What is timed; may start the clock again once it is ready, and returns how much it did."""

Side = Callable[[], AbstractContextManager[Work]]
"""One side of a comparison: prepares outside the clock, gives the work, and cleans up outside it too."""


def timed(work: Work) -> Sample:
    """Run `work` once."""
    gc.collect()
    clock = Clock()
    return clock.end(work(clock))


def in_turns(sides: Mapping[str, Side], repetitions: int) -> Mapping[str, Rate]:
    """Run the sides one after the other, over and over; the order turns with every repetition."""
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    names = list(sides)
    for repetition in range(repetitions):
        for name in names if repetition % 2 == 0 else reversed(names):
            with sides[name]() as work:
                sample = timed(work)
            samples[name].append(sample)
            say(f"  {name}: {sample.amount:,} in {sample.wall_s:.2f} s ({sample.cpu_s:.2f} s of processor time)")
    return {name: Rate(samples=taken) for name, taken in samples.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak_rss_mib(pid: int) -> float | None:
    """The most memory that the process has had resident, from the kernel's own high-water mark; None once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


def rss_mib(pid: int) -> float | None:
    """What the process has resident now; None once it has ended."""
    try:
        return float(psutil.Process(pid).memory_info().rss) / _MIB
    except psutil.NoSuchProcess:
        return None


def shared_once_mib(pids: Iterable[int]) -> float:
    """What processes have resident together, pages that they share counted once; a process that has ended counts nothing."""
    kib = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


BUSY_CORES_MAX: Final = 0.5
"""Others may use so much: then figures count as they are, and otherwise only those side by side of one run."""


def busy_cores() -> float:
    """How many cores others use right now, looked at for two seconds in which a benchmark does nothing."""
    return psutil.cpu_percent(interval=2.0) / 100 * (psutil.cpu_count() or 1)


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    return {
        "cores": f"{psutil.cpu_count()} x {model}",
        "memory": f"{psutil.virtual_memory().total / _MIB / 1024:.0f} GiB",
        "python": sys.version.split()[0],
    }


def say(text: str) -> None:
    """A line of progress; the report alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)
