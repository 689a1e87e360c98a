"""The database file: opened for one transaction and closed after it, because DuckDB lets no other process in meanwhile.

Within this process one transaction at a time has the file. Between processes DuckDB's own lock decides; it is waited for.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from replicator.model.errors import ConfigError, SchemaConflictError, TargetUnavailableError
from replicator.model.schema import TableId

CATALOG: Final = "replicated"
"""The name under which the file is attached, whatever it is called."""
LOCK_WAIT_S: Final = 20.0
_POLL_S: Final = 0.02
_MEMORY: Final = "512MB"
_THREADS_MAX: Final = 2
_STORAGE: Final = (
    ("No space left on device", "target_full", "Free space on the disk of the file."),
    ("Permission denied", "target_not_writable", "Give the process write access to the file and its folder."),
    ("Read-only file system", "target_not_writable", "Give the process write access to the file and its folder."),
    ("No such file or directory", "target_not_writable", "Make the folder of the file, or choose another target.path."),
)
# DuckDB's lock belongs to the process: a second connection of the same one would be let in.
_TURNS: Final[defaultdict[str, threading.RLock]] = defaultdict(threading.RLock)
_TURNS_LOCK: Final = threading.Lock()


class Database:
    """The file, as one target object uses it."""

    def __init__(self, file: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Open nothing yet.

        Args:
            file: The database file.
            wait_s: How long another process's lock on the file is waited for.
        """
        self.file, self._wait_s = file, wait_s
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def transaction(self, table: TableId | None, *, is_read_only: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the file for one transaction, committed at the end and rolled back by an exception.

        Args:
            table: The table it is for, named by errors that concern only that.
            is_read_only: Nothing is written, and a file that is not there is not made. Other processes that only read are let in.

        Raises:
            TargetUnavailableError: The file is in use, or cannot be written.
            SchemaConflictError: DuckDB refuses a statement.
            ConfigError: The file is no database of DuckDB.
        """
        with _turn(self.file):
            connection = self._connection()
            self._attach(connection, is_read_only=is_read_only)
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
                # Writes what is in DuckDB's log into the file, and lets other processes in.
                connection.execute(f"DETACH {CATALOG}")
            except duckdb.Error as error:
                self.close()
                raise translated(error, self.file, table) from error
            except BaseException:
                self.close()
                raise

    def detach(self, name: str) -> None:
        """Let go of another file, which a caller attached in a transaction."""
        with _turn(self.file):
            self._connection().execute(f"DETACH {name}")

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        with _turn(self.file):
            if self._instance is not None:
                self._instance.close()
                self._instance = None
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None

    def _connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB in memory, to which the file is attached for each transaction: starting it costs more than a small transaction."""
        if self._instance is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="replicator-duckdb-")
            config: dict[str, Any] = {
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "memory_limit": _MEMORY,
                "temp_directory": self._scratch.name,
                "threads": min(_THREADS_MAX, os.cpu_count() or 1),
            }
            self._instance = duckdb.connect(":memory:", config=config)
        return self._instance

    def _attach(self, connection: duckdb.DuckDBPyConnection, *, is_read_only: bool) -> None:
        """Attach the file, as soon as no other process has it."""
        path = str(self.file).replace("'", "''")
        options = " (READ_ONLY)" if is_read_only else ""
        until = time.monotonic() + self._wait_s
        while True:
            try:
                connection.execute(f"ATTACH '{path}' AS {CATALOG}{options}")
            except duckdb.Error as error:
                if "Could not set lock on file" in str(error) and time.monotonic() < until:
                    time.sleep(_POLL_S)
                    continue
                raise _not_attached(error, self.file, self._wait_s) from error
            else:
                return


def _not_attached(error: duckdb.Error, file: Path, wait_s: float) -> Exception:
    text = str(error)
    if "Could not set lock on file" in text:
        return TargetUnavailableError(
            f"Another process has had {file} open for {wait_s:g} s.",
            code="target_busy",
            action="Close other programs that have the file open: DuckDB lets no other process in while one writes.",
        )
    if "not a valid DuckDB database file" in text or "version number" in text:
        return ConfigError(
            f"{file} is not a database that this version of DuckDB can open.",
            code="target_occupied",
            action="Move the file away, or choose another target.path.",
        )
    return translated(error, file, None)


def translated(error: duckdb.Error, file: Path, table: TableId | None) -> Exception:
    """Return our error for one of DuckDB's. DuckDB's text may hold values of rows: only its class is passed on."""
    text = str(error)
    for words, code, action in _STORAGE:
        if words in text:
            return TargetUnavailableError(f"{file} cannot be written: {words}.", code=code, action=action)
    if isinstance(error, duckdb.OutOfMemoryException):
        return TargetUnavailableError(
            f"DuckDB has not enough memory or space for temporary files ({_MEMORY}).",
            code="target_full",
            table=None if table is None else str(table),
            action="Free space in the folder for temporary files (TMPDIR).",
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.InternalException):
        return TargetUnavailableError(
            f"DuckDB cannot use {file} ({type(error).__name__}).",
            code="target_unreachable",
            action="Check the file and its disk.",
        )
    if isinstance(error, duckdb.ConstraintException | duckdb.DependencyException) or "main key table" in text:
        return SchemaConflictError(
            f"Something that somebody added to the table, such as a constraint, keeps DuckDB from the change ({type(error).__name__}).",
            code="schema_conflict",
            table=None if table is None else str(table),
            action="Drop it; if it is a foreign key, drop the table that has it. Then recreate the table: "
            "replicator snapshot NAME TABLE --recreate.",
        )
    return SchemaConflictError(
        f"DuckDB refuses the change ({type(error).__name__}).",
        code="schema_conflict",
        table=None if table is None else str(table),
        action="Somebody changed the table, or something depends on it. Undo that, or recreate the table: "
        "replicator snapshot NAME TABLE --recreate.",
    )


@contextmanager
def _turn(file: Path) -> Iterator[None]:
    with _TURNS_LOCK:
        lock = _TURNS[os.path.realpath(file)]
    with lock:
        yield
