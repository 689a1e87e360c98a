"""The advice of errors of this target, followed literally: the table streams afterwards. Each code has a case, or a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import replicator_target_delta
from replicator.model.errors import ReplicatorError

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

ERRORS: Final = Path(__file__).parents[4] / "docs" / "errors.md"
NOT_PROVOKED: Final = {
    "ddl_not_supported": "no case here yet: test_alter, test_building",
    "not_ours": "no case here yet: test_check",
    "schema_conflict": "test_others_statements, which recreates the table",
    "spark_failed": "no case here yet for delta.appendOnly",
    "state_not_readable": "test_others_statements, which recreates the table",
    "target_file_unreadable": "no case here yet",
    "target_occupied": "no case here yet: test_check",
    "column_name_reserved": "about the source's names, before anything is written: test_names, tests/unit",
    "comment_changed": "a notice: nothing stops",
    "journal_file_unreadable": "about the journal: a snapshot reads the rows again (tests/faults)",
    "key_missing": "about a change of the source",
    "ledger_disagrees": "a bug: no advice but to report it",
    "merge_not_unique": "a bug: no advice but to report it",
    "path_not_shared": "needs executors of another user or host (tests of the Spark cluster)",
    "spark_executors_lost": "needs executors that die (tests of the Spark cluster); is retried",
    "spark_missing": "a bug of the host",
    "spark_out_of_memory": "needs a JVM with too little memory; is retried",
    "spark_refused": "a bug: the advice is to report it and to exclude the table",
    "spark_scratch_unusable": "needs a full disk of an executor; is retried",
    "table_name_too_long": "about the source's names: test_check",
    "target_busy": "is retried: test_target, test_engine",
    "target_full": "needs a full disk; is retried",
    "target_not_writable": "about rights on the path; is retried: test_check",
    "target_unreachable": "needs a network; is retried",
    "unsupported_type": "about the source's types: test_types",
}
"""Codes whose advice has no case here, and why."""


def recreate(lake: Lake) -> None:
    """`snapshot --recreate`."""
    lake.table = replace(lake.table, incarnation=lake.table.incarnation + 1)
    lake.target.read_ledger(lake.table)
    lake.target.claim(lake.table)
    lake.create()
    again(lake)
    lake.target.publish(lake.table, lake.number())


def again(lake: Lake) -> None:
    """A snapshot; or a batch that is retried."""
    lake.apply(lake.insert(id=1, name="a", note="x"))


def half_written(lake: Lake) -> None:
    folder = lake.path / "_delta_log"
    (folder / f"{lake.version() + 1:020}.json").write_text('{"commitInfo":{"timestamp":1,"opera')


CASES: Final[dict[str, tuple[str, Callable[[Lake], object], str, Callable[[Lake], object]]]] = {
    "half-written commit": ("target_unreadable", half_written, "--recreate", recreate),
}
"""The code; what provokes it; words of its advice; what they tell to do."""


def stopped_by(lake: Lake, provoke: Callable[[Lake], object]) -> None:
    provoke(lake)
    lake.apply(lake.update(id=1, name="b", note="x"))


@pytest.mark.parametrize("name", CASES)
def test_the_table_streams_after_its_advice_was_followed(lake: Lake, name: str) -> None:
    code, provoke, words, follow = CASES[name]
    lake.apply(lake.insert(id=1, name="a", note="x"))
    schema = lake.schema
    with pytest.raises(ReplicatorError) as caught:
        stopped_by(lake, provoke)
    assert caught.value.code == code, caught.value.message
    assert words in (caught.value.action or "")
    lake.schema = schema
    lake.target = lake.process()
    follow(lake)
    lake.apply(lake.update(id=1, name="c", note="y"), lake.insert(id=2, name="d", note="z"))
    assert lake.rows() == {(1, "c", "y"), (2, "d", "z")}


def test_every_code_has_a_case_or_a_reason() -> None:
    known = set(re.findall(r"^\| `([a-z_]+)`", ERRORS.read_text(encoding="utf-8"), re.MULTILINE))
    found = set[str]()
    for module in Path(replicator_target_delta.__file__).parent.rglob("*.py"):
        texts = (node.value for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Constant))
        found |= {text for text in texts if isinstance(text, str)} & known
    assert found == {code for code, *_ in CASES.values()} | set(NOT_PROVOKED)
