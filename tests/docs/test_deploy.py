"""The files of `docs/deploy/` are what their readers take them for: systemd, Kubernetes, a builder of containers, and the commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.plugins.registry import Registry
from replicator.testing.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
UNIT = DEPLOY / "replicator.service"
MANIFESTS = sorted(DEPLOY.glob("kubernetes*.yaml"))
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def parses(arguments: Sequence[str]) -> bool:
    """Whether the command line takes these arguments; nothing is executed."""
    return CliRunner().invoke(main, [*arguments, "--help"]).exit_code == 0


def documents(manifest: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))


def containers(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NO SYSTEMD: systemd-analyze is not installed; the unit is checked by the tests below only")
    # The program is where it is here.
    here = Path(sys.executable).parent / "replicator"
    text = UNIT.read_text(encoding="utf-8").replace("/opt/replicator/bin/replicator", str(here))
    file = tmp_path / "replicator.service"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )
    about = [line for line in (done.stdout + done.stderr).splitlines() if "replicator.service" in line]
    assert (done.returncode, about) == (0, [])


def test_the_unit_runs_a_command_that_there_is_and_stops_it_in_time() -> None:
    lines = dict(
        line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if re.match(r"[A-Z]\w+=", line)
    )
    program, *arguments = shlex.split(lines["ExecStart"])
    assert program.endswith("/bin/replicator")
    assert parses(arguments)
    assert int(lines["TimeoutStopSec"]) >= 15, "a worker ends within ten seconds (operating.md)"
    assert lines["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_what_kubernetes_takes(manifest: Path, version: str) -> None:
    found = documents(manifest)
    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_manifest_with_a_wrong_key_is_refused() -> None:
    """That the schemas are looked at."""
    document = next(one for one in documents(DEPLOY / "kubernetes.yaml") if one["kind"] == "StatefulSet")
    document["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_containers_run_commands_that_there_are(manifest: Path) -> None:
    found = [one for document in documents(manifest) for one in containers(document)]
    assert found
    for container in found:
        assert parses([argument for argument in container["args"] if not argument.endswith(".yaml")])


def test_the_configuration_in_the_manifest_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {document["kind"]: document for document in documents(DEPLOY / "kubernetes.yaml")}
    for name, value in everything["Secret"]["stringData"].items():
        monkeypatch.setenv(name, value)
    loaded = Registry.discover().load(everything["ConfigMap"]["data"]["shop.yaml"], origin="shop.yaml")
    assert loaded.config.name == "shop"


def test_the_container_file_installs_what_there_is() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = [path for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for path in line.split()]
    for path in [*copied, *re.findall(r"(?<= )\./(\S+)", text)]:
        assert (ROOT / path).exists(), path
    (command,) = re.findall(r'^CMD \["(.*)"\]', text, re.MULTILINE)
    assert parses([command])
    # What the image pins is what the tests ran with: each line of the lock that has no marker is taken over.
    (expression,) = re.findall(r"sed -n '(.*)' requirements\.lock", text)
    done = subprocess.run(
        ["sed", "-n", expression, str(ROOT / "requirements.lock")], capture_output=True, text=True, check=True
    )
    pinned = done.stdout.splitlines()
    wanted = [
        line
        for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
        if re.match(r"[A-Za-z0-9]", line)
    ]
    assert len(pinned) == len(wanted)
    assert any(line.startswith("pyspark==") for line in pinned)
