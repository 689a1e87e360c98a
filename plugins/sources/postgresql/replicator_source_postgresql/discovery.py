"""Reading the catalogue: which tables there are, and of some of them all the facts, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from replicator.model.schema import TableId
from replicator.plugins.source import TableSummary
from replicator_source_postgresql.catalogue import (
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
    TYPE_PARTS,
    TYPES_QUERY,
    TypeInfo,
    column_type,
    named_in,
    type_infos,
    unknown_output,
)

Connection = psycopg.Connection[tuple[Any, ...]]

_KINDS: Final = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_LEFT_OUT_KINDS: Final = {
    "v": "a view has no rows of its own in the log",
    "m": "the contents of a materialized view are not published",
    "f": "the rows of a foreign table are in another server's log",
}
_PLAIN_OPERATOR: Final = re.compile(r"[<>=]{1,2}")


def list_tables(connection: Connection) -> list[TableSummary]:
    """Every table of users, views and the like included, ordered by name."""
    rows = connection.execute(_LIST_QUERY).fetchall()
    summaries = []
    for namespace, name, kind, persistence, root_namespace, root in rows:
        left_out = _LEFT_OUT_KINDS.get(kind)
        if root is not None:
            left_out = f"it is a partition of {TableId(root_namespace, root)}, which is replicated as one table"
        elif left_out is None and persistence == "u":
            left_out = "an unlogged table is not in the log; ALTER TABLE … SET LOGGED makes it replicable"
        elif left_out is None and persistence == "t":
            left_out = "a temporary table is not in the log"
        kind_text = "partition" if root is not None else _KINDS[kind]
        summaries.append(TableSummary(table=TableId(namespace, name), kind=kind_text, left_out=left_out))
    return sorted(summaries, key=lambda s: s.table)


def read_tables(
    connection: Connection, tables: Iterable[TableId], publication: str, filters: MutableMapping[str, str] | None = None
) -> dict[TableId, CatalogTable]:
    """Read what the catalogue says of these tables now, in one transaction; those that do not exist are missing.

    Args:
        connection: An autocommit connection without a transaction.
        tables: The tables asked for.
        publication: The publication through which they are, or will be, replicated; it need not exist.
        filters: Row filters that were read before, which this adds to. The server locks a table to spell its filter, as `_TREE` says.
    """
    wanted = list(dict.fromkeys(tables))
    with connection.transaction():
        # One view of the catalogue for all the queries. No table is read here, so the rule for chunks does not apply.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _CatalogReader(connection, publication, {} if filters is None else filters).read(wanted)


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Read a publication; None if there is none of that name."""
    version = connection.info.server_version
    generated = "p.pubgencols::text" if version >= VERSION_GENERATED_PUBLISHED else "'n'"
    schemas = (
        "(SELECT coalesce(json_object_agg(n.nspname, pn.oid::int8), '{}') FROM pg_publication_namespace pn"
        " JOIN pg_namespace n ON n.oid = pn.pnnspid WHERE pn.pnpubid = p.oid)"
        if version >= VERSION_COLUMN_LISTS
        else "'{}'::json"
    )
    row = connection.execute(
        _PUBLICATION_QUERY.format(generated=generated, schemas=schemas).encode(), (name,)
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
        owner=owner,
        is_owned=is_owned,
        comment=comment,
        is_for_all_tables=is_for_all,
        schemas=schemas_in,
        operations=frozenset(operations),
        via_root=via_root,
        generated=generated_kind,
        tables=frozenset(TableId(*member) for member in members),
    )


def resolve_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, TypeInfo]:
    """Read what the catalogue says of types and all that they are made of."""
    return type_infos(connection.execute(TYPES_QUERY.encode(), (sorted(set(oids)),)).fetchall())


