"""By what a source tells that a table is still the same table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The storage that a TRUNCATE made, before the catalogue has named it. `by`: id of its transaction, None if unknown."""

    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """What changes when a table becomes another object, gets other storage, or is published in another way.

    Attributes:
        object: Id of the table that a rewrite or a TRUNCATE keeps (PostgreSQL: oid); None if the source has none.
        storage: Id of the storage of its rows, which a TRUNCATE changes; None if the source has none. Only the host says `Truncated`,
            in what it has accepted. Storage of partitions belongs in `parts`: they may lose rows without a trace.
        parts: What else must stay as it is, as JSON. A part with a new name is learned, so a plugin may add some.
        altered: What every statement that gives the table other storage changes, but TRUNCATE does not (MySQL: when it was created
            or altered); None if the source has none. Other storage after a TRUNCATE is explained if this stayed. Two identities
            that differ in it alone are equal.
    """

    object: str | None = None
    storage: str | Truncated | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    altered: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Parts that are read back from the state store are equal to those that were written."""
        object.__setattr__(self, "parts", json.loads(json.dumps(dict(self.parts))))

    def to_json(self) -> Mapping[str, Any]:
        """As a JSON document, for the state store."""
        storage = {"truncated_by": self.storage.by} if isinstance(self.storage, Truncated) else self.storage
        document = {"object": self.object, "storage": storage, "parts": dict(self.parts)}
        return document if self.altered is None else {**document, "altered": self.altered}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """From a document of `to_json`."""
        storage = document["storage"]
        if isinstance(storage, Mapping):
            storage = Truncated(by=storage["truncated_by"])
        altered = document.get("altered")
        return cls(object=document["object"], storage=storage, parts=document["parts"], altered=altered)
