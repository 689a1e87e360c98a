"""The one type mapping: PostgreSQL type → canonical Arrow type, for log and chunks alike.

Text is the base: pgoutput sends every value as its type's output function writes it, under the settings of
`SESSION_SETTINGS`. A chunk asks for that very text (`textin(<output function>(column))`; a cast to text is something
else: `'10.0.0.1'::inet::text` is `10.0.0.1/32`, `char(n)::text` loses its padding), or, for types whose binary form
is provably the same value, for the binary form. Both end in the same Arrow values, and `tests/test_types.py` compares
them on a server.

Every type has an output function, so every column type can be replicated, as string if nothing better is known. What
a canonical type cannot hold (`NaN` and infinity in numeric(p,s), infinity in dates and timestamps, timestamps after
the year 294246, `24:00:00`, arrays that are not one-dimensional from 1, text that is not UTF-8) follows the setting
`unrepresentable`: it fails the table, or becomes NULL (inside an array: a NULL element).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import TableId
from replicator_source_postgresql import values as v

Unrepresentable = Literal["fail", "null"]

SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "extra_float_digits": "1",  # Shortest text that reads back exactly, the default since 12.
    "intervalstyle": "iso_8601",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "",  # Names in what is deparsed (a publication's row filter) come qualified.
    "timezone": "UTC",
    "xmlbinary": "base64",
}
"""The settings that make the texts of values canonical. Every connection has them, the replication connection included."""

RAW_SETTING: Final = ("client_encoding", "SQL_ASCII")
"""The setting for reading values from a database in SQL_ASCII, which knows no encoding: texts come as they are, and are checked here.

In UTF8 the server would check them itself, and end the read, or the log, at the first value that is not UTF-8.
"""

SESSION_OPTIONS: Final = " ".join(f"-c {name}={setting}" for name, setting in SESSION_SETTINGS.items())
"""`SESSION_SETTINGS` as libpq's `options`."""

# A domain's base type, a true array's element type (int2vector and its like are no arrays: their text is another), the types of a
# composite's attributes, the type that a range is over, and the range of a multirange.
TYPE_PARTS: Final = """
    SELECT nullif(t.typbasetype, 0) AS oid
    UNION ALL SELECT e.oid FROM pg_catalog.pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0
      AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT r.oid FROM pg_catalog.pg_type r WHERE t.typtype = 'm' AND r.oid =
      (SELECT m.rngtypid FROM pg_catalog.pg_range m WHERE to_jsonb(m) ->> 'rngmultitypid' = t.oid::text)
"""
"""The parts of the type `t`: rows of `oid`, which may be null."""

TYPES_QUERY: Final = f"""
WITH RECURSIVE wanted(oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT part.oid FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid CROSS JOIN LATERAL ({TYPE_PARTS}) AS part
    WHERE part.oid IS NOT NULL
)
SELECT t.oid::int8, t.typname::text, n.nspname::text, t.typtype::text,
       pg_catalog.quote_ident(pn.nspname) || '.' || pg_catalog.quote_ident(p.proname),
       CASE WHEN a.typtype <> 'p' AND a.oid <> t.oid THEN pg_catalog.quote_ident(an.nspname) || '.' ||
       pg_catalog.quote_ident(a.typname) END,
       t.typbasetype::int8, t.typtypmod, coalesce(e.oid, 0)::int8, coalesce(e.typdelim, ',')::text,
       ARRAY(SELECT part.oid::int8 FROM ({TYPE_PARTS}) AS part WHERE part.oid IS NOT NULL), p.provolatile::text
FROM wanted
JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_proc p ON p.oid = t.typoutput
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
JOIN pg_catalog.pg_type a ON a.oid = p.proargtypes[0]
JOIN pg_catalog.pg_namespace an ON an.oid = a.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""  # noqa: S608 our own text
"""One parameter, a list of type oids; the rows are for `type_infos`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """The catalogue's description of a type.

    Attributes:
        kind: `typtype`: b(ase), e(num), d(omain), c(omposite), r(ange), m(ultirange), p(seudo).
        output: The output function's qualified, quoted name; `output_argument` the type it takes, if that is neither
            this type nor polymorphic.
        base: A domain's base type, with `base_typmod`.
        element: A true array's element type; `delimiter` stands between its elements.
        parts: All types that it is made of: base, element, attributes, subtype.
        is_immutable: True if the server says that a value's text depends on nothing but the value.
    """

    oid: int
    name: str
    namespace: str
    kind: str
    output: str
    output_argument: str | None = None
    base: TypeInfo | None = None
    base_typmod: int = -1
    element: TypeInfo | None = None
    delimiter: str = ","
    parts: tuple[TypeInfo, ...] = ()
    is_immutable: bool = True


