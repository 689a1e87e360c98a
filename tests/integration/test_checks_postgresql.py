"""What `validate` refuses, while a capture of a real PostgreSQL runs and at its later starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from replicator.model.errors import FatalError
from replicator.model.schema import TableId
from replicator.plugins.source import DeltaSource, SourceContext
from replicator.state.records import Stage
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.journals.captured import QUICK, Captured, RunningCapture
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase

BAD, GOOD = TableId("public", "bad"), TableId("public", "good")


@dataclass(slots=True, kw_only=True)
class Bench:
    """Two tables, read by a role that is no superuser from a publication of the user's."""

    database: ScratchDatabase
    captured: Captured
    role: str

    def execute(self, *statements: str) -> None:
        self.database.execute(*(statement.format(role=self.role) for statement in statements))

    def fails(self, running: RunningCapture, *codes: str) -> None:
        """Wait until the one table has failed, and see that the other continues."""
        running.wait_until(
            lambda: self.captured.stage(BAD) is Stage.FAILED,
            lambda: f"it fails; now {self.captured.record(BAD)}",
        )
        error = self.captured.record(BAD).error
        assert error is not None
        assert error.code in codes, error
        command = "ddl accept" if error.code == "ddl_stop" else "snapshot"
        assert f"replicator {command} NAME TABLE" in (error.action or "")
        self.database.execute("INSERT INTO good SELECT max(id) + 1, 'later' FROM good")
        self.captured.catch_up(running)
        assert self.captured.stage(GOOD) is Stage.STREAMING
        self.is_equal(GOOD)

    def comes_back(self, running: RunningCapture) -> None:
        """By a snapshot that is asked for."""
        self.captured.snapshot(running, BAD)
        self.is_equal(BAD)

    def is_equal(self, table: TableId) -> None:
        assert self.captured.rows(table) == Counter(self.database.execute(f"SELECT * FROM {table}"))


@pytest.fixture
def bench(postgres: PostgresServer, database: ScratchDatabase, tmp_path: Path) -> Iterator[Bench]:
    role = f"reader_{database.name}"
    for table in (BAD, GOOD):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 30) AS i",
        )
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        "CREATE PUBLICATION p FOR TABLE bad, good WITH (publish_via_partition_root = true)",
    )

    def source(context: SourceContext) -> PostgresqlSource:
        config = PostgresqlConfig(
            host=postgres.host, port=postgres.port, user=role, database=database.name, publication="p"
        )
        return PostgresqlSource(config, context)

    captured = Captured(
        folder=tmp_path,
        name=database.name,
        make_source=source,
        tables=[BAD, GOOD],
        settings=replace(QUICK, check_every_s=0.2, compare_every_s=0.2),
    )
    yield Bench(database=database, captured=captured, role=role)
    captured.close()
    database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("spoil", "fix", "codes"),
    [
        ("ALTER TABLE bad ENABLE ROW LEVEL SECURITY", "ALTER ROLE {role} BYPASSRLS", ("row_level_security",)),
        (
            "ALTER TABLE bad DROP CONSTRAINT bad_pkey",
            "ALTER TABLE bad ADD PRIMARY KEY (id)",
            # Whichever comes first: the check, or the comparison with the catalogue.
            ("no_primary_key", "ddl_stop"),
        ),
        (
            "ALTER TABLE bad REPLICA IDENTITY NOTHING",
            "ALTER TABLE bad REPLICA IDENTITY DEFAULT",
            ("replica_identity_nothing",),
        ),
        ("REVOKE SELECT ON bad FROM {role}", "GRANT SELECT ON bad TO {role}", ("select_missing",)),
        ("ALTER PUBLICATION p DROP TABLE bad", "ALTER PUBLICATION p ADD TABLE bad", ("table_not_published",)),
    ],
)
def test_a_condition_that_arises_while_running_fails_its_table_and_no_other(
    bench: Bench, spoil: str, fix: str, codes: tuple[str, ...]
) -> None:
    with bench.captured.running() as running:
        bench.captured.wait_for_streaming(running)
        bench.execute(spoil)
        bench.fails(running, *codes)
        bench.execute(fix)
        bench.comes_back(running)


