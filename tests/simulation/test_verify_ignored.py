"""Tables of which policies ignore or keep changes: `equal` says something about every column that the target has from the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.config import DDLConfig
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state.verification.records import VerificationRecord
from replicator.verify import Extent, Judge, Keys, Proofs, Repair, Result, Sample, Visit
from replicator_testbed.journals.captured import RunningCapture
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource
from replicator_testing.memory.target import StoredTable
from tests.simulation import test_verify
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, settled

pair = test_verify.pair

INTEGER, WIDE, TEXT = pa.int32(), pa.int64(), pa.string()
Columns = tuple[tuple[int, str, pa.DataType], ...]
ID: Final = (1, "id", pa.int64())
FIRST: Final[Columns] = (ID, (2, "a", TEXT), (3, "b", TEXT), (4, "n", INTEGER))
IGNORE: Final = DDLConfig(add_column="ignore", rename_column="ignore", widen_type="ignore", change_type="ignore")
"""`drop_column` is `keep`."""
APPLY: Final = DDLConfig(drop_column="apply", change_type="apply")
ROWS: Final = range(100, 110)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What happens to the source's table, shape after shape, and what becomes of it. `left_out`: what cannot be compared."""

    shapes: Sequence[Columns]
    held: Sequence[str]
    left_out: Sequence[str] = ()
    ddl: DDLConfig = IGNORE


SWAPPED: Final[Columns] = (ID, (2, "x", TEXT), (3, "a", TEXT), (4, "n", INTEGER))
CASES: Final = {
    "rename ignored": Case(shapes=[(ID, (2, "x", TEXT), *FIRST[2:])], held="abn"),
    "name given to another column, ignored": Case(shapes=[(ID, (2, "x", TEXT), *FIRST[2:]), SWAPPED], held="abn"),
    "rename ignored, and back": Case(shapes=[(ID, (2, "x", TEXT), *FIRST[2:]), FIRST], held="abn"),
    "wider type ignored": Case(shapes=[(*FIRST[:3], (4, "n", WIDE))], held="abn", left_out="n"),
    "other type ignored": Case(shapes=[(*FIRST[:3], (4, "n", TEXT))], held="abn", left_out="n"),
    "other type ignored, and back": Case(shapes=[(*FIRST[:3], (4, "n", TEXT)), FIRST], held="abn"),
    "name and type ignored, type back": Case(
        shapes=[(*FIRST[:3], (4, "m", TEXT)), (*FIRST[:3], (4, "m", INTEGER))], held="abn"
    ),
    "column dropped, kept": Case(shapes=[FIRST[:3]], held="abn", left_out="n"),
    "column added, ignored": Case(shapes=[(*FIRST, (5, "c", TEXT))], held="abn"),
    "rename applied": Case(shapes=[(ID, (2, "x", TEXT), *FIRST[2:])], held="xbn", ddl=APPLY),
    "wider type applied": Case(shapes=[(*FIRST[:3], (4, "n", WIDE))], held="abn", ddl=APPLY),
    "column dropped, applied": Case(shapes=[FIRST[:3]], held="ab", ddl=APPLY),
    "column added, applied": Case(shapes=[(*FIRST, (5, "c", TEXT))], held="abnc", ddl=APPLY),
}


def shape(table: TableId, columns: Columns) -> TableSchema:
    made = tuple(Column(name=name, type=type_, source_type=str(type_), id=id_) for id_, name, type_ in columns)
    return TableSchema(table=table, columns=made, key=("id",) if table == KEYED else ())


def row(columns: Columns, id_: int) -> dict[str, Any]:
    return {name: id_ if type_ != TEXT else str(id_) for _, name, type_ in columns}


@contextmanager
def altered(pair: Pair, case: Case, tables: Sequence[TableId] = (KEYED,)) -> Iterator[tuple[RunningCapture, Judge]]:
    """Tables, after what the case does to them, with rows of every shape."""
    pair.captured.settings = replace(pair.captured.settings, ddl=lambda _: case.ddl)
    for table in tables:
        pair.database.drop_table(table)
        pair.database.create_table(shape(table, FIRST))
    with pair.running() as (capture, judge):
        for table in tables:
            settled(judge, table, capture)
        for number, columns in enumerate([FIRST, *case.shapes]):
            for table in tables:
                if number:
                    with pair.database.begin() as transaction:
                        transaction.alter(shape(table, columns), fill={"c": "new"})
                with pair.database.begin() as transaction:
                    transaction.insert(table, *(row(columns, id_ + 10 * number) for id_ in ROWS))
            pair.captured.catch_up(capture)
            for table in tables:
                settled(judge, table, capture)
        yield capture, judge


def plant(pair: Pair, table: TableId, column: str, change: Callable[[Any], Any]) -> None:
    """Change a column of one row of the target, as somebody else would."""

    def act(stored: StoredTable) -> None:
        found = min((one for one in stored.rows if one.values["id"] == ROWS[3]), key=lambda one: one.sequence_num)
        found.values = {**found.values, column: change(found.values[column])}

    pair.warehouse.tamper(table, f"version 7: UPDATE of {column}", act)


def spoiled(value: Any) -> Any:
    return f"{value} spoiled" if isinstance(value, str) else (value or 0) + 1_000


def restored(value: Any) -> Any:
    return value.removesuffix(" spoiled") if isinstance(value, str) else value - 1_000 or None


