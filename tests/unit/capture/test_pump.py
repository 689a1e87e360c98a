"""Capture over the in-memory source: what is sealed folds to what the source holds, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from replicator.capture.snapshots import beginning
from replicator.capture.snapshots.starting import Inquiry
from replicator.config import DDLConfig
from replicator.model.errors import FatalError, FencedError, SourceUnavailableError
from replicator.model.events import DDLEvent, DDLOperation, SnapshotEvent, SnapshotPhase
from replicator.model.processes.reports import SnapshotStep
from replicator.model.schema import TableId
from replicator.state.records import Preparation, RequestKind, Stage
from replicator_testbed.journals.captured import PublishedWindow
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

STREAMING = (Stage.STREAMING,)
UNAVAILABLE = SourceUnavailableError("away", code="source_unavailable")


def _unavailable_after(call: str, count: int) -> Callable[[MemorySource], None]:
    """Calls that succeed so many times, and then do not once."""
    return lambda source: source.faults.script(call, *[None] * count, UNAVAILABLE)


def test_first_copy_and_changes_fold_to_the_source(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 7)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.update(table, (1,), {"a": "new"})
            changes.update(table, (2,), {"id": 20})
            changes.delete(table, (3,))
        capture.until(bench.holds(table))
    kinds = [type(item).__name__ for _, item in bench.items(table)][:2]
    assert kinds == ["DDLEvent", "SnapshotEvent"]
    record = bench.record(table)
    assert record is not None
    assert present(record.snapshot).rows == 7
    assert record.first_change is not None


def test_plain_first_copy_may_be_appended(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 5)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    assert bench.known(table).first_change is None


def test_several_tables_are_read_while_changes_flow(bench: Bench) -> None:
    tables = [bench.create(bench.schema(f"t{i}")) for i in range(3)]
    for table in tables:
        bench.fill(table, 9)
    with bench.running() as capture:
        for i in range(30):
            with bench.database.begin() as changes:
                changes.update(tables[i % 3], (1 + i % 9,), {"a": f"v{i}"})
        capture.until(lambda: bench.is_at(*STREAMING)() and all(bench.holds(t)() for t in tables))


def test_transaction_delivered_but_invisible_is_not_overwritten_by_the_copy(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    hidden = bench.database.begin()
    with bench.running() as capture:
        capture.source.faults.script(
            "read_chunk",
            lambda: hidden.is_committed or (hidden.update(table, (1,), {"a": "new"}), hidden.commit(visible=False)),
        )
        capture.until(bench.is_at(*STREAMING))
        bench.database.make_visible(hidden)
        capture.until(bench.holds(table))


def test_without_the_visibility_rule_the_copy_overwrites_it(bench: Bench) -> None:
    bench.make_window = PublishedWindow
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    bench.settings = replace(bench.settings, snapshot_mode="initial")
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        hidden = bench.database.begin()
        hidden.update(table, (1,), {"a": "new"})
        hidden.commit(visible=False)
        capture.until(lambda: ("1", "new") in {(str(r[0]), r[1]) for r in bench.folded(table)})
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
        capture.until(
            lambda: present(bench.known(table).snapshot).start_number is not None and bench.is_at(*STREAMING)()
        )
        bench.database.make_visible(hidden)
    assert not bench.holds(table)()


def test_partial_rows_take_what_they_lack_from_the_copy(bench: Bench) -> None:
    table = bench.create(bench.schema("t"), toasted=["b"])
    bench.fill(table, 4)
    with bench.running() as capture:

        def change() -> None:
            with bench.database.begin() as changes:
                changes.update(table, (1,), {"a": "partial"})
                changes.update(table, (4,), {"id": 9})

        capture.source.faults.script("read_chunk.after", change)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())


def test_too_many_keys_to_read_again_begin_the_table_again_without_the_chunk_that_was_read(bench: Bench) -> None:
    table = bench.create(bench.schema("t"), toasted=["b"])
    bench.fill(table, 6)
    bench.settings = replace(bench.settings, keys_max=1, chunks_ahead=1)
    with bench.running() as capture:

        def change(old: int, new: int) -> None:
            with bench.database.begin() as changes:
                changes.update(table, (old,), {"id": new})

        # The second chunk sees the first change: only the list knows that its key must be read again.
        capture.source.faults.script("read_chunk.after", lambda: change(6, 0), lambda: change(5, -1))
        capture.until(bench.is_at(*STREAMING))
        capture.until(bench.holds(table))


def test_rows_too_large_for_one_chunk_are_read_in_several(bench: Bench) -> None:
    table = bench.create(bench.schema("t"), toasted=["b"])
    bench.fill(table, 9)

    def fit_two(source: MemorySource) -> None:
        source.chunk_rows_fit = 2

    with bench.running(fit_two) as capture:

        def change() -> None:
            with bench.database.begin() as changes:
                for id_ in (5, 6, 7, 8, 9):
                    changes.update(table, (id_,), {"id": id_ + 100})

        capture.source.faults.script("read_chunk.after", change)
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert capture.source.faults.counts["read_chunk"] > 5


def test_restart_continues_after_the_last_chunk(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 10)

    def fail_third(source: MemorySource) -> None:
        source.faults.script("read_chunk", None, None, UNAVAILABLE)

    bench.settings = replace(bench.settings, chunk_retries=0, chunks_ahead=1, seal_rows=1)
    with pytest.raises(SourceUnavailableError), bench.running(fail_third) as capture:
        capture.join()
    progress = bench.known(table).snapshot
    assert progress is not None
    assert 0 < progress.rows < 10
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.known(table).snapshot).rows == 10


def test_chunk_that_fails_for_a_passing_reason_is_read_again(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running(lambda s: s.faults.script("read_chunk", UNAVAILABLE, UNAVAILABLE)) as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())


@pytest.mark.parametrize(
    ("call", "step"), [("mark", 1), ("acknowledge", 1), ("pull", 5), ("describe", 1), ("visibility", 1)]
)
def test_error_at_any_call_loses_and_doubles_nothing(bench: Bench, call: str, step: int) -> None:
    keyed, bag = bench.create(bench.schema("t")), bench.create(bench.schema("bag", key=()))
    bench.fill(keyed, 5)
    bench.fill(bag, 5)
    tries = 0
    while True:
        tries += 1
        assert tries < 30
        bench.write(bag, {"id": 1, "a": "again", "b": None})
        bench.write(keyed, {"id": 100 + tries, "a": "new", "b": None})
        try:
            with bench.running(_unavailable_after(call, tries * step)) as capture:
                capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(keyed)() and bench.holds(bag)())
        except SourceUnavailableError:
            continue
        break
    assert bench.holds(keyed)()
    assert bench.holds(bag)()


class JustNow:
    """A call that ends right behind the first look at it."""

    def __init__(self, call: Future[Any]) -> None:
        self._call, self._looks = call, 0

    def done(self) -> bool:
        self._looks += self._call.done()
        return self._looks > 1

    def result(self) -> object:
        return self._call.result()

    def exception(self) -> BaseException | None:
        return self._call.exception()


def test_an_answer_that_comes_between_two_looks_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be waited for without end."""
    inquiries: list[JustNow] = []

    def inquiry(call: Future[Any], ids: tuple[int, ...]) -> Inquiry:
        inquiries.append(JustNow(call))
        return Inquiry(cast("Future[Any]", inquiries[-1]), ids)

    monkeypatch.setattr(beginning, "Inquiry", inquiry)
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert inquiries


