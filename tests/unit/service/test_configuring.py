"""What a configuration from the network may do, and what its answer may say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.configuring.document import Refusal
from replicator.service.configuring.process import Asked, ConfiguringOutcome, Deed, answer
from replicator.state.records import Desired
from replicator.state.store import StateStore
from replicator_testbed.present import present
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget
from replicator_testing.target_harness import items_schema

SECRET = "hunter2-hunter2"


def asked(
    folder: Path, text: str, *, is_json: bool = False, name: str | None = None, memory: bool = True
) -> ConfiguringOutcome:
    """What is answered; without a `name` it is only checked."""
    home = Home(folder=folder / "home", state_url=f"sqlite:///{folder}/home/state.db")
    deed = Deed.VALIDATE if name is None else Deed.CONFIGURE
    registry = Registry.of(sources=[MemorySource], targets=[MemoryTarget]) if memory else Registry.discover()
    return answer(Asked(deed=deed, text=text, is_json=is_json, name=name or ""), home, registry)


def refused(folder: Path, text: str, **how: Any) -> Refusal:
    return present(asked(folder, text, **how).refused)


def codes(found: Refusal) -> set[str]:
    return {found.code, *(one.code for one in found.findings)}


def document(folder: Path, **changed: Any) -> dict[str, Any]:
    database = MemoryDatabase.open(folder.name)
    if not database.tables:
        database.create_table(items_schema())
    block = {"type": "memory", "database": folder.name}
    return {"name": "shop", "source": block, "target": dict(block), **changed}


def away(folder: Path, source: Mapping[str, Any]) -> str:
    """A configuration whose source nobody listens at: nothing but its text is right."""
    block = {
        "type": "postgresql",
        "host": "127.0.0.1",
        "port": 1,
        "user": "u",
        "database": "d",
        "connect_timeout": "1s",
    }
    target = {"type": "delta", "path": str(folder / "lake")}
    return yaml.safe_dump({"name": "shop", "source": {**block, **source}, "target": target})


def test_the_desired_state_stays_and_an_error_too(tmp_path: Path) -> None:
    text = yaml.safe_dump(document(tmp_path))
    first = present(asked(tmp_path, text, name="shop").configured)
    assert first.is_new
    store = StateStore(f"sqlite:///{tmp_path}/home/state.db")
    store.set_desired("shop", Desired.PAUSED)
    assert present(asked(tmp_path, text, name="shop").configured).changed == ()
    changed = yaml.safe_dump(document(tmp_path, snapshot={"chunk_rows": 7}))
    again = present(asked(tmp_path, changed, name="shop").configured)
    assert (again.is_new, again.changed) == (False, ("snapshot",))
    assert present(store.replicator("shop")).desired is Desired.PAUSED
    store.set_desired("shop", Desired.DELETED)
    for one in (text, changed):
        assert refused(tmp_path, one, name="shop").code == "being_deleted"
    store.close()


def test_the_same_json_is_the_same_file(tmp_path: Path) -> None:
    text = json.dumps(document(tmp_path), indent="\t")
    assert present(asked(tmp_path, text, name="shop", is_json=True).configured).is_new
    same = present(asked(tmp_path, text, name="shop", is_json=True).configured)
    assert (same.is_new, same.changed, same.findings) == (False, (), ())


def test_a_name_that_differs_stores_nothing(tmp_path: Path) -> None:
    found = refused(tmp_path, yaml.safe_dump(document(tmp_path)), name="other")
    assert (found.code, [one.location for one in found.findings]) == ("name_differs", ["name"])
    store = StateStore(f"sqlite:///{tmp_path}/home/state.db")
    assert store.replicators() == []
    store.close()


@pytest.mark.parametrize("key", ["name", "host", "user", "port", "tls", "slot", "include"])
@pytest.mark.parametrize("kind", ["file", "env"])
def test_no_message_repeats_what_a_reference_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, kind: str
) -> None:
    file = tmp_path / "secret.txt"
    file.write_text(f"{SECRET}\nroot:x:0:0\n")
    file.chmod(0o600)
    monkeypatch.setenv("PLAIN_NAME", "a-value-of-the-host")
    reference = f"${{file:{file}}}" if kind == "file" else "${env:PLAIN_NAME}"
    match key:
        case "name":
            text = away(tmp_path, {}).replace("name: shop", f"name: {reference}")
        case "include":
            text = away(tmp_path, {}) + f"tables: {{include: ['{reference}']}}\n"
        case _:
            text = away(tmp_path, {key: reference})
    said = asked(tmp_path, text, memory=False).model_dump_json()
    assert '"findings":[{' in said
    for hidden in (SECRET, "root:x:0:0", "a-value-of-the-host"):
        assert hidden not in said


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "large", "relative", "binary", "none"])
def test_a_file_that_never_ends_or_is_none_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    file = tmp_path / kind
    match kind:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "device":
            file = Path("/dev/zero")
        case "large":
            file.write_bytes(b"x" * (65 << 10))
        case "relative":
            file = Path("secret.txt")
        case "binary":
            file.write_bytes(b"\xff\xfe\x00")
        case _:
            pass
    found = refused(tmp_path, away(tmp_path, {"password": f"${{file:{file}}}"}), memory=False)
    code = "invalid_reference" if kind == "relative" else "file_not_readable"
    assert [(one.code, one.location) for one in found.findings] == [(code, "source.password")]


def test_a_file_that_is_named_again_and_again_does_not_fill_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_text("x" * (60 << 10))
    file.chmod(0o600)
    found = refused(tmp_path, away(tmp_path, {"user": f"${{file:{file}}}" * 1_000}), memory=False)
    assert "document_too_large" in codes(found)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_document"),
        ("- a", "not_a_mapping"),
        ("a: [", "invalid_yaml"),
        ("a: &a [*a]", "document_too_large"),
        ("[" * 100_000, "invalid_yaml"),
        ("#" * (300 << 10), "document_too_large"),
        ('name: "\\ud800"', "invalid_yaml"),
        ('"\\ud800": 1', "invalid_yaml"),
        ("a: !!python/object/apply:os.system [id]", "invalid_yaml"),
        ("name: shop\nsource: {type: none}\ntarget: {type: none}", "unknown_plugin"),
    ],
)
def test_hostile_yaml_is_refused(tmp_path: Path, text: str, code: str) -> None:
    assert code in codes(refused(tmp_path, text, name="shop"))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        '{"a": ' + "9" * 5_000 + "}",
        '{"a": ' + '{"a": ' * 400 + "1" + "}" * 401,
    ],
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    assert codes(refused(tmp_path, text, name="shop", is_json=True)) & {"invalid_request", "invalid_yaml"}


def test_an_answer_has_an_end_however_much_is_found(tmp_path: Path) -> None:
    many = refused(tmp_path, "".join(f"{'x' * 20}{i}: 1\n" for i in range(5_000)))
    assert (len(many.findings), many.findings_left_out > 4_000) == (1_000, True)
    long = refused(tmp_path, "tables:\n  " + "k" * 900 + ":\n" + "".join(f"    a{i}: 1\n" for i in range(900)))
    for found in (many, long):
        assert len(found.model_dump_json()) < (4 << 20)
