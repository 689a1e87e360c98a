"""What the catalogue says: which tables there are, and of some of them shape, key, publication and identity.

Facts are read in one transaction and kept in frozen values; what follows from them (key, schema, identity) is computed without I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import psycopg
from psycopg import sql

from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription, TableSummary
from replicator_source_postgresql.types import TYPES_QUERY, PgType, TypeInfo, column_type, type_infos

Connection = psycopg.Connection[tuple[Any, ...]]

VERSION_COLUMN_LISTS: Final = 150000
VERSION_GENERATED_PUBLISHED: Final = 180000

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


class Identity(StrEnum):
    """`pg_class.relreplident`: what PostgreSQL logs of the row before a change."""

    DEFAULT = "d"
    FULL = "f"
    INDEX = "i"
    NOTHING = "n"


class KeyFault(StrEnum):
    """Why a table's changes cannot be attributed to rows."""

    NO_PRIMARY_KEY = "no_primary_key"
    DEFERRABLE = "deferrable_key"
    IDENTITY_NOTHING = "replica_identity_nothing"
    INDEX_MISSING = "replica_identity_index_missing"
    UNUSABLE_COLUMN = "unusable_key_column"
    GENERATED_COLUMN = "generated_column_in_identity"
    PARTITION = "partition_identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """One column; `mapping` is None if its type is unsupported."""

    name: str
    position: int
    type_sql: str
    mapping: PgType | None
    is_nullable: bool
    is_generated: bool
    is_selectable: bool
    comment: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """A key column with the order that its index keeps.

    `collation` is the index's where it is not the column's own; `operators` maps `<`, `>`, `=`, `<=`, `>=` to the index's own, as SQL. With `is_plain` they are the very operators of pg_catalog.
    """

    column: str
    position: int
    collation: str | None
    operators: Mapping[str, str]
    is_plain: bool
    is_descending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """A unique index that may identify rows."""

    oid: int
    name: str
    is_primary: bool
    is_replica_identity: bool
    is_immediate: bool
    is_valid: bool
    parts: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A partition that holds rows. `identity_columns` are those of its replica identity's index."""

    name: TableId
    oid: int
    filenode: int
    persistence: str
    identity: Identity
    identity_columns: frozenset[str]
    estimated_rows: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication. `version` changes whenever its options or its owner do (the catalogue row's xmin)."""

    name: str
    oid: int
    version: str
    owner: str
    is_owned: bool
    comment: str | None
    is_for_all_tables: bool
    schemas: tuple[str, ...]
    operations: frozenset[str]
    via_root: bool
    generated: str
    tables: frozenset[TableId]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAs:
    """How a table stands in the publication; `rel_oid` is None if a schema or FOR ALL TABLES brings it in."""

    rel_oid: int | None
    columns: tuple[int, ...] | None
    row_filter: str | None


@dataclass(frozen=True, kw_only=True)
class CatalogTable:
    """A table as the catalogue has it now. `fingerprint` changes whenever anything that reads depend on does."""

    table: TableId
    server_version: int
    oid: int
    kind: str
    persistence: str
    filenode: int
    replica_identity: Identity
    is_partition: bool
    has_children: bool
    has_parent: bool
    has_row_security: bool
    is_schema_usable: bool
    is_owned: bool
    owner: str
    estimated_rows: float
    comment: str | None
    fingerprint: str
    columns: tuple[CatalogColumn, ...]
    indexes: tuple[KeyIndex, ...]
    leaves: tuple[Leaf, ...]
    publication: Publication | None
    published: PublishedAs | None

    @property
    def is_partitioned(self) -> bool:
        """Whether it is the root of partitions."""
        return self.kind == "p"

    @cached_property
    def published_columns(self) -> tuple[CatalogColumn, ...]:
        """The columns whose values the log carries, supported or not: not generated, and in the column list if there is one."""
        listed = self.published.columns if self.published else None
        return tuple(c for c in self.columns if not c.is_generated and (listed is None or c.position in listed))

    @cached_property
    def replicable_columns(self) -> tuple[CatalogColumn, ...]:
        """The published columns of supported types."""
        return tuple(c for c in self.published_columns if c.mapping is not None)

    @cached_property
    def key(self) -> tuple[KeyPart, ...]:
        """The columns by which changes are identified; empty if there is no usable key."""
        index = self._key_index
        return index.parts if index is not None and self._index_fault(index) is None else ()

    @cached_property
    def key_index(self) -> KeyIndex | None:
        """The index behind `key`."""
        return self._key_index if self.key else None

    @cached_property
    def key_fault(self) -> KeyFault | None:
        """Why changes cannot be attributed to rows; None with a key, and for a table whose whole rows are logged."""
        if self.replica_identity is Identity.NOTHING:
            return KeyFault.IDENTITY_NOTHING
        if self.has_generated_identity:
            return KeyFault.GENERATED_COLUMN
        if self.is_partitioned:
            if not self.key:
                return (
                    None
                    if self.leaves and all(leaf.identity is Identity.FULL for leaf in self.leaves)
                    else self._own_fault
                )
            return KeyFault.PARTITION if self.unfit_leaves else None
        return None if self.key or self.replica_identity is Identity.FULL else self._own_fault

    @property
    def has_generated_identity(self) -> bool:
        """Whether whole rows are logged with generated columns in them: from 18 on, updates and deletes of a table that is published so are refused."""
        identities = [leaf.identity for leaf in self.leaves] if self.is_partitioned else [self.replica_identity]
        return (
            self.server_version >= VERSION_GENERATED_PUBLISHED
            and any(c.is_generated for c in self.columns)
            and Identity.FULL in identities
        )

    @cached_property
    def unfit_leaves(self) -> tuple[Leaf, ...]:
        """Partitions that do not log the key of the row before a change."""
        key = frozenset(part.column for part in self.key)
        return tuple(
            leaf for leaf in self.leaves if leaf.identity is not Identity.FULL and leaf.identity_columns != key
        )

    @cached_property
    def schema(self) -> TableSchema:
        """The table's shape, with the columns that can be replicated."""
        return TableSchema(
            table=self.table,
            columns=tuple(
                Column(
                    name=c.name,
                    type=c.mapping.arrow,
                    source_type=c.mapping.source_type,
                    nullable=c.is_nullable,
                    comment=c.comment,
                )
                for c in self.replicable_columns
                if c.mapping is not None
            ),
            key=tuple(part.column for part in self.key),
            comment=self.comment,
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What changes when this is another object, or is published in another way."""
        publication, published, index = self.publication, self.published, self._key_index
        return {
            "oid": self.oid,
            "filenode": self.filenode,
            "persistence": self.persistence,
            "replica_identity": self.replica_identity.value,
            "key_index": index.oid if index else None,
            "publication": f"{publication.oid}:{publication.version}" if publication else None,
            "publish": sorted(publication.operations) if publication else None,
            "via_root": publication.via_root if publication else None,
            "publication_rel": published.rel_oid if published else None,
            "is_published": published is not None,
            "column_list": list(published.columns) if published and published.columns is not None else None,
            "row_filter": published.row_filter if published else None,
            "partitions": {str(leaf.oid): [leaf.filenode, leaf.identity.value] for leaf in self.leaves}
            if self.is_partitioned
            else None,
        }

    @property
    def description(self) -> TableDescription:
        """The table as the host wants it described."""
        counts = [leaf.estimated_rows for leaf in self.leaves] if self.is_partitioned else [self.estimated_rows]
        known = [count for count in counts if count >= 0]
        return TableDescription(
            schema=self.schema, identity=self.identity, estimated_rows=int(sum(known)) if known else None
        )

    @property
    def _key_index(self) -> KeyIndex | None:
        is_by_index = self.replica_identity is Identity.INDEX
        for index in self.indexes:
            if index.is_replica_identity if is_by_index else index.is_primary:
                return index
        return None

    @property
    def _own_fault(self) -> KeyFault:
        index = self._key_index
        if index is None:
            return KeyFault.INDEX_MISSING if self.replica_identity is Identity.INDEX else KeyFault.NO_PRIMARY_KEY
        return self._index_fault(index) or KeyFault.NO_PRIMARY_KEY

    def _index_fault(self, index: KeyIndex) -> KeyFault | None:
        if not index.is_valid:
            return KeyFault.INDEX_MISSING
        if not index.is_immediate:
            return KeyFault.DEFERRABLE
        usable = {c.position: c for c in self.replicable_columns}
        for part in index.parts:
            column = usable.get(part.position)
            if column is None or column.mapping is None or not column.mapping.can_be_key or column.is_nullable:
                return KeyFault.UNUSABLE_COLUMN
        return None


# -- reading -------------------------------------------------------------------------------------------------------------


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


def read_tables(connection: Connection, tables: Iterable[TableId], publication: str) -> dict[TableId, CatalogTable]:
    """Read what the catalogue says of these tables now, in one transaction; those that do not exist are missing.

    Args:
        connection: An autocommit connection without a transaction.
        tables: The tables asked for.
        publication: The publication through which they are, or will be, replicated; it need not exist.
    """
    wanted = list(dict.fromkeys(tables))
    with connection.transaction():
        # One view of the catalogue for all the queries. No table is read here, so the rule for chunks does not apply.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _CatalogReader(connection, publication).read(wanted)


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Read a publication; None if there is none of that name."""
    version = connection.info.server_version
    generated = "p.pubgencols::text" if version >= VERSION_GENERATED_PUBLISHED else "'n'"
    schemas = (
        "ARRAY(SELECT n.nspname::text FROM pg_publication_namespace pn JOIN pg_namespace n ON n.oid = pn.pnnspid WHERE pn.pnpubid = p.oid ORDER BY 1)"
        if version >= VERSION_COLUMN_LISTS
        else "ARRAY[]::text[]"
    )
    row = connection.execute(
        _PUBLICATION_QUERY.format(generated=generated, schemas=schemas).encode(), (name,)
    ).fetchone()
    if row is None:
        return None
    oid, xmin, owner, is_owned, comment, is_for_all, operations, via_root, generated_kind, schema_names = row
    members = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_publication_rel pr JOIN pg_class c ON c.oid = pr.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
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
        schemas=tuple(schema_names),
        operations=frozenset(operations),
        via_root=via_root,
        generated=generated_kind,
        tables=frozenset(TableId(*member) for member in members),
    )


def resolve_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, TypeInfo]:
    """Read what the catalogue says of types and all that they are made of."""
    return type_infos(connection.execute(TYPES_QUERY.encode(), (sorted(set(oids)),)).fetchall())


