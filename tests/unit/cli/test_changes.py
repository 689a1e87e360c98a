"""What `history` prints."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.cli import changes
from replicator.model.events import DDLOperation
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.service.history.changes import Happened, document
from replicator.service.history.document import Outcome, TargetDocument
from replicator.state.records import Decision, Desired, HistoryEntry, Preparation, ReplicatorRecord

NOW: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID: Final = Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)
NAME: Final = Column(name="name", type=pa.string(), source_type="text")
BEFORE: Final = TableSchema(table=TableId("public", "t"), columns=(ID, NAME), key=("id",))
AFTER: Final = replace(BEFORE, columns=(ID, replace(NAME, name="email", source_type="varchar(20)")), kept=(NAME,))
RECORD: Final = ReplicatorRecord(
    name="shop", uuid="u", desired=Desired.RUNNING, config="", identity={}, preparation=Preparation.READY, start_offset=None,
    journal_uri="/j", apply_paused=False, error=None, created_at=NOW,
)  # fmt: skip


def happened(state: Outcome = Outcome.APPLIED, code: str | None = None, **values: Any) -> Happened:
    defaults: dict[str, Any] = {
        "sequence_num": 1042, "table": BEFORE.table, "incarnation": 1, "operation": DDLOperation.ALTER_TABLE,
        "changes": ("add_column", "drop_column"), "decision": Decision.KEEP, "at": NOW, "before": BEFORE, "after": AFTER,
        "statement": "ALTER TABLE t\n  ADD email varchar(20),\x1b[2J DROP name", "offset": Offset.of({"lsn": 7}),
    }  # fmt: skip
    return Happened(entry=HistoryEntry(**(defaults | values)), target=TargetDocument(state=state, code=code))


def test_an_event_can_be_read_without_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    changes.history([happened()])
    assert capsys.readouterr().out.splitlines() == [
        f"{NOW.astimezone():%Y-%m-%d %H:%M:%S %Z}  public.t  add_column, drop_column",
        "    statement: ALTER TABLE t ADD email varchar(20), [2J DROP name",
        "    + email varchar(20)",
        "    - name",
        "    kept in the target: name",
        "    decision: keep dropped columns",
        "    target: applied",
        '    position: 1042, offset {"lsn":7}',
    ]


def test_a_failed_table_and_a_reason_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    event = happened(
        Outcome.FAILED, "ddl_not_supported", changes=(), reason="Nobody knows.", statement=None, before=None, after=None, offset=None,
        operation=DDLOperation.RENAME_TABLE, decision=Decision.SNAPSHOT, new_table=TableId("public", "new"),
    )  # fmt: skip
    changes.history([event])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    renamed to public.new",
        "    decision: apply, with a new snapshot in place",
        "    reason: Nobody knows.",
        "    target: failed: ddl_not_supported",
        "    position: 1042",
    ]


def test_a_long_statement_is_cut_for_people_and_whole_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    event = happened(statement="ALTER " * 500)
    changes.history([event])
    assert max(map(len, capsys.readouterr().out.splitlines())) < 600
    changes.history_json(document(RECORD, [event]))
    (found,) = json.loads(capsys.readouterr().out)["events"]
    assert found["statement"] == "ALTER " * 500
    assert found["after"] == {
        "columns": [
            {"name": "id", "type": "int64", "source_type": "bigint", "nullable": False},
            {"name": "email", "type": "string", "source_type": "varchar(20)", "nullable": True},
        ],
        "key": ["id"],
        "kept": [{"name": "name", "type": "string", "source_type": "text", "nullable": True}],
    }
    assert (found["offset"], found["target"]) == ('{"lsn":7}', {"state": "applied", "code": None})
