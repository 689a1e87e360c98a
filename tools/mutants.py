"""Change the product in 120 spots, one after the other, and see which test notices: `make mutants`.

The spots are picked with a seed in the files of `MODULES`, as many in each area. Everything is done in another work tree of
git with an environment of its own, so that processes that tests start run the changed code, too. Per layer of the tests:

1. Each spot gets a probe, and the tests run once: this tells which tests reach which spot, how long they take, and which fail
   anyway. A process that outlives the test that started it tells of that test only. `tests/docs`, which judges texts, is left out.
2. Each mutant that lives runs the tests that reach it, next of kin first and cheap ones before dear ones, until one is red.
   What no test ends within five minutes is killed, if the same tests end within them without the mutant. A test
   that was red only after ten seconds has to be green without the mutant, else it does not count.

Each mutant is a line of `tests/mutants.jsonl`: how it ended at which commit. A run that was interrupted continues: what was
reached is kept next to that tree.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "tests" / "mutants.jsonl"
LAYERS: Final = ("fast", "servers", "lake", "walks", "matrix")
LIMIT_S: Final = 300
EXPECTED_S: Final = 45
"""So much time the tests of a mutant may take without it, in each layer. What is beyond it is left out, and counted in the record."""
WAITED_S: Final = 10
NO_END: Final = "no end within"
FILES_AT_ONCE: Final = 12

MYSQL: Final = "plugins/sources/mysql/replicator_source_mysql"
POSTGRESQL: Final = "plugins/sources/postgresql/replicator_source_postgresql"
SQLSERVER: Final = "plugins/sources/sqlserver/replicator_source_sqlserver"
BIGQUERY: Final = "plugins/targets/bigquery/replicator_target_bigquery"
DELTA: Final = "plugins/targets/delta/replicator_target_delta"
DUCKDB: Final = "plugins/targets/duckdb/replicator_target_duckdb"

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "window": ("replicator/capture/window.py",),
    "sealing": ("replicator/capture/sealing.py",),
    "retention": ("replicator/journal/retention.py",),
    "fold": tuple(f"replicator/plugins/kit/folding/{name}.py" for name in ("fold", "multiset", "spilling")),
    "lane": (f"{DELTA}/lane/lane.py",),
    "commits of the lane": tuple(
        f"{DELTA}/lane/{name}.py" for name in ("log", "actions", "bulk", "rewrite", "vectors", "known")
    ),
    "ledger": ("replicator/plugins/kit/ledger.py", f"{DELTA}/ledger.py", f"{BIGQUERY}/ledger.py"),
    "life of a table": ("replicator/state/table_life.py",),
    "plan": ("replicator/apply/plan.py",),
    "log of MySQL": (f"{MYSQL}/log/reader.py", f"{MYSQL}/log/pulls.py"),
    "log of PostgreSQL": (f"{POSTGRESQL}/log/reader.py",),
    "log of SQL Server": (f"{SQLSERVER}/cdc/log.py", f"{SQLSERVER}/tracking/log.py"),
    "chunks of MySQL": (f"{MYSQL}/snapshot.py", f"{MYSQL}/rows/chunk_statements.py"),
    "chunks of PostgreSQL": (f"{POSTGRESQL}/snapshot/reader.py", f"{POSTGRESQL}/snapshot/chunk_statements.py"),
    "chunks of SQL Server": (f"{SQLSERVER}/snapshot/reader.py", f"{SQLSERVER}/snapshot/chunk_statements.py"),
    "merge of Delta": (f"{DELTA}/spark/statements.py", f"{DELTA}/engine.py"),
    "merge of BigQuery": (f"{BIGQUERY}/statements.py", f"{BIGQUERY}/reduce.py"),
    "merge of DuckDB": (f"{DUCKDB}/merge.py",),
    "guard and tokens": (
        "replicator/web/guard.py",
        "replicator/service/access/tokens.py",
        "replicator/state/tokens.py",
    ),
    "projection": ("replicator/projection/rows.py",),
}
"""Where mutants are picked. A file that moves moves here, too; `--like` finds those of the record by name and text."""

# -- mutants ----------------------------------------------------------------------------------------------------------

OTHER: Final[Mapping[type[ast.AST], tuple[str, str]]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
}  # fmt: skip
FORMAL: Final = frozenset({"strict", "stacklevel", "daemon", "exc_info", "check", "text"})
"""Arguments that say nothing about what a function does."""
UNSWAPPED: Final = frozenset({"isinstance", "cast", "getattr", "hasattr", "zip", "field"})
"""Functions whose swapped arguments are a crash at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file. `start`, `end`: the bytes that `text` replaces. `statement`: the line that a probe stands on."""

    area: str = ""
    module: str = ""
    function: str
    line: int
    code: str
    statement: int
    kind: str
    what: str
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def is_change(self, source: bytes) -> bool:
        """Return whether the changed file can be read, and says something else."""
        try:
            return ast.dump(ast.parse(self.applied(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


class Finder:
    """Finds what can be changed in a file: within functions, and not in messages, logs, assertions and annotations."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.found: list[Mutant] = []
        self._names: list[str] = []
        self._is_code = False
        self._statement = 0
        for node in ast.parse(source).body:
            self._visit(node)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, kind: str, whole: ast.AST, start: int, end: int, text: str) -> None:
        """`whole` is what is shown of the code."""
        assert isinstance(whole, ast.expr | ast.stmt)
        first, last = self._span(whole)
        before = self._source[first:last].decode()
        after = (self._source[first:start] + text.encode() + self._source[end:last]).decode()
        shown = " → ".join(" ".join(part.split())[:160] for part in (before, after))
        line = self._source[:start].count(b"\n") + 1
        code = self._source[self._starts[line - 1] : self._starts[line]].decode().strip()
        mutant = Mutant(
            function=".".join(self._names), line=line, code=code, statement=self._statement, kind=kind, what=shown,
            start=start, end=end, text=text,
        )  # fmt: skip
        self.found.append(mutant)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                outer, self._is_code = self._is_code, not isinstance(node, ast.ClassDef)
                self._names.append(node.name)
                for child in node.body:
                    self._visit(child)
                self._names.pop()
                self._is_code = outer
            case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Call() if self._is_message(node):
                pass
            case _ if self._is_code:
                self._visit_code(node)

    def _visit_code(self, node: ast.AST) -> None:
        is_elif = isinstance(node, ast.If) and self._source[self._span(node)[0] :].startswith(b"elif")
        if isinstance(node, ast.stmt) and not is_elif:
            self._statement = node.lineno
        statement = self._statement
        self._mutate(node)
        for name, value in ast.iter_fields(node):
            if name == "annotation" or isinstance(node, ast.Raise):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and getattr(child, "arg", None) not in FORMAL:
                    self._visit(child)
                self._statement = statement

    @staticmethod
    def _is_message(call: ast.Call) -> bool:
        called = ast.unparse(call.func)
        return called.startswith("_log") or called.endswith("Error")

    def _mutate(self, node: ast.AST) -> None:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                self._operator("comparison", node, left, op, right)
            case ast.BoolOp(op=op, values=[left, right, *_]):
                self._operator("and, or", node, left, op, right)
            case ast.BinOp(left=left, op=op, right=right):
                if not any(isinstance(n, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict) for n in (left, right)):
                    self._operator("plus, minus", node, left, op, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._whole("not", node, f"({self._text(operand)})")
            case ast.Constant(value=bool(value)):
                self._whole("constant", node, str(not value))
            case ast.Constant(value=int(value)):
                self._whole("constant", node, str(value + 1))
                self._whole("constant", node, f"({value - 1})")
            case ast.Call(args=[first, second, *_]):
                self._swap(node, first, second)
            case ast.stmt():
                self._mutate_statement(node)

    def _mutate_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=ast.expr() as value) if self._text(value) != "None":
                self._whole("return None", node, "return None")
            case ast.Expr(value=ast.Call() as call) if not self._is_message(call):
                self._whole("removed", node, "pass")
            case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
                self._whole("removed", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self._whole("removed", node, "pass")

    def _whole(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(kind, node, *self._span(node), text)

    def _swap(self, call: ast.Call, first: ast.expr, second: ast.expr) -> None:
        names = {getattr(call.func, "id", ""), getattr(call.func, "attr", "")}
        if not names & UNSWAPPED and not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            (start, _), (_, end) = self._span(first), self._span(second)
            self._add("swapped", call, start, end, f"{self._text(second)}, {self._text(first)}")

    def _operator(self, kind: str, whole: ast.AST, left: ast.expr, op: ast.AST, right: ast.expr) -> None:
        if type(op) not in OTHER:
            return
        (_, start), (end, _) = self._span(left), self._span(right)
        old, new = OTHER[type(op)]
        pattern = rf"(?<![\w<>=!]){old.replace(' ', chr(92) + 's+')}(?![\w<>=])"
        between = self._source[start:end].decode()
        found = list(re.finditer(pattern, between))
        if len(found) == 1 and "#" not in between:
            at = start + len(between[: found[0].start()].encode())
            self._add(kind, whole, at, at + len(found[0].group().encode()), new)


def mutants_of(tree: Path, module: str) -> list[Mutant]:
    """Everything that can be changed in a file."""
    return [replace(mutant, module=module) for mutant in Finder((tree / module).read_bytes()).found]


def pick(tree: Path, *, count: int, seed: int) -> list[Mutant]:
    """As many of each area, of as many kinds as there are, no two in a line; the same with the same seed."""
    picked = []
    for area, modules in MODULES.items():
        chance = random.Random(f"{seed} {area}")  # noqa: S311 # it has to be repeatable
        kinds: dict[str, list[Mutant]] = defaultdict(list)
        for module in modules:
            for mutant in mutants_of(tree, module):
                kinds[mutant.kind].append(replace(mutant, area=area))
        for found in kinds.values():
            chance.shuffle(found)
        names = sorted(kinds)
        chance.shuffle(names)
        lines: set[tuple[str, int]] = set()
        wanted = count // len(MODULES)
        while len(lines) < wanted and any(kinds.values()):
            for name in names:
                spare = [m for m in kinds[name] if (m.module, m.line) not in lines]
                kinds[name] = spare[1:]
                if spare and len(lines) < wanted and spare[0].is_change((tree / spare[0].module).read_bytes()):
                    picked.append(spare[0])
                    lines.add((spare[0].module, spare[0].line))
    return picked


def find_again(tree: Path, files: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> tuple[list[Mutant], list[str]]:
    """The mutants of the record in another state of the code, and what is not in it any more."""
    found, missing = [], []
    for line in lines:
        with_code = [file for file in files if line["code"] in (tree / file).read_text(encoding="utf-8")]
        own = Path(line["module"])
        # Its own file first, then one of the same package, then one of its name.
        with_code.sort(
            key=lambda f: (f != line["module"], Path(f).parts[:3] != own.parts[:3], Path(f).name != own.name, f)
        )
        alike = [
            m
            for module in with_code
            for m in mutants_of(tree, module)
            if (m.function, m.what, m.code) == (line["function"], line["what"], line["code"])
        ]
        if alike:
            found.append(replace(alike[0], area=line["area"]))
        else:
            missing.append(f"{line['module']}:{line['line']} {line['what']}")
    return found, missing


def with_probes(source: bytes, mutants: Mapping[int, Mutant]) -> bytes:
    """A file that tells when a statement with a mutant is reached."""
    lines = source.splitlines(keepends=True)
    for number, mutant in sorted(mutants.items(), key=lambda entry: -entry[1].statement):
        at = mutant.statement - 1
        indent = re.match(rb"\s*", lines[at])
        assert indent is not None
        lines.insert(at, indent.group() + f"import mutant_probe; mutant_probe.reached({number})\n".encode())
    return b"".join(lines)


# -- another tree --------------------------------------------------------------------------------------------------------

PROBE: Final = """
import json, os
FOLDER = {folder!r}
known = set()

def reached(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (number, test) not in known:
        known.add((number, test))
        tell("reached", [number, test])

def tell(what, value):
    with open(f"{{FOLDER}}/{{what}}-{{os.getpid()}}.jsonl", "a") as file:
        file.write(json.dumps(value) + "\\n")

def pytest_runtest_logreport(report):
    tell("tests", [report.nodeid, report.outcome, report.duration])
"""


class Clone:
    """A work tree of git at a commit, with an environment that has its packages instead of ours."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.tree = folder / "tree"
        self.told = folder / "told"
        self.told.mkdir(parents=True, exist_ok=True)
        if not self.tree.exists():
            git("worktree", "prune")
            git("worktree", "add", "--quiet", "--detach", str(self.tree), commit)
        git("-C", str(self.tree), "checkout", "--quiet", "--", ".")
        if not (self.tree / ".venv").exists():
            self._make_environment(ROOT / ".venv", self.tree / ".venv")

    def _make_environment(self, ours: Path, new: Path) -> None:
        packages = next(ours.glob("lib/python3*/site-packages"))
        into = new / packages.relative_to(ours)
        into.mkdir(parents=True)
        absent = []
        for entry in packages.glob("*.pth"):
            text = entry.read_text(encoding="utf-8")
            if str(ROOT) in text:
                there = text.replace(str(ROOT), str(self.tree))
                (into / entry.name).write_text(there, encoding="utf-8")
                absent += [] if Path(there.strip()).exists() else [entry.stem.lstrip("_")]
        for entry in packages.iterdir():
            is_absent = entry.name.endswith(".dist-info") and entry.name.partition("-")[0] in absent
            if not (into / entry.name).exists() and not is_absent:
                (into / entry.name).symlink_to(entry)
        (into / "mutant_probe.py").write_text(PROBE.format(folder=str(self.told)), encoding="utf-8")
        (new / "bin").mkdir()
        for entry in (ours / "bin").iterdir():
            if entry.is_file() and not entry.is_symlink() and entry.read_bytes().startswith(b"#!"):
                text = entry.read_text(encoding="utf-8").replace(str(ours), str(new))
                (new / "bin" / entry.name).write_text(text, encoding="utf-8")
                (new / "bin" / entry.name).chmod(0o755)
            else:
                (new / "bin" / entry.name).symlink_to(entry.readlink() if entry.is_symlink() else entry)
        for entry in ours.iterdir():
            if entry.name == "pyvenv.cfg":
                shutil.copy(entry, new)
            elif not (new / entry.name).exists():
                (new / entry.name).symlink_to(entry)

    def write(self, module: str, source: bytes) -> None:
        """Write a file, and remove its compiled form: of a change within a second and of the same size Python sees nothing."""
        path = self.tree / module
        path.write_bytes(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def pytest(self, arguments: Sequence[str], *, log: Path, within_s: float | None) -> int | None:
        """Run tests; return the exit code, or None if their time was over."""
        environ = {k: v for k, v in os.environ.items() if k not in {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}}
        environ["VIRTUAL_ENV"] = str(self.tree / ".venv")
        environ["PATH"] = f"{self.tree / '.venv' / 'bin'}:{environ['PATH']}"
        command = [str(self.tree / ".venv" / "bin" / "python"), "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments], cwd=self.tree, env=environ, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                return process.wait(within_s)
            except subprocess.TimeoutExpired:
                # pytest's own handling of an interrupt ends servers and workers.
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                return None

    def files(self, layer: str) -> list[str]:
        """The files of tests of a layer."""
        sys.path.insert(0, str(ROOT / "testbed"))
        from replicator_testbed.selection import layer as layer_of

        tests = [
            file for file in git("-C", str(self.tree), "ls-files").splitlines() if re.search(r"/test_\w+\.py$", file)
        ]
        return [
            file
            for file in tests
            if layer in {"matrix", layer_of(file)} and not file.startswith("tests/docs/") and "/tests/" in f"/{file}"
        ]


def options_of(layer: str, project: str) -> Sequence[str]:
    """What chooses the tests of a layer among those of its files. `project`: the text of pyproject.toml, which has the marks."""
    matrix = "matrix" if re.search(r'"matrix: ', project) else "slow"  # its name until there was a matrix
    marks = f"{'' if layer == 'matrix' else 'not '}{matrix} and not soak and not bench"
    # Its import takes as long as everything else.
    return ["-m", marks, *(["-p", "no:schemathesis"] if layer == "fast" else [])]


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# -- runs -------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Known:
    """What the runs with probes told: seconds per test, and the tests that reach each mutant. Parameters are not told apart."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bad: set[str] = field(default_factory=set)
    reached: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def read(cls, folder: Path) -> Known:
        """From the files that the probes wrote."""
        known = cls()
        for path in folder.glob("tests-*.jsonl"):
            for test, outcome, seconds in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                name = test.partition("[")[0]
                known.seconds[name] += seconds
                if outcome == "failed":
                    known.bad.add(name)
        for path in folder.glob("reached-*.jsonl"):
            for number, test in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                known.reached[number].add(test.partition("[")[0])
        return known

    def tests(self, number: int, module: str, files: Sequence[str]) -> tuple[list[str], int]:
        """What a mutant is given, in order, and how many tests are left out."""
        per_file: dict[str, list[str]] = defaultdict(list)
        for test in self.reached[number] - self.bad:
            if test.partition("::")[0] in files:
                per_file[test.partition("::")[0]].append(test)
        stem, above = Path(module).stem, Path(module).parent.name

        def order(file: str) -> tuple[bool, bool, float]:
            return stem not in Path(file).stem, above not in file, sum(self.seconds[t] for t in per_file[file])

        chosen: list[str] = []
        spent = 0.0
        for file in sorted(per_file, key=order):
            for test in sorted(per_file[file], key=lambda test: self.seconds[test]):
                if chosen and spent + self.seconds[test] > EXPECTED_S:
                    continue
                chosen.append(test)
                spent += self.seconds[test]
        return chosen, sum(map(len, per_file.values())) - len(chosen)


class Run:
    """All mutants against all layers that are asked for."""

    def __init__(self, clone: Clone, commit: str, mutants: Sequence[Mutant], tests: Sequence[str]) -> None:
        self._clone = clone
        self._commit = commit
        self._mutants = dict(enumerate(mutants))
        self._only = tests
        self._log = clone.told.parent / "pytest.log"
        self._named = clone.told.parent / "arguments.txt"
        self._lines = read_record()

    def _key(self, mutant: Mutant) -> tuple[str, str, int, str]:
        return (self._commit, mutant.module, mutant.line, mutant.what)

    def layer(self, name: str) -> None:
        """Find out what reaches which mutant, then run those that live."""
        files = [
            file
            for file in self._clone.files(name)
            if not self._only or any(fnmatchcase(file, pattern) for pattern in self._only)
        ]
        options = options_of(name, (self._clone.tree / "pyproject.toml").read_text(encoding="utf-8"))
        self._probe(files, name, options)
        known = Known.read(self._clone.told)
        for number, mutant in self._mutants.items():
            line = self._lines.get(self._key(mutant), {})
            if line.get("outcome") == "killed" or (name in line.get("layers", ()) and not self._only):
                continue
            self._try(mutant, known, number, files, name, options)

    def _probe(self, files: Sequence[str], name: str, options: Sequence[str]) -> None:
        done = self._clone.told / f"done-{'matrix' if name == 'matrix' else 'default'}.txt"
        finished = set(done.read_text(encoding="utf-8").split()) if done.exists() else set()
        left = [file for file in files if file not in finished]
        per_module: dict[str, dict[int, Mutant]] = defaultdict(dict)
        for number, mutant in self._mutants.items():
            per_module[mutant.module][number] = mutant
        sources = {module: (self._clone.tree / module).read_bytes() for module in per_module}
        try:
            for module, source in sources.items():
                self._clone.write(module, with_probes(source, per_module[module]))
            while left:
                folder = Path(left[0]).parent
                chunk = [file for file in left if Path(file).parent == folder][:FILES_AT_ONCE]
                began = time.monotonic()
                self._clone.pytest(
                    ["-p", "mutant_probe", *options, "--timeout=300", *chunk], log=self._log, within_s=None
                )
                print(f"{name}: {len(left)} files left; {folder}: {time.monotonic() - began:.0f} s", flush=True)
                with done.open("a", encoding="utf-8") as file:
                    file.write("".join(f"{one}\n" for one in chunk))
                left = [file for file in left if file not in chunk]
        finally:
            for module, source in sources.items():
                self._clone.write(module, source)

    def _try(
        self, mutant: Mutant, known: Known, number: int, files: Sequence[str], name: str, options: Sequence[str]
    ) -> None:
        began = time.monotonic()
        by = None
        while True:
            tests, left_out = known.tests(number, mutant.module, files)
            if not tests:
                break
            by = self._red(mutant, tests, options)
            if by is not None and by.startswith(NO_END) and not self._ends_without(options):
                print(f"not judged, on a machine with so much else to do: {mutant.module}:{mutant.line} {mutant.what}")
                return
            if by is None or by.partition("[")[0] not in tests or not self._may_have_waited(by):
                break
            again = [by.partition("[")[0]]
            if self._clone.pytest([*options, "--timeout=120", *again], log=self._log, within_s=LIMIT_S) == 0:
                break
            known.bad.update(again)
            by = None
        # Some tests say nothing about all of a layer.
        layers = () if self._only and not by else (name,)
        self._lines = read_record()  # somebody may have written notes meanwhile
        line = self._lines.get(self._key(mutant), {})
        self._lines[self._key(mutant)] = line = {
            "area": mutant.area, "module": mutant.module, "line": mutant.line, "function": mutant.function, "code": mutant.code,
            "kind": mutant.kind, "what": mutant.what, "commit": self._commit,
            "outcome": "killed" if by else "survived", "by": by or "",
            "layers": sorted({*line.get("layers", ()), *layers}, key=LAYERS.index),
            "tests": line.get("tests", 0) + len(tests), "left_out": line.get("left_out", 0) + left_out,
            "seconds": round(line.get("seconds", 0) + time.monotonic() - began), "note": line.get("note", ""),
        }  # fmt: skip
        write_record(self._lines)
        print(
            f"{line['outcome']} {mutant.module}:{mutant.line} {mutant.what}: {by or f'{len(tests)} tests'}", flush=True
        )

    def _may_have_waited(self, test: str) -> bool:
        """Whether a red test took so long that it may have failed for the want of time."""
        told = re.findall(r"^FAILED (\S+) \(\w+, (\d+) s\)", self._log.read_text(errors="replace"), re.MULTILINE)
        return int(dict(told).get(test, WAITED_S)) >= WAITED_S

    def _ends_without(self, options: Sequence[str]) -> bool:
        """Whether the tests that a mutant was given last end in time without it."""
        return self._clone.pytest([*options, f"@{self._named}"], log=self._log, within_s=LIMIT_S) is not None

    def _red(self, mutant: Mutant, tests: Sequence[str], options: Sequence[str]) -> str | None:
        """The first test that fails with the mutant."""
        source = (self._clone.tree / mutant.module).read_bytes()
        self._named.write_text("\n".join(tests), encoding="utf-8")
        try:
            self._clone.write(mutant.module, mutant.applied(source))
            code = self._clone.pytest(
                ["-x", *options, "--timeout=120", f"@{self._named}"], log=self._log, within_s=LIMIT_S
            )
        finally:
            self._clone.write(mutant.module, source)
        text = self._log.read_text(errors="replace")
        if code == 0:
            return None
        if code is None:
            begun = re.findall(r"^(\S+::\S+)", text, re.MULTILINE)
            return f"{NO_END} {LIMIT_S} s: {begun[-1] if begun else 'nothing begun'}"
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        if code in {4, 5} or (code in {1, 2} and not failed):
            raise RuntimeError(f"pytest ended with {code}, see {self._log}")
        return failed[0] if failed else f"pytest ended with {code}"


def read_record() -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """`tests/mutants.jsonl`, by commit and mutant."""
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()] if RECORD.exists() else []
    return {(line["commit"], line["module"], line["line"], line["what"]): line for line in lines}


def write_record(lines: Mapping[tuple[str, str, int, str], Mapping[str, Any]]) -> None:
    """Replace it."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines.values())
    RECORD.write_text(text, encoding="utf-8")


def summary(commit: str) -> Iterator[str]:
    """How the mutants of a commit ended; the last line counts."""
    lines = [line for line in read_record().values() if line["commit"] == commit]
    for line in lines:
        if line["outcome"] == "survived":
            yield f"survived {line['module']}:{line['line']} {line['what']} {line['note']}"
    killed = [line for line in lines if line["outcome"] == "killed"]
    per_layer = ", ".join(f"{sum(1 for k in killed if k['layers'][-1] == name)} {name}" for name in LAYERS)
    yield f"===== {len(killed)} of {len(lines)} mutants killed ({per_layer}) at {commit[:12]} ====="


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="HEAD", help="of which state of the code; names that of a run to continue")
    parser.add_argument("--like", help="the mutants that the record has of this commit, instead of picked ones")
    parser.add_argument("--survivors", action="store_true", help="of these only those that survived")
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=LAYERS[:-1], help="in this order")
    parser.add_argument("--tests", nargs="*", default=[], help="only these files of tests, or patterns of them")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--list", action="store_true", help="print the mutants; run nothing")
    chosen = parser.parse_args(arguments)
    commit = git("rev-parse", chosen.commit)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "replicator" / "mutants"
    # What was reached is known by the numbers of these mutants.
    like = git("rev-parse", chosen.like) if chosen.like else ""
    variant = f"like-{like[:12]}{'-survivors' if chosen.survivors else ''}" if like else f"{chosen.count}-{chosen.seed}"
    clone = Clone(cache / f"{commit[:12]}-{variant}", commit)
    if like:
        lines = [line for line in read_record().values() if line["commit"] == like]
        wanted = [line for line in lines if not chosen.survivors or line["outcome"] == "survived"]
        files = [
            f for f in git("-C", str(clone.tree), "ls-files", "replicator", "plugins").splitlines() if f.endswith(".py")
        ]
        mutants, missing = find_again(clone.tree, files, wanted)
        for one in missing:
            print(f"not in this code: {one}")
    else:
        mutants = pick(clone.tree, count=chosen.count, seed=chosen.seed)
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.module}:{mutant.line} {mutant.function}: {mutant.what}")
        return 0
    print(f"{len(mutants)} mutants of {commit[:12]}", flush=True)
    run = Run(clone, commit, mutants, chosen.tests)
    for name in chosen.layers:
        run.layer(name)
    for told in summary(commit):
        print(told)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
