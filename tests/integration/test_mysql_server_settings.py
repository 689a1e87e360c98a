"""Capture over servers that are set up in other ways than the tests' own: names in lower case, an encrypted binary log."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pymysql
import pytest
from pymysql.constants import ER

from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured
from replicator_testbed.mysql.programs import has_mysql, mysql_root
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.present import present

Make = Callable[..., Captured]
Flavor = Literal["mariadb", "mysql"]


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def lower_case(request: pytest.FixtureRequest) -> Iterator[MysqlDatabase]:
    """A database on a server that stores names in lower case, whatever case they are written in."""
    if request.param == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    settings = {"lower-case-table-names": "1"}
    with MysqlServer(request.param, settings=settings) as server, server.database("SHOP") as database:
        yield MysqlDatabase(server=database.server, name="shop")


def write(database: MysqlDatabase, stop: threading.Event, seed: int) -> None:
    """Change rows of both tables, calling them by names in any case, until told to stop."""
    chance = random.Random(seed)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            table = chance.choice(["ORDERS", "Orders", "`SHOP`.`orders`", "Items", "ITEMS"])
            key, value = chance.randint(1, 200), chance.randint(0, 99)
            statement = chance.choice(
                (
                    f"REPLACE INTO {table} VALUES ({key}, {value})",
                    f"UPDATE {table} SET v = {value} WHERE id = {key}",
                    f"DELETE FROM {table} WHERE id = {key}",
                    f"UPDATE IGNORE {table} SET id = {key + 1} WHERE id = {key}",
                )
            )
            try:
                cursor.execute(statement)
            except pymysql.OperationalError as error:
                # Keys are changed while their neighbours are: the server ends such a deadlock, and undoes the statement.
                if error.args[0] != ER.LOCK_DEADLOCK:
                    raise


@pytest.mark.matrix
def test_names_in_any_case_are_those_that_the_server_stores(lower_case: MysqlDatabase, make_mysql: Make) -> None:
    database = lower_case
    for table in ("Orders", "ITEMS"):
        database.execute(
            f"CREATE TABLE {table} (Id int PRIMARY KEY, v int)",
            f"INSERT INTO {table} VALUES " + ", ".join(f"({i}, 0)" for i in range(1, 101)),
        )
    captured = make_mysql(database, "orders", "items")
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(database, stop, seed)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        with captured.running() as running:
            captured.wait_for_streaming(running)
            stop.set()
            for writer in writers:
                writer.join()
            database.execute(
                "TRUNCATE TABLE `Shop`.ITEMS",
                "INSERT INTO Items VALUES (7, 7)",
                "CREATE TABLE Spare LIKE ORDERS",
                "INSERT INTO SPARE VALUES (1, 1), (2, 2)",
                # A swap, and a statement that must not be taken for one about another table.
                "RENAME TABLE ORDERS TO Old, Spare TO oRders",
                "INSERT INTO orders VALUES (3, 3)",
                "ALTER TABLE Items ADD INDEX By_V (V)",
                "DELETE FROM OLD",
            )
            captured.catch_up(running)
            running.wait_until(
                lambda: captured.stage(TableId("shop", "orders")) is Stage.STREAMING, "the other table is copied"
            )
            captured.catch_up(running)
            assert captured.rows(TableId("shop", "items")) == Counter({(7, 7): 1})
            assert captured.rows(TableId("shop", "orders")) == Counter({(1, 1): 1, (2, 2): 1, (3, 3): 1})
            database.execute("ALTER TABLE ITEMS ADD w int")
            running.wait_until(
                lambda: "w" in present(captured.record(TableId("shop", "items")).schema).fields,
                "an altered table is not taken for another",
            )
    finally:
        stop.set()
        for writer in writers:
            writer.join()


PLUGINS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator" / "mariadb-plugins" / "plugin"
"""What `tools/install_mariadb_plugins.sh` unpacks for the machine's own MariaDB."""
_KEYRING = "component_keyring_file"