def fingerprint_query(table: TableId, publication: str) -> str:
    """A statement that returns one text, equal as long as nothing in `CatalogTable` changes; no row if the table no longer exists."""
    literals = {"namespace": table.namespace, "name": table.name, "publication": publication}
    quoted = {key: sql.Literal(value).as_string(None) for key, value in literals.items()}
    return (
        f"SELECT {_fingerprint(quoted['publication'])}"  # noqa: S608 literals, quoted
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {quoted['namespace']} AND c.relname = {quoted['name']}"
    )


def _fingerprint(publication: str) -> str:
    return _FINGERPRINT.format(
        publication=publication,
        attached=_ATTACHED,
        schema_since=_SCHEMA_SINCE,
        columns_since=_COLUMNS_SINCE,
        used_types=_USED_TYPES,
        tree=_TREE.format(root="c.oid"),
    )


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

    def read(self, wanted: Sequence[TableId]) -> dict[TableId, CatalogTable]:
        publication = read_publication(self._connection, self._publication_name)
        query = _TABLES_QUERY.format(
            fingerprint=_fingerprint("%(publication)s"),
            schema_since=_SCHEMA_SINCE,
            columns_since=_COLUMNS_SINCE,
            tree=_TREE.format(root="c.oid"),
        )
        parameters = {
            "namespaces": [t.namespace for t in wanted],
            "names": [t.name for t in wanted],
            "publication": self._publication_name,
        }
        rows = [
            row
            for row in self._connection.execute(query.encode(), parameters).fetchall()
            # Names too long for PostgreSQL would be cut to fit, and then match another table.
            if TableId(row[1], row[2]) in set(wanted)
        ]
        oids = [row[0] for row in rows]
        columns = self._columns(oids)
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
         has_new_columns, other_storage) = row  # fmt: skip
        published = members.get(oid)
        if publication is not None and namespace in publication.schemas:
            # Through its schema a table is published whole, whatever filter its own entry has.
            rel_oid = published.rel_oid if published is not None else publication.schemas[namespace]
            published = PublishedAs(
                rel_oid=rel_oid, is_listed=published is not None, by_schema=True, columns=None, row_filter=None
            )
        elif published is None and publication is not None and publication.is_for_all_tables:
            published = PublishedAs(rel_oid=None, is_listed=False, by_schema=False, columns=None, row_filter=None)
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
            owner=owner,
            estimated_rows=estimate,
            comment=comment,
            fingerprint=fingerprint,
            other_storage=other_storage,
            columns=tuple(columns.get(oid, ())),
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
        )

    def _types(self, oids: Sequence[int]) -> dict[int, tuple[dict[int, str], dict[int, str]]]:
        """Of each table whose columns use such types: the labels of the enums, and the attributes of the composites."""
        found: dict[int, tuple[dict[int, str], dict[int, str]]] = {}
        for relation, is_label, oid, state in self._connection.execute(_USED_TYPES_QUERY.encode(), (list(oids),)):
            labels, composites = found.setdefault(relation, ({}, {}))
            (labels if is_label else composites)[oid] = state
        return found

    def _columns(self, oids: Sequence[int]) -> dict[int, list[CatalogColumn]]:
        rows = self._connection.execute(_COLUMNS_QUERY, (list(oids),)).fetchall()
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
        ) in rows:
            info = infos.get(type_oid)
            column = CatalogColumn(
                name=name,
                position=position,
                type_oid=type_oid,
                type_sql=type_sql,
                mapping=column_type(type_oid, typmod, info) if info is not None else None,
                fault=_type_fault(info) if info is not None else None,
                is_wide=is_wide,
                is_nullable=not is_not_null,
                is_generated=is_generated,
                is_selectable=is_selectable,
                comment=comment,
            )
            found.setdefault(relation, []).append(column)
        return found

    def _indexes(self, oids: Sequence[int]) -> dict[int, list[KeyIndex]]:
        rows = self._connection.execute(_INDEXES_QUERY, (list(oids),)).fetchall()
        parts: dict[int, list[KeyPart]] = {}
        heads: dict[int, tuple[Any, ...]] = {}
        for row in rows:
            index, column, position, collation_namespace, collation, is_descending, is_default, names = row[1], *row[7:]
            operators = {wanted: (namespace, name) for wanted, namespace, name in names}
            heads[index] = row[:7]
            parts.setdefault(index, []).append(
                KeyPart(
                    column=column,
                    position=position,
                    collation=sql.Identifier(collation_namespace, collation).as_string(None) if collation else None,
                    operators={wanted: _operator_sql(*found) for wanted, found in operators.items()},
                    is_plain=is_default and all(found == ("pg_catalog", wanted) for wanted, found in operators.items()),
                    is_descending=is_descending,
                )
            )
        found_indexes: dict[int, list[KeyIndex]] = {}
        for oid, (relation, _, name, is_primary, is_identity, is_immediate, is_valid) in heads.items():
            index = KeyIndex(
                oid=oid,
                name=name,
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
        ) in self._connection.execute(_LEAVES_QUERY, (list(roots),)):
            leaf = Leaf(
                name=TableId(namespace, name),
                oid=oid,
                filenode=filenode,
                attached=attached,
                persistence=persistence,
                identity=Identity(identity),
                identity_columns=frozenset(columns),
                estimated_rows=estimate,
            )
            found.setdefault(root, []).append(leaf)
        return found

    def _members(self, oids: Sequence[int], publication: Publication | None) -> dict[int, PublishedAs]:
        if publication is None:
            return {}
        has_lists = self._connection.info.server_version >= VERSION_COLUMN_LISTS
        lists = f"pr.prattrs::int2[], {_FILTER_KEY}" if has_lists else "NULL::int2[], NULL::text"
        rows = self._connection.execute(
            f"SELECT pr.prrelid::int8, pr.oid::int8, {lists} FROM pg_publication_rel pr"  # noqa: S608 our own text
            " WHERE pr.prpubid = %s AND pr.prrelid = ANY(%s::oid[])".encode(),
            (publication.oid, list(oids)),
        ).fetchall()
        self._read_filters({key: oid for _, oid, _, key in rows if key is not None and key not in self._filters})
        return {
            relation: PublishedAs(
                rel_oid=oid,
                is_listed=True,
                by_schema=False,
                columns=tuple(columns) if columns is not None else None,
                row_filter=None if key is None else self._filters[key],
            )
            for relation, oid, columns, key in rows
        }

    def _read_filters(self, wanted: Mapping[str, int]) -> None:
        """Have the server spell filters, by what stands for each."""
        if not wanted:
            return
        spelled = self._connection.execute(
            "SELECT pr.oid::int8, pg_get_expr(pr.prqual, pr.prrelid) FROM pg_publication_rel pr WHERE pr.oid = ANY(%s::oid[])",
            (list(wanted.values()),),
        )
        texts: dict[int, str] = dict(spelled.fetchall())
        self._filters.update({key: texts[oid] for key, oid in wanted.items()})


