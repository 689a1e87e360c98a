"""Masks as functions of Arrow arrays. NULL stays NULL; what does not fit is refused, never passed on in the clear."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.config.masks import DateUnit, Mask, MaskFunction
from replicator.projection.texts import plain_texts

REDACTED: Final = "***"
_HEX_DIGITS: Final = 64
_UNITS: Final[Mapping[DateUnit, str]] = {"year": "Y", "month": "M", "day": "D"}
_DECIMAL_128: Final = 38
_DECIMAL_256: Final = 76
_EXACT: Final = Context(prec=200)


class MaskDoesNotFitError(ValueError):
    """A mask cannot be used for a type, or for a value of it. The message has no value in it."""


def masked_type(mask: Mask, kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's masked values.

    Raises:
        MaskDoesNotFitError: The function cannot be used for this type.
    """
    match mask.function:
        case MaskFunction.SHA256 | MaskFunction.HMAC:
            if pa.types.is_list(kind):
                raise MaskDoesNotFitError("cannot be used for arrays")
            return pa.string()
        case MaskFunction.REDACT | MaskFunction.NULL:
            return kind
        case MaskFunction.LAST:
            if not pa.types.is_string(kind):
                raise MaskDoesNotFitError("can only be used for text")
            return kind
        case MaskFunction.DATE:
            if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
                raise MaskDoesNotFitError("can only be used for dates and timestamps")
            return kind
        case MaskFunction.BUCKET:
            return _bucket_type(mask.number, kind)
        case MaskFunction.CLEAR:
            return kind


def masked(values: pa.Array, mask: Mask) -> pa.Array:
    """Return the masked values.

    Args:
        values: Of a type for which `masked_type` finds the function fit.
        mask: The function.

    Raises:
        MaskDoesNotFitError: The result has no room in its type.
    """
    match mask.function:
        case MaskFunction.SHA256:
            return _digests(plain_texts(values), lambda text: hashlib.sha256(text).digest())
        case MaskFunction.HMAC:
            assert mask.key is not None, "hmac has a key"
            digests = _digests(plain_texts(values), _keyed(mask.key.reveal().encode()))
            return digests if mask.key_id is None else pc.binary_join_element_wise(f"{mask.key_id}:", digests, "")
        case MaskFunction.REDACT if pa.types.is_string(values.type):
            return pc.if_else(pc.is_valid(values), REDACTED, pa.scalar(None, pa.string()))
        case MaskFunction.REDACT | MaskFunction.NULL:
            return pa.nulls(len(values), values.type)
        case MaskFunction.LAST:
            return _last(values, mask.number)
        case MaskFunction.DATE:
            return _first(values, mask.unit)
        case MaskFunction.BUCKET:
            return _buckets(values, mask.number)
        case MaskFunction.CLEAR:
            return values


def _digests(texts: pa.Array, digest: Callable[[memoryview], bytes]) -> pa.Array:
    """Return the hex digits of each text's digest."""
    count = len(texts)
    if texts.null_count == count:
        return pa.nulls(count, pa.string())
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + count + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    digits = b"".join([digest(view[start:end]) for start, end in pairwise(bounds)]).hex().encode()
    ends = np.arange(0, (count + 1) * _HEX_DIGITS, _HEX_DIGITS, dtype=np.int32)
    found = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(digits))
    return found if not texts.null_count else pc.if_else(pc.is_valid(texts), found, pa.scalar(None, pa.string()))


def _keyed(key: bytes) -> Callable[[memoryview], bytes]:
    """Return HMAC-SHA-256 with a key. The state after the key is copied, which takes half the time of a call of `hmac.digest`."""
    begun = hmac.new(key, digestmod="sha256")

    def digest(text: memoryview) -> bytes:
        state = begun.copy()
        state.update(text)
        return state.digest()

    return digest


def _last(values: pa.Array, count: int) -> pa.Array:
    def stars(texts: pa.Array) -> pa.Array:
        return pc.binary_repeat("*", pc.utf8_length(texts))

    hidden = stars(pc.utf8_slice_codeunits(values, start=0, stop=-count))
    shown = pc.utf8_slice_codeunits(values, start=-count)
    is_longer = pc.greater(pc.utf8_length(values), count)
    return pc.if_else(is_longer, pc.binary_join_element_wise(hidden, shown, ""), stars(values))


def _first(values: pa.Array, unit: DateUnit) -> pa.Array:
    """Return the first moment of each year, month or day. Arrow's own function is wrong from the year 32768 on."""
    kind = values.type
    step = "D" if pa.types.is_date(kind) else kind.unit
    stored = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    whole = np.asarray(pc.fill_null(values.cast(stored).cast(pa.int64()), 0), np.int64).view(f"M8[{step}]")
    first = whole.astype(f"M8[{_UNITS[unit]}]").astype(f"M8[{step}]")
    found = first.view(np.int64)
    limit = np.iinfo(np.int32 if stored == pa.int32() else np.int64).min
    if bool(((first > whole) | (found < limit)).any()):
        raise MaskDoesNotFitError("gives a moment that is too early for its type")
    return pa.array(found, pa.int64(), mask=np.asarray(pc.is_null(values))).cast(stored).cast(kind)


def _bucket_type(size: int, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return kind
    if not pa.types.is_decimal(kind):
        raise MaskDoesNotFitError("can only be used for numbers")
    whole = max(kind.precision - kind.scale, len(str(size))) + 1
    precision = whole + kind.scale
    if precision > _DECIMAL_256:
        raise MaskDoesNotFitError(f"cannot be used for decimals of {kind.precision} digits")
    return (pa.decimal128 if precision <= _DECIMAL_128 else pa.decimal256)(precision, kind.scale)


def _buckets(values: pa.Array, size: int) -> pa.Array:
    kind = _bucket_type(size, values.type)
    is_null = np.asarray(pc.is_null(values))
    if pa.types.is_decimal(values.type):
        return pa.array([_bucket(value, size) for value in values.to_pylist()], kind)
    if pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(values, 0.0), np.float64)
        with np.errstate(invalid="ignore"):
            found = np.where(np.isfinite(numbers), np.floor(numbers / size) * size, numbers)
        return pa.array(found, pa.float64(), mask=is_null).cast(kind)
    whole = np.asarray(pc.fill_null(values.cast(pa.int64()), 0), np.int64)
    found = (whole // size) * size
    if bool((found > whole).any()):
        raise MaskDoesNotFitError("gives a number that is too small for its type")
    return pa.array(found, kind, mask=is_null)


def _bucket(value: Decimal | None, size: int) -> Decimal | None:
    if value is None:
        return None
    step = Decimal(size)
    quotient = _EXACT.divide_int(value, step)
    if value < 0 and _EXACT.multiply(quotient, step) != value:
        quotient -= 1
    return _EXACT.multiply(quotient, step)
