"""Change Tracking on the model: versions, net changes, what makes them invalid, and what it refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import PASSWORD, USER, SqlServerModel
from tests.testbed.sqlserver.conftest import Client, Rows

pytestmark = pytest.mark.matrix

CURRENT = "SELECT CHANGE_TRACKING_CURRENT_VERSION()"
MIN_VALID = "SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'dbo.{}'))"
READER = "reader"


@pytest.fixture
def tracked(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    """A model whose database is tracked, with a tracked table."""
    users = {USER: PASSWORD}
    with SqlServerModel(postgres, users=users, readers={READER: PASSWORD}) as model:
        sql = Client(connect(Driver.FREETDS, model.address))
        sql("ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 2 DAYS, AUTO_CLEANUP = ON)")
        sql("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
        sql("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL)")
        sql("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING")
        sql.connection.close()
        yield model


@pytest.fixture
def sql(tracked: SqlServerModel) -> Iterator[Client]:
    client = Client(connect(Driver.FREETDS, tracked.address))
    yield client
    client.connection.close()


@pytest.fixture
def second(tracked: SqlServerModel) -> Iterator[Client]:
    client = Client(connect(Driver.FREETDS, tracked.address))
    yield client
    client.connection.close()


def changes(sql: Client, since: int = 0, table: str = "t") -> Rows:
    return sql(
        f"SELECT c.SYS_CHANGE_VERSION, c.SYS_CHANGE_OPERATION, c.id FROM CHANGETABLE(CHANGES dbo.{table}, {since}) AS c"
        " ORDER BY c.SYS_CHANGE_VERSION, c.id"
    )


def version(sql: Client) -> int:
    found = sql.value(CURRENT)
    assert isinstance(found, int)
    return found


def min_valid(sql: Client, table: str = "t") -> int | None:
    found = sql.value(MIN_VALID.format(table))
    assert found is None or isinstance(found, int)
    return found


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_version_is_null_without_tracking_and_zero_before_the_first_change(client: Client, sql: Client) -> None:
    """Rule 20 [ISS]."""
    assert client.value(CURRENT) is None
    assert version(sql) == 0
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    assert version(sql) == 1


def test_versions_are_in_the_order_of_commits(sql: Client, second: Client) -> None:
    """Rule 20 [DOC]."""
    sql("BEGIN TRAN INSERT INTO dbo.t (id) VALUES (1)")
    sql("INSERT INTO dbo.t (id) VALUES (11)")
    assert version(second) == 0
    second("INSERT INTO dbo.t (id) VALUES (2)")
    assert changes(second) == [(1, "I", 2)]
    sql("COMMIT")
    assert changes(sql) == [(1, "I", 2), (2, "I", 1), (2, "I", 11)]


def test_what_is_rolled_back_and_what_is_not_tracked_has_no_version(sql: Client) -> None:
    """Rule 20 [DOC]."""
    sql("CREATE TABLE dbo.other (id int NOT NULL PRIMARY KEY)")
    sql("BEGIN TRAN INSERT INTO dbo.t (id) VALUES (1) ROLLBACK")
    sql("INSERT INTO dbo.other (id) VALUES (1)")
    assert (version(sql), changes(sql)) == (0, [])


def test_a_snapshot_transaction_sees_one_version_and_its_changes(sql: Client, second: Client) -> None:
    """Rule 20 [DOC]."""
    sql("INSERT INTO dbo.t (id, name) VALUES (1, N'a')")
    sql("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRAN")
    assert version(sql) == 1
    second("UPDATE dbo.t SET name = N'b' WHERE id = 1")
    second("INSERT INTO dbo.t (id) VALUES (2)")
    assert version(sql) == 1
    assert changes(sql) == [(1, "I", 1)]
    assert sql("SELECT name FROM dbo.t") == [("a",)]
    sql("COMMIT")
    assert version(sql) == 3


# -- net changes -------------------------------------------------------------------------------------------------------


def test_a_row_has_one_change_with_its_last_version(sql: Client) -> None:
    """Rule 21 [DOC]."""
    sql("INSERT INTO dbo.t (id) VALUES (1), (2), (3)")
    sql("UPDATE dbo.t SET name = N'x' WHERE id IN (1, 2)")
    sql("UPDATE dbo.t SET name = N'y' WHERE id = 1")
    sql("DELETE FROM dbo.t WHERE id = 2")
    assert changes(sql) == [(1, "I", 3), (3, "I", 1), (4, "D", 2)]
    assert changes(sql, 1) == [(3, "U", 1), (4, "D", 2)]
    assert changes(sql, 4) == []


def test_a_row_that_came_and_went_is_a_delete(sql: Client) -> None:
    """Rule 21 [K]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("DELETE FROM dbo.t")
    assert changes(sql) == [(2, "D", 1)]


