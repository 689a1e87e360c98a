"""A replicator's publication: made, kept in line with its tables, checked where it is the user's own, and dropped.

The comment of one that is ours names its replicator, which also owns the slot of the same name. It is made before the slot (a slot older
than its publication fails permanently) and dropped after it. A crash in between leaves something that the next call corrects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from replicator.model.errors import ConfigError, FatalError, Problem
from replicator.model.schema import TableId
from replicator_source_postgresql.catalogue.discovery import Connection, read_publication
from replicator_source_postgresql.catalogue.tables import CatalogTable, KeyFault, Publication
from replicator_source_postgresql.table_assessment import (
    assess_persistence,
    assess_row_filter,
    finding,
    identity_statements,
)

_COMMENT: Final = "Made by the Replicator for {name} ({uuid}). Dropped by `replicator delete {name}`."
_COMMENT_PATTERN: Final = re.compile(r"Made by the Replicator for (\S+) \(([^)]*)\)")


IN_MOTION: Final = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedObject,
    psycopg.errors.DuplicateObject,
    psycopg.errors.InvalidParameterValue,
)
"""With these the server refuses statements about tables that somebody dropped, renamed, replaced by a view, or listed, since they were
looked up, or is altering, one after the other, while we list them."""


def publication_statement(name: str, tables: Sequence[TableId]) -> str:
    """Return a `CREATE PUBLICATION` that lists the tables by name."""
    # ONLY: the children of an inheritance tree are tables of their own. It means nothing for partitioned tables,
    # whose partitions always belong to them.
    listed = f" FOR TABLE {_table_list(tables)}" if tables else ""
    return (
        f"CREATE PUBLICATION {_quote(name)}{listed}"
        " WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
    )


def proposed_statements(name: str, tables: Sequence[CatalogTable]) -> str:
    """Return the `CREATE PUBLICATION` that a person is asked to run, and what it leaves out, with the reason and the statement for later.

    It can be run as it is. A table that cannot be identified is left out: once it is published, its own application can no longer update
    it. With an unlogged table the server refuses the statement. A partition is published as its root.
    """
    reasons = {table.table: _why_left_out(table) for table in tables if not table.is_partition}
    statement = f"{publication_statement(name, [table for table, why in reasons.items() if why is None])};"
    left_out = {table: why for table, why in reasons.items() if why is not None}
    if not left_out:
        return statement
    names = ", ".join(f"{table} ({why})" for table, why in left_out.items())
    return (
        f"{statement} It leaves out {names}, which cannot be published yet. Fix that first, then run: "
        f"{addition_statement(name, list(left_out))}"
    )


def creation_script(name: str, tables: Sequence[CatalogTable]) -> Sequence[str]:
    """Return the statement that creates the publication, with every table that the statements of other findings fix before it."""
    listed = [table.table for table in tables if not table.is_partition and _is_curable(table)]
    return [f"{publication_statement(name, listed)};"]


def _is_curable(table: CatalogTable) -> bool:
    """Return whether the table can be published, or SQL makes it so."""
    return table.key_fault is None or bool(identity_statements(table))


def addition_statement(name: str, tables: Sequence[TableId]) -> str:
    """Return an `ALTER PUBLICATION` that adds tables."""
    return f"ALTER PUBLICATION {_quote(name)} ADD TABLE {_table_list(tables)};"


def belongs_to_another(publication: Publication, uuid: str) -> bool:
    """Return whether the publication's comment names another replicator than `uuid`; false if either is unknown."""
    match = _COMMENT_PATTERN.search(publication.comment or "")
    return bool(match and match[2] and uuid and match[2] != uuid)


