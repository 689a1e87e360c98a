"""Writes `docs/errors.md` from the rules of the host and of every installed plugin: `python -m replicator.plugins.errors docs/errors.md`.

Modules named after the page, such as that of a test kit, have more sections.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from replicator.model.rules import Rule, Section
from replicator.model.rules.classes import CLASSES
from replicator.plugins.registry import Registry

HOST: Final = (
    "configuration",
    "commands",
    "web",
    "processes",
    "tables",
    "columns",
    "sources",
    "targets",
    "alarms",
    "journal",
    "state",
    "spark",
)
"""Modules of `replicator.model.rules`, in the order of the page."""
_HEAD: Final = """\
# Errors

<!-- Generated from the rules of the host and the plugins by `make docs`. Edit their texts there. -->

Every error and every problem that `validate` finds has a code. Codes are stable; messages are not.

To find an error, search this page for its code.

## What happens next

The class says who must act.

| class | what happens | exit |
| --- | --- | --- |
"""
_TERMS: Final = """
Three terms in the last column of the tables below:

- **A new snapshot**: `replicator snapshot NAME TABLE`. The table is read again in place; readers never see it empty.
- **A new log position**: `replicator snapshot NAME --changed-only`. The log is read from a new position, and only rows that differ are \
read again (`verify.md`). Or `replicator snapshot NAME --restart`, which takes a new snapshot of every table, in place.
- **Recreate**: `replicator snapshot NAME TABLE --recreate`. The target table is created again, whatever it or the journal holds, and gets \
a new snapshot. Readers find it incomplete until then.
"""


def sections(more: Sequence[str] = ()) -> Sequence[Section]:
    """Return the sections of the host, of every plugin that is installed and works, and of more modules.

    Raises:
        ValueError: Two of them have one code.
    """
    registry = Registry.discover()
    plugins = [
        registry.source(plugin.name) if plugin.kind == "source" else registry.target(plugin.name)
        for plugin in registry.plugins
        if plugin.state == "ok"
    ]
    modules = [f"replicator.model.rules.{name}" for name in HOST]
    found: list[Section] = [import_module(name).SECTION for name in modules]
    found += [plugin.rules for plugin in plugins if plugin.rules is not None]
    found += [import_module(name).SECTION for name in more]
    codes = [code for section in found for code in section.rules]
    if twice := sorted({code for code in codes if codes.count(code) > 1}):
        message = f"Rules of two sections: {', '.join(twice)}"
        raise ValueError(message)
    return found


def errors_page(found: Sequence[Section]) -> str:
    """Return the page of all codes, in Markdown."""
    classes = "".join(f"| {' | '.join(row)} |\n" for row in CLASSES)
    notes = [note for section in found for note in section.notes]
    return (
        _HEAD
        + classes
        + _TERMS
        + "".join(line for section in found if section.rules for line in _lines(section, notes))
    )


def _lines(section: Section, notes: Sequence[tuple[Rule, str, str]]) -> Iterator[str]:
    yield f"\n## {section.title}\n\n"
    if section.text:
        yield f"{section.text}\n\n"
    yield "| code | class | meaning | what to do |\n| --- | --- | --- | --- |\n"
    for rule in section.rules.values():
        more = [(meaning, remedy) for noted, meaning, remedy in notes if noted.code == rule.code]
        meanings, remedies = zip((rule.meaning, rule.remedy), *more, strict=True)
        yield f"| `{rule.code}` | {rule.bearers} | {_cell(*meanings)} | {_cell(*remedies)} |\n"


def _cell(*texts: str) -> str:
    return " ".join(" ".join(texts).replace("|", "\\|").split())


if __name__ == "__main__":
    page = errors_page(sections(sys.argv[2:]))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page, encoding="utf-8")
    else:
        sys.stdout.write(page)
