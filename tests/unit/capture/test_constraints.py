"""What a catalogue shows of nullability and defaults, compared with what was accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from replicator.capture.definitions.constraints import compare_constraints, with_known_nullability
from replicator.capture.definitions.policies import decide
from replicator.config import DDLConfig
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.identity import ColumnConstraints, TableIdentity
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import TableDescription
from replicator.service.plan.rehearsal import rehearse
from replicator.state.records import Decision
from replicator_testbed.present import present

SCHEMA = TableSchema(
    table=TableId("public", "t"),
    columns=tuple(
        Column(name=name, type=pa.int32(), source_type="int", nullable=name != "id", id=id_)
        for id_, name in enumerate(("id", "a", "b"), start=1)
    ),
    key=("id",),
)
OPEN, CLOSED = ColumnConstraints(nullable=True), ColumnConstraints(nullable=False)
ONE = ColumnConstraints(nullable=True, default="1", default_id="7")
LONG = ColumnConstraints(nullable=True, default="x" * 201, default_id="9")
KNOWN = {"1": CLOSED, "2": OPEN, "3": ONE}


@pytest.mark.parametrize(
    ("known", "now", "nullable", "defaults"),
    [
        (KNOWN, KNOWN, None, ()),
        (KNOWN, {**KNOWN, "2": CLOSED}, False, ()),
        # Nothing is known, a column has come since, or the source shows all of it in its log.
        ({}, {**KNOWN, "2": CLOSED}, None, ()),
        ({"1": CLOSED, "2": OPEN}, KNOWN, None, ()),
        ({"1": CLOSED, "3": ONE}, {**KNOWN, "2": CLOSED}, False, ()),
        (KNOWN, {}, None, ()),
        # Columns of the key are never NULL.
        (KNOWN, {**KNOWN, "1": OPEN}, None, ()),
        # Other words for the same default, and a default that was set again.
        (KNOWN, {**KNOWN, "3": replace(ONE, default="one()")}, None, ()),
        (KNOWN, {**KNOWN, "3": replace(ONE, default_id="8")}, None, ()),
        (KNOWN, {**KNOWN, "3": OPEN}, True, ("changed the default of b from 1 to none",)),
        (KNOWN, {**KNOWN, "3": LONG}, True, (f"changed the default of b from 1 to {'x' * 200}…",)),
    ],
)
def test_only_what_is_known_to_have_changed_is_a_change(
    known: Mapping[str, ColumnConstraints],
    now: Mapping[str, ColumnConstraints],
    nullable: bool | None,
    defaults: tuple[str, ...],
) -> None:
    found = TableDescription(schema=SCHEMA, identity=TableIdentity(constraints=now))
    other = compare_constraints(SCHEMA, TableIdentity(constraints=known), found)
    if nullable is None:
        assert other is None
        return
    assert (present(other).after.column("a").nullable, present(other).defaults) == (nullable, defaults)
    assert present(other).before == SCHEMA


def test_constraints_are_stored() -> None:
    identity = TableIdentity(object="1", constraints=KNOWN)
    assert TableIdentity.from_json(identity.to_json()).constraints == KNOWN
    assert TableIdentity.from_json(TableIdentity(object="1").to_json()).constraints == {}
    assert identity == replace(identity, constraints={})


def test_what_a_log_does_not_see_stays_as_it_is_known() -> None:
    known = replace(SCHEMA, columns=(*SCHEMA.columns[:2], replace(SCHEMA.columns[2], nullable=False)))
    longer = replace(SCHEMA, columns=(*SCHEMA.columns, replace(SCHEMA.columns[1], name="c", id=4)))
    told = DDLEvent(
        operation=DDLOperation.ALTER_TABLE, table=SCHEMA.table, before=SCHEMA, schema=longer, fill=no_fill()
    )
    event = with_known_nullability(told, known)
    assert event.before == known
    altered = decide(known, present(event.schema), DDLConfig(), before=event.before, fill=no_fill())
    assert [kind.value for kind in altered.changes] == ["add_column"]
    assert [column.nullable for column in altered.tracked.columns] == [False, True, False, True]


@pytest.mark.parametrize(("policy", "decision"), [("apply", Decision.RECORD), ("stop", Decision.STOP)])
def test_the_rehearsal_of_a_default_names_its_policy(policy: str, decision: Decision) -> None:
    event = DDLEvent(
        operation=DDLOperation.ALTER_TABLE,
        table=SCHEMA.table,
        before=SCHEMA,
        schema=SCHEMA,
        fill=no_fill(),
        statement="ALTER TABLE t ALTER a SET DEFAULT 5",
    )
    policies = DDLConfig.model_validate({"change_default": policy})
    found = rehearse(SCHEMA, event, policies, widens=lambda *_: False, selects=lambda _: True)
    assert ([kind.value for kind in found.changes], found.decision) == (["change_default"], decision)
    assert (found.error is None) is (policy == "apply")
