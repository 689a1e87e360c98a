"""Which tables a statement may have changed: by names in texts, and on real servers by what the log and the catalogue prove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from replicator.model.errors import TableError
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import PullLimits
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import MARIADB, MYSQL
from replicator_source_mysql.reach.definitions import defines_nothing
from replicator_source_mysql.reach.tables import Definition, Definitions
from replicator_source_mysql.source import MysqlSource
from replicator_testbed.mysql.servers import MysqlDatabase

_LIMITS = PullLimits(rows=10_000, bytes=64 << 20, wait_s=1.0)
Make = Callable[..., MysqlSource]

INNODB = ("BASE TABLE", "InnoDB")
VIEW = ("VIEW", "")


def table(text: str) -> TableId:
    return TableId.parse(text)


def of(database: str, name: str, text: str | None) -> Definition:
    return Definition(database=database, name=name, text=text)


DEFINITIONS = Definitions(
    tables={
        **{table(name): INNODB for name in ("app.log", "app.aside", "shop.t", "shop.u", "shop.child", "shop.grandchild", "shop.café")},
        **{table(name): INNODB for name in ("shop.order items", "shop.2024_t", "shop.a``b")},
        **{table(name): VIEW for name in ("app.v", "app.nested", "app.hidden", "app.unseen")},
        table("app.merged"): ("BASE TABLE", "MRG_MyISAM"),
        table("app.far"): ("BASE TABLE", "FEDERATED"),
        table("app.odd"): ("SOMETHING NEW", "InnoDB"),
        table("app.seq"): ("SEQUENCE", "InnoDB"),
    },
    views={
        table("app.v"): of("app", "v", "select `shop`.`t`.`id` AS `id` from `shop`.`t`"),
        table("app.nested"): of("app", "nested", "select `v`.`id` AS `id` from `app`.`v`"),
        table("app.hidden"): of("app", "hidden", ""),
    },
    routines=[
        of("app", "f", "BEGIN DELETE FROM shop.u; RETURN 1; END"),
        of("shop", "deep", "BEGIN RETURN app.f(); END"),
        of("app", "dynamic", "BEGIN PREPARE s FROM @text; EXECUTE s; END"),
        of("app", "foreign_one", None),
        of("app", "größe", "BEGIN DELETE FROM shop.u; END"),
    ],
    triggers={
        table("app.aside"): [of("app", "g", "INSERT INTO shop.u VALUES (NEW.id)")],
        table("shop.u"): [of("shop", "h", "BEGIN UPDATE t SET a = 1; END")],
    },
    children={table("shop.child"): [table("shop.grandchild")], table("shop.t"): [table("shop.child")]},
)  # fmt: skip
T = {"shop.t", "shop.child", "shop.grandchild"}
U = {"shop.u", *T}


def reached(text: str, database: str = "app", definitions: Definitions = DEFINITIONS) -> set[str] | None:
    found = definitions.reached(text, database)
    return None if found is None else {str(t) for t in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO log VALUES (1)", {"app.log"}),
        ("INSERT INTO app.log VALUES (1)", {"app.log"}),
        ("INSERT INTO log SELECT * FROM shop.child", {"app.log", "shop.child", "shop.grandchild"}),
        ("UPDATE v SET id = 1", T),
        ("DELETE FROM `app`.`nested`", T),
        ("INSERT INTO aside VALUES (1)", {"app.aside", *U}),
        ("DELETE FROM log WHERE id = f()", {"app.log", *U}),
        ("DELETE FROM log WHERE id = shop . `deep` ()", {"app.log", *U}),
        ("INSERT INTO log VALUES (1) /* shop.child */", {"app.log", "shop.child", "shop.grandchild"}),
        ("INSERT INTO log VALUES ('shop', 'child')", {"app.log", "shop.child", "shop.grandchild"}),
        ("INSERT INTO log VALUES (1) /*!50000, (f()) */", {"app.log", *U}),
        ("/*!50000INSERT*/ INTO /*!50708log*/ VALUES (1)", {"app.log"}),
        ("INSERT INTO log VALUES (`shop`.`order items`.x)", {"app.log", "shop.order items"}),
        ("INSERT INTO log SELECT * FROM shop.2024_t", {"app.log", "shop.2024_t"}),
        ("INSERT INTO log SELECT * FROM shop.`a````b`", {"app.log", "shop.a``b"}),
        ("UPDATE log l, shop.child c SET l.id = c.id", {"app.log", "shop.child", "shop.grandchild"}),
        ("insert into LOG select F(1)", {"app.log", *U}),
        # What cannot be told.
        ("INSERT INTO nobody_knows VALUES (1)", None),
        ("INSERT INTO merged VALUES (1)", None),
        ("INSERT INTO far VALUES (1)", None),
        ("INSERT INTO odd VALUES (1)", None),
        ("UPDATE hidden SET a = 1", None),
        ("UPDATE unseen SET a = 1", None),
        ("INSERT INTO log VALUES (foreign_one())", None),
        ("CALL dynamic()", None),
        ("DO nextval(seq)", None),
    ],
)  # fmt: skip
def test_what_a_statement_names_and_what_that_leads_to(text: str, expected: set[str] | None) -> None:
    assert reached(text) == expected


def test_a_name_without_a_database_is_looked_for_where_its_text_runs() -> None:
    assert reached("DELETE FROM child", "shop") == {"shop.child", "shop.grandchild"}
    assert reached("DELETE FROM child", "app") is None
    assert reached("DELETE FROM CHILD", "SHOP") == {"shop.child", "shop.grandchild"}


def test_a_letter_that_is_not_ascii_may_be_any() -> None:
    """The server takes `é` for `e` in names of routines, and the client's character set may be misread."""
    assert reached("INSERT INTO log VALUES (deeƥ())") == {"app.log", *U}
    assert reached("INSERT INTO log VALUES ('Müller', dee\ufffd())") == {"app.log", *U}
    assert reached("INSERT INTO log VALUES ('Müller')") == {"app.log"}
    found = DEFINITIONS.reached("INSERT INTO log SELECT * FROM shop.cafe", "app")
    assert found is not None
    assert table("shop.café") in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN", True), ("COMMIT", True), ("ROLLBACK TO `x`", True), ("SAVEPOINT `x`", True), ("XA PREPARE X'31',X'',1", True),
        ("INSERT INTO t VALUES (1)", True), ("/* from a tool */ UPDATE t SET a = 1", True), ("TRUNCATE t", True), ("# a comment", True),
        ("DROP TEMPORARY TABLE IF EXISTS t", True), ("CREATE TEMPORARY TABLE t (a int)", True), ("GRANT SELECT ON *.* TO x", True),
        ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @a = 1", False), ("/* x */ DROP TRIGGER g", False),
        ("/*!50003 CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @a = 1 */", False), ("COMMIT ALTER TABLE t", False),
        ("CREATE DEFINER=`a`@`b` FUNCTION f() RETURNS int RETURN 1", False), ("ALTER VIEW v AS SELECT 1", False),
        ("DROP FUNCTION f", False),
        ("RENAME TABLE a TO b", False), ("ALTER TABLE t ENGINE = MERGE", False), ("DROP TABLE t", False),
        ("SET STATEMENT x=1 FOR x", False),
