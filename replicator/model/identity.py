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
        columns: What must stay as it is of single columns, as JSON, under names that belong to one column each (its `Column.id`). What
            only one of two identities has is of a column that came or went, and says nothing.
        altered: What every statement that gives the table other storage changes, but TRUNCATE does not (MySQL: when it was created
            or altered); None if the source has none. Other storage after a TRUNCATE is explained if this stayed. Two identities
            that differ in it alone are equal.
        former: The parts of today's table as identities had them before they had `columns`. Not stored.
    """

    object: str | None = None
    storage: str | Truncated | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    altered: str | None = field(default=None, compare=False)
    former: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Parts that are read back from the state store are equal to those that were written."""
        for name in ("parts", "columns", "former"):
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    def is_redefined_in(self, found: TableIdentity) -> bool:
        """Whether something that had to stay is not as it was. `found` is of the same table, now."""
        parts = found.parts if self.columns else {**found.former, **found.parts}
        return any(part not in parts or parts[part] != value for part, value in self.parts.items()) or any(
            name in found.columns and found.columns[name] != value for name, value in self.columns.items()
        )

    def to_json(self) -> Mapping[str, Any]:
        """As a JSON document, for the state store."""
        storage = {"truncated_by": self.storage.by} if isinstance(self.storage, Truncated) else self.storage
        return {
            "object": self.object,
            "storage": storage,
            "parts": dict(self.parts),
            **({"columns": dict(self.columns)} if self.columns else {}),
            **({} if self.altered is None else {"altered": self.altered}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """From a document of `to_json`."""
        storage = document["storage"]
        if isinstance(storage, Mapping):
            storage = Truncated(by=storage["truncated_by"])
        return cls(
            object=document["object"],
            storage=storage,
            parts=document["parts"],
            columns=document.get("columns", {}),
            altered=document.get("altered"),
        )
