"""Real MariaDB and MySQL servers for tests and for the demo: made, started, killed and removed at will.

`MysqlServer.mariadb()` runs the machine's own MariaDB programs, `MysqlServer.mysql()` the MySQL that
`tools/install_mysql.sh` unpacked beside the system, through the libraries that came with it. MARIADB_VARIABLE and
ROOT_VARIABLE name other ones, unpacked into a folder (`tools/server_versions.py`). Each server has a scratch folder and a
free loopback port, with a binary log as the Replicator needs it.

Nothing is left behind: leaving the context manager removes server and folder, and a guardian process does the same when
this process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from replicator.testing.waiting import PATIENCE
from replicator_testbed.servers import HOST, ServerFailedError, ServerProgramsNotFoundError, free_port

if TYPE_CHECKING:
    from types import TracebackType

    import pymysql

Flavor = Literal["mariadb", "mysql"]

ROOT_VARIABLE = "REPLICATOR_MYSQL_ROOT"
"""Names the folder that a MySQL was unpacked into."""
MARIADB_VARIABLE = "REPLICATOR_TEST_MARIADB"
"""Names the folder that another MariaDB than the machine's own was unpacked into."""
START_TIMEOUT_SECONDS = round(120 * PATIENCE)
PORT_ATTEMPTS_MAX = 5
_PROGRAM_FOLDERS = ("usr/sbin", "bin")
_SHARE_FOLDERS = ("usr/share/mysql", "usr/share/mariadb", "share")
_PLUGIN_FOLDERS = ("usr/lib/mysql/plugin", "usr/lib/x86_64-linux-gnu/mariadb19/plugin", "lib/plugin")
_LOADER = "ld-linux-x86-64.so.2"
# Since then MySQL's statements say SOURCE and BINARY LOGS where they said MASTER.
_NEW_WORDS_SINCE = (8, 2)

DEFAULT_SETTINGS: Mapping[str, str] = {
    "log-bin": "binlog",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    # Checked by `validate`; the scratch folder is on a file system where they cost little.
    "sync-binlog": "1",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "64M",
    "character-set-server": "utf8mb4",
    "max-connections": "200",
    "max-allowed-packet": "64M",
    "performance-schema": "OFF",
    "skip-name-resolve": "1",
    "lower-case-table-names": "0",
}
MARIADB_SETTINGS: Mapping[str, str] = {
    "binlog-format": "ROW",
    "log-slave-updates": "ON",
    "innodb-log-file-size": "48M",
    # As newer ones have it; before 10.10 the first TIMESTAMP of a table moves by itself.
    "explicit-defaults-for-timestamp": "ON",
}
MYSQL_SETTINGS: Mapping[str, str] = {
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "mysqlx": "OFF",
    "secure-file-priv": "NULL",
}

# MySQL as it was before GTIDs, and what the Replicator needs then.
WITHOUT_GTIDS: Mapping[str, str] = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
WATERMARK_TABLE = (
    "CREATE DATABASE replicator",
    "CREATE TABLE replicator.watermarks (mark CHAR(32) CHARACTER SET ascii NOT NULL PRIMARY KEY) ENGINE = InnoDB",
)

