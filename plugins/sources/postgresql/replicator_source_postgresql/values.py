"""Decode columns of values: bytes in the wire's forms → canonical Arrow arrays, all rows at once.

A decoder takes a binary array and returns the decoded array with the number of values that its type cannot hold,
which are null in it. Bytes that are no value of the type raise ValueError. Fast paths are Arrow's casts and numpy;
only exceptional values (BC dates, quoted array elements, …) are looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.arrow import Bools, Longs, binary_array
from replicator.plugins.kit.calendar import civil_from_days, days_from_civil

Decoder = Callable[[pa.Array], tuple[pa.Array, int]]

_EPOCH_DAYS: Final = 10_957  # 1970-01-01 → 2000-01-01, PostgreSQL's epoch
_DAY_US: Final = 86_400_000_000
_INT64: Final = np.iinfo(np.int64)
_INT32: Final = np.iinfo(np.int32)


# ---- strings and bytes ----


def text(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode UTF-8 text; a text that is not UTF-8 cannot be held."""
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        texts = [None if value is None else _utf8(value) for value in values.to_pylist()]
        decoded = pa.array(texts, pa.string())
        return decoded, decoded.null_count - values.null_count


def raw_bytes(values: pa.Array) -> tuple[pa.Array, int]:
    """Return bytes as they are."""
    return values, 0


