"""What every scratch server has: a folder, a free loopback port, a log, and a guardian.

Nothing is left behind: leaving the context manager removes server and folder, and the guardian process does the same when
this process dies, however it dies.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import psutil

from replicator_testing.waiting import PATIENCE

HOST = "127.0.0.1"
PORT_ATTEMPTS_MAX = 5
TIMEOUT_SECONDS = round(120 * PATIENCE)
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - folders in it have names that nobody can foresee
"""Files that are in memory, where no write waits for a disk. A killed server finds them again; a test cannot cut the power."""
MEMORY_BYTES_MIN: Final = 8 << 30


class ServerProgramsNotFoundError(RuntimeError):
    """No server programs of the wanted kind are installed."""


class ServerFailedError(RuntimeError):
    """A server program failed; the text has its output and the end of the server's log."""


def folder_in_memory() -> Path | None:
    """Return a file system in memory; None where there is not much room, or where somebody said where temporary files go."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    room = min(psutil.disk_usage(str(MEMORY)).free, psutil.virtual_memory().available)
    return MEMORY if room >= MEMORY_BYTES_MIN else None


class ScratchServer(ABC):
    """A server of its own, from its system tables to the removal of its folder.

    A context manager that gives the running server. Without `with`: `start()` … `close()`. Stopping and starting again
    keeps data and port. Not thread-safe.
    """

    port_taken: ClassVar[str]
    """What the server says where another process has its port."""

    def __init__(self, prefix: str, *, tls: bool, owner: tuple[int, int] | None, folder: Path | None = None) -> None:
        """Make the folder.

        Args:
            prefix: Of the folder's name.
            folder: Where to make it; None: where temporary files are.
            tls: Make a certificate for localhost and 127.0.0.1.
            owner: Ids of the account and the group that the server runs under; None: those of this process.
        """
        self._owner = owner
        self._tls = tls
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        self._own(self._folder)
        self._folder.chmod(0o755)
        self._guardian: subprocess.Popen[bytes] | None = None
        self.port = 0

    # -- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start and return the server; remove everything if that fails."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server and remove its folder."""
        self.close()

    def start(self) -> None:
        """Start the server, made first if need be, and return when it accepts connections.

        Raises:
            ServerFailedError: It did not come up; the text has the end of its log.
        """
        # First, as it also ends a server that is being made.
        self._guard()
        if not self.data_folder.exists():
            self._initialise()
        attempts = 1 if self.port else PORT_ATTEMPTS_MAX
        for attempt in itertools.count(1):
            port = self.port or free_port()
            try:
                self._start_on(port)
            except ServerFailedError as error:
                # Between our look and the server's start another process can take a free port.
                if attempt == attempts or self.port_taken not in str(error):
                    raise
            else:
                self.port = port
                return

    def close(self) -> None:
        """End the server at once and remove its folder; doing it twice changes nothing."""
        self._end_at_once()
        if self._guardian is not None:
            guardian, self._guardian = self._guardian, None
            guardian.communicate(timeout=TIMEOUT_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address that the server listens on."""
        return HOST

    @property
    def data_folder(self) -> Path:
        """The data directory."""
        return self._folder / "data"

    @property
    def certificate_file(self) -> Path:
        """The authority that signed the server's certificate; there with `tls=True` only."""
        return self._folder / "server.crt"

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        try:
            return (self._folder / "server.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    # -- for the servers -------------------------------------------------------------------------------------------

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data directory."""

    @abstractmethod
    def _start_on(self, port: int) -> None:
        """Start the server on a port, and return when it accepts connections."""

    @abstractmethod
    def _end_at_once(self) -> None:
        """End the server, if it runs."""

    @abstractmethod
    def _guarding(self) -> Sequence[str]:
        """A script of the shell that waits for the end of its input, then ends the server and removes the folder; with its arguments."""

    def _guard(self) -> None:
        if self._guardian is None:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", *self._guarding()],
                # The end of the pipe is the end of this process, which holds the other end.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Out of reach of Ctrl-C, which ends the process that it watches.
                start_new_session=True,
                **self._as_account(),
            )

    def _as_account(self) -> Mapping[str, Any]:
        """How a program is started that is to run as the server does."""
        return {}

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner)

    @property
    def _key_file(self) -> Path:
        return self._folder / "server.key"

    def _make_certificate(self) -> None:
        command = [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", f"subjectAltName=DNS:localhost,IP:{HOST}"),
            *("-keyout", str(self._key_file), "-out", str(self.certificate_file)),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
        self._own(self._key_file)
        self._own(self.certificate_file)
        self._key_file.chmod(0o600)


def free_port() -> int:
    """Return a loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