def align_publication(
    connection: Connection, name: str, tables: Sequence[CatalogTable], *, replicator: str, uuid: str
) -> None:
    """Make our publication list exactly these tables, in one transaction. Replay: does nothing.

    Tables that are in it and stay are not touched.

    Raises:
        ConfigError: The publication is not ours, or a table cannot be published without making the application's updates fail.
    """
    publication = read_publication(connection, name)
    _refuse_foreign(publication, name, uuid)
    listed = publication.tables if publication else frozenset()
    wanted = {table.table for table in tables}
    added = [table for table in tables if table.table not in listed]
    _refuse([p for table in tables for p in _unfit(table, is_listed=table.table in listed)], name)
    comment = sql.Literal(_COMMENT.format(name=replicator, uuid=uuid)).as_string(None)
    statements = []
    if publication is None:
        statements.append(publication_statement(name, [table.table for table in tables]))
        statements.append(f"COMMENT ON PUBLICATION {_quote(name)} IS {comment}")
    else:
        if removed := sorted(listed - wanted):
            statements.append(f"ALTER PUBLICATION {_quote(name)} DROP TABLE {_table_list(removed)}")
        # Somebody's column list or row filter would make the target partial. Listed again, the table has another
        # identity, which the host notices.
        if narrowed := sorted(t.table for t in tables if t.table in listed and _is_narrowed(t)):
            statements.append(f"ALTER PUBLICATION {_quote(name)} DROP TABLE {_table_list(narrowed)}")
            added = [*added, *(t for t in tables if t.table in set(narrowed))]
        if added:
            statements.append(f"ALTER PUBLICATION {_quote(name)} ADD TABLE {_table_list([t.table for t in added])}")
        if publication.operations != _ALL_OPERATIONS or not publication.via_root:
            statements.append(
                f"ALTER PUBLICATION {_quote(name)} SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
            )
    if not statements:
        return
    with connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())


def verify_publication(publication: Publication | None, name: str, tables: Sequence[CatalogTable]) -> None:
    """Verify that the user's publication carries every change of the tables.

    Raises:
        ConfigError: It does not exist, or leaves out what it must carry of some tables, which its problems name.
        FatalError: It leaves out operations.
    """
    if publication is None:
        raise ConfigError(
            f"There is no publication {name} in the source.",
            code="publication_missing",
            action=f"Run there: {proposed_statements(name, tables)}",
        )
    if lacking := sorted(_ALL_OPERATIONS - publication.operations):
        # About every table: while running it stops the replicator, as the minute's check does.
        raise FatalError(
            f"The publication {name} does not publish {', '.join(lacking)}.",
            code="publication_lacks_operations",
            action=f"ALTER PUBLICATION {_quote(name)} SET (publish = 'insert, update, delete, truncate'); Then start again.",
        )
    _refuse([problem for table in tables for problem in unseen_changes(publication, table)], name)