("'", False),
        ("INSTALL SONAME 'x'", False), ("FROBNICATE", False), ("BINLOG 'x'", False), ("EXECUTE IMMEDIATE 'x'", False),
    ],
)  # fmt: skip
def test_statements_that_define_nothing_are_in_a_list(text: str, *, expected: bool) -> None:
    assert defines_nothing(Query("d", text, 0), MARIADB) is expected
    assert defines_nothing(Query("d", text, None), MYSQL) is expected


# ---- real servers ----


class Said:
    """An open log, and what it said of a database's tables since it was asked last."""

    def __init__(self, source: MysqlSource, database: str, *names: str) -> None:
        self.source = source
        tables = [TableId(database, name) for name in names]
        schemas = {t: d.schema for t, d in source.describe(tables).items()}
        self.reader = source.open_log(source.prepare(tables, is_first=True), schemas)

    def drain(self) -> tuple[set[str], dict[str, TableError]]:
        """The tables that statements may have changed, and those that failed."""
        again: set[str] = set()
        errors: dict[str, TableError] = {}
        mark = self.source.mark()
        for _ in range(1000):
            batch = self.reader.pull(_LIMITS)
            again |= {t.name for t in batch.unlogged}
            assert {e.code for e in batch.unlogged_errors.values()} <= {"statement_format"}
            assert all("SET SESSION binlog_format" in str(e.action) for e in batch.unlogged_errors.values())
            assert batch.unlogged_errors.keys() == batch.unlogged.keys()
            errors |= {t.name: e for t, e in batch.table_errors.items()}
            if mark in batch.marks:
                return again, errors
        raise AssertionError("the mark did not come")


@pytest.fixture
def listen(source_of: Make) -> Iterator[Callable[..., Said]]:
    made: list[Said] = []

    def make(database: MysqlDatabase, *names: str, **settings: Any) -> Said:
        made.append(Said(source_of(database.server, **settings), database.name, *names))
        return made[-1]

    yield make
    for said in made:
        said.reader.close()


