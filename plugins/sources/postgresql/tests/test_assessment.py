"""`check` finds everything at once, says where, and says what fixes it; the fix works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from replicator.model.errors import (
    AccessDeniedError,
    ConfigError,
    Problem,
    ReplicatorError,
    Severity,
    SourceUnavailableError,
)
from replicator.model.schema import TableId
from replicator.plugins import ChunkRequest, Secret
from replicator_source_postgresql.assessment import server as assessment
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.postgresql.programs import find_distribution
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.scratch_servers import free_port

MakeSource = Callable[..., PostgresqlSource]


def table(name: str) -> TableId:
    return TableId("public", name)


def blocking(problems: Sequence[Problem]) -> dict[str | None, list[str]]:
    """Codes by location."""
    found: dict[str | None, list[str]] = {}
    for problem in problems:
        if problem.severity is Severity.BLOCKING:
            found.setdefault(problem.location, []).append(problem.code)
    return found


# -- identities

REFUSED = {
    "no_primary_key": ("CREATE TABLE t (id int)",),
    "deferrable_key": ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY IMMEDIATE)",),
    "replica_identity_nothing": ("CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"),
    "replica_identity_index_missing": (
        "CREATE TABLE t (id int NOT NULL)",
        "CREATE UNIQUE INDEX i ON t (id)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "DROP INDEX i",
    ),
    "unusable_key_column": ("CREATE TABLE t (id float8 PRIMARY KEY)",),
    "unusable_key_column (array)": ("CREATE TABLE t (id int[] PRIMARY KEY)",),
    "partition_identity": (
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE l PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE l REPLICA IDENTITY NOTHING",
    ),
    "no_primary_key (partitioned)": (
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE l PARTITION OF t FOR VALUES FROM (0) TO (10)",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", list(REFUSED))
def test_a_table_without_usable_identity_is_refused_with_the_sql_that_cures_it(
    any_database: ScratchDatabase, source: PostgresqlSource, case: str
) -> None:
    any_database.execute(*REFUSED[case])
    (problem,) = [p for p in source.check([table("t")]) if p.severity is Severity.BLOCKING]
    assert (problem.location, problem.code) == ("public.t", case.split(" ", maxsplit=1)[0])
    assert problem.action is not None
    any_database.execute(*[statement for statement in problem.action.split(";") if statement.strip()])
    assert blocking(source.check([table("t")])) == {}
    source.prepare([table("t")], is_first=True)
    any_database.execute("DELETE FROM t")


def test_a_generated_key_is_refused(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (n int NOT NULL, id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)")
    (problem,) = [p for p in source.check([table("t")]) if p.severity is Severity.BLOCKING]
    assert problem.code == "unusable_key_column"
    assert "id (it is generated)" in problem.message
    any_database.execute("CREATE UNIQUE INDEX i ON t (n)", "ALTER TABLE t REPLICA IDENTITY USING INDEX i")
    assert blocking(list(source.check([table("t")]))) == {}
    source.prepare([table("t")], is_first=True)
    any_database.execute("DELETE FROM t")


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_whole_rows_with_generated_columns_in_them_are_refused_where_postgresql_would_refuse_the_application(
    embedded_postgres: PostgresServer, make_source: MakeSource, kind: str
) -> None:
    with embedded_postgres.database() as database:
        database.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) {kind})",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        )
        source = make_source(database)
        (problem,) = [p for p in source.check([table("t")]) if p.severity is Severity.BLOCKING]
        assert problem.code == "generated_column_in_identity"
        with pytest.raises(ConfigError):
            source.prepare([table("t")], is_first=True)
        database.execute(problem.action or "")
        assert blocking(list(source.check([table("t")]))) == {}
        source.prepare([table("t")], is_first=True)
        database.execute("INSERT INTO t VALUES (1)", "DELETE FROM t")
        source.close()


def test_whole_rows_with_generated_columns_are_no_hindrance_before_18(
    database: ScratchDatabase, make_source: MakeSource
) -> None:
    database.execute(
        "CREATE TABLE t (id int, g int GENERATED ALWAYS AS (id * 2) STORED)", "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    source = make_source(database)
    assert blocking(list(source.check([table("t")]))) == {}
    source.prepare([table("t")], is_first=True)
    database.execute("INSERT INTO t VALUES (1)", "DELETE FROM t")


def test_which_columns_are_the_key(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    index = "CREATE UNIQUE INDEX {0}_i ON {0} (u)"
    any_database.execute(
        "CREATE TABLE by_default (u int NOT NULL, id int PRIMARY KEY)",
        "CREATE TABLE by_full (LIKE by_default INCLUDING ALL)",
        "ALTER TABLE by_full REPLICA IDENTITY FULL",
        "CREATE TABLE by_index (LIKE by_default INCLUDING ALL)",
        index.format("by_index"),
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i",
        "CREATE TABLE keyless (n int)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "CREATE TABLE deferrable_full (id int PRIMARY KEY DEFERRABLE)",
        "ALTER TABLE deferrable_full REPLICA IDENTITY FULL",
        "CREATE TABLE float_full (id float8 PRIMARY KEY)",
        "ALTER TABLE float_full REPLICA IDENTITY FULL",
        "CREATE TABLE covering (id int, n int, PRIMARY KEY (id) INCLUDE (n))",
        "CREATE TABLE parted (a int, b int, PRIMARY KEY (b, a)) PARTITION BY LIST (a)",
        "CREATE TABLE parted1 PARTITION OF parted FOR VALUES IN (1)",
        "ALTER TABLE parted1 REPLICA IDENTITY FULL",
    )
    expected = {
        "by_default": ("id",),
        "by_full": ("id",),
        "by_index": ("u",),
        "keyless": (),
        "deferrable_full": (),
        "float_full": (),
        "covering": ("id",),
        "parted": ("b", "a"),
    }
    tables = [table(name) for name in expected]
    assert {t.name: d.schema.key for t, d in source.describe(tables).items()} == expected
    assert blocking(list(source.check(tables))) == {}


def test_a_changed_replica_identity_shows_in_the_identity(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    before = source.describe([table("t")])[table("t")].identity.parts
    any_database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    after = source.describe([table("t")])[table("t")].identity.parts
    assert {part for part in after if after[part] != before[part]} == {"replica_identity"}


# -- tables that cannot be followed


def test_what_is_no_table_is_listed_with_the_reason(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM a",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM a",
    )
    with any_database.connect() as connection:
        connection.execute("CREATE TEMP TABLE hidden (id int PRIMARY KEY)")
        listed = source.list_tables()
    assert [(s.table.name, s.left_out) for s in listed] == [
        ("a", None),
        ("b", None),
        ("m", "the contents of a materialized view are not published"),
        ("u", "an unlogged table is not in the log; ALTER TABLE … SET LOGGED makes it replicable"),
        ("v", "a view has no rows of its own in the log"),
    ]


def test_every_finding_about_tables_comes_at_once(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE UNLOGGED TABLE u (id float8 PRIMARY KEY)",
        "CREATE TABLE e ()",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE UNLOGGED TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1)",
        "CREATE TABLE ok (id int PRIMARY KEY)",
    )
    found = blocking(list(source.check([table(name) for name in ("u", "e", "p", "p1", "ok", "none")])))
    assert found == {
        "public.u": ["unlogged_table", "unusable_key_column"],
        "public.e": ["no_columns", "no_primary_key"],
        "public.p": ["unlogged_partition"],
        "public.p1": ["is_partition"],
        "public.none": ["table_not_found"],
    }


# -- privileges


@pytest.fixture
def role(any_database: ScratchDatabase) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"r_{any_database.name}"
    any_database.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    any_database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_the_least_privileges_are_named_one_by_one_and_suffice(
    any_database: ScratchDatabase, make_source: MakeSource, role: str
) -> None:
    any_database.execute(
        "CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY, v int)", "INSERT INTO s.t VALUES (1, 1)",
        "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON s.t USING (false)",
    )  # fmt: skip
    t = TableId("s", "t")
    source = make_source(any_database, user=role, publication="mine")
    problems = source.check([t])
    assert blocking(list(problems)) == {
        "source.user": ["role_lacks_replication"],
        "source.publication": ["publication_missing"],
        "s.t": ["schema_usage_missing", "select_missing", "row_level_security"],
    }
    for problem in problems:
        if problem.severity is Severity.BLOCKING:
            any_database.execute((problem.action or "").split(";")[0])
    assert blocking(list(source.check([t]))) == {}
    assert "role_is_superuser" not in {p.code for p in source.check([t])}
    schema = source.describe([t])[t].schema
    start = source.prepare([t], is_first=True)
    source.open_log(start, {t: schema}).close()
    source.mark()
    assert source.identity()["system"]
    assert source.status().retained_bytes is not None
    source.close()
    make_source(any_database, publication="mine").remove()


def test_a_publication_of_our_own_needs_ownership_and_says_so(
    any_database: ScratchDatabase, make_source: MakeSource, role: str
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", f"GRANT SELECT ON t TO {role}", f"ALTER ROLE {role} REPLICATION"
    )
    source = make_source(any_database, user=role)
    problems = list(source.check([table("t")]))
    assert blocking(problems) == {"source.publication": ["may_not_create_publication"], "public.t": ["table_not_owned"]}
    assert [p.code for p in problems if "CREATE PUBLICATION" in (p.action or "")] == ["publication_proposed"]
    with pytest.raises(ConfigError) as refused:
        source.prepare([table("t")], is_first=True)
    assert [(p.location, p.code) for p in refused.value.problems] == [("public.t", "table_not_owned")]
    any_database.execute(f'GRANT CREATE ON DATABASE "{any_database.name}" TO {role}', f"ALTER TABLE t OWNER TO {role}")
    assert blocking(list(source.check([table("t")]))) == {}
    source.prepare([table("t")], is_first=True)
    source.remove()
    source.close()


def test_hidden_columns_are_named(any_database: ScratchDatabase, make_source: MakeSource, role: str) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        f"GRANT SELECT (id, b) ON t TO {role}",
        f"ALTER ROLE {role} REPLICATION",
    )
    any_database.execute("CREATE PUBLICATION mine FOR TABLE t")
    problems = make_source(any_database, user=role, publication="mine").check([table("t")])
    (finding,) = [p for p in problems if p.code == "select_missing"]
    assert "the columns a" in finding.message


def test_superuser_is_more_than_is_needed(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (finding,) = [p for p in source.check([table("t")]) if p.code == "role_is_superuser"]
    assert finding.severity is Severity.WARNING


# -- the user's own slot and publication


def test_a_given_publication_must_carry_everything(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE PUBLICATION mine FOR TABLE a, p WITH (publish = 'insert, update')",
    )
    source = make_source(any_database, publication="mine")
    tables = [table(name) for name in "abp"]
    problems = list(source.check(tables))
    assert blocking(problems) == {
        "public.b": ["table_not_published"],
        "source.publication": ["publication_lacks_operations"],
        "public.p": ["partitions_not_via_root"],
    }
    for problem in problems:
        if problem.severity is Severity.BLOCKING:
            any_database.execute(problem.action or "")
    assert blocking(list(source.check(tables))) == {}


def test_a_given_publication_for_all_tables_works_with_a_warning(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    source = make_source(any_database, publication="mine")
    problems = source.check([table("t")])
    assert blocking(list(problems)) == {}
    assert [p.severity for p in problems if p.code == "publication_for_all_tables"] == [Severity.WARNING]


def test_a_given_publication_that_publishes_generated_columns_is_refused(
    embedded_postgres: PostgresServer, make_source: MakeSource
) -> None:
    with embedded_postgres.database() as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",
            "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root, publish_generated_columns = stored)",
        )
        source = make_source(database, publication="mine")
        assert blocking(list(source.check([table("t")]))) == {"public.t": ["generated_columns_published"]}
        source.close()


def test_the_publication_that_is_proposed_breaks_no_application_and_says_what_it_leaves_out(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE bare (a int)",
        "INSERT INTO bare VALUES (1)",
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
    )
    tables = [table("t"), table("bare"), table("u")]
    problems = {p.code: p for p in make_source(any_database, publication="mine").check(tables)}
    create, explanation, *_ = (problems["publication_missing"].action or "").split(";")
    assert "public.bare (no_primary_key), public.u (unlogged_table)" in explanation
    any_database.execute(create)
    any_database.execute("UPDATE bare SET a = 2")
    problems = {p.code: p for p in make_source(any_database, publication="mine").check(tables[:2])}
    lacking = problems["table_not_published"]
    assert lacking.location == "public.bare"
    assert (lacking.action or "").startswith("Once it has an identity: ALTER PUBLICATION")
    any_database.execute("ALTER TABLE bare REPLICA IDENTITY FULL", "ALTER TABLE u SET LOGGED")
    any_database.execute(explanation.partition("then run: ")[2])
    assert blocking(list(make_source(any_database, publication="mine").check(tables))) == {}


def test_the_statement_for_many_tables_of_another_owner_is_printed_once(
    any_database: ScratchDatabase, make_source: MakeSource, role: str
) -> None:
    any_database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"),
        *(f"GRANT SELECT ON {name} TO {role}" for name in "abc"),
        f"ALTER ROLE {role} REPLICATION",
        f'GRANT CREATE ON DATABASE "{any_database.name}" TO {role}',
    )
    tables = [table(name) for name in "abc"]
    source = make_source(any_database, user=role)
    problems = list(source.check(tables))
    assert blocking(problems) == {f"public.{name}": ["table_not_owned"] for name in "abc"}
    (statement,) = [p.action for p in problems if "CREATE PUBLICATION" in (p.action or "")]
    any_database.execute(statement or "")
    (name,) = any_database.execute("SELECT pubname FROM pg_publication")[0]
    given = make_source(any_database, user=role, publication=name)
    assert blocking(list(given.check(tables))) == {}
    given.close()
    source.close()


def test_a_given_slot_is_looked_at(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = f"mine_{any_database.name}"
    source = make_source(any_database, slot=name)
    assert blocking(list(source.check([table("t")]))) == {"source.slot": ["slot_missing"]}
    any_database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    assert blocking(list(source.check([table("t")]))) == {}


def test_checking_changes_nothing(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.check([table("t")])
    assert any_database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert any_database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [
        (0,)
    ]


# -- the server


def test_a_server_without_logical_decoding_or_free_slots_is_refused(source_of: MakeSource) -> None:
    settings = {"wal_level": "replica", "max_wal_senders": "1", "max_replication_slots": "1"}
    with PostgresServer(find_distribution(), settings=settings) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_create_physical_replication_slot('taken')")
        source = source_of(server)
        problems = list(source.check([table("t")]))
        assert blocking(problems) == {"source": ["wal_level_not_logical", "no_free_slot"]}
        source.close()


def test_a_wrong_password_a_wrong_database_and_a_dead_server_are_told_apart(source_of: MakeSource) -> None:
    with PostgresServer(find_distribution(), auth="scram-sha-256") as server:
        assert server.password is not None
        password = Secret(server.password)
        cases: list[tuple[dict[str, object], type[ReplicatorError]]] = [
            ({"password": Secret("not-the-password")}, AccessDeniedError),
            ({"password": password, "user": "nobody_here"}, AccessDeniedError),
            ({"password": password, "database": "nowhere"}, ConfigError),
            ({"password": password, "port": free_port()}, SourceUnavailableError),
        ]
        for settings, error in cases:
            with pytest.raises(error) as caught:
                source_of(server, **settings).identity()
            assert caught.value.action
            assert server.password not in str(caught.value)
            assert f"{server.host}:" in str(caught.value)


@pytest.mark.matrix
def test_tls_proves_the_server_by_its_certificate(source_of: MakeSource) -> None:
    with PostgresServer(find_distribution(), tls=True) as server:
        proven = source_of(server, tls="verify-full", tls_ca=server.certificate_file)
        assert proven.identity()["database"] == "postgres"
        with proven._sessions.control.use("asking") as connection:
            assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100000)")
        schema = proven.describe([table("t")])[table("t")].schema
        assert proven.read_chunk(ChunkRequest(schema=schema, limit=200_000)).rows.num_rows == 100_000
        with pytest.raises(AccessDeniedError, match="certificate"):
            source_of(server, tls="verify-full").identity()
        with FaultProxy(
            server.host, server.port, host="127.0.0.2"
        ) as elsewhere:  # whose name is not in the certificate
            other = {"host": elsewhere.host, "port": elsewhere.port, "tls_ca": server.certificate_file}
            assert source_of(server, tls="verify-ca", **other).identity() == proven.identity()
            with pytest.raises(AccessDeniedError, match="certificate"):
                source_of(server, tls="verify-full", **other).identity()


# -- pure

FACTS = assessment.ServerFacts(
    version=150000, version_text="15.0", wal_level="logical", is_in_recovery=False,
    slots_used=1, slots_max=10, senders_used=0, senders_max=10,
    wal_keep_max="1GB", role="r", is_superuser=False, may_replicate=True, may_create_in_database=True, database="d",
)  # fmt: skip
RESOURCES = assessment.Resources(
    replicator="shop",
    uuid="u",
    slot_name="x",
    publication_name="x",
    is_slot_given=False,
    is_publication_given=False,
    slot=None,
    publication=None,
)


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        (FACTS, {"wal_keep_bounded"}),
        (replace(FACTS, wal_keep_max="-1"), {"wal_keep_unbounded"}),
        (replace(FACTS, is_in_recovery=True), {"server_is_standby", "wal_keep_bounded"}),
        (replace(FACTS, slots_used=10, senders_used=10), {"no_free_slot", "no_free_wal_sender", "wal_keep_bounded"}),
        (replace(FACTS, replication_error="no pg_hba.conf entry"), {"replication_refused", "wal_keep_bounded"}),
    ],
)
def test_findings_about_the_server(facts: assessment.ServerFacts, codes: set[str]) -> None:
    assert {p.code for p in assessment.assess_server(facts, RESOURCES)} == codes


def test_a_server_before_13_is_refused() -> None:
    assert assessment.too_old(replace(FACTS, version_text="12.9")).severity is Severity.BLOCKING
