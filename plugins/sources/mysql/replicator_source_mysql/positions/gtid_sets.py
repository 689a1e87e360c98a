"""Sets of executed transactions: MySQL's GTID sets, MariaDB's GTID positions. Pure algebra, no I/O.

MySQL names a transaction by its server's UUID, perhaps a tag (8.3 and later), and a number; a set of them is written
`uuid:1-5:7:tag:1-3, uuid2:1`. MariaDB names it `domain-server-number` and a position has one per domain: everything of
that domain up to it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from replicator_source_mysql.flavors import MARIADB, MYSQL, Flavor, System

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_MARIADB: Final = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")

Interval = tuple[int, int]
"""First and last number, both included."""


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A set of MySQL's GTIDs. Immutable; intervals are ascending, disjoint and not adjacent.

    `sources`: `uuid` or `uuid:tag` → intervals, none of them empty.
    """

    flavor: ClassVar[Flavor] = MYSQL
    system: ClassVar[System] = System.GTID
    is_of_lineage: ClassVar[bool] = True

    sources: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Self:
        """Read a set as the server writes it.

        Raises:
            ValueError: It is none.
        """
        found: dict[str, list[Interval]] = {}
        for part in filter(None, (p.strip() for p in text.replace("\n", "").split(","))):
            uuid, *rest = (p.strip().lower() for p in part.split(":"))
            if not _UUID.fullmatch(uuid) or not rest:
                raise ValueError(f"{part!r} is not a GTID set")
            source = uuid
            for piece in rest:
                if match := _INTERVAL.fullmatch(piece):
                    first, last = int(match[1]), int(match[2] or match[1])
                    if not 0 < first <= last:
                        raise ValueError(f"{piece!r} is not an interval of a GTID set")
                    found.setdefault(source, []).append((first, last))
                elif _TAG.fullmatch(piece):
                    source = f"{uuid}:{piece}"
                else:
                    raise ValueError(f"{piece!r} is neither a tag nor an interval of a GTID set")
        return cls({source: _merged(intervals) for source, intervals in sorted(found.items())})

    def __str__(self) -> str:
        """The set as the server writes it, without spaces; tags follow their UUID."""
        by_uuid: dict[str, list[str]] = {}
        for source in sorted(self.sources):
            uuid, _, tag = source.partition(":")
            texts = [f"{a}-{b}" if a < b else str(a) for a, b in self.sources[source]]
            by_uuid.setdefault(uuid, []).extend([tag, *texts] if tag else texts)
        return ",".join(":".join([uuid, *texts]) for uuid, texts in by_uuid.items())

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __contains__(self, gtid: str) -> bool:
        """Return whether the set has a single GTID, `uuid:number` or `uuid:tag:number`."""
        source, _, number = gtid.rpartition(":")
        return self.has(source, int(number))

    def has(self, source: str, number: int) -> bool:
        """Return whether the set has a number of a source."""
        intervals = self.sources.get(source, ())
        index = bisect_right(intervals, (number, _LAST)) - 1
        return index >= 0 and intervals[index][0] <= number <= intervals[index][1]

    def with_gtid(self, gtid: str) -> GtidSet:
        """The set with one more."""
        source, _, number = gtid.rpartition(":")
        return self.with_number(source, int(number))

    def with_gtids(self, gtids: Iterable[str]) -> GtidSet:
        """The set with more, in the order in which they were executed."""
        numbers: dict[str, list[int]] = {}
        for gtid in gtids:
            source, _, number = gtid.rpartition(":")
            numbers.setdefault(source, []).append(int(number))
        grown = dict(self.sources)
        for source, found in numbers.items():
            grown[source] = _merged([*grown.get(source, ()), *_runs(found)])
        return GtidSet(grown)

    def with_number(self, source: str, number: int) -> GtidSet:
        """The set with one more number of a source."""
        intervals = self.sources.get(source, ())
        if intervals and intervals[-1][1] + 1 == number:
            grown = (*intervals[:-1], (intervals[-1][0], number))
        else:
            grown = _merged([*intervals, (number, number)])
        return GtidSet({**self.sources, source: grown})

    def union(self, other: GtidSet) -> GtidSet:
        """The GTIDs that are in either."""
        return GtidSet(
            {
                source: _merged([*self.sources.get(source, ()), *other.sources.get(source, ())])
                for source in sorted({*self.sources, *other.sources})
            }
        )

    def without(self, other: GtidSet) -> GtidSet:
        """The GTIDs that are in this one and not in the other."""
        left = {source: _minus(intervals, other.sources.get(source, ())) for source, intervals in self.sources.items()}
        return GtidSet({source: intervals for source, intervals in left.items() if intervals})

    def intersection(self, other: GtidSet) -> GtidSet:
        """The GTIDs that are in both."""
        return self.without(self.without(other))

    def covers(self, other: object) -> bool:
        """Return whether the other is a set, too, and every GTID of it is in this one."""
        return isinstance(other, GtidSet) and not other.without(self)

    def encoded(self) -> bytes:
        """The set as COM_BINLOG_DUMP_GTID sends it, in the form with tags if one of them has a tag."""
        has_tags = any(":" in source for source in self.sources)
        count = len(self.sources)
        parts = [_header(count, has_tags=has_tags)]
        for source in sorted(self.sources):
            uuid, _, tag = source.partition(":")
            parts.append(bytes.fromhex(uuid.replace("-", "")))
            if has_tags:
                parts.append(_varlen(len(tag)) + tag.encode())
            parts.append(len(self.sources[source]).to_bytes(8, "little"))
            parts += [a.to_bytes(8, "little") + (b + 1).to_bytes(8, "little") for a, b in self.sources[source]]
        return b"".join(parts)


