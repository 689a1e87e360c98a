"""Read the catalogue: the list of tables, and all facts of some of them, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from replicator.model.schema import TableId
from replicator.plugins.source import TableSummary
from replicator_source_postgresql.catalogue.queries import (
    COLUMNS_QUERY,
    FILTER_KEY,
    INDEXES_QUERY,
    LEAVES_QUERY,
    LIST_QUERY,
    LIVE_COLUMNS_QUERY,
    MISSING_QUERY,
    NAMES_QUERY,
    PUBLICATION_QUERY,
    TABLES_QUERY,
    USED_TYPES_QUERY,
)
from replicator_source_postgresql.catalogue.raw_texts import catalogue_texts, is_text, shown
from replicator_source_postgresql.catalogue.tables import (
    VERSION_COLUMN_LISTS,
    VERSION_GENERATED_PUBLISHED,
    CatalogColumn,
    CatalogTable,
    Identity,
    KeyIndex,
    KeyPart,
    Leaf,
    Publication,
    PublishedAs,
    Traces,
)
from replicator_source_postgresql.lsn import widen_xid
from replicator_source_postgresql.types import (
    TYPES_QUERY,
    TypeInfo,
    column_type,
    named_in,
    type_infos,
    unknown_output,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_LEFT_OUT_KINDS: Final = {
    "v": "a view has no rows of its own in the log",
    "m": "the contents of a materialized view are not published",
    "f": "the rows of a foreign table are in another server's log",
}
_PLAIN_OPERATOR: Final = re.compile(r"[<>=]{1,2}")


def list_tables(connection: Connection) -> list[TableSummary]:
    """List every table of users, views and the like included, ordered by name."""
    with catalogue_texts(connection):
        rows = connection.execute(LIST_QUERY).fetchall()
    summaries = []
    for namespace, name, kind, persistence, root_namespace, root in rows:
        left_out = _LEFT_OUT_KINDS.get(kind)
        if not (is_text(namespace) and is_text(name)):
            left_out = "its name, or that of its schema, is not UTF-8"
        elif root is not None:
            left_out = f"it is a partition of {_shown_id(root_namespace, root)}, which is replicated as one table"
        elif left_out is None and persistence == "u":
            left_out = "an unlogged table is not in the log; ALTER TABLE … SET LOGGED makes it replicable"
        elif left_out is None and persistence == "t":
            left_out = "a temporary table is not in the log"
        summaries.append(TableSummary(table=_shown_id(namespace, name), left_out=left_out))
    return sorted(summaries, key=lambda s: s.table)


def read_tables(
    connection: Connection, tables: Iterable[TableId], publication: str, filters: MutableMapping[str, str] | None = None
) -> dict[TableId, CatalogTable]:
    """Read what the catalogue says of these tables now, in one transaction; those that do not exist are missing.

    Args:
        connection: An autocommit connection without a transaction.
        tables: The tables asked for.
        publication: The publication through which they are, or will be, replicated; it need not exist.
        filters: Row filters that were read before, which this adds to. The server locks a table to spell its filter.
    """
    wanted = list(dict.fromkeys(tables))
    with connection.transaction():
        # One view of the catalogue for all the queries. No table is read here, so the rule for chunks does not apply.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        with catalogue_texts(connection):
            return _CatalogReader(connection, publication, {} if filters is None else filters).read(wanted)


def read_names(connection: Connection, oids: Mapping[TableId, int]) -> dict[TableId, TableId]:
    """Read which names tables have now that do not have the given ones any more; a name that another table has counts as that table's."""
    asked = {
        "namespaces": [t.namespace for t in oids],
        "names": [t.name for t in oids],
        "oids": list(oids.values()),
    }
    with catalogue_texts(connection):
        rows = connection.execute(NAMES_QUERY, asked).fetchall()
    return {TableId(*row[:2]): TableId(*row[2:]) for row in rows if is_text(row[2]) and is_text(row[3])}


def read_live_columns(
    connection: Connection, oids: Iterable[int]
) -> tuple[str, dict[int, dict[int, str]], dict[int, set[int]]]:
    """Read which columns of these tables live, by oid and number, and which are of primary keys; with the snapshot of the read."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        with catalogue_texts(connection):
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            found: dict[int, dict[int, str]] = {}
            primary: dict[int, set[int]] = {}
            for oid, number, name, is_primary in connection.execute(LIVE_COLUMNS_QUERY, (sorted(set(oids)),)):
                found.setdefault(oid, {})[number] = shown(name)
                primary.setdefault(oid, set()).update([number] if is_primary else [])
    return row[0], found, primary


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Read a publication; None if there is none of that name. Its tables are those whose names are UTF-8."""
    with catalogue_texts(connection):
        return _read_publication(connection, name)


