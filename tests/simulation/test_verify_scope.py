"""The judge over some rows of a table: of those it finds everything that differs, and of others nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.errors import ConfigError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.canonical import digest_of, value_text
from replicator.plugins.verification import Among, Below
from replicator.verify import Counts, Extent, Judge, Keys, OfIds, Result, Sample, Since, VerifyScope, Whole, rounds
from replicator.verify import scope as scope_module
from replicator.verify.barriers import NotVerifiedError
from replicator_testbed.journals.captured import RunningCapture
from replicator_testing.memory.target import StoredTable
from tests.simulation import test_verify
from tests.simulation.test_verify import KEYED, KEYLESS, NAME, Pair, schema_of, settled

pair = test_verify.pair
BEGINNING = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def fill(pair: Pair, count: int, first: int = 10_000) -> None:
    with pair.database.begin() as transaction:
        for table in (KEYED, KEYLESS):
            transaction.insert(table, *(pair.row(first + n) for n in range(count)))


def spoil(*ids: int) -> Callable[[StoredTable], None]:
    """Give rows another value in the target; none named: all rows."""

    def act(stored: StoredTable) -> None:
        for row in stored.rows:
            if not ids or row.values["id"] in ids:
                row.values = {**row.values, "a": "spoilt"}

    return act


def id_of(row: Sequence[Any], *, is_keyed: bool) -> str:
    """Of a row of either table."""
    kinds = (pa.int64(), pa.string(), pa.float64())
    texts = [value_text(v, kind, is_key=False) for v, kind in zip(row, kinds, strict=True)]
    return digest_of(f"{texts[0]}," if is_keyed else "".join(f"{text or ''}," for text in texts))


def now(pair: Pair) -> datetime:
    """A moment that is later than everything that was sealed, and earlier than everything that will be."""
    return pair.captured.store.now()


def quiet(judge: Judge, capture: RunningCapture) -> None:
    """Everything that was written is in the journal and in the target."""
    for table in (KEYED, KEYLESS):
        assert settled(judge, table, capture).result is Result.EQUAL


# -- keys


def test_only_rows_with_these_keys_are_compared(pair: Pair) -> None:
    fill(pair, 50)
    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        pair.warehouse.tamper(KEYED, "an UPDATE", spoil(10_003, 10_004))
        found = judge.verify(KEYED, Keys(['{"id": 10003}', '"10005"', "77777"]))
        assert (found.result, found.counts, found.scope) == (Result.DIFFERENT, Counts(different=1), Extent.KEYS)
        # A row that neither side has does not count, as long as there are others.
        assert (found.keys, found.rows_source, found.rows_target) == (3, 2, 2)
        assert [one.key for one in found.differences] == [{"id": "10003"}]
        equal = judge.verify(KEYED, Keys(["10005", "77777"]))
        assert (equal.result, equal.keys, equal.rows_source) == (Result.EQUAL, 2, 1)
        nowhere = judge.verify(KEYED, Keys(["77777"]))
        assert (nowhere.result, nowhere.rows_source) == (Result.NOT_VERIFIED, None)
        assert nowhere.reason == "neither source nor target has a row with such a key"


def test_rows_are_compared_by_their_ids(pair: Pair) -> None:
    fill(pair, 20)
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        pair.warehouse.tamper(KEYED, "a DELETE", lambda stored: stored.rows.clear())
        ids = [digest_of("10003,"), digest_of("10004,")]
        assert judge.verify(KEYED, ids).counts == Counts(missing=2)
        assert judge.verify(KEYED, OfIds(frozenset(ids[:1]))).counts == Counts(missing=1)
        assert judge.verify(KEYED, []).result is Result.EQUAL


def test_keys_that_are_none_are_refused(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        for table, key in ((KEYED, '"x"'), (KEYLESS, "1")):
            with pytest.raises(ConfigError) as refused:
                judge.verify(table, Keys([key]))
            assert refused.value.code == "unknown_row_key"


# -- samples


@pytest.mark.sampled(1)
@pytest.mark.parametrize("percent", ["0.5", "20", "50", "99.9", "100"])
def test_a_sample_has_the_same_rows_on_both_sides(pair: Pair, percent: str) -> None:
    fill(pair, 400)
    below = f"{min(int(16**32 * Decimal(percent) / 100), 16**32 - 1):032x}"
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        for table in (KEYED, KEYLESS):
            rows = pair.database.state(table)
            ids = [id_of(row, is_keyed=table == KEYED) for row, n in rows.items() for _ in range(n)]
            sampled = sum(id_ < below for id_ in ids)
            found = judge.verify(table, Sample(Decimal(percent)))
            assert (found.result, found.rows_source, found.rows_target) == (Result.EQUAL, sampled, sampled)
            assert (found.scope, found.sample, found.keys) == (Extent.SAMPLE, float(percent), None)
            pair.warehouse.tamper(table, "a DELETE", lambda stored: stored.rows.clear())
            for _ in range(2):
                found = judge.verify(table, Sample(Decimal(percent)))
                assert found.counts == Counts(missing=sampled)
                assert (found.rows_source, found.rows_target) == (sampled, 0)


def test_a_sample_of_a_small_table_has_rows(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        for table in (KEYED, KEYLESS):
            rows = sum(pair.database.state(table).values())
            found = judge.verify(table, Sample(Decimal("0.0001")))
            assert found.result is Result.EQUAL
            assert bool(found.rows_source) is bool(rows)
            with pair.database.begin() as transaction:
                transaction.truncate(table)
        quiet(judge, capture)
        for table in (KEYED, KEYLESS):
            found = judge.verify(table, Sample(Decimal(5)))
            assert (found.result, found.rows_source, found.sample) == (Result.EQUAL, 0, 100.0)


def test_without_a_key_both_versions_of_a_row_count_if_they_are_in_the_sample(pair: Pair) -> None:
    fill(pair, 200)
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        rows = [row for row, n in pair.database.state(KEYLESS).items() for _ in range(n)]
        pair.warehouse.tamper(KEYLESS, "an UPDATE", spoil())
        old = sum(id_of(row, is_keyed=False) < "8" for row in rows)
        new = sum(id_of((row[0], "spoilt", row[2]), is_keyed=False) < "8" for row in rows)
        assert judge.verify(KEYLESS, Sample(Decimal(50))).counts == Counts(missing=old, extra=new)
        assert judge.verify(KEYLESS, Sample(Decimal(100))).counts == judge.verify(KEYLESS).counts


def neighbours() -> tuple[str, str, int, int]:
    """Two rows of one group of ids, which a sample can cut: their ids in order, then their keys."""
    groups: dict[str, tuple[str, int]] = {}
    for number in range(10_000, 20_000):
        id_ = digest_of(f"{number},")
        if id_[:4] in groups:
            (one, key), (other, last) = sorted([groups[id_[:4]], (id_, number)])
            return one, other, key, last
        groups[id_[:4]] = (id_, number)
    raise AssertionError("there are 65,536 groups")


def test_a_row_next_to_those_that_are_compared_is_none_of_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, first, last = neighbours()
    with pair.database.begin() as transaction:
        transaction.insert(KEYED, pair.row(first), pair.row(last))
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        pair.warehouse.tamper(KEYED, "an UPDATE", spoil(first, last))
        between = Decimal((int(one, 16) + int(other, 16)) // 2) / Decimal(16**32) * 100
        assert judge.verify(KEYED, Sample(between)).counts == Counts(different=1)
        assert judge.verify(KEYED, [one]).counts == Counts(different=1)
        # As if there were too many ids for a statement.
        monkeypatch.setattr(rounds, "IDS_MAX", 0)
        assert judge.verify(KEYED, [one]).counts == Counts(different=1)
        assert judge.verify(KEYED, [one, other]).counts == Counts(different=2)


def test_what_was_chosen_is_void_once_the_definition_changes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table without a key, each row has another id then."""
    fill(pair, 5)
    real, asked = Judge._round, list[Among | None]()
    schema = schema_of(KEYLESS)
    more = Column(name="c", type=pa.int32(), source_type="int")
    wider = replace(schema, columns=(*schema.columns, more))
    with pair.running() as (capture, judge):
        quiet(judge, capture)

        def altered_behind_the_first(self: Judge, compared: Any, among: Among | None) -> Any:
            one = real(self, compared, among)
            asked.append(among)
            if len(asked) == 1:
                with pair.database.begin() as transaction:
                    transaction.alter(wider, fill={"c": 7})
                capture.wait_until(lambda: len(shape(pair).columns) == len(wider.columns), "capture knows of it")
                capture.wait_until(lambda: is_whole(judge), "and the target")
                one.moved.add("0" * 32)
            return one

        monkeypatch.setattr(Judge, "_round", altered_behind_the_first)
        found = judge.verify(KEYLESS, Sample(Decimal(50)))
        assert found.result is Result.EQUAL
        assert [type(among) for among in asked] == [Below, Below]