_LAST: Final = 1 << 63
_TAGGED_FORMAT: Final = 1
_COUNT_BITS: Final = 48


def _header(count: int, *, has_tags: bool) -> bytes:
    """Number of sources; with tags, the format stands in the first and in the last byte around a count of 48 bits."""
    if not has_tags:
        return count.to_bytes(8, "little")
    return bytes([_TAGGED_FORMAT]) + count.to_bytes(_COUNT_BITS // 8, "little") + bytes([_TAGGED_FORMAT])


def _varlen(number: int) -> bytes:
    """MySQL's serialisation of a small number: below 64 one byte, shifted by one."""
    assert number < 1 << 7
    return bytes([number << 1])


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _runs(numbers: Iterable[int]) -> list[Interval]:
    """Numbers as intervals; those that follow each other are one."""
    runs: list[Interval] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _minus(intervals: tuple[Interval, ...], taken: tuple[Interval, ...]) -> tuple[Interval, ...]:
    left: list[Interval] = []
    for first, last in intervals:
        start = first
        for a, b in taken:
            if b < start or a > last:
                continue
            if a > start:
                left.append((start, a - 1))
            start = b + 1
        if start <= last:
            left.append((start, last))
    return tuple(left)


@dataclass(frozen=True, slots=True)
class GtidPosition:
    """A MariaDB position: domain → (server, number) of its last transaction. Immutable."""

    flavor: ClassVar[Flavor] = MARIADB
    system: ClassVar[System] = System.MARIADB
    is_of_lineage: ClassVar[bool] = True

    domains: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `0-1-55,1-2-33`.

        Raises:
            ValueError: It is no position, or names a domain twice.
        """
        domains: dict[int, tuple[int, int]] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            match = _MARIADB.fullmatch(part)
            if match is None:
                raise ValueError(f"{part!r} is not a GTID of MariaDB")
            domain = int(match[1])
            if domain in domains:
                raise ValueError(f"the domain {domain} is named twice")
            domains[domain] = int(match[2]), int(match[3])
        return cls(dict(sorted(domains.items())))

    def __str__(self) -> str:
        """The position as the server writes it."""
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.domains.items()))

    def __bool__(self) -> bool:
        return bool(self.domains)

    def with_gtid(self, gtid: str) -> GtidPosition:
        """The position after one more transaction."""
        domain, server, number = (int(part) for part in gtid.split("-"))
        return GtidPosition({**self.domains, domain: (server, number)})

    def union(self, other: GtidPosition) -> GtidPosition:
        """The position that is further, domain by domain."""
        further = {**self.domains}
        for domain, (server, number) in other.domains.items():
            if domain not in further or further[domain][1] < number:
                further[domain] = server, number
        return GtidPosition(dict(sorted(further.items())))

    def with_gtids(self, gtids: Iterable[str]) -> GtidPosition:
        """The position after more transactions, in the order in which they were executed."""
        last = {gtid.partition("-")[0]: gtid for gtid in gtids}
        position = self
        for gtid in last.values():
            position = position.with_gtid(gtid)
        return position

    def __contains__(self, gtid: str) -> bool:
        """Return whether a transaction is at or before the position."""
        domain, _, number = (int(part) for part in gtid.split("-"))
        return domain in self.domains and self.domains[domain][1] >= number

    def covers(self, other: object) -> bool:
        """Return whether the other is a position, too, and no domain of it is further."""
        return isinstance(other, GtidPosition) and all(
            domain in self.domains and self.domains[domain][1] >= number
            for domain, (_, number) in other.domains.items()
        )