def type_infos(rows: Iterable[Sequence[Any]]) -> dict[int, TypeInfo]:
    """Make `TypeInfo`s, by oid, from the rows of `TYPES_QUERY`."""
    by_oid = {row[0]: row for row in rows}
    made: dict[int, TypeInfo] = {}

    def make(oid: int) -> TypeInfo:
        if oid not in made:
            (_, name, namespace, kind, output, argument, base, base_typmod, element, delimiter, parts,
             volatility) = by_oid[oid]  # fmt: skip
            made[oid] = TypeInfo(
                oid=oid,
                name=name,
                namespace=namespace,
                kind=kind,
                output=output,
                output_argument=argument,
                base=make(base) if base else None,
                base_typmod=base_typmod,
                element=make(element) if element else None,
                delimiter=delimiter,
                parts=tuple(make(part) for part in parts),
                is_immutable=volatility == "i",
            )
        return made[oid]

    for oid in by_oid:
        make(oid)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """The conversion of values of one PostgreSQL type to Arrow values.

    Attributes:
        arrow: The canonical type.
        source_type: Our spelling, for display: `numeric(12,2)`, `public.mood`, `int4[]`.
        can_be_key: True if a column of this type may identify rows. Floats, arrays, and types made of domains may not.
    """

    arrow: pa.DataType
    source_type: str
    can_be_key: bool
    info: TypeInfo
    from_text: v.Decoder = field(compare=False)
    from_binary: v.Decoder | None = field(compare=False)

    def select(self, quoted_name: str) -> str:
        """Return the expression by which a chunk (binary COPY) reads the column."""
        if self.from_binary is not None:
            return quoted_name
        return output_text(self.info, quoted_name)

    def decode_chunk(self, values: pa.Array, unrepresentable: Unrepresentable) -> pa.Array:
        """Decode values as binary COPY of `select` sends them.

        Args:
            values: Binary array; nulls stay.
            unrepresentable: Treatment of values that `arrow` cannot hold.

        Raises:
            UnsupportedTypeError: `unrepresentable_value`; without table and column, which the caller knows.
            ValueError: The bytes are no value of this type. Its text may hold the value: never log it.
        """
        decoded, unheld = (self.from_binary or self.from_text)(values)
        if unheld and unrepresentable == "fail":
            raise self.unheld_error(unheld, len(values))
        return decoded

    def key_text(self, values: pa.Array) -> list[str]:
        """Return canonical values as texts that `text::type` reads back exactly (`type` as `format_type` spells it). No nulls."""
        return v.key_text(values)

    def unheld_error(self, count: int, total: int) -> UnsupportedTypeError:
        """The error for `count` values among `total` that `arrow` cannot hold; without table and column."""
        fits, _ = _misfit(self.info, self.arrow, "")
        return UnsupportedTypeError(
            f"{count} of {total} values of type {self.source_type} cannot be held as {self.arrow}, which holds {fits}.",
            code="unrepresentable_value",
        )

    def unheld_in(self, error: UnsupportedTypeError, table: TableId, column: str) -> UnsupportedTypeError:
        """An `unheld_error` of this column, with the statement that finds the rows: a message has no values, not even those of keys."""
        _, condition = _misfit(self.info, self.arrow, _quote(column))
        name = f"{_quote(table.namespace)}.{_quote(table.name)}"
        found = "Fix" if condition is None else f"Find them with `SELECT * FROM {name} WHERE {condition};` and fix"  # noqa: S608 for a person
        return UnsupportedTypeError(
            f"Column {column}: {error.message}",
            code=error.code,
            table=str(table),
            action=f"{found} the values, or set `unrepresentable: null` if they may become NULL;"
            " then run `replicator snapshot NAME TABLE`.",
        )