def shape(pair: Pair) -> TableSchema:
    (found,) = [record.schema for record in pair.captured.store.tables(NAME) if record.table == KEYLESS]
    assert found is not None
    return found


def is_whole(judge: Judge) -> bool:
    try:
        judge._compared(KEYLESS)
    except NotVerifiedError:
        return False
    return True


# -- since


@pytest.mark.sampled(1)
@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_only_rows_that_were_changed_since_then_are_compared(pair: Pair, table: TableId) -> None:
    fill(pair, 30)
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        moment = now(pair)
        equal = judge.verify(table, Since(moment))
        assert (equal.result, equal.keys, equal.scope, equal.rows_source) == (
            Result.NOTHING_COMPARED, 0, Extent.SINCE, 0,
        )  # fmt: skip
        with pair.database.begin() as transaction:
            transaction.insert(table, pair.row(501), pair.row(502))
            (old,) = [row for row in pair.database.state(table) if row[0] == 10_007]
            transaction.delete(table, dict(zip(("id", "a", "b"), old, strict=True)))
        assert judge.verify(table, Since(moment)).keys == 3
        pair.warehouse.tamper(table, "an UPDATE", spoil(501, 10_003))
        found = judge.verify(table, Since(moment))
        # Of a table without a key, nothing that was changed since then became that row.
        counts = Counts(different=1) if table == KEYED else Counts(missing=1)
        assert (found.result, found.counts, found.rows_source) == (Result.DIFFERENT, counts, 2)
        assert judge.verify(table).counts.total == (2 if table == KEYED else 4)
        assert judge.verify(table, Since(now(pair))).result is Result.NOTHING_COMPARED
        moment = now(pair)
        with pair.database.begin() as transaction:
            (old,) = [row for row in pair.database.state(table) if row[0] == 10_008]
            transaction.delete(table, dict(zip(("id", "a", "b"), old, strict=True)))
        deleted = judge.verify(table, Since(moment))
        assert (deleted.result, deleted.keys, deleted.rows_source) == (Result.EQUAL, 1, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["truncated", "altered", "many", "beginning"])
