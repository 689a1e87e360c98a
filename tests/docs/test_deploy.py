"""The files of `docs/deploy/` are what their readers take them for: systemd, Kubernetes, a builder of containers, and the commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator_testing.waiting import PATIENCE

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


def test_the_configuration_in_the_manifest_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = documents(DEPLOY / "kubernetes.yaml")
    (files,) = [one["data"] for one in everything if one["kind"] == "ConfigMap"]
    for name, value in secret(everything, "replicator-environment").items():
        monkeypatch.setenv(name, value)
    for name, value in secret(everything, "replicator-secrets").items():
        (tmp_path / name).write_text(value, encoding="utf-8")
    (folder,) = {
        mount["mountPath"]
        for one in everything
        for container in containers(one)
        for mount in container["volumeMounts"]
        if mount["name"] == "secrets"
    }
    text = files["shop.yaml"]
    assert f"${{file:{folder}/shop_db_password}}" in text
    loaded = Registry.discover().load(text.replace(folder, str(tmp_path)), origin="shop.yaml")
    assert loaded.config.name == "shop"


def secret(everything: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, str]:
    (found,) = [one for one in everything if one["kind"] == "Secret" and one["metadata"]["name"] == name]
    values: Mapping[str, str] = found["stringData"]
    return values


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_liveness_asks_the_worker_and_not_the_api(manifest: Path, tmp_path: Path) -> None:
    (worker,) = [one for document in documents(manifest) for one in document_workers(document)]
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    environ = {one["name"]: one["value"] for one in worker.get("env", ())}
    folder = environ.get("REPLICATOR_HOME", mounts["home"])
    assert Path(folder).is_relative_to(mounts["home"])

    def is_alive(probe: str) -> bool:
        command = [part.replace(folder, str(tmp_path)) for part in worker[probe]["exec"]["command"]]
        assert str(tmp_path) in command[-1]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0

    probes = ("livenessProbe", "startupProbe")
    assert not any(map(is_alive, probes))
    home = Home(folder=tmp_path, state_url="")
    home.beat()
    assert all(map(is_alive, probes))
    earlier = time.time() - 3600
    os.utime(tmp_path / "alive", (earlier, earlier))
    assert not any(map(is_alive, probes))
    home.beat()
    assert all(map(is_alive, probes))


def document_workers(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in containers(document) if one["name"] == "worker"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_containers_can_change_nothing_but_their_volumes(manifest: Path) -> None:
    for document in documents(manifest):
        for container in containers(document):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"/tmp", "/var/lib/replicator"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_policy_says_who_reaches_the_port() -> None:
    everything = documents(DEPLOY / "kubernetes.yaml")
    (policy,) = [one["spec"] for one in everything if one["kind"] == "NetworkPolicy"]
    (labels,) = [one["spec"]["template"]["metadata"]["labels"] for one in everything if one["kind"] == "StatefulSet"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress"]
    assert all(rule["from"] for rule in policy["ingress"])


def test_the_unit_gives_its_processes_little() -> None:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    for line in (
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        "SystemCallFilter=@system-service",
        "UMask=0077",
    ):
        assert line in lines
    assert not any(line.startswith("MemoryDenyWriteExecute") for line in lines), "Java compiles while it runs"


def test_the_code_in_the_image_is_not_its_users() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert "chown -R" not in text
    steps = [line for line in text.splitlines() if re.match("USER|RUN chown|ENTRYPOINT", line)]
    assert steps[-4:] == [
        "USER root",
        "RUN chown root: /opt/replicator",
        "USER replicator",
        'ENTRYPOINT ["tini", "--", "replicator"]',
    ]


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