def fingerprint_query(table: TableId, publication: str) -> str:
    """A statement that returns one text, equal for as long as nothing changes that `CatalogTable` depends on; no row if the table is gone."""
    literals = {"namespace": table.namespace, "name": table.name, "publication": publication}
    quoted = {key: sql.Literal(value).as_string(None) for key, value in literals.items()}
    return (
        f"SELECT {_FINGERPRINT.format(publication=quoted['publication'])} FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {quoted['namespace']} AND c.relname = {quoted['name']}"
    )


class _CatalogReader:
    """Reads the facts of many tables with one query per kind of fact."""

    def __init__(self, connection: Connection, publication: str) -> None:
        self._connection = connection
        self._publication_name = publication

    def read(self, wanted: Sequence[TableId]) -> dict[TableId, CatalogTable]:
        publication = read_publication(self._connection, self._publication_name)
        query = _TABLES_QUERY.format(fingerprint=_FINGERPRINT.format(publication="%(publication)s"))
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
        return {
            TableId(row[1], row[2]): self._table(row, columns, indexes, leaves, publication, members) for row in rows
        }

    def _table(
        self,
        row: tuple[Any, ...],
        columns: Mapping[int, list[CatalogColumn]],
        indexes: Mapping[int, list[KeyIndex]],
        leaves: Mapping[int, list[Leaf]],
        publication: Publication | None,
        members: Mapping[int, PublishedAs],
    ) -> CatalogTable:
        (oid, namespace, name, kind, persistence, filenode, identity, is_partition, has_children, has_parent, has_row_security, is_usable, is_owned,
         owner, estimate, comment, fingerprint) = row  # fmt: skip
        published = members.get(oid)
        if (
            published is None
            and publication is not None
            and (publication.is_for_all_tables or namespace in publication.schemas)
        ):
            published = PublishedAs(rel_oid=None, columns=None, row_filter=None)
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
            columns=tuple(columns.get(oid, ())),
            indexes=tuple(indexes.get(oid, ())),
            leaves=tuple(leaves.get(oid, ())),
            publication=publication,
            published=published,
        )

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
        ) in rows:
            info = infos.get(type_oid)
            column = CatalogColumn(
                name=name,
                position=position,
                type_sql=type_sql,
                mapping=column_type(type_oid, typmod, info) if info is not None else None,
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
        for root, namespace, name, oid, filenode, persistence, identity, columns, estimate in self._connection.execute(
            _LEAVES_QUERY, (list(roots),)
        ):
            leaf = Leaf(
                name=TableId(namespace, name),
                oid=oid,
                filenode=filenode,
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
        lists = "pr.prattrs::int2[], pg_get_expr(pr.prqual, pr.prrelid)" if has_lists else "NULL::int2[], NULL::text"
        rows = self._connection.execute(
            f"SELECT pr.prrelid::int8, pr.oid::int8, {lists} FROM pg_publication_rel pr WHERE pr.prpubid = %s AND pr.prrelid = ANY(%s::oid[])".encode(),
            (publication.oid, list(oids)),
        ).fetchall()
        return {
            relation: PublishedAs(
                rel_oid=oid, columns=tuple(columns) if columns is not None else None, row_filter=row_filter
            )
            for relation, oid, columns, row_filter in rows
        }


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

# What reads of a table depend on: the object, its columns, the index of its key, how it is published, and its partitions.
_FINGERPRINT: Final = """
concat_ws('|', c.oid, c.relfilenode, c.relkind, c.relreplident, c.relpersistence,
  (SELECT md5(string_agg(concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated, a.attcollation), ',' ORDER BY a.attnum))
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT md5(string_agg(concat_ws(':', i.indexrelid, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate), ',' ORDER BY i.indexrelid))
     FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)),
  (SELECT concat_ws(':', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = {publication}),
  (SELECT concat_ws(':', pr.oid, pr.xmin) FROM pg_publication p JOIN pg_publication_rel pr ON pr.prpubid = p.oid
    WHERE p.pubname = {publication} AND pr.prrelid = c.oid),
  (SELECT md5(string_agg(concat_ws(':', l.oid, l.relfilenode, l.relreplident), ',' ORDER BY l.oid))
     FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid WHERE c.relkind = 'p' AND t.isleaf AND l.relkind <> 'p'))
"""

_TABLES_QUERY: Final = """
WITH wanted(nspname, relname) AS (SELECT * FROM unnest(%(namespaces)s::text[], %(names)s::text[]))
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relfilenode::int8, c.relreplident::text, c.relispartition,
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid),
  NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid),
  row_security_active(c.oid), has_schema_privilege(n.oid, 'USAGE'), pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
  c.reltuples::float8, obj_description(c.oid, 'pg_class'), {fingerprint}
FROM wanted w JOIN pg_namespace n ON n.nspname = w.nspname::name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname::name
WHERE c.relkind IN ('r', 'p')
"""

_COLUMNS_QUERY: Final = """
SELECT a.attrelid::int8, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.atttypid::int8, a.atttypmod, a.attnotnull, a.attgenerated <> '',
  has_column_privilege(a.attrelid, a.attnum, 'SELECT'), col_description(a.attrelid, a.attnum)
FROM pg_attribute a
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# One row per key column. The operators are those of the index's operator class, so that reads ask for the very order that the index keeps.
_INDEXES_QUERY: Final = """
SELECT i.indrelid::int8, i.indexrelid::int8, x.relname, i.indisprimary, i.indisreplident, i.indimmediate, i.indisvalid AND i.indisready AND i.indpred IS NULL,
  coalesce(a.attname, ''), k.attnum, cn.nspname, co.collname, (k.option & 1) = 1, o.opcdefault,
  ARRAY(SELECT ARRAY[s.spelling, opn.nspname, op.oprname]
    FROM unnest(ARRAY['<', '<=', '=', '>=', '>'], ARRAY[1, 2, 3, 4, 5]) AS s(spelling, strategy)
    JOIN pg_amop m ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype AND m.amopstrategy = s.strategy
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

_LEAVES_QUERY: Final = """
SELECT r.oid::int8, n.nspname, l.relname, l.oid::int8, l.relfilenode::int8, l.relpersistence::text, l.relreplident::text,
  ARRAY(SELECT a.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ordinal)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate AND k.ordinal <= i.indnkeyatts
      AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
  l.reltuples::float8
FROM unnest(%s::oid[]) AS r(oid)
CROSS JOIN LATERAL pg_partition_tree(r.oid) t
JOIN pg_class l ON l.oid = t.relid AND l.relkind <> 'p'
JOIN pg_namespace n ON n.oid = l.relnamespace
WHERE t.isleaf
ORDER BY r.oid, l.oid
"""

_PUBLICATION_QUERY: Final = """
SELECT p.oid::int8, p.xmin::text, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE'), obj_description(p.oid, 'pg_publication'), p.puballtables,
  array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END, CASE WHEN p.pubdelete THEN 'delete' END,
    CASE WHEN p.pubtruncate THEN 'truncate' END], NULL), p.pubviaroot, {generated}, {schemas}
FROM pg_publication p WHERE p.pubname = %s
"""
