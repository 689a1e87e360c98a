"""A table that fails by something that can be fixed in the source says so, and continues by itself once it is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from replicator.model.errors import AccessDeniedError
from replicator.state.records import Stage
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.postgresql.captures import Make, assert_equal, fill, table
from replicator_testbed.postgresql.servers import ScratchDatabase


def quick(captured: Captured) -> None:
    captured.settings = replace(captured.settings, compare_every_s=0.1, cure_every_s=0.05, check_every_s=0.5)


def wait_for_reason(captured: Captured, running: RunningCapture, code: str) -> str:
    """Wait until the table has failed by this, and continues by itself; return the message."""

    def has_failed() -> bool:
        record = captured.record(table("t"))
        return record.stage is Stage.FAILED and record.error is not None and record.error.is_curable

    running.wait_until(has_failed, f"t has failed by {code}")
    error = captured.record(table("t")).error
    assert error is not None
    assert error.code == code
    assert "begins by itself" in (error.action or "")
    return error.message


@pytest.mark.matrix
def test_a_table_that_left_the_publication_continues_once_it_is_back(database: ScratchDatabase, make: Make) -> None:
    fill(database, "t", 15)
    fill(database, "other", 3)
    database.execute("CREATE PUBLICATION own FOR TABLE ONLY t, ONLY other WITH (publish_via_partition_root = true)")
    captured = make(database, "t", "other", publication="own")
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER PUBLICATION own DROP TABLE t", "UPDATE t SET v = 7")
        wait_for_reason(captured, running, "table_not_published")
        database.execute("ALTER PUBLICATION own ADD TABLE ONLY t", "UPDATE other SET v = 8")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


def test_a_column_whose_type_cannot_be_replicated_is_told_as_validate_does(
    database: ScratchDatabase, make: Make
) -> None:
    fill(database, "t", 15)
    captured = make(database, "t")
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t ADD COLUMN rc regclass", "INSERT INTO t (id, v) VALUES (100, 1)")
        assert "the column rc has the type regclass" in wait_for_reason(captured, running, "unsupported_type")
        database.execute("ALTER TABLE t DROP COLUMN rc")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t")


# -- privileges that are revoked amid a run


@pytest.fixture
def role(database: ScratchDatabase) -> Iterator[str]:
    """A role with what the documentation asks for, and the owner's publication."""
    name = f"reader_{database.name}"
    fill(database, "t", 15)
    fill(database, "other", 3)
    database.execute(
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT SELECT ON t, other TO {name}",
        "CREATE PUBLICATION own FOR TABLE ONLY t, ONLY other WITH (publish_via_partition_root = true)",
    )
    yield name
    database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.matrix
@pytest.mark.parametrize("what", ["SELECT", "SELECT (v)"])
def test_a_table_that_may_not_be_read_any_more_continues_once_it_may(
    database: ScratchDatabase, make: Make, role: str, what: str
) -> None:
    if what != "SELECT":
        database.execute(f"REVOKE SELECT ON t FROM {role}", f"GRANT SELECT (id, v, note) ON t TO {role}")
    captured = make(database, "t", "other", publication="own", user=role)
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(f"REVOKE {what} ON t FROM {role}", "UPDATE t SET v = 7", "UPDATE other SET v = 7")
        assert "may not read" in wait_for_reason(captured, running, "select_missing")
        captured.catch_up(running)
        assert_equal(captured, database, "other")
        database.execute(f"GRANT {what} ON t TO {role}", "UPDATE t SET v = 8")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


@pytest.mark.matrix
def test_nothing_fails_while_the_schema_of_all_tables_may_not_be_used(
    database: ScratchDatabase, make: Make, role: str
) -> None:
    captured = make(database, "t", "other", publication="own", user=role)
    captured.ends_attempts = frozenset({"schema_usage_missing"})
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        first = running.source
        database.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC", "UPDATE t SET v = 7")
        running.wait_until(lambda: running.source is not first, "it has noticed")
        assert captured.stage(table("t")) is Stage.STREAMING
        database.execute("GRANT USAGE ON SCHEMA public TO PUBLIC", "UPDATE t SET v = 8")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


@pytest.mark.matrix
def test_a_role_that_may_not_replicate_any_more_reads_on_until_its_connection_ends(
    database: ScratchDatabase, make: Make, role: str
) -> None:
    captured = make(database, "t", "other", publication="own", user=role)
    captured.ends_attempts = frozenset({"source_unavailable"})
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(f"ALTER ROLE {role} NOREPLICATION", "UPDATE t SET v = 7")
        captured.catch_up(running)
        running.wait_until(
            lambda: [p.code for p in running.control.status.findings] == ["role_lacks_replication"],
            "the status says so",
        )
        database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE usename = '{role}'")
        ended = running.error()
    assert isinstance(ended, AccessDeniedError)
    database.execute("UPDATE t SET v = 8", f"ALTER ROLE {role} REPLICATION")
    with captured.running() as running:
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")


@pytest.mark.matrix
def test_membership_in_the_owner_that_is_revoked_stops_nothing_that_is_published(
    database: ScratchDatabase, make: Make, role: str
) -> None:
    owner = f"owner_{database.name}"
    database.execute(
        f"CREATE ROLE {owner}",
        f"ALTER TABLE t OWNER TO {owner}",
        f"ALTER TABLE other OWNER TO {owner}",
        f"GRANT {owner} TO {role}",
        f"GRANT CREATE ON DATABASE {database.name} TO {role}",
    )
    captured = make(database, "t", "other", user=role)
    quick(captured)
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(f"GRANT SELECT ON t, other TO {role}", f"REVOKE {owner} FROM {role}", "UPDATE t SET v = 7")
        captured.catch_up(running)
        captured.snapshot(running, table("t"))
    with captured.running() as running:
        database.execute("UPDATE t SET v = 8")
        captured.catch_up(running)
    assert_equal(captured, database, "t", "other")
    database.execute(f"REASSIGN OWNED BY {owner} TO CURRENT_USER", f"DROP OWNED BY {owner}", f"DROP ROLE {owner}")