def _operator_sql(namespace: str, name: str) -> str:
    # An operator's name cannot be quoted, and holds nothing but operator characters.
    if namespace == "pg_catalog" and _PLAIN_OPERATOR.fullmatch(name):
        return name
    return f"OPERATOR({sql.Identifier(namespace).as_string(None)}.{name})"


_LIST_QUERY: Final = """
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text, rn.nspname, r.relname
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND n.nspname !~ '^pg_(toast|temp_|toast_temp_)'
"""

# The tables below a partitioned one, itself included. `pg_partition_tree` locks them: one that is being altered for an hour would
# keep us from the catalogue of all. A partition whose DETACH … CONCURRENTLY has begun is none any more (from 14 on).
_TREE: Final = """
(WITH RECURSIVE tree(relid) AS (
    SELECT {root}
    UNION ALL
    SELECT h.inhrelid FROM tree JOIN pg_inherits h ON h.inhparent = tree.relid
    WHERE to_jsonb(h) ->> 'inhdetachpending' IS DISTINCT FROM 'true'
) SELECT relid FROM tree)
"""

# Attached again, a partition is the same table, whose changes in between nobody published.
_ATTACHED: Final = """
(SELECT string_agg(h.xmin::text, ':' ORDER BY h.inhrelid) FROM pg_partition_ancestors(l.oid) a JOIN pg_inherits h ON h.inhrelid = a.relid)
"""

