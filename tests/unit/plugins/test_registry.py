"""Every plugin that can be used is; every other one is listed with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from pydantic import BaseModel

from replicator import plugins
from replicator.config import ConfigModel
from replicator.model.errors import ConfigError
from replicator.plugins import DeltaSource, DeltaTarget, Registry, source, target

PREAMBLE = """
from replicator.plugins import ConfigModel, DeltaSource, DeltaTarget, hookimpl

class Settings(ConfigModel):
    pass

class Source(DeltaSource):
    type_name = "one"
    config_model = Settings

class Target(DeltaTarget):
    type_name = "lake"
    config_model = Settings

Source.__abstractmethods__ = frozenset()
Target.__abstractmethods__ = frozenset()
"""
GOOD_SOURCE = """
@hookimpl
def replicator_register_sources():
    return [Source]
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def install(
        self, module: str, code: str, *, entry: str | None = None, version: str = "1.2", preamble: str = PREAMBLE
    ) -> None:
        (self.path / f"{module}.py").write_text(preamble + dedent(code))
        name = module.replace("_", "-")
        folder = self.path / f"{module}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(f"[replicator]\n{entry or name} = {module}\n")
        self.modules.append(module)

    def registry(self) -> Registry:
        found = distributions(path=[str(self.path)])
        return Registry.from_entry_points([point for d in found for point in d.entry_points])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


def test_good_plugin_is_listed_with_its_version(site: Site) -> None:
    site.install("plugin_one", GOOD_SOURCE)
    registry = site.registry()
    (info,) = registry.plugins
    assert (info.name, info.kind, info.distribution, info.version, info.state, info.reason) == (
        "one", "source", "plugin-one", "1.2", "ok", None,
    )  # fmt: skip
    assert registry.source("one").type_name == "one"
    assert set(registry.source_models()) == {"one"}
    assert registry.target_models() == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_driver", "No module named 'no_such_driver'"),
        ("raise RuntimeError('boom')", "boom"),
        ("", "implements neither"),
        ("@hookimpl\ndef replicator_register_sinks(): return []", "unknown hook"),
        ("@hookimpl\ndef replicator_register_sources(which): return []", "which"),
        ("@hookimpl\ndef replicator_register_sources(): import no_such_driver", "No module named 'no_such_driver'"),
        ("@hookimpl\ndef replicator_register_sources(): return Source", "must return a list"),
        ("@hookimpl\ndef replicator_register_sources(): return None", "NoneType"),
        ("@hookimpl\ndef replicator_register_sources(): yield Source", "generator"),
        ("@hookimpl\ndef replicator_register_sources(): return [Target]", "Target is not a subclass of DeltaSource"),
        ("@hookimpl\ndef replicator_register_sources(): return ['one']", "str is not a subclass"),
        ("del Source.type_name" + GOOD_SOURCE, "type_name"),
        ("Source.type_name = 'No Name'" + GOOD_SOURCE, "type_name"),
        ("del Source.config_model" + GOOD_SOURCE, "config_model"),
        ("Source.config_model = dict" + GOOD_SOURCE, "pydantic model"),
        (
            "from pydantic import BaseModel\nclass Loose(BaseModel): pass\nSource.config_model = Loose" + GOOD_SOURCE,
            "frozen",
        ),
        ("class Typed(ConfigModel):\n    type: str\nSource.config_model = Typed" + GOOD_SOURCE, "`type`"),
        ("Source.__abstractmethods__ = frozenset({'check'})" + GOOD_SOURCE, "does not implement check"),
    ],
)
def test_broken_plugin_is_listed_with_the_reason_and_the_others_work(site: Site, code: str, reason: str) -> None:
    site.install("plugin_bad", "\n" + code, entry="source-bad")
    site.install("plugin_lake", "@hookimpl\ndef replicator_register_targets():\n    return (Target,)\n")
    registry = site.registry()
    broken = [info for info in registry.plugins if info.state == "broken"]
    assert [(info.kind, info.distribution) for info in broken] == [("source", "plugin-bad")]
    assert reason in (broken[0].reason or "")
    assert registry.target("lake").type_name == "lake"
    assert registry.source_models() == {}


