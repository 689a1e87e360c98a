"""Where the programs of MariaDB and MySQL are, and how they are called."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replicator_testbed.scratch_servers import ServerProgramsNotFoundError

ROOT_VARIABLE = "REPLICATOR_MYSQL_ROOT"
"""Names the folder that a MySQL was unpacked into."""
MARIADB_VARIABLE = "REPLICATOR_TEST_MARIADB"
"""Names the folder that another MariaDB than the machine's own was unpacked into."""
_PROGRAM_FOLDERS = ("usr/sbin", "bin")
_SHARE_FOLDERS = ("usr/share/mysql", "usr/share/mariadb", "share")
_PLUGIN_FOLDERS = ("usr/lib/mysql/plugin", "usr/lib/x86_64-linux-gnu/mariadb19/plugin", "lib/plugin")
_LOADER = "ld-linux-x86-64.so.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A server's program: how it is called, and the folder that it was unpacked into; None: it is the machine's own."""

    command: Sequence[str]
    root: Path | None = None

    def settings(self) -> dict[str, str]:
        """Where it finds its files."""
        if self.root is None:
            return {}
        share, plugins = self._share(), _existing(self.root, _PLUGIN_FOLDERS)
        return {
            "basedir": str(self.root / "usr" if (self.root / "usr").exists() else self.root),
            "lc-messages-dir": str(share),
            "character-sets-dir": str(share / "charsets"),
            **({"plugin-dir": str(plugins)} if plugins else {}),
        }

    def system_tables(self) -> str:
        """What makes MariaDB's system tables, as its own script for that does."""
        share = self._share()
        names = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
        found = [p for n in names for p in (share / f"mysql_{n}", share / f"mariadb_{n}") if p.exists()]
        texts = [path.read_text() for path in (*found, share / "maria_add_gis_sp_bootstrap.sql")]
        return "\n".join(("SET @auth_root_socket=NULL, @skip_auth_anonymous=1;", "USE mysql;", *texts))

    def version(self) -> tuple[int, ...]:
        """As the program names it, such as `(8, 0, 15)`."""
        result = subprocess.run([*self.command, "--version"], capture_output=True, text=True, check=True, timeout=60)
        match = re.search(r"Ver (?:\d+\.\d+ Distrib )?(\d+)\.(\d+)\.(\d+)", result.stdout)
        assert match is not None
        return tuple(map(int, match.groups()))

    def _share(self) -> Path:
        assert self.root is not None
        share = _existing(self.root, [f"{folder}/charsets" for folder in _SHARE_FOLDERS])
        assert share is not None, f"{self.root} holds no server"
        return share.parent


def mysql_root() -> Path:
    """Where `tools/install_mysql.sh` unpacks MySQL."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(ROOT_VARIABLE) or cache / "replicator" / "mysql")


def mariadb_programs() -> Programs:
    """The machine's own MariaDB, or the one that MARIADB_VARIABLE names.

    Raises:
        ServerProgramsNotFoundError: There is none.
    """
    if named := os.environ.get(MARIADB_VARIABLE):
        return _unpacked(Path(named), "mariadbd")
    program = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/libexec")
    if program is None or shutil.which("mysql_install_db") is None:
        raise ServerProgramsNotFoundError("No MariaDB server programs are installed; `make setup` installs them.")
    return Programs(command=[program])


def mysql_programs() -> Programs:
    """The MySQL that was unpacked.

    Raises:
        ServerProgramsNotFoundError: There is none.
    """
    if not has_mysql():
        raise ServerProgramsNotFoundError(f"No MySQL is unpacked in {mysql_root()}; tools/install_mysql.sh does it.")
    return _unpacked(mysql_root(), "mysqld")


def _unpacked(root: Path, name: str) -> Programs:
    """A program that runs through the loader and the libraries that were unpacked with it, if there are any."""
    program = _existing(root, [f"{folder}/{name}" for folder in _PROGRAM_FOLDERS])
    if program is None:
        raise ServerProgramsNotFoundError(f"{root} holds no {name}.")
    folders = [
        root / folder for folder in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu") if (root / folder).exists()
    ]
    loader = next((folder / _LOADER for folder in folders if (folder / _LOADER).exists()), None)
    through = [str(loader), "--library-path", ":".join(map(str, folders))] if loader else []
    return Programs(command=[*through, str(program)], root=root)


def _existing(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).exists()), None)


def has_mysql() -> bool:
    """Whether `MysqlServer.mysql` can work."""
    return _existing(mysql_root(), [f"{folder}/mysqld" for folder in _PROGRAM_FOLDERS]) is not None


def has_mariadb() -> bool:
    """Whether `MysqlServer.mariadb` can work."""
    with contextlib.suppress(ServerProgramsNotFoundError):
        return bool(mariadb_programs())
    return False
