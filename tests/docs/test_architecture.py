"""ARCHITECTURE.md names files and functions that exist, and no file of the product grows past what one reads at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^\| \d+ \| .* \| `([^`]+)` \| `([^`]+)` \|$", TEXT, re.MULTILINE)
SECTION = TEXT.partition("## Where do I add")[2].partition("\n## ")[0]
LINES_MAX = 500
LONGER = {"replicator/capture/window.py"}
"""Its docstring has the reason."""
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|(.*)\|$", SECTION, re.MULTILINE)


@pytest.mark.parametrize(("file", "function"), STEPS, ids=[f"{Path(file).stem}-{name}" for file, name in STEPS])
def test_a_step_of_the_walk_is_a_function_of_its_file(file: str, function: str) -> None:
    assert re.search(rf"^\s*def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("what", "file", "more"), ROWS, ids=[what for what, _, _ in ROWS])
def test_what_is_added_has_its_file(what: str, file: str, more: str) -> None:
    missing = [name for name in [file, *re.findall(r"`([^`]+)`", more)] if not (ROOT / name).is_file()]
    assert missing == [], what


def test_nothing_was_left_out_of_the_tables() -> None:
    assert len(STEPS) == sum(line.startswith("| ") and line[2].isdigit() for line in TEXT.splitlines())
    assert len(ROWS) == sum(line.startswith("| ") and "`" in line for line in SECTION.splitlines()) >= 10


def test_no_step_goes_back() -> None:
    """An update goes from the source through capture and journal to apply and target; so does a chunk, once it was read."""
    order = ["sources", "capture", "journal", "apply", "targets"]
    parts = [next(order.index(part) for part in Path(file).parts if part in order) for file, _ in STEPS]
    read = [function for _, function in STEPS].index("read_chunk")
    chunk = max(index for index, (_, function) in enumerate(STEPS[:read]) if function == "advance")
    update = parts[:chunk]
    assert update == sorted(update)
    assert parts[read:] == sorted(parts[read:])


def test_no_file_of_the_product_is_longer_than_one_reads_at_once() -> None:
    files = [path for part in ("replicator", "plugins", "testbed") for path in (ROOT / part).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): path for path in files if "tests" not in path.parts}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in names.items()}
    assert {name for name, count in lines.items() if count > LINES_MAX} == LONGER