def unseen_changes(publication: Publication, table: CatalogTable) -> list[Problem]:
    """Find the reasons why a user's publication would not carry every change of a table that it should, or not as snapshots read it."""
    problems = assess_persistence(table) + assess_row_filter(table)
    name = _quote(publication.name)
    if table.is_partition:
        problems.append(_partition_problem(table))
    if table.published is None:
        is_unfit, addition = table.key_fault is not None, addition_statement(publication.name, [table.table])
        problems.append(
            finding(
                table,
                "table_not_published",
                f"the publication {publication.name} does not list it",
                f"{'Once it has an identity: ' if is_unfit else ''}{addition}",
                sql=[addition] if _is_curable(table) else (),
            )
        )
    if table.is_partitioned and not publication.via_root:
        problems.append(
            finding(
                table,
                "partitions_not_via_root",
                f"the publication {publication.name} names its partitions instead of it",
                None,
                sql=[f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"],
            )
        )
    listed = table.published.columns if table.published else None
    generated = [c for c in table.columns if c.is_generated and (listed is None or c.position in listed)]
    if generated and (publication.generated != "n" or listed is not None):
        problems.append(
            finding(
                table,
                "generated_columns_published",
                f"the publication {publication.name} publishes its generated columns, which snapshots leave out",
                f"ALTER PUBLICATION {name} SET (publish_generated_columns = none); and list no generated column.",
                sql=[f"ALTER PUBLICATION {name} SET (publish_generated_columns = none);"] if listed is None else (),
            )
        )
    return problems


def drop_publication(connection: Connection, name: str) -> None:
    """Drop our publication. Replay: does nothing."""
    connection.execute(f"DROP PUBLICATION IF EXISTS {_quote(name)}".encode())


_ALL_OPERATIONS: Final = frozenset({"insert", "update", "delete", "truncate"})


def _refuse_foreign(publication: Publication | None, name: str, uuid: str) -> None:
    if publication is None:
        return
    if belongs_to_another(publication, uuid):
        raise ConfigError(
            f"The publication {name} in the source, and the slot of that name, belong to another replicator of this name.",
            code="publication_of_another",
            action="Rename this replicator; or, if the other one no longer exists, drop its slot and its publication.",
        )
    if publication.is_for_all_tables or publication.schemas:
        raise ConfigError(
            f"The publication {name} in the source is for all tables or for schemas, so it was not created by Replicator.",
            code="publication_name_taken",
            action="Rename the replicator, or drop that publication.",
        )


def _refuse(problems: Sequence[Problem], name: str) -> None:
    """Raise the tables' problems, if there are any."""
    if not problems:
        return
    codes = {problem.code for problem in problems}
    code = codes.pop() if len(codes) == 1 else "table_not_publishable"
    names = ", ".join(dict.fromkeys(str(problem.table) for problem in problems))
    raise ConfigError(
        _HEADLINES.get(code, "These tables cannot be replicated through the publication {name}: {tables}.").format(
            name=name, tables=names
        ),
        code=code,
        action=" ".join(dict.fromkeys(problem.action for problem in problems if problem.action))
        or "`replicator validate` prints the SQL that fixes them.",
        problems=tuple(problems),
    )


_HEADLINES: Final = {
    "is_partition": "These tables are partitions: {tables}.",
    "table_not_published": "The publication {name} does not list {tables}.",
    **dict.fromkeys(map(str, KeyFault), "These tables have no usable identity: {tables}."),
}


def _unfit(table: CatalogTable, *, is_listed: bool) -> list[Problem]:
    """Find the reasons why one of our own publications cannot have the table."""
    problems = assess_persistence(table)
    if table.is_partition:
        # A partition's changes are published as its root's, also if it became one after it was listed.
        problems.append(_partition_problem(table))
    elif not is_listed and table.key_fault is not None:
        problems.append(
            finding(
                table,
                table.key_fault.value,
                "it cannot be published: its changes could not be attributed to rows, and its updates might fail",
                None,
            )
        )
    elif not is_listed and not table.is_owned:
        problems.append(
            finding(
                table,
                "table_not_owned",
                f"it belongs to {table.owner}; only its owner can add it to a publication",
                f"GRANT {_quote(table.owner)} TO the role of source.user; or name a publication of the owner's in source.publication.",
            )
        )
    return problems


def _why_left_out(table: CatalogTable) -> str | None:
    """Return the code of the finding that keeps the table out of any publication; None if it can be published."""
    if table.key_fault is not None:
        return table.key_fault.value
    return next((problem.code for problem in assess_persistence(table)), None)


def _partition_problem(table: CatalogTable) -> Problem:
    return finding(
        table,
        "is_partition",
        "it is a partition: its changes are published as those of its root",
        "Remove it from `tables.include` and name its root instead.",
    )


def _is_narrowed(table: CatalogTable) -> bool:
    return table.published is not None and (
        table.published.columns is not None or table.published.row_filter is not None
    )


def _table_list(tables: Sequence[TableId]) -> str:
    return ", ".join(f"ONLY {sql.Identifier(t.namespace, t.name).as_string(None)}" for t in tables)


def _quote(name: str) -> str:
    return sql.Identifier(name).as_string(None)