@pytest.mark.matrix
def test_a_revoked_grant_that_a_copy_meets_fails_its_table_and_no_other(bench: Bench) -> None:
    bench.captured.settings = replace(bench.captured.settings, check_every_s=3600, compare_every_s=3600)
    with bench.captured.running() as running:
        bench.captured.wait_for_streaming(running)
        bench.execute("REVOKE SELECT ON bad FROM {role}")
        bench.captured.request("snapshot", tables=[str(BAD)])
        bench.fails(running, "select_missing", "access_denied")
        bench.execute("GRANT SELECT ON bad TO {role}")
        bench.comes_back(running)


@pytest.mark.matrix
def test_a_grant_that_is_revoked_in_the_midst_of_a_copy_fails_its_table_and_no_other(bench: Bench) -> None:
    """The chunk itself is refused: `check` was asked before."""
    with bench.captured.running() as running:
        bench.captured.wait_for_streaming(running)
    bench.captured.settings = replace(bench.captured.settings, check_every_s=3600, compare_every_s=3600)

    def revoke_first(source: DeltaSource[Any]) -> None:
        read_chunk = source.read_chunk

        def revoked(request: Any) -> Any:
            if request.schema.table == BAD:
                bench.execute("REVOKE SELECT ON bad FROM {role}")
            return read_chunk(request)

        source.read_chunk = revoked  # type: ignore[method-assign]

    with bench.captured.running(revoke_first) as running:
        bench.captured.request("snapshot", tables=[str(BAD)])
        bench.fails(running, "access_denied")


@pytest.mark.matrix
def test_a_table_that_a_later_start_refuses_fails_alone_and_comes_back_by_itself(bench: Bench) -> None:
    with bench.captured.running() as running:
        bench.captured.wait_for_streaming(running)
    bench.execute("REVOKE SELECT ON bad FROM {role}", "INSERT INTO bad VALUES (100, 'meanwhile')")
    with bench.captured.running() as running:
        bench.fails(running, "select_missing")
    bench.execute("GRANT SELECT ON bad TO {role}")
    with bench.captured.running() as running:
        bench.captured.wait_for_streaming(running)
        bench.is_equal(BAD)


@pytest.mark.matrix
def test_a_publication_that_leaves_out_deletes_stops_the_capture(bench: Bench) -> None:
    with pytest.raises(FatalError) as stopped, bench.captured.running() as running:  # noqa: PT012 (raised by leaving)
        bench.captured.wait_for_streaming(running)
        bench.execute("ALTER PUBLICATION p SET (publish = 'insert, update, truncate')")
        raise running.error()
    assert stopped.value.code == "publication_lacks_operations"
    assert "SET (publish = " in (stopped.value.action or "")


@pytest.mark.matrix
def test_its_own_slot_and_connections_stop_no_capture(bench: Bench) -> None:
    """Every connection for a reader of the log is taken, and every slot."""
    free = bench.database.execute(
        "SELECT current_setting('max_replication_slots')::int - count(*)::int - 1 FROM pg_replication_slots"
    )[0][0]
    for number in range(free):
        bench.database.execute(f"SELECT pg_create_physical_replication_slot('{bench.role}_{number}')")
    try:
        with bench.captured.running() as running:
            bench.captured.wait_for_streaming(running)
            checked = running.source.check([BAD, GOOD])
            assert {p.code for p in checked if p.severity.value == "blocking"} <= {"no_free_wal_sender"}
            bench.database.execute("INSERT INTO good VALUES (200, 'more')")
            bench.captured.catch_up(running)
            bench.is_equal(GOOD)
    finally:
        for number in range(free):
            bench.database.execute(f"SELECT pg_drop_replication_slot('{bench.role}_{number}')")
