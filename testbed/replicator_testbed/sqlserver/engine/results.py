"""Results: the rows of PostgreSQL with the types of SQL Server."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.engine import types
from replicator_testbed.sqlserver.engine.batches import placeholders
from replicator_testbed.sqlserver.engine.settings import TEXT_BYTES_MAX
from replicator_testbed.sqlserver.outcomes import Bound, Rows, SqlError
from replicator_testbed.sqlserver.sqltypes import BINARIES, SYSTEM_TYPE_IDS, TEXTS, SqlType, TypeName
from replicator_testbed.sqlserver.tds.tokens import Column

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session

_UNNAMED: Final = "?column?"
_TABLES: Final = re.compile(r'\b(?:FROM|JOIN|APPLY)\s+(?:LATERAL\s+)?"?(\w+)"?(?:\."?(\w+)"?)?', re.IGNORECASE)
_CDC_TABLES: Final = frozenset(
    ("cdc", name) for name in ("captured_columns", "change_tables", "ddl_history", "index_columns", "lsn_time_mapping")
)
_NUMBERS_OF_OBJECTS: Final = re.compile(r"\b[1-9]\d{3,8}\b")
_KNOWN: Final[dict[tuple[str, tuple[type, ...]], Sequence[str | None]]] = {}
"""Types of the columns of queries of the catalogue."""


def fetch(session: Session, sql: str, arguments: Sequence[Any], names: Sequence[str | None]) -> Rows:
    """Run a query, and give its columns their types: those of SQL Server are domains, which PostgreSQL is asked for."""
    cursor = session.execute(sql, arguments)
    count = len(cursor.description or ())
    domains = _domains(session, sql, arguments, count) if count else ()
    return rows_of(session, cursor, domains, names)


def _is_of_the_catalogue(sql: str) -> bool:
    """Whether a query reads views of the catalogue only: what these have is the same in every database of the model."""
    tables = _TABLES.findall(sql)
    return bool(tables) and all(schema == "sys" or (schema, name) in _CDC_TABLES for schema, name in tables)


def rows_of(
    session: Session,
    cursor: psycopg.RawCursor[tuple[Any, ...]],
    domains: Sequence[str | None] | None,
    names: Sequence[str | None],
) -> Rows:
    """The rows of a statement that was run; `domains` are its columns' types by their names in PostgreSQL, where they are known."""
    description = cursor.description or ()
    rows: list[Sequence[Any]] = list(cursor.fetchall())
    columns: list[Column] = []
    for index, described in enumerate(description):
        domain = domains[index] if domains else None
        if domain is not None:
            kind = types.from_domain(domain)
        else:
            kind = types.of_expression(_pg_name(described.type_code), [row[index] for row in rows])
        if kind.name in sqltypes.UNSENT:
            raise SqlError(
                40510, f"The model sends no values of {kind}: {described.name}. Convert it, or call a method of it."
            )
        name = names[index] if index < len(names) and names[index] is not None else described.name
        columns.append(Column("" if name in {_UNNAMED, None} else str(name), kind))
    return Rows(columns, _converted(columns, rows, session.settings.text_bytes))


def undeclared(session: Session, batch: str) -> Rows:
    """What `sp_describe_undeclared_parameters` says of the parameters of a statement.

    Raises:
        SqlError: PostgreSQL cannot tell.
    """
    session.variables = {name.lower(): Bound(name, None, None) for name in placeholders(batch)}
    translated = session.translate(batch)
    connection = session.connection.pgconn
    prepared = connection.prepare(b"", translated.sql.encode())
    if prepared.status is not pq.ExecStatus.COMMAND_OK:
        said = prepared.error_message.decode(errors="replace")
        raise SqlError(11521, f"The parameters cannot be described: {said}")
    described = connection.describe_prepared(b"")
    by_oid = session.model.type_names()
    found: dict[str, SqlType] = {}
    for index, bound in enumerate(translated.arguments):
        oid = described.param_type(index)
        domain = by_oid.get(oid)
        kind = types.from_domain(domain) if domain else types.of_expression(_pg_name(oid), [])
        found.setdefault(bound.name, kind)
    rows = [_described(ordinal, name, kind) for ordinal, (name, kind) in enumerate(found.items(), 1)]
    return Rows([Column(name, kind) for name, kind in _UNDECLARED], rows)


