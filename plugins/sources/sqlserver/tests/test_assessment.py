"""What `validate` finds, on the model: each finding is there while something is wrong, and gone after its statements were run.

No SQL Server is used: that the statements put a real one in order is what its documentation says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from replicator.config import Secret
from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator.service.configuring.fixing import script
from replicator_source_sqlserver.assessment.server import assess_connection, assess_server
from replicator_source_sqlserver.assessment.tables import assess_table, missing_table
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.instance_names import free_name
from replicator_source_sqlserver.catalogue.server import ServerFacts, cause, read_facts
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector, Session
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.job import Failure
from replicator_testbed.sqlserver.drivers import Driver, connect, library
from replicator_testbed.sqlserver.foreign import server_under_test
from replicator_testbed.sqlserver.model import PASSWORD, USER, SqlServerModel

READER = "reader"
ORDERS = TableId("dbo", "orders")
MARKS = "dbo.replicator_marks"
Run = Callable[[str], None]


class Checked:
    """The findings of the source's check, as an account sees them."""

    def __init__(self, model: SqlServerModel, admin: Run) -> None:
        self.model = model
        self.admin = admin
        self.facts: ServerFacts | None = None

    def __call__(self, *tables: TableId, user: str = READER, **settings: Any) -> list[Problem]:
        address = self.model.address_of(user)
        usual: dict[str, Any] = {"driver": str(library(Driver.FREETDS)), "tls": "disable", "mark_table": MARKS}
        config = SqlServerConfig(
            host=address.host, port=address.port, user=address.user, password=Secret(address.password),
            database=address.database, **{**usual, **settings},
        )  # fmt: skip
        connector = Connector(config)
        session = Session(connector)
        try:
            with session.use("assessing") as connection:
                found = read_tables(connection, tables)
                self.facts = facts = read_facts(connection, config, found.values())
        finally:
            session.close()
            connector.close()
        problems = assess_server(facts, config)
        for table in tables:
            problems += assess_table(found[table], facts, config) if table in found else [missing_table(table)]
        return problems

    def codes(self, *tables: TableId, **settings: Any) -> list[str]:
        """Codes of the findings, notices left out."""
        return [p.code for p in self(*tables, **settings) if p.severity is not Severity.NOTICE]

    def fixed_by_its_sql(self, code: str, *tables: TableId, **settings: Any) -> Problem:
        """The one finding with a code; its statements are run, and it is not found again."""
        (problem,) = [p for p in self(*tables, **settings) if p.code == code]
        assert problem.sql != ()
        for statement in problem.sql:
            assert statement.endswith(";")
            self.admin(statement)
        self.model.capture.scan_all()
        assert [p for p in self(*tables, **settings) if p.code == code] == []
        return problem


@pytest.fixture
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with server_under_test(postgres, readers={READER: PASSWORD}) as model:
        yield model


@pytest.fixture
def admin(model: SqlServerModel) -> Iterator[Run]:
    connection = connect(Driver.FREETDS, model.address)

    def run(*statements: str) -> None:
        for statement in statements:
            connection.execute(statement)

    yield run
    connection.close()


@pytest.fixture
def bare(model: SqlServerModel, admin: Run) -> Checked:
    """A database without CDC, and a table that the account may read."""
    admin("CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, note nvarchar(40))")
    admin(f"GRANT SELECT ON dbo.orders TO {READER}")
    admin(f"GRANT VIEW SERVER PERFORMANCE STATE TO {READER}")
    return Checked(model, admin)


@pytest.fixture
def check(bare: Checked) -> Checked:
    """A database in order, as the statements of the findings made it, with a table."""
    problems = [p for p in bare(ORDERS) if p.severity is not Severity.NOTICE]
    assert [p.code for p in problems] == ["cdc_disabled", "mark_table", "table_not_captured"]
    for problem in problems:
        for statement in problem.sql:
            bare.admin(statement)
    bare.model.capture.scan_all()
    return bare


def table(admin: Run, columns: str, *, of: str = "t", behind: str = "") -> TableId:
    """A captured table that the account may read."""
    admin(f"CREATE TABLE dbo.{of} ({columns}){behind}")
    admin(f"EXEC sys.sp_cdc_enable_table N'dbo', N'{of}', NULL")
    admin(f"GRANT SELECT ON dbo.{of} TO {READER}")
    admin(f"GRANT SELECT ON cdc.dbo_{of}_CT TO {READER}")
    return TableId("dbo", of)


# -- database and table ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_statements_of_the_findings_make_everything_that_is_needed(bare: Checked) -> None:
    assert bare.codes(ORDERS) == ["cdc_disabled", "mark_table", "table_not_captured"]
    assert bare.fixed_by_its_sql("cdc_disabled", ORDERS).severity is Severity.BLOCKING
    assert bare.codes(ORDERS) == ["mark_table", "table_not_captured"]
    assert bare.fixed_by_its_sql("table_not_captured", ORDERS).severity is Severity.BLOCKING
    assert bare.fixed_by_its_sql("mark_table", ORDERS).severity is Severity.BLOCKING
    assert bare.codes(ORDERS) == []


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("has_mark_table", [False, True])
def test_one_script_puts_a_bare_database_in_order(bare: Checked, admin: Run, *, has_mark_table: bool) -> None:
    others = TableId("dbo", "others")
    admin("CREATE TABLE dbo.others (id int NOT NULL, note nvarchar(max) NULL, PRIMARY KEY (id))")
    admin(f"GRANT SELECT ON dbo.others TO {READER}")
    if has_mark_table:
        admin(f"CREATE TABLE {MARKS} (id int NOT NULL PRIMARY KEY, token varchar(64))")
        admin(f"GRANT SELECT ON {MARKS} TO {READER}")
    bare.model.grant(READER, "SELECT", "msdb", "cdc_jobs")
    found = bare(ORDERS, others)
    assert [p.table for p in found if p.code == "table_not_captured"] == ["dbo.orders", "dbo.others"]
    # The database is what is wrong: while running no table fails for it.
    assert {p.code for p in found if p.severity is Severity.BLOCKING} == {"cdc_disabled", "mark_table"}
    admin(script("shop", found))
    bare.model.capture.scan_all()
    assert [p for p in bare(ORDERS, others) if p.sql or p.severity is not Severity.NOTICE] == []