def _read_publication(connection: Connection, name: str) -> Publication | None:
    version = connection.info.server_version
    generated = "p.pubgencols::text" if version >= VERSION_GENERATED_PUBLISHED else "'n'"
    schemas = (
        "(SELECT coalesce(json_object_agg(n.nspname, pn.oid::int8), '{}') FROM pg_publication_namespace pn"
        " JOIN pg_namespace n ON n.oid = pn.pnnspid WHERE pn.pnpubid = p.oid)"
        if version >= VERSION_COLUMN_LISTS
        else "'{}'::json"
    )
    row = connection.execute(
        PUBLICATION_QUERY.format(generated=generated, schemas=schemas).encode(), (name,)
    ).fetchone()
    if row is None:
        return None
    oid, xmin, owner, is_owned, comment, is_for_all, operations, via_root, generated_kind, schemas_in = row
    members = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_publication_rel pr"
        " JOIN pg_class c ON c.oid = pr.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE pr.prpubid = %s",
        (oid,),
    ).fetchall()
    return Publication(
        name=name,
        oid=oid,
        version=xmin,
        owner=shown(owner),
        is_owned=is_owned,
        comment=None if comment is None else shown(comment),
        is_for_all_tables=is_for_all,
        schemas={shown(schema): row_oid for schema, row_oid in schemas_in.items()},
        operations=frozenset(operations),
        via_root=via_root,
        generated=generated_kind,
        tables=frozenset(TableId(*member) for member in members if all(map(is_text, member))),
    )


def resolve_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, TypeInfo]:
    """Read what the catalogue says of types and all that they are made of."""
    with catalogue_texts(connection):
        rows = connection.execute(TYPES_QUERY.encode(), (sorted(set(oids)),)).fetchall()
    return type_infos([tuple(shown(value) if isinstance(value, str) else value for value in row) for row in rows])


def _type_fault(info: TypeInfo) -> str | None:
    if (name := named_in(info)) is not None:
        return f"values of {name} are written as names, so renaming the object changes them unnoticed"
    if (name := unknown_output(info)) is not None:
        return (
            f"according to the server, the text of {name} may depend on more than the value; if so, source and target differ "
            "unnoticed"
        )
    return None


