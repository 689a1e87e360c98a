"""What `make test` runs, what it leaves to the matrix, and what the matrix remembers."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from replicator_testbed.selection import GROUPS, LAYERS, chosen, group, layer

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "docs" / "adr" / "0018-where-each-fault-is-shown.md"
TESTS = [
    *ROOT.glob("tests/**/test_*.py"),
    *ROOT.glob("plugins/*/*/tests/**/test_*.py"),
    *ROOT.glob("examples/plugins/*/tests/**/test_*.py"),
]
FILES = [path.relative_to(ROOT).as_posix() for path in TESTS]


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location("matrix_tool", ROOT / "tools" / "matrix.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return module


def is_whole_matrix(marks: list[ast.expr]) -> bool:
    return any(re.fullmatch(r"pytest\.mark\.(matrix|soak|bench)", ast.unparse(mark)) for mark in marks)


@functools.cache
def default_tests() -> Mapping[Path, frozenset[str]]:
    """Per file the test functions of which at least one instance is in `make test`, as far as decorators say."""
    found: dict[Path, set[str]] = defaultdict(set)
    for path in TESTS:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        marks = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        if is_whole_matrix([part for mark in marks for part in (mark.elts if isinstance(mark, ast.List) else [mark])]):
            continue
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) and not is_whole_matrix(node.decorator_list) else [node]
            found[path].update(
                f.name
                for f in inner
                if isinstance(f, ast.FunctionDef)
                and f.name.startswith("test_")
                and not is_whole_matrix(f.decorator_list)
            )
    return {path: frozenset(names) for path, names in found.items() if names}


def test_every_fault_of_the_list_has_an_instance_in_make_test() -> None:
    text = FAULTS.read_text(encoding="utf-8")
    in_matrix = set(re.findall(r"`(test_[a-z0-9_]+)` \(`make test-matrix", text))
    named = {name for name, end in re.findall(r"`(test_[a-z0-9_]+)(\.py)?`", text) if not end}
    assert len(named) > 30
    # A suite that all targets pass has an instance there: that of the target in memory.
    suites = (path.read_text(encoding="utf-8") for path in ROOT.glob("testing/replicator_testing/*_contract.py"))
    of_suites = {name for suite in suites for name in re.findall(r"    def (test_\w+)", suite)}
    assert sorted(named - in_matrix - of_suites - frozenset().union(*default_tests().values())) == []


def test_every_file_with_a_test_of_make_test_was_measured() -> None:
    measured = json.loads((ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
    # What marks of parameters leave out is not seen here.
    paths = [path for path in default_tests() if "mark.matrix" not in path.read_text(encoding="utf-8")]
    files = {path.relative_to(ROOT).as_posix() for path in paths}
    assert sorted(files - measured.keys()) == [], "`make durations PYTEST_ARGS=FILE` measures a file"


def test_each_layer_and_group_has_files() -> None:
    assert {layer(file) for file in FILES} == set(LAYERS)
    assert set(GROUPS) <= {group(file) for file in FILES}


def test_what_shares_a_server_shares_a_process() -> None:
    assert group("plugins/targets/delta/tests/test_lane.py::test_a[b]") == "spark"
    assert group("tests/unit/model/test_schema.py::test_a") == "tests/unit/model/test_schema.py"


def test_a_sample_is_spread_and_always_the_same() -> None:
    assert chosen(3, 5) == {0, 1, 2}
    assert chosen(100, 3) == {0, 50, 99} or chosen(100, 3) == {0, 49, 99}
    assert chosen(100, 1) == {0}
    assert len(chosen(462, 40)) == 40


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("marks", "wanted"),
    [("not matrix", ["test_one[0]", "test_one[9]", "test_two"]), ("matrix", [f"test_one[{n}]" for n in range(1, 9)])],
)
def test_what_a_sample_leaves_out_is_of_the_matrix(tmp_path: Path, marks: str, wanted: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.sampled(2)\n@pytest.mark.parametrize('n', range(10))\ndef test_one(n): ...\ndef test_two(): ...\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "replicator_testbed.selection",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    command += ["-p", "no:cacheprovider", "-p", "no:bqemulator", "--collect-only", "-q", "-m", marks, str(tmp_path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"::(\S+)", listed) == wanted


def test_the_map_of_changes_names_folders_and_parts_that_exist(matrix: ModuleType) -> None:
    parts = [*FILES, "versions/mysql-8.0"]
    assert [folder for folder in matrix.TOUCHES if not (ROOT / folder).exists()] == []
    patterns = {pattern for patterns in matrix.TOUCHES.values() for pattern in patterns}
    assert [pattern for pattern in patterns if not any(fnmatchcase(part, pattern) for part in parts)] == []


def test_every_folder_of_the_product_touches_something(matrix: ModuleType) -> None:
    product = [f"replicator/{path.name}/x.py" for path in (ROOT / "replicator").iterdir() if path.is_dir()]
    product += [f"{path.relative_to(ROOT).as_posix()}/x.py" for path in ROOT.glob("plugins/*/*")]
    assert [file for file in product if not matrix.touched([file], FILES)] == []


def test_a_change_touches_what_it_is_about_and_no_more(matrix: ModuleType) -> None:
    assert matrix.touched(
        ["plugins/sources/mysql/replicator_source_mysql/log/reader.py"], [*FILES, "versions/mysql-8.0"]
    ) >= {
        "plugins/sources/mysql/tests/test_log.py",
        "versions/mysql-8.0",
    }
    assert matrix.touched(["docs/index.md", "plugins/sources/mysql/README.md"], FILES) == frozenset()
    assert matrix.touched(["tests/docs/test_words.py"], FILES) == {"tests/docs/test_words.py"}
    assert matrix.touched(["replicator/model/schema.py"], FILES) == set(FILES)


def test_the_record_names_parts_that_exist(matrix: ModuleType) -> None:
    record = matrix.Record()
    assert [part for part in record.parts if part not in FILES and not part.startswith("versions/")] == []


def test_the_record_keeps_when_a_red_part_was_green(matrix: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    record = matrix.Record(path)
    record.keep("a", commit="one", outcome=matrix.Outcome.read("== 3 passed in 1.50s =="), is_green=True)
    assert record.green("a") == "one"
    record.keep("a", commit="two", outcome=matrix.Outcome.read("1 failed, 2 passed in 1.50s"), is_green=False)
    kept = json.loads(path.read_text(encoding="utf-8"))["a"]
    assert (kept["commit"], kept["passed"], kept["red"]["commit"], kept["red"]["failed"]) == ("one", 3, "two", 1)
    assert matrix.Record(path).green("a") is None


def test_two_runs_have_one_summary(matrix: ModuleType) -> None:
    total = matrix.Outcome.read("…\n===== 1 failed, 10 passed, 2 skipped, 4 deselected in 61.00s (0:01:01) =====\n")
    total.add(matrix.Outcome.read("5 passed, 3 deselected, 1 warning in 2.50s"))
    assert str(total) == "1 failed, 15 passed, 2 skipped in 63.50s"
