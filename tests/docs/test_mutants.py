"""`make mutants` changes what it says it changes, in files that exist, and finds the same changes again."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = """\
LIMIT = 5


class Pump:
    size: int = 3

    def step(self, rows, done):
        assert rows > 0, "rows are above 0"
        _log.info("step", rows=len(rows) + 1)
        if not done and rows >= 7:
            self.rows = rows
            self.flush(rows, done)
        elif done is None:
            raise ValueError(rows + 1)
        return rows - 1
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_tool", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_modules_that_mutants_are_picked_in_exist(tool: ModuleType) -> None:
    missing = [module for modules in tool.MODULES.values() for module in modules if not (ROOT / module).exists()]
    assert missing == [], "a file that moved moves in MODULES of tools/mutants.py, too"


def test_mutants_are_changes_of_code_and_of_nothing_else(tool: ModuleType) -> None:
    found = tool.Finder(SOURCE.encode()).found
    assert {mutant.what for mutant in found} == {
        "not done and rows >= 7 → not done or rows >= 7",
        "not done → (done)",
        "rows >= 7 → rows > 7",
        "7 → 8",
        "7 → (6)",
        "self.rows = rows → pass",
        "self.flush(rows, done) → pass",
        "self.flush(rows, done) → self.flush(done, rows)",
        "done is None → done is not None",
        "raise ValueError(rows + 1) → pass",
        "return rows - 1 → return None",
        "rows - 1 → rows + 1",
        "1 → 2",
        "1 → (0)",
    }
    assert all(mutant.is_change(SOURCE.encode()) for mutant in found)
    assert {mutant.function for mutant in found} == {"Pump.step"}
    removed = next(mutant for mutant in found if mutant.what.startswith("raise"))
    assert removed.applied(SOURCE.encode()).decode() == SOURCE.replace("raise ValueError(rows + 1)", "pass")


def test_the_same_seed_picks_the_same_mutants_as_many_of_each_area(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    areas = dict(list(tool.MODULES.items())[1:4])
    monkeypatch.setattr(tool, "MODULES", areas)
    picked = tool.pick(ROOT, count=6, seed=1)
    assert picked == tool.pick(ROOT, count=6, seed=1)
    assert Counter(mutant.area for mutant in picked) == dict.fromkeys(areas, 2)
    assert all(mutant.is_change((ROOT / mutant.module).read_bytes()) for mutant in picked)
    assert picked != tool.pick(ROOT, count=6, seed=2)


def test_a_probe_tells_that_its_statement_is_reached(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = dict(enumerate(tool.Finder(SOURCE.encode()).found))
    reached: set[int] = set()
    monkeypatch.setitem(sys.modules, "mutant_probe", SimpleNamespace(reached=reached.add))
    names: dict[str, type] = {"_log": SimpleNamespace(info=lambda *_, **__: None)}  # type: ignore[dict-item] # nor this
    exec(compile(tool.with_probes(SOURCE.replace("len(rows)", "rows").encode(), mutants), "pump", "exec"), names)
    assert reached == set()
    assert names["Pump"]().step(3, True) == 2
    told = {mutants[number].what for number in reached}
    # A condition of `elif` is reached with its `if`.
    assert {"done is None → done is not None", "rows >= 7 → rows > 7", "rows - 1 → rows + 1"} <= told
    assert not {"self.rows = rows → pass", "raise ValueError(rows + 1) → pass"} & told


def test_a_mutant_is_found_again_in_a_file_that_moved_and_has_more_lines(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "apply").mkdir()
    (tmp_path / "apply" / "pump.py").write_text("import os\n\n" + SOURCE, encoding="utf-8")
    line = {"area": "pump", "module": "pump.py", "line": 10, "function": "Pump.step"}
    code = "if not done and rows >= 7:"
    lines = [line | {"what": "rows >= 7 → rows > 7", "code": c} for c in (code, "if rows >= 7:")]
    found, missing = tool.find_again(tmp_path, ["apply/pump.py"], lines)
    assert [(mutant.module, mutant.line, mutant.area) for mutant in found] == [("apply/pump.py", 12, "pump")]
    assert missing == ["pump.py:10 rows >= 7 → rows > 7"]


def test_tests_that_reach_a_mutant_are_given_to_it_next_of_kin_first_and_those_that_fail_anyway_never(
    tool: ModuleType, tmp_path: Path
) -> None:
    tests = {
        "tests/a.py::test_quick": 1,
        "tests/unit/test_pump.py::test_slow[1]": 9,
        "tests/unit/test_pump.py::test_bad": 1,
        "tests/a.py::test_dear": 44.5,
    }
    (tmp_path / "tests-1.jsonl").write_text(
        "".join(json.dumps([t, "failed" if "bad" in t else "passed", s]) + "\n" for t, s in tests.items())
    )
    (tmp_path / "reached-2.jsonl").write_text("".join(json.dumps([4, t]) + "\n" for t in (*tests, "")))
    known = tool.Known.read(tmp_path)
    assert known.tests(4, "replicator/apply/pump.py", ["tests/a.py", "tests/unit/test_pump.py"]) == (
        ["tests/unit/test_pump.py::test_slow", "tests/a.py::test_quick"],
        1,
    )
    assert known.tests(4, "replicator/apply/pump.py", ["tests/a.py"]) == (["tests/a.py::test_quick"], 1)
    assert known.tests(5, "replicator/apply/pump.py", ["tests/a.py"]) == ([], 0)


def test_the_record_is_of_mutants_that_ended(tool: ModuleType) -> None:
    for line in tool.read_record().values():
        assert line["outcome"] in {"killed", "survived"}
        assert bool(line["by"]) == (line["outcome"] == "killed")
        assert set(line["layers"]) <= set(tool.LAYERS)
