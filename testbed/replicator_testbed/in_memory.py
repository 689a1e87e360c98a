"""A pytest plugin that keeps the temporary files of tests in memory, where there is room.

State stores, journals, databases and Delta's logs are many small files that are forced to disk: where they are on one, they cost
nearly half of the processor time of the tests that make them. `TMPDIR=/var/tmp` keeps them on a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import psutil
import pytest

from replicator_testbed.scratch_servers import folder_in_memory

_PREFIX: Final = "replicator-tests-"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Say where temporary files go, to this process and to all that it starts: xdist's, servers, the product."""
    memory = folder_in_memory()  # of xdist's processes none: they were told
    if memory is None:
        return
    remove_forgotten(memory)
    # What processes that tests kill leave ends with the run. pytest's own folders stay: those of failed tests are looked at.
    folder = memory / f"{_PREFIX}{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)  # an earlier process that was killed may have had this one's number
    folder.mkdir()
    folder.chmod(0o1777)  # servers have accounts of their own
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # it may have been asked for before
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def remove_forgotten(memory: Path) -> None:
    """Remove the folders of runs that were killed."""
    for folder in memory.glob(f"{_PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(_PREFIX))):
            shutil.rmtree(folder, ignore_errors=True)
