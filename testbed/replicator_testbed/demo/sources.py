"""The demo's sources: a shop on a server that the demo starts, who writes to it, and its rows to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from replicator_testbed.databases import Database
from replicator_testbed.demo import shop
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer, server_version
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The shop in a database of any kind.

    Attributes:
        fill: Makes its tables and their first rows.
        writer: A writer that has not begun yet.
        view_pages: Inserts so many page views in one transaction.
        migration: Changes of its tables, in order, for `ShopWriter.change_schema`.
    """

    fill: Callable[[], None]
    writer: Callable[[], shop.ShopWriter]
    view_pages: Callable[[int], None]
    migration: Sequence[shop.SchemaChange]


def shop_of(database: Database, size: shop.Size, *, pause_s: float = 0.01) -> Shop:
    """The shop in the SQL of its database; its writer rests so long between two transactions."""
    if isinstance(database, ScratchDatabase):
        return Shop(
            fill=lambda: shop.fill(database.dsn, size),
            writer=lambda: shop.Writer(database.dsn, size, pause_s=pause_s),
            view_pages=lambda count: shop.view_pages(database.dsn, count),
            migration=shop.MIGRATION,
        )
    if isinstance(database, MysqlDatabase):
        from replicator_testbed.demo import mysql_shop  # with a driver that the others do without

        return Shop(
            fill=lambda: mysql_shop.fill(database, size),
            writer=lambda: mysql_shop.Writer(database, size, pause_s=pause_s),
            view_pages=lambda count: mysql_shop.view_pages(database, count),
            migration=mysql_shop.MIGRATION,
        )
    from replicator_testbed.demo import sqlserver_shop  # as above

    return Shop(
        fill=lambda: sqlserver_shop.fill(database, size),
        writer=lambda: sqlserver_shop.Writer(database, size, pause_s=pause_s),
        view_pages=lambda count: sqlserver_shop.view_pages(database, count),
        migration=sqlserver_shop.MIGRATION,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSource:
    """A shop on a server that runs."""

    title: str
    database: Database
    shop: Shop


_SIZE: Final = shop.Size(orders=20_000)
# The model reads statements by a parser in Python.
_SIZES: Final = {"sqlserver": shop.Size(customers=2_000, products=500, orders=4_000)}


@contextmanager
def demo_source(name: str) -> Iterator[DemoSource]:
    """Start a server for the shop, and remove it afterwards.

    Args:
        name: One of `SOURCES`; `mysql` is a MariaDB where no MySQL is installed.

    Raises:
        ServerProgramsNotFoundError: No such server is installed.
    """
    with SOURCES[name]() as (title, database):
        # Some thirty transactions a second leave the processor to what is to be seen.
        yield DemoSource(
            title=title,
            database=database,
            shop=shop_of(database, _SIZES.get(name, _SIZE), pause_s=0.03),
        )


@contextmanager
def _postgresql() -> Iterator[tuple[str, Database]]:
    with PostgresServer.embedded() as server, server.database("shop") as database:
        yield "An embedded PostgreSQL", database


@contextmanager
def _mysql() -> Iterator[tuple[str, Database]]:
    with MysqlServer("mysql" if has_mysql() else "mariadb") as server, server.database("shop") as database:
        yield f"{'MySQL' if server.flavor == 'mysql' else 'MariaDB'} {server_version(server)}", database


@contextmanager
def _sqlserver() -> Iterator[tuple[str, Database]]:
    from replicator_testbed.sqlserver.databases import SqlServers  # with packages of an extra

    with PostgresServer.distribution() as server, SqlServers(postgres=server).database() as database:
        yield "A MODEL of a SQL Server (no real one was ever used; its rows are in a PostgreSQL)", database


SOURCES: Final[Mapping[str, Callable[[], AbstractContextManager[tuple[str, Database]]]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "sqlserver": _sqlserver,
}
"""Plugin → a title, and the shop's database on a server of its own."""
