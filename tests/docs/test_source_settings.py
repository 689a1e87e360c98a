"""The tables of settings on the pages of the sources have every setting, with the default that the generated reference has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "configuration.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (`[^|]+) \|([^|]*)\|", re.MULTILINE)


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _reference(source: str) -> dict[str, str]:
    """Setting → default, as `make docs` wrote them; empty where there is none."""
    section = REFERENCE.partition(f"\n## source: {source}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `source\.(\w+)` \|[^|]*\|([^|]*)\|", section, re.MULTILINE)
    return {name: "".join(_names(default)) for name, default in rows if name != "type"}


@pytest.mark.parametrize("source", ["mysql", "postgresql"])
def test_the_settings_of_a_source_have_the_defaults_of_the_reference(source: str) -> None:
    page = (DOCS / "sources" / f"{source}.md").read_text(encoding="utf-8")
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    reference, written = _reference(source), dict[str, str]()
    for names, defaults in _ROW.findall(section):
        # `host`, `port` | , `3306`: one default a name. What has no back quotes is said in words, and the model has no value.
        parts = [part.strip() for part in defaults.split(",")]
        parts += [""] * (len(_names(names)) - len(parts))
        written |= {n: "".join(_names(part)) for n, part in zip(_names(names), parts, strict=True)}
    assert len(written) >= 10
    assert written == reference
