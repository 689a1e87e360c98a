"""A copy of REPLICATOR_HOME, or of the state store alone, is started next to the original, which continues."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import PATIENCE


def copy_of(rig: Rig, *, folder: Path, has_home: bool) -> Rig:
    """A rig with a copy of the home in `folder`; without `has_home` it has a copy of the state store, and shares everything else."""
    (folder / "home").mkdir(parents=True)
    if has_home:
        shutil.copytree(rig.home, folder / "home", dirs_exist_ok=True)
    state = folder / "home" / "state.db"
    with closing(sqlite3.connect(rig.home / "state.db")) as old, closing(sqlite3.connect(state)) as new:
        old.backup(new)
    shared = {"REPLICATOR_HOME": str(rig.home), "REPLICATOR_STATE_URL": f"sqlite:///{state}"}
    copied = replace(
        rig, folder=folder, store=None, started=[], environ={**rig.environ, **({} if has_home else shared)}
    )
    copied.write_yaml()
    return copied


def assert_refused(copied: Rig, *, is_quick: bool = False) -> None:
    """By both workers, or quickly by that of `run` only; what the original has is left."""
    refused = copied.command("run", str(copied.file), "--until-caught-up", check=2)
    assert "[home_copied]" in refused.stderr
    if is_quick:
        return
    served = copied.start("serve")
    found = copied.wait_for_status(lambda s: s.error is not None, served)
    served.terminate()
    assert served.wait(timeout=60 * PATIENCE) == 0
    assert present(found.error).code == "home_copied"


@pytest.mark.parametrize(
    ("shared", "target"),
    [
        pytest.param(shared, target, marks=pytest.mark.matrix)
        for target in ("duckdb", "bigquery")
        for shared in ("journal.uri", "nothing", "home")
    ],
)
def test_a_copied_home_is_refused_and_the_original_continues(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, tmp_path: Path, shared: str
) -> None:
    if shared == "journal.uri":
        rig.extra += f"journal: {{uri: {tmp_path / 'journal'}}}\n"
        rig.write_yaml()
    rig.catch_up()
    copied = copy_of(rig, folder=tmp_path / "copied", has_home=shared != "home")
    if shared != "nothing":
        rig.catch_up()  # until then the two know the same, and either may continue
    assert_refused(copied)
    refused = copied.command("delete", copied.name, "--yes", check=None)
    assert refused.returncode != 0
    assert "[home_copied]" in refused.stderr

    rig.catch_up()
    writer.stop()
    rig.catch_up()
    assert rig.differences(target_tables) == {}


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["duckdb", "bigquery"])
def test_a_copy_that_is_started_while_the_original_runs_is_refused(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, tmp_path: Path, target: str
) -> None:
    process = rig.start()
    rig.wait_for_status(has_snapshots, process)
    copied = copy_of(rig, folder=tmp_path / "copied", has_home=False)
    # What is captured from now on is in the journal only.
    rig.command("pause", rig.name, "--apply")
    assert_refused(copied, is_quick=target == "duckdb")
    rig.command("resume", rig.name)
    writer.stop()
    rig.settle(process)
    assert rig.stop(process) == 0
    assert rig.differences(target_tables) == {}