# Waits on a pipe whose other end this process holds; the end of the pipe is the end of this process.
GUARDIAN_SCRIPT = 'read -r _; [ -f "$0/pid" ] && kill -9 "$(cat "$0/pid")" 2>/dev/null; rm -rf "$0"'


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlDatabase:
    """A database that a test has for itself."""

    server: MysqlServer
    name: str

    def connect(self, **parameters: Any) -> pymysql.connections.Connection[Any]:
        """Open an autocommit connection as administrator; `parameters` go to `pymysql.connect`."""
        return self.server.connect(self.name, **parameters)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements, each in a transaction of its own, and return the rows of the last one."""
        return self.server.execute(*statements, database=self.name)

    # What `ScratchDatabase` has too: all that copying from a database of any kind, and comparing, takes.

    @property
    def source(self) -> dict[str, Any]:
        """The `source:` block of a YAML file, but for the password."""
        return {"type": "mysql", "host": self.server.host, "port": self.server.port, "user": self.server.user}

    @property
    def namespace(self) -> str:
        """What stands before the dot in the names of its tables."""
        return self.name

    def columns(self, table: str) -> list[str]:
        """A table's column names, in order."""
        return [row[0] for row in self.execute(f"SHOW COLUMNS FROM `{table}`")]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """A table's rows, as PyMySQL reads them."""
        from pymysql.cursors import SSCursor  # an extra of the host

        names = ", ".join(f"`{name}`" for name in columns)
        with contextlib.closing(self.connect(cursorclass=SSCursor)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM `{table}`")
            yield from cursor


class MysqlServer:
    """A server of its own, from its system tables to the removal of its folder.

    A context manager that gives the running server. Without `with`: `start()` … `close()`. Stopping and starting again
    keeps data and port. Not thread-safe.
    """

    def __init__(
        self,
        flavor: Flavor,
        *,
        settings: Mapping[str, str] | None = None,
        tls: bool = False,
        statements: Sequence[str] = (),
    ) -> None:
        """Describe a server; nothing is started yet.

        Args:
            flavor: Whose programs.
            settings: Lines for the server's configuration file, over `DEFAULT_SETTINGS`.
            tls: Offer TLS with a certificate for localhost and 127.0.0.1 that `certificate_file` vouches for.
            statements: Run when it is made; not in its log.
        """
        self._statements = tuple(statements)
        self.flavor: Flavor = flavor
        self._programs = _mariadb_programs() if flavor == "mariadb" else _mysql_programs()
        self.version = self._programs.version()
        """As its program names it, such as `(8, 0, 15)`."""
        self._is_old_mysql = flavor == "mysql" and self.version < _NEW_WORDS_SINCE
        self._folder = Path(tempfile.mkdtemp(prefix=f"replicator-{flavor}-"))
        self._folder.chmod(0o755)
        own = MARIADB_SETTINGS if flavor == "mariadb" else MYSQL_SETTINGS
        self._settings = {
            **DEFAULT_SETTINGS,
            **own,
            "server-id": str(secrets.randbelow(2**31) + 1),
            **(settings or {}),
        }
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.user = "admin"
        self.password = secrets.token_urlsafe(12)

    @classmethod
    def mariadb(cls, **options: Any) -> MysqlServer:
        """Describe a server from the machine's own MariaDB."""
        return cls("mariadb", **options)

    @classmethod
    def mysql(cls, **options: Any) -> MysqlServer:
        """Describe a server from the MySQL that was unpacked beside the system."""
        return cls("mysql", **options)

    @classmethod
    def without_gtids(cls, *, settings: Mapping[str, str] | None = None, **options: Any) -> MysqlServer:
        """Describe a MySQL without GTIDs, with the table of watermarks."""
        return cls("mysql", settings={**WITHOUT_GTIDS, **(settings or {})}, statements=WATERMARK_TABLE, **options)

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
        self._guard()
        if not self.data_folder.exists():
            self._initialise()
        attempts = 1 if self.port else PORT_ATTEMPTS_MAX
        for attempt in range(1, attempts + 1):
            port = self.port or free_port()
            try:
                self._start_on(port)
            except ServerFailedError as error:
                # Between our look and the server's start another process can take a free port.
                if attempt == attempts or "already in use" not in str(error):
                    raise
            else:
                self.port = port
                return

    def stop(self) -> None:
        """Stop the server cleanly and wait for it; a server that does not run stays so."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start the server, on the same port."""
        self.stop()
        self.start()

    def kill9(self) -> None:
        """Kill the server at once, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings; they take effect at the next start."""
        self._settings |= settings

    def close(self) -> None:
        """Kill the server and remove its folder; doing it twice changes nothing."""
        self.kill9()
        if self._guardian is not None:
            guardian, self._guardian = self._guardian, None
            guardian.communicate(timeout=START_TIMEOUT_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address that the server listens on."""
        return HOST

    @property
    def data_folder(self) -> Path:
        """The data directory, binary logs included."""
        return self._folder / "data"

    @property
    def certificate_file(self) -> Path:
        """What vouches for the server's certificate; there with `tls=True` only."""
        return self._folder / "server.crt"

    @property
    def is_running(self) -> bool:
        """Whether the server lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        try:
            return (self._folder / "server.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    # -- connections and databases ---------------------------------------------------------------------------------

    def connect(self, database: str | None = None, **parameters: Any) -> pymysql.connections.Connection[Any]:
        """Open an autocommit connection as administrator; `parameters` go to `pymysql.connect`."""
        import pymysql  # an extra of the host

        own = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": database,
            "charset": "utf8mb4",
            "autocommit": True,
            # Without TLS the server's password check needs its key; a scratch server on loopback may have TLS unverified.
            "ssl_verify_cert": False,
        }
        return pymysql.connect(**{**own, **parameters})

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run the statements, each in a transaction of its own, and return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
        return rows

    @contextlib.contextmanager
    def database(self, name: str | None = None) -> Iterator[MysqlDatabase]:
        """Make a database, give it, and drop it."""
        name = name or f"test_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE `{name}`")
        try:
            yield MysqlDatabase(server=self, name=name)
        finally:
            # A test that stopped the server has shown what it wanted; the folder goes with the server.
            if self.is_running:
                self._kill_users(name)
                self._roll_back_prepared()
                self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    # -- replicas --------------------------------------------------------------------------------------------------

    def follow(self, primary: MysqlServer) -> None:
        """Become a replica of another server, by GTID, from the beginning of its log."""
        where = f"'{primary.host}'", primary.port, primary.user, primary.password
        if self._is_old_mysql:
            statement = (
                "CHANGE MASTER TO MASTER_HOST={}, MASTER_PORT={}, MASTER_USER='{}', MASTER_PASSWORD='{}',"
                " MASTER_AUTO_POSITION=1, GET_MASTER_PUBLIC_KEY=1, MASTER_CONNECT_RETRY=1"
            )
        elif self.flavor == "mariadb":
            statement = (
                "CHANGE MASTER TO MASTER_HOST={}, MASTER_PORT={}, MASTER_USER='{}', MASTER_PASSWORD='{}',"
                " MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
            )
        else:
            statement = (
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST={}, SOURCE_PORT={}, SOURCE_USER='{}', SOURCE_PASSWORD='{}',"
                " SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1"
            )
        self.execute(statement.format(*where))
        self.go_on_following()

    def go_on_following(self) -> None:
        """Replicate again."""
        self.execute("START SLAVE" if self._says_slave else "START REPLICA")

    def stop_following(self) -> None:
        """Replicate no more; what has been received and not applied is dropped."""
        self.execute("STOP SLAVE" if self._says_slave else "STOP REPLICA")

    def catch_up_with(self, primary: MysqlServer) -> None:
        """Wait until everything that the primary has executed so far is executed here, while replicating."""
        wait = "MASTER_GTID_WAIT('{}', {})" if self.flavor == "mariadb" else "WAIT_FOR_EXECUTED_GTID_SET('{}', {})"
        name = "gtid_binlog_pos" if self.flavor == "mariadb" else "gtid_executed"
        ((gtids,),) = primary.execute(f"SELECT @@GLOBAL.{name}")
        ((answer,),) = self.execute(f"SELECT {wait.format(gtids, START_TIMEOUT_SECONDS)}")
        if answer != 0:
            raise ServerFailedError(f"the replica did not catch up: {answer}\n{self.log[-4000:]}")

    @property
    def end_of_log(self) -> str:
        """The statement that tells the log's file and position."""
        return "SHOW MASTER STATUS" if self._says_slave else "SHOW BINARY LOG STATUS"

    @property
    def reset_log(self) -> str:
        """The statement that removes the log and begins another."""
        return "RESET MASTER" if self._says_slave else "RESET BINARY LOGS AND GTIDS"

    def lacks(self, mysql: tuple[int, ...]) -> bool:
        """Whether it is a MySQL older than this version, for what came with it."""
        return self.flavor == "mysql" and self.version < mysql

    @property
    def _says_slave(self) -> bool:
        return self.flavor == "mariadb" or self._is_old_mysql

    def _kill_users(self, database: str) -> None:
        """End the sessions that use a database: they may hold locks that its removal would wait for."""
        for (number,) in self.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"):
            with contextlib.suppress(Exception):
                self.execute(f"KILL {number}")

    def _roll_back_prepared(self) -> None:
        """End the XA transactions that a test left prepared."""
        for *_, name in self.execute("XA RECOVER"):
            # MariaDB gives bytes.
            self.execute(f"XA ROLLBACK '{name.decode() if isinstance(name, bytes) else name}'")

    # -- the programs ----------------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        if self._tls:
            self._make_certificate()
        self._write_settings(0)
        self._own(self._folder)
        script = self._folder / "init.sql"
        script.write_text(
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
            + "".join(f"{statement};\n" for statement in self._statements)
            + f"{self.reset_log};\n"
        )
        self._own(script)
        if self.flavor == "mariadb" and self._programs.root is not None:
            self.data_folder.mkdir()
            (self.data_folder / "mysql").mkdir()
            self._run(
                [*self._programs.command, f"--defaults-file={self._configuration}", "--bootstrap", "--skip-log-bin",
                 "--skip-grant-tables", *self._as_user()],
                self._programs.system_tables(),
            )  # fmt: skip
        elif self.flavor == "mariadb":
            self._run(
                ["mysql_install_db", f"--defaults-file={self._configuration}", "--auth-root-authentication-method=normal",
                 "--skip-test-db", *self._as_user()]
            )  # fmt: skip
        else:
            self._run(
                [
                    *self._programs.command,
                    f"--defaults-file={self._configuration}",
                    "--initialize-insecure",
                    *self._as_user(),
                ]
            )

    def _start_on(self, port: int) -> None:
        self._write_settings(port)
        script = self._folder / "init.sql"
        first = [f"--init-file={script}"] if script.exists() else []
        with (self._folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*self._programs.command, f"--defaults-file={self._configuration}", *self._as_user(), *first],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                # Out of reach of Ctrl-C: tests decide when a server ends.
                start_new_session=True,
            )
        (self._folder / "pid").write_text(str(self._process.pid))
        self._await_start(port)
        script.unlink(missing_ok=True)

    def _await_start(self, port: int) -> None:
        import pymysql

        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                self.connect(port=port).close()
            except pymysql.err.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill9()
                    raise ServerFailedError(f"{self.flavor} did not come up:\n{self.log[-4000:]}") from error
                time.sleep(0.05)
            else:
                return

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.wait(timeout=START_TIMEOUT_SECONDS)
        (self._folder / "pid").unlink(missing_ok=True)

    def _run(self, command: Sequence[str], text: str = "") -> None:
        with subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self._folder
        ) as process:
            # The guardian ends this one too: left alone, a server that makes its data would go on for ever.
            (self._folder / "pid").write_text(str(process.pid))
            try:
                output, _ = process.communicate(text.encode(), timeout=START_TIMEOUT_SECONDS)
            finally:
                process.kill()
                (self._folder / "pid").unlink(missing_ok=True)
        if process.returncode != 0:
            raise ServerFailedError(
                f"{command[0]} ended with {process.returncode}:\n{output.decode(errors='replace')}\n{self.log[-4000:]}"
            )

    def _write_settings(self, port: int) -> None:
        settings = {
            "bind-address": HOST,
            **self._settings,
            "port": str(port),
            "datadir": str(self.data_folder),
            "socket": str(self._folder / "s"),
            "pid-file": str(self._folder / "server.pid"),
            "tmpdir": str(self._folder),
        }
        settings |= self._programs.settings()
        if self._tls:
            settings |= {"ssl-cert": str(self.certificate_file), "ssl-key": str(self._folder / "server.key")}
            settings |= {"ssl-ca": str(self.certificate_file)}
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        self._configuration.write_text("[mysqld]\n" + "".join(lines))

    @property
    def _configuration(self) -> Path:
        return self._folder / "my.cnf"

    def _as_user(self) -> list[str]:
        """Root must name the account that the server runs under."""
        if os.geteuid() != 0:
            return []
        # What was unpacked under root's home can be read by root only.
        is_systems = self._programs.root is None
        return ["--user=mysql"] if is_systems and _has_account("mysql") else ["--user=root"]

    def _own(self, path: Path) -> None:
        if "--user=mysql" in self._as_user():
            entry = pwd.getpwnam("mysql")
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def _guard(self) -> None:
        if self._guardian is None:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", GUARDIAN_SCRIPT, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _make_certificate(self) -> None:
        key = self._folder / "server.key"
        command = [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", f"subjectAltName=DNS:localhost,IP:{HOST}"),
            *("-keyout", str(key), "-out", str(self.certificate_file)),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=START_TIMEOUT_SECONDS)
        self._own(key)
        self._own(self.certificate_file)


