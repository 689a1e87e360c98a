"""The statements that read the catalogue, and the fingerprint of what they say of a table."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from replicator.model.schema import TableId
from replicator_source_postgresql.types import TYPE_PARTS

LIST_QUERY: Final = """
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
TREE: Final = """
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

# The row by which the table's schema is in the publication. Before 15 there are no such rows, and not even their table.
_SCHEMA_MEMBERSHIP: Final = """
(SELECT s.objid FROM pg_depend s JOIN pg_depend m ON m.classid = s.classid AND m.objid = s.objid JOIN pg_publication p ON p.oid = m.refobjid
  WHERE s.classid = to_regclass('pg_catalog.pg_publication_namespace') AND m.refclassid = 'pg_catalog.pg_publication'::regclass
    AND s.refclassid = 'pg_catalog.pg_namespace'::regclass AND s.refobjid = c.relnamespace AND p.pubname = {publication})
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
USED_TYPES_QUERY: Final = f"""
SELECT c.oid::int8, u.is_label, u.oid, u.state FROM unnest(%s::oid[]) AS c(oid) CROSS JOIN LATERAL ({_USED_TYPES}) AS u
"""  # noqa: S608 our own text

# What reads of a table depend on, and its identity: the object, its columns (also how many it ever had), the index of its key, how it
# is published, and its partitions.
_FINGERPRINT: Final = """
concat_ws('|', c.oid, c.relfilenode, c.relkind, c.relreplident, c.relpersistence, c.relnatts,
  (SELECT md5(string_agg(concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated, a.attcollation),
      ',' ORDER BY a.attnum))
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT md5(string_agg(concat_ws(':', i.indexrelid, i.indisprimary, i.indisreplident, i.indisvalid, i.indimmediate),
      ',' ORDER BY i.indexrelid))
     FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)),
  (SELECT concat_ws(':', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = {publication}),
  (SELECT concat_ws(':', pr.oid, pr.xmin) FROM pg_publication p JOIN pg_publication_rel pr ON pr.prpubid = p.oid
    WHERE p.pubname = {publication} AND pr.prrelid = c.oid),
  {schema_membership},
  c.relispartition, {schema_since}, {columns_since},
  (SELECT md5(string_agg(concat_ws(':', u.is_label, u.oid, u.state), ',' ORDER BY u.is_label, u.oid)) FROM ({used_types}) AS u),
  (SELECT md5(string_agg(concat_ws(':', l.oid, l.relfilenode, l.relreplident, {attached}), ',' ORDER BY l.oid))
     FROM {tree} AS t JOIN pg_class l ON l.oid = t.relid WHERE c.relkind = 'p' AND l.relkind <> 'p'))
"""


def fingerprint_query(table: TableId, publication: str) -> str:
    """Return a statement for one text, equal as long as nothing in `CatalogTable` changes; no row if the table no longer exists."""
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
        schema_membership=_SCHEMA_MEMBERSHIP.format(publication=publication),
        attached=_ATTACHED,
        schema_since=_SCHEMA_SINCE,
        columns_since=_COLUMNS_SINCE,
        used_types=_USED_TYPES,
        tree=TREE.format(root="c.oid"),
    )


TABLES_QUERY: Final = f"""
WITH wanted(nspname, relname) AS (SELECT * FROM unnest(%(namespaces)s::text[], %(names)s::text[]))
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relfilenode::int8, c.relreplident::text,
  c.relispartition,
  c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid),
  NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid),
  row_security_active(c.oid), has_schema_privilege(n.oid, 'USAGE') IS NOT FALSE,
  pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
  c.reltuples::float8, obj_description(c.oid, 'pg_class'), {_fingerprint("%(publication)s")},
  {_SCHEMA_SINCE}, {_COLUMNS_SINCE}, c.xmin::text::int8,
  pg_snapshot_xmax(pg_current_snapshot())::text::int8, c.cmin::text = '0' AND c.xmax::text = '0',
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = c.xmin),
  (SELECT min(m.amname::text) FROM {TREE.format(root="c.oid")} AS t
    JOIN pg_class l ON l.oid = t.relid AND l.relkind = 'r' JOIN pg_am m ON m.oid = l.relam AND m.amname <> 'heap'
    WHERE c.relkind = 'p' OR l.oid = c.oid), c.relnatts
FROM wanted w JOIN pg_namespace n ON n.nspname = w.nspname::name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname::name
WHERE c.relkind IN ('r', 'p')
"""  # noqa: S608 our own text