def encrypted_mariadb() -> MysqlServer:
    """A server that encrypts its binary log with a key from a file; nothing is started yet."""
    server = MysqlServer.mariadb()
    programs = server._programs
    own = programs.settings().get("plugin-dir")
    # What is unpacked of another version takes its own plugins only.
    plugins = PLUGINS if programs.root is None else Path(own or programs.root / "plugin")
    if not (plugins / "file_key_management.so").exists():
        server.close()
        pytest.skip(f"NO file_key_management.so in {plugins}: tools/install_mariadb_plugins.sh could not unpack it")
    keys = server.data_folder.parent / "keys"
    keys.write_text(f"1;{secrets.token_hex(32)}\n")
    server.configure(
        {
            "plugin-dir": str(plugins),
            "plugin-load-add": "file_key_management",
            "loose-file-key-management-filename": str(keys),
            "encrypt-binlog": "ON",
        }
    )
    return server


def encrypted_mysql(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MysqlServer:
    """The same of MySQL. Its keyring is configured next to its program, so it runs from a folder that is a copy in part."""
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    root = mysql_root()
    found = next(iter(root.glob(f"**/{_KEYRING}.so")), None)
    if found is None or not (root / "usr/sbin/mysqld").exists():
        pytest.skip(f"NO {_KEYRING}.so in {root}")
    copied = [root / "usr/sbin/mysqld", found]
    for path in copied:
        _make_own(path.parent, root, folder)
        own = folder / path.relative_to(root)
        own.unlink()
        shutil.copy2(path, own)
    (folder / "usr/sbin/mysqld.my").write_text(f'{{"components": "file://{_KEYRING}"}}')
    config = folder / found.relative_to(root).with_name(f"{_KEYRING}.cnf")
    config.write_text(f'{{"path": "{folder / "keyring"}", "read_only": false}}')
    monkeypatch.setenv("REPLICATOR_MYSQL_ROOT", str(folder))
    return MysqlServer.mysql(settings={"binlog-encryption": "ON"})


def _make_own(path: Path, root: Path, folder: Path) -> None:
    """Make a folder below another root, and link all that stands next to it and above it."""
    own = folder / path.relative_to(root)
    if path != root:
        _make_own(path.parent, root, folder)
    if own.is_symlink():
        own.unlink()
    own.mkdir(exist_ok=True)
    for other in path.iterdir():
        link = folder / other.relative_to(root)
        if not link.exists():
            link.symlink_to(other)


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MysqlServer]:
    server = encrypted_mariadb() if request.param == "mariadb" else encrypted_mysql(tmp_path / "root", monkeypatch)
    with server:
        yield server


def test_an_encrypted_log_is_read_like_any_other(encrypted: MysqlServer, make_mysql: Make) -> None:
    marker = "marker of a row"
    with encrypted.database() as database:
        table = TableId(database.name, "t")

        def write(first: int) -> None:
            """Rows on both sides of a rotation, and a change of them."""
            for number in range(first, first + 10):
                database.execute(f"INSERT INTO t VALUES ({number}, '{marker} {number}', REPEAT('x', 5000))")
            database.execute(
                "FLUSH BINARY LOGS",
                f"UPDATE t SET a = CONCAT(a, '!') WHERE id >= {first + 5}",
                "DELETE FROM t WHERE id % 7 = 0",
            )

        def assert_equal() -> None:
            assert captured.rows(table) == Counter(database.execute("SELECT * FROM t"))

        database.execute("CREATE TABLE t (id int PRIMARY KEY, a varchar(100), b text)")
        write(1)
        captured = make_mysql(database, "t")
        with captured.running() as running:
            captured.wait_for_streaming(running)
            write(100)
            captured.catch_up(running)
            assert_equal()
        write(200)
        with captured.running() as running:
            captured.catch_up(running)
            assert_equal()
            write(300)
            # Larger than the transaction's cache in memory, which is encrypted too where it goes to the disk.
            database.execute(
                "INSERT INTO t SELECT id + 1000, a, REPEAT('y', 60000) FROM t", "UPDATE t SET b = CONCAT(b, 'z')"
            )
            captured.catch_up(running)
            assert_equal()
        encrypted.restart()
        write(400)
        with captured.running() as running:
            captured.catch_up(running)
            assert_equal()
        files = sorted(encrypted.data_folder.glob("binlog.[0-9][0-9][0-9][0-9][0-9][0-9]"))
        assert len(files) > 5
        assert not [file for file in files if marker.encode() in file.read_bytes()], "the log is encrypted"