# Written by SET SCHEMA, and by nothing else.
_SCHEMA_SINCE: Final = """
(SELECT d.xmin::text FROM pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
  AND d.refclassid = 'pg_catalog.pg_namespace'::regclass)
"""
_COLUMNS_SINCE: Final = """
(SELECT min(a.xmin::text::int8)::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
"""

# Every type of which the columns of the table `c` are made, itself included; the server's own have neither labels nor attributes.
_USED_TYPES: Final = f"""
WITH RECURSIVE used(oid) AS (
    SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT part.oid FROM used JOIN pg_type t ON t.oid = used.oid CROSS JOIN LATERAL ({TYPE_PARTS}) AS part WHERE part.oid >= 16384
)
SELECT true AS is_label, e.oid::int8 AS oid, e.xmin::text AS state FROM used JOIN pg_enum e ON e.enumtypid = used.oid
UNION ALL
SELECT false, t.oid::int8, md5(string_agg(concat_ws(':', a.attnum, a.atttypid, a.attisdropped), ',' ORDER BY a.attnum))
FROM used JOIN pg_type t ON t.oid = used.oid AND t.typtype = 'c' JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
GROUP BY t.oid
"""  # noqa: S608 our own text
_USED_TYPES_QUERY: Final = f"""
SELECT c.oid::int8, u.is_label, u.oid, u.state FROM unnest(%s::oid[]) AS c(oid) CROSS JOIN LATERAL ({_USED_TYPES}) AS u
"""  # noqa: S608 our own text

# What reads of a table depend on: the object, its columns, the index of its key, how it is published, and its partitions.
_FINGERPRINT: Final = """
concat_ws('|', c.oid, c.relfilenode, c.relkind, c.relreplident, c.relpersistence,
  (SELECT md5(string_agg(concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated, a.attcollation),
      ',' ORDER BY a.attnum))
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT md5(string_agg(concat_ws(':', i.indexrelid, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate),
      ',' ORDER BY i.indexrelid))
     FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)),
  (SELECT concat_ws(':', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = {publication}),
  (SELECT concat_ws(':', pr.oid, pr.xmin) FROM pg_publication p JOIN pg_publication_rel pr ON pr.prpubid = p.oid
    WHERE p.pubname = {publication} AND pr.prrelid = c.oid),
  c.relispartition, {schema_since}, {columns_since},
  (SELECT md5(string_agg(concat_ws(':', u.is_label, u.oid, u.state), ',' ORDER BY u.is_label, u.oid)) FROM ({used_types}) AS u),
  (SELECT md5(string_agg(concat_ws(':', l.oid, l.relfilenode, l.relreplident, {attached}), ',' ORDER BY l.oid))
     FROM {tree} AS t JOIN pg_class l ON l.oid = t.relid WHERE c.relkind = 'p' AND l.relkind <> 'p'))
"""

_TABLES_QUERY: Final = """
WITH wanted(nspname, relname) AS (SELECT * FROM unnest(%(namespaces)s::text[], %(names)s::text[]))
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relfilenode::int8, c.relreplident::text,
  c.relispartition,
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid),
  NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid),
  row_security_active(c.oid), has_schema_privilege(n.oid, 'USAGE'), pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
  c.reltuples::float8, obj_description(c.oid, 'pg_class'), {fingerprint}, {schema_since}, {columns_since}, c.xmin::text::int8,
  pg_snapshot_xmax(pg_current_snapshot())::text::int8, c.cmin::text = '0' AND c.xmax::text = '0',
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = c.xmin),
  (SELECT min(m.amname::text) FROM {tree} AS t
    JOIN pg_class l ON l.oid = t.relid AND l.relkind = 'r' JOIN pg_am m ON m.oid = l.relam AND m.amname <> 'heap'
    WHERE c.relkind = 'p' OR l.oid = c.oid)
FROM wanted w JOIN pg_namespace n ON n.nspname = w.nspname::name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname::name
WHERE c.relkind IN ('r', 'p')
"""

