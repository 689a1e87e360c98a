"""`docs/sources/sqlserver.md` agrees with the code: settings, types, codes, and tests that it names."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.types import _SPECS, DeclaredType, spec_of

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "sources" / "sqlserver.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[1:]]


def shown(default: Any) -> str:
    if isinstance(default, timedelta):
        seconds = int(default.total_seconds())
        return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and default % (1 << 20) == 0:
        return f"{default >> 20}MiB"
    return str(default)


def file_of(name: str) -> Path:
    """A file of tests as the page names it."""
    return (ROOT / "tests" / "integration" if "/" in name else Path(__file__).parent) / name


def test_every_setting_has_its_default() -> None:
    written: dict[str, str] = {}
    for names, defaults, _ in rows(section("Settings")):
        parts = [re.sub(r"^[^`]*$", "", part.strip()).strip("`") for part in defaults.split(",")]
        found = re.findall(r"`(\w+)`", names)
        written |= dict(zip(found, parts + [""] * len(found), strict=False))
    fields = SqlServerConfig.model_fields
    wanted = {
        name: "" if field.is_required() or field.default is None else shown(field.default)
        for name, field in fields.items()
        if name != "type"
    }
    assert written == wanted


def test_every_type_is_listed_with_its_arrow_type() -> None:
    text = " ".join(f"{column} {arrow}" for column, arrow in rows(section("Types")))
    assert [name for name in _SPECS if f"`{name}" not in text] == []
    listed = {name: arrow for column, arrow in rows(section("Types")) for name in re.findall(r"`(\w+)", column)}
    for name, arrow in [("bit", "bool"), ("date", "date32"), ("money", "decimal128(19,4)"), ("hierarchyid", "string")]:
        spec = spec_of(DeclaredType(name=name))
        assert spec is not None
        assert arrow in listed[name]
        assert str(spec.arrow).replace(" ", "").startswith(arrow.split("[")[0][:6])


def test_codes_that_it_names_are_documented() -> None:
    errors = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \|", errors, re.MULTILINE))
    named = set(re.findall(r"\(`([a-z]+(?:_[a-z]+)+)`(?:, `([a-z]+(?:_[a-z]+)+)`)?\)", PAGE))
    codes = {code for pair in named for code in pair if code}
    assert len(codes) > 10
    assert sorted(codes - documented) == []


@pytest.mark.parametrize("number", range(1, 16))
def test_each_failure_has_tests_that_exist(number: int) -> None:
    (row,) = [cells for cells in rows(section("Failures that others report")) if cells[0] == str(number)]
    named = re.findall(r"`((?:capture_sqlserver/)?test_\w+\.py)::(test_\w+)`", row[2])
    assert named != [], "a test, also of what cannot happen"
    assert "`test_" not in re.sub(r"`test_\w+\.py::test_\w+`", "", row[2]), "each with its file"
    assert [
        (file, name) for file, name in named if f"def {name}(" not in file_of(file).read_text(encoding="utf-8")
    ] == []


def test_the_first_screen_says_that_no_sql_server_was_used() -> None:
    assert "**No real SQL Server was ever used" in "\n".join(PAGE.splitlines()[:6])
