"""Secrets: values from the environment or a file that are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Self, final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from replicator.observability import MASK, register_secret

SECRET_REFERENCE_PATTERN: Final = r"\$\{(env|file):[^}]+\}"  # noqa: S105 a pattern of references
_REFERENCE: Final = re.compile(SECRET_REFERENCE_PATTERN)
_PASSWORD_IN_ADDRESS: Final = re.compile(r"://[^/?#\s@]*:[^/?#\s]+@")
LITERAL_SECRET: Final = "literal_secret"  # noqa: S105 the code of an error


def is_literal(written: str) -> bool:
    """Return whether a secret, or a part of it, is written out. An address is not all secret, but its password is."""
    left = _REFERENCE.sub("", written).strip()
    return (
        left == written.strip() or (bool(left) and "://" not in left) or _PASSWORD_IN_ADDRESS.search(left) is not None
    )


class Resolved(str):
    """A text in which references have been replaced; `written` is the text of the file, `values` is what each reference stands for."""

    __slots__ = ("values", "written")
    written: str
    values: tuple[str, ...]

    def __new__(cls, value: str, written: str, values: Iterable[str] = ()) -> Self:
        """Create a text that remembers how it was written."""
        self = super().__new__(cls, value)
        self.written, self.values = written, tuple(values)
        return self


@final
class Secret:
    """A password, token or key. Prints, formats and serialises as `***`; `reveal()` gives the value to the driver.

    As a field's type in a plugin's model it accepts references (`${env:NAME}`, `${file:/path}`) and refuses literals. Making one
    registers its value, so that logs and messages mask it.
    """

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = str(value)
        register_secret(self.__value)

    def reveal(self) -> str:
        """Return the value itself. Call it where the value is used, and do not keep the result."""
        return self.__value

    def __repr__(self) -> str:
        """Return `***`."""
        return MASK

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same value."""
        return self.__value == other.__value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        """Return the value's hash: equal secrets have equal hashes; salted by Python, so it reveals nothing to others."""
        return hash(self.__value)

    def __copy__(self) -> Secret:
        """Return the secret itself: secrets are immutable."""
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Secret:
        """Return the secret itself: secrets are immutable."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a pickle would hold the value."""
        raise TypeError("a Secret cannot be pickled")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._from_setting,
            serialization=core_schema.plain_serializer_function_ser_schema(
                str, return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": SECRET_REFERENCE_PATTERN}

    @classmethod
    def _from_setting(cls, value: Any) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, Resolved) or is_literal(value.written):
            raise PydanticCustomError(LITERAL_SECRET, "is a secret and must not be written in the file")
        if not value:
            raise PydanticCustomError("empty_secret", "is empty")
        return cls(value)
