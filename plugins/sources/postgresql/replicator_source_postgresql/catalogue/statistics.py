"""The server's statistics of tables and of the log, for `replicator plan`. No lock is taken on any table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from replicator.model.figures import Basis, Figure, unknown
from replicator.model.schema import TableId
from replicator.plugins.planning import SourceStatistics, TableStatistics
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.catalogue.queries import TREE
from replicator_source_postgresql.catalogue.raw_texts import catalogue_texts

VERSION_LOG_STATISTICS: Final = 140000
_OLD: Final = timedelta(hours=1)
_NO_STATISTICS: Final = "the table was never analyzed: ANALYZE it"

# Sizes and rows of the catalogue, not of the files: their functions would wait for a lock of every table.
_TABLES_QUERY: Final = f"""
SELECT n.nspname, c.relname, bool_or(l.reltuples > 0 OR l.relpages > 0),
  sum(greatest(l.reltuples, 0))::float8, sum(pg_stat_get_live_tuples(l.oid)),
  sum((l.relpages::int8 + coalesce(t.relpages, 0)) * current_setting('block_size')::int8),
  sum(pg_stat_get_tuples_inserted(l.oid) + pg_stat_get_tuples_updated(l.oid) + pg_stat_get_tuples_deleted(l.oid))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%(namespaces)s::text[], %(names)s::text[]) AS wanted(namespace, name)
  ON wanted.namespace = n.nspname AND wanted.name = c.relname
JOIN LATERAL {TREE.format(root="c.oid")} AS part ON c.relkind = 'p' OR part.relid = c.oid
JOIN pg_class l ON l.oid = part.relid AND l.relkind = 'r'
LEFT JOIN pg_class t ON t.oid = l.reltoastrelid
WHERE c.relkind IN ('r', 'p')
GROUP BY n.nspname, c.relname
"""  # noqa: S608 our own text

# Counters of tables begin again when somebody resets them, and after a crash of the server; then those of the server do, too.
_SERVER_QUERY: Final = """
SELECT clock_timestamp(), d.stats_reset, (SELECT stats_reset FROM pg_stat_archiver), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8,
  current_setting('max_slot_wal_keep_size'), pg_size_bytes(current_setting('max_slot_wal_keep_size'))
FROM pg_stat_database d WHERE d.datname = current_database()
"""
_LOG_QUERY: Final = "SELECT wal_bytes::float8, stats_reset FROM pg_stat_wal"


def read_statistics(connection: Connection, tables: Sequence[TableId]) -> SourceStatistics:
    """Read the statistics. The connection is in autocommit: what a transaction has once read of them it reads again."""
    names = {"namespaces": [t.namespace for t in tables], "names": [t.name for t in tables]}
    with catalogue_texts(connection):
        rows = connection.execute(_TABLES_QUERY.encode(), names).fetchall()
    row = connection.execute(_SERVER_QUERY).fetchone()
    assert row is not None
    now, of_database, of_server, position, kept, kept_bytes = row
    log_bytes, log_since = Figure(position, Basis.COUNTED, "pg_current_wal_lsn()"), None
    if connection.info.server_version >= VERSION_LOG_STATISTICS:
        row = connection.execute(_LOG_QUERY).fetchone()
        assert row is not None
        # It lags by seconds, so two readings of it would tell little.
        if now - row[1] >= _OLD:
            log_bytes, log_since = Figure(row[0], Basis.COUNTED, "pg_stat_wal.wal_bytes"), _utc(row[1])
    return SourceStatistics(
        at=now.astimezone(UTC),
        tables={TableId(*one[:2]): _of_table(*one[2:]) for one in rows},
        changes_since=_utc(of_database or of_server),
        log_bytes=log_bytes,
        log_since=log_since,
        log_kept_bytes=kept_bytes if kept_bytes >= 0 else None,
        log_kept_how=f"max_slot_wal_keep_size is {kept}",
    )


def _of_table(is_analyzed: bool, rows: float, live: Any, size: Any, changes: Any) -> TableStatistics:
    counted = (
        Figure(float(live), Basis.ESTIMATED, "pg_stat_user_tables.n_live_tup") if live else unknown(_NO_STATISTICS)
    )
    return TableStatistics(
        rows=Figure(rows, Basis.ESTIMATED, "pg_class.reltuples") if is_analyzed else counted,
        bytes=Figure(float(size), Basis.ESTIMATED, "pg_class.relpages") if is_analyzed else unknown(_NO_STATISTICS),
        changes=Figure(float(changes), Basis.COUNTED, "pg_stat_user_tables"),
    )


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
