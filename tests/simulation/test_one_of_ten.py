"""Ten tables from source to target, and an error at every call that is made for one of them: the nine others continue.

One pair of capture and apply meets one call after the other, with every kind of error; afterwards a snapshot brings the table back. What
is left out here are calls that are about no table.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.apply import Apply
from replicator.capture import window
from replicator.capture.definitions import comparison
from replicator.capture.snapshots import driver as snapshots
from replicator.capture.snapshots.driver import SnapshotRunner
from replicator.capture.tables import TrackedTable, TrackedTables
from replicator.capture.tracker import CatalogTracker
from replicator.capture.window import Window
from replicator.journal import JournalReader
from replicator.journal.table_file import TableFile
from replicator.model.documents.status import ErrorStatus, TableState
from replicator.model.errors import AccessDeniedError, FatalError, TableError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.service.status import assemble as status
from replicator.state.records import RequestKind
from replicator_testbed.journals.captured import QUICK, CaptureControl, Captured, RunningCapture
from replicator_testing.defaults import AT_ONCE, apply_settings, target_context
from replicator_testing.memory import MemoryDatabase, MemorySource, MemorySourceConfig, MemoryTarget, MemoryTargetConfig
from replicator_testing.waiting import wait_until

PARTS = 30
"""One world is not asked to meet all calls: each costs what a test may."""

ERRORS: Final[Mapping[str, tuple[Callable[[TableId], BaseException], str]]] = {
    "TableError": (lambda t: TableError("no", code="schema_conflict", table=str(t)), "schema_conflict"),
    "FatalError": (lambda t: FatalError("no", code="source_error", table=str(t)), "source_error"),
    "AccessDeniedError": (lambda t: AccessDeniedError("no", code="access_denied", table=str(t)), "access_denied"),
    "RuntimeError": (lambda _: RuntimeError("a value: 42"), "internal_error"),
    "ArrowInvalid": (lambda _: pa.ArrowInvalid("a value: 42"), "internal_error"),
    "OverflowError": (lambda _: OverflowError("a value: 42"), "internal_error"),
}
OF_SOURCE: Final = (
    "describe", "check", "prepare", "accept", "decode", "open_log.table",
    "read_chunk", "read_chunk.after", "read_whole", "read_whole.batch",
)  # fmt: skip
OF_TARGET: Final = (
    "read_ledger", "claim", "claim.after", "apply_ddl", "apply_ddl.after", "apply_batch", "apply_batch.after",
    "complete_snapshot", "complete_snapshot.after", "advance", "advance.after", "audit",
)  # fmt: skip
ADVICE: Final = ("rest_s", "rows_max", "engine")
"""What the target is asked about a table and may leave unanswered: no table fails for it."""
OF_HOST: Final[Mapping[str, tuple[Any, str]]] = {
    "journal file: append": (TableFile, "append"),
    "journal file: flush": (TableFile, "flush"),
    "journal file: finish": (TableFile, "finish"),
    "window: changes": (Window, "_touched"),
    "window: chunk": (Window, "add_chunk"),
    "window: whole read": (Window, "add_whole"),
    "window: emit": (Window, "emit"),
    "snapshots: begin": (SnapshotRunner, "begin"),
    "snapshots: hold back": (SnapshotRunner, "is_held_back"),
    "snapshots: rows": (snapshots, "snapshot_changes"),
    "tracker: match": (TrackedTable, "matches"),
    "tracker: DDL": (CatalogTracker, "_ddl"),
    "tracker: judge": (comparison, "judge"),
    "tables: rows": (TrackedTables, "rows"),
    "tables: new incarnation": (TrackedTables, "begin_incarnation"),
    "tables: snapshot in place": (TrackedTables, "begin_again"),
    "tables: progress": (TrackedTables, "put_progress"),
    "tables: complete": (TrackedTables, "complete"),
    "reader: feed": (JournalReader, "feed"),
    "reader: schema": (JournalReader, "schema"),
    "reader: check": (JournalReader, "check"),
    "window: watch": (window.Window, "watch"),
}
KEYED_ONLY: Final = {"read_chunk", "read_chunk.after", "window: changes", "window: chunk", "window: emit"}
KEYLESS_ONLY: Final = {"read_whole", "read_whole.batch", "window: whole read", "snapshots: rows"}


def schema_of(name: str, *, has_key: bool) -> TableSchema:
    columns = (
        Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),
        Column(name="v", type=pa.string(), source_type="text"),
    )
    return TableSchema(table=TableId("shop", name), columns=columns, key=("id",) if has_key else ())


@dataclass(slots=True)
class Breaker:
    """Makes a method of the host fail for one table."""

    monkeypatch: pytest.MonkeyPatch
    victim: TableId
    error: Callable[[TableId], BaseException] | None = None
    hits: int = 0

    def install(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def broken(*arguments: Any, **named: Any) -> Any:
            if self.error is not None and any(self._is_victims(a) for a in arguments):
                self.hits += 1
                raise self.error(self.victim)
            return real(*arguments, **named)

        self.monkeypatch.setattr(owner, name, broken)

    def _is_victims(self, argument: Any) -> bool:
        if isinstance(argument, TableId):
            return argument == self.victim
        for name in ("table", "schema", "tracked", "reading"):
            if (found := getattr(argument, name, None)) is not None:
                return self._is_victims(found)
        return False


@dataclass(slots=True, kw_only=True)
class Pair:
    """Ten tables on their way."""

    database: MemoryDatabase
    captured: Captured
    capture: RunningCapture
    source: MemorySource
    target: MemoryTarget
    victim: TableId
    apply_errors: list[BaseException]
    rows: Counter[TableId] = field(default_factory=Counter)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1_000_000))

    def write(self, *tables: TableId) -> None:
        for table in tables:
            with self.database.begin() as transaction:
                self.rows[table] += 1
                number = self.rows[table]
                transaction.insert(table, {"id": number, "v": f"v{number}"})
                if number > 3:
                    key = (number - 2,) if self.database.table(table).schema.key else None
                    row = {"id": number - 2, "v": f"v{number - 2}"}
                    transaction.delete(table, key or row)

    def write_meanwhile(self) -> None:
        """A change of the victim while it is being read."""
        with self.database.begin() as transaction:
            transaction.insert(self.victim, {"id": next(self.numbers), "v": "meanwhile"})

    @property
    def others(self) -> list[TableId]:
        return [t for t in self.captured.tables if t != self.victim]

    def until(self, look: Callable[[], Any], what: str) -> None:
        def looked() -> Any:
            if self.apply_errors:
                raise self.apply_errors[0]
            return look()

        self.capture.wait_until(looked, lambda: f"{what}; now {self.shown()}", timeout_s=30)

    def shown(self) -> Mapping[str, tuple[TableState, ErrorStatus | None]]:
        record = self.captured.store.replicator(self.captured.name)
        assert record is not None
        return {t.table: (t.state, t.error) for t in status.status(self.captured.store, record).tables}

    def failure(self) -> ErrorStatus | None:
        state, error = self.shown()[str(self.victim)]
        return error if state is TableState.FAILED else None

    def are_equal(self, *tables: TableId) -> bool:
        return all(self.target.warehouse.state(t) == self.database.state(t) for t in tables)

    def stimulate(self, is_done: Callable[[], bool], call: str) -> None:
        """Make every call for the victim: changes, a TRUNCATE, a snapshot in place, a new incarnation, again and again."""
        for attempt in range(20):
            self.write(*self.captured.tables)
            with self.database.begin() as transaction:
                transaction.truncate(self.victim)
            self.rows[self.victim] = 0
            self.write(self.victim, self.victim)
            for reading in ("read_chunk.after", "read_whole.batch"):
                self.source.faults.script(reading, self.write_meanwhile)
            if call.startswith("advance"):
                # The beginning of the snapshot alone moves the ledger: nothing is read before that.
                self.until(lambda: is_done() or self.is_settled(), "everything before is applied")
                for reading in ("read_chunk", "read_whole"):
                    self.source.faults.script(reading, lambda: hold(is_done))
            if call == "open_log.table":
                request = self.captured.request("restart")
            else:
                kind = RequestKind.RECREATE if attempt % 2 else RequestKind.SNAPSHOT
                request = self.captured.request(kind, tables=[str(self.victim)])
            self.until(lambda r=request: is_done() or self.captured.is_done(r), "the snapshot begins")  # type: ignore[misc]
            if not call.startswith("advance"):
                self.write(self.victim)
            self.until(lambda: is_done() or self.is_settled(), "the victim is settled")
            if is_done():
                return
        raise AssertionError(f"{call}: no such call was made")

    def is_settled(self) -> bool:
        return self.failure() is not None or (
            self.shown()[str(self.victim)][0] is TableState.STREAMING and self.are_equal(self.victim)
        )

    def come_back(self) -> None:
        self.write(self.victim)
        request = self.captured.request("snapshot", tables=[str(self.victim)])
        self.until(lambda: self.captured.is_done(request), "the snapshot has begun")
        self.until(
            lambda: (
                all(shown == (TableState.STREAMING, None) for shown in self.shown().values())
                and self.are_equal(*self.captured.tables)
            ),
            "all are equal",
        )


def hold(is_done: Callable[[], bool]) -> None:
    """Let a read wait for a moment for something that need not come."""
    with suppress(AssertionError):
        wait_until(is_done, "it failed", timeout_s=0.5, every_s=0.01)


@contextmanager
def pair(folder: Path, *, has_key: bool) -> Iterator[Pair]:
    database = MemoryDatabase.open(str(folder))
    schemas = [schema_of(f"t{n}", has_key=has_key if n == 4 else n % 3 != 0) for n in range(10)]
    for schema in schemas:
        database.create_table(schema)

    captured = Captured(
        folder=folder,
        name="ten",
        make_source=lambda context: MemorySource(MemorySourceConfig(database=str(folder)), context),
        tables=[schema.table for schema in schemas],
        may_crash=True,
        settings=replace(QUICK, chunk_rows=2, compare_every_s=0.05, check_every_s=0.05, seal_every_s=0.01),
    )
    with captured.running() as capture:
        record = captured.store.replicator("ten")
        assert record is not None
        epoch = capture.lease.epoch
        target = MemoryTarget(
            MemoryTargetConfig(database=str(folder)), target_context(replicator="ten", uuid=record.uuid, epoch=epoch)
        )
        settings = apply_settings(AT_ONCE, wake_s=0.01, maintain_idle=1, upkeep_pause_s=0.01, upkeep_pause_max_s=0.05)
        apply = Apply(
            target, captured.store, JournalReader(captured.store, "ten"),
            name="ten", uuid=record.uuid, epoch=epoch, settings=settings,
        )  # fmt: skip
        control, errors = CaptureControl(), list[BaseException]()

        def run() -> None:
            try:
                apply.run(control)
            except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
                errors.append(error)

        thread = threading.Thread(target=run, name="apply")
        thread.start()
        made = Pair(
            database=database, captured=captured, capture=capture, source=capture.source, target=target,  # type: ignore[arg-type]
            victim=schemas[4].table, apply_errors=errors,
        )  # fmt: skip
        try:
            made.write(*captured.tables)
            captured.wait_for_streaming(capture)
            yield made
        finally:
            control.stop()
            thread.join(timeout=60)
    assert not thread.is_alive()
    assert not errors
    captured.close()


def meet(pair: Pair, call: str, breaker: Breaker, kind: str) -> None:
    """One kind of error at one call: the table fails with its name, the others continue, and it comes back."""
    error, code = ERRORS[kind]
    faults = pair.source.faults if call in OF_SOURCE else pair.target.faults
    if call in OF_HOST:
        breaker.error = error
    else:
        faults.fail(call, pair.victim, lambda: error(pair.victim))
    seen: list[ErrorStatus] = []

    def has_failed() -> bool:
        seen.extend(failure for failure in [pair.failure()] if failure is not None)
        return bool(seen)

    pair.stimulate(has_failed, call)
    assert {(failure.code, "42" in failure.message) for failure in seen} == {(code, False)}, call
    pair.write(*pair.others)
    pair.until(lambda: pair.are_equal(*pair.others), "the others continue")
    # A snapshot that was asked for while it failed may have begun since.
    assert {t for t, (state, _) in pair.shown().items() if state is TableState.FAILED} <= {str(pair.victim)}
    breaker.error = None
    faults.heal()
    pair.come_back()


def is_made(call: str, *, has_key: bool) -> bool:
    return call not in (KEYLESS_ONLY if has_key else KEYED_ONLY)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("part", range(PARTS))
def test_an_error_at_every_call_for_one_of_ten_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, has_key: bool
) -> None:
    """One kind of error at each; of a table without a key only where it differs. Another test meets all kinds at all calls."""
    calls = [p for p in (*OF_SOURCE, *OF_TARGET, *OF_HOST) if is_made(p, has_key=has_key)]
    if not has_key:
        calls = [*sorted(KEYLESS_ONLY), "apply_batch", "snapshots: hold back"]
    with pair(tmp_path, has_key=has_key) as made:
        for number, call in list(enumerate(calls))[part::PARTS]:
            breaker = Breaker(monkeypatch, made.victim)
            if call in OF_HOST:
                breaker.install(*OF_HOST[call])
            meet(made, call, breaker, list(ERRORS)[number % len(ERRORS)])


@pytest.mark.matrix
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("call", [*OF_SOURCE, *OF_TARGET, *OF_HOST])
def test_every_kind_of_error_at_one_call_for_one_of_ten_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, has_key: bool
) -> None:
    if not is_made(call, has_key=has_key):
        pytest.skip("this call is not made for such a table")
    with pair(tmp_path, has_key=has_key) as made:
        breaker = Breaker(monkeypatch, made.victim)
        if call in OF_HOST:
            breaker.install(*OF_HOST[call])
        for kind in ERRORS:
            meet(made, call, breaker, kind)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("call", ["maintain", *ADVICE])
def test_upkeep_or_advice_that_fails_for_one_of_ten_tables(tmp_path: Path, call: str, kind: str) -> None:
    error, _ = ERRORS[kind]
    with pair(tmp_path, has_key=True) as made:
        made.target.faults.fail(call, made.victim, lambda: error(made.victim))
        before = made.target.faults.counts[call]
        made.stimulate(lambda: made.target.faults.counts[call] > before + 30, call)
        assert made.failure() is None
        made.write(*made.captured.tables)
        made.until(lambda: made.are_equal(*made.captured.tables), "all continue")
        made.target.faults.heal()
