"""The log file keeps lines, wraps what is not JSON, and begins a new generation when it is large."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from replicator.observability import register_secret
from replicator.runtime import logfile
from replicator.runtime.logfile import LogFile


def test_lines_are_kept_and_echoed(tmp_path: Path) -> None:
    echoed: list[str] = []
    log = LogFile(tmp_path / "a.jsonl", echoed.append)
    log.write('{"event": "x"}')
    log.write("Traceback: something else")
    log.write("")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["x", "output"]
    assert json.loads(lines[1])["text"] == "Traceback: something else"
    assert echoed == lines


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    LogFile(tmp_path / "a.jsonl").write("x")
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_large_file_becomes_the_older_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "_BYTES_MAX", 10)
    log = LogFile(tmp_path / "a.jsonl")
    log.write('{"n": "0123456789"}')
    log.write('{"n": 2}')
    assert json.loads((tmp_path / "a.jsonl.1").read_text())["n"] == "0123456789"
    assert json.loads((tmp_path / "a.jsonl").read_text())["n"] == 2


def test_a_full_disk_ends_nobody_who_reads_a_pipe_and_is_told_of_afterwards(tmp_path: Path) -> None:
    """A worker whose pipe nobody reads any more waits without end with its next line."""
    path, echoed = tmp_path / "a.jsonl", list[str]()
    path.symlink_to("/dev/full")
    log = LogFile(path, echoed.append)
    for number in range(3):
        log.write(f'{{"event": "{number}"}}')
    path.unlink()
    log.write('{"event": "3"}')
    log.write('{"event": "4"}')
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["log_lines_missing", "3", "4"]
    assert lines[0]["count"] == 3
    assert len(echoed) == 5


def test_a_terminal_that_was_closed_ends_nobody_who_reads_a_pipe(tmp_path: Path) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    log = LogFile(tmp_path / "a.jsonl", gone)
    log.write("{}")
    assert (tmp_path / "a.jsonl").read_text() == "{}\n"


def test_secrets_in_what_is_no_event_are_masked(tmp_path: Path) -> None:
    """What a library or Java prints goes around the log's own masking."""
    register_secret("canary-of-a-library")
    LogFile(tmp_path / "a.jsonl").write("refused: canary-of-a-library")
    assert "canary" not in (tmp_path / "a.jsonl").read_text()