def test_table_without_key_gets_one_snapshot_with_changes_around(bench: Bench) -> None:
    table = bench.create(bench.schema("bag", key=()))
    bench.fill(table, 5)
    bench.fill(table, 5)

    def change() -> None:
        bench.write(table, {"id": 1, "a": "a1", "b": "b1"})
        with bench.database.begin() as changes:
            changes.delete(table, {"id": 2, "a": "a2", "b": "b2"})
            changes.update(table, {"id": 3, "a": "a3", "b": "b3"}, {"a": "new"})

    with bench.running(lambda s: s.faults.script("read_whole.batch", change)) as capture:
        capture.until(bench.is_at(*STREAMING))
        change_after = bench.database.begin()
        change_after.delete(table, {"id": 4, "a": "a4", "b": "b4"})
        change_after.commit()
        capture.until(bench.holds(table))


def test_truncate_during_the_copy(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 6)

    def truncate() -> None:
        with bench.database.begin() as changes:
            changes.truncate(table)
            changes.insert(table, {"id": 1, "a": "after", "b": None})

    with bench.running(lambda s: s.faults.script("read_chunk.after", None, truncate)) as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())


def test_truncate_of_a_copied_table_is_an_event_and_no_reason_for_a_snapshot(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.truncate(table)
            changes.insert(table, {"id": 7, "a": "x", "b": "y"})
        found = bench.database.table(table).identity()
        capture.until(lambda: bench.known(table).identity == found and bench.holds(table)())
    assert present(bench.known(table).snapshot).start_number is None


def test_table_made_again_without_a_trace_gets_a_snapshot_in_place(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.database.drop_table(table)
    bench.create(bench.schema("t"))
    bench.fill(table, 2, first=50)
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.known(table).snapshot).start_number is not None
    assert bench.known(table).incarnation == 1


def test_unexplained_change_stops_if_the_policy_says_so(bench: Bench) -> None:
    bench.settings = replace(bench.settings, unexplained_change="stop")
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.database.drop_table(table)
    bench.create(bench.schema("t"))
    with pytest.raises(FatalError, match="replaced by another"), bench.running() as capture:
        capture.join()


def test_changed_key_begins_a_new_incarnation_where_the_policy_says_so(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(change_key="apply"))
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(bench.schema("t", key=("id", "a")))
        capture.until(lambda: bench.known(table).incarnation == 2 and bench.is_at(*STREAMING)())
    creates = [i for _, i in bench.items(table) if isinstance(i, DDLEvent) and i.operation is DDLOperation.CREATE_TABLE]
    assert [present(c.schema).key for c in creates] == [("id",), ("id", "a")]


def test_changed_columns_fail_the_table_and_a_request_takes_a_snapshot(bench: Bench) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(add_column="stop"))
    table, other = bench.create(bench.schema("t")), bench.create(bench.schema("other"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(bench.schema("t", extra=["c"]))
            changes.insert(table, {"id": 9, "a": "x", "b": "y", "c": "z"})
        bench.fill(other, 2)
        capture.until(lambda: bench.known(table).stage is Stage.FAILED and bench.holds(other)())
        assert bench.error_of(table).code == "ddl_stop"
        assert "added c" in bench.error_of(table).message
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
        capture.until(
            lambda: bench.is_at(*STREAMING)() and bench.holds(table)() and not bench.store.requests.open("test")
        )
    assert bench.known(table).incarnation == 2


def test_requested_snapshot_runs_in_place_and_closes_its_request(bench: Bench) -> None:
    table, bag = bench.create(bench.schema("t")), bench.create(bench.schema("bag", key=()))
    bench.fill(table, 5)
    bench.fill(bag, 5)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": []})
        capture.until(lambda: not bench.store.requests.open("test"))
        bench.write(table, {"id": 77, "a": "during", "b": None})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)() and bench.holds(bag)())
    phases = [i.phase for _, i in bench.items(table) if isinstance(i, SnapshotEvent)]
    assert phases == [SnapshotPhase.STARTED, SnapshotPhase.COMPLETED] * 2


