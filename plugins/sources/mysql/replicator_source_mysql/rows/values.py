"""Columns as the server writes them in text rows → canonical Arrow arrays, all rows at once.

`selected` gives the expression that asks for a column, `decoded` decodes the answer, `key_literal` writes a key value
back. The canonical forms are those of `binlog.types`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import UnsupportedTypeError
from replicator_source_mysql.binlog import ColumnSpec, TypeKind
from replicator_source_mysql.binlog.charsets import UTF8, encoded, telling_decoder, tells_all
from replicator_source_mysql.binlog.strings import enum_names, untelling_labels
from replicator_source_mysql.binlog.temporal import days_of
from replicator_source_mysql.binlog.types import Unrepresentable, ambiguous_key
from replicator_source_mysql.connecting.connection import literal, quoted
from replicator_source_mysql.connecting.errors import PACKET_TOO_LARGE, RAISE_PACKET

_AS_NUMBER: Final = frozenset({TypeKind.BIT})
_AS_DOUBLE: Final = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
_DATES: Final = frozenset({TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP})
_TEXTS: Final = frozenset(
    {
        TypeKind.TEXT,
        TypeKind.ENUM,
        TypeKind.SET,
        TypeKind.JSON,
        TypeKind.UUID,
        TypeKind.INET4,
        TypeKind.INET6,
        TypeKind.TIME,
    }
)
_BY_NUMBER: Final = frozenset({TypeKind.ENUM, TypeKind.SET})
_NUMBERS: Final = frozenset({TypeKind.INTEGER, TypeKind.DECIMAL, TypeKind.YEAR, TypeKind.BIT, *_BY_NUMBER})

KEY_KINDS: Final = frozenset(
    {
        TypeKind.INTEGER,
        TypeKind.DECIMAL,
        TypeKind.BIT,
        TypeKind.YEAR,
        TypeKind.DATE,
        TypeKind.TIME,
        TypeKind.DATETIME,
        TypeKind.TIMESTAMP,
        TypeKind.TEXT,
        TypeKind.BYTES,
        TypeKind.ENUM,
        TypeKind.SET,
        TypeKind.UUID,
        TypeKind.INET4,
        TypeKind.INET6,
    }
)
"""Kinds that may be part of a key: FLOAT and DOUBLE are no identities."""


def selected(name: str, spec: ColumnSpec) -> str:
    """The SELECT expression of a column."""
    column = quoted(name)
    if spec.kind in _AS_NUMBER:
        return f"{column} + 0"
    if spec.kind in _AS_DOUBLE:
        # As it is, FLOAT is written with six digits. Adding zero would lose the sign of a negative zero.
        return f"{column} * 1e0"
    return column


def key_expression(name: str, spec: ColumnSpec) -> str:
    """The expression by which a key column is ordered and compared; labels have the order of their numbers."""
    return _number(name) if spec.kind in _BY_NUMBER else quoted(name)


def key_selected(name: str, spec: ColumnSpec) -> str:
    """The SELECT expression that gives a key part's text."""
    if spec.kind in _BY_NUMBER:
        return _number(name)
    if spec.kind is TypeKind.BIT:
        return f"{quoted(name)} + 0"
    if spec.kind is TypeKind.BYTES:
        return f"HEX({quoted(name)})"
    return quoted(name)


def _number(name: str) -> str:
    """The number of labels. Adding zero would make a double of them (MySQL) or a signed number (MariaDB), and a SET may fill 64 bits."""
    return f"CAST({quoted(name)} AS UNSIGNED)"


def key_proof(name: str, spec: ColumnSpec) -> str | None:
    """The SELECT expression that shows whether a key part's values are told apart by their texts; None where all are."""
    if spec.kind is TypeKind.TEXT and not tells_all(spec.charset or ""):
        return f"CAST({quoted(name)} AS BINARY)"
    if (spec.kind is TypeKind.ENUM and None in enum_names(spec.labels, is_key=True)) or (
        spec.kind is TypeKind.SET and untelling_labels(spec.labels)
    ):
        return _number(name)
    return None


def verify_told_apart(values: pa.Array, spec: ColumnSpec, *, name: str) -> None:
    """Look at the answer to `key_proof`.

    Raises:
        UnsupportedTypeError: `ambiguous_key`: a value has a text that another one has too.
        ValueError: A value has not the form of its type.
    """
    if spec.kind is TypeKind.TEXT:
        count = telling_decoder(spec.charset or "")(values).null_count
    else:
        numbers = values.cast(pa.string()).cast(pa.uint64()).to_pylist()
        names, bits = enum_names(spec.labels, is_key=True), untelling_labels(spec.labels)
        is_set = spec.kind is TypeKind.SET
        count = sum(bool(number & bits) if is_set else names[number] is None for number in numbers)
    if count:
        raise ambiguous_key(name, count, len(values))


