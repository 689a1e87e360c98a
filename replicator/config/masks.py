"""Masks of columns, as a configuration names them: `sha256`, `hmac(${env:KEY})`, `last(4)` and others."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, cast, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from replicator.config.secrets import LITERAL_SECRET, Resolved, Secret

KEY_BYTES_MIN: Final = 16
DateUnit = Literal["year", "month", "day"]
_NUMBER_MAX: Final = 10**18
MASK_HELP: Final = (
    "Write sha256, hmac(${env:KEY}), redact, last(4), date(year), date(month), date(day), bucket(10), null or clear."
)
_CALL: Final = re.compile(r"\s*([A-Za-z0-9_]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FINGERPRINTED: Final = b"replicator: which key is it"


class MaskFunction(StrEnum):
    """What becomes of the values of a column."""

    SHA256 = "sha256"
    HMAC = "hmac"
    REDACT = "redact"
    LAST = "last"
    DATE = "date"
    BUCKET = "bucket"
    NULL = "null"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A function with its arguments.

    Attributes:
        function: Which one.
        number: Of `last` the characters that stay; of `bucket` the size of a bucket. From 1.
        unit: Of `date`.
        key: Of `hmac`.
        key_id: Of `hmac`: stands before the digest, as `id:`; None: nothing does.
        former_key: Of `hmac`: the key that this one replaces.
    """

    function: MaskFunction
    number: int = 0
    unit: DateUnit = "day"
    key: Secret | None = None
    key_id: str | None = None
    former_key: Secret | None = None

    def __str__(self) -> str:
        """Return the function as people may see it, without keys."""
        match self.function:
            case MaskFunction.LAST | MaskFunction.BUCKET:
                return f"{self.function.value}({self.number})"
            case MaskFunction.DATE:
                return f"date({self.unit})"
            case MaskFunction.HMAC if self.key_id is not None:
                return f"hmac(id={self.key_id})"
        return self.function.value

    @property
    def fingerprint(self) -> str | None:
        """Return 16 hex digits that tell whether a later key is the same; None: it has no key."""
        return None if self.key is None else _fingerprint(self.key)

    @property
    def former_fingerprint(self) -> str | None:
        """Return the fingerprint of the key that this one replaces; None: none is named."""
        return None if self.former_key is None else _fingerprint(self.former_key)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._from_setting,
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": ["string", "null"]}

    @classmethod
    def _from_setting(cls, value: Any) -> Mask:
        if isinstance(value, Mask):
            return value
        if value is None:
            return cls(function=MaskFunction.NULL)
        if not isinstance(value, str):
            raise PydanticCustomError("mask", "is not a mask")
        try:
            # The structure is read from the text of the file: a key may have commas and brackets in it.
            written, keys = (value.written, list(value.values)) if isinstance(value, Resolved) else (str(value), [])
            return _parsed(written, keys)
        except LiteralKeyError:
            raise PydanticCustomError(LITERAL_SECRET, "has a key that is written out") from None
        except ValueError as error:
            raise PydanticCustomError("mask", "{reason}", {"reason": str(error)}) from None


class LiteralKeyError(ValueError):
    """A key is written out."""


def _parsed(written: str, keys: list[str]) -> Mask:
    call = _CALL.fullmatch(written)
    if call is None or call[1].lower() not in [*MaskFunction]:
        if keys:
            raise ValueError("must name a function; only the key of hmac may be a reference.")
        raise ValueError("is not the name of a mask.")
    function = MaskFunction(call[1].lower())
    arguments = [] if call[2] is None else [part.strip() for part in call[2].split(",")]
    if function is MaskFunction.HMAC:
        return _hmac(arguments, keys)
    if keys:
        raise ValueError(f"must have no reference: {function.value} takes no key.")
    match function:
        case MaskFunction.LAST | MaskFunction.BUCKET:
            if len(arguments) != 1 or not re.fullmatch(r"\d{1,18}", arguments[0]) or int(arguments[0]) < 1:
                raise ValueError(f"must give {function.value} one whole number from 1.")
            return Mask(function=function, number=int(arguments[0]))
        case MaskFunction.DATE:
            if len(arguments) != 1 or arguments[0] not in get_args(DateUnit):
                raise ValueError("must give date one of year, month and day.")
            return Mask(function=function, unit=cast("DateUnit", arguments[0]))
    if arguments and arguments != [""]:
        raise ValueError(f"must give {function.value} no argument.")
    return Mask(function=function)


def _hmac(arguments: Sequence[str], keys: list[str]) -> Mask:
    named: dict[str, str] = {}
    for position, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if _REFERENCE.fullmatch(argument) or not equals:
            name, text = "key", argument
        name, text = name.strip(), text.strip()
        if name not in ("key", "id", "was") or name in named or (name == "key" and position > 0):
            raise ValueError("must give hmac a key, and after it at most id=… and was=….")
        named[name] = text
    if not named.get("key"):
        raise ValueError("must give hmac a key.")
    if not all(_REFERENCE.fullmatch(named[name]) for name in ("key", "was") if name in named):
        raise LiteralKeyError
    if "id" in named and not _KEY_ID.fullmatch(named["id"]):
        raise ValueError("must have an id of letters, digits, `_`, `.` and `-`, at most 64 of them.")
    # References stand in the order of the text.
    values = dict(zip((name for name in named if name != "id"), keys, strict=True))
    for name, value in values.items():
        if len(value.encode()) < KEY_BYTES_MIN:
            what = "key" if name == "key" else "former key"
            raise ValueError(f"must have a {what} of at least {KEY_BYTES_MIN} bytes.")
    return Mask(
        function=MaskFunction.HMAC,
        key=Secret(values["key"]),
        key_id=named.get("id"),
        former_key=Secret(values["was"]) if "was" in values else None,
    )


def _fingerprint(key: Secret) -> str:
    return hmac.digest(key.reveal().encode(), _FINGERPRINTED, hashlib.sha256).hex()[:16]