@pytest.mark.matrix
def test_where_replicator_captures_tables_the_script_is_about_the_database(bare: Checked) -> None:
    found = bare(ORDERS, user=USER, manage_capture=True, mark_table=None)
    assert [p.code for p in found if p.sql] == ["cdc_disabled"]


@pytest.mark.matrix
def test_jobs_that_amazon_rds_hides_are_not_missing(seeing: Checked, model: SqlServerModel) -> None:
    model.capture.fail_over()
    assert seeing.codes(ORDERS) == ["capture_job_missing", "cleanup_job_missing"]
    model.database.execute(
        "CREATE OR REPLACE FUNCTION sqlserver.db_id(wanted text) RETURNS int2 STABLE LANGUAGE sql AS $$ SELECT 6::int2 $$"
    )
    assert seeing.codes(ORDERS) == []


@pytest.mark.matrix
def test_on_amazon_rds_its_own_procedure_switches_it_on(bare: Checked) -> None:
    bare(ORDERS)
    assert bare.facts is not None
    (problem,) = [p for p in assess_server(replace(bare.facts, is_rds=True), config()) if p.code == "cdc_disabled"]
    assert problem.sql == ("EXEC msdb.dbo.rds_cdc_enable_db N'shop';",)


@pytest.mark.matrix
def test_both_drivers_tell_the_same(check: Checked) -> None:
    def facts(driver: Driver) -> ServerFacts:
        check(ORDERS, driver=str(library(driver)))
        assert check.facts is not None
        return replace(check.facts, captured_age=None)  # it grows while we ask

    assert facts(Driver.MICROSOFT) == facts(Driver.FREETDS)


def test_a_table_that_is_missing() -> None:
    assert missing_table(ORDERS).code == "table_missing"


@pytest.mark.matrix
def test_with_manage_capture_what_is_not_captured_is_no_finding(check: Checked, admin: Run) -> None:
    admin("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)")
    settings: dict[str, Any] = {"user": USER, "manage_capture": True}
    assert "table_not_captured" in check.codes(TableId("dbo", "t"), user=USER)
    assert "table_not_captured" not in check.codes(TableId("dbo", "t"), **settings)


@pytest.mark.matrix
def test_manage_capture_needs_the_owner(check: Checked) -> None:
    check.fixed_by_its_sql("privilege_missing", ORDERS, manage_capture=True)


@pytest.mark.matrix
def test_an_account_with_more_than_it_needs(check: Checked) -> None:
    (problem,) = [p for p in check(ORDERS, user=USER) if p.severity is not Severity.NOTICE]
    assert problem.code == "privilege_excess"
    assert problem.message.endswith(f"needs SELECT only, and INSERT and UPDATE on {MARKS}")
    (without,) = [p for p in check(ORDERS, user=USER, mark_table=None) if p.code == "privilege_excess"]
    assert without.message.endswith("needs SELECT only")


@pytest.mark.matrix
def test_a_table_that_the_account_may_not_see_looks_like_none(check: Checked, admin: Run) -> None:
    # [DOC: Metadata visibility configuration]
    admin(f"REVOKE SELECT ON dbo.orders FROM {READER}")
    (problem,) = check(ORDERS)
    assert problem.code == "table_missing"
    assert "GRANT SELECT ON [dbo].[orders]" in str(problem.action)


@pytest.mark.matrix
def test_select_is_missing(check: Checked, admin: Run) -> None:
    # An account that has some other permission still sees the table.
    admin(f"GRANT INSERT ON dbo.orders TO {READER}")
    admin(f"REVOKE SELECT ON dbo.orders FROM {READER}")
    problem = check.fixed_by_its_sql("select_missing", ORDERS)
    assert problem.is_access
    admin(f"REVOKE SELECT ON cdc.dbo_orders_CT FROM {READER}")
    problem = check.fixed_by_its_sql("select_missing", ORDERS)
    assert problem.is_access
    assert problem.sql == ("GRANT SELECT ON [cdc].[dbo_orders_CT] TO [reader];",)


@pytest.mark.matrix
def test_a_column_that_no_instance_captures(check: Checked, admin: Run) -> None:
    admin("ALTER TABLE dbo.orders ADD tax int")
    problem = check.fixed_by_its_sql("column_not_captured", ORDERS)
    assert problem.severity is Severity.BLOCKING
    assert "tax" in problem.message
    assert "@capture_instance = N'dbo_orders_2'" in problem.sql[0]
    # Two are all that there can be: a person decides which of them goes.
    admin("ALTER TABLE dbo.orders ADD tax2 int")
    (again,) = [p for p in check(ORDERS) if p.code == "column_not_captured"]
    assert again.sql == ()
    assert again.action is not None
    for statement in again.action.partition(": ")[2].removesuffix(";").split("; "):
        admin(statement)
    assert "column_not_captured" not in check.codes(ORDERS)


@pytest.mark.matrix
def test_manage_capture_captures_added_columns_by_itself(check: Checked, admin: Run) -> None:
    admin("ALTER TABLE dbo.orders ADD tax int")
    assert "column_not_captured" in check.codes(ORDERS, user=USER)
    assert "column_not_captured" not in check.codes(ORDERS, user=USER, manage_capture=True)
    # Neither of two that others made may be dropped.
    admin("EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL, N'others', @captured_column_list = N'id'")
    assert "column_not_captured" in check.codes(ORDERS, user=USER, manage_capture=True)
    # One that we made may.
    admin("EXEC sys.sp_cdc_disable_table N'dbo', N'orders', N'others'")
    admin("EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL, N'replicator_1', @captured_column_list = N'id'")
    assert "column_not_captured" not in check.codes(ORDERS, user=USER, manage_capture=True)


