"""Real MariaDB and MySQL servers for tests and for the demo: made, started, killed and removed at will.

`MysqlServer.mariadb()` runs the machine's own MariaDB programs, `MysqlServer.mysql()` the MySQL that
`tools/install_mysql.sh` unpacked outside of the system, through the libraries that came with it. MARIADB_VARIABLE and
ROOT_VARIABLE name other ones, unpacked into a folder (`tools/server_versions.py`). Each server has a scratch folder and a
free loopback port, with a binary log as the Replicator needs it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replicator_testbed.data_folders import copy_or_make
from replicator_testbed.mysql.programs import Programs, mariadb_programs, mysql_programs
from replicator_testbed.scratch_servers import HOST, TIMEOUT_SECONDS, ScratchServer, ServerFailedError, folder_in_memory

if TYPE_CHECKING:
    import pymysql

Flavor = Literal["mariadb", "mysql"]

# Since then MySQL's statements say SOURCE and BINARY LOGS where they said MASTER.
_NEW_WORDS_SINCE = (8, 2)

DEFAULT_SETTINGS: Mapping[str, str] = {
    "log-bin": "binlog",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    # Checked by `validate`; the scratch folder is in memory, if there is room, where they cost little.
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

# Whatever these are, the data directory is made the same.
_LATER_SETTINGS = frozenset(
    {
        *("bind-address", "default-time-zone", "enforce-gtid-consistency", "event-scheduler", "gtid-mode"),
        *("innodb-flush-log-at-trx-commit", "sync-binlog"),
    }
)

# MySQL as it was before GTIDs, and what the Replicator needs then.
WITHOUT_GTIDS: Mapping[str, str] = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
WATERMARK_TABLE = (
    "CREATE DATABASE replicator",
    "CREATE TABLE replicator.watermarks (mark CHAR(32) CHARACTER SET ascii NOT NULL PRIMARY KEY) ENGINE = InnoDB",
)

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
        """The `source:` block of a YAML file, except the password."""
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


class MysqlServer(ScratchServer):
    """A MariaDB or MySQL of its own."""

    port_taken = "already in use"

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
            tls: Offer TLS with a certificate for localhost and 127.0.0.1 that `certificate_file` signed.
            statements: Run when it is made; not in its log.
        """
        self._statements = tuple(statements)
        self.flavor: Flavor = flavor
        self._programs = mariadb_programs() if flavor == "mariadb" else mysql_programs()
        self.version = self._programs.version()
        """As its program names it, such as `(8, 0, 15)`."""
        self._is_old_mysql = flavor == "mysql" and self.version < _NEW_WORDS_SINCE
        # Each definition of a table is forced to disk several times, which no setting prevents.
        super().__init__(
            f"replicator-{flavor}-", tls=tls, owner=_account_for(self._programs), folder=folder_in_memory()
        )
        self._usual = {**DEFAULT_SETTINGS, **(MARIADB_SETTINGS if flavor == "mariadb" else MYSQL_SETTINGS)}
        self._settings = {
            **self._usual,
            "server-id": str(secrets.randbelow(2**31) + 1),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.user = "admin"
        self.password = secrets.token_urlsafe(12)

    @classmethod
    def mariadb(cls, **options: Any) -> MysqlServer:
        """Describe a server from the machine's own MariaDB."""
        return cls("mariadb", **options)

    @classmethod
    def mysql(cls, **options: Any) -> MysqlServer:
        """Describe a server from the MySQL that was unpacked outside of the system."""
        return cls("mysql", **options)

    @classmethod
    def without_gtids(cls, *, settings: Mapping[str, str] | None = None, **options: Any) -> MysqlServer:
        """Describe a MySQL without GTIDs, with the table of watermarks."""
        return cls("mysql", settings={**WITHOUT_GTIDS, **(settings or {})}, statements=WATERMARK_TABLE, **options)

    def stop(self) -> None:
        """Stop the server cleanly and wait for it; a server that does not run stays so."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start the server, on the same port."""
        self.stop()
        self.start()

    def kill9(self) -> None:
        """Kill the server at once, and wait until it has ended."""
        self._end(signal.SIGKILL)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings; they take effect at the next start."""
        self._settings |= settings

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the server lives."""
        return self._process is not None and self._process.poll() is None

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
        self.resume_replication()

    def resume_replication(self) -> None:
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
        ((answer,),) = self.execute(f"SELECT {wait.format(gtids, TIMEOUT_SECONDS)}")
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

    # -- as every scratch server ----------------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        if self._tls:
            self._make_certificate()
        script = self._folder / "init.sql"
        script.write_text(
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
            + "".join(f"{statement};\n" for statement in self._statements)
            + f"{self.reset_log};\n"
        )
        self._own(script)
        changed = {name for name, value in self._settings.items() if self._usual.get(name) != value}
        if changed - _LATER_SETTINGS == {"server-id"}:
            self._write_settings(0, self._usual)
            facts = (self._programs.command, self.version, sorted(self._usual.items()))
            copy_or_make(self.data_folder, facts, self._make_data, own=["auto.cnf"])
            (self.data_folder / "auto.cnf").unlink(missing_ok=True)
            for path in (self.data_folder, *self.data_folder.rglob("*")):
                self._own(path)
        else:
            self._write_settings(0, self._settings)
            self._make_data()

    def _make_data(self) -> None:
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
        self._write_settings(port, self._settings)
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

    def _end_at_once(self) -> None:
        self.kill9()

    def _guarding(self) -> Sequence[str]:
        return GUARDIAN_SCRIPT, str(self._folder)

    # -- the programs ----------------------------------------------------------------------------------------------

    def _await_start(self, port: int) -> None:
        import pymysql

        assert self._process is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
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
        process.wait(timeout=TIMEOUT_SECONDS)
        (self._folder / "pid").unlink(missing_ok=True)

    def _run(self, command: Sequence[str], text: str = "") -> None:
        with subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self._folder
        ) as process:
            # The guardian ends this one too: left alone, a server that makes its data would never end.
            (self._folder / "pid").write_text(str(process.pid))
            try:
                output, _ = process.communicate(text.encode(), timeout=TIMEOUT_SECONDS)
            finally:
                process.kill()
                (self._folder / "pid").unlink(missing_ok=True)
        if process.returncode != 0:
            raise ServerFailedError(
                f"{command[0]} ended with {process.returncode}:\n{output.decode(errors='replace')}\n{self.log[-4000:]}"
            )

    def _write_settings(self, port: int, chosen: Mapping[str, str]) -> None:
        settings = {
            "bind-address": HOST,
            **chosen,
            "port": str(port),
            "datadir": str(self.data_folder),
            "socket": str(self._folder / "s"),
            "pid-file": str(self._folder / "server.pid"),
            "tmpdir": str(self._folder),
        }
        settings |= self._programs.settings()
        if self._tls:
            settings |= {"ssl-cert": str(self.certificate_file), "ssl-key": str(self._key_file)}
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
        return ["--user=mysql" if self._owner else "--user=root"]


def server_version(server: MysqlServer) -> str:
    """The version that a running server names, such as `10.11.19`."""
    ((text,),) = server.execute("SELECT VERSION()")
    match = re.match(r"[\d.]+", text)
    assert match is not None
    return match.group()


def _account_for(programs: Programs) -> tuple[int, int] | None:
    """Where root starts the machine's own server: MySQL's account. What was unpacked under root's home can be read by root only."""
    if os.geteuid() != 0 or programs.root is not None:
        return None
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam("mysql")
        return entry.pw_uid, entry.pw_gid
    return None
