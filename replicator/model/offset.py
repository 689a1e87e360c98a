"""Positions in a source's log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in the source's log, opaque to all code except that source's.

    `text` is canonical JSON. The host compares offsets for equality only.
    """

    text: str

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Offset:
        """Make an offset from a JSON object."""
        return cls(json.dumps(value, sort_keys=True, separators=(",", ":")))

    @property
    def value(self) -> dict[str, Any]:
        """Return the JSON object inside."""
        value = json.loads(self.text)
        assert isinstance(value, dict)
        return value

    def __str__(self) -> str:
        return self.text