@pytest.mark.matrix
def test_two_instances_of_others(check: Checked, admin: Run) -> None:
    admin("EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL, N'others'")
    admin(f"GRANT SELECT ON cdc.others_CT TO {READER}")
    (problem,) = [p for p in check(ORDERS) if p.code == "two_capture_instances"]
    assert problem.severity is Severity.WARNING
    assert problem.action is not None
    admin(problem.action.partition(": ")[2])
    assert check.codes(ORDERS) == []


def test_names_of_further_instances_are_free_and_short() -> None:
    long = TableId("dbo", "t" * 128)
    first = free_name(long, ())
    assert len(first) == 100
    second = free_name(long, [first])
    assert len(second) == 100
    assert second != first
    assert free_name(ORDERS, ["DBO_ORDERS", "dbo_orders_2"]) == "dbo_orders_3"


@pytest.mark.matrix
def test_instances_of_tables_whose_names_run_together_are_told_apart(bare: Checked, admin: Run) -> None:
    """No two instances of a database have the same name [DOC: sp_cdc_enable_table]."""
    tables = [TableId("a_b", "c"), TableId("a", "b_c")]
    for one in tables:
        admin(f"CREATE SCHEMA {one.namespace}")
        admin(f"CREATE TABLE {one} (id int NOT NULL PRIMARY KEY)")
        admin(f"GRANT SELECT ON {one} TO {READER}")
    admin(script("shop", bare(*tables)))
    bare.model.capture.scan_all()
    assert bare.codes(*tables) == []
    names = {name for (name,) in bare.model.database.execute("SELECT capture_instance FROM sqlserver.cdc_instances")}
    assert {"a_b_c", "a_b_c_2"} <= names


@pytest.mark.matrix
def test_an_instance_whose_derived_name_is_too_long_is_given_one(bare: Checked, admin: Run) -> None:
    """A name has at most a hundred characters [DOC: sp_cdc_enable_table]. The model's tables cannot have names as long as the instance."""
    long = TableId("s" * 60, "t" * 60)
    admin(f"CREATE SCHEMA {long.namespace}")
    admin(f"CREATE TABLE {long} (id int NOT NULL PRIMARY KEY)")
    admin(f"GRANT SELECT ON {long} TO {READER}")
    bare.fixed_by_its_sql("cdc_disabled", ORDERS)
    (problem,) = [p for p in bare(long) if p.code == "table_not_captured"]
    enable, grant = problem.sql
    name = f"{long.namespace}_{long.name}"[:100]
    assert f"@capture_instance = N'{name}'" in enable
    assert f"[cdc].[{name}_CT]" in grant
    with pytest.raises(pyodbc.Error, match="22927"):
        admin(enable.replace(f", @capture_instance = N'{name}'", ""))


@pytest.mark.matrix
def test_a_name_that_an_instance_of_another_table_has_is_not_given_again(check: Checked, admin: Run) -> None:
    admin("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)")
    admin(f"GRANT SELECT ON dbo.t TO {READER}")
    admin("EXEC sys.sp_cdc_enable_table N'dbo', N'orders', NULL, @capture_instance = N'DBO_T'")
    problem = check.fixed_by_its_sql("table_not_captured", TableId("dbo", "t"))
    assert "@capture_instance = N'dbo_t_2'" in problem.sql[0]
    # The server derives the name of others, which is not given then.
    assert "@capture_instance" not in str(check(ORDERS, mark_table="dbo.mark_table")[0].sql)


# -- columns ---------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_partitions_that_may_be_switched(check: Checked, admin: Run) -> None:
    admin("CREATE PARTITION FUNCTION by_day (date) AS RANGE RIGHT FOR VALUES ('20240101')")
    admin("CREATE PARTITION SCHEME by_day AS PARTITION by_day ALL TO ([PRIMARY])")
    named = table(admin, "id int NOT NULL, d date NOT NULL, PRIMARY KEY (id, d)", behind=" ON by_day(d)")
    problem = check.fixed_by_its_sql("partition_switch", named)
    assert problem.severity is Severity.BLOCKING
    assert check.codes(named) == ["two_capture_instances"]
    # One that is not captured yet is captured so from the beginning.
    admin("EXEC sys.sp_cdc_disable_table N'dbo', N't', N'all'")
    check.fixed_by_its_sql("table_not_captured", named)
    assert check.codes(named) == []
    assert "partition_switch" not in check.codes(ORDERS), "it is not partitioned"


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "is_enabled", "codes"), [(0, True, ["rows_filtered"]), (0, False, []), (1, True, [])])
def test_a_security_policy_that_filters_rows(
    check: Checked, model: SqlServerModel, admin: Run, kind: int, is_enabled: bool, codes: list[str]
) -> None:
    """One that only blocks changes hides nothing. Who may not see definitions is not shown any [DOC: sys.security_predicates]."""
    number = catalogued(check).object_id
    model.database.execute(
        "INSERT INTO sqlserver.security_predicates (target_object_id, predicate_type, is_enabled) VALUES (%s, %s, %s)",
        [number, kind, is_enabled],
    )
    assert check.codes(ORDERS) == []
    admin(f"GRANT VIEW DEFINITION TO {READER}")
    assert check.codes(ORDERS) == codes


