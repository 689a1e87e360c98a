"""Which processes of a worker run now. Any of them may end between two looks."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from replicator_testing.waiting import wait_until


def name_of(process: psutil.Process) -> str | None:
    """The name of a process that runs; None if it has ended, or is a zombie."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return None


def workers_of(supervisor: subprocess.Popen[str]) -> list[psutil.Process]:
    """The supervisor, then capture and apply, without Spark's JVM."""
    parent = psutil.Process(supervisor.pid)
    return [parent, *(child for child in parent.children() if "python" in (name_of(child) or ""))]


def has_open(process: psutil.Process, suffix: str) -> bool:
    """Whether a process of ours has a file of such a name open."""
    try:
        return any(file.path.endswith(suffix) for file in process.open_files())
    except psutil.NoSuchProcess:
        return False


def put_to_sleep(processes: Sequence[psutil.Process]) -> None:
    """Stop processes, and wait until they stand still.

    A thread that the signal finds in the kernel finishes that call first: on a busy machine it may get a lock long after the signal.
    """
    for process in processes:
        process.suspend()
    wait_until(lambda: all(map(_stands_still, processes)), "every thread has stopped", every_s=0.02)


def wake(processes: Sequence[psutil.Process]) -> None:
    """Let them continue, children first: a parent that finds them stopped might take them for hung."""
    for process in reversed(processes):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _stands_still(process: psutil.Process) -> bool:
    """Of all its threads; psutil knows the state of the first one only."""
    try:
        stats = [stat.read_text(errors="replace") for stat in Path(f"/proc/{process.pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread has ended between two looks
    # The state is the first field after the name, which may itself have brackets.
    return all(stat.rpartition(") ")[2][:1] in "TtZX" for stat in stats)


def kill_one(supervisor: subprocess.Popen[str], draw: random.Random) -> None:
    """Kill one of `workers_of`; it has ended, if it was the supervisor."""
    victim = draw.choice(workers_of(supervisor))
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    if victim.pid == supervisor.pid:
        supervisor.wait()


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process and all its descendants, and wait until they have ended."""
    victims = [psutil.Process(process.pid)]
    victims += victims[0].children(recursive=True)
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait()
    psutil.wait_procs(victims[1:])
