"""The folder of a host's state belongs to one user, and a folder that others may write to is refused with what to do."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from replicator.model.errors import ConfigError
from replicator.runtime.home import Home


def home(folder: Path) -> Home:
    return Home.from_environment({"REPLICATOR_HOME": str(folder)})


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home(tmp_path / "a" / "b").ensure()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_everybody_may_write_to_is_refused_until_the_advice_was_followed(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        home(folder).ensure()
    assert refused.value.code == "home_writable_by_all"
    assert list(folder.iterdir()) == []
    home(folder / "in it").ensure()
    advised = str(refused.value.action).partition(". ")[0]
    subprocess.run(shlex.split(advised), check=True)
    home(folder).ensure()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2775, 0o755])
def test_who_may_read_it_or_is_of_its_group_is_the_operators_choice(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    home(tmp_path).ensure()
    assert tmp_path.stat().st_mode & 0o7777 == mode