@pytest.mark.matrix
def test_a_clustered_columnstore_index_bars_capture(check: Checked, admin: Run) -> None:
    # [DOC: CREATE COLUMNSTORE INDEX]
    admin("CREATE TABLE dbo.facts (id int NOT NULL PRIMARY KEY NONCLUSTERED, amount int)")
    admin("CREATE CLUSTERED COLUMNSTORE INDEX stored ON dbo.facts")
    admin(f"GRANT SELECT ON dbo.facts TO {READER}")
    named = TableId("dbo", "facts")
    managing: dict[str, Any] = {"user": USER, "manage_capture": True}
    for settings in ({}, managing):
        (problem,) = [p for p in check(named, ORDERS, **settings) if p.severity is Severity.BLOCKING]
        assert (problem.code, problem.table, problem.sql) == ("columnstore_not_captured", "dbo.facts", ())
        assert "change_tracking" in str(problem.action)
    with pytest.raises(pyodbc.Error, match="35353"):
        admin("EXEC sys.sp_cdc_enable_table N'dbo', N'facts', NULL")
    admin("DROP INDEX stored ON dbo.facts")
    assert check.codes(named) == ["table_not_captured"]


@pytest.mark.matrix
def test_partitions_that_have_to_be_switched_can_be_accepted(check: Checked, admin: Run) -> None:
    admin("CREATE PARTITION FUNCTION by_day (date) AS RANGE RIGHT FOR VALUES ('20240101')")
    admin("CREATE PARTITION SCHEME by_day AS PARTITION by_day ALL TO ([PRIMARY])")
    named = table(admin, "id int NOT NULL, d date NOT NULL, PRIMARY KEY (id, d)", behind=" ON by_day(d)")
    (refused,) = [p for p in check(named) if p.code == "partition_switch"]
    assert refused.action is not None
    assert "partition_switch: accept" in refused.action
    (accepted,) = [p for p in check(named, partition_switch="accept") if p.code == "partition_switch"]
    assert (accepted.severity, accepted.sql) == (Severity.WARNING, ())
    assert "replicator snapshot NAME dbo.t" in str(accepted.action)
    # What is not captured yet is captured so that they can be switched.
    admin("EXEC sys.sp_cdc_disable_table N'dbo', N't', N'all'")
    check.fixed_by_its_sql("table_not_captured", named, partition_switch="accept")
    assert "partition_switch" in check.codes(named, partition_switch="accept")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("version", "permission"), [("15.0.4000.0", "VIEW SERVER STATE"), ("16.0.4000.0", "VIEW SERVER PERFORMANCE STATE")]
)
def test_an_account_that_is_not_shown_who_waits(
    check: Checked, model: SqlServerModel, admin: Run, version: str, permission: str
) -> None:
    """A chunk could not give way to an ALTER TABLE."""
    model.change(version=version)
    admin(f"REVOKE VIEW SERVER PERFORMANCE STATE FROM {READER}")
    (found,) = [p for p in check(ORDERS, mark_table=None) if p.code == "sessions_hidden"]
    assert "the server's clock" in found.message
    problem = check.fixed_by_its_sql("sessions_hidden", ORDERS)
    assert problem.severity is Severity.WARNING
    assert "clock" not in problem.message
    assert problem.sql == (f"USE master; GRANT {permission} TO [{READER}]; USE [shop];",)


@pytest.mark.matrix
def test_text_of_another_code_page(check: Checked, admin: Run) -> None:
    named = table(
        admin,
        "id int NOT NULL PRIMARY KEY, a varchar(20) COLLATE Polish_CI_AS NOT NULL, b nvarchar(20) COLLATE Polish_CI_AS,"
        " c varchar(20) COLLATE Latin1_General_CS_AS",
    )
    problem = check.fixed_by_its_sql("mixed_collations", named)
    assert problem.severity is Severity.BLOCKING
    # Without its collation it would get the database's, and might be compared otherwise.
    assert problem.sql == ("ALTER TABLE [dbo].[t] ALTER COLUMN [a] nvarchar(20) COLLATE Polish_CI_AS NOT NULL;",)


@pytest.mark.matrix
def test_a_key_of_another_code_page_is_left_to_a_person(check: Checked, admin: Run) -> None:
    named = table(admin, "id varchar(20) COLLATE Polish_CI_AS NOT NULL PRIMARY KEY")
    (problem,) = [p for p in check(named) if p.code == "mixed_collations"]
    assert problem.sql == ()
    assert problem.action is not None


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["varchar(max)", "nvarchar(max)", "varbinary(max)", "text", "ntext", "image", "xml"])
def test_large_values_that_the_server_would_refuse(check: Checked, admin: Run, kind: str) -> None:
    named = table(admin, f"id int NOT NULL PRIMARY KEY, v {kind}")
    problem = check.fixed_by_its_sql("large_values_refused", named)
    assert problem.severity is Severity.WARNING
    admin(f"DROP TABLE dbo.{named.name}")
    # Without a key an update without the value would be of a row that nobody knows.
    unkeyed = table(admin, f"id int NOT NULL, v {kind}", of="u")
    assert [p.code for p in check(unkeyed) if p.table and p.severity is Severity.BLOCKING] == ["key_needed"]


@pytest.mark.matrix
def test_statements_that_change_a_part_of_an_old_large_value(check: Checked, admin: Run) -> None:
    named = table(admin, "id int NOT NULL PRIMARY KEY, a text, b varchar(max), c image")
    (problem,) = [p for p in check(named) if p.code == "updatetext_not_tracked"]
    assert problem.severity is Severity.WARNING
    assert problem.message.startswith("its columns a, c are")
    assert "source.capture: cdc" not in str(problem.action)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("changed", "named"),
    [({"is_rds": True}, "parameter group"), ({"engine": 5}, "has no sp_configure")],
)
def test_large_values_where_nobody_can_configure_the_server(
    check: Checked, changed: dict[str, Any], named: str, admin: Run
) -> None:
    large = table(admin, "id int NOT NULL PRIMARY KEY, v nvarchar(max)")
    check(large)
    assert check.facts is not None
    found = assess_table(catalogued(check, large), replace(check.facts, **changed), config())
    (problem,) = [p for p in found if p.code == "large_values_refused"]
    assert problem.sql == ()
    assert named in str(problem.action)