def _misfit(info: TypeInfo, arrow: pa.DataType, value: str) -> tuple[str, str | None]:
    """Return a phrase for the values that the Arrow type holds, and the SQL condition for all others; None if SQL cannot say it."""
    if pa.types.is_list(arrow):
        element = base_of(info).element
        assert element is not None, "the list is an array"
        what = "arrays of one dimension that begin at 1"
        condition = f"array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1"
        if not _has_misfits(arrow.value_type):
            return what, condition
        fits, of_element = _misfit(element, arrow.value_type, "e")
        return f"{what}, of {fits}", f"{condition} OR EXISTS (SELECT FROM unnest({value}) AS e WHERE {of_element})"
    if pa.types.is_decimal(arrow):
        return "finite numbers", f"{value} = 'NaN'"
    if pa.types.is_date(arrow):
        return "finite dates", f"NOT isfinite({value})"
    if pa.types.is_time(arrow):
        return "times before 24:00", f"{value} = '24:00'"
    if pa.types.is_timestamp(arrow):
        zone = "+00" if arrow.tz else ""
        return "finite moments up to the year 294246", f"NOT isfinite({value}) OR {value} >= '294247-01-01{zone}'"
    return "text that is UTF-8", None


def _has_misfits(arrow: pa.DataType) -> bool:
    kinds = pa.types
    return any(is_(arrow) for is_ in (kinds.is_decimal, kinds.is_date, kinds.is_time, kinds.is_timestamp))


def output_text(info: TypeInfo, value: str) -> str:
    """Return the expression for the text that the type's output function writes."""
    argument = info.output_argument
    if argument is None and info.base is not None:
        # Polymorphic output functions (enum_out, …) do not take domains on every version.
        base = base_of(info)
        argument = f"{_quote(base.namespace)}.{_quote(base.name)}"
    operand = value if argument is None else f"{value}::{argument}"
    return f"pg_catalog.textin({info.output}({operand}))"


def column_type(type_oid: int, typmod: int, type_info: TypeInfo) -> PgType | None:
    """Return the mapping of a column of type `type_oid` with modifier `typmod`.

    None for a pseudo-type, which no stored column has, and for a type that is written as the names of other objects (`named_in`).
    """
    assert type_oid == type_info.oid
    if named_in(type_info) is not None:
        return None
    if type_info.kind == "d":
        assert type_info.base is not None
        base = column_type(type_info.base.oid, type_info.base_typmod, type_info.base)
        return base and _pg_type(type_info, _name(type_info), base.arrow, base.from_text, base.from_binary)
    if type_info.kind == "p":
        return None
    if type_info.element is not None:
        element = column_type(type_info.element.oid, typmod, type_info.element)
        return element and _array_type(type_info, element)
    if type_info.namespace == "pg_catalog":
        if type_info.name == "numeric":
            return _numeric_type(typmod, type_info)
        if (simple := _SIMPLE.get(type_info.name)) is not None:
            return _pg_type(type_info, _spell(type_info.name, typmod), *simple)
    return _pg_type(type_info, _name(type_info), pa.string(), v.text, None)


# Their values are oids, and their texts the names that those objects have at the moment: a rename changes the text of rows
# that nobody wrote, and nothing in the log says so.
_NAMING: Final = frozenset(
    {"regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc",
     "regprocedure", "regrole", "regtype", "regdatabase", "aclitem"}
)  # fmt: skip


def named_in(info: TypeInfo) -> str | None:
    """Return the type, this one or a part of it, whose values are written as names of other objects; None if there is none."""
    if info.namespace == "pg_catalog" and info.name in _NAMING:
        return info.name
    return next((name for part in info.parts if (name := named_in(part)) is not None), None)


def unknown_output(info: TypeInfo) -> str | None:
    """Return the type of an extension, this one or a part, whose text may depend on more than the value, as the server declares it."""
    is_ours = info.namespace == "pg_catalog" or info.kind != "b" or info.element is not None
    if not is_ours and not info.is_immutable:
        return _name(info)
    return next((name for part in info.parts if (name := unknown_output(part)) is not None), None)


_UTC: Final = pa.timestamp("us", tz="UTC")

