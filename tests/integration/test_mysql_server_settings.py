"""Capture over servers that are set up in other ways than the tests' own: names in lower case."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal

import pytest

from replicator.model.schema import TableId
from replicator.state.records import Stage
from replicator_testbed.captured import Captured
from replicator_testbed.mysql_programs import has_mysql
from replicator_testbed.mysql_servers import MysqlDatabase, MysqlServer

Make = Callable[..., Captured]
Flavor = Literal["mariadb", "mysql"]


@pytest.fixture(params=["mariadb", "mysql"])
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
            cursor.execute(
                chance.choice(
                    (
                        f"REPLACE INTO {table} VALUES ({key}, {value})",
                        f"UPDATE {table} SET v = {value} WHERE id = {key}",
                        f"DELETE FROM {table} WHERE id = {key}",
                        f"UPDATE IGNORE {table} SET id = {key + 1} WHERE id = {key}",
                    )
                )
            )


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
                lambda: captured.stage(TableId("shop", "items")) is Stage.FAILED,
                "an altered table is not taken for another",
            )
    finally:
        stop.set()
        for writer in writers:
            writer.join()