# -- finding programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programs:
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


def _mariadb_programs() -> _Programs:
    if named := os.environ.get(MARIADB_VARIABLE):
        return _unpacked(Path(named), "mariadbd")
    program = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/libexec")
    if program is None or shutil.which("mysql_install_db") is None:
        raise ServerProgramsNotFoundError("No MariaDB server programs are installed; `make setup` installs them.")
    return _Programs(command=[program])


def _mysql_programs() -> _Programs:
    if not has_mysql():
        raise ServerProgramsNotFoundError(f"No MySQL is unpacked in {mysql_root()}; tools/install_mysql.sh does it.")
    return _unpacked(mysql_root(), "mysqld")


def _unpacked(root: Path, name: str) -> _Programs:
    """A program that runs through the loader and the libraries that were unpacked with it, if there are any."""
    program = _existing(root, [f"{folder}/{name}" for folder in _PROGRAM_FOLDERS])
    if program is None:
        raise ServerProgramsNotFoundError(f"{root} holds no {name}.")
    folders = [
        root / folder for folder in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu") if (root / folder).exists()
    ]
    loader = next((folder / _LOADER for folder in folders if (folder / _LOADER).exists()), None)
    through = [str(loader), "--library-path", ":".join(map(str, folders))] if loader else []
    return _Programs(command=[*through, str(program)], root=root)


def _existing(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).exists()), None)


def has_mysql() -> bool:
    """Whether `MysqlServer.mysql` can work."""
    return _existing(mysql_root(), [f"{folder}/mysqld" for folder in _PROGRAM_FOLDERS]) is not None


def has_mariadb() -> bool:
    """Whether `MysqlServer.mariadb` can work."""
    with contextlib.suppress(ServerProgramsNotFoundError):
        return bool(_mariadb_programs())
    return False


def server_version(server: MysqlServer) -> str:
    """The version that a running server names, such as `10.11.19`."""
    ((text,),) = server.execute("SELECT VERSION()")
    match = re.match(r"[\d.]+", text)
    assert match is not None
    return match.group()


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