@pytest.mark.matrix
def test_a_server_that_has_no_view_of_its_configuration(check: Checked, model: SqlServerModel, admin: Run) -> None:
    """[DOC: sys.configurations] It is documented for SQL Server, not for Azure SQL Database."""
    large = table(admin, "id int NOT NULL PRIMARY KEY, v nvarchar(max)")
    model.database.execute("DROP VIEW sys.configurations")
    model.database.changed()
    assert check.codes(large) == []
    assert check.facts is not None
    assert check.facts.text_size_max is None


@pytest.mark.matrix
def test_a_table_without_a_key(check: Checked, admin: Run) -> None:
    named = table(admin, "id int NOT NULL, v nvarchar(20)")
    assert check.fixed_by_its_sql("snapshot_isolation_off", named).severity is Severity.BLOCKING
    assert check.codes(named) == ["no_key"]
    assert check.codes(table(admin, "id float NOT NULL PRIMARY KEY, v nvarchar(20)", of="u")) == ["no_key"]
    (bits,) = [p for p in check(table(admin, "id int NOT NULL, v bit NOT NULL", of="v")) if p.code == "no_key"]
    assert "leave v (bit NOT NULL) out of a deletion" in bits.message
    assert bits.action is not None
    admin(bits.action.partition("no deletion fails it: ")[2])
    (cured,) = [p for p in check(TableId("dbo", "v")) if p.code == "no_key"]
    assert "bit" not in f"{cured.message} {cured.action}"
    # Reports of a bit that is missing in the log of a deletion are of those that are NOT NULL, where it is noticed.
    assert check.codes(table(admin, "id int NOT NULL, v bit NULL", of="w")) == ["no_key"]


@pytest.mark.matrix
def test_computed_columns_and_the_seventh_digit_are_said(check: Checked, admin: Run) -> None:
    named = table(admin, "id int NOT NULL PRIMARY KEY, twice AS (id * 2), at datetime2(7), six datetime2(6)")
    notices = {p.code: p.message for p in check(named) if p.table and p.severity is Severity.NOTICE}
    assert "twice" in notices["generated_columns"]
    assert "columns at the" in notices["type_changed"]
    assert check.codes(named) == []


@pytest.mark.matrix
def test_columns_that_are_masked(check: Checked, admin: Run) -> None:
    named = table(admin, "id int NOT NULL PRIMARY KEY, mail nvarchar(20) MASKED WITH (FUNCTION = 'email()')")
    problem = check.fixed_by_its_sql("column_hidden", named)
    assert problem.severity is Severity.BLOCKING
    # SQL Server 2022: for this table alone.
    admin(f"REVOKE UNMASK FROM {READER}")
    assert check.codes(named) == ["column_hidden"]
    admin(f"GRANT UNMASK ON dbo.t TO {READER}")
    assert check.codes(named) == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"is_encrypted": True}, "column_hidden"),
        ({"is_readable": False}, "select_missing"),
    ],
)
def test_columns_that_the_model_cannot_have(check: Checked, changed: dict[str, bool], code: str) -> None:
    def found(**columns: bool) -> list[str]:
        check(ORDERS)
        assert check.facts is not None
        known = check.facts.tables[orders.object_id]
        note = replace(known.columns["note"], **columns)
        facts = replace(check.facts, tables={orders.object_id: replace(known, columns={**known.columns, "note": note})})
        return [p.code for p in assess_table(orders, facts, config()) if p.severity is Severity.BLOCKING]

    orders = catalogued(check)
    assert found() == []
    assert found(**changed) == [code]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("v sql_variant", "column v has the type sql_variant"),
        ("a int SPARSE NULL, v xml COLUMN_SET FOR ALL_SPARSE_COLUMNS", "column v is a column set"),
    ],
)
def test_a_column_that_cannot_be_replicated_refuses_its_table_and_names_a_remedy(
    check: Checked, admin: Run, columns: str, named: str
) -> None:
    refused = table(admin, f"id int NOT NULL PRIMARY KEY, {columns}")
    (problem,) = [p for p in check(refused, ORDERS) if p.severity is Severity.BLOCKING]
    assert (problem.code, problem.table) == ("unsupported_type", str(refused))
    assert named in problem.message
    assert problem.action is not None
    assert "Exclude the table" in problem.action
    admin("ALTER TABLE dbo.t DROP COLUMN v")
    assert check.codes(refused, ORDERS) == []


@pytest.mark.matrix
def test_a_change_table_without_command_id(check: Checked) -> None:
    orders = catalogued(check)
    check(ORDERS)
    assert check.facts is not None
    known = replace(check.facts.tables[orders.object_id], unordered=frozenset({"dbo_orders"}))
    found = assess_table(orders, replace(check.facts, tables={orders.object_id: known}), config())
    assert [(p.code, p.severity) for p in found] == [("command_id_missing", Severity.BLOCKING)]
    assert "dbo_orders_2" in found[0].sql[0]


@pytest.mark.matrix
def test_the_order_in_a_change_table_is_known_by_its_columns(check: Checked, model: SqlServerModel) -> None:
    model.database.execute('ALTER TABLE cdc."dbo_orders_CT" DROP COLUMN "__$command_id"')
    model.database.changed()
    assert check.fixed_by_its_sql("command_id_missing", ORDERS).severity is Severity.BLOCKING
    assert check.codes(ORDERS) == ["two_capture_instances"]