# Of a column that is dropped while this is read the server says NULL: whether it may be read is no question any more.
# A default is spelled without its table, which the server would lock for it: no column is in it, unless the column is generated.
COLUMNS_QUERY: Final = """
SELECT a.attrelid::int8, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.atttypid::int8, a.atttypmod, a.attnotnull,
  a.attgenerated <> '',
  has_column_privilege(a.attrelid, a.attnum, 'SELECT') IS NOT FALSE, col_description(a.attrelid, a.attnum), a.attstorage <> 'p',
  CASE WHEN a.atthasmissing THEN array_to_string(a.attmissingval, '') END, d.oid::text, pg_get_expr(d.adbin, 0)
FROM pg_attribute a
LEFT JOIN pg_attrdef d ON a.attgenerated = '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

# What a column has in rows that were there before it: the server keeps the value of its default then, until the table is rewritten. Of a
# partitioned table the partitions keep it.
MISSING_QUERY: Final = f"""
SELECT r.oid::int8, a.attname, array_agg(DISTINCT array_to_string(a.attmissingval, ''))
FROM unnest(%s::oid[]) AS r(oid)
CROSS JOIN LATERAL {TREE.format(root="r.oid")} AS t
JOIN pg_class l ON l.oid = t.relid AND l.relkind <> 'p'
JOIN pg_attribute a ON a.attrelid = l.oid AND a.attnum > 0 AND a.atthasmissing
GROUP BY r.oid, a.attname
"""  # noqa: S608 our own text

# Tables by their oids, where no table has the name any more under which each was known.
NAMES_QUERY: Final = """
WITH known(nspname, relname, oid) AS (SELECT * FROM unnest(%(namespaces)s::text[], %(names)s::text[], %(oids)s::oid[]))
SELECT k.nspname, k.relname, n.nspname, c.relname
FROM known k JOIN pg_class c ON c.oid = k.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT EXISTS (SELECT FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace
  WHERE s.nspname = k.nspname::name AND o.relname = k.relname::name)
"""

# The names of the columns that live, and that a publication without a list publishes; and whether they are of the primary key.
LIVE_COLUMNS_QUERY: Final = """
SELECT a.attrelid::int8, a.attnum, a.attname, EXISTS (SELECT FROM pg_index i
    WHERE i.indrelid = a.attrelid AND i.indisprimary AND i.indisvalid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_attribute a
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attrelid, a.attnum
"""

# One row per key column. The operators are those of the index's operator class, so that reads ask for the very order that the index keeps.
INDEXES_QUERY: Final = """
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

LEAVES_QUERY: Final = f"""
SELECT r.oid::int8, n.nspname, l.relname, l.oid::int8, l.relfilenode::int8, {_ATTACHED}, l.relpersistence::text, l.relreplident::text,
  ARRAY(SELECT a.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ordinal)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate AND k.ordinal <= i.indnkeyatts
      AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
  l.reltuples::float8
FROM unnest(%s::oid[]) AS r(oid)
CROSS JOIN LATERAL {TREE.format(root="r.oid")} AS t
JOIN pg_class l ON l.oid = t.relid AND l.relkind <> 'p'
JOIN pg_namespace n ON n.oid = l.relnamespace
ORDER BY r.oid, l.oid
"""  # noqa: S608 our own text

# What a filter's text depends on: its own row, and the names of the columns. It can use nothing else that has another name one day.
FILTER_KEY: Final = """
CASE WHEN pr.prqual IS NOT NULL THEN concat_ws(':', pr.oid, pr.xmin,
  (SELECT md5(string_agg(concat_ws(':', a.attnum, a.attname), ',' ORDER BY a.attnum)) FROM pg_attribute a
    WHERE a.attrelid = pr.prrelid AND a.attnum > 0)) END
"""

PUBLICATION_QUERY: Final = """
SELECT p.oid::int8, p.xmin::text, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE'),
  obj_description(p.oid, 'pg_publication'), p.puballtables,
  array_remove(ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
    CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END], NULL), p.pubviaroot, {generated}, {schemas}
FROM pg_publication p WHERE p.pubname = %s
"""