_COLUMNS_QUERY: Final = """
SELECT a.attrelid::int8, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.atttypid::int8, a.atttypmod, a.attnotnull,
  a.attgenerated <> '',
  has_column_privilege(a.attrelid, a.attnum, 'SELECT'), col_description(a.attrelid, a.attnum), a.attstorage <> 'p'
FROM pg_attribute a
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# One row per key column. The operators are those of the index's operator class, so that reads ask for the very order that the index keeps.
_INDEXES_QUERY: Final = """
SELECT i.indrelid::int8, i.indexrelid::int8, x.relname, i.indisprimary, i.indisreplident, i.indimmediate,
  i.indisvalid AND i.indisready AND i.indpred IS NULL,
  coalesce(a.attname, ''), k.attnum, cn.nspname, co.collname, (k.option & 1) = 1, o.opcdefault,
  ARRAY(SELECT ARRAY[s.spelling, opn.nspname, op.oprname]
    FROM unnest(ARRAY['<', '<=', '=', '>=', '>'], ARRAY[1, 2, 3, 4, 5]) AS s(spelling, strategy)
    JOIN pg_amop m ON m.amopfamily = o.opcfamily AND m.amopstrategy = s.strategy
      AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype
    JOIN pg_operator op ON op.oid = m.amopopr JOIN pg_namespace opn ON opn.oid = op.oprnamespace)
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[], i.indoption::int2[])
  WITH ORDINALITY AS k(attnum, collation_oid, opclass_oid, option, ordinal)
JOIN pg_opclass o ON o.oid = k.opclass_oid
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
LEFT JOIN pg_collation co ON co.oid = k.collation_oid AND k.collation_oid <> a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
WHERE i.indrelid = ANY(%s::oid[]) AND (i.indisprimary OR i.indisreplident) AND k.ordinal <= i.indnkeyatts
ORDER BY i.indrelid, i.indexrelid, k.ordinal
"""

_LEAVES_QUERY: Final = f"""
SELECT r.oid::int8, n.nspname, l.relname, l.oid::int8, l.relfilenode::int8, {_ATTACHED}, l.relpersistence::text, l.relreplident::text,
  ARRAY(SELECT a.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ordinal)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate AND k.ordinal <= i.indnkeyatts
      AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
  l.reltuples::float8
FROM unnest(%s::oid[]) AS r(oid)
CROSS JOIN LATERAL {_TREE.format(root="r.oid")} AS t
JOIN pg_class l ON l.oid = t.relid AND l.relkind <> 'p'
JOIN pg_namespace n ON n.oid = l.relnamespace
ORDER BY r.oid, l.oid
"""  # noqa: S608 our own text

# What a filter's text depends on: its own row, and the names of the columns. It can use nothing else that has another name one day.
_FILTER_KEY: Final = """
CASE WHEN pr.prqual IS NOT NULL THEN concat_ws(':', pr.oid, pr.xmin,
  (SELECT md5(string_agg(concat_ws(':', a.attnum, a.attname), ',' ORDER BY a.attnum)) FROM pg_attribute a
    WHERE a.attrelid = pr.prrelid AND a.attnum > 0)) END
"""

_PUBLICATION_QUERY: Final = """
SELECT p.oid::int8, p.xmin::text, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE'),
  obj_description(p.oid, 'pg_publication'), p.puballtables,
  array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
    CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END], NULL), p.pubviaroot, {generated}, {schemas}
FROM pg_publication p WHERE p.pubname = %s
"""
