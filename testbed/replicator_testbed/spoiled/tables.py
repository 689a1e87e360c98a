"""Tables with a row for each corruption of each value of each type, how their targets are corrupted, and what is to be found. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from replicator_testbed.spoiled.corruptions import (
    MATRIX,
    OF_VALUES,
    CannotCarryError,
    Corruption,
    Held,
    changed,
    is_same,
)

ROWS_MAX: Final = 900
"""Of a table: verification describes at most 1,000 rows that differ."""

Row = Mapping[str, Any]
"""By column of the target, ours included; days and times as whole numbers."""


@dataclass(frozen=True, slots=True)
class TypeValues:
    """A type as a source's statements have it, and some of its values as SQL; not NULL, which every type has."""

    name: str
    values: Sequence[str]


class Layout(StrEnum):
    """What a table's key is: an id, all its columns, or none."""

    BY_ID = "by_id"
    BY_ALL = "by_all"
    BAG = "bag"


_KINDS: Final[Mapping[Layout, Sequence[Corruption]]] = {
    Layout.BY_ID: tuple(Corruption),
    # A key is never NULL, and has no other value before: that would be another row.
    Layout.BY_ALL: tuple(
        one
        for one in Corruption
        if one not in {Corruption.STALE, Corruption.NULL_FOR_VALUE, Corruption.EMPTY_FOR_NULL, Corruption.SWAPPED}
    ),
    # Without a key, each batch of changes costs seconds of Spark: its rows are those of the snapshot.
    Layout.BAG: tuple(one for one in Corruption if one not in {Corruption.STALE, Corruption.RESURRECTED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is wrong with a row. `column`: in which value, or the only one that the row has. `partner`: the row that it is swapped with."""

    id: int
    column: str
    corruption: Corruption
    partner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiledTable:
    """A table of a source.

    Attributes:
        types: By column, without `id`.
        cases: By row, with rows that nothing is wrong with in between: values that cannot have the corruption.
        inserted: By row: column → SQL. A row may stand there twice.
        updated: By row: what is written into which column after the snapshot.
        deleted: Rows that are deleted after the snapshot.
    """

    name: str
    layout: Layout
    types: Mapping[str, TypeValues]
    cases: Sequence[Case]
    inserted: Sequence[tuple[int, Mapping[str, str]]]
    updated: Mapping[int, tuple[str, str]]
    deleted: Sequence[int]

    @property
    def columns(self) -> Sequence[str]:
        """All columns."""
        return ("id", *self.types)

    def create(self, suffix: str = "") -> str:
        """The statement that makes it; `suffix` is the source's own."""
        is_key = self.layout is Layout.BY_ALL
        made = ", ".join(f"{name} {type_.name}{' NOT NULL' if is_key else ''}" for name, type_ in self.types.items())
        key = {
            Layout.BY_ID: ", PRIMARY KEY (id)",
            Layout.BY_ALL: f", PRIMARY KEY ({', '.join(self.columns)})",
            Layout.BAG: "",
        }[self.layout]
        return f"CREATE TABLE {self.name} (id int NOT NULL, {made}{key}) {suffix}"

    def fill(self) -> Iterator[str]:
        """The statements for the rows that a snapshot reads."""
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for id_, values in self.inserted:
            by_columns.setdefault(tuple(values), []).append(f"({', '.join([str(id_), *values.values()])})")
        for names, rows in by_columns.items():
            # A value may be large, and a statement has a limit.
            for start in range(0, len(rows), 50):
                yield f"INSERT INTO {self.name} ({', '.join(['id', *names])}) VALUES {', '.join(rows[start : start + 50])}"

    def change(self) -> Iterator[str]:
        """The statements that follow the snapshot."""
        for id_, (column, value) in self.updated.items():
            yield f"UPDATE {self.name} SET {column} = {value} WHERE id = {id_}"
        if self.deleted:
            yield f"DELETE FROM {self.name} WHERE id IN ({', '.join(map(str, self.deleted))})"


def tables_of(
    types: Sequence[TypeValues], layout: Layout, prefix: str, *, columns_max: int = 60
) -> Iterator[SpoiledTable]:
    """As many tables as needed for these types."""
    some = list[TypeValues]()
    number = rows = 0
    for type_ in types:
        size = (len(type_.values) + 1) * (len(_KINDS[layout]) + 2)
        if some and (rows + size > ROWS_MAX or len(some) == columns_max):
            yield _table(f"{prefix}{number}", layout, some)
            some, rows, number = [], 0, number + 1
        some.append(type_)
        rows += size
    if some:
        yield _table(f"{prefix}{number}", layout, some)


def _table(name: str, layout: Layout, types: Sequence[TypeValues]) -> SpoiledTable:
    columns = {f"c{number}": type_ for number, type_ in enumerate(types)}
    cases, deleted = list[Case](), list[int]()
    inserted, updated = list[tuple[int, Mapping[str, str]]](), dict[int, tuple[str, str]]()
    others = {name: type_.values[0] for name, type_ in columns.items()} if layout is Layout.BY_ALL else {}

    ids = itertools.count(1)

    def add(column: str, value: str | None, times: int = 1) -> int:
        id_ = next(ids)
        inserted.extend([(id_, {**others, **({} if value is None else {column: value})})] * times)
        return id_

    for column, type_ in columns.items():
        nulls: Sequence[str | None] = () if others else (None,)
        values = [*type_.values, *nulls]
        for number, value in enumerate(values):
            following = values[(number + 1) % len(values)]
            for corruption in _KINDS[layout]:
                if corruption in OF_VALUES and (value is None) != (corruption is Corruption.EMPTY_FOR_NULL):
                    continue
                is_twice = corruption is Corruption.TWO_EQUAL and layout is Layout.BAG
                id_ = add(column, value, 2 if is_twice else 1)
                partner = add(column, following) if corruption is Corruption.SWAPPED else None
                cases.append(Case(id=id_, column=column, corruption=corruption, partner=partner))
                if corruption is Corruption.STALE:
                    updated[id_] = (column, following or "NULL")
                if corruption is Corruption.RESURRECTED:
                    deleted.append(id_)
    return SpoiledTable(
        name=name, layout=layout, types=columns, cases=cases, inserted=inserted, updated=updated, deleted=deleted
    )


# -- corrupting ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Spoiled:
    """What became of a target table.

    Attributes:
        rows: Its rows now.
        expected: What verification has to say: id, kind, columns → how many rows.
        carried: Types and corruptions of which there is a case.
        sizes: Of texts and binary values, by corruption, how long the longest was that has it.
    """

    rows: list[Row]
    expected: Counter[tuple[int, str, tuple[str, ...]]] = field(default_factory=Counter)
    carried: set[tuple[str, Corruption]] = field(default_factory=set)
    sizes: Counter[Corruption] = field(default_factory=Counter)

    @property
    def ids(self) -> set[int]:
        """Rows that are wrong."""
        return {id_ for id_, _, _ in self.expected}

    @property
    def counts(self) -> dict[str, int]:
        """Rows that are wrong, by kind."""
        found = Counter[str]()
        for (_, kind, _), count in self.expected.items():
            found[kind] += count
        return {kind: found[kind] for kind in ("missing", "extra", "different")}


def spoil(table: SpoiledTable, before: Sequence[Row], now: Sequence[Row], how: Mapping[str, Held]) -> Spoiled:
    """Do to the target's rows what the cases say.

    Args:
        table: The table.
        before: The copy's rows before the source changed some.
        now: The copy's rows, equal to the source's.
        how: How the target holds each column of `table.types`.
    """
    by_id: dict[int, list[Row]] = {}
    for row in now:
        by_id.setdefault(row["id"], []).append(row)
    former = {row["id"]: row for row in before}
    work = _Work(table=table, by_id=by_id, former=former, how=how, done=Spoiled(rows=[]))
    for case in table.cases:
        try:
            work.spoil(case)
        except CannotCarryError:
            continue
        work.done.carried.add((table.types[case.column].name, case.corruption))
    work.done.rows = [row for rows in by_id.values() for row in rows]
    return work.done


@dataclass(slots=True, kw_only=True)
class _Work:
    table: SpoiledTable
    by_id: dict[int, list[Row]]
    former: Mapping[int, Row]
    how: Mapping[str, Held]
    done: Spoiled

    def spoil(self, case: Case) -> None:
        rows = self.by_id.setdefault(case.id, [])
        match case.corruption:
            case Corruption.LOST:
                self._expect(case.id, "missing", count=len(rows))
                del rows[:]
            case Corruption.DOUBLED:
                rows.append(rows[0])
                self._expect(case.id, "extra")
            case Corruption.TWO_EQUAL:
                self._two_equal(case, rows)
            case Corruption.RESURRECTED:
                rows.append(self.former[case.id])
                self._expect(case.id, "extra")
            case Corruption.STALE:
                self._replace(case, rows, self.former[case.id][case.column])
            case Corruption.SWAPPED:
                assert case.partner is not None
                other = self.by_id[case.partner]
                ours, theirs = rows[0][case.column], other[0][case.column]
                self._replace(case, rows, theirs)
                self._replace(Case(id=case.partner, column=case.column, corruption=case.corruption), other, ours)
            case _:
                value = rows[0][case.column]
                self._replace(case, rows, changed(case.corruption, value, self.how[case.column]))
                if isinstance(value, str | bytes):
                    self.done.sizes[case.corruption] = max(self.done.sizes[case.corruption], len(value))

    def _two_equal(self, case: Case, rows: list[Row]) -> None:
        """Two errors whose hashes would cancel each other under XOR: copies of a row, and where two rows are equal, the same in both."""
        if self.table.layout is not Layout.BAG:
            rows += [rows[0], rows[0]]
            self._expect(case.id, "extra", count=2)
            return
        value, how = rows[0][case.column], self.how[case.column]
        corruption = Corruption.EMPTY_FOR_NULL if value is None else Corruption.NULL_FOR_VALUE
        self._replace(case, rows, changed(corruption, value, how))

    def _replace(self, case: Case, rows: list[Row], value: Any) -> None:
        if is_same(rows[0][case.column], value):
            raise CannotCarryError("both are the same value")
        if self.table.layout is Layout.BY_ID:
            self._expect(case.id, "different", (case.column,))
        else:
            for kind in ("missing", "extra"):
                self._expect(case.id, kind, count=len(rows))
        rows[:] = [{**row, case.column: value} for row in rows]

    def _expect(self, id_: int, kind: str, columns: tuple[str, ...] = (), *, count: int = 1) -> None:
        self.done.expected[id_, kind, columns] += count


def should_carry(types: Mapping[str, Held], layout: Layout) -> set[tuple[str, Corruption]]:
    """The types and corruptions of a layout that the matrix has, by type: also those that no value of the type happens to have."""
    return {
        (name, corruption)
        for name, how in types.items()
        for corruption in _KINDS[layout]
        if corruption not in OF_VALUES or how.family in MATRIX[corruption]
    }
