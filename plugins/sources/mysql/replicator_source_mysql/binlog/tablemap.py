"""TABLE_MAP events: the log's own description of a table's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from replicator_source_mysql import column_types as t
from replicator_source_mysql.binlog.events import corrupt
from replicator_source_mysql.binlog.reading import EventReader
from replicator_source_mysql.flavors import Flavor

# Kinds of optional metadata. Unknown kinds are skipped by their length.
_SIGNEDNESS: Final = 1
_DEFAULT_CHARSET: Final = 2
_COLUMN_CHARSET: Final = 3
_COLUMN_NAME: Final = 4
_SET_LABELS: Final = 5
_ENUM_LABELS: Final = 6
_SIMPLE_KEY: Final = 8
_KEY_WITH_PREFIX: Final = 9
_LABEL_DEFAULT_CHARSET: Final = 10
_LABEL_COLUMN_CHARSET: Final = 11

_COLUMNS_MAX: Final = 4096
_UNKNOWN: Final = -1
_TABLE_ID_SIZE: Final = 6
_LENGTH_BITS: Final = 0x30


@dataclass(frozen=True, slots=True, kw_only=True)
class MapColumn:
    """One column as a TABLE_MAP describes it; facts that only `binlog_row_metadata=FULL` tells are None without it.

    Attributes:
        position: From 0, as in the row image.
        type_code: The real type (ENUM 247 and SET 248 included, which the wire hides in STRING 254).
        metadata: The type's own number: bytes of a length, digits of a fraction, `precision << 8 | scale` of DECIMAL, bits of BIT, the most
            bytes of CHAR and VARCHAR. -1: not known, because a type before it is not known.
        is_nullable: The log's NULL bitmap allows NULL.
        name: FULL only.
        is_unsigned: A numeric column is unsigned; None for others, and where the log does not say.
        collation: Collation number of a column with text, binary strings included (63); None for others; FULL only for ENUM and SET.
        labels: Labels of ENUM and SET, as raw bytes in the column's character set; FULL only.
    """

    position: int
    type_code: int
    metadata: int
    is_nullable: bool
    name: str | None
    is_unsigned: bool | None
    collation: int | None
    labels: tuple[bytes, ...] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class TableMap:
    """A table version as the log has it. Compared by identity: `TableMaps` gives the same object for the same bytes.

    Attributes:
        primary_key: Column positions in key order, of the primary key or, without one, of the unique key that rows are
            clustered by; empty without a key; None where the log does not say (no FULL metadata).
        is_key_whole: No part of it is a prefix of a column.
        has_names: The event was written under `binlog_row_metadata=FULL`. Without it the table must fail.
    """

    schema: str
    table: str
    columns: tuple[MapColumn, ...]
    primary_key: tuple[int, ...] | None
    is_key_whole: bool
    has_names: bool


class TableMaps:
    """Parsed TABLE_MAP events by their bytes (the table number apart), so that each table version is parsed once."""

    def __init__(self, flavor: Flavor, *, versions_max: int = 10_000) -> None:
        self._flavor = flavor
        self._versions_max = versions_max
        self._versions: dict[bytes, TableMap] = {}

    def get(self, body: bytes | memoryview) -> TableMap:
        """The table map in `body`, from the cache if these bytes were seen; CorruptStreamError as `parse_table_map`."""
        content = bytes(body[_TABLE_ID_SIZE:])
        known = self._versions.get(content)
        if known is None:
            known = parse_table_map(body, self._flavor)
            if len(self._versions) >= self._versions_max:
                # The oldest half: a table in use is parsed once more at worst.
                self._versions = dict(list(self._versions.items())[self._versions_max // 2 :])
            self._versions[content] = known
        return known


def named_table(body: bytes | memoryview) -> tuple[str, str]:
    """Database and name of the table, of a body that may be unreadable after them; CorruptStreamError if they are."""
    reader = EventReader(body, "A TABLE_MAP event")
    reader.take(_TABLE_ID_SIZE + 2)
    return _name(reader), _name(reader)


def parse_table_map(body: bytes | memoryview, flavor: Flavor) -> TableMap:
    """Parse a TABLE_MAP event's body.

    An unknown type code is kept: `logged_spec` refuses it for its table alone.

    Raises:
        CorruptStreamError: `corrupt_binlog_event`: the body is not a TABLE_MAP.
    """
    reader = EventReader(body, "A TABLE_MAP event")
    reader.take(_TABLE_ID_SIZE + 2)
    schema, table = _name(reader), _name(reader)
    count = reader.packed()
    if not 0 < count <= _COLUMNS_MAX:
        raise corrupt(f"A TABLE_MAP event says that its table has {count} columns.", table=f"{schema}.{table}")
    codes = reader.take(count)
    types = _types(codes, EventReader(reader.string(), "The metadata of a TABLE_MAP event"))
    nullable = _low_bits_first(reader.take((count + 7) // 8), count)
    extra = _Optional(types, reader.rest(), flavor)
    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(
            MapColumn(
                position=i,
                type_code=code,
                metadata=metadata,
                is_nullable=nullable[i],
                name=extra.names[i] if extra.names else None,
                is_unsigned=extra.unsigned.get(i),
                collation=extra.collations.get(i),
                labels=extra.labels.get(i),
            )
            for i, (code, metadata) in enumerate(types)
        ),
        # A table without a key has no field for it.
        primary_key=extra.key or () if extra.names else None,
        is_key_whole=extra.is_key_whole,
        has_names=bool(extra.names),
    )


def _name(reader: EventReader) -> str:
    name = _text(reader.string())
    if reader.integer(1) != 0:
        raise corrupt("A name in a TABLE_MAP event does not end with a zero byte.")
    return name


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise corrupt("A name in a TABLE_MAP event is not UTF-8.") from error


def _types(codes: bytes, reader: EventReader) -> list[tuple[int, int]]:
    """Real type code and metadata of each column; metadata is unknown from the first unknown code on."""
    types: list[tuple[int, int]] = []
    is_known = True
    for code in codes:
        size = t.METADATA_SIZES.get(code)
        is_known = is_known and size is not None
        if not is_known or size is None:
            types.append((code, _UNKNOWN))
            continue
        raw = reader.take(size)
        metadata = int.from_bytes(raw, "big" if code in t.BIG_ENDIAN_METADATA else "little")
        types.append(_real_type(code, metadata))
    if is_known and reader.left:
        raise corrupt("The metadata of a TABLE_MAP event is longer than its columns' types need.")
    return types


def _real_type(code: int, metadata: int) -> tuple[int, int]:
    if code == t.BIT:
        return code, (metadata >> 8) * 8 + (metadata & 0xFF)
    if code not in {t.STRING, t.ENUM, t.SET, t.VAR_STRING}:
        return code, metadata
    real, length = metadata >> 8, metadata & 0xFF
    if real & _LENGTH_BITS != _LENGTH_BITS:
        # Lengths from 256 on: two of their bits stand, inverted, in the real type.
        length |= ((real & _LENGTH_BITS) ^ _LENGTH_BITS) << 4
        real |= _LENGTH_BITS
    if real not in {t.STRING, t.ENUM, t.SET, t.VAR_STRING}:
        raise corrupt(f"A TABLE_MAP event has a string column of real type {real}.")
    return real, length


class _Optional:
    """The optional metadata, by column position."""

    def __init__(self, types: Sequence[tuple[int, int]], data: bytes, flavor: Flavor) -> None:
        self.names: list[str] = []
        self.unsigned: dict[int, bool] = {}
        self.collations: dict[int, int] = {}
        self.labels: dict[int, tuple[bytes, ...]] = {}
        self.key: tuple[int, ...] = ()
        self.is_key_whole = True
        self._types = types
        readers: Mapping[int, Callable[[EventReader], None]] = {
            _SIGNEDNESS: self._signedness,
            _DEFAULT_CHARSET: lambda r: self._default_charset(r, flavor.character_types),
            _COLUMN_CHARSET: lambda r: self._column_charset(r, flavor.character_types),
            _COLUMN_NAME: self._column_names,
            _SET_LABELS: lambda r: self._labels(r, t.SET),
            _ENUM_LABELS: lambda r: self._labels(r, t.ENUM),
            _SIMPLE_KEY: lambda r: self._key(r, has_prefixes=False),
            _KEY_WITH_PREFIX: lambda r: self._key(r, has_prefixes=True),
            _LABEL_DEFAULT_CHARSET: lambda r: self._default_charset(r, frozenset({t.ENUM, t.SET})),
            _LABEL_COLUMN_CHARSET: lambda r: self._column_charset(r, frozenset({t.ENUM, t.SET})),
        }
        for kind, content in _fields(EventReader(data, "The optional metadata of a TABLE_MAP event")):
            if (read := readers.get(kind)) is not None:
                reader = EventReader(content, f"Optional metadata {kind} of a TABLE_MAP event")
                read(reader)
                if reader.left:
                    raise corrupt(f"Optional metadata {kind} of a TABLE_MAP event does not fit its columns.")

    def _positions(self, codes: frozenset[int]) -> list[int]:
        return [i for i, (code, _) in enumerate(self._types) if code in codes]

    def _signedness(self, reader: EventReader) -> None:
        positions = self._positions(t.NUMERIC)
        if reader.left < _bytes_for(positions):
            # MySQL 8.0.15 has no bit for YEAR. Where that saves no byte, the signs do not fit the catalogue's and the table fails.
            positions = self._positions(t.NUMERIC - {t.YEAR})
        bits = _high_bits_first(reader.take(_bytes_for(positions)), len(positions))
        self.unsigned.update(zip(positions, bits, strict=True))

    def _default_charset(self, reader: EventReader, codes: frozenset[int]) -> None:
        positions = self._positions(codes)
        self.collations.update(dict.fromkeys(positions, reader.packed()))
        while reader.left:
            position = _at(positions, reader.packed())
            self.collations[position] = reader.packed()

    def _column_charset(self, reader: EventReader, codes: frozenset[int]) -> None:
        for position in self._positions(codes):
            self.collations[position] = reader.packed()

    def _column_names(self, reader: EventReader) -> None:
        self.names = [_text(reader.string()) for _ in self._types]

    def _labels(self, reader: EventReader, code: int) -> None:
        for position in self._positions(frozenset({code})):
            count = reader.packed()
            if count > reader.left:
                raise corrupt("A TABLE_MAP event has more labels than bytes.")
            self.labels[position] = tuple(reader.string() for _ in range(count))

    def _key(self, reader: EventReader, *, has_prefixes: bool) -> None:
        everything = range(len(self._types))
        positions = []
        while reader.left:
            positions.append(_at(everything, reader.packed()))
            # 0: the whole column.
            if has_prefixes and reader.packed():
                self.is_key_whole = False
        self.key = tuple(positions)


def _fields(reader: EventReader) -> Iterator[tuple[int, bytes]]:
    while reader.left:
        yield reader.integer(1), reader.string()


def _at(positions: Sequence[int], index: int) -> int:
    if index >= len(positions):
        raise corrupt("The optional metadata of a TABLE_MAP event names a column that the table does not have.")
    return positions[index]


def _bytes_for(bits: Sequence[int]) -> int:
    return (len(bits) + 7) // 8


def _low_bits_first(raw: bytes, count: int) -> list[bool]:
    return [bool(raw[i >> 3] >> (i & 7) & 1) for i in range(count)]


def _high_bits_first(raw: bytes, count: int) -> list[bool]:
    return [bool(raw[i >> 3] >> (7 - (i & 7)) & 1) for i in range(count)]
