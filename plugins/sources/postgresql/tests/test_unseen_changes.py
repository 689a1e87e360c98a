"""What PostgreSQL would keep from the log without anybody noticing: refused beforehand, and loud where it comes while running."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from replicator.model.errors import ConfigError, FatalError, KeyMissingError, Severity, TableError
from replicator.model.schema import TableId
from replicator.plugins.source import PullLimits
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.servers import ScratchDatabase

MakeSource = Callable[..., PostgresqlSource]
T = TableId("public", "t")
LIMITS = PullLimits(rows=1000, bytes=1 << 24, wait_s=1.0)


def codes(source: PostgresqlSource, table: TableId = T) -> set[str]:
    """The blocking findings about a table."""
    return {p.code for p in source.check([table]) if p.severity is Severity.BLOCKING and p.location == str(table)}


def refusal(source: PostgresqlSource, table: TableId = T) -> str | None:
    """Why the source refuses to prepare the table, as it does when something about it has changed while running."""
    try:
        source.prepare([table], is_first=False)
    except FatalError as error:
        return error.code
    except ConfigError as error:
        locations = {p.location for p in error.problems}
        return (
            error.code
            if not locations
            else error.problems[0].code
            if locations == {str(table)}
            else "another's problem"
        )
    return None


def table_errors(
    database: ScratchDatabase, source: PostgresqlSource, *statements: str, given: Sequence[str] = ()
) -> dict[TableId, TableError]:
    """What the log says about the table after these statements."""
    found = source.describe([T])
    database.execute(*given)
    offset = source.prepare([T], is_first=True)
    reader = source.open_log(offset, {t: d.schema for t, d in found.items()})
    database.execute(*statements)
    mark, errors = source.mark(), dict[TableId, TableError]()
    try:
        for _ in range(20):
            batch = reader.pull(LIMITS)
            errors |= batch.table_errors
            if mark in batch.marks:
                return errors
    finally:
        reader.close()
    pytest.fail("the mark did not come")


# -- row filters


@pytest.fixture
def filtered(any_database: ScratchDatabase, make_source: MakeSource) -> PostgresqlSource:
    """A source whose publication has a row filter on a table with a large value."""
    if any_database.server.major_version < 15:
        pytest.skip("row filters came with PostgreSQL 15")
    any_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, w int)",
        "INSERT INTO t SELECT 1, string_agg(md5(g::text), ''), 1 FROM generate_series(1, 300) g",
        "CREATE PUBLICATION mine FOR TABLE t WHERE (id >= 100)",
    )
    return make_source(any_database, publication="mine")


def test_a_row_filter_next_to_large_values_is_refused_unless_whole_rows_are_logged(
    any_database: ScratchDatabase, filtered: PostgresqlSource
) -> None:
    assert codes(filtered) == {"row_filter_needs_full_identity"}
    assert refusal(filtered) == "row_filter_needs_full_identity"
    (problem,) = (p for p in filtered.check([T]) if p.code == "row_filter_needs_full_identity")
    assert "columns a" in problem.message
    fix = (problem.action or "").split(";")[0]
    any_database.execute(fix)
    assert codes(filtered) == set()
    assert refusal(filtered) is None
    any_database.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT", "ALTER TABLE t ALTER COLUMN a TYPE int USING 1")
    assert codes(filtered) == set()


def test_a_row_that_enters_the_filter_without_its_large_values_fails_the_table(
    any_database: ScratchDatabase, filtered: PostgresqlSource
) -> None:
    errors = table_errors(
        any_database,
        filtered,
        "ALTER PUBLICATION mine SET TABLE t WHERE (id >= 100)",
        "UPDATE t SET id = id + 200 WHERE id = 1",
        given=("ALTER PUBLICATION mine SET TABLE t",),
    )
    assert isinstance(errors[T], KeyMissingError)
    assert errors[T].code == "filtered_row_incomplete"
    assert "column a" in errors[T].message
    assert "REPLICA IDENTITY FULL" in str(errors[T])


# -- what a publication leaves out


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("ALTER PUBLICATION mine SET (publish = 'insert, update, delete')", "publication_lacks_operations"),
        ("ALTER PUBLICATION mine SET (publish = 'insert, update, truncate')", "publication_lacks_operations"),
        ("ALTER PUBLICATION mine SET (publish_via_partition_root = false)", "partitions_not_via_root"),
        ("ALTER PUBLICATION mine DROP TABLE t; ALTER PUBLICATION mine ADD TABLE other", "table_not_published"),
    ],
)
def test_a_publication_that_leaves_something_out_is_refused_while_running_too(
    any_database: ScratchDatabase, make_source: MakeSource, change: str, code: str
) -> None:
    any_database.execute(
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    source = make_source(any_database, publication="mine")
    assert refusal(source) is None
    any_database.execute(change)
    assert refusal(source) == code
    assert code in {p.code for p in source.check([T])}


def test_an_unlogged_table_is_refused_while_running_too(any_database: ScratchDatabase, make_source: MakeSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mine FOR ALL TABLES")
    source = make_source(any_database, publication="mine")
    assert refusal(source) is None
    any_database.execute("ALTER TABLE t SET UNLOGGED")
    assert refusal(source) == "unlogged_table"


def test_a_table_that_only_its_owner_can_publish_fails_alone(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    role = f"{any_database.name}_r"
    any_database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {any_database.name} TO {role}",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {role}",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE mine (id int PRIMARY KEY)",
        f"ALTER TABLE mine OWNER TO {role}",
    )
    try:
        source = make_source(any_database, user=role)
        with pytest.raises(ConfigError) as refused:
            source.prepare([T, TableId("public", "mine")], is_first=True)
        assert [(p.code, p.location) for p in refused.value.problems] == [("table_not_owned", "public.t")]
        source.prepare([TableId("public", "mine")], is_first=True)
        source.remove()
        source.close()
    finally:
        any_database.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_a_table_that_an_extension_keeps_is_told(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute(
        "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler",
        "CREATE TABLE t (id int PRIMARY KEY) USING other",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10) USING other",
    )
    tables = [T, TableId("public", "plain"), TableId("public", "parts")]
    found = [(p.location, p.severity) for p in source.check(tables) if p.code == "other_access_method"]
    assert found == [("public.t", Severity.WARNING), ("public.parts", Severity.WARNING)]


# -- types whose texts change by themselves

NAMING = {
    "regclass": "",
    "regtype": "",
    "regproc": "",
    "regprocedure": "",
    "regoper": "",
    "regoperator": "",
    "regrole": "",
    "regnamespace": "",
    "regcollation": "",
    "regconfig": "",
    "regdictionary": "",
    "aclitem": "",
    "regclass[]": "",
    "d": "CREATE DOMAIN d AS regclass",
    "c": "CREATE TYPE c AS (n int, r regclass)",
    "cc": "CREATE TYPE inner_c AS (r regtype[]); CREATE TYPE cc AS (n int, i inner_c)",
    "c2[]": "CREATE TYPE c2 AS (r regrole)",
}


def test_types_written_as_names_are_refused_wherever_they_hide(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(*(statement for statement in NAMING.values() if statement))
    tables = []
    for number, spelling in enumerate(NAMING):
        any_database.execute(f"CREATE TABLE n{number} (id int PRIMARY KEY, r {spelling})")
        tables.append(TableId("public", f"n{number}"))
    problems = {p.location: p for p in source.check(tables) if p.code == "unsupported_type"}
    assert set(problems) == {str(t) for t in tables}
    assert "values of regclass are written as names" in problems["public.n0"].message
    assert "ALTER COLUMN" in (problems["public.n0"].action or "")


def test_a_column_of_such_a_type_that_comes_later_fails_the_table(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    errors = table_errors(
        any_database, source, "ALTER TABLE t ADD COLUMN r regclass", "INSERT INTO t VALUES (1, 1, 't'::regclass)"
    )
    assert errors[T].code == "unsupported_type"


def test_every_output_function_of_the_server_that_is_not_immutable_is_known(any_database: ScratchDatabase) -> None:
    """A type that a newer server brings must be looked at: its text may depend on settings or on the catalogue."""
    rows = any_database.execute(
        "SELECT t.typname::text FROM pg_type t JOIN pg_proc p ON p.oid = t.typoutput WHERE p.provolatile <> 'i'"
        " AND t.typtype IN ('b', 'r', 'm') AND t.typcategory <> 'A' AND t.typnamespace = 'pg_catalog'::regnamespace"
        " AND t.typrelid = 0"
    )
    by_settings = {"date", "interval", "money", "timestamp", "timestamptz"}
    of_parts = {name for (name,) in rows if name.endswith("range")}
    names = {name for (name,) in rows} - by_settings - of_parts
    assert names <= {
        "aclitem", "regclass", "regcollation", "regconfig", "regdatabase", "regdictionary", "regnamespace", "regoper",
        "regoperator", "regproc", "regprocedure", "regrole", "regtype",
    }  # fmt: skip


def test_a_type_of_an_extension_whose_text_may_depend_on_more_is_told(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute(
        "CREATE TYPE odd",
        "CREATE FUNCTION odd_in(cstring) RETURNS odd AS 'textin' LANGUAGE internal IMMUTABLE STRICT",
        "CREATE FUNCTION odd_out(odd) RETURNS cstring AS 'textout' LANGUAGE internal STABLE STRICT",
        "CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = text)",
        "CREATE TABLE t (id int PRIMARY KEY, v odd)",
    )
    (problem,) = (p for p in source.check([T]) if p.code == "type_not_immutable")
    assert problem.severity is Severity.WARNING
    assert "public.odd" in problem.message
    any_database.execute("ALTER FUNCTION odd_out(odd) IMMUTABLE")
    assert "type_not_immutable" not in {p.code for p in source.check([T])}


def test_quoting_of_names_is_the_same_for_reads_and_log_whatever_the_role_says(
    any_database: ScratchDatabase, filtered: PostgresqlSource, make_source: MakeSource
) -> None:
    before = filtered.describe([T])[T].identity
    any_database.execute(f"ALTER DATABASE {any_database.name} SET quote_all_identifiers = on")
    assert make_source(any_database, publication="mine").describe([T])[T].identity == before
