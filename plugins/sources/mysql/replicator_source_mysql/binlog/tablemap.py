"""TABLE_MAP events: what the log itself says about a table's columns."""

from __future__ import annotations

from dataclasses import dataclass

from replicator_source_mysql.binlog.events import Flavor


@dataclass(frozen=True, slots=True, kw_only=True)
class MapColumn:
    """One column as a TABLE_MAP describes it; what only `binlog_row_metadata=FULL` tells is None without it.

    Attributes:
        position: From 0, as in the row image.
        type_code: The real type (ENUM 247 and SET 248 included, which the wire hides in STRING 254).
        metadata: The type's own numbers; what they mean depends on the type (`types.logged_spec` reads them).
        is_nullable: The log's NULL bitmap allows NULL.
        name: FULL only.
        is_unsigned: Of numeric columns; None for others.
        collation: Collation number of a column with text, binary strings included (63); None for others.
        labels: Of ENUM and SET, as raw bytes in the column's character set; FULL only.
        geometry_type: Of GEOMETRY; FULL only.
        is_visible: False for MySQL's invisible columns; None where the log does not say (MariaDB).
    """

    position: int
    type_code: int
    metadata: int
    is_nullable: bool
    name: str | None
    is_unsigned: bool | None
    collation: int | None
    labels: tuple[bytes, ...] | None
    geometry_type: int | None
    is_visible: bool | None


@dataclass(frozen=True, eq=False, kw_only=True)
class TableMap:
    """A table version as the log has it. Compared by identity: `TableMaps` gives the same object for the same bytes.

    Attributes:
        primary_key: Column positions in key order; empty without a key; None where the log does not say (no FULL metadata).
        has_names: The event was written under `binlog_row_metadata=FULL`. Without it the table must be set aside.
    """

    schema: str
    table: str
    columns: tuple[MapColumn, ...]
    primary_key: tuple[int, ...] | None
    has_names: bool


class TableMaps:
    """Parsed TABLE_MAP events by their bytes (the table number apart), so that each table version is parsed once."""

    def __init__(self, flavor: Flavor, *, versions_max: int = 10_000) -> None:
        raise NotImplementedError

    def get(self, body: bytes | memoryview) -> TableMap:
        """The table map in `body`, from the cache if these bytes were seen; CorruptStreamError as `parse_table_map`."""
        raise NotImplementedError


def parse_table_map(body: bytes | memoryview, flavor: Flavor) -> TableMap:
    """Parse a TABLE_MAP event's body.

    A type code that nobody knows is kept: `logged_spec` refuses it for its table alone.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`: the body is not a TABLE_MAP.
    """
    raise NotImplementedError
