"""A copy of REPLICATOR_HOME is started next to the original, which continues."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from replicator_testbed.demo.sources import Writer
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables


@pytest.mark.parametrize("target", ["bigquery"])
def test_a_copied_home_is_refused_and_the_original_continues(
    rig: Rig, writer: Writer, target_tables: TargetTables, tmp_path: Path
) -> None:
    rig.catch_up()
    folder = tmp_path / "copied"
    folder.mkdir()
    shutil.copytree(rig.home, folder / "home")
    copied = replace(rig, folder=folder, store=None, started=[])
    copied.write_yaml()

    refused = copied.command("run", str(copied.file), "--until-caught-up", check=2)
    assert "[home_copied]" in refused.stderr
    served = copied.start("serve")
    found = copied.wait_for_status(lambda s: s.error is not None, served)
    served.terminate()
    assert served.wait(timeout=60) == 0
    assert present(found.error).code == "home_copied"

    rig.catch_up()
    writer.stop()
    rig.catch_up()
    assert rig.differences(target_tables) == {}
