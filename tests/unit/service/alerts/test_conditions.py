"""What counts as wrong: read from status documents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from replicator.config import AlertsConfig
from replicator.model.documents.alerts import AlertKind
from replicator.model.documents.status import (
    DesiredState,
    ErrorStatus,
    HeadroomStatus,
    ReplicatorState,
    ReplicatorStatus,
    TableState,
    WorkerStatus,
)
from replicator.service.alerts.conditions import JournalRoom, SeenCondition, SeenConditions, look
from replicator_testbed.statuses import replicator_status, table_status

WORKER = WorkerStatus(holder="host:1:w/1", epoch=1)
ERROR = ErrorStatus(
    code="log_gap", message="The slot is lost.", action="Take a snapshot.", at=datetime(2026, 1, 31, tzinfo=UTC)
)
ROOM = JournalRoom(bytes_max=1000, disk=(500, 1000))


def document(*, source: dict[str, Any] | None = None, journal: int = 0, **changes: Any) -> ReplicatorStatus:
    one = replicator_status("shop", **{"worker": WORKER, **changes})
    return one.model_copy(
        update={
            "source": one.source.model_copy(update={"position": "{}", "is_alive": True, **(source or {})}),
            "journal": one.journal.model_copy(update={"bytes": journal}),
        }
    )


def seen(one: ReplicatorStatus, *, room: JournalRoom = ROOM, **settings: Any) -> SeenConditions:
    return look(one, AlertsConfig.model_validate(settings), room)


def only(one: ReplicatorStatus, **settings: Any) -> SeenCondition:
    [condition] = seen(one, **settings).conditions.values()
    return condition


def test_nothing_is_wrong_with_one_that_runs() -> None:
    found = seen(document(tables=(table_status("public.orders"),)))
    assert (found.conditions, found.unknown) == ({}, frozenset())


def test_one_without_a_worker_unless_it_is_paused() -> None:
    found = only(document(worker=None, state=ReplicatorState.NO_WORKER))
    assert (found.kind, found.message) == (AlertKind.NO_WORKER, "No worker runs shop.")
    paused = document(worker=None, state=ReplicatorState.PAUSED, desired=DesiredState.PAUSED)
    assert seen(paused).conditions == {}


def test_one_that_failed_says_why_and_what_to_do() -> None:
    found = only(document(worker=None, state=ReplicatorState.FAILED, error=ERROR))
    assert (found.kind, found.code, found.action) == (AlertKind.REPLICATOR_FAILED, "log_gap", "Take a snapshot.")
    assert found.message == "shop has failed [log_gap]: The slot is lost."


@pytest.mark.parametrize("state", [TableState.FAILED, TableState.DROPPED])
def test_a_table_that_failed_or_was_dropped(state: TableState) -> None:
    found = only(
        document(tables=(table_status("public.orders", state=state, error=ERROR), table_status("public.items")))
    )
    assert (found.key, found.code) == ((AlertKind.TABLE_FAILED, "public.orders"), "log_gap")


def test_a_table_that_does_not_meet_its_objective_also_while_paused() -> None:
    late = table_status("public.orders", freshness_s=400.0, freshness_objective_s=300.0, is_objective_met=False)
    found = only(document(tables=(late,)))
    assert found.key == (AlertKind.OBJECTIVE_BREACHED, "public.orders")
    assert "400.0 s behind" in found.message
    paused = document(tables=(late,), worker=None, state=ReplicatorState.PAUSED, desired=DesiredState.PAUSED)
    assert only(paused).action == "It is paused. To continue: replicator resume shop"


def test_a_table_that_may_differ() -> None:
    found = only(document(tables=(table_status("public.orders", alarmed=True),)))
    assert (found.key, found.code, found.action) == (
        (AlertKind.TABLE_ALARM, "public.orders"),
        "target_diverged",
        "Verify it.",
    )


def test_a_silent_source() -> None:
    assert only(document(source={"is_alive": False})).kind is AlertKind.NO_HEARTBEAT


@pytest.mark.parametrize(
    ("headroom", "settings", "is_low"),
    [
        ({"seconds": 7200.0, "bytes": 1, "share": 0.3}, {}, False),
        ({"seconds": 7200.0, "bytes": 1, "share": 0.2}, {}, True),
        ({"seconds": 3000.0, "bytes": 1, "share": 0.9}, {}, True),
        ({"seconds": None, "bytes": 1, "share": 0.9}, {}, False),
        (
            {"seconds": 3000.0, "bytes": 1, "share": 0.2},
            {"source_log_share_min": 0.1, "source_log_headroom_min": "10m"},
            False,
        ),
    ],
)
def test_the_sources_log_below_its_limit(headroom: dict[str, Any], settings: dict[str, Any], *, is_low: bool) -> None:
    found = seen(document(source={"headroom": HeadroomStatus(**headroom)}), **settings)
    assert [key for key, _ in found.conditions] == ([AlertKind.SOURCE_LOG_HEADROOM] if is_low else [])


@pytest.mark.parametrize(
    ("journal", "disk", "is_full"),
    [(899, (101, 1000), False), (901, None, True), (0, (99, 1000), True), (0, None, False)],
)
def test_the_journal_or_its_disk_is_almost_full(journal: int, disk: tuple[int, int] | None, *, is_full: bool) -> None:
    found = seen(document(journal=journal), room=JournalRoom(bytes_max=1000, disk=disk))
    assert [key for key, _ in found.conditions] == ([AlertKind.JOURNAL_DISK] if is_full else [])


def test_while_capture_does_not_report_nobody_knows_of_the_source() -> None:
    unheard = document(source={"position": None, "is_alive": None})
    assert seen(unheard).unknown == {AlertKind.NO_HEARTBEAT, AlertKind.SOURCE_LOG_HEADROOM}
    # A source that has neither heartbeats nor a limit is known to have neither.
    assert seen(document(source={"is_alive": None})).unknown == frozenset()
