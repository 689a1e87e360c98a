"""The demo's shop on the model of a SQL Server: the same idea as `shop`, in T-SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyodbc

from replicator_testbed.demo.shop import TABLES, SchemaChange, ShopWriter, Size
from replicator_testbed.sqlserver.databases import SqlServerDatabase, enable

_SCHEMA: Final = (
    """CREATE TABLE dbo.customers (
        id bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY, email nvarchar(200) NOT NULL, name nvarchar(100) NULL,
        is_active bit NOT NULL DEFAULT 1, balance money NOT NULL DEFAULT 0, profile nvarchar(max) NULL,
        created_at datetime2(6) NOT NULL DEFAULT SYSUTCDATETIME())""",
    """CREATE TABLE dbo.products (
        sku varchar(40) NOT NULL PRIMARY KEY, title varchar(200) NOT NULL, price decimal(10,2) NOT NULL,
        photo varbinary(100) NULL, added_on date NOT NULL)""",
    "CREATE TABLE dbo.orders (id bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY, customer_id bigint NOT NULL, state varchar(10) NOT NULL)",
    """CREATE TABLE dbo.order_items (
        order_id bigint NOT NULL, line smallint NOT NULL, sku varchar(40) NOT NULL, quantity int NOT NULL, price decimal(10,2) NULL,
        PRIMARY KEY (order_id, line))""",
    "CREATE TABLE dbo.page_views (customer_id bigint NULL, path varchar(100) NULL, took float NULL)",
)
_ROWS_AT_ONCE: Final = 500

MIGRATION: Final = (
    SchemaChange(
        title="a column is widened",
        statements=["ALTER TABLE dbo.order_items ALTER COLUMN quantity bigint NOT NULL"],
    ),
    SchemaChange(title="a column is dropped", statements=["ALTER TABLE dbo.products DROP COLUMN photo"]),
    SchemaChange(
        title="a column comes, and a second capture instance that has it",
        statements=["ALTER TABLE dbo.customers ADD tier int NULL", enable("customers", "dbo_customers_2")],
    ),
)


def fill(database: SqlServerDatabase, size: Size) -> None:
    """Make the tables and their first rows, and have their changes captured."""
    database.execute(*_SCHEMA)
    _insert(
        database,
        "dbo.customers (email, name, balance, profile)",
        [
            f"(N'user{i}@example.org', N'Kundin {i}', {i % 1000}.25, {_profile(i)})"
            for i in range(1, size.customers + 1)
        ],
    )
    _insert(
        database,
        "dbo.products (sku, title, price, photo, added_on)",
        [f"('SKU-{i}', 'Größe {i}', {i}.33, 0x{i:08X}, '2024-02-29')" for i in range(1, size.products + 1)],
    )
    _insert(
        database,
        "dbo.orders (customer_id, state)",
        [f"({1 + i % size.customers}, 'placed')" for i in range(1, size.orders + 1)],
    )
    _insert(
        database,
        "dbo.order_items (order_id, line, sku, quantity, price)",
        [
            f"({1 + i // 2}, {1 + i % 2}, 'SKU-{1 + i % size.products}', {1 + i % 5}, {i}.11)"
            for i in range(1, size.orders + 1)
        ],
    )
    view_pages(database, 2_000)
    database.capture(*TABLES)


def view_pages(database: SqlServerDatabase, count: int) -> None:
    """Insert so many page views in one transaction: at most the square of the number of customers."""
    database.execute(
        "INSERT INTO dbo.page_views (customer_id, path, took)"
        f" SELECT TOP ({count}) 1 + b.id % 100, CONCAT('/product/', b.id % 50), (b.id % 10) / 4.0"
        " FROM dbo.customers a CROSS JOIN dbo.customers b"
    )


def _profile(number: int) -> str:
    return "NULL" if number % 50 else f"N'{f'about {number}. ' * 300}'"


def _insert(database: SqlServerDatabase, table: str, rows: Sequence[str]) -> None:
    connection = database.connect(autocommit=False)
    try:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            connection.execute(f"INSERT INTO {table} VALUES {', '.join(rows[start : start + _ROWS_AT_ONCE])}")
        connection.commit()
    finally:
        connection.close()


class Writer(ShopWriter):
    """To the model of a SQL Server."""

    def __init__(self, database: SqlServerDatabase, size: Size, *, pause_s: float = 0.01) -> None:
        super().__init__(size, pause_s=pause_s)
        self._database = database

    def _connect(self) -> pyodbc.Connection:
        return self._database.connect(autocommit=False)

    def _write(self, cursor: Any) -> None:
        draw, size = self._random, self._size
        customer, order = draw.randint(1, size.customers), draw.randint(1, size.orders)
        sku = f"SKU-{draw.randint(1, size.products)}"
        match draw.randint(0, 7):
            case 0:
                cursor.execute("INSERT INTO dbo.orders (customer_id, state) VALUES (?, 'placed')", customer)
                new = cursor.execute("SELECT MAX(id) FROM dbo.orders").fetchone()[0]
                for line in range(1, draw.randint(2, 5)):
                    values = (new, line, sku, line, draw.randint(0, 10_000) / 100)
                    cursor.execute(
                        "INSERT INTO dbo.order_items (order_id, line, sku, quantity, price) VALUES (?, ?, ?, ?, ?)",
                        values,
                    )
            case 1:
                state = draw.choice(["paid", "packed", "sent"])
                cursor.execute("UPDATE dbo.orders SET state = ? WHERE id = ?", (state, order))
            case 2:
                amount = draw.randint(-500, 500)
                cursor.execute("UPDATE dbo.customers SET balance = balance + ? WHERE id = ?", (amount, customer))
            case 3:
                cursor.execute("DELETE FROM dbo.order_items WHERE order_id = ?", order)
                cursor.execute("DELETE FROM dbo.orders WHERE id = ?", order)
            case 4:  # the key of several rows changes
                cursor.execute("UPDATE dbo.order_items SET line = line + 10 WHERE order_id = ?", order)
            case 5:
                cursor.execute("UPDATE dbo.products SET price = price + 1 WHERE sku = ?", sku)
            case 6:
                view = (draw.randint(1, 100), f"/product/{draw.randint(1, 50)}", draw.random())
                cursor.execute("INSERT INTO dbo.page_views (customer_id, path, took) VALUES (?, ?, ?)", view)
            case _:
                cursor.execute("DELETE TOP (1) FROM dbo.page_views")