Listen = Callable[..., Said]

NAMES = ("t", "u", "parent", "child", "quiet")

_OBJECTS = (
    "CREATE TABLE log (id int)",
    "CREATE TABLE upd (id int)",
    "CREATE TABLE del (id int)",
    "CREATE TABLE chain (id int)",
    "CREATE TABLE other (id int)",
    "INSERT INTO upd VALUES (1), (2)",
    "INSERT INTO del VALUES (1), (2), (3), (4)",
    "CREATE TRIGGER g1 AFTER INSERT ON chain FOR EACH ROW INSERT INTO `{d}`.u VALUES (NEW.id, 1)",
    "CREATE TRIGGER g2 BEFORE UPDATE ON upd FOR EACH ROW UPDATE `{d}`.t SET a = a + 1",
    "CREATE TRIGGER g3 BEFORE DELETE ON del FOR EACH ROW DELETE FROM `{d}`.t WHERE id = OLD.id",
    # The trigger of a table that a trigger changes.
    "CREATE TRIGGER `{d}`.g4 AFTER INSERT ON `{d}`.u FOR EACH ROW UPDATE t SET a = a + 1",
    "CREATE VIEW v AS SELECT * FROM `{d}`.t",
    "CREATE VIEW nested AS SELECT * FROM v WHERE id < 1000",
    "CREATE FUNCTION f(x int) RETURNS int MODIFIES SQL DATA BEGIN UPDATE `{d}`.t SET a = x; RETURN x; END",
    "CREATE FUNCTION deep(x int) RETURNS int MODIFIES SQL DATA RETURN f(x)",
    "CREATE VIEW calls AS SELECT id, f(id) AS x FROM log",
    "CREATE PROCEDURE p() BEGIN INSERT INTO other VALUES (1); DELETE FROM `{d}`.u WHERE id = 99; END",
)


@pytest.fixture
def app(mysql_database: MysqlDatabase) -> Iterator[MysqlDatabase]:
    """A database of objects that lead into the first one, which has tables of its own."""
    mysql_database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, a int)" for name in ("t", "u", "parent", "quiet")),
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO parent VALUES (1, 1), (2, 2)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
    )
    mysql_database.server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    with mysql_database.server.database() as app:
        app.execute(*(statement.format(d=mysql_database.name) for statement in _OBJECTS))
        yield app