def test_a_table_of_which_all_was_changed_is_compared_as_a_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fill(pair, 30)
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        # From the beginning on, the journal has the snapshot.
        moment = BEGINNING if what == "beginning" else now(pair)
        with pair.database.begin() as transaction:
            if what == "truncated":
                transaction.truncate(KEYED)
            if what == "altered":
                schema = schema_of(KEYED)
                more = Column(name="c", type=pa.int32(), source_type="int")
                transaction.alter(replace(schema, columns=(*schema.columns, more)), fill={"c": 7})
        if what == "many":
            monkeypatch.setattr(scope_module, "IDS_MAX", 5)
        if what != "altered":
            fill(pair, 6, first=500)
        found = capture.wait_until(
            lambda: one if (one := judge.verify(KEYED, Since(moment))).result is Result.EQUAL else None, "it is equal"
        )
        whole = judge.verify(KEYED, Whole())
        assert (found.scope, found.keys, found.rows_source) == (Extent.TABLE, None, whole.rows_source)


def test_what_the_journal_no_longer_has_is_told(pair: Pair) -> None:
    store = pair.captured.store
    fill(pair, 30)
    with pair.running() as (capture, judge):
        quiet(judge, capture)
        first = now(pair)
        fill(pair, 5, first=500)
        quiet(judge, capture)
        second = now(pair)
        fill(pair, 5, first=600)
        quiet(judge, capture)
        third = now(pair)
        assert [judge.verify(KEYED, Since(at)).keys for at in (first, second, third)] == [10, 5, 0]
        drop(pair, capture, first)
        # Something of before `first` is missing, but nothing of later.
        assert [judge.verify(KEYED, Since(at)).keys for at in (second, third)] == [5, 0]
        lost = judge.verify(KEYED, Since(BEGINNING))
        assert (lost.result, lost.scope) == (Result.NOT_VERIFIED, Extent.SINCE)
        assert lost.reason == "the journal may lack some of its changes since 2000-01-01 00:00:00 UTC"
        drop(pair, capture, second)
        assert judge.verify(KEYED, Since(first)).result is Result.NOT_VERIFIED
        drop(pair, capture, third)
        assert judge.verify(KEYED, Since(second)).result is Result.NOT_VERIFIED
        assert judge.verify(KEYED, Since(third)).keys == 0
        assert judge.verify(KEYED).result is Result.EQUAL
        assert store.requests.barriers(NAME) == []


def drop(pair: Pair, capture: RunningCapture, before: datetime) -> None:
    """Delete segments from the journal as retention does, except the newest that was sealed before a time."""
    store = pair.captured.store
    old = [segment.id for segment in store.journal.segments(NAME, 0, 10_000) if segment.sealed_at < before]
    store.drop_segments(NAME, capture.lease.epoch, old[:-1])


@pytest.mark.matrix
@pytest.mark.parametrize("of", ["sample", "since", "keys"])
def test_some_rows_are_equal_however_much_both_sides_move(pair: Pair, of: str) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            pair.write()
            stop.wait(0.002)

    with pair.running() as (capture, judge):
        quiet(judge, capture)
        scopes: dict[str, VerifyScope] = {
            "sample": Sample(Decimal(50)),
            "since": Since(now(pair)),
            "keys": OfIds(frozenset(digest_of(f"{n},") for n in (*range(100), 10_000))),
        }
        scope = scopes[of]
        writer = threading.Thread(target=write)
        writer.start()
        try:
            verdicts = [judge.verify(table, scope) for _ in range(3) for table in (KEYED, KEYLESS)]
        finally:
            stop.set()
            writer.join()
        assert Result.DIFFERENT not in {verdict.result for verdict in verdicts}, verdicts
        # By now the writer may have deleted every row of the keys.
        fill(pair, 1)
        quiet(judge, capture)
        pair.warehouse.tamper(KEYED, "a DELETE", lambda stored: stored.rows.clear())
        assert judge.verify(KEYED, scope).result is Result.DIFFERENT
