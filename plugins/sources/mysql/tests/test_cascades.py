"""Which tables foreign keys may have changed, and how the server's keys are read."""

from __future__ import annotations

from contextlib import closing

import pytest

from replicator.model.schema import TableId
from replicator_source_mysql.flavors import MARIADB
from replicator_source_mysql.reach.cascades import CascadeReach, Cascades, Edge, reaches, read_edges
from replicator_testbed.mysql.servers import MysqlDatabase

DELETE_CASCADE, DELETE_SET, UPDATE_CASCADE, UPDATE_SET = 1, 2, 4, 8


def table(name: str) -> TableId:
    return TableId("shop", name)


def edge(child: str, parent: str, acts: int, column: str = "id") -> Edge:
    return Edge(child=table(child), parent=table(parent), acts=acts, columns=frozenset({column}))


def tables(*names: str) -> frozenset[TableId]:
    return frozenset(map(table, names))


def test_a_cascade_continues_through_tables_that_nobody_follows() -> None:
    edges = [edge("b", "a", DELETE_CASCADE), edge("c", "b", DELETE_CASCADE | UPDATE_SET, "k")]
    found = reaches(edges, tables("c"))
    assert found == {
        table("a"): CascadeReach(by_delete=tables("c")),
        table("b"): CascadeReach(by_delete=tables("c"), by_update=tables("c"), columns=frozenset({"k"})),
    }


def test_set_null_is_an_update_of_the_child() -> None:
    edges = [edge("b", "a", DELETE_SET), edge("c", "b", DELETE_CASCADE), edge("d", "b", UPDATE_CASCADE)]
    assert reaches(edges, tables("b", "c", "d"))[table("a")] == CascadeReach(by_delete=tables("b", "d"))


def test_rings_and_tables_that_refer_to_themselves_end() -> None:
    edges = [edge("a", "a", DELETE_CASCADE), edge("b", "a", UPDATE_CASCADE), edge("a", "b", UPDATE_CASCADE)]
    found = reaches(edges, tables("a", "b"))
    assert found[table("a")] == CascadeReach(
        by_delete=tables("a"), by_update=tables("a", "b"), columns=frozenset({"id"})
    )
    assert reaches(edges, ()) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ALTER TABLE b DROP FOREIGN KEY x", tables("b")),
        ("alter table shop.`a` add constraint foreign key (x) references z (y)", tables("b")),
        ("RENAME TABLE old TO a", tables("b")),
        ("ALTER TABLE a ADD COLUMN x int", tables()),
        ("CREATE TABLE zzz (i int, CONSTRAINT c CHECK (i > 0))", tables()),
    ],
)
def test_statements_about_foreign_keys_count_for_what_they_could_concern(
    text: str, expected: frozenset[TableId]
) -> None:
    looked = []

    def read() -> list[Edge]:
        looked.append(1)
        return [edge("b", "a", DELETE_CASCADE)]

    cascades = Cascades(flavor=MARIADB, replicated=tables("b"), read=read, size_max=1)
    cascades.look()
    found = cascades.of_statement(text)
    assert found == expected if "CREATE" not in text else found <= tables("b")
    assert len(looked) == (1 if "COLUMN" in text else 2), "the keys are read again"


def test_foreign_keys_are_read_with_names_of_any_kind(mysql_database: MysqlDatabase) -> None:
    name = mysql_database.name
    mysql_database.execute(
        "CREATE TABLE `g-p 日` (id int, `c c` int, PRIMARY KEY (id, `c c`))",
        "CREATE TABLE `größe` (id int PRIMARY KEY, p int, q int,"
        " FOREIGN KEY (p, q) REFERENCES `g-p 日` (id, `c c`) ON DELETE CASCADE ON UPDATE SET NULL)",
        "CREATE TABLE plain (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES `größe` (id))",
    )
    with closing(mysql_database.connect()) as connection:
        found = [e for e in read_edges(connection) if e.child.namespace == name]
    expected = Edge(
        child=TableId(name, "größe"),
        parent=TableId(name, "g-p 日"),
        acts=DELETE_CASCADE | UPDATE_SET,
        columns=frozenset({"id", "c c"}),
    )
    assert found == [expected]
