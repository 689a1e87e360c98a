"""Scopes of the REST API's tokens."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Scope of a token. Each scope includes those before it."""

    READ = "read"
    OPERATE = "operate"
    CONFIGURE = "configure"

    def includes(self, other: Scope) -> bool:
        """Return whether this scope allows everything that `other` allows."""
        order = list(Scope)
        return order.index(self) >= order.index(other)
