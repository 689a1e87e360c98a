"""What the history says of a change while the target has not come to it, once it has, and when it cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import Column
from replicator.service.configuring.stored import find
from replicator.service.history.changes import history
from replicator.service.history.document import Outcome
from replicator.state.records import Decision, HistoryEntry
from replicator_testbed.journals.applied import NAME, A
from replicator_testing.batches import insert
from replicator_testing.target_harness import item

if TYPE_CHECKING:
    from replicator_testbed.journals.applied import Shop

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def alter(shop: Shop, event: DDLEvent) -> None:
    """Seal an alteration as capture does: its event, and its entry in the history."""
    entry = HistoryEntry(
        sequence_num=shop.event(A, event), table=A, incarnation=1, operation=event.operation, changes=("add_column",), at=NOW,
        decision=Decision.APPLY, before=event.before, after=event.schema,
    )  # fmt: skip
    shop.writer.commit(offset=None, source_time=NOW, history=[entry])


def outcome(shop: Shop) -> tuple[Outcome, str | None]:
    (event,) = history(shop.store, find(shop.store, NAME), table=str(A), limit=10)
    return event.target.state, event.target.code


def test_a_change_waits_until_the_target_has_it(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    before = shop.schemas[A]
    numbered = replace(before, columns=tuple(replace(c, id=id_) for id_, c in enumerate(before.columns, start=1)))
    email = Column(name="email", type=pa.string(), source_type="text", id=9)
    after = replace(numbered, columns=(*numbered.columns, email))
    event = DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, before=numbered, schema=after, fill=no_fill())
    alter(shop, event)
    assert outcome(shop) == (Outcome.WAITING, None)
    shop.run()
    assert outcome(shop) == (Outcome.APPLIED, None)


def test_a_change_that_the_target_cannot_follow_has_failed_until_the_table_is_recreated(shop: Shop) -> None:
    shop.copy(A, 1)
    shop.run()
    alter(shop, DDLEvent(operation=DDLOperation.ALTER_TABLE, table=A, schema=shop.schemas[A]))
    shop.rows(A, insert(0, item(2, "behind it")))
    shop.run()
    error = shop.applied(A).error
    assert error is not None
    assert outcome(shop) == (Outcome.FAILED, error.code)
    shop.copy(A, 1, 2)
    shop.run(is_done=lambda: shop.applied(A).last_applied == shop.highest(A))
    assert outcome(shop) == (Outcome.APPLIED, None)
