"""Opening a store: permissions, foreign and damaged files, formats, locks."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from replicator.model.errors import ConfigError, CorruptStreamError, FatalError, StateUnavailableError
from replicator.state.database import local_files, migrations
from replicator.state.database.address import is_shared, parse_state_url
from replicator.state.database.local_files import network_mount
from replicator.state.store import StateStore
from replicator_testbed.present import present

OPEN = """
import sys
from replicator.state.store import StateStore
print("ready", flush=True)
sys.stdin.readline()
store = StateStore(sys.argv[1])
store.create_replicator(sys.argv[2], "config", "/journal")
store.close()
"""


def test_file_and_folder_are_private_and_durable(url: str, state_file: Path) -> None:
    StateStore(url).close()
    assert stat.S_IMODE(state_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state_file.parent.stat().st_mode) == 0o700
    with sqlite3.connect(state_file) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_an_existing_file_is_narrowed(url: str, state_file: Path) -> None:
    StateStore(url).close()
    state_file.chmod(0o644)
    StateStore(url).close()
    assert stat.S_IMODE(state_file.stat().st_mode) == 0o600


def test_connections_are_durable_and_keep_references(store: StateStore) -> None:
    with store._database.read() as connection:
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "foreign_keys")]
    assert settings == [2, 1]


def test_a_newer_format_is_refused_and_unchanged(url: str, state_file: Path) -> None:
    StateStore(url).close()
    _execute(state_file, f"UPDATE store SET format_version = {migrations.FORMAT_VERSION + 1}")
    before = state_file.read_bytes()
    with pytest.raises(FatalError) as caught:
        StateStore(url)
    assert caught.value.code == "newer_state"
    assert str(state_file) in str(caught.value)
    assert state_file.read_bytes() == before


@pytest.mark.parametrize("version", [1, migrations.FIRST_VERSION - 1])
def test_a_format_that_was_never_released_is_refused_and_unchanged(url: str, state_file: Path, version: int) -> None:
    StateStore(url).close()
    _execute(state_file, f"UPDATE store SET format_version = {version}")
    before = state_file.read_bytes()
    with pytest.raises(FatalError) as caught:
        StateStore(url)
    assert caught.value.code == "older_state"
    assert str(state_file) in str(caught.value)
    assert state_file.read_bytes() == before


def test_an_older_format_is_migrated_once(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing_store(url) as store:
        store.create_replicator("a", "config", "/j")
    steps = []

    def second(connection: Connection) -> None:
        steps.append(connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN extra TEXT"))

    newer = migrations.FORMAT_VERSION + 1
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, second))
    monkeypatch.setattr(migrations, "FORMAT_VERSION", newer)
    for _ in range(2):
        with closing_store(url) as store:
            assert store.replicator("a") is not None
    assert len(steps) == 1
    assert _execute(state_file, "SELECT format_version FROM store") == [(newer,)]


def test_a_failed_migration_leaves_the_old_format(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StateStore(url).close()

    def broken(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN extra TEXT")
        raise RuntimeError("power cut")

    older = migrations.FORMAT_VERSION
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
    monkeypatch.setattr(migrations, "FORMAT_VERSION", older + 1)
    with pytest.raises(RuntimeError):
        StateStore(url)
    assert _execute(state_file, "SELECT format_version FROM store") == [(older,)]
    assert "extra" not in {row[1] for row in _execute(state_file, "PRAGMA table_info(runs)")}


@pytest.mark.matrix
def test_many_processes_may_open_a_new_store_at_once(url: str) -> None:
    names = ["a", "b", "c"]
    children = [
        subprocess.Popen([sys.executable, "-c", OPEN, url, n], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in names
    ]
    for child in children:
        assert present(child.stdout).readline() == "ready\n"
    for child in children:
        present(child.stdin).write("go\n")
        present(child.stdin).flush()
    codes = []
    for child in children:
        with child:
            codes.append(child.wait())
    assert codes == [0, 0, 0]
    with closing_store(url) as store:
        assert [r.name for r in store.replicators()] == names


@pytest.mark.parametrize("content", [b"not a database at all " * 500, b"\x00" * 8192])
def test_a_file_that_is_no_database_is_refused_and_kept(url: str, state_file: Path, content: bytes) -> None:
    state_file.parent.mkdir()
    state_file.write_bytes(content)
    _assert_corrupt(url, state_file)
    assert state_file.read_bytes() == content


def test_another_programs_database_is_refused(url: str, state_file: Path) -> None:
    state_file.parent.mkdir()
    _execute(state_file, "CREATE TABLE customers (id INTEGER)")
    _assert_corrupt(url, state_file)


def test_a_truncated_database_is_refused(url: str, state_file: Path) -> None:
    with closing_store(url) as store:
        store.create_replicator("a", "config " * 10_000, "/j")
    size = state_file.stat().st_size
    os.truncate(state_file, size // 2)
    with pytest.raises(CorruptStreamError) as caught:
        StateStore(url).replicators()
    assert caught.value.code == "corrupt_state"


def test_a_damaged_value_is_named_as_corruption(url: str, state_file: Path) -> None:
    with closing_store(url) as store:
        store.create_replicator("a", "config", "/j")
        for damage in ("identity = '{'", "desired = 'sideways'", "created_at = 'yesterday'"):
            _execute(
                state_file,
                "UPDATE replicators SET identity = '{}', desired = 'running', created_at = '2026-01-01T00:00:00Z'",
            )
            assert store.replicator("a") is not None
            _execute(state_file, f"UPDATE replicators SET {damage}")
            with pytest.raises(CorruptStreamError) as caught:
                store.replicator("a")
            assert caught.value.code == "corrupt_state"


def test_a_missing_table_is_named_as_corruption(url: str, state_file: Path) -> None:
    with closing_store(url) as store:
        _execute(state_file, "DROP TABLE runs")
        with pytest.raises(CorruptStreamError, match="no such table"):
            store.runs.latest("a")


def test_a_locked_store_is_unavailable_and_recovers(url: str, state_file: Path) -> None:
    with closing_store(url, busy_timeout_s=0.05) as store:
        other = sqlite3.connect(state_file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateUnavailableError) as caught:
            store.create_replicator("a", "config", "/j")
        assert caught.value.code == "state_locked"
        assert store.replicators() == []
        other.execute("ROLLBACK")
        other.close()
        store.create_replicator("a", "config", "/j")


def test_a_full_disk_is_unavailable(url: str, state_file: Path) -> None:
    with closing_store(url) as store:
        with store._database.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StateUnavailableError) as caught:
            store.create_replicator("a", "x" * 100_000, "/j")
        assert caught.value.code == "state_disk_full"


def test_an_unforeseen_error_keeps_the_words_and_the_code_of_the_database(url: str, state_file: Path) -> None:
    with closing_store(url) as store:
        with store._database.read() as connection:
            present(connection.connection.driver_connection).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        with pytest.raises(FatalError) as caught:
            store.create_replicator("a", "canary" * 10_000, "/j")
    assert caught.value.code == "state_failed"
    assert caught.value.message == (
        f"The state store {state_file} failed with an unexpected error: string or blob too big (SQLITE_TOOBIG)."
    )
    assert caught.value.action == "Report it with the log, which has the traceback; then start again."


def test_a_folder_or_unusable_path_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "folder", tmp_path / "file" / "state.db"):
        with pytest.raises(ConfigError) as caught:
            StateStore(f"sqlite:///{path}")
        assert caught.value.code == "state_path"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "state.db",
        "mysql://u:canary@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "postgresql://u:canary@h:port/d",
        "postgresql://u:secret@canary@h/d",
    ],
)
def test_other_urls_are_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_state_url(text)
    assert caught.value.code == "invalid_state_url"
    assert "canary" not in str(caught.value)


def test_network_file_systems_are_refused(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(local_files, "_MOUNTS", mounts)
    with pytest.raises(ConfigError, match="nfs4") as caught:
        StateStore(url)
    assert caught.value.code == "network_file_system"
    assert not (tmp_path / "home").exists()


def test_the_mount_nearest_to_the_path_counts() -> None:
    mounts = "a / ext4 rw\nb /net nfs rw\nc /net/local xfs rw\nd /my\\040share fuse.sshfs rw\ne /twice nfs rw\nf /twice ext4 rw\n"
    kinds = [
        network_mount(Path(p), mounts) for p in ("/x", "/net/x", "/network", "/net/local/x", "/my share/x", "/twice/x")
    ]
    assert kinds == [None, "nfs", None, None, "fuse.sshfs", None]


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("sqlite:////x.db", False),
        ("postgresql://db.internal/x", True),
        ("postgresql://localhost/x", False),
        ("postgresql:///x?host=/run/postgresql", False),
        ("postgresql:///x?host=a&host=/run", True),
    ],
)
def test_a_server_elsewhere_is_shared(text: str, shared: bool) -> None:
    assert is_shared(parse_state_url(text)) is shared


def closing_store(url: str, **options: Any) -> closing[StateStore]:
    return closing(StateStore(url, **options))


def _execute(path: Path, statement: str) -> list[Any]:
    connection = sqlite3.connect(path)
    with connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def _assert_corrupt(url: str, path: Path) -> None:
    with pytest.raises(CorruptStreamError) as caught:
        StateStore(url)
    assert caught.value.code == "corrupt_state"
    assert str(path) in str(caught.value)
    assert caught.value.action