@pytest.mark.matrix
def test_values_of_a_variant_can_be_put_into_another_column(check: Checked, admin: Run) -> None:
    """As one batch, which the server compiles before it runs any of it."""
    named = table(admin, "id int NOT NULL PRIMARY KEY, v sql_variant")
    admin("INSERT INTO dbo.t VALUES (1, N'it''s')")
    (problem,) = [p for p in check(named) if p.code == "unsupported_type"]
    assert problem.action is not None
    admin(problem.action.partition(": ")[2])
    assert check.codes(named) == ["column_not_captured"]
    assert check.model.database.execute("SELECT v_text FROM dbo.t") == [("it's",)]


# -- jobs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def seeing(check: Checked, model: SqlServerModel, admin: Run) -> Checked:
    """An account that may see the jobs, and the server's state."""
    admin(f"GRANT VIEW SERVER STATE TO {READER}")
    admin(f"GRANT VIEW DATABASE STATE TO {READER}")
    for view in ("cdc_jobs", "sysjobs", "sysjobactivity"):
        model.grant(READER, "SELECT", "msdb", view)
    assert check.codes(ORDERS) == []
    return check


@pytest.mark.matrix
def test_what_the_account_may_not_know_is_no_finding(check: Checked, model: SqlServerModel) -> None:
    model.capture.fail_over()
    model.change(is_agent_running=False)
    assert check.codes(ORDERS) == []
    assert check.facts is not None
    assert (check.facts.jobs, check.facts.is_agent_running, check.facts.retention) == (None, None, None)


@pytest.mark.matrix
def test_after_a_failover_the_jobs_are_missing(seeing: Checked, model: SqlServerModel) -> None:
    model.capture.fail_over()
    assert seeing.codes(ORDERS) == ["capture_job_missing", "cleanup_job_missing"]
    seeing.fixed_by_its_sql("capture_job_missing", ORDERS)
    seeing.fixed_by_its_sql("cleanup_job_missing", ORDERS)
    assert seeing.codes(ORDERS) == []