def test_name_with_two_owners_is_refused_and_both_are_named(site: Site) -> None:
    site.install("plugin_a", GOOD_SOURCE, entry="source-one")
    site.install("plugin_b", GOOD_SOURCE, entry="source-one")
    registry = site.registry()
    assert [(info.name, info.state) for info in registry.plugins] == [("one", "broken")] * 2
    for info in registry.plugins:
        assert "plugin-a" in (info.reason or "")
        assert "plugin-b" in (info.reason or "")
    with pytest.raises(ConfigError, match="plugin-a"):
        registry.source("one")


def test_looking_up_a_source_imports_no_target(site: Site) -> None:
    site.install("plugin_one", GOOD_SOURCE)
    site.install("plugin_lake", "@hookimpl\ndef replicator_register_targets():\n    import antigravity_of_targets\n")
    registry = site.registry()
    assert registry.source("one")
    assert "_targets" not in vars(registry)


def test_a_plugin_that_is_named_is_the_only_one_that_is_imported(site: Site) -> None:
    site.install("plugin_one", GOOD_SOURCE, entry="source-one")
    site.install("plugin_two", "@hookimpl\ndef replicator_register_sources():\n    raise SystemExit('asked')\n")
    site.install(
        "plugin_lake", "@hookimpl\ndef replicator_register_targets():\n    return (Target,)\n", entry="target-lake"
    )
    registry = site.registry()
    assert registry.source("one").type_name == "one"
    loaded = registry.load("name: x\nsource: {type: one}\ntarget: {type: lake}\n")
    assert (loaded.source_type, loaded.target_type) == ("one", "lake")
    assert registry.target("lake").type_name == "lake"


def test_a_plugin_is_found_though_its_entry_point_is_called_otherwise(site: Site) -> None:
    site.install("plugin_one", GOOD_SOURCE, entry="source-other")
    registry = site.registry()
    assert registry.source("one").type_name == "one"
    with pytest.raises(ConfigError, match="Installed sources: one"):
        registry.source("other")


def test_unknown_plugin_names_the_nearest_the_installed_and_the_command(site: Site) -> None:
    site.install("plugin_one", GOOD_SOURCE)
    with pytest.raises(ConfigError) as caught:
        site.registry().source("ome")
    text = str(caught.value)
    assert caught.value.code == "unknown_plugin"
    for expected in ("'ome'", "Installed sources: one.", "Did you mean one?", "pip install replicator-source-NAME"):
        assert expected in text


def test_configuration_that_names_a_broken_plugin_says_why(site: Site) -> None:
    site.install("plugin_bad", "import no_such_driver", entry="source-bad")
    with pytest.raises(ConfigError) as caught:
        site.registry().load("name: x\nsource: {type: bad}\ntarget: {type: lake}\n", origin="x.yaml")
    by_location = {problem.location: problem for problem in caught.value.problems}
    assert "no_such_driver" in by_location["x.yaml:2 source.type"].message
    assert by_location["x.yaml:3 target.type"].code == "unknown_plugin"


def test_in_process_plugins_are_found_without_installation() -> None:
    class Settings(ConfigModel):
        pass

    class Memory(DeltaSource[BaseModel]):
        type_name = "memory"
        config_model = Settings

    class Heap(DeltaTarget[BaseModel]):
        type_name = "heap"
        config_model = Settings

    Memory.__abstractmethods__ = Heap.__abstractmethods__ = frozenset()
    registry = Registry.of(sources=[Memory], targets=[Heap])  # type: ignore[type-abstract]
    assert registry.source("memory") is Memory
    assert registry.target("heap") is Heap
    loaded = registry.load("name: x\nsource: {type: memory}\ntarget: {type: heap}\n")
    assert isinstance(loaded.source, Settings)


def test_installed_plugins_can_be_discovered() -> None:
    assert {info.state for info in Registry.discover().plugins} <= {"ok", "broken"}


@pytest.mark.parametrize("module", [source, target])
def test_every_part_of_the_interface_is_exported_to_plugin_authors(module: ModuleType) -> None:
    public = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    assert {name for name in public if not name.startswith("_")} - {"ConfigT"} <= set(plugins.__all__)
