"""The judge over a database and a target in memory, while both move: it finds whatever somebody changed in the target, and nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.apply import Apply
from replicator.config import TableOptions
from replicator.journal import JournalReader
from replicator.model.processes.reports import Report
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import SourceContext
from replicator.state.records import RequestKind
from replicator.state.store import StateStore
from replicator.verify import Counts, Judge, Kind, Repair, Result, Verdict
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testing.defaults import AT_ONCE, apply_settings, target_context
from replicator_testing.memory import MemoryDatabase, MemorySource, MemorySourceConfig, MemoryTarget, MemoryTargetConfig
from replicator_testing.memory.target import MemoryWarehouse, StoredTable
from replicator_testing.oracle import StoredRow

KEYED, KEYLESS = TableId("shop", "keyed"), TableId("shop", "keyless")
NAME = "verified"


def schema_of(table: TableId) -> TableSchema:
    columns = (
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="a", type=pa.string(), source_type="text"),
        Column(name="b", type=pa.float64(), source_type="float8"),
    )
    return TableSchema(table=table, columns=columns, key=("id",) if table == KEYED else ())


class UntilStopped:
    """Stops apply when told to."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def should_stop(self) -> bool:
        return self.stopped.is_set()

    def wait(self, timeout_s: float) -> None:
        self.stopped.wait(min(timeout_s, 0.01))

    def announce(self, event: str, **_: Any) -> None:
        del event

    def report(self, report: Report) -> None:
        del report


@dataclass
class Copied:
    """What copies the tables of a source to a target in memory, and a judge of both."""

    captured: Captured
    warehouse: MemoryWarehouse
    make_target: Callable[[int], MemoryTarget]

    @contextmanager
    def running(self) -> Iterator[tuple[RunningCapture, Judge]]:
        """Capture and apply in threads of their own, and a judge."""
        name = self.captured.name
        with self.captured.running() as capture:
            record = self.captured.store.replicator(name)
            assert record is not None
            control, errors = UntilStopped(), list[BaseException]()
            apply = Apply(
                self.make_target(capture.lease.epoch),
                self.captured.store,
                JournalReader(self.captured.store, name),
                name=name,
                uuid=record.uuid,
                epoch=capture.lease.epoch,
                settings=apply_settings(AT_ONCE),
            )

            def run() -> None:
                try:
                    apply.run(control)
                except BaseException as error:  # noqa: BLE001 - raised below
                    errors.append(error)

            thread = threading.Thread(target=run, name="apply")
            thread.start()

            def check() -> None:
                if errors or capture.errors:
                    raise [*errors, *capture.errors][0]

            source = self.captured.make_source(SourceContext(replicator=name, uuid=record.uuid))
            judge = Judge(
                source=source,
                target=self.make_target(0),
                store=self.captured.store,
                reader=JournalReader(self.captured.store, name),
                name=name,
                uuid=record.uuid,
                options=lambda _: TableOptions(),
                barriers=Barriers(
                    store=self.captured.store, name=name, check=check, wait=lambda: control.stopped.wait(0.01)
                ),
                with_values=True,
                keys_max=100,
            )
            try:
                yield capture, judge
            finally:
                control.stopped.set()
                thread.join()
                source.close()
            check()


