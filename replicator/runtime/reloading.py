"""Selection of the processes of a running replicator that a changed configuration concerns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replicator.config import read_document
from replicator.state.records import Role

_READ_BY: Final[Mapping[str, frozenset[Role]]] = {
    "source": frozenset({Role.CAPTURE, Role.VERIFY}),
    "snapshot": frozenset({Role.CAPTURE}),
    "journal": frozenset({Role.CAPTURE}),
    "apply": frozenset({Role.APPLY, Role.VERIFY}),
    "spark": frozenset({Role.APPLY}),
    "verify": frozenset({Role.VERIFY}),
    "alerts": frozenset(),
    "lineage": frozenset(),
}
"""Section of the file → the processes that read it; any other section is read by all."""
ON_THE_SIDE: Final = tuple(section for section, roles in _READ_BY.items() if not roles)
"""Sections that only the process that watches replicators reads; no other process sees them."""
_ALL: Final = frozenset({Role.CAPTURE, Role.APPLY, Role.VERIFY})


def changed_sections(before: str, now: str) -> tuple[str, ...]:
    """Return the names of the sections that differ between two documents; comments and order do not count."""
    old, new = (_values(document) for document in (before, now))
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def concerned(sections: tuple[str, ...]) -> frozenset[Role]:
    """Return the processes that must be started again to read these sections."""
    return frozenset[Role]().union(*(_READ_BY.get(section, _ALL) for section in sections))


def _values(document: str) -> Mapping[str, Any]:
    return read_document(document, "stored").values
