"""What `validate` says with change tracking, on the model; and that the statements of the findings fix them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from plugins.sources.sqlserver.tests.conftest import config_of
from replicator.config import Secret
from replicator.model.errors import Problem, Severity, SourceUnavailableError
from replicator.model.guarantee import Guarantee
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator.service.configuring.fixing import script
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import PASSWORD, USER, SqlServerModel

READER = "reader"
ORDERS, MISSING = TableId("dbo", "orders"), TableId("dbo", "missing")
Run = Callable[..., None]


@pytest.fixture
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres, users={USER: PASSWORD}, readers={READER: PASSWORD}) as model:
        yield model


@pytest.fixture
def admin(model: SqlServerModel) -> Iterator[Run]:
    connection = connect(Driver.FREETDS, model.address)

    def run(*statements: str) -> None:
        for statement in statements:
            connection.execute(statement)

    run(
        "CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, note nvarchar(40))",
        f"GRANT SELECT ON dbo.orders TO {READER}",
    )
    yield run
    connection.close()


Check = Callable[..., list[Problem]]


@pytest.fixture
def source_of(model: SqlServerModel) -> Iterator[Callable[..., SqlServerSource]]:
    opened: list[SqlServerSource] = []

    def make(user: str = READER, **settings: Any) -> SqlServerSource:
        config = config_of(
            model, Driver.FREETDS, user=user, password=Secret(PASSWORD), capture="change_tracking", **settings
        )
        opened.append(SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1)))
        return opened[-1]

    yield make
    for source in opened:
        source.close()


@pytest.fixture
def check(source_of: Callable[..., SqlServerSource]) -> Check:
    def run(*tables: TableId, **settings: Any) -> list[Problem]:
        return list(source_of(**settings).check(tables))

    return run


def codes(problems: list[Problem]) -> list[str]:
    return [p.code for p in problems if p.severity is not Severity.NOTICE]


@pytest.mark.matrix
def test_one_script_makes_a_bare_database_ready(check: Check, admin: Run) -> None:
    found = check(ORDERS)
    assert codes(found) == ["snapshot_isolation_off", "change_tracking_off", "table_not_tracked"]
    # The database is what is wrong: while running no table fails for it.
    assert [p.code for p in found if p.severity is Severity.BLOCKING and p.table] == []
    admin(script("shop", found))
    assert [p for p in check(ORDERS) if p.sql] == []
    assert codes(check(ORDERS)) == []


@pytest.fixture
def ready(admin: Run) -> None:
    admin(
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 7 DAYS, AUTO_CLEANUP = ON)",
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        "ALTER TABLE dbo.orders ENABLE CHANGE_TRACKING",
        f"GRANT VIEW CHANGE TRACKING ON dbo.orders TO {READER}",
    )


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_a_missing_permission_and_a_missing_table(check: Check, admin: Run) -> None:
    # An account that has some other permission still sees the table.
    admin(f"GRANT INSERT ON dbo.orders TO {READER}")
    admin(f"REVOKE VIEW CHANGE TRACKING ON dbo.orders FROM {READER}", f"REVOKE SELECT ON dbo.orders FROM {READER}")
    found = check(ORDERS, MISSING)
    assert codes(found) == ["tracking_not_visible", "select_missing", "table_missing"]
    admin(*(statement for problem in found for statement in problem.sql))
    assert codes(check(ORDERS)) == []


@pytest.mark.matrix
@pytest.mark.condition("D09", "D13", "D14")
@pytest.mark.usefixtures("ready")
def test_tables_whose_keys_or_values_change_tracking_does_not_serve(check: Check, admin: Run) -> None:
    admin(
        "CREATE TABLE dbo.heap (id int)",
        "CREATE TABLE dbo.others (id int NULL UNIQUE)",
        "CREATE TABLE dbo.floats (id float NOT NULL PRIMARY KEY)",
        "CREATE TABLE dbo.texts (id nvarchar(20) NOT NULL PRIMARY KEY)",
        "CREATE TABLE dbo.bytes (id varbinary(20) NOT NULL PRIMARY KEY)",
        "CREATE TABLE dbo.old (id int NOT NULL PRIMARY KEY, note ntext NULL)",
        *(
            f"GRANT SELECT, VIEW CHANGE TRACKING ON dbo.{name} TO {READER}"
            for name in ("heap", "others", "floats", "texts", "bytes", "old")
        ),
        *(f"ALTER TABLE dbo.{name} ENABLE CHANGE_TRACKING" for name in ("floats", "texts", "bytes", "old")),
    )
    found = {
        "heap": "key_needed",
        "others": "key_needed",
        "floats": "key_needed",
        "texts": "key_spelling",
        "bytes": "key_spelling",
        "old": "updatetext_not_tracked",
    }
    for name, expected in found.items():
        (problem,) = [p for p in check(TableId("dbo", name)) if p.severity is not Severity.NOTICE]
        assert problem.code == expected
        assert problem.action
        assert (problem.severity is Severity.BLOCKING) == (expected == "key_needed")


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_a_security_policy_that_filters_rows(check: Check, admin: Run, model: SqlServerModel) -> None:
    """A changed row that is hidden is not found any more, which looks as if it was deleted."""
    model.database.execute(
        "INSERT INTO sqlserver.security_predicates (target_object_id) SELECT object_id FROM sys.tables WHERE name = 'orders'"
    )
    admin(f"GRANT VIEW DEFINITION TO {READER}")
    (problem,) = [p for p in check(ORDERS) if p.severity is not Severity.NOTICE]
    assert (problem.code, problem.severity) == ("rows_filtered", Severity.WARNING)
    assert "deleted in the target" in problem.message


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_the_retention_and_the_cleanup(check: Check, admin: Run, source_of: Callable[..., SqlServerSource]) -> None:
    assert [p.code for p in check(ORDERS)] == ["log_retention"]
    assert source_of().status().retention.keeps_log == timedelta(days=7)
    admin("ALTER DATABASE CURRENT SET CHANGE_TRACKING (CHANGE_RETENTION = 5 HOURS)")
    (problem,) = check(ORDERS)
    assert (problem.code, problem.severity) == ("log_retention", Severity.WARNING)
    admin(*problem.sql, "ALTER DATABASE CURRENT SET CHANGE_TRACKING (AUTO_CLEANUP = OFF)")
    (problem,) = check(ORDERS)
    assert (problem.code, problem.severity) == ("tracking_not_cleaned", Severity.WARNING)
    assert source_of().status().retention.keeps_log is None
    admin(*problem.sql)
    assert [(p.code, p.severity) for p in check(ORDERS)] == [("log_retention", Severity.NOTICE)]


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_an_edition_without_cdc_will_do(check: Check, model: SqlServerModel) -> None:
    model.change(edition="Express Edition (64-bit)")
    assert codes(check(ORDERS)) == []
    model.change(version="13.0.5026.0")
    assert codes(check(ORDERS)) == ["server_too_old"]


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_tables_are_tracked_by_ourselves_where_that_is_allowed(
    check: Check, admin: Run, source_of: Callable[..., SqlServerSource], model: SqlServerModel
) -> None:
    admin("ALTER TABLE dbo.orders DISABLE CHANGE_TRACKING")
    assert codes(check(ORDERS, manage_capture=True)) == ["privilege_missing"]
    assert codes(check(ORDERS, user=USER, manage_capture=True)) == ["privilege_excess"]
    source = source_of(user=USER, manage_capture=True)
    source.prepare([ORDERS], is_first=True)
    assert model.database.execute("SELECT count(*) FROM sqlserver.ct_tables") == [(1,)]
    assert source.remove().kept == ("change tracking of the tables",)
    assert "DISABLE CHANGE_TRACKING" in source.leftovers()[0]
    assert source_of().remove().kept == ()


@pytest.mark.usefixtures("ready")
def test_a_database_that_is_not_tracked_is_told_wherever_it_is_asked(
    admin: Run, source_of: Callable[..., SqlServerSource]
) -> None:
    admin("ALTER TABLE dbo.orders DISABLE CHANGE_TRACKING", "ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")
    source = source_of()
    asked: list[Callable[[], object]] = [
        source.mark,
        source.visibility,
        lambda: source.prepare([ORDERS], is_first=True),
    ]
    for ask in asked:
        with pytest.raises(SourceUnavailableError) as raised:
            ask()
        assert raised.value.code == "change_tracking_off"
        assert "CHANGE_TRACKING = ON" in (raised.value.action or "")
    assert source.status().guarantee is Guarantee.NET_CHANGES


@pytest.mark.matrix
@pytest.mark.usefixtures("ready")
def test_another_way_to_capture_is_another_source(
    source_of: Callable[..., SqlServerSource], model: SqlServerModel
) -> None:
    cdc = SqlServerSource(config_of(model, Driver.FREETDS), SourceContext(replicator="shop", uuid="u1", epoch=1))
    assert dict(source_of().identity()) == {**cdc.identity(), "capture": "change_tracking"}
    cdc.close()