@dataclass
class Pair(Copied):
    """Both sides, and what copies one to the other."""

    database: MemoryDatabase
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    inserted: int = 0

    def row(self, id_: int) -> dict[str, Any]:
        return {
            "id": id_,
            "a": self.draw.choice(["x", "", None, "größe" * 60]),
            "b": self.draw.choice([0.1, -0.0, 1e300]),
        }

    def write(self) -> None:
        """One random transaction over both tables, which others may see late."""
        is_visible = self.draw.random() < 0.7
        transaction = self.database.begin()
        for table in (KEYED, KEYLESS):
            rows = [dict(zip(("id", "a", "b"), row, strict=True)) for row in self.database.state(table)]
            old = self.draw.choice(rows) if rows else None
            match self.draw.choice(["insert", "update", "delete"]):
                case "update" if old is not None:
                    transaction.update(table, old, {"a": self.draw.choice(["y", "z"])})
                case "delete" if len(rows) > 20 and old is not None:
                    transaction.delete(table, old)
                case _:
                    self.inserted += 1
                    transaction.insert(table, self.row(self.inserted))
        transaction.commit(visible=is_visible)
        if not is_visible:
            self.database.make_visible(transaction)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    database, name = MemoryDatabase.open(str(tmp_path)), str(tmp_path)
    for table in (KEYED, KEYLESS):
        database.create_table(schema_of(table))
    captured = Captured(
        folder=tmp_path,
        name=NAME,
        make_source=lambda context: MemorySource(MemorySourceConfig(database=name), context),
        tables=[KEYED, KEYLESS],
    )
    record = captured.store.replicator(NAME)
    assert record is not None

    def make_target(epoch: int) -> MemoryTarget:
        return MemoryTarget(
            MemoryTargetConfig(database=name), target_context(replicator=NAME, uuid=record.uuid, epoch=epoch)
        )

    pair = Pair(captured, MemoryWarehouse.open(name), make_target, database)
    for _ in range(5):
        pair.write()
    yield pair
    captured.close()


def settled(judge: Judge, table: TableId, capture: RunningCapture) -> Verdict:
    """The first verdict of a table whose snapshot the target has."""
    return capture.wait_until(
        lambda: verdict if (verdict := judge.verify(table)).result is not Result.NOT_VERIFIED else None,
        "it was verified",
    )


def test_tables_are_equal_however_much_both_sides_move(pair: Pair) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            pair.write()
            stop.wait(0.005)

    with pair.running() as (capture, judge):
        for table in (KEYED, KEYLESS):
            settled(judge, table, capture)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            # Rows that are written all the time may stay undecided, never different.
            verdicts = [settled(judge, table, capture) for table in (KEYED, KEYLESS)]
        finally:
            stop.set()
            writer.join()
    assert [verdict for verdict in verdicts if verdict.result is not Result.EQUAL] == []
    assert pair.captured.store.requests.barriers(NAME) == []


def change(values: dict[str, Any]) -> Callable[[StoredTable], None]:
    def act(stored: StoredTable) -> None:
        stored.rows[0].values = {**stored.rows[0].values, **values}

    return act


def remove(stored: StoredTable) -> None:
    stored.rows.pop(0)


def double(stored: StoredTable) -> None:
    stored.rows.append(StoredRow(values=dict(stored.rows[0].values), sequence_num=stored.rows[0].sequence_num))


def add(stored: StoredTable) -> None:
    stored.rows.append(StoredRow(values={"id": 1000, "a": "new", "b": None}, sequence_num=1))


