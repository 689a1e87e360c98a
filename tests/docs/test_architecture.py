"""ARCHITECTURE.md names files and functions that exist, so do the READMEs of plugins, and no file grows too long to read."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest


class Step(NamedTuple):
    """A row of a walk. `by`: the number of the step that calls it, or `loop`: the loop of a process or thread."""

    number: int
    by: str
    file: str
    function: str


ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\| (\d+) \| (\d+|loop) \| .* \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
WALKS = {
    walk: [Step(int(number), by, file, function) for number, by, file, function in STEP.findall(part)]
    for walk in (
        "One update, from PostgreSQL to Delta",
        "One ADD COLUMN, from PostgreSQL to Delta",
        "The question",
        "The chunk's way",
    )
    if (part := re.split(r"\n##+ ", TEXT.partition(f" {walk}\n")[2])[0])
}
STEPS = [(walk, step) for walk, steps in WALKS.items() for step in steps]
SECTION = TEXT.partition("## Where do I add")[2].partition("\n## ")[0]
ORDER = ["sources", "capture", "journal", "state", "runtime", "apply", "kit", "targets", "folding"]
"""Parts of paths; the last that a path has counts. `kit/folding` is what targets call, `kit` else is what calls them."""
LINES_MAX = 800
LINES_MAX_OF = {"plugins/sources/mysql/replicator_source_mysql/log/reader.py": 400}
"""It grew with every kind of transaction that MySQL has; each of them has its own module now."""
TEST_LINES_MAX = 1200
MODULES_MAX = 25
READMES = sorted([*ROOT.glob("plugins/*/*/README.md"), *ROOT.glob("examples/plugins/*/README.md")])
ROWS = re.findall(r"^\| ([^|]+) \| `([^`:]+)(?::(\w+))?` \|(.*)\|$", SECTION, re.MULTILINE)


@pytest.mark.parametrize(("walk", "step"), STEPS, ids=[f"{Path(s.file).stem}-{s.function}" for _, s in STEPS])
def test_a_step_of_a_walk_is_a_function_of_its_file_and_called_by_the_step_that_it_names(walk: str, step: Step) -> None:
    assert re.search(rf"^\s*def {step.function}\(", _source(step.file), re.MULTILINE)
    if step.by != "loop":
        assert int(step.by) < step.number
        assert re.search(rf"(?<!def )\b_?{step.function}\(", _source(WALKS[walk][int(step.by) - 1].file))


def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(("what", "file", "name", "more"), ROWS, ids=[what for what, *_ in ROWS])
def test_what_is_added_stands_in_its_file(what: str, file: str, name: str, more: str) -> None:
    missing = [one for one in [file, *re.findall(r"`([^`]+)`", more)] if not (ROOT / one).is_file()]
    assert missing == [], what
    assert not name or re.search(rf"^(?:(?:async )?def |class )?{name}\b", _source(file), re.MULTILINE), what


def test_nothing_was_left_out_of_the_tables() -> None:
    assert len(STEPS) == sum(line.startswith("| ") and line[2].isdigit() for line in TEXT.splitlines())
    assert all([step.number for step in steps] == list(range(1, len(steps) + 1)) for steps in WALKS.values())
    assert len(ROWS) == sum(line.startswith("| ") and "`" in line for line in SECTION.splitlines())
    assert sum(bool(name) for _, _, name, _ in ROWS) >= 20


@pytest.mark.parametrize("walk", WALKS)
def test_no_step_goes_back(walk: str) -> None:
    """What the loops do goes from the source to the target, and so does what they call. Only a question goes to the source."""
    is_question = walk == "The question"
    parts = [_part(step.file) for step in WALKS[walk]]
    loops = [part for part, step in zip(parts, WALKS[walk], strict=True) if step.by == "loop"]
    assert loops == sorted(loops)
    for part, step in zip(parts, WALKS[walk], strict=True):
        if step.by != "loop":
            assert part >= parts[int(step.by) - 1] or (is_question and ORDER[part] == "sources"), step


def _part(file: str) -> int:
    return max(ORDER.index(part) for part in Path(file).parts if part in ORDER)


@pytest.mark.parametrize("readme", READMES, ids=[readme.parent.name for readme in READMES])
def test_a_plugins_readme_names_files_that_exist(readme: Path) -> None:
    """By their names or paths inside the package, or by their paths from the root."""
    [package] = [path for path in readme.parent.glob("replicator_*") if path.is_dir()]
    files = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    known = {*files, *(Path(name).name for name in files), *(f"{Path(name).parent}/" for name in files)}
    named = re.findall(r"`([\w/]+(?:\.py|/))`", readme.read_text(encoding="utf-8"))
    assert [name for name in named if name not in known and not (ROOT / name).exists()] == []


def test_no_file_of_the_product_is_longer_than_one_reads_at_once() -> None:
    files = [path for part in ("replicator", "plugins", "testbed", "testing") for path in (ROOT / part).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): path for path in files if "tests" not in path.parts}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in names.items()}
    assert {name for name, count in lines.items() if count > LINES_MAX_OF.get(name, LINES_MAX)} == set()


def test_no_folder_of_the_product_has_more_modules_than_one_finds_ones_way_in() -> None:
    """A folder with more gets packages, each named by a noun; its `__init__` says what comes in and what goes out."""
    files = [path for part in ("replicator", "plugins", "testbed", "testing") for path in (ROOT / part).rglob("*.py")]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in files if "tests" not in path.parts)
    assert {name for name, count in folders.items() if count > MODULES_MAX} == set()


def test_no_file_of_tests_is_too_long_to_read() -> None:
    files = [path for part in ("tests", "plugins", "examples") for path in (ROOT / part).rglob("*.py")]
    tests = [path for path in files if "tests" in path.parts]
    assert tests
    assert [str(path) for path in tests if len(path.read_text(encoding="utf-8").splitlines()) > TEST_LINES_MAX] == []
