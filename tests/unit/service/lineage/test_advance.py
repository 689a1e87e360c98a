"""Which events are due: pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from replicator.service.lineage.advance import Due, LineageCursor, SeenTable, advance
from replicator.state.records import ErrorRecord, Run

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
SHOP = UUID("4b6f1d0e-6a52-4c9a-9a0e-0c5a5b1f7f7e")
ERROR = ErrorRecord(code="log_gap", message="The slot is lost.", action=None, at=START)
A, B = SeenTable(fingerprint="a"), SeenTable(fingerprint="b")
EVERY = timedelta(minutes=10)


def run(id_: int = 1, outcome: str | None = None, error: ErrorRecord | None = None) -> Run:
    ended_at = None if outcome is None else START
    return Run(
        id=id_,
        replicator="shop",
        epoch=id_,
        holder="h",
        started_at=START,
        ended_at=ended_at,
        outcome=outcome,
        error=error,
    )


@dataclass
class Looking:
    """Looks again and again, as the watcher does."""

    now: datetime = START
    cursor: LineageCursor = field(default_factory=LineageCursor)
    due: tuple[Due, ...] = ()

    def look(
        self, at: Run | None, *, after: timedelta = timedelta(seconds=5), **tables: SeenTable
    ) -> list[tuple[str, str]]:
        self.now += after
        cursor, self.due = advance(self.cursor, SHOP, at, tables, self.now, EVERY)
        self.cursor = LineageCursor.model_validate_json(cursor.model_dump_json())
        return [(one.table, one.event.value) for one in self.due]


def test_a_run_begins_once_says_that_it_lasts_and_ends_once() -> None:
    looking = Looking()
    assert looking.look(None, t=A) == []
    assert looking.look(run(), t=A) == [("t", "START")]
    begun = looking.due[0].run_id
    assert looking.look(run(), t=A) == []
    assert looking.look(run(), after=EVERY, t=A) == [("t", "RUNNING")]
    assert looking.look(run(), t=A) == []
    assert looking.look(run(outcome="stopped"), t=A) == [("t", "COMPLETE")]
    assert looking.due[0].run_id == begun
    assert looking.look(run(outcome="stopped"), after=EVERY, t=A) == []


def test_a_changed_definition_is_said_at_once() -> None:
    looking = Looking()
    looking.look(run(), t=A, u=A)
    assert looking.look(run(), t=B, u=A) == [("t", "RUNNING")]
    assert looking.due[0].is_altered
    assert looking.look(run(), t=B, u=A) == []


def test_a_replicator_that_fails_says_why() -> None:
    looking = Looking()
    looking.look(run(), t=A)
    assert looking.look(run(outcome="failed", error=ERROR), t=A) == [("t", "FAIL")]
    assert looking.due[0].error == "The slot is lost."


def test_a_worker_that_was_killed_is_aborted_when_the_next_one_begins() -> None:
    looking = Looking()
    looking.look(run(1), t=A)
    first = looking.due[0].run_id
    assert looking.look(run(2), t=A) == [("t", "ABORT"), ("t", "START")]
    assert looking.due[0].run_id == first != looking.due[1].run_id


def test_a_table_that_fails_ends_alone_and_begins_again_as_another_run() -> None:
    looking = Looking()
    looking.look(run(), t=A, u=A)
    first = looking.due[0].run_id
    failed = SeenTable(fingerprint="a", error="[no] It failed.")
    assert looking.look(run(), t=failed, u=A) == [("t", "FAIL")]
    assert looking.look(run(), after=EVERY, t=failed, u=A) == [("u", "RUNNING")]
    assert looking.look(run(), t=A, u=A) == [("t", "START")]
    assert looking.due[0].run_id != first
    assert looking.look(run(), u=A) == [("t", "COMPLETE")], "it is not replicated any more"


def test_a_run_that_nobody_saw_begin_is_not_said_to_end() -> None:
    assert Looking().look(run(outcome="stopped"), t=A) == []