def key_literal(text: str, spec: ColumnSpec) -> str:
    """A key part's text as a literal.

    Raises:
        ValueError: It is no number where it must be one.
    """
    if spec.kind in _NUMBERS:
        if not (text.isascii() and text.removeprefix("-").replace(".", "", 1).isdigit()):
            raise ValueError("a cursor is not a number")
        return text
    if spec.kind is TypeKind.BYTES:
        return f"x'{bytes.fromhex(text).hex()}'"
    return literal(text)


def key_condition(name: str, spec: ColumnSpec, text: str) -> str:
    """The condition that a key part is a value, as `kit.cursors.cursors` spells it.

    Raises:
        ValueError: There is no such value.
    """
    if spec.kind in _BY_NUMBER:
        return f"{key_expression(name, spec)} = {_number_of(text, spec)}"
    return f"{quoted(name)} = {value_literal(text, spec)}"


def value_literal(text: str, spec: ColumnSpec) -> str:
    """A key part that is no label, as `kit.cursors.cursors` spells it, as a literal.

    Raises:
        ValueError: There is no such value.
    """
    if pa.types.is_boolean(spec.arrow):
        return str(("false", "true").index(text))
    if spec.kind is TypeKind.TEXT and spec.charset is not None:
        # By its bytes: to a text that the set lacks the servers answer with errors that have other reasons, too.
        raw = encoded(text, spec.charset)
        return literal(text) if spec.charset in UTF8 else f"_{spec.charset} x'{raw.hex()}'"
    if spec.kind is TypeKind.TIMESTAMP:
        text = text.removesuffix("Z")
    elif spec.kind is TypeKind.BYTES:
        text = text.removeprefix("\\x")
    return key_literal(text, spec)


def _number_of(text: str, spec: ColumnSpec) -> int:
    """The number of a label, or of those of a SET."""
    if spec.kind is TypeKind.ENUM:
        return enum_names(spec.labels, is_key=True).index(text)
    labels = list(spec.labels)
    return sum(1 << labels.index(label) for label in (text.split(",") if text else ()))


def decoded(values: pa.Array, spec: ColumnSpec, *, name: str, unrepresentable: Unrepresentable) -> pa.Array:
    """A column's values in their canonical type.

    Raises:
        UnsupportedTypeError: A value is outside of it, and `unrepresentable` is fail.
        ValueError: A value has not the form of its type.
    """
    if spec.kind in _DATES:
        return _dates(values, spec, name, unrepresentable)
    if values.type.equals(spec.arrow):
        return values
    if spec.kind is TypeKind.JSON and pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
        # No JSON is empty: the server sends so, and tells nobody but itself, what is longer than it may send.
        raise UnsupportedTypeError(
            f"Column {name}: the text of a JSON value is longer than the server's max_allowed_packet.",
            code=PACKET_TOO_LARGE,
            action=RAISE_PACKET,
        )
    if spec.kind in _TEXTS:
        return _texts(values, name, unrepresentable)
    try:
        texts = values.cast(pa.string())
        if spec.kind is TypeKind.FLOAT:
            return texts.cast(pa.float64()).cast(pa.float32(), safe=False)
        if pa.types.is_boolean(spec.arrow):
            return pc.equal(texts, "1")
        return texts.cast(spec.arrow)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name}: a value is not a valid {spec.kind}") from error


def _texts(values: pa.Array, name: str, unrepresentable: Unrepresentable) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        # Servers of old have let text in that is none, and UCS-2 has surrogates.
        texts = pa.array([None if raw is None else _text(raw) for raw in values.to_pylist()], pa.string())
        lost = texts.null_count - values.null_count
    if unrepresentable == "fail":
        raise UnsupportedTypeError(
            f"Column {name}: {lost} of {len(values)} values are invalid text in their character set.",
            code="unrepresentable_value",
            action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
        )
    return texts


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _dates(values: pa.Array, spec: ColumnSpec, name: str, unrepresentable: Unrepresentable) -> pa.Array:
    texts = values.cast(pa.string())
    # No zone is written; what is cast is naive, and TIMESTAMP was selected in UTC.
    naive = pa.date32() if spec.kind is TypeKind.DATE else pa.timestamp("us")
    try:
        cast = texts.cast(naive)
    except pa.ArrowInvalid:
        unheld = _unheld(texts)
        lost = int(unheld.sum())
        if lost and unrepresentable == "fail":
            raise UnsupportedTypeError(
                f"Column {name}: {lost} of {len(values)} values are zero, partial or impossible dates.",
                code="unrepresentable_value",
                action="Fix the values, exclude the table, or set `source.unrepresentable: null`.",
            ) from None
        cast = pc.if_else(pa.array(unheld), pa.scalar(None, pa.string()), texts).cast(naive)
    return cast.cast(spec.arrow) if spec.kind is TypeKind.TIMESTAMP else cast


def _unheld(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the texts that are zero, partial or impossible dates, by the rule that holds for the log.

    Python's own dates know no year 0.
    """
    year, month, day = (
        pc.utf8_slice_codeunits(texts, start, stop).cast(pa.int64()).fill_null(1).to_numpy()
        for start, stop in ((0, 4), (5, 7), (8, 10))
    )
    _, unheld = days_of(year, month, day)
    return np.zeros(len(texts), bool) if unheld is None else unheld