@pytest.mark.matrix
def test_a_capture_job_that_was_stopped(seeing: Checked, admin: Run) -> None:
    admin("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    problem = seeing.fixed_by_its_sql("capture_job_stopped", ORDERS)
    assert problem.severity is Severity.WARNING, "nothing is lost, and a start waits for it"


@pytest.mark.matrix
def test_a_capture_job_that_is_disabled(seeing: Checked, model: SqlServerModel, admin: Run) -> None:
    model.database.execute("UPDATE sqlserver.cdc_jobs SET is_enabled = false WHERE job_type = 'capture'")
    (running,) = [p for p in seeing(ORDERS) if p.code == "capture_job_stopped"]
    assert running.sql == ("EXEC msdb.dbo.sp_update_job @job_name = N'cdc.shop_capture', @enabled = 1;",)
    assert "still runs" in running.message
    admin("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    problem = seeing.fixed_by_its_sql("capture_job_stopped", ORDERS)
    assert problem.sql == (*running.sql, "EXEC sys.sp_cdc_start_job @job_type = N'capture';")
    assert problem.severity is Severity.WARNING


@pytest.mark.matrix
@pytest.mark.parametrize("is_running", [True, False])
def test_a_capture_job_that_a_schedule_runs(seeing: Checked, admin: Run, is_running: bool) -> None:
    admin("EXEC sys.sp_cdc_change_job @job_type = N'capture', @continuous = 0")
    if not is_running:
        admin("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    problem = seeing.fixed_by_its_sql("capture_job_scheduled", ORDERS)
    assert problem.severity is Severity.WARNING
    assert seeing.codes(ORDERS) == []


@pytest.mark.matrix
@pytest.mark.parametrize("value", ["ALLOWED", "FORCED"])
def test_commits_that_are_seen_before_they_are_on_disk(check: Checked, admin: Run, value: str) -> None:
    admin(f"ALTER DATABASE CURRENT SET DELAYED_DURABILITY = {value}")
    assert check.fixed_by_its_sql("delayed_durability", ORDERS).severity is Severity.WARNING
    assert check.codes(ORDERS) == []


@pytest.mark.matrix
def test_with_a_publication_the_log_reader_captures(seeing: Checked, model: SqlServerModel, admin: Run) -> None:
    """A capture job is not allowed there [DOC: sys.sp_cdc_add_job]: nobody is told to make one."""
    model.change(is_published=True)
    model.capture.fail_over()
    (problem,) = [p for p in seeing(ORDERS) if p.severity is not Severity.NOTICE]
    assert problem.code == "cleanup_job_missing"
    with pytest.raises(pyodbc.Error, match="22994"):
        admin("EXEC sys.sp_cdc_add_job @job_type = N'capture'")
    for statement in problem.sql:
        admin(statement)
    model.set_clock(timedelta(minutes=11))
    (stalled,) = [p for p in seeing(ORDERS) if p.severity is not Severity.NOTICE]
    assert stalled.code == "capture_stalled"
    assert "Log Reader Agent" in str(stalled.action)
    assert "sp_cdc_add_job" not in str(stalled.action)


@pytest.mark.matrix
@pytest.mark.parametrize("is_captured", [True, False])
def test_capture_that_stands_still_is_seen_without_a_right(
    check: Checked, model: SqlServerModel, admin: Run, is_captured: bool
) -> None:
    """The time of the newest commit that was captured, or else of the first capture instance."""
    if is_captured:
        admin("INSERT INTO dbo.orders VALUES (1, N'a')")
        model.capture.scan_all()
    else:
        model.database.execute("DELETE FROM sqlserver.cdc_lsn_time")
    model.set_clock(timedelta(seconds=600))
    assert check.codes(ORDERS) == []
    model.set_clock(timedelta(minutes=11))
    (problem,) = [p for p in check(ORDERS) if p.severity is not Severity.NOTICE]
    assert (problem.code, problem.severity) == ("capture_stalled", Severity.WARNING)
    assert "11 minutes" in problem.message
    assert "EXEC sys.sp_cdc_start_job @job_type = N'capture';" in str(problem.action)
    admin("INSERT INTO dbo.orders VALUES (2, N'b')")
    model.capture.scan_all()
    assert check.codes(ORDERS) == []


@pytest.mark.matrix
def test_what_says_why_nothing_is_captured_is_said_alone(seeing: Checked, model: SqlServerModel) -> None:
    model.change(is_agent_running=False)
    model.set_clock(timedelta(days=2))
    assert seeing.codes(ORDERS) == ["agent_stopped"]


@pytest.mark.matrix
def test_whether_agent_runs_is_shown_with_a_permission_of_its_own(
    check: Checked, model: SqlServerModel, admin: Run
) -> None:
    """[DOC: sys.dm_server_services, SQL Server 2022] What shows waiting sessions does not show services."""
    model.change(is_agent_running=False)
    admin(f"GRANT VIEW SERVER PERFORMANCE STATE TO {READER}")
    assert check.codes(ORDERS) == []
    admin(f"GRANT VIEW SERVER SECURITY STATE TO {READER}")
    assert check.codes(ORDERS) == ["agent_stopped"]


@pytest.mark.matrix
def test_agent_that_does_not_run(seeing: Checked, model: SqlServerModel) -> None:
    model.change(is_agent_running=False)
    assert seeing.codes(ORDERS) == ["agent_stopped"]
    model.change(is_agent_running=True)
    assert seeing.codes(ORDERS) == []


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "named"),
    [(2628, "sp_cdc_disable_table"), (8115, "sp_cdc_disable_table"), (913, "stop writing"), (1105, "SELECT")],
)
def test_a_capture_job_that_fails(seeing: Checked, model: SqlServerModel, admin: Run, number: int, named: str) -> None:
    model.capture.failure = Failure(number=number, text="String or binary data would be truncated: 'secret'.")
    admin("INSERT INTO dbo.orders VALUES (1, N'a')")
    model.capture.scan()
    (problem,) = [p for p in seeing(ORDERS) if p.code == "capture_failing"]
    assert str(number) in problem.message
    assert named in str(problem.action)
    assert "secret" not in problem.message
    model.capture.failure = None
    model.capture.scan_all()
    assert seeing.codes(ORDERS) == []


@pytest.mark.parametrize(
    ("errors", "number"),
    [
        ([(7, 22859), (7, 22863), (7, 2628)], 2628),
        ([(7, 2628), (7, 22863)], 2628),
        ([(0, 22864), (7, 22859), (7, 2628)], 2628),
        # What an earlier scan failed with may have been put in order.
        ([(8, 22859), (8, 22858), (7, 2628)], 22859),
        ([(0, 18752), (8, 22859)], 18752),
    ],
)
def test_the_error_that_others_refer_to_is_the_one_that_is_told(errors: list[tuple[int, int]], number: int) -> None:
    assert cause(errors) == number


@pytest.mark.matrix
def test_changes_that_are_not_kept_for_long(seeing: Checked, admin: Run) -> None:
    (usual,) = [p for p in seeing(ORDERS) if p.code == "log_retention"]
    assert (usual.severity, "3.0 days" in usual.message) == (Severity.NOTICE, True)
    admin("EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = 60")
    (short,) = [p for p in seeing(ORDERS) if p.code == "log_retention"]
    assert short.severity is Severity.WARNING
    for statement in short.sql:
        admin(statement)
    assert seeing.codes(ORDERS) == []
    assert seeing.facts is not None
    assert seeing.facts.retention == timedelta(days=7)


# -- mark table -------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "broken",
    [
        ["DROP TABLE dbo.replicator_marks"],
        ["EXEC sys.sp_cdc_disable_table N'dbo', N'replicator_marks', N'all'"],
        [f"REVOKE UPDATE ON dbo.replicator_marks FROM {READER}"],
        [f"REVOKE INSERT ON dbo.replicator_marks FROM {READER}"],
        [f"REVOKE SELECT ON cdc.dbo_replicator_marks_CT FROM {READER}"],
    ],
)
def test_a_mark_table_that_cannot_be_used(check: Checked, admin: Run, broken: list[str]) -> None:
    for statement in broken:
        admin(statement)
    assert check.fixed_by_its_sql("mark_table", ORDERS).severity is Severity.BLOCKING
    assert check.codes(ORDERS) == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    "columns", ["id int NOT NULL, token varchar(64)", "id int NOT NULL PRIMARY KEY, token int", "id int PRIMARY KEY"]
)
def test_a_mark_table_of_another_form(check: Checked, admin: Run, columns: str) -> None:
    named = table(admin, columns)
    admin(f"GRANT INSERT, UPDATE ON dbo.t TO {READER}")
    (problem,) = [p for p in check(mark_table=str(named)) if p.code == "mark_table"]
    assert problem.severity is Severity.BLOCKING


@pytest.mark.matrix
def test_without_a_mark_table(check: Checked, admin: Run) -> None:
    (problem,) = [p for p in check(ORDERS, mark_table=None) if p.code == "no_mark_table"]
    assert problem.severity is Severity.NOTICE
    admin("EXEC sys.sp_cdc_disable_table N'dbo', N'replicator_marks', N'all'")
    admin("DROP TABLE dbo.replicator_marks")
    assert problem.action is not None
    for statement in problem.action.partition("after: ")[2].removesuffix(";").split("; "):
        admin(statement)
    assert check.codes(ORDERS) == []