_INT: Final = sqltypes.INT
_SMALLINT: Final = sqltypes.of(TypeName.SMALLINT)
_TINYINT: Final = sqltypes.of(TypeName.TINYINT)
_BIT: Final = sqltypes.of(TypeName.BIT)
_SYSNAME: Final = sqltypes.SYSNAME
_UNDECLARED: Final = (
    ("parameter_ordinal", _INT),
    ("name", _SYSNAME),
    ("suggested_system_type_id", _INT),
    ("suggested_system_type_name", sqltypes.of(TypeName.NVARCHAR, 256)),
    ("suggested_max_length", _SMALLINT),
    ("suggested_precision", _TINYINT),
    ("suggested_scale", _TINYINT),
    ("suggested_user_type_id", _INT),
    ("suggested_user_type_database", _SYSNAME),
    ("suggested_user_type_schema", _SYSNAME),
    ("suggested_user_type_name", _SYSNAME),
    ("suggested_assembly_qualified_type_name", sqltypes.of(TypeName.NVARCHAR, 4000)),
    ("suggested_xml_collection_id", _INT),
    ("suggested_xml_collection_database", _SYSNAME),
    ("suggested_xml_collection_schema", _SYSNAME),
    ("suggested_xml_collection_name", _SYSNAME),
    ("suggested_is_xml_document", _BIT),
    ("suggested_is_case_sensitive", _BIT),
    ("suggested_is_fixed_length_clr_type", _BIT),
    ("suggested_is_input", _BIT),
    ("suggested_is_output", _BIT),
    ("formal_parameter_name", _SYSNAME),
    ("suggested_tds_type_id", _INT),
    ("suggested_tds_length", _INT),
)
"""The columns of the answer [DOC: sp_describe_undeclared_parameters]."""


def _described(ordinal: int, name: str, kind: SqlType) -> tuple[Any, ...]:
    precision, scale = kind.numeric_precision
    return (
        *(ordinal, name, SYSTEM_TYPE_IDS[kind.name], str(kind), kind.max_length, precision, scale),
        *((None,) * 9),
        *(0, 0, 0, 1, 0, None, SYSTEM_TYPE_IDS[kind.name], kind.max_length),
    )


def _domains(session: Session, sql: str, arguments: Sequence[Any], count: int) -> Sequence[str | None]:
    """The types of a query's columns. PostgreSQL's description of a result names the types below the domains, so it is asked.

    What it says of the catalogue is kept: views upon views take longer to plan than to read.
    """
    key = (_NUMBERS_OF_OBJECTS.sub("?", sql), tuple(type(argument) for argument in arguments))
    if (known := _KNOWN.get(key)) is not None:
        return known
    names = [f"c{index}" for index in range(count)]
    typed = ", ".join(f"pg_typeof(q.{name})::oid::bigint" for name in names)
    question = f"SELECT {typed} FROM (SELECT 1) AS one LEFT JOIN (SELECT * FROM ({sql}) AS s LIMIT 0) AS q({', '.join(names)}) ON true"
    row = session.execute(question, arguments).fetchone()
    assert row is not None
    by_oid = session.model.type_names()
    domains = [by_oid.get(oid) for oid in row]
    if _is_of_the_catalogue(sql):
        _KNOWN[key] = domains
    return domains


def _pg_name(oid: int) -> str:
    found = psycopg.adapters.types.get(oid)
    return found.name if found is not None else "text"


def _converted(columns: Sequence[Column], rows: list[Sequence[Any]], text_bytes: int) -> list[Sequence[Any]]:
    converters = [_converter(column.type, text_bytes) for column in columns]
    if not any(converters):
        return rows
    return [
        tuple(
            [
                value if value is None or convert is None else convert(value)
                for value, convert in zip(row, converters, strict=True)
            ]
        )
        for row in rows
    ]


def _converter(kind: SqlType, text_bytes: int) -> Callable[[Any], Any] | None:
    convert, cut = types.to_wire(kind), _cut(kind, text_bytes)
    if convert is None or cut is None:
        return convert or cut
    return lambda value: cut(convert(value))


def _cut(kind: SqlType, text_bytes: int) -> Callable[[Any], Any] | None:
    """SET TEXTSIZE cuts large values without a word [ISS: TablePro #1784]."""
    if not kind.is_large or kind.name is TypeName.XML or not 0 <= text_bytes < TEXT_BYTES_MAX:
        return None
    if kind.name in TEXTS:
        characters = text_bytes // 2 if kind.name in sqltypes.WIDE_TEXTS else text_bytes
        return lambda value: value[:characters]
    return (lambda value: value[:text_bytes]) if kind.name in BINARIES else None