def test_a_row_that_came_and_went_may_not_be_told(tracked: SqlServerModel, sql: Client) -> None:
    """Rule 21 [K]: relative to the version that is asked for."""
    tracked.database.tracking.hide_passing_rows()
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("DELETE FROM dbo.t")
    assert changes(sql) == []
    assert changes(sql, 1) == [(2, "D", 1)]


def test_a_row_that_went_and_came_is_an_insert(sql: Client) -> None:
    """Rule 21 [K]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("BEGIN TRAN DELETE FROM dbo.t INSERT INTO dbo.t (id) VALUES (1) COMMIT")
    assert changes(sql, 1) == [(2, "I", 1)]


def test_another_key_is_a_delete_and_an_insert(sql: Client) -> None:
    """Rule 21 [DOC]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("UPDATE dbo.t SET id = 2")
    assert changes(sql, 1) == [(2, "D", 1), (2, "I", 2)]


def test_changes_are_joined_to_their_rows(sql: Client) -> None:
    """Rule 21 [DOC]."""
    sql("INSERT INTO dbo.t (id, name) VALUES (1, N'a'), (2, N'b')")
    sql("DELETE FROM dbo.t WHERE id = 2")
    found = sql(
        "SELECT c.[id], t.[name], c.SYS_CHANGE_CREATION_VERSION FROM CHANGETABLE(CHANGES [dbo].[t], 0) AS c"
        " LEFT JOIN [dbo].[t] AS t ON t.[id] = c.[id] ORDER BY c.[id]"
    )
    assert found == [(1, "a", 1), (2, None, 1)]


# -- what makes them invalid -------------------------------------------------------------------------------------------


def test_a_version_is_valid_from_the_enabling_on(sql: Client) -> None:
    """Rule 22 [DOC]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("CREATE TABLE dbo.late (id int NOT NULL PRIMARY KEY)")
    assert min_valid(sql, "late") is None
    sql("ALTER TABLE dbo.late ENABLE CHANGE_TRACKING")
    assert (min_valid(sql, "late"), min_valid(sql)) == (1, 0)


def test_cleanup_raises_the_lowest_valid_version_and_a_purged_range_reads_as_less(
    sql: Client, tracked: SqlServerModel
) -> None:
    """Rule 22 [DOC]."""
    for number in (1, 2, 3):
        sql("INSERT INTO dbo.t (id) VALUES (?)", number)
    tracked.database.tracking.raise_min_valid(2)
    assert (min_valid(sql), len(changes(sql))) == (2, 3)
    tracked.database.tracking.delete_below()
    assert changes(sql, 0) == [(3, "I", 3)]
    assert version(sql) == 3


def test_cleanup_keeps_what_is_younger_than_the_retention(sql: Client, tracked: SqlServerModel) -> None:
    """Rule 22 [DOC]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    tracked.database.tracking.clean_up(now + dt.timedelta(days=1))
    assert min_valid(sql) == 0
    sql("ALTER DATABASE CURRENT SET CHANGE_TRACKING (AUTO_CLEANUP = OFF)")
    tracked.database.tracking.clean_up(now + dt.timedelta(days=3))
    assert min_valid(sql) == 0
    sql("ALTER DATABASE CURRENT SET CHANGE_TRACKING (AUTO_CLEANUP = ON)")
    tracked.database.tracking.clean_up(now + dt.timedelta(days=3))
    assert (min_valid(sql), changes(sql)) == (1, [])