# -- server -------------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, []),
        ({"edition": "Express Edition (64-bit)"}, ["edition_without_cdc"]),
        ({"edition": "Web Edition (64-bit)"}, ["edition_without_cdc"]),
        ({"edition": "Standard Edition (64-bit)"}, []),
        ({"version": "13.0.5026.0"}, ["server_too_old"]),
        ({"is_read_only": True}, ["source_is_replica", "mark_table"]),
        # Its versions are counted from 12, and it has other permissions.
        ({"edition": "SQL Azure", "version": "12.0.2000.8"}, ["sessions_hidden"]),
        # A Managed Instance has the same version and edition, and the permissions of a server.
        ({"edition": "SQL Azure", "version": "12.0.2000.8", "engine_edition": 8}, []),
        ({"is_accelerated": True}, ["accelerated_recovery"]),
        ({"is_accelerated": True, "version": "15.0.4430.1"}, ["accelerated_recovery"]),
        # SQL Server 2022 CU 18. The column of the catalogue came with SQL Server 2019.
        ({"is_accelerated": True, "version": "16.0.4185.3"}, []),
        ({"is_accelerated": True, "version": "14.0.3480.1"}, []),
        ({"is_accelerated": True, "version": "12.0.2000.8", "engine_edition": 8}, []),
    ],
)
def test_servers(check: Checked, model: SqlServerModel, changed: dict[str, Any], codes: Sequence[str]) -> None:
    model.change(**changed)
    assert check.codes(ORDERS) == list(codes)


@pytest.mark.matrix
def test_a_managed_instance_has_the_permissions_of_an_older_server(
    check: Checked, model: SqlServerModel, admin: Run
) -> None:
    model.change(edition="SQL Azure", version="12.0.2000.8", engine_edition=8)
    admin(f"REVOKE VIEW SERVER PERFORMANCE STATE FROM {READER}")
    problem = check.fixed_by_its_sql("sessions_hidden", ORDERS)
    assert problem.sql == (f"USE master; GRANT VIEW SERVER STATE TO [{READER}]; USE [shop];",)


@pytest.mark.matrix
def test_azure_sql_database_has_its_retention_in_the_database(check: Checked, model: SqlServerModel) -> None:
    """A reference to msdb is an error there [DOC: Change data capture with Azure SQL Database]."""
    model.change(edition="SQL Azure", version="12.0.2000.8")
    assert [p.code for p in check(ORDERS)] == ["sessions_hidden", "log_retention"]
    assert check.facts is not None
    assert check.facts.retention == timedelta(days=3)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["the.shop", "a shop", "a[shop]s"])
def test_a_database_may_have_any_name(postgres: PostgresServer, name: str) -> None:
    """Its name is no part of what is asked about permissions."""
    with server_under_test(postgres, database=name, readers={READER: PASSWORD}) as model:
        check = Checked(model, lambda _: None)
        check(mark_table=None)
        assert check.facts is not None
        assert not check.facts.account.sees_masked
        model.change(edition="SQL Azure")
        for permission in ("UNMASK", "VIEW DATABASE STATE"):
            model.database.permissions.change(READER, [permission], 0, to=True)
        check(mark_table=None)
        assert (check.facts.account.sees_masked, check.facts.account.sees_sessions) == (True, True)


@pytest.mark.matrix
def test_a_replica_without_a_mark_table_is_weaker_and_no_more(check: Checked, model: SqlServerModel) -> None:
    model.change(is_read_only=True)
    assert check.codes(ORDERS, mark_table=None) == ["source_is_replica"]


# -- driver ---------------------------------------------------------------------------------------------------------------------


def test_a_driver_that_is_not_installed(tmp_path: Path) -> None:
    def found(driver: str) -> list[str]:
        return [p.code for p in assess_connection(config(driver=driver), ["FreeTDS"])]

    assert found("FreeTDS") == found("freetds") == []
    assert found("ODBC Driver 18 for SQL Server") == ["driver_missing"]
    assert found(str(tmp_path / "libtdsodbc.so")) == ["driver_missing"]
    assert found(str(library(Driver.FREETDS))) == []
    (problem,) = assess_connection(config(driver="ODBC Driver 18 for SQL Server"), ["FreeTDS"])
    assert problem.action is not None
    assert "tdsodbc" in problem.action
    assert "msodbcsql18" in problem.action


def test_certificates_that_the_driver_cannot_verify(tmp_path: Path) -> None:
    driver = "ODBC Driver 18 for SQL Server"
    (problem,) = assess_connection(config(driver=driver, tls="verify-full", tls_ca=tmp_path / "ca"), [driver])
    assert problem.code == "tls_not_verifiable"


# -- errors ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_another_error_of_the_server_is_not_taken_for_a_missing_right(check: Checked, model: SqlServerModel) -> None:
    model.database.execute("DROP VIEW msdb.cdc_jobs")
    model.database.changed()
    check(ORDERS, user=USER)
    model.database.execute(
        "CREATE VIEW msdb.cdc_jobs AS SELECT 1/0 AS job_type, 1 AS retention, 1 AS continuous, 5 AS database_id,"
        " NULL::uuid AS job_id"
    )
    model.database.changed()
    with pytest.raises(Exception, match=r"8134|[Dd]ivi"):
        check(ORDERS, user=USER)


def config(**changed: Any) -> SqlServerConfig:
    usual: dict[str, Any] = {"host": "db.internal", "user": READER, "database": "shop", "tls": "disable"}
    return SqlServerConfig(**{**usual, **changed})


def catalogued(check: Checked, table: TableId = ORDERS) -> Any:
    """A table as the catalogue has it."""
    connection = connect(Driver.FREETDS, check.model.address)
    try:
        return read_tables(Raw(connection), [table])[table]  # type: ignore[arg-type]
    finally:
        connection.close()


class Raw:
    """A connection of pyodbc's with the one method that the catalogue is read by."""

    def __init__(self, connection: pyodbc.Connection) -> None:
        self.connection = connection

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return list(self.connection.execute(query, *parameters).fetchall())