class _CatalogReader:
    """Reads the facts of many tables with one query per kind of fact."""

    def __init__(self, connection: Connection, publication: str, filters: MutableMapping[str, str]) -> None:
        self._connection = connection
        self._publication_name = publication
        self._filters = filters
        self._unreadable: dict[int, list[str]] = {}

    def read(self, wanted: Sequence[TableId]) -> dict[TableId, CatalogTable]:
        publication = read_publication(self._connection, self._publication_name)
        parameters = {
            "namespaces": [t.namespace for t in wanted],
            "names": [t.name for t in wanted],
            "publication": self._publication_name,
        }
        rows = [
            row
            for row in self._connection.execute(TABLES_QUERY.encode(), parameters).fetchall()
            # Names too long for PostgreSQL would be cut to fit, and then match another table.
            if TableId(row[1], row[2]) in set(wanted)
        ]
        oids = [row[0] for row in rows]
        columns = self._columns(oids, self._missing([row[0] for row in rows if row[3] == "p"]))
        indexes = self._indexes(oids)
        leaves = self._leaves([row[0] for row in rows if row[3] == "p"])
        members = self._members(oids, publication)
        types = self._types(oids)
        return {
            TableId(row[1], row[2]): self._table(row, columns, indexes, leaves, publication, members, types)
            for row in rows
        }

    def _table(
        self,
        row: tuple[Any, ...],
        columns: Mapping[int, list[CatalogColumn]],
        indexes: Mapping[int, list[KeyIndex]],
        leaves: Mapping[int, list[Leaf]],
        publication: Publication | None,
        members: Mapping[int, PublishedAs],
        types: Mapping[int, tuple[dict[int, str], dict[int, str]]],
    ) -> CatalogTable:
        (oid, namespace, name, kind, persistence, filenode, identity, is_partition, has_children, has_parent, has_row_security, is_usable,
         is_owned, owner, estimate, comment, fingerprint, schema_since, columns_since, made_by, near, is_first_command,
         has_new_columns, other_storage, highest_position) = row  # fmt: skip
        published = members.get(oid)
        if publication is not None and namespace in publication.schemas:
            # Through its schema a table is published whole, whatever filter its own entry has.
            schema_oid = publication.schemas[namespace]
            published = PublishedAs(
                rel_oid=published.rel_oid if published is not None else schema_oid,
                is_listed=published is not None,
                schema_oid=schema_oid,
                columns=None,
                row_filter=None,
            )
        elif published is None and publication is not None and publication.is_for_all_tables:
            published = PublishedAs(rel_oid=None, is_listed=False, schema_oid=None, columns=None, row_filter=None)
        labels, composites = types.get(oid, ({}, {}))
        return CatalogTable(
            table=TableId(namespace, name),
            server_version=self._connection.info.server_version,
            oid=oid,
            kind=kind,
            persistence=persistence,
            filenode=filenode,
            replica_identity=Identity(identity),
            is_partition=is_partition,
            has_children=has_children,
            has_parent=has_parent,
            has_row_security=has_row_security,
            is_schema_usable=is_usable,
            is_owned=is_owned,
            owner=shown(owner),
            estimated_rows=estimate,
            comment=None if comment is None else shown(comment),
            fingerprint=fingerprint,
            other_storage=None if other_storage is None else shown(other_storage),
            columns=tuple(columns.get(oid, ())),
            highest_position=highest_position,
            indexes=tuple(indexes.get(oid, ())),
            leaves=tuple(leaves.get(oid, ())),
            publication=publication,
            published=published,
            traces=Traces(
                schema_since=schema_since,
                columns_since=columns_since,
                made_by=widen_xid(made_by, near),
                is_first_command=is_first_command,
                has_new_columns=has_new_columns,
                labels=labels,
                composites=composites,
            ),
            unreadable=tuple(dict.fromkeys(self._unreadable.get(oid, ()))),
        )

    def _readable(self, relation: int, what: str, *texts: str | None) -> None:
        """Note what is used in statements about a table and is not UTF-8."""
        self._unreadable.setdefault(relation, []).extend(
            f"{what} {shown(text)}" for text in texts if text is not None and not is_text(text)
        )

    def _types(self, oids: Sequence[int]) -> dict[int, tuple[dict[int, str], dict[int, str]]]:
        """Read, of each table whose columns use such types, the labels of the enums and the attributes of the composites."""
        found: dict[int, tuple[dict[int, str], dict[int, str]]] = {}
        for relation, is_label, oid, state in self._connection.execute(USED_TYPES_QUERY.encode(), (list(oids),)):
            labels, composites = found.setdefault(relation, ({}, {}))
            (labels if is_label else composites)[oid] = state
        return found

    def _missing(self, roots: Sequence[int]) -> dict[tuple[int, str], list[str]]:
        """Read, of each column of a partitioned table, the values that its partitions keep for rows that were there before it."""
        if not roots:
            return {}
        rows = self._connection.execute(MISSING_QUERY.encode(), (list(roots),)).fetchall()
        return {(root, name): texts for root, name, texts in rows}

    def _columns(
        self, oids: Sequence[int], of_partitions: Mapping[tuple[int, str], list[str]]
    ) -> dict[int, list[CatalogColumn]]:
        rows = self._connection.execute(COLUMNS_QUERY, (list(oids),)).fetchall()
        infos = resolve_types(self._connection, {row[4] for row in rows})
        found: dict[int, list[CatalogColumn]] = {}
        for (
            relation,
            name,
            position,
            type_sql,
            type_oid,
            typmod,
            is_not_null,
            is_generated,
            is_selectable,
            comment,
            is_wide,
            missing,
            default_oid,
            default,
        ) in rows:
            info = infos.get(type_oid)
            self._readable(relation, "the column", name)
            kept = of_partitions.get((relation, name), []) if missing is None else [missing]
            self._readable(relation, "the type", type_sql)
            column = CatalogColumn(
                name=shown(name),
                position=position,
                type_oid=type_oid,
                type_sql=shown(type_sql),
                mapping=column_type(type_oid, typmod, info) if info is not None else None,
                fault=_type_fault(info) if info is not None else None,
                is_wide=is_wide,
                is_nullable=not is_not_null,
                is_generated=is_generated,
                is_selectable=is_selectable,
                comment=None if comment is None else shown(comment),
                before=tuple(text.encode("utf-8", "surrogateescape") for text in kept),
                default=None if default is None else shown(default),
                default_oid=default_oid,
            )
            found.setdefault(relation, []).append(column)
        return found

    def _indexes(self, oids: Sequence[int]) -> dict[int, list[KeyIndex]]:
        rows = self._connection.execute(INDEXES_QUERY, (list(oids),)).fetchall()
        parts: dict[int, list[KeyPart]] = {}
        heads: dict[int, tuple[Any, ...]] = {}
        for row in rows:
            index, column, position, collation_namespace, collation, is_descending, is_default, names = row[1], *row[7:]
            self._readable(row[0], "the collation", collation_namespace, collation)
            self._readable(row[0], "the operator's schema", *sorted({namespace for _, namespace, _ in names}))
            operators = {wanted: (shown(namespace), name) for wanted, namespace, name in names}
            collated = sql.Identifier(shown(collation_namespace), shown(collation)) if collation else None
            heads[index] = row[:7]
            parts.setdefault(index, []).append(
                KeyPart(
                    column=shown(column),
                    position=position,
                    collation=collated.as_string(None) if collated is not None else None,
                    operators={wanted: _operator_sql(*found) for wanted, found in operators.items()},
                    is_plain=is_default and all(found == ("pg_catalog", wanted) for wanted, found in operators.items()),
                    is_descending=is_descending,
                )
            )
        found_indexes: dict[int, list[KeyIndex]] = {}
        for oid, (relation, _, name, is_primary, is_identity, is_immediate, is_valid) in heads.items():
            index = KeyIndex(
                oid=oid,
                name=shown(name),
                is_primary=is_primary,
                is_replica_identity=is_identity,
                is_immediate=is_immediate,
                is_valid=is_valid,
                parts=tuple(parts[oid]),
            )
            found_indexes.setdefault(relation, []).append(index)
        return found_indexes

    def _leaves(self, roots: Sequence[int]) -> dict[int, list[Leaf]]:
        if not roots:
            return {}
        found: dict[int, list[Leaf]] = {}
        for (
            root,
            namespace,
            name,
            oid,
            filenode,
            attached,
            persistence,
            identity,
            columns,
            estimate,
        ) in self._connection.execute(LEAVES_QUERY, (list(roots),)):
            leaf = Leaf(
                name=_shown_id(namespace, name),
                oid=oid,
                filenode=filenode,
                attached=attached,
                persistence=persistence,
                identity=Identity(identity),
                identity_columns=frozenset(map(shown, columns)),
                estimated_rows=estimate,
            )
            found.setdefault(root, []).append(leaf)
        return found

    def _members(self, oids: Sequence[int], publication: Publication | None) -> dict[int, PublishedAs]:
        if publication is None:
            return {}
        has_lists = self._connection.info.server_version >= VERSION_COLUMN_LISTS
        lists = f"pr.prattrs::int2[], {FILTER_KEY}" if has_lists else "NULL::int2[], NULL::text"
        rows = self._connection.execute(
            f"SELECT pr.prrelid::int8, pr.oid::int8, {lists} FROM pg_publication_rel pr"  # noqa: S608 our own text
            " WHERE pr.prpubid = %s AND pr.prrelid = ANY(%s::oid[])".encode(),
            (publication.oid, list(oids)),
        ).fetchall()
        self._read_filters({key: oid for _, oid, _, key in rows if key is not None and key not in self._filters})
        found: dict[int, PublishedAs] = {}
        for relation, oid, listed, key in rows:
            row_filter = None if key is None else self._filters[key]
            self._readable(relation, "the publication's row filter", row_filter)
            found[relation] = PublishedAs(
                rel_oid=oid,
                is_listed=True,
                schema_oid=None,
                columns=tuple(listed) if listed is not None else None,
                row_filter=None if row_filter is None else shown(row_filter),
            )
        return found

    def _read_filters(self, wanted: Mapping[str, int]) -> None:
        """Have the server spell filters, and keep each under its key in `wanted`."""
        if not wanted:
            return
        spelled = self._connection.execute(
            "SELECT pr.oid::int8, pg_get_expr(pr.prqual, pr.prrelid) FROM pg_publication_rel pr WHERE pr.oid = ANY(%s::oid[])",
            (list(wanted.values()),),
        )
        texts: dict[int, str] = dict(spelled.fetchall())
        self._filters.update({key: texts[oid] for key, oid in wanted.items()})


def _shown_id(namespace: str, name: str) -> TableId:
    return TableId(shown(namespace), shown(name))


def _operator_sql(namespace: str, name: str) -> str:
    # An operator's name cannot be quoted, and holds nothing but operator characters.
    if namespace == "pg_catalog" and _PLAIN_OPERATOR.fullmatch(name):
        return name
    return f"OPERATOR({sql.Identifier(namespace).as_string(None)}.{name})"