def exchange(stored: StoredTable) -> None:
    """Two equal errors in one group must not cancel each other."""
    first, second = stored.rows[0], stored.rows[1]
    first.values, second.values = {**first.values, "a": "1"}, {**second.values, "a": "1"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
@pytest.mark.parametrize(
    ("act", "keyed", "keyless"),
    [
        (change({"a": "other"}), Counts(different=1), Counts(missing=1, extra=1)),
        (change({"b": 0.10000000000000002}), Counts(different=1), Counts(missing=1, extra=1)),
        (change({"a": "größe" * 60 + " "}), Counts(different=1), Counts(missing=1, extra=1)),
        (remove, Counts(missing=1), Counts(missing=1)),
        (double, Counts(extra=1), Counts(extra=1)),
        (add, Counts(extra=1), Counts(extra=1)),
        (exchange, Counts(different=2), Counts(missing=2, extra=2)),
    ],
    ids=["value", "last_digit", "trailing_space", "lost", "doubled", "invented", "two"],
)
def test_what_somebody_changed_in_the_target_is_found(
    pair: Pair, table: TableId, act: Callable[[StoredTable], None], keyed: Counts, keyless: Counts
) -> None:
    with pair.running() as (capture, judge):
        assert settled(judge, table, capture).result is Result.EQUAL
        pair.warehouse.tamper(table, "an UPDATE", act)
        verdict = judge.verify(table)
        assert (verdict.result, verdict.counts) == (Result.DIFFERENT, keyed if table == KEYED else keyless)
        assert len(verdict.differences) == verdict.counts.total
        assert all(difference.key for difference in verdict.differences)
        assert {d.columns for d in verdict.differences if d.kind is Kind.DIFFERENT} <= {("a",), ("b",)}
        assert not verdict.is_truncated
        repaired = Repair(judge=judge, rows_max=100).repair(verdict)
        assert (repaired.result, repaired.repaired, repaired.counts) == (Result.EQUAL, verdict.counts, Counts())
        assert repaired.rows_source == repaired.rows_target
        assert judge.verify(table).result is Result.EQUAL


@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_a_row_that_is_there_three_times_is_described_once(pair: Pair, table: TableId) -> None:
    """Under XOR, its two copies would cancel each other."""
    with pair.running() as (capture, judge):
        settled(judge, table, capture)
        for _ in range(2):
            pair.warehouse.tamper(table, "an INSERT", double)
        verdict = judge.verify(table)
        assert (verdict.counts, [one.rows for one in verdict.differences]) == (Counts(extra=2), [2])
        assert not verdict.is_truncated


@pytest.mark.sampled(1)
@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_rows_are_repaired_while_both_sides_move(pair: Pair, table: TableId) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            pair.write()
            stop.wait(0.01)

    with pair.running() as (capture, judge):
        settled(judge, table, capture)
        pair.warehouse.tamper(table, "statements", remove)
        pair.warehouse.tamper(table, "statements", change({"a": "other"}))
        pair.warehouse.tamper(table, "statements", add)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            verdict = judge.verify(table)
            while verdict.result is Result.NOT_VERIFIED:
                verdict = judge.verify(table)
            Repair(judge=judge, rows_max=100).repair(verdict)
        finally:
            stop.set()
            writer.join()
        last = judge.verify(table)
        if last.result is Result.DIFFERENT:
            # Rows that were changed again and again may have stayed undecided.
            last = Repair(judge=judge, rows_max=100).repair(last)
        assert last.result is Result.EQUAL
    assert all(request.kind is RequestKind.BARRIER for request in pair.captured.store.requests.open(NAME))


def test_rows_whose_keys_no_source_can_have_are_told_and_the_others_repaired(pair: Pair) -> None:
    def add_nameless(stored: StoredTable) -> None:
        add(stored)
        stored.rows.append(StoredRow(values={"id": None, "a": "nameless", "b": None}, sequence_num=1))

    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        pair.warehouse.tamper(KEYED, "an INSERT", add_nameless)
        found = judge.verify(KEYED)
        assert found.counts == Counts(extra=2)
        told = Repair(judge=judge, rows_max=100).repair(found)
        assert (told.result, told.counts) == (Result.DIFFERENT, Counts(extra=1))
        assert (told.reason, told.action) == (
            "rows have a key that is NULL, or no value of its type: they cannot be repaired",
            f"Run `replicator snapshot {NAME} {KEYED} --recreate`.",
        )
        assert judge.verify(KEYED).counts == Counts(extra=1)


class UnreadableTarget(MemoryTarget):
    """Fails by an unexpected error, whose text has a value."""

    def open_state(self, *_: Any, **__: Any) -> Any:
        raise ValueError("4711")


def test_an_unexpected_error_is_told_of_its_table(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        judge.target = UnreadableTarget(judge.target.config, judge.target.context)
        told = judge.verify(KEYED)
    assert told.result is Result.NOT_VERIFIED
    assert told.reason is not None
    assert told.reason.startswith("unexpected ValueError while verifying it")
    assert "4711" not in told.reason
    assert pair.captured.store.requests.barriers(NAME) == []


def test_more_rows_than_may_be_repaired_stay_as_they_are(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        pair.warehouse.tamper(KEYED, "an UPDATE", exchange)
        found = Repair(judge=judge, rows_max=1).repair(judge.verify(KEYED))
        assert (found.result, found.counts) == (Result.DIFFERENT, Counts(different=2))
        assert "verify.repair_rows_max (1)" in (found.reason or "")
        assert f"replicator snapshot {NAME} {KEYED}" in (found.action or "")
        assert judge.verify(KEYED).result is Result.DIFFERENT


def test_a_repair_that_nobody_works_on_ends(pair: Pair) -> None:
    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        pair.warehouse.tamper(KEYED, "an UPDATE", exchange)
        verdict = judge.verify(KEYED)

        def check() -> None:
            raise NotVerifiedError("nobody works on it", "Start it.")

        idle = replace(judge, name=NAME, barriers=replace(judge.barriers, check=check))
        # Capture takes a request in a moment: the first look is before that.
        found = Repair(judge=idle, rows_max=100).repair(verdict)
        assert (found.result, found.action) == (Result.DIFFERENT, "Start it.")
        assert found.reason == "it was not repaired: nobody works on it"


class KeepsNoFloats(MemoryTarget):
    """A target whose settings make something else of them."""

    def not_compared(self, schema: TableSchema) -> Sequence[str]:
        return [column.name for column in schema.columns if pa.types.is_floating(column.type)]


@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_columns_that_the_target_does_not_keep_as_they_were_are_not_compared(pair: Pair, table: TableId) -> None:
    with pair.running() as (capture, judge):
        settled(judge, table, capture)
        pair.warehouse.tamper(table, "an UPDATE", change({"b": 0.5}))
        assert judge.verify(table).result is Result.DIFFERENT
        assert isinstance(judge.target, MemoryTarget)
        without = replace(judge, target=KeepsNoFloats(judge.target.config, judge.target.context))
        verdict = without.verify(table)
        assert (verdict.result, verdict.not_compared) == (Result.EQUAL_IN_PART, ("b",))
        pair.warehouse.tamper(table, "an UPDATE", change({"a": "other"}))
        assert without.verify(table).result is Result.DIFFERENT


def test_a_table_that_was_dropped_is_not_verified_and_says_so(pair: Pair) -> None:
    pair.captured.settings = replace(pair.captured.settings, compare_every_s=0.05)
    with pair.running() as (capture, judge):
        settled(judge, KEYED, capture)
        pair.database.drop_table(KEYED)
        reason = "the source does not have it any more"
        capture.wait_until(lambda: reason in str(judge.verify(KEYED).reason), "it says so")
        assert judge.verify(KEYED).result is Result.NOT_VERIFIED


@pytest.mark.parametrize(
    ("moved", "left"), [(timedelta(hours=25), 0), (timedelta(hours=23), 1), (-timedelta(hours=25), 0)]
)
def test_what_a_killed_verification_left_is_removed_after_a_day_by_the_clock_of_the_store(
    tmp_path: Path, moved: timedelta, left: int
) -> None:
    """Also where that was set back since."""
    now = [datetime(2026, 1, 31, 12, tzinfo=UTC)]
    with closing(StateStore(f"sqlite:///{tmp_path / 'state.db'}", clock=lambda: now[0])) as store:
        store.create_replicator(NAME, "", "file:///j")
        store.requests.add(NAME, RequestKind.BARRIER, {})
        now[0] += moved
        Barriers(store=store, name=NAME, check=lambda: None, wait=lambda: None).forget_old()
        assert len(store.requests.open(NAME)) == left


def test_what_a_killed_verification_left_is_removed(pair: Pair) -> None:
    store = pair.captured.store
    asked = store.requests.add(NAME, RequestKind.BARRIER, {})

    def check() -> None:
        raise NotVerifiedError("nobody works on it")

    barriers = Barriers(store=store, name=NAME, check=check, wait=lambda: None, forgotten_by_s=0.0)
    barriers.forget_old()
    assert [request.id for request in store.requests.open(NAME)] == []
    store.requests.remove(asked)
    with pytest.raises(NotVerifiedError), barriers.held():
        pass
    assert store.requests.open(NAME) == []
