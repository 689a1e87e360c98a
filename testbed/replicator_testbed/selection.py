"""A pytest plugin that says which tests `make test` runs, in which layer each is, and which share a process.

A test marked `matrix` or `soak` is of `make test-matrix` only. Of one marked `sampled(n)`, `make test` takes n of the instances
that are not of the matrix anyway, spread over its parameters, always the same ones. A class whose tests are inherited names
those that `make test` takes (`matrix_except`) or leaves out (`matrix_for`). `--layer` chooses one layer: what a test costs
decides where it belongs, and `tests/docs/test_costs.py` holds the layers to their budgets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # it has no types

ROOT: Final = Path(__file__).parents[2]

LAYERS: Final[Mapping[str, Sequence[str]]] = {
    "walks": ("tests/faults/", "plugins/targets/bigquery/tests/test_end_to_end"),
    "lake": (
        "plugins/targets/",
        "tests/integration/test_object_stores",
        "tests/integration/test_reduce",
        "tests/integration/test_spark",
    ),
    "servers": ("plugins/sources/", "tests/integration/", "tests/testbed/", "examples/"),
    "fast": ("tests/",),
}
"""Path prefixes of each layer; the first that fits counts."""

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "spark": ("plugins/targets/delta/", "tests/integration/test_reduce", "tests/integration/test_spark"),
    "bigquery": ("plugins/targets/bigquery/",),
    "mysql": ("plugins/sources/mysql/tests/test_", "tests/integration/test_capture_mysql"),
    "mysql-log": ("plugins/sources/mysql/tests/binlog/",),
    "postgresql": ("plugins/sources/postgresql/",),
    "postgresql-capture": ("tests/integration/capture_postgresql/",),
    "sqlserver": ("plugins/sources/sqlserver/", "tests/integration/capture_sqlserver/"),
}
"""Files that share one process of `--dist loadgroup`, so that what they need starts once: a JVM, an emulator, a server."""

LONGEST_FIRST: Final = ("walks", "lake", "servers", "fast")
"""A group that is long and comes last leaves the other processes idle."""


def layer(node: str) -> str:
    """The layer of a test or file, by its path from the repository's root."""
    return next((name for name, starts in LAYERS.items() if node.startswith(tuple(starts))), "fast")


def group(node: str) -> str:
    """What shares a process: a group, or else the file."""
    return next((name for name, starts in GROUPS.items() if node.startswith(tuple(starts))), node.partition("::")[0])


def chosen(count: int, wanted: int) -> frozenset[int]:
    """Which of `count` instances a sample takes: the first, the last and those between, evenly."""
    if wanted >= count:
        return frozenset(range(count))
    if wanted == 1:
        return frozenset({0})
    return frozenset(round(i * (count - 1) / (wanted - 1)) for i in range(wanted))


def is_named(item: pytest.Item, names: Sequence[str]) -> bool:
    """Return whether one of the names, each a test or one instance of it, is the item's. All have to be of its class."""
    tests = dir(getattr(item, "cls", None))
    unknown = [name for name in names if name.partition("[")[0] not in tests]
    assert not unknown, f"{item.nodeid}: a mark of its class names tests that are not there: {unknown}"
    return item.name in names or getattr(item, "originalname", None) in names


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be of one layer."""
    parser.addoption("--layer", choices=tuple(LAYERS), help="run one layer of the tests only")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of other layers unread."""
    wanted = config.getoption("--layer")
    if wanted is None or collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT):
        return None
    return True if layer(collection_path.relative_to(ROOT).as_posix()) != wanted else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what samples leave out, and let what takes minutes begin before what takes seconds."""
    instances: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("matrix"):
            instances[item.nodeid.partition("[")[0]].append(item)
    for found in instances.values():
        mark = found[0].get_closest_marker("sampled")
        assert mark is not None
        numbers = chosen(len(found), *mark.args)
        for number, item in enumerate(found):
            if number not in numbers:
                item.add_marker(pytest.mark.matrix)
    for item in items:
        taken, left = item.get_closest_marker("matrix_except"), item.get_closest_marker("matrix_for")
        if (taken and not is_named(item, taken.args)) or (left and is_named(item, left.args)):
            item.add_marker(pytest.mark.matrix)
    items.sort(key=lambda item: LONGEST_FIRST.index(layer(item.nodeid)))


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # as above
    """Gives whole groups to processes."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Divide by our groups with `--dist loadgroup`."""
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None
