"""Keeps registered secrets out of everything that is logged, stored or shown."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
# Masking shorter values wherever they occur would make logs unreadable without hiding anything that is worth guessing.
SHORTEST_MASKED: Final = 4
# Single lines of a key file are masked too, because drivers quote the line they cannot read.
_SHORTEST_MASKED_LINE: Final = 8

_SENSITIVE_NAME = re.compile(
    r"pass(word|wd|phrase)|(^|[._-])(pw|pwd)($|[._-])|secret|token|credential|private.?key|access.?key|api.?key|account.?key",
    re.IGNORECASE,
)


class Redactor:
    """The secrets of this process in every spelling."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: tuple[str, ...] = ()

    def register(self, value: str) -> None:
        """Mask every spelling of `value` from now on."""
        with self._lock:
            texts = _spellings(value).union(self._ordered)
            # Longest first: a secret that contains another one disappears as a whole.
            self._ordered = tuple(sorted(texts, key=lambda text: (-len(text), text)))

    def redact(self, text: str) -> str:
        """Return `text` without the registered secrets."""
        for secret in self._ordered:
            if secret in text:
                text = text.replace(secret, MASK)
        return text


_redactor = Redactor()


def register_secret(value: str) -> None:
    """Have `value` shown as `***` by `redact` and in every log line of this process from now on.

    Its URL-quoted, `repr` and JSON spellings are masked too, and the long lines of a value with several. Values shorter than
    four characters are not. Thread-safe; repeating it does nothing.
    """
    _redactor.register(value)


def redact(text: str) -> str:
    """Return `text` with every registered secret replaced by `***`."""
    return _redactor.redact(text)


def redact_value(value: Any) -> Any:  # noqa: PLR0911 one table of cases
    """Return `value` made of JSON's types, with every registered secret replaced; unknown objects become their redacted text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return redact_value(value.value)
    if isinstance(value, int | float):
        return value if redact(str(value)) == str(value) else MASK
    if isinstance(value, str):
        return redact(str(value))
    if isinstance(value, datetime | date):
        return redact(value.isoformat())
    if isinstance(value, bytes | bytearray | memoryview):
        return redact(bytes(value).decode("utf-8", "backslashreplace"))
    if isinstance(value, Mapping):
        return redact_mapping(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(item) for item in value]
    return redact(str(value))


def redact_mapping(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields redacted; those with a name such as `password` or `api_key` are hidden whatever their value."""
    return {
        redact(str(key)): MASK if value is not None and is_sensitive_name(str(key)) else redact_value(value)
        for key, value in fields.items()
    }


def is_sensitive_name(name: str) -> bool:
    """Return whether a setting or log field of this name most likely holds a secret."""
    return _SENSITIVE_NAME.search(name) is not None


def _spellings(value: str) -> frozenset[str]:
    lines = [line.strip() for line in value.splitlines()]
    texts = [value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_MASKED_LINE)]
    return frozenset(text for text in _quoted(texts) if len(text) >= SHORTEST_MASKED)


def _quoted(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        # Lone surrogates (undecodable bytes of an environment variable) have no URL-quoted form but this one.
        yield from (quote(text, safe="", errors="surrogatepass"), quote(text, errors="surrogatepass"))
        yield quote_plus(text, errors="surrogatepass")
