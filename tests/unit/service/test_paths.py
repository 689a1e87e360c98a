"""Paths that are not absolute, wherever they stand in a configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from replicator.config import LoadedConfig
from replicator.plugins.registry import Registry
from replicator.service.configuring.paths import path_findings
from replicator_testing.memory import MemorySource, MemoryTarget


class Credentials(BaseModel):
    """A block inside a block."""

    file: Path | None = None


class Settings(BaseModel):
    """A plugin's block with paths of every kind."""

    path: str = "/srv/lake"
    tls_ca: Path | None = None
    credentials: Credentials = Credentials()


def loaded(source: Settings, target: Settings, journal: str) -> LoadedConfig:
    text = f"name: shop\nsource: {{type: memory, database: a}}\ntarget: {{type: memory, database: b}}\n{journal}"
    found = Registry.of(sources=[MemorySource], targets=[MemoryTarget]).load(text, origin="shop.yaml")
    return replace(found, source=source, target=target)


def test_each_relative_path_is_found_with_the_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Settings(path="no/path/of/a/target", tls_ca=Path("ca.pem"))
    target = Settings(path="lake", credentials=Credentials(file=Path("keys/key.json")))
    found = path_findings(loaded(source, target, "journal: {uri: ./journal}"), {"path": f"{tmp_path}/lake"})
    assert {problem.code for problem in found} == {"path_not_absolute"}
    assert {problem.location: problem.action for problem in found} == {
        "source.tls_ca": f"Write the whole path, for example {tmp_path}/ca.pem.",
        "target.credentials.file": f"Write the whole path, for example {tmp_path}/keys/key.json.",
        "journal.uri": f"Write the whole path, for example {tmp_path}/journal.",
        "target.path": f"Write the whole path, for example {tmp_path}/lake.",
    }


def test_a_home_folder_is_that_of_the_account_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    (found,) = path_findings(loaded(Settings(), Settings(path="~/lake"), ""), {"path": "/home/ada/lake"})
    assert found.action == "Write the whole path, for example /home/ada/lake."


@pytest.mark.parametrize("path", ["/data/lake", "s3a://bucket/lake", "file:///data/lake"])
def test_absolute_paths_and_uris_are_fine(path: str) -> None:
    settings = Settings(path=path, tls_ca=Path("/etc/ca.pem"))
    assert path_findings(loaded(settings, settings, f"journal: {{uri: '{path}'}}"), {"path": path}) == []


def test_a_target_whose_identity_has_no_path_may_call_anything_path() -> None:
    assert path_findings(loaded(Settings(), Settings(path="a name"), ""), {"project": "p"}) == []
