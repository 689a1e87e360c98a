"""The demo's sources: a shop on a server that the demo starts, who writes to it, and its rows to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from replicator.demo import shop
from replicator.testing import compare
from replicator.testing.servers import PostgresServer


class Writer(Protocol):
    """Writes to the shop until stopped."""

    transactions: int

    def start(self) -> None:
        """Begin to write."""

    def stop(self) -> None:
        """End after the running transaction; raise what went wrong in the meantime. May be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSource:
    """A shop on a server that runs.

    Attributes:
        block: The `source:` block of the YAML, indented; its password is `${env:DEMO_PASSWORD}`.
        namespace: Of the shop's tables.
        rows: A table's rows, with the columns named, as the database's own driver reads them.
    """

    title: str
    block: str
    namespace: str
    password: str
    tables: Sequence[str]
    fill: Callable[[], None]
    writer: Callable[[], Writer]
    columns: Callable[[str], Sequence[str]]
    rows: Callable[[str, Sequence[str]], Iterator[Sequence[Any]]]


@contextmanager
def demo_source(name: str) -> Iterator[DemoSource]:
    """Start a server for the shop, and remove it afterwards.

    Raises:
        ServerProgramsNotFoundError: No such server is installed.
    """
    with _mysql() if name == "mysql" else _postgresql() as source:
        yield source


@contextmanager
def _postgresql() -> Iterator[DemoSource]:
    size = shop.Size()
    with PostgresServer.embedded() as server, server.database("shop") as database:
        yield DemoSource(
            title="An embedded PostgreSQL",
            block=_block("postgresql", server.port, server.user) + "\n  database: shop",
            namespace="public",
            password="unused",  # noqa: S106 - the server trusts this machine
            tables=shop.TABLES,
            fill=lambda: shop.fill(database.dsn, size),
            writer=lambda: shop.Writer(database.dsn, size),
            columns=lambda table: compare.columns(database.dsn, table),
            rows=lambda table, columns: compare.source_rows(database.dsn, table, columns),
        )


@contextmanager
def _mysql() -> Iterator[DemoSource]:
    from replicator.demo import mysql_shop  # with a driver that the other demo does without
    from replicator.testing.mysql_servers import MysqlServer, has_mysql, server_version

    with MysqlServer("mysql" if has_mysql() else "mariadb") as server:
        name = "MySQL" if server.flavor == "mysql" else "MariaDB"
        yield DemoSource(
            title=f"{name} {server_version(server)}",
            block=_block("mysql", server.port, server.user),
            namespace=mysql_shop.DATABASE,
            password=server.password,
            tables=mysql_shop.TABLES,
            fill=lambda: mysql_shop.fill(server),
            writer=lambda: mysql_shop.Writer(server),
            columns=lambda table: mysql_shop.columns(server, table),
            rows=lambda table, columns: mysql_shop.source_rows(server, table, columns),
        )


def _block(type_: str, port: int, user: str) -> str:
    lines = (f"type: {type_}", "host: 127.0.0.1", f"port: {port}", f"user: {user}", "password: ${env:DEMO_PASSWORD}")
    return "\n".join(f"  {line}" for line in lines)
