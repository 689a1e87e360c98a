"""A table's owner exchanges it for a view between a look at the catalogue and a read: nothing of his runs as our account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replicator.model.errors import SchemaConflictError
from replicator.model.schema import TableId, TableSchema
from replicator_source_mysql import snapshot
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testing.defaults import chunk_request

Make = Callable[..., MysqlSource]


def chunk(source: MysqlSource, schema: TableSchema, _: Callable[[], None]) -> None:
    source.read_chunk(chunk_request(schema))


def whole(source: MysqlSource, schema: TableSchema, _: Callable[[], None]) -> None:
    with source.read_whole(schema) as read:
        list(read.batches)


def sample(source: MysqlSource, schema: TableSchema, _: Callable[[], None]) -> None:
    source.sample(schema, 10)


def state(source: MysqlSource, schema: TableSchema, swap: Callable[[], None]) -> None:
    with source.open_state(schema, [c.name for c in schema.columns]) as opened:
        swap()
        opened.checksums(0)


READS = [(chunk, True), (sample, True), (state, True), (whole, False), (sample, False), (state, False)]


@pytest.mark.parametrize(("read", "has_key"), READS)
def test_a_view_that_was_exchanged_for_a_table_is_not_read(
    mysql_database: MysqlDatabase, source_of: Make, monkeypatch: pytest.MonkeyPatch, read: Any, *, has_key: bool
) -> None:
    mysql_database.server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    mysql_database.execute(
        f"CREATE TABLE t (id int {'PRIMARY KEY' if has_key else ''}, v int)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE spy (who varchar(100))",
        "CREATE FUNCTION evil() RETURNS int SQL SECURITY INVOKER BEGIN INSERT INTO spy VALUES (CURRENT_USER()); RETURN 1; END",
    )
    source = source_of(mysql_database.server)
    table = TableId(mysql_database.name, "t")
    schema = source.describe([table])[table].schema

    def swap() -> None:
        mysql_database.execute(
            "RENAME TABLE t TO away",
            "CREATE SQL SECURITY INVOKER VIEW t AS SELECT id, evil() AS v FROM away",
        )

    for name in ("chunk_query", "whole_query"):
        query = getattr(snapshot, name)

        def swapping(*given: Any, query: Callable[..., str] = query) -> str:
            swap()
            return query(*given)

        monkeypatch.setattr(snapshot, name, swapping)
    with pytest.raises(SchemaConflictError) as refused:
        read(source, schema, swap)
    assert refused.value.code == "table_changed"
    assert mysql_database.execute("SELECT * FROM spy") == []