# typname → canonical type, decoder of text, decoder of the binary form (None: chunks ask for the text). What is not
# here is a string, through its text.
_SIMPLE: Final[Mapping[str, tuple[pa.DataType, v.Decoder, v.Decoder | None]]] = {
    "bool": (pa.bool_(), v.boolean, v.boolean_binary),
    "int2": (pa.int16(), v.parsed(pa.int16()), v.integer_binary(">i2", pa.int16())),
    "int4": (pa.int32(), v.parsed(pa.int32()), v.integer_binary(">i4", pa.int32())),
    "int8": (pa.int64(), v.parsed(pa.int64()), v.integer_binary(">i8", pa.int64())),
    "oid": (pa.int64(), v.parsed(pa.int64()), v.integer_binary(">u4", pa.int64())),
    "float4": (pa.float32(), v.parsed(pa.float32()), v.integer_binary(">f4", pa.float32())),
    "float8": (pa.float64(), v.parsed(pa.float64()), v.integer_binary(">f8", pa.float64())),
    "text": (pa.string(), v.text, v.text),
    "varchar": (pa.string(), v.text, v.text),
    "bpchar": (pa.string(), v.text, v.text),
    "json": (pa.string(), v.text, v.text),
    "bytea": (pa.binary(), v.hex_bytes, v.raw_bytes),
    "date": (pa.date32(), v.date, v.date_binary),
    "time": (pa.time64("us"), v.time, v.time_binary),
    "timestamp": (pa.timestamp("us"), v.timestamp(pa.timestamp("us")), v.timestamp_binary(pa.timestamp("us"))),
    "timestamptz": (_UTC, v.timestamp(_UTC), v.timestamp_binary(_UTC)),
}  # fmt: skip

_DECIMAL128_PRECISION: Final = 38
_DECIMAL256_PRECISION: Final = 76


def _numeric_type(typmod: int, info: TypeInfo) -> PgType:
    if typmod < 0:
        return _pg_type(info, "numeric", pa.string(), v.text, None)
    precision, scale = numeric_shape(typmod)
    spelling = f"numeric({precision},{scale})"
    # numeric(3,-2) holds up to 99900, numeric(3,5) up to 0.00999: the digits before and after the point decide.
    digits, behind = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    if digits > _DECIMAL256_PRECISION:
        return _pg_type(info, spelling, pa.string(), v.text, None)
    arrow = pa.decimal128(digits, behind) if digits <= _DECIMAL128_PRECISION else pa.decimal256(digits, behind)
    return _pg_type(info, spelling, arrow, v.decimal(arrow), None)


def numeric_shape(typmod: int) -> tuple[int, int]:
    """Return precision and scale of numeric(p,s); the scale may be negative (15+) and is then kept in 11 bits."""
    packed = typmod - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _array_type(info: TypeInfo, element: PgType) -> PgType:
    if pa.types.is_list(element.arrow):  # A domain over an array as element: no list of lists in the canonical set.
        return _pg_type(info, f"{element.source_type}[]", pa.string(), v.text, None)
    arrow = pa.list_(element.arrow)
    return _pg_type(
        info, f"{element.source_type}[]", arrow, v.array(element.arrow, element.from_text, info.delimiter), None
    )


def _pg_type(
    info: TypeInfo, spelling: str, arrow: pa.DataType, from_text: v.Decoder, from_binary: v.Decoder | None
) -> PgType:
    can_be_key = not (pa.types.is_floating(arrow) or pa.types.is_list(arrow) or _has_domain_inside(info))
    return PgType(
        arrow=arrow,
        source_type=spelling,
        can_be_key=can_be_key,
        from_text=from_text,
        from_binary=from_binary,
        info=info,
    )


def _has_domain_inside(info: TypeInfo) -> bool:
    """Check for a domain among attributes or subtype: a literal of the type evaluates its constraints, perhaps its owner's functions."""
    return any(part.kind == "d" or _has_domain_inside(part) for part in base_of(info).parts)


def base_of(info: TypeInfo) -> TypeInfo:
    """Return the type under a domain, through all its levels; another type itself."""
    while info.base is not None:
        info = info.base
    return info


def _spell(name: str, typmod: int) -> str:
    spelling, modifier = _SPELLINGS.get(name, (name, _no_modifier))
    return spelling + (modifier(typmod) if typmod >= 0 else "")


def _no_modifier(_: int) -> str:
    return ""


def _length(typmod: int) -> str:
    return f"({typmod - _VARLENA_HEADER})"


def _precision(typmod: int) -> str:
    return f"({typmod})"


def _name(info: TypeInfo) -> str:
    return info.name if info.namespace == "pg_catalog" else f"{info.namespace}.{info.name}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_VARLENA_HEADER: Final = 4
_SPELLINGS: Final[Mapping[str, tuple[str, Callable[[int], str]]]] = {
    "varchar": ("varchar", _length),
    "bpchar": ("char", _length),
    "time": ("time", _precision),
    "timestamp": ("timestamp", _precision),
    "timestamptz": ("timestamptz", _precision),
}
