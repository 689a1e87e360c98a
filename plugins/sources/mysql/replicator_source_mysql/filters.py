"""Filters that keep changes out of the log: the log's own, and those of a replica."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pymysql

from replicator.model.schema import TableId
from replicator_source_mysql.connecting.connection import Connection, rows_of
from replicator_source_mysql.connecting.errors import number_of
from replicator_source_mysql.flavors import Flavor

_ACCESS_DENIED: Final = 1227
_REPLICA: Final = (
    "replicate_do_db", "replicate_ignore_db", "replicate_do_table", "replicate_ignore_table", "replicate_wild_do_table",
    "replicate_wild_ignore_table",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters by their names, such as `binlog_do_db` and `replicate_wild_ignore_table`; only those that are set.

    Attributes:
        log: Filters on what the server writes into its log.
        replica: Filters on what it replicates, one mapping for each server that it replicates from.
    """

    log: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replica: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    def of_log(self, table: TableId, *, is_lower_case: bool) -> str | None:
        """The filter that keeps a table's changes out of the log."""
        return _by_database(self.log, "binlog", table, is_lower_case)

    def of_replica(self, table: TableId, *, is_lower_case: bool) -> str | None:
        """A filter that may keep a table's changes from being replicated; where two contradict, the one that does."""
        for filters in self.replica:
            found = _by_database(filters, "replicate", table, is_lower_case) or _by_table(filters, table, is_lower_case)
            if found:
                return found
        return None


def _by_database(
    filters: Mapping[str, tuple[str, ...]], prefix: str, table: TableId, is_lower_case: bool
) -> str | None:
    def folded(names: Iterable[str]) -> set[str]:
        return {name.lower() if is_lower_case else name for name in names}

    (database,) = folded([table.namespace])
    do, ignore = f"{prefix}_do_db", f"{prefix}_ignore_db"
    if do in filters and database not in folded(filters[do]):
        return do
    return ignore if database in folded(filters.get(ignore, ())) else None


def _by_table(filters: Mapping[str, tuple[str, ...]], table: TableId, is_lower_case: bool) -> str | None:
    name = f"{table.namespace}.{table.name}"
    for ignore in ("replicate_ignore_table", "replicate_wild_ignore_table"):
        if any(
            _matches(p, name, is_wild="wild" in ignore, is_lower_case=is_lower_case) for p in filters.get(ignore, ())
        ):
            return ignore
    dos = [do for do in ("replicate_do_table", "replicate_wild_do_table") if do in filters]
    if dos and not any(
        _matches(p, name, is_wild="wild" in do, is_lower_case=is_lower_case) for do in dos for p in filters[do]
    ):
        return dos[0]
    return None


def _matches(pattern: str, name: str, *, is_wild: bool, is_lower_case: bool) -> bool:
    # Patterns are compared without regard to case by every server.
    if is_lower_case or is_wild:
        pattern, name = pattern.lower(), name.lower()
    if not is_wild:
        return pattern == name
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join({"%": ".*", "_": "."}.get(p, re.escape(p[-1])) for p in parts)
    return re.fullmatch(expression, name, re.DOTALL) is not None


def read_filters(connection: Connection, flavor: Flavor, *, status: str, replica_status: str) -> Filters:
    """Ask the server. Filters that the account may not see are missing, as the privilege is, which `check` reports.

    Args:
        connection: To the server.
        flavor: The server's flavor.
        status: The statement that shows the log's end; its filters stand there, no variable has them.
        replica_status: The statement that shows what the server replicates from.
    """
    found = _rows_by_name(connection, status)
    log = {name: _names(row.get(name)) for row in found or () for name in ("binlog_do_db", "binlog_ignore_db")}
    replica = _rows_by_name(connection, replica_status)
    if replica is None and flavor.has_replica_variables:
        names = ", ".join(f"'{name}'" for name in _REPLICA)
        replica = [dict(rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})"))]
    return Filters(
        log=_set_ones(log),
        replica=tuple(_set_ones({name: _names(row.get(name)) for name in _REPLICA}) for row in replica or ()),
    )


def _rows_by_name(connection: Connection, statement: str) -> list[dict[str, str]] | None:
    """The rows of a SHOW statement; None if we may not see them."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except pymysql.err.OperationalError as error:
        if number_of(error) != _ACCESS_DENIED:
            raise
        return None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip().strip("`") for part in (text or "").split(",") if part.strip())


def _set_ones(filters: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: names for name, names in filters.items() if names}
