"""What `verify` prints, and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicator.cli import verified
from replicator.cli.entry import main
from replicator.model.schema import TableId
from replicator.service.verify.check import document, exit_code
from replicator.verify import Counts, Difference, Extent, Kind, Result, Verdict

EQUAL = Verdict(
    table=TableId("shop", "views"), result=Result.EQUAL, position=9, rows_source=2000, rows_target=2000,
)  # fmt: skip
IN_PART = replace(EQUAL, result=Result.EQUAL_IN_PART, not_compared=("fax", "sex"))
FOUND = (
    Difference(key={"id": "7"}, kind=Kind.DIFFERENT, columns=("name",), source={"name": "a"}, target={"name": "b"}),
    Difference(key={"id": "8\n|"}, kind=Kind.MISSING),
)
DIFFERENT = Verdict(
    table=TableId("shop", "people"), result=Result.DIFFERENT, position=5, rows_source=3, rows_target=2,
    counts=Counts(missing=1, different=1), differences=FOUND,
)  # fmt: skip
NOTHING = replace(EQUAL, result=Result.NOTHING_COMPARED, scope=Extent.SINCE, keys=0, rows_source=0, rows_target=0)
RANGES = replace(EQUAL, last_position=12, ranges=5, ranges_kept=2)
NOT = Verdict(table=TableId("shop", "x"), result=Result.NOT_VERIFIED, reason="it has failed", action="Run: this")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([EQUAL], 0),
        ([EQUAL, IN_PART], 0),
        ([NOTHING], 0),
        ([IN_PART, NOT], 1),
        ([NOT, DIFFERENT, EQUAL], 3),
        ([DIFFERENT], 3),
    ],
)
def test_the_worst_result_is_the_exit_code(verdicts: list[Verdict], code: int) -> None:
    assert exit_code(verdicts) == code


def test_a_table_is_printed_with_what_a_person_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for verdict in (EQUAL, IN_PART, DIFFERENT, NOT, RANGES, replace(RANGES, last_position=9, ranges_kept=0)):
        verified.table(verdict, document("n", [verdict], with_values=False).tables[0])
    assert capsys.readouterr().out.splitlines() == [
        "shop.views  equal  2,000 rows at 9",
        "shop.views  equal in part  2,000 rows at 9",
        "    not compared: fax, sex",
        "shop.people  different  3 rows at 5",
        "    rows in source 3, in target 2",
        "    missing 1, extra 0, different 1",
        "    different: id=7; columns: name",
        "    missing: id=8 |",
        "shop.x  not verified",
        "    it has failed",
        "    → Run: this",
        "shop.views  equal  2,000 rows at 9 to 12",
        "    2 of 5 ranges had been proven before",
        "shop.views  equal  2,000 rows at 9",
    ]


@pytest.mark.parametrize(
    ("parts", "told", "cell"),
    [
        ({"scope": Extent.SAMPLE, "sample": 5.0}, "2,000 rows at 9, of a 5 % sample", "a 5 % sample"),
        ({"scope": Extent.SAMPLE, "sample": 0.5}, "2,000 rows at 9, of a 0.5 % sample", "a 0.5 % sample"),
        ({"scope": Extent.KEYS, "keys": 2, "rows_source": 1}, "1 row at 9, of 2 keys", "2 keys"),
        ({"scope": Extent.SINCE, "keys": 1, "rows_source": 0}, "0 rows at 9, of 1 changed row", "1 changed row"),
        ({}, "2,000 rows at 9", "table"),
    ],
)
def test_which_rows_were_compared_is_told(
    capsys: pytest.CaptureFixture[str], parts: dict[str, Any], told: str, cell: str
) -> None:
    verdict = replace(EQUAL, **parts)
    found = document("n", [verdict], with_values=False)
    verified.table(verdict, found.tables[0])
    assert capsys.readouterr().out.splitlines()[0] == f"shop.views  equal  {told}"
    assert f"| shop.views | equal | {cell} | 9 |" in verified.markdown(found)
    (table,) = json.loads(found.model_dump_json())["tables"]
    assert (table["scope"], table["sample"], table["keys"]) == (
        verdict.scope.value, verdict.sample, verdict.keys,
    )  # fmt: skip


def test_what_should_have_been_compared_is_told_of_a_table_that_was_not() -> None:
    found = document("n", [replace(NOT, scope=Extent.SAMPLE)], with_values=False)
    assert "| shop.x | not_verified | sample |  |" in verified.markdown(found)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--sample", "5", "--since", "1h"], "two_scopes"),
        (["--sample", "5", "--resume"], "two_scopes"),
        (["--sample", "200"], "unknown_sample"),
        (["--since", "soon"], "unknown_duration"),
        (["--keys", "7"], "unknown_row_key"),
        (["shop.a", "shop.b", "--keys", "7", "--keys", "8"], "unknown_row_key"),
    ],
)
def test_scopes_that_cannot_be_are_refused(arguments: list[str], code: str, tmp_path: Path) -> None:
    done = CliRunner(env={"REPLICATOR_HOME": str(tmp_path)}).invoke(main, ["verify", "shop", *arguments])
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr


def test_values_are_told_if_they_are_asked_for() -> None:
    hidden = document("n", [DIFFERENT], with_values=False)
    assert all(one.source is one.target is None for one in hidden.tables[0].differences)
    shown = document("n", [DIFFERENT], with_values=True).tables[0].differences[0]
    assert (shown.source, shown.target) == ({"name": "a"}, {"name": "b"})


def test_values_are_printed_as_people_write_them() -> None:
    rows = (
        replace(FOUND[0], source={"name": "a", "vip": "true"}, target={"name": None, "vip": "false"}),
        replace(FOUND[1], key={"id": "8"}, source={"id": "8", "name": "b"}),
    )
    lines = verified.markdown(document("n", [replace(DIFFERENT, differences=rows)], with_values=True)).splitlines()
    assert lines[-2:] == [
        "- different: id=7; columns: name; source: name=a, vip=true; target: name=NULL, vip=false",
        "- missing: id=8; source: id=8, name=b",
    ]


def test_a_report_for_people_is_a_table_and_a_list() -> None:
    lines = verified.markdown(document("n", [EQUAL, DIFFERENT, NOT], with_values=False)).splitlines()
    assert "| shop.people | different | table | 5 | 3 | 2 | 1 | 0 | 1 |" in lines
    assert "| shop.x | not_verified | table |  |  |  | 0 | 0 | 0 |" in lines
    assert "- different: id=7; columns: name" in lines


def test_more_differences_than_are_described_are_told() -> None:
    many = replace(DIFFERENT, counts=Counts(missing=5000))
    one = document("n", [many], with_values=False).tables[0]
    assert one.truncated
    assert "… (more: --json, --report)" in verified.markdown(document("n", [many], with_values=False))
