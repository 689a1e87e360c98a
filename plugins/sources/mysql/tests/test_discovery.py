"""The catalogue is no snapshot: tables come and get other names while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator_source_mysql.catalogue import discovery
from replicator_testbed.mysql.servers import MysqlDatabase


@pytest.mark.parametrize("is_dropped_again", [False, True])
def test_a_table_that_gets_its_name_between_two_queries_has_its_columns_or_is_missing(
    mysql_database: MysqlDatabase, monkeypatch: pytest.MonkeyPatch, is_dropped_again: bool
) -> None:
    mysql_database.execute("CREATE TABLE early (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY, a int)")
    early, late = (TableId(mysql_database.name, name) for name in ("early", "late"))
    ask = discovery._query
    meanwhile = ["DROP TABLE late"] if is_dropped_again else []
    meanwhile.append("RENAME TABLE other TO late")

    def asking(connection: Any, query: str, tables: Sequence[TableId]) -> Any:
        if query == discovery._TABLES and meanwhile:
            mysql_database.execute(meanwhile.pop())
        rows = ask(connection, query, tables)
        if query == discovery._TABLES and is_dropped_again and meanwhile:
            mysql_database.execute(meanwhile.pop())
        return rows

    monkeypatch.setattr(discovery, "_query", asking)
    with closing(mysql_database.connect()) as connection:
        found = discovery.read_tables(connection, [early, late])
    columns = {table.name: [column.name for column in facts.columns] for table, facts in found.items()}
    assert columns == {"early": ["id"]} | ({} if is_dropped_again else {"late": ["id", "a"]})