def test_snapshots_and_failures_are_told_in_the_log(bench: Bench) -> None:
    schema = bench.schema("t")
    retyped = [replace(column, type=pa.binary()) for column in schema.columns[1:]]
    table = bench.create(schema)
    bench.fill(table, 7)
    with capture_logs() as lines, bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": []})
        capture.until(lambda: not bench.store.requests.open("test"))
        capture.until(bench.is_at(*STREAMING))
        with bench.database.begin() as changes:
            changes.alter(replace(schema, columns=(schema.columns[0], *retyped)))
        capture.until(lambda: bench.known(table).stage is Stage.FAILED)
    told = [
        (line["event"], line.get("rows"), line.get("in_place"), line.get("code"))
        for line in lines
        if line.get("table") == str(table) and line["event"] != "snapshot_progress"
    ]
    assert told == [
        ("snapshot_started", 0, False, None),
        ("snapshot_complete", 7, None, None),
        ("snapshot_started", 0, True, None),
        ("snapshot_complete", 7, None, None),
        ("table_failed", None, None, "ddl_stop"),
    ]


def creates(bench: Bench, table: TableId) -> int:
    """How many incarnations of the table the journal begins."""
    events = [i for _, i in bench.items(table) if isinstance(i, DDLEvent)]
    return sum(e.operation is DDLOperation.CREATE_TABLE for e in events)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_dropped_table_that_came_back_begins_a_new_incarnation(bench: Bench, is_stopped: bool) -> None:
    bench.settings = replace(bench.settings, ddl=lambda _: DDLConfig(drop_table="apply"), compare_every_s=0.05)
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)

    def come_back(capture: Any) -> None:
        bench.create(bench.schema("t"))
        bench.fill(table, 2, first=50)
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
        capture.until(
            lambda: not bench.store.requests.open("test") and bench.is_at(*STREAMING)() and bench.holds(table)()
        )

    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.drop_table(table)
        capture.until(bench.is_at(Stage.FAILED))
        if not is_stopped:
            come_back(capture)
    if is_stopped:
        with bench.running() as capture:
            come_back(capture)
    assert bench.known(table).incarnation == creates(bench, table) == 2


