"""What a caller of the REST API may do."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """How much a token allows. Each allows what those before it do."""

    READ = "read"
    OPERATE = "operate"
    CONFIGURE = "configure"

    def includes(self, other: Scope) -> bool:
        """Whether what `other` allows is allowed, too."""
        order = list(Scope)
        return order.index(self) >= order.index(other)
