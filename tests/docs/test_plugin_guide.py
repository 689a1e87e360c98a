"""`docs/plugins.md` names every hook and every public member of the interfaces, and its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from abc import ABC
from pathlib import Path

import pytest

from replicator.model.events import change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins import hookspecs
from replicator.plugins.kit.ledger import LedgerTarget
from replicator.plugins.kit.polling import PollingSource
from replicator.plugins.kit.transactional import TransactionalTarget
from replicator.plugins.source import DeltaSource, LogReader, Visibility
from replicator.plugins.target import DeltaTarget
from replicator_testing.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(# example: .*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
EXCERPTS = re.findall(r"^```(?:python|toml)\n# from: (\S+)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def example(name: str) -> str:
    (block,) = [b for b in BLOCKS if b.startswith(f"# example: {name}\n")]
    return block


def test_every_hook_is_named() -> None:
    hooks = [name for name in vars(hookspecs) if name.startswith("replicator_")]
    assert hooks
    assert [name for name in hooks if f"`{name}`" not in GUIDE] == []


@pytest.mark.parametrize("interface", [DeltaSource, LogReader, DeltaTarget, Visibility])
def test_every_public_member_is_named(interface: type[ABC]) -> None:
    """The optional ones, too: the host calls them, and a plugin that needs one must learn of it."""
    members = set(interface.__abstractmethods__)
    for owner in interface.__mro__:
        if owner.__module__.startswith("replicator."):
            members |= {name for name in (*vars(owner), *owner.__annotations__) if not name.startswith("_")}
    assert f"`{interface.__name__}`" in GUIDE
    assert [m for m in sorted(members) if not re.search(rf"`({interface.__name__}\.)?{m}[`(]", GUIDE)] == []


@pytest.mark.parametrize("base", [LedgerTarget, TransactionalTarget, PollingSource])
def test_the_bases_and_their_steps_are_named(base: type[ABC]) -> None:
    """What a base leaves to a plugin; of `LedgerTarget` alone the docstrings are the guide."""
    assert f"`{base.__name__}`" in GUIDE
    steps = set() if base is LedgerTarget else base.__abstractmethods__
    assert [name for name in sorted(steps) if f"`{name}`" not in GUIDE] == []


@pytest.mark.parametrize(("file", "text"), EXCERPTS, ids=[file.rpartition("/")[2] for file, _ in EXCERPTS])
def test_excerpts_are_in_the_examples(file: str, text: str) -> None:
    assert text in (ROOT / file).read_text(encoding="utf-8")


def test_every_python_block_is_checked() -> None:
    blocks = re.findall(r"^```python$", GUIDE, re.MULTILINE)
    assert len(blocks) == len(BLOCKS) + sum(file.endswith(".py") for file, _ in EXCERPTS)


def test_the_layout_of_changes_is_complete_and_in_order() -> None:
    import pyarrow as pa

    schema = TableSchema(table=TableId("a", "b"), columns=(Column(name="id", type=pa.int64(), source_type="bigint"),))
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:int64|string|bool|timestamp|list|struct)", GUIDE, re.MULTILINE)
    assert rows == change_schema(schema).names


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.splitlines()[0])
def test_python_blocks_compile(block: str) -> None:
    compile(block, "docs/plugins.md", "exec")


@pytest.mark.parametrize("name", ["settings", "copy"])
def test_examples_run(name: str) -> None:
    exec(compile(example(name), "docs/plugins.md", "exec"), {"__name__": "guide"})


def test_the_contract_example_is_a_suite_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_guide.py").write_text(example("contract"), encoding="utf-8")
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={tmp_path}",
    ]
    command = [sys.executable, "-m", "pytest", *options, "-k", "ledger or replayed or claim", "test_guide.py"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200 * PATIENCE)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "passed" in answer.stdout
