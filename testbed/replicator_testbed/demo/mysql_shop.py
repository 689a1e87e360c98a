"""The demo's shop on MariaDB or MySQL: the same idea as `shop`, in their SQL."""

from __future__ import annotations

from typing import Any, Final

import pymysql

from replicator_testbed.demo.shop import SchemaChange, ShopWriter, Size
from replicator_testbed.mysql.servers import MysqlDatabase

_SCHEMA: Final = (
    """CREATE TABLE customers (
        id bigint AUTO_INCREMENT PRIMARY KEY, email varchar(200) NOT NULL, name varchar(100),
        kind enum('person', 'company') NOT NULL DEFAULT 'person', balance decimal(12,2) NOT NULL DEFAULT 0, profile longtext,
        created_at datetime(6) NOT NULL DEFAULT current_timestamp(6))""",
    """CREATE TABLE products (
        sku varchar(40) PRIMARY KEY, title varchar(200) CHARACTER SET latin1 NOT NULL, price decimal(10,2) NOT NULL,
        photo varbinary(100), added_on date NOT NULL)""",
    "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, customer_id bigint NOT NULL, state varchar(10) NOT NULL)",
    """CREATE TABLE order_items (
        order_id bigint, line smallint, sku varchar(40) NOT NULL, quantity int unsigned NOT NULL, price decimal(10,2),
        PRIMARY KEY (order_id, line))""",
    "CREATE TABLE page_views (customer_id bigint, path varchar(100), took double)",
)
_NUMBERS: Final = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
_CUSTOMERS: Final = """
SELECT CONCAT('user', i, '@example.org'), CONCAT('Customer ', i), IF(i % 9, 'person', 'company'), (i % 1000) / 7,
    IF(i % 50, NULL, REPEAT(SHA2(i, 256), 60)) FROM n
"""
_PRODUCTS: Final = "SELECT CONCAT('SKU-', i), CONCAT('Größe ', i), i / 3, UNHEX(SHA2(i, 256)), '2024-02-29' FROM n"
_ORDERS: Final = "SELECT 1 + i % {customers}, 'placed' FROM n"
_ITEMS: Final = "SELECT 1 + i DIV 2, 1 + i % 2, CONCAT('SKU-', 1 + i % {products}), 1 + i % 5, i / 9 FROM n"
_VIEWS: Final = "SELECT 1 + i % 100, CONCAT('/product/', i % 50), (i % 10) / 4 FROM n"


MIGRATION: Final = (
    SchemaChange(
        title="a column comes, with a default",
        statements=["ALTER TABLE customers ADD COLUMN tier varchar(20) NOT NULL DEFAULT 'standard'"],
    ),
    SchemaChange(
        title="a column is renamed",
        statements=["ALTER TABLE products CHANGE title label varchar(200) CHARACTER SET latin1 NOT NULL"],
    ),
    SchemaChange(
        title="a column is widened", statements=["ALTER TABLE order_items MODIFY quantity bigint unsigned NOT NULL"]
    ),
    SchemaChange(
        title="a table is swapped for another one with one more column",
        statements=[
            "CREATE TABLE products_new LIKE products",
            "ALTER TABLE products_new ADD COLUMN weight int",
            "INSERT INTO products_new SELECT p.*, CHAR_LENGTH(label) FROM products p",
            "RENAME TABLE products TO products_old, products_new TO products",
        ],
    ),
)


def fill(database: MysqlDatabase, size: Size) -> None:
    """Make the tables and their first rows."""
    database.execute(*_SCHEMA)
    for count, table, query in (
        (size.customers, "customers (email, name, kind, balance, profile)", _CUSTOMERS),
        (size.products, "products", _PRODUCTS),
        (size.orders, "orders (customer_id, state)", _ORDERS),
        (size.orders, "order_items", _ITEMS),
        (2_000, "page_views", _VIEWS),
    ):
        _insert(database, table, count, query.format(customers=size.customers, products=size.products))


def view_pages(database: MysqlDatabase, count: int) -> None:
    """Insert so many page views in one transaction."""
    _insert(database, "page_views", count, _VIEWS)


def _insert(database: MysqlDatabase, table: str, count: int, query: str) -> None:
    limit = "max_recursive_iterations" if database.server.flavor == "mariadb" else "cte_max_recursion_depth"
    database.execute(f"SET SESSION {limit} = 1000000", f"INSERT INTO {table} {_NUMBERS.format(count=count)} {query}")


class Writer(ShopWriter):
    """To MariaDB or MySQL."""

    def __init__(self, database: MysqlDatabase, size: Size, *, pause_s: float = 0.01) -> None:
        super().__init__(size, pause_s=pause_s)
        self._database = database

    def _connect(self) -> pymysql.connections.Connection[Any]:
        return self._database.connect(autocommit=False)

    def _write(self, cursor: Any) -> None:
        draw, size = self._random, self._size
        customer, order = draw.randint(1, size.customers), draw.randint(1, size.orders)
        sku = f"SKU-{draw.randint(1, size.products)}"
        match draw.randint(0, 7):
            case 0:
                cursor.execute("INSERT INTO orders (customer_id, state) VALUES (%s, 'placed')", (customer,))
                new = cursor.lastrowid
                for line in range(1, draw.randint(2, 5)):
                    values = (new, line, sku, line, round(draw.random() * 100, 2))
                    cursor.execute("INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)", values)
            case 1:
                state = draw.choice(["paid", "packed", "sent"])
                cursor.execute("UPDATE orders SET state = %s WHERE id = %s", (state, order))
            case 2:
                amount = draw.randint(-500, 500) / 100
                cursor.execute("UPDATE customers SET balance = balance + %s WHERE id = %s", (amount, customer))
            case 3:
                cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
                cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
            case 4:
                cursor.execute("UPDATE customers SET id = id + 10000000 WHERE id = %s", (customer,))
            case 5:
                cursor.execute("UPDATE products SET price = price * 1.01 WHERE sku = %s", (sku,))
            case 6:
                view = (draw.randint(1, 100), f"/product/{draw.randint(1, 50)}", draw.random())
                cursor.execute("INSERT INTO page_views VALUES (%s, %s, %s)", view)
            case _:
                cursor.execute("DELETE FROM page_views LIMIT 1")