def test_truncate_is_allowed_and_raises_the_lowest_valid_version(sql: Client) -> None:
    """Rule 22 [DOC]: to the version that there is, as if the table was tracked just now."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("TRUNCATE TABLE dbo.t")
    assert (version(sql), min_valid(sql), changes(sql)) == (1, 1, [])
    begun = sql.value("SELECT begin_version FROM sys.change_tracking_tables")
    assert begun == 1


def test_tracking_that_is_switched_off_and_on_begins_again(sql: Client) -> None:
    """Rule 22 [DOC]."""
    noted_in = (
        "SELECT object_id, name FROM sys.internal_tables WHERE parent_id = OBJECT_ID(N'dbo.t') AND internal_type = 209"
    )
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    (before,) = sql(noted_in)
    sql("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING")
    assert sql(noted_in) == []
    assert min_valid(sql) is None
    assert sql.error("SELECT * FROM CHANGETABLE(CHANGES dbo.t, 0) AS c") == 22105
    sql("DELETE FROM dbo.t")
    sql("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING")
    assert (min_valid(sql), changes(sql)) == (1, [])
    (after,) = sql(noted_in)
    assert (after[0] != before[0], after[1]) == (True, before[1])


# -- definitions -------------------------------------------------------------------------------------------------------


def test_a_table_needs_a_key_and_a_tracked_database(client: Client, sql: Client) -> None:
    """Rule 23 [DOC, K for the numbers]."""
    sql("CREATE TABLE dbo.heap (id int NULL)")
    assert sql.error("ALTER TABLE dbo.heap ENABLE CHANGE_TRACKING") == 4997
    assert sql.error("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING") == 4996
    assert sql.error("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF") == 22115
    client("CREATE TABLE dbo.untracked (id int NOT NULL PRIMARY KEY)")
    assert client.error("ALTER TABLE dbo.untracked ENABLE CHANGE_TRACKING") == 4995


def test_the_key_of_a_tracked_table_stays(sql: Client) -> None:
    """Rule 23 [DOC, K for the numbers]."""
    name = sql.value("SELECT name FROM sys.key_constraints WHERE parent_object_id = OBJECT_ID(N'dbo.t')")
    assert sql.error(f"ALTER TABLE dbo.t DROP CONSTRAINT [{name}]") == 4929
    assert sql.error("ALTER TABLE dbo.t ALTER COLUMN id bigint NOT NULL") == 4922
    sql("CREATE TABLE dbo.aside (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL)")
    assert sql.error("ALTER TABLE dbo.t SWITCH TO dbo.aside") == 4900


def test_altered_columns_are_not_told(sql: Client) -> None:
    """Rule 23 [DOC]."""
    sql("INSERT INTO dbo.t (id, name) VALUES (1, N'a')")
    sql("ALTER TABLE dbo.t ADD more int NULL")
    sql("ALTER TABLE dbo.t DROP COLUMN name")
    sql("EXEC sp_rename N'dbo.t.more', N'less', N'COLUMN'")
    assert (version(sql), changes(sql)) == (1, [(1, "I", 1)])
    sql("EXEC sp_rename N'dbo.t', N'u'")
    sql("UPDATE dbo.u SET less = 1")
    assert changes(sql, 1, "u") == [(2, "U", 1)]


def test_a_dropped_table_takes_its_changes_along(sql: Client) -> None:
    """Rule 23 [DOC]."""
    sql("INSERT INTO dbo.t (id) VALUES (1)")
    sql("DROP TABLE dbo.t")
    sql("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)")
    assert min_valid(sql) is None
    assert sql("SELECT object_id FROM sys.change_tracking_tables") == []
    assert version(sql) == 1


def test_a_snapshot_cannot_read_what_was_altered_since(sql: Client, second: Client) -> None:
    """Rule 25 [DOC]."""
    sql("CREATE TABLE dbo.calm (id int NOT NULL PRIMARY KEY)")
    second("SET TRANSACTION ISOLATION LEVEL SNAPSHOT BEGIN TRAN")
    assert second("SELECT id FROM dbo.t") == []
    sql("ALTER TABLE dbo.t ADD more int NULL")
    assert second("SELECT id FROM dbo.calm") == []
    assert second.error("SELECT id FROM dbo.t") == 3961
    assert second.value("SELECT @@TRANCOUNT") == 0
    assert second("SELECT more FROM dbo.t") == []


# -- what is seen of it ------------------------------------------------------------------------------------------------


def test_the_catalogue_says_what_is_tracked(sql: Client) -> None:
    """Rule 24 [DOC]."""
    sql("ALTER DATABASE CURRENT SET CHANGE_TRACKING (CHANGE_RETENTION = 5 HOURS, AUTO_CLEANUP = OFF)")
    query = "SELECT database_id, is_auto_cleanup_on, retention_period, retention_period_units FROM sys.change_tracking_databases"
    assert sql(query) == [(5, False, 5, 2)]
    tables = "SELECT OBJECT_NAME(object_id), is_track_columns_updated_on, min_valid_version, begin_version FROM sys.change_tracking_tables"
    assert sql(tables) == [("t", False, 0, 0)]
    sql("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING")
    sql("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")
    assert sql(query) == []


def test_changes_need_a_permission(sql: Client, tracked: SqlServerModel) -> None:
    """Rule 24 [DOC]."""
    reader = Client(connect(Driver.FREETDS, tracked.address_of(READER)))
    sql(f"GRANT SELECT ON dbo.t TO {READER}")
    assert version(reader) == 0
    assert min_valid(reader) is None
    assert reader.error("SELECT * FROM CHANGETABLE(CHANGES dbo.t, 0) AS c") == 229
    assert reader.value("SELECT HAS_PERMS_BY_NAME(N'dbo.t', N'OBJECT', N'VIEW CHANGE TRACKING')") == 0
    assert reader.error("ALTER TABLE dbo.t DISABLE CHANGE_TRACKING") == 1088
    sql(f"GRANT VIEW CHANGE TRACKING ON dbo.t TO {READER}")
    assert (min_valid(reader), changes(reader)) == (0, [])
    assert reader.value("SELECT HAS_PERMS_BY_NAME(N'dbo.t', N'OBJECT', N'VIEW CHANGE TRACKING')") == 1
    reader.connection.close()
