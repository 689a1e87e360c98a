"""Identity of a table: the facts by which a source tells that a table is still the same."""

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
class ColumnConstraints:
    """Constraints on the values that a column gets from now on.

    Attributes:
        nullable: True if it may be NULL.
        default: The expression of its default, as the source writes it; None: it has none.
        default_id: An id that every statement that sets a default changes. The expression may change with the name of a function.
    """

    nullable: bool
    default: str | None = None
    default_id: str | None = None

    def has_other_default(self, found: ColumnConstraints) -> bool:
        """Return whether a statement has set another default since. `found`: the constraints now."""
        return self.default != found.default and self.default_id != found.default_id

    def to_json(self) -> Mapping[str, Any]:
        """Return a JSON document, for the state store."""
        default = {"default": self.default, "default_id": self.default_id}
        return {"nullable": self.nullable, **{name: value for name, value in default.items() if value is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """Facts that change when a table becomes another object, gets other storage, or is published in another way.

    Attributes:
        object: Id of the table that a rewrite or a TRUNCATE keeps (PostgreSQL: oid); None if the source has none.
        storage: Id of the storage of its rows, which a TRUNCATE changes; None if the source has none. Only the host sets `Truncated`,
            in an identity that it has accepted. Storage of partitions belongs in `parts`: they may lose rows without a trace.
        parts: Other facts that must not change, as JSON. A part with a new name is learned.
        columns: Facts of single columns that must not change, as JSON, under names that belong to one column each (its `Column.id`). An
            entry that only one of two identities has is of a column that was added or dropped, and is ignored.
        altered: A value that every statement that gives the table other storage changes, except TRUNCATE (MySQL: when it was created
            or altered); None if the source has none. Other storage after a TRUNCATE is explained if this stayed. Two identities
            that differ in it alone are equal.
        constraints: By `Column.id` as text, where the source's log does not show how they change. Those of a new
            column are learned. Two identities that differ in them alone are equal.
    """

    object: str | None = None
    storage: str | Truncated | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    altered: str | None = field(default=None, compare=False)
    constraints: Mapping[str, ColumnConstraints] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Normalise the parts, so that those read back from the state store equal those that were written."""
        for name in ("parts", "columns"):
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    def is_redefined_in(self, found: TableIdentity) -> bool:
        """Return whether a fact that must not change has changed. `found` is of the same table, now."""
        return any(part not in found.parts or found.parts[part] != value for part, value in self.parts.items()) or any(
            name in found.columns and found.columns[name] != value for name, value in self.columns.items()
        )

    def to_json(self) -> Mapping[str, Any]:
        """Return a JSON document, for the state store."""
        storage = {"truncated_by": self.storage.by} if isinstance(self.storage, Truncated) else self.storage
        return {
            "object": self.object,
            "storage": storage,
            "parts": dict(self.parts),
            **({"columns": dict(self.columns)} if self.columns else {}),
            **({} if self.altered is None else {"altered": self.altered}),
            **({"constraints": {c: o.to_json() for c, o in self.constraints.items()}} if self.constraints else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a document of `to_json`."""
        storage = document["storage"]
        if isinstance(storage, Mapping):
            storage = Truncated(by=storage["truncated_by"])
        return cls(
            object=document["object"],
            storage=storage,
            parts=document["parts"],
            columns=document.get("columns", {}),
            altered=document.get("altered"),
            constraints={name: ColumnConstraints(**one) for name, one in document.get("constraints", {}).items()},
        )
