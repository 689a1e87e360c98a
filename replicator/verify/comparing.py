"""Compares two states of a table: the checksums of groups, then the rows of those groups that differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from replicator.plugins.verification import Among, Checksum
from replicator.verify.verdicts import Kind

ROWS_AT_ONCE: Final = 200_000
"""Rows of both sides that are compared at a time, about."""


@dataclass(frozen=True, slots=True)
class FoundDifferences:
    """Rows of this id that differ: `rows` of them, of a table without a key perhaps several."""

    id: str
    kind: Kind
    rows: int = 1


def differing(source: Mapping[str, Checksum], target: Mapping[str, Checksum]) -> Iterator[Sequence[str]]:
    """Yield the groups whose checksums differ, in blocks of about `ROWS_AT_ONCE` rows."""
    block, rows = list[str](), 0
    for group in sorted(source.keys() | target.keys()):
        ours, theirs = source.get(group), target.get(group)
        if ours == theirs or not any(side is not None and side.rows for side in (ours, theirs)):
            continue
        size = sum(side.rows for side in (ours, theirs) if side is not None)
        if block and rows + size > ROWS_AT_ONCE:
            yield block
            block, rows = [], 0
        block.append(group)
        rows += size
    if block:
        yield block


def compare_rows(source: pa.Table, target: pa.Table, *, only: Among | None = None) -> Sequence[FoundDifferences]:
    """Return the differences between rows of both sides (`ROWS_SCHEMA`), by id. `only`: among these ids; None: among all."""
    ours, theirs = _counted(source), _counted(target)
    more, less = ours - theirs, theirs - ours
    missing, extra = _by_id(more), _by_id(less)
    found = list[FoundDifferences]()
    for id_ in sorted(missing.keys() | extra.keys()):
        if only is not None and id_ not in only:
            continue
        both = min(missing[id_], extra[id_])
        if both:
            found.append(FoundDifferences(id_, Kind.DIFFERENT, both))
        if missing[id_] > both:
            found.append(FoundDifferences(id_, Kind.MISSING, missing[id_] - both))
        if extra[id_] > both:
            found.append(FoundDifferences(id_, Kind.EXTRA, extra[id_] - both))
    return found


def _counted(rows: pa.Table) -> Counter[tuple[str, str]]:
    return Counter(zip(rows.column("id").to_pylist(), rows.column("hash").to_pylist(), strict=True))


def _by_id(rows: Counter[tuple[str, str]]) -> Counter[str]:
    found = Counter[str]()
    for (id_, _), count in rows.items():
        found[id_] += count
    return found