@pytest.fixture
def as_statements(app: MysqlDatabase) -> Iterator[Callable[..., None]]:
    """Executes statements in a session that logs them as such, in the database of the objects."""
    with closing(app.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")

        def run(*statements: str) -> None:
            for statement in statements:
                cursor.execute(statement)

        yield run


def test_a_statement_concerns_the_tables_that_it_can_reach(
    mysql_database: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    said = listen(mysql_database, *NAMES, foreign_keys="warn")
    d = mysql_database.name
    expected: dict[str, set[str]] = {
        "INSERT INTO log VALUES (1)": set(),
        "INSERT INTO /* {d}.quiet */ `log` VALUES (2)": {"quiet"},
        "INSERT INTO /*!50000 log */ VALUES (1)": set(),
        "UPDATE `{d}`.`t` SET a = 5": {"t"},
        "UPDATE v SET a = a + 1": {"t"},
        "UPDATE nested SET a = a + 1": {"t"},
        "INSERT INTO chain VALUES (7)": {"t", "u"},
        "UPDATE upd SET id = id + 10 WHERE id = 1": {"t"},
        "DELETE FROM del WHERE id = 1": {"t"},
        "DELETE del FROM del JOIN log ON del.id = log.id": {"t"},
        "UPDATE log, `{d}`.quiet SET log.id = 5, quiet.a = 6": {"quiet"},
        "INSERT INTO log VALUES (f(3))": {"t"},
        "INSERT INTO log VALUES (deep(3))": {"t"},
        "INSERT INTO log SELECT x FROM calls LIMIT 1": {"t"},
        "INSERT INTO log SELECT id FROM `{d}`.quiet": {"quiet"},
        "SELECT f(4)": {"t"},
        "DO deep(4)": {"t"},
        # Its statements are logged, one by one.
        "CALL p()": {"t", "u"},
        "DELETE FROM `{d}`.parent WHERE id = 1": {"parent", "child"},
        "REPLACE INTO log SELECT 1": set(),
    }  # fmt: skip
    found = {}
    for statement in expected:
        as_statements(statement.format(d=d))
        found[statement], errors = said.drain()
        assert errors == {}, statement
    assert found == expected


def test_a_prepared_statement_is_logged_with_its_text(
    mysql_database: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    said = listen(mysql_database, *NAMES, foreign_keys="warn")
    as_statements(
        f"PREPARE s FROM 'INSERT INTO `{mysql_database.name}`.quiet VALUES (?, 1)'", "SET @a = 5", "EXECUTE s USING @a"
    )
    assert said.drain() == ({"quiet"}, {})


def test_what_was_defined_since_may_have_been_something_else_then(
    mysql_database: MysqlDatabase, app: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    changes = (
        "CREATE TRIGGER g9 AFTER INSERT ON log FOR EACH ROW SET @a = 1", "DROP TRIGGER g1", "DROP FUNCTION deep", "DROP VIEW nested",
        "ALTER VIEW v AS SELECT 1 AS a", "RENAME TABLE other TO elsewhere", "ALTER TABLE elsewhere ENGINE = MyISAM", "DROP PROCEDURE p",
    )  # fmt: skip
    for change in changes:
        said = listen(mysql_database, *NAMES, foreign_keys="warn")
        # Both are in the log before any of it is read.
        as_statements("INSERT INTO log VALUES (1)")
        app.execute(change)
        again, errors = said.drain()
        assert again == set(), change
        assert {name: error.code for name, error in errors.items()} == dict.fromkeys(NAMES, "statement_format"), change
        said.reader.close()


def test_what_was_defined_before_is_read_again(
    mysql_database: MysqlDatabase, app: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    said = listen(mysql_database, *NAMES, foreign_keys="warn")
    as_statements("INSERT INTO log VALUES (1)")
    assert said.drain() == (set(), {})
    app.execute(
        f"CREATE TRIGGER g9 AFTER INSERT ON log FOR EACH ROW UPDATE `{mysql_database.name}`.quiet SET a = 1",
    )
    as_statements("INSERT INTO log VALUES (2)")
    assert said.drain() == ({"quiet"}, {})
    app.execute("DROP TRIGGER g9")
    as_statements("INSERT INTO log VALUES (3)")
    assert said.drain() == (set(), {})


def test_what_is_not_understood_concerns_every_table(
    mysql_database: MysqlDatabase, app: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    app.execute(
        "CREATE TABLE m1 (id int) ENGINE = MyISAM",
        "CREATE TABLE merged (id int) ENGINE = MERGE UNION = (m1) INSERT_METHOD = LAST",
    )
    as_statements("CREATE TEMPORARY TABLE tmp (id int)")
    statements = (
        "INSERT INTO tmp VALUES (1)",
        "INSERT INTO merged VALUES (1)",
        "CREATE TABLE made SELECT id FROM other",
    )
    for statement in statements:
        said = listen(mysql_database, *NAMES, foreign_keys="warn")
        as_statements(statement)
        _, errors = said.drain()
        assert {name: e.code for name, e in errors.items()} == dict.fromkeys(NAMES, "statement_format"), statement
        said.reader.close()


def test_an_account_that_does_not_see_everything_proves_nothing(
    mysql_database: MysqlDatabase, as_statements: Callable[..., None], listen: Listen
) -> None:
    server = mysql_database.server
    monitor = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    server.execute(
        "CREATE USER seer IDENTIFIED BY 'Pw-1234567'",
        f"GRANT REPLICATION SLAVE, {monitor}, PROCESS, SELECT ON *.* TO seer",
    )
    account = {"user": "seer", "password": Secret("Pw-1234567")}
    try:
        said = listen(mysql_database, *NAMES, foreign_keys="warn", **account)
        as_statements("INSERT INTO log VALUES (1)")
        again, errors = said.drain()
        assert (again, set(errors)) == (set(), set(NAMES))
        said.reader.close()
        server.execute("GRANT TRIGGER, SHOW VIEW ON *.* TO seer")
        said = listen(mysql_database, *NAMES, foreign_keys="warn", **account)
        as_statements("INSERT INTO chain VALUES (77)")
        assert said.drain() == ({"t", "u"}, {})
    finally:
        server.execute("DROP USER seer")


@pytest.mark.parametrize(
    "column",
    [
        "a int DEFAULT (f(1))",
        "a int, b int AS (f(a)) STORED",
        "a int, b int AS (f(a)) VIRTUAL",
        "a int CHECK (f(a) > 0)",
    ],
)
def test_servers_refuse_stored_functions_in_columns(app: MysqlDatabase, column: str) -> None:
    """A statement need not be followed into defaults, generated columns and checks."""
    import pymysql

    with pytest.raises(pymysql.MySQLError):
        app.execute(f"CREATE TABLE refused ({column})")
