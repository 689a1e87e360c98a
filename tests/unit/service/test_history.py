"""What the target did about a change of a table's definition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from replicator.model.errors import ConfigError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId
from replicator.service.configuring.stored import find
from replicator.service.history.changes import history
from replicator.service.history.document import Outcome
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    ApplyState,
    Decision,
    ErrorRecord,
    EventEntry,
    HistoryEntry,
    Segment,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator_testbed.present import present

NOW: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
TABLE: Final = TableId("public", "t")
ERROR: Final = ErrorRecord(code="ddl_not_supported", message="no", action=None, at=NOW)
FAILED: Final = {"state": ApplyState.FAILED, "error": ERROR}
WHOLE: Final = {"copy": TargetCopy.WHOLE}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator("shop", "name: shop", "/j")
    present(store.leases.acquire("shop", holder_id(), 10.0))
    yield store
    store.close()


def seal(
    store: StateStore,
    *,
    decision: Decision = Decision.APPLY,
    operation: DDLOperation = DDLOperation.ALTER_TABLE,
    table: TableId = TABLE,
    tables: tuple[TableRecord, ...] = (),
    newest: int = 10,
) -> None:
    """An event at number 10 of the second incarnation."""
    entry = HistoryEntry(
        sequence_num=10, table=table, incarnation=2, operation=operation, changes=("add_column",), decision=decision, at=NOW,
    )  # fmt: skip
    event = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=table)
    events = (EventEntry(sequence_num=newest, table=table, incarnation=2, event=event),)
    segment = Segment(
        id=1, first=0, last=20, epoch=1, offset=None, source_time=NOW, ring=(), files=(), events=events, sealed_at=NOW
    )
    store.seal("shop", 1, [segment], tables=tables, history=[entry])


def outcome(store: StateStore) -> tuple[Outcome, str | None]:
    (event,) = history(store, find(store, "shop"), table=None, limit=10)
    return event.target.state, event.target.code


@pytest.mark.parametrize(
    ("decision", "incarnation", "last_applied", "more", "state"),
    [
        (Decision.APPLY, 2, 10, {}, Outcome.APPLIED),
        (Decision.KEEP, 2, 9, {}, Outcome.WAITING),
        (Decision.SNAPSHOT, 3, 0, {}, Outcome.APPLIED),
        (Decision.APPLY, 1, 99, {}, Outcome.WAITING),
        (Decision.APPLY, 2, 9, FAILED, Outcome.FAILED),
        (Decision.APPLY, 2, 12, FAILED, Outcome.APPLIED),
        (Decision.RECORD, 2, 9, FAILED, Outcome.NOTHING),
        (Decision.IGNORE, 2, 9, {}, Outcome.NOTHING),
        (Decision.STOP, 2, 9, {}, Outcome.NOTHING),
        (Decision.REBUILD, 2, 12, WHOLE, Outcome.WAITING),
        (Decision.REBUILD, 3, 12, {}, Outcome.WAITING),
        (Decision.REBUILD, 3, 12, FAILED, Outcome.FAILED),
        (Decision.REBUILD, 3, 12, WHOLE, Outcome.APPLIED),
        (Decision.REBUILD, 4, 0, WHOLE, Outcome.APPLIED),
        (Decision.REBUILD, 4, 0, {"whole_before": 3}, Outcome.APPLIED),
        (Decision.REBUILD, 4, 0, {"whole_before": 2}, Outcome.WAITING),
        (Decision.REBUILD, 3, 50, {"whole_before": 3}, Outcome.APPLIED),
    ],
)
def test_the_ledger_says_what_the_target_did(
    store: StateStore, decision: Decision, incarnation: int, last_applied: int, more: dict[str, Any], state: Outcome
) -> None:
    seal(store, decision=decision)
    record = AppliedRecord(table=TABLE, incarnation=incarnation, last_applied=last_applied, **more)
    store.put_applied("shop", 1, [record])
    assert outcome(store) == (state, "ddl_not_supported" if state is Outcome.FAILED else None)


@pytest.mark.parametrize(
    ("incarnation", "more", "expected"),
    [
        (2, {}, Outcome.WAITING),
        (2, WHOLE, Outcome.APPLIED),
        (3, {"whole_before": 1}, Outcome.WAITING),
        (3, {"whole_before": 2}, Outcome.APPLIED),
    ],
)
def test_a_table_that_replaces_another_is_there_once_it_is_whole(
    store: StateStore, incarnation: int, more: dict[str, Any], expected: Outcome
) -> None:
    seal(store, operation=DDLOperation.CREATE_TABLE)
    store.put_applied("shop", 1, [AppliedRecord(table=TABLE, incarnation=incarnation, last_applied=12, **more)])
    assert outcome(store) == (expected, None)


@pytest.mark.parametrize(("last_applied", "state"), [(6, Outcome.WAITING), (7, Outcome.APPLIED)])
def test_a_change_without_an_event_in_the_journal_is_applied_once_nothing_waits_there(
    store: StateStore, last_applied: int, state: Outcome
) -> None:
    seal(store, newest=7)
    store.put_applied("shop", 1, [AppliedRecord(table=TABLE, incarnation=2, last_applied=last_applied)])
    assert outcome(store) == (state, None)


def test_what_apply_has_not_seen_yet_waits(store: StateStore) -> None:
    seal(store)
    assert outcome(store) == (Outcome.WAITING, None)


def test_a_table_is_known_by_capture_or_by_its_history(store: StateStore) -> None:
    other = TableRecord(table=TableId("public", "customers"), incarnation=1, stage=Stage.REMOVED)
    seal(store, table=TableId("public", "renamed"), tables=(other,))
    record = find(store, "shop")
    assert len(history(store, record, table="public.renamed", limit=10)) == 1
    assert history(store, record, table="public.customers", limit=10) == []
    for unknown in ("public.customer", "customers", "x"):
        with pytest.raises(ConfigError) as refused:
            history(store, record, table=unknown, limit=10)
        assert refused.value.code == "unknown_table"
    assert "Its tables: public.customers." in str(refused.value)
