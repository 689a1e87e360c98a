"""Which processes of a worker run now. Any of them may end between two looks."""

from __future__ import annotations

import random
import subprocess
from contextlib import suppress

import psutil


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