def test_recreation_survives_that_the_log_is_opened_again_for_it(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.database.drop_table(table)
    with bench.running() as capture:
        capture.until(bench.is_at(Stage.FAILED))
    bench.create(bench.schema("t"))
    with (  # noqa: PT012 (it is raised when the capture is joined)
        pytest.raises(SourceUnavailableError),
        bench.running(lambda s: s.faults.script("open_log", None, UNAVAILABLE)) as capture,
    ):
        bench.store.requests.add("test", RequestKind.RECREATE, {"tables": [str(table)]})
        capture.join()
    assert bench.known(table).stage is Stage.PENDING
    with bench.running() as capture:
        capture.until(
            lambda: not bench.store.requests.open("test") and bench.is_at(*STREAMING)() and bench.holds(table)()
        )
    assert bench.known(table).incarnation == creates(bench, table) == 2


def test_recreation_of_a_table_that_waits_for_its_copy_is_that_copy(bench: Bench) -> None:
    table, other = bench.create(bench.schema("t")), bench.create(bench.schema("other"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        hidden = bench.write(other, {"id": 1, "a": None, "b": None}, visible=False)
        capture.until(
            lambda: any(
                text.startswith(f"{hidden}@") for text in present(bench.store.journal.last_segment("test")).ring
            )
        )
    bench.database.drop_table(table)
    bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(lambda: bench.known(table).stage is Stage.PENDING)
        bench.store.requests.add("test", RequestKind.RECREATE, {"tables": [str(table)]})
        capture.until(lambda: not bench.store.requests.open("test"))
    bench.database.make_visible(hidden)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    assert bench.known(table).incarnation == creates(bench, table) == 2


def test_copy_that_waits_for_a_transaction_to_become_visible_says_so(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        hidden = bench.write(table, {"id": 1, "a": None, "b": None}, visible=False)
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
        capture.until(lambda: capture.control.status.waiting_for == (f"transaction {hidden}",))
        assert capture.control.status.tables[str(table)].step is SnapshotStep.SETTLING
        bench.database.make_visible(hidden)
        capture.until(lambda: not bench.store.requests.open("test") and not capture.control.status.waiting_for)


def test_a_position_request_is_done_once_everything_before_it_is_sealed(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.fill(table, 3)
        bench.store.requests.add("test", RequestKind.POSITION, {})
        capture.until(lambda: not bench.store.requests.open("test"))
        assert bench.holds(table)()
        assert present(bench.store.journal.last_segment("test")).last >= max(number for number, _ in bench.items(table))


def test_restart_request_begins_at_a_new_position_with_snapshots_in_place(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    with bench.database.begin() as changes:
        changes.delete(table, (1,))
    bench.database.forget_log()
    bench.store.requests.add("test", RequestKind.RESTART, {})
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.known(table).snapshot).start_number is not None
    assert not bench.store.requests.open("test")


def test_restart_request_is_heard_while_running(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 4)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.store.requests.add("test", RequestKind.RESTART, {})
        capture.until(
            lambda: not bench.store.requests.open("test") and bench.is_at(*STREAMING)() and bench.holds(table)()
        )
    assert present(bench.known(table).snapshot).start_number is not None


def test_tables_added_are_read_and_tables_removed_end(bench: Bench) -> None:
    first, second = bench.create(bench.schema("t1")), bench.create(bench.schema("t2"))
    bench.fill(first, 3)
    bench.fill(second, 3)
    bench.tables = [first]
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.tables = [second]
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(second)())
    assert bench.known(first).stage is Stage.REMOVED
    bench.tables = [first, second]
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(first)())
    assert bench.known(first).incarnation == 2


def test_mode_only_ends_when_everything_is_copied(bench: Bench) -> None:
    bench.settings = replace(bench.settings, snapshot_mode="only")
    table = bench.create(bench.schema("t"))
    bench.fill(table, 5)
    with bench.running() as capture:
        capture.join()
    assert bench.holds(table)()


def test_mode_never_captures_changes_alone(bench: Bench) -> None:
    bench.settings = replace(bench.settings, snapshot_mode="never")
    table = bench.create(bench.schema("t"))
    bench.fill(table, 5)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.write(table, {"id": 6, "a": "new", "b": None})
        capture.until(lambda: bench.folded(table) == Counter({(6, "new", None): 1}))


def test_transaction_larger_than_a_pull_is_sealed_whole(bench: Bench) -> None:
    bench.settings = replace(bench.settings, pull_rows=3, seal_rows=1)
    table = bench.create(bench.schema("t"))
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.fill(table, 20)
        capture.until(bench.holds(table))
    segments = [s for s in bench.store.journal.segments("test", 0, 1000) if any(f.rows for f in s.files)]
    assert len(segments) == 1


def test_fenced_writer_ends(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    with pytest.raises(FencedError), bench.running() as capture:  # noqa: PT012 (it is raised when the capture is joined)
        capture.until(bench.is_at(*STREAMING))
        bench.store.leases.release(present(bench.store.leases.current("test")))
        bench.store.leases.acquire("test", "other:1:1", 3600)
        bench.fill(table, 1)
        capture.join()


def test_unsealed_intent_is_prepared_again(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 2)
    with (
        pytest.raises(SourceUnavailableError),
        bench.running(lambda s: s.faults.script("prepare.after", UNAVAILABLE)) as capture,
    ):
        capture.join()
    assert present(bench.store.replicator("test")).preparation is Preparation.INTENT
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(table)())
    assert present(bench.store.replicator("test")).preparation is Preparation.READY


def test_invisible_transaction_survives_a_restart_in_the_ring(bench: Bench) -> None:
    table = bench.create(bench.schema("t"))
    bench.fill(table, 3)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        hidden = bench.database.begin()
        hidden.update(table, (1,), {"a": "hidden"})
        id_ = hidden.commit(visible=False)
        capture.until(
            lambda: any(text.startswith(f"{id_}@") for text in present(bench.store.journal.last_segment("test")).ring)
        )
    bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(table)]})
    with bench.running() as capture:
        capture.until(lambda: capture.source.faults.counts["visibility"] > 2)
        bench.database.make_visible(hidden)
        capture.until(
            lambda: not bench.store.requests.open("test") and bench.is_at(*STREAMING)() and bench.holds(table)()
        )
    assert (
        present(bench.store.journal.last_segment("test")).ring == ()
        or not present(bench.store.journal.last_segment("test")).ring
    )
