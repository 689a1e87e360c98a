"""What is different about a server, or a coordinate system, is asked of its object, and compared nowhere (ADR 19)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replicator_source_mysql

PACKAGE = Path(replicator_source_mysql.__file__).parent
# The objects themselves stand in `flavors`.
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.parent.name != "flavors"
)
COMPARES = re.compile(
    r"""(==|!=|\bis|\bis\ not|\bin)\s+\(?\{?(["'](mysql|mariadb)["']|MYSQL\b|MARIADB\b)
    |\b(MYSQL|MARIADB)\s+(==|!=|is|in)\b|is_mariadb
    |isinstance\([^)]*\b(GtidSet|GtidPosition|FilePosition)\b""",
    re.VERBOSE,
)
# The durable forms of offsets are one module's; a value is covered by values of its own kind only; a database has this name.
ALLOWED = {
    "return isinstance(self.executed, FilePosition)",
    "return isinstance(other, GtidSet) and not other.without(self)",
    "return isinstance(other, GtidPosition) and all(",
    "return isinstance(other, FilePosition) and self.position >= other.position",
    'if table.namespace.lower() != "mysql" or not table.name.lower().startswith("rds_"):',
}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_tells_servers_or_coordinates_apart_by_name(module: str) -> None:
    lines = [line.strip() for line in (PACKAGE / module).read_text().splitlines()]
    assert [line for line in lines if COMPARES.search(line) and line not in ALLOWED] == []


@pytest.mark.parametrize(
    "line",
    [
        'if self._flavor == "mariadb":',
        "if is_mariadb(connection):",
        "elif isinstance(behind, GtidSet):",
        "x = flavor is MYSQL",
    ],
)
def test_a_comparison_is_found(line: str) -> None:
    assert COMPARES.search(line)