def check(pair: Pair, judge: Judge, table: TableId, case: Case) -> None:
    """Plant a difference in each column that the target has, and verify in every way."""
    fine = Result.EQUAL_IN_PART if case.left_out else Result.EQUAL
    scopes = [None, Sample(Decimal(100)), Keys([str(ROWS[3])])] if table == KEYED else [None, Sample(Decimal(100))]
    stored = pair.warehouse.tables[table]
    assert [column.name for column in present(stored.schema).held] == ["id", *case.held]
    for column in (None, *case.held):
        if column is not None:
            plant(pair, table, column, spoiled)
        for scope in scopes:
            verdict = judge.verify(table, scope, Visit(rows=7))
            wanted = fine if column is None or column in case.left_out else Result.DIFFERENT
            assert (verdict.result, list(verdict.not_compared)) == (wanted, list(case.left_out)), (column, scope)
            assert verdict.rows_source
            if wanted is Result.DIFFERENT and table == KEYED:
                assert verdict.counts.total == 1
                assert len(verdict.differences[0].columns) == 1
        if column is not None:
            plant(pair, table, column, restored)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_difference_is_found_in_every_column_or_the_table_is_equal_in_part(pair: Pair, name: str) -> None:
    case = CASES[name]
    with altered(pair, case, (KEYED, KEYLESS)) as (_, judge):
        for table in (KEYED, KEYLESS):
            check(pair, judge, table, case)
            ignored = pair.captured.record(table).ignored
            assert bool(ignored) is (name.endswith("ignored") or name == "name and type ignored, type back")
            is_written = bool(case.left_out) and name.endswith("ignored")
            assert bool(judge.written_unseen(pair.captured.record(table))) is is_written


def test_a_difference_is_found_in_a_column_of_which_a_rename_is_ignored_while_its_rows_change(pair: Pair) -> None:
    case = CASES["name given to another column, ignored"]
    with altered(pair, case) as (_, judge):
        happened = list[int]()

        def write() -> None:
            happened.append(1)
            with pair.database.begin() as transaction:
                transaction.update(KEYED, row(SWAPPED, ROWS[0] + 20), {"a": "moved"})

        assert isinstance(judge.source, MemorySource)
        judge.source.faults.script("open_state", write)
        assert judge.verify(KEYED).result is Result.EQUAL
        assert happened
        for column, name in (("a", "x"), ("b", "a")):
            plant(pair, KEYED, column, spoiled)
            verdict = judge.verify(KEYED)
            assert (verdict.result, [one.columns for one in verdict.differences]) == (Result.DIFFERENT, [(name,)])
            plant(pair, KEYED, column, restored)


def proofs_of(judge: Judge, *, repairs: bool = False) -> Proofs:
    return Proofs(judge=judge, repair=Repair(judge=judge, rows_max=100) if repairs else None, visit=Visit(rows=7))


def verification(pair: Pair, table: TableId) -> VerificationRecord:
    return pair.captured.store.verifications.of(NAME)[table]


def alarms(pair: Pair, table: TableId) -> list[str]:
    return [alarm.code for alarm in pair.captured.store.applied(NAME)[table].alarms]


def touch(pair: Pair, table: TableId, columns: Columns, id_: int) -> None:
    """Have apply look at what others did."""
    with pair.database.begin() as transaction:
        transaction.insert(table, row(columns, id_))


def test_what_is_equal_in_part_clears_only_the_alarms_that_it_disproves(pair: Pair) -> None:
    case = CASES["column dropped, kept"]
    with altered(pair, case) as (capture, judge):
        plant(pair, KEYED, "n", spoiled)
        touch(pair, KEYED, FIRST[:3], 500)
        capture.wait_until(lambda: alarms(pair, KEYED) == ["target_changed"], "somebody else's change was seen")
        for repairs in (False, True):
            verdict = proofs_of(judge, repairs=repairs).verify(KEYED)
            assert (verdict.result, verdict.scope) == (Result.EQUAL_IN_PART, Extent.TABLE)
            found = verification(pair, KEYED)
            assert (found.result, found.not_compared) == (Result.EQUAL_IN_PART, ("n",))
            assert (found.disproved, found.proven_at, found.ranges_proven) == ((), None, 0)
            assert present(found.ranges_total) > 1
        # A difference in a column that can be compared is repaired, and its own alarm is cleared.
        plant(pair, KEYED, "a", spoiled)
        assert proofs_of(judge).verify(KEYED).result is Result.DIFFERENT
        assert present(verification(pair, KEYED).alarm).code == "verify_different"
        assert proofs_of(judge, repairs=True).verify(KEYED).result is Result.EQUAL_IN_PART
        found = verification(pair, KEYED)
        assert (found.result, found.alarm, found.disproved) == (Result.EQUAL_IN_PART, None, ())
        # A difference that was found in a column that is kept since then is not disproved.
        plant(pair, KEYED, "b", spoiled)
        assert proofs_of(judge).verify(KEYED).result is Result.DIFFERENT
        with pair.database.begin() as transaction:
            transaction.alter(shape(KEYED, FIRST[:2]))
        pair.captured.catch_up(capture)
        assert settled(judge, KEYED, capture).result is Result.EQUAL_IN_PART
        assert proofs_of(judge).verify(KEYED).result is Result.EQUAL_IN_PART
        found = verification(pair, KEYED)
        assert (found.result, present(found.alarm).code) == (Result.DIFFERENT, "verify_different")
        assert alarms(pair, KEYED) == ["target_changed"]
