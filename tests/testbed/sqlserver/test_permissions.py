"""Who may do what, and what the server says of itself. The rules are those of the model's README."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import PASSWORD, SqlServerModel
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

READER = "reader"


@pytest.fixture(scope="module")
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres, readers={READER: PASSWORD}) as model:
        owner = connect(Driver.FREETDS, model.address)
        owner.execute("EXEC sys.sp_cdc_enable_db")
        owner.execute("CREATE SCHEMA other")
        owner.close()
        yield model


@pytest.fixture
def reader(model: SqlServerModel) -> Iterator[Client]:
    connection = connect(Driver.FREETDS, model.address_of(READER))
    yield Client(connection)
    connection.close()


@pytest.fixture
def owner(client: Client) -> Iterator[Client]:
    client("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, v varchar(10))")
    client("INSERT INTO dbo.t VALUES (1, 'a')")
    yield client
    client("DROP TABLE dbo.t")


def test_a_reader_reads_what_was_granted(owner: Client, reader: Client) -> None:
    # [DOC: rule 15]
    assert reader.error("SELECT * FROM dbo.t") == 229
    owner("GRANT SELECT ON dbo.t TO reader")
    assert reader("SELECT * FROM dbo.t") == [(1, "a")]
    for statement, permission in (
        ("INSERT INTO dbo.t VALUES (2, 'b')", "INSERT"),
        ("UPDATE dbo.t SET v = 'c' WHERE id = 2", "UPDATE"),
        ("DELETE FROM dbo.t WHERE id = 2", "DELETE"),
    ):
        assert reader.error(statement) == 229
        owner(f"GRANT SELECT, {permission} ON OBJECT::dbo.t TO [reader]")
        reader(statement)
    owner("REVOKE SELECT ON dbo.t FROM reader")
    assert reader.error("SELECT * FROM dbo.t") == 229


def test_a_denial_counts_more_than_a_role(owner: Client, reader: Client) -> None:
    # [DOC: rule 15]
    owner("ALTER ROLE db_owner ADD MEMBER reader")
    assert reader("SELECT IS_ROLEMEMBER('db_owner'), USER_NAME()") == [(1, "dbo")]
    assert reader.value("SELECT COUNT(*) FROM dbo.t") == 1
    owner("DENY SELECT ON dbo.t TO reader")
    assert reader.error("SELECT * FROM dbo.t") == 229
    owner("ALTER ROLE db_owner DROP MEMBER reader")
    assert reader("SELECT IS_ROLEMEMBER('db_owner'), USER_NAME()") == [(0, "reader")]


def test_a_grant_on_a_schema(owner: Client, reader: Client) -> None:
    # [DOC: rule 15]
    owner("CREATE TABLE other.t (id int)")
    assert reader.error("SELECT * FROM other.t") == 229
    owner("GRANT SELECT ON SCHEMA::other TO reader")
    assert reader("SELECT * FROM other.t") == []
    assert reader.error("SELECT * FROM dbo.t") == 229


def test_change_tables_need_a_grant(owner: Client, reader: Client) -> None:
    # [DOC, LAB: rule 15]
    owner("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL")
    assert reader.value("SELECT capture_instance FROM cdc.change_tables") == "dbo_t"
    assert reader.error("SELECT * FROM cdc.dbo_t_CT") == 229
    owner("GRANT SELECT ON [cdc].[dbo_t_CT] TO reader")
    assert reader("SELECT * FROM cdc.dbo_t_CT") == []


@pytest.mark.parametrize(
    ("view", "permission", "number"),
    [
        ("sys.dm_server_services", "VIEW SERVER STATE", 300),
        ("sys.dm_cdc_errors", "VIEW DATABASE STATE", 262),
        ("sys.dm_cdc_log_scan_sessions", "VIEW DATABASE STATE", 262),
        ("sys.dm_db_log_stats(DB_ID())", "VIEW SERVER STATE", 300),
    ],
)
def test_views_of_state_need_a_permission(
    client: Client, reader: Client, view: str, permission: str, number: int
) -> None:
    # [DOC, K: rule 15]
    assert reader.error(f"SELECT * FROM {view}") == number
    client(f"GRANT {permission} TO reader")
    reader(f"SELECT * FROM {view}")
    client(f"REVOKE {permission} FROM reader")


def test_parts_of_the_permissions_for_state(client: Client, reader: Client) -> None:
    # [DOC: rule 15] SQL Server 2022: services are a matter of security, what captures one of performance.
    services, errors = "SELECT * FROM sys.dm_server_services", "SELECT * FROM sys.dm_cdc_errors"
    client("GRANT VIEW SERVER PERFORMANCE STATE, VIEW DATABASE PERFORMANCE STATE TO reader")
    reader(errors)
    assert reader.error(services) == 300
    client("GRANT VIEW SERVER SECURITY STATE TO reader")
    reader(services)
    client(
        "REVOKE VIEW SERVER PERFORMANCE STATE, VIEW DATABASE PERFORMANCE STATE, VIEW SERVER SECURITY STATE FROM reader"
    )


def test_only_an_owner_enables(owner: Client, reader: Client) -> None:
    # [DOC, K: rule 15]
    assert reader.error("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL") == 22904
    assert reader.error("EXEC sys.sp_cdc_disable_db") == 22904
    assert reader.error("GRANT SELECT ON dbo.t TO reader") == 4613
    assert reader.error("ALTER ROLE db_owner ADD MEMBER reader") == 15151


def test_has_perms_by_name(owner: Client, reader: Client) -> None:
    # [DOC: rule 15]
    asked = "SELECT HAS_PERMS_BY_NAME(N'[dbo].[t]', N'OBJECT', N'SELECT'), HAS_PERMS_BY_NAME(N'dbo.nowhere', N'OBJECT', N'SELECT')"
    assert owner(asked) == [(1, None)]
    assert reader(asked) == [(0, None)]
    owner("GRANT SELECT ON dbo.t TO reader")
    assert reader(asked) == [(1, None)]
    assert reader.value("SELECT HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE')") == 0
    assert owner.value("SELECT HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE')") == 1


def test_without_agent_nothing_is_captured(model: SqlServerModel, owner: Client) -> None:
    # [DOC: rule 17]
    owner("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL")
    model.change(is_agent_running=False)
    owner("INSERT INTO dbo.t VALUES (3, 'c')")
    assert model.capture.scan_all() == 0
    assert owner.value("SELECT status FROM sys.dm_server_services") == 1
    model.change(is_agent_running=True)
    assert model.capture.scan_all() == 1
    assert owner.value("SELECT status FROM sys.dm_server_services") == 4


def test_the_activity_of_jobs(owner: Client) -> None:
    # [DOC, K: rule 17]
    owner("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL")
    ended = (
        "SELECT j.job_type, CASE WHEN a.stop_execution_date IS NULL THEN 0 ELSE 1 END FROM msdb.dbo.cdc_jobs j"
        " JOIN msdb.dbo.sysjobs s ON s.job_id = j.job_id JOIN msdb.dbo.sysjobactivity a ON a.job_id = j.job_id ORDER BY 1"
    )
    assert owner(ended) == [("capture", 0), ("cleanup", 1)]
    owner("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    assert owner(ended) == [("capture", 1), ("cleanup", 1)]
    owner("EXEC sys.sp_cdc_start_job @job_type = N'capture'")


def test_a_job_is_enabled_and_with_a_publication_there_is_none_that_captures(
    model: SqlServerModel, owner: Client
) -> None:
    # [DOC, K: rule 17]
    owner("EXEC sys.sp_cdc_enable_table N'dbo', N't', NULL")
    job = "FROM msdb.dbo.sysjobs s JOIN msdb.dbo.cdc_jobs j ON j.job_id = s.job_id WHERE j.job_type = N'capture'"
    enabled, name = f"SELECT s.enabled {job}", owner.value(f"SELECT s.name {job}")
    for wanted in (0, 1):
        owner(f"EXEC msdb.dbo.sp_update_job @job_name = N'{name}', @enabled = {wanted}")
        assert owner.value(enabled) == wanted
    assert owner.error("EXEC msdb.dbo.sp_update_job @job_name = N'none', @enabled = 1") == 14262
    model.change(is_published=True)
    assert owner.error("EXEC sys.sp_cdc_add_job @job_type = N'capture'") == 22994
    model.change(is_published=False)


def test_a_partitioned_table_is_listed_as_one(client: Client) -> None:
    client("CREATE PARTITION FUNCTION f (int) AS RANGE RIGHT FOR VALUES (1, 2)")
    client("CREATE PARTITION SCHEME s AS PARTITION f ALL TO ([PRIMARY])")
    client("CREATE TABLE dbo.p (id int) ON s(id)")
    client("CREATE TABLE dbo.q (id int) ON [PRIMARY]")
    space = (
        "SELECT t.name, d.type FROM sys.tables t JOIN sys.indexes i ON i.object_id = t.object_id AND i.index_id IN (0, 1)"
        " JOIN sys.data_spaces d ON d.data_space_id = i.data_space_id WHERE t.name IN ('p', 'q') ORDER BY t.name"
    )
    assert client(space) == [("p", "PS"), ("q", "FG")]


def test_masked_columns_and_code_pages_are_in_the_catalogue(client: Client) -> None:
    client(
        "CREATE TABLE dbo.texts (a varchar(9) COLLATE Polish_CI_AS MASKED WITH (FUNCTION = 'default()'),"
        " b varchar(9) COLLATE Latin1_General_100_CI_AS_SC_UTF8, c varchar(9), d int)"
    )
    assert client(
        "SELECT name, is_masked, CAST(COLLATIONPROPERTY(collation_name, 'CodePage') AS int) FROM sys.columns"
        " WHERE object_id = OBJECT_ID('dbo.texts') ORDER BY column_id"
    ) == [("a", True, 1250), ("b", False, 65001), ("c", False, 1252), ("d", False, None)]


def test_security_policies_are_shown_to_who_may_see_definitions(
    model: SqlServerModel, owner: Client, reader: Client
) -> None:
    # [DOC: sys.security_predicates]
    asked = "SELECT p.predicate_type, q.is_enabled FROM sys.security_predicates p JOIN sys.security_policies q ON q.object_id = p.object_id"
    model.database.execute("INSERT INTO sqlserver.security_predicates (target_object_id) VALUES (1)")
    assert owner(asked) == [(0, True)]
    assert reader(asked) == []
    owner("GRANT VIEW DEFINITION TO reader")
    assert reader(asked) == [(0, True)]
    model.database.execute("DELETE FROM sqlserver.security_predicates")
    owner("REVOKE VIEW DEFINITION TO reader")