def hex_bytes(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode `bytea_output = hex`: a backslash, an x, two digits per byte."""
    if values.null_count == len(values):
        return values, 0
    lengths, data = _contents(values.drop_null())
    starts = np.cumsum(lengths) - lengths
    if (
        (lengths < len(_HEX_PREFIX)).any()
        or (lengths % 2).any()
        or (data[starts] != _HEX_PREFIX[0]).any()
        or (data[starts + 1] != _HEX_PREFIX[1]).any()
    ):
        raise ValueError("not the hexadecimal form of bytea")
    keep = np.ones(len(data), bool)
    keep[starts] = False
    keep[starts + 1] = False
    digits = _HEX_VALUES[data[keep]]
    if (digits == _NO_DIGIT).any():
        raise ValueError("not the hexadecimal form of bytea")
    content = ((digits[0::2] << 4) | digits[1::2]).astype(np.uint8)
    sizes = np.zeros(len(values), np.int64)
    valid = _valid(values)
    sizes[valid] = (lengths - 2) // 2
    return binary_array(sizes, content, valid), 0


_HEX_PREFIX: Final = b"\\x"
_NO_DIGIT: Final = 255
_HEX_VALUES: Final = np.full(256, _NO_DIGIT, np.uint8)
for _digit in "0123456789abcdef":
    _HEX_VALUES[ord(_digit)] = int(_digit, 16)


# ---- numbers and booleans ----


def parsed(arrow: pa.DataType) -> Decoder:
    """Return a decoder of numbers whose text Arrow itself parses."""

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        return values.view(pa.string()).cast(arrow), 0

    return decode


def integer_binary(wire: str, arrow: pa.DataType) -> Decoder:
    """Return a decoder of numbers of fixed size in network order; `wire` is numpy's spelling (`>i4`)."""

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        return _scatter(_fixed(values, wire), values, arrow), 0

    return decode


def boolean(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode `t` and `f`."""
    return _boolean(values, ord("t"), ord("f"))


def boolean_binary(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode one byte, 1 or 0."""
    return _boolean(values, 1, 0)


def _boolean(values: pa.Array, true: int, false: int) -> tuple[pa.Array, int]:
    data = _fixed(values, "u1")
    truths = data == true
    if (~truths & (data != false)).any():
        raise ValueError("not a boolean")
    return _scatter(truths, values, pa.bool_()), 0


def decimal(arrow: pa.DataType) -> Decoder:
    """Return a decoder of numeric(p,s); NaN and infinities cannot be held."""

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        texts = values.view(pa.string())
        try:
            return texts.cast(arrow), 0
        except pa.ArrowInvalid:
            texts, unheld = _without(texts, pc.is_in(texts, _NOT_FINITE))
            return texts.cast(arrow), unheld

    return decode


_NOT_FINITE: Final = pa.array(["NaN", "Infinity", "-Infinity"])


# ---- dates and times ----


def date(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode `2024-02-29`, `0044-03-15 BC`, `20240-01-01`; infinities cannot be held."""
    texts = values.view(pa.string())
    try:
        return texts.cast(pa.date32()), 0
    except pa.ArrowInvalid:
        return _by_exception(
            texts, pc.match_substring_regex(texts, r"^\d{4}-\d{2}-\d{2}$"), pa.date32(), pa.int32(), _date_days
        )


def date_binary(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode days since 2000 as int32; its extremes are the infinities."""
    days = _fixed(values, ">i4").astype(np.int64)
    infinite = (days == _INT32.max) | (days == _INT32.min)
    days[infinite] = 0
    return _scatter((days + _EPOCH_DAYS).astype(np.int32), values, pa.int32(), infinite).view(pa.date32()), int(
        infinite.sum()
    )


def timestamp(arrow: pa.DataType) -> Decoder:
    """Return a decoder of `2024-02-29 12:00:00.5`, with `+00` for timestamptz; BC and years beyond 9999 exactly, but no infinities."""
    pattern = r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?" + (r"\+00$" if arrow.tz else "$")

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        texts = values.view(pa.string())
        try:
            return texts.cast(arrow), 0
        except pa.ArrowInvalid:
            return _by_exception(texts, pc.match_substring_regex(texts, pattern), arrow, pa.int64(), _timestamp_us)

    return decode


def timestamp_binary(arrow: pa.DataType) -> Decoder:
    """Return a decoder of microseconds since 2000 as int64; its extremes are the infinities, and its last decades do not fit since 1970."""

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        moments = _fixed(values, ">i8").astype(np.int64)
        unheld = (moments > _INT64.max - _EPOCH_DAYS * _DAY_US) | (moments == _INT64.min)
        moments[unheld] = 0
        return _scatter(moments + _EPOCH_DAYS * _DAY_US, values, pa.int64(), unheld).view(arrow), int(unheld.sum())

    return decode


def time(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode `23:59:59.999999`; `24:00:00` cannot be held."""
    texts = values.view(pa.string())
    midnight = pc.equal(texts, "24:00:00")
    texts, unheld = _without(texts, midnight) if pc.any(midnight).as_py() else (texts, 0)
    moments = pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("us"))
    return moments.view(pa.int64()).view(pa.time64("us")), unheld


def time_binary(values: pa.Array) -> tuple[pa.Array, int]:
    """Decode microseconds since midnight as int64."""
    moments = _fixed(values, ">i8").astype(np.int64)
    if ((moments < 0) | (moments > _DAY_US)).any():
        raise ValueError("not a time of day")
    midnight = moments == _DAY_US
    return _scatter(moments, values, pa.int64(), midnight).view(pa.time64("us")), int(midnight.sum())


_DATE: Final = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?")
_TIMESTAMP: Final = re.compile(r"(\d{4,6}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?( BC)?")
_INFINITIES: Final = ("infinity", "-infinity")


def _date_days(date_text: str) -> int | None:
    if date_text in _INFINITIES:
        return None
    match = _DATE.fullmatch(date_text)
    if match is None:
        raise ValueError("not a date")
    year = int(match[1])
    return days_from_civil(1 - year if match[4] else year, int(match[2]), int(match[3]))


def _timestamp_us(moment: str) -> int | None:
    if moment in _INFINITIES:
        return None
    match = _TIMESTAMP.fullmatch(moment)
    days = _date_days(match[1] + (match[6] or "")) if match else None
    if match is None or days is None:
        raise ValueError("not a timestamp")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    us = days * _DAY_US + seconds * 1_000_000 + int((match[5] or "").ljust(6, "0"))
    return us if _INT64.min <= us <= _INT64.max else None


# ---- arrays ----


def array(arrow: pa.DataType, element: Decoder, delimiter: str) -> Decoder:
    """Return a decoder of one-dimensional arrays from index 1, as lists; no others can be held. An element that cannot becomes null."""
    list_type = pa.list_(arrow)

    def decode(values: pa.Array) -> tuple[pa.Array, int]:
        special = pc.match_substring_regex(values, r'["\\\[]|^\{.*[{]|[^}]$|^[^{]')
        if not pc.any(special).as_py():
            return _plain_lists(values, element, delimiter)
        plain, unheld = _plain_lists(pc.if_else(special, pa.scalar(None, pa.binary()), values), element, delimiter)
        positions = np.flatnonzero(special.fill_null(False).to_numpy(zero_copy_only=False))
        parts = [_array_elements(value, delimiter) for value in values.take(pa.array(positions)).to_pylist()]
        flat, unheld_elements = element(pa.array([e for part in parts if part is not None for e in part], pa.binary()))
        ends = np.cumsum([0] + [len(part or ()) for part in parts])
        lists = pa.ListArray.from_arrays(
            pa.array(ends.astype(np.int32)), flat, mask=pa.array([part is None for part in parts])
        )
        order = np.arange(len(values), dtype=np.int64)
        order[positions] = len(values) + np.arange(len(positions))
        both = pa.concat_arrays([plain.cast(list_type), lists.cast(list_type)])
        return both.take(pa.array(order)), unheld + unheld_elements + sum(part is None for part in parts)

    return decode


def _plain_lists(values: pa.Array, element: Decoder, delimiter: str) -> tuple[pa.Array, int]:
    """Decode values that hold no quotes, escapes or inner braces: `{1,NULL,3}`."""
    inner = pc.binary_slice(values, 1, -1)
    lists = pc.split_pattern(inner, delimiter.encode())
    counts = (
        pc.if_else(pc.equal(pc.binary_length(inner), 0), 0, pc.list_value_length(lists))
        .fill_null(0)
        .to_numpy(zero_copy_only=False)
    )
    flat = lists.filter(pc.greater(pc.binary_length(inner), 0)).flatten()
    flat = pc.if_else(pc.equal(flat, b"NULL"), pa.scalar(None, pa.binary()), flat)
    decoded, unheld = element(flat)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    mask = pa.array(~_valid(values)) if values.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), decoded, mask=mask), unheld


def _array_elements(value: bytes, delimiter: str) -> list[bytes | None] | None:
    """Split one array's text into its elements; None if it has several dimensions or another lower bound than 1."""
    if value.startswith(b"["):
        return None
    if not (value.startswith(b"{") and value.endswith(b"}")):
        raise ValueError("not an array")
    elements: list[bytes | None] = []
    position, last = 1, len(value) - 1
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|((?:[^"\\{}' + re.escape(delimiter.encode()) + rb"]|\\.)+)", re.DOTALL)
    while position < last:
        if value[position : position + 1] == b"{":
            return None
        match = token.match(value, position, last)
        if match is None:
            raise ValueError("not an array")
        quoted, bare = match.groups()
        if quoted is None and bare.upper() == b"NULL":
            elements.append(None)
        else:
            elements.append(re.sub(rb"\\(.)", rb"\1", bare if quoted is None else quoted, flags=re.DOTALL))
        position = match.end()
        if position < last:
            if value[position : position + 1] != delimiter.encode():
                raise ValueError("not an array")
            position += 1
    return elements


# ---- keys as text ----


def key_text(values: pa.Array) -> list[str]:
    """Return canonical values as texts that PostgreSQL reads back exactly."""
    kind = values.type
    if pa.types.is_binary(kind):
        return ["\\x" + value.hex() for value in values.to_pylist()]
    if pa.types.is_boolean(kind):
        return ["t" if value else "f" for value in values.to_pylist()]
    if pa.types.is_date(kind):
        return [_date_text(days) for days in values.view(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(kind):
        return [_timestamp_text(us, "+00" if kind.tz else "") for us in values.view(pa.int64()).to_pylist()]
    if pa.types.is_time(kind):
        return [_time_text(us) for us in values.view(pa.int64()).to_pylist()]
    if pa.types.is_decimal(kind):
        return [format(value, "f") for value in values.to_pylist()]
    return [str(value) for value in values.to_pylist()]


def _date_text(days: int, suffix: str = "") -> str:
    year, month, day = civil_from_days(days)
    era = " BC" if year <= 0 else ""
    return f"{1 - year if year <= 0 else year:04d}-{month:02d}-{day:02d}{suffix}{era}"


def _timestamp_text(us: int, zone: str) -> str:
    days, rest = divmod(us, _DAY_US)
    return _date_text(days, f" {_time_text(rest)}{zone}")


def _time_text(us: int) -> str:
    seconds, fraction = divmod(us, 1_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


# ---- building blocks ----


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _valid(values: pa.Array) -> Bools:
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _contents(values: pa.Array) -> tuple[Longs, npt.NDArray[np.uint8]]:
    """Return lengths and joined bytes of a binary array without nulls."""
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return np.diff(offsets), data[offsets[0] : offsets[-1]]


def _fixed(values: pa.Array, wire: str) -> npt.NDArray[Any]:
    """Return the non-null values as numbers of fixed size."""
    if len(values) == values.null_count:
        return np.zeros(0, wire)
    lengths, data = _contents(values.drop_null() if values.null_count else values)
    if (lengths != np.dtype(wire).itemsize).any():
        raise ValueError("a value does not have its type's size")
    return np.frombuffer(data.tobytes(), wire)


def _scatter(numbers: npt.NDArray[Any], values: pa.Array, arrow: pa.DataType, unheld: Bools | None = None) -> pa.Array:
    """Put the numbers of the non-null values back at their indexes, null where `unheld`."""
    native = numbers.astype(numbers.dtype.newbyteorder("="))
    if not values.null_count:
        return pa.array(native, arrow, mask=unheld if unheld is not None and unheld.any() else None)
    valid = _valid(values)
    spread = np.zeros(len(values), native.dtype)
    spread[valid] = native
    mask = ~valid
    if unheld is not None:
        mask[np.flatnonzero(valid)[unheld]] = True
    return pa.array(spread, arrow, mask=mask)


def _without(texts: pa.Array, unheld: pa.Array) -> tuple[pa.Array, int]:
    return pc.if_else(unheld, pa.scalar(None, texts.type), texts), pc.sum(unheld).as_py() or 0


def _by_exception(
    texts: pa.Array, plain: pa.Array, arrow: pa.DataType, storage: pa.DataType, parse: Callable[[str], int | None]
) -> tuple[pa.Array, int]:
    """Cast plain texts at once, and parse the others one by one; None from `parse` means that the value cannot be held."""
    decoded = pc.if_else(plain, texts, pa.scalar(None, pa.string())).cast(arrow).view(storage)
    positions = np.flatnonzero(~plain.fill_null(True).to_numpy(zero_copy_only=False))
    exceptional: Sequence[int | None] = [parse(value) for value in texts.take(pa.array(positions)).to_pylist()]
    mask = np.zeros(len(texts), bool)
    mask[positions] = True
    replaced = pc.replace_with_mask(decoded, pa.array(mask), pa.array(exceptional, storage))
    return replaced.view(arrow), sum(value is None for value in exceptional)
