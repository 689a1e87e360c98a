"""Opening a store: permissions, foreign and damaged files, formats, locks."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect

from replicator.model.access import Scope
from replicator.model.counts import CounterName
from replicator.model.errors import ConfigError, CorruptStreamError, FatalError, StateUnavailableError
from replicator.model.events import DDLEvent, SnapshotEvent, SnapshotKind, SnapshotPhase
from replicator.model.identity import TableIdentity, Truncated
from replicator.model.merged import Merged
from replicator.model.reports import RetryReport
from replicator.model.schema import TableId
from replicator.model.verdict import Result
from replicator.state import local_files, migrations
from replicator.state.address import is_shared, parse_state_url
from replicator.state.alert_records import AlertingState
from replicator.state.local_files import network_mount
from replicator.state.records import AppliedRecord, Preparation, RequestKind, Stage, TargetCopy
from replicator.state.store import StateStore
from replicator.state.tables import METADATA
from replicator.state.verification_records import VerificationOutcome
from replicator.state.watches import Job
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


def test_migrations_make_what_the_tables_say(url: str, state_file: Path) -> None:
    StateStore(url).close()
    engine = create_engine(url)
    inspector = inspect(engine)
    found = {
        name: {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)}
        for name in inspector.get_table_names()
    }
    wanted = {
        t.name: {c.name: (str(c.type.compile(engine.dialect)), c.nullable) for c in t.columns}
        for t in METADATA.sorted_tables
    }
    indexes = {t: {i["name"]: i["column_names"] for i in inspector.get_indexes(t)} for t in found}
    keys = {t: inspector.get_pk_constraint(t)["constrained_columns"] for t in found}
    engine.dispose()
    assert found == wanted
    assert keys == {t.name: [c.name for c in t.primary_key] for t in METADATA.sorted_tables}
    assert indexes == {t.name: {i.name: [c.name for c in i.columns] for i in t.indexes} for t in METADATA.sorted_tables}


def test_a_newer_format_is_refused_and_unchanged(url: str, state_file: Path) -> None:
    StateStore(url).close()
    _execute(state_file, f"UPDATE store SET format_version = {migrations.FORMAT_VERSION + 1}")
    before = state_file.read_bytes()
    with pytest.raises(FatalError) as caught:
        StateStore(url)
    assert caught.value.code == "newer_state"
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


def test_who_claimed_is_not_known_of_what_was_applied_before_it_was_recorded(
    url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as first:
        first.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        first.setattr(migrations, "FORMAT_VERSION", 1)
        StateStore(url).close()
    _execute(
        state_file,
        "INSERT INTO replicators VALUES ('a', 'u', 'running', 'c', '{}', 'none', NULL, '/j', 0, NULL, '', 0)",
    )
    columns = "replicator, table_name, incarnation, last_applied, row_count, is_failing"
    _execute(state_file, f"INSERT INTO applied ({columns}) VALUES ('a', 'shop.items', 1, 7, 3, 0)")
    with closing_store(url) as store:
        record = AppliedRecord(table=TableId("shop", "items"), incarnation=1, claimed_by=None, last_applied=7, rows=3)
        assert store.applied("a")[record.table] == record


def test_a_store_without_a_history_gets_one_and_keeps_its_tables(
    url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:8])
        older.setattr(migrations, "FORMAT_VERSION", 8)
        StateStore(url).close()
    _execute(
        state_file,
        "INSERT INTO replicators VALUES ('a', 'u', 'running', 'c', '{}', 'none', NULL, '/j', 0, NULL, '', 0)",
    )
    nothing = '{"schema":null,"identity":null,"is_recreated":false,"snapshot":null,"first_change":null,"error":null}'
    columns = "INSERT INTO tables (replicator, table_name, incarnation, state, record) VALUES"
    _execute(state_file, f"{columns} ('a', 'shop.items', 1, 'pending', '{nothing}')")
    with closing_store(url) as store:
        assert store.history("a", 10) == []
        # A worker of the version before that still runs.
        _execute(state_file, f"{columns} ('a', 'shop.orders', 1, 'pending', '{nothing}')")
        assert [(str(r.table), r.is_altered) for r in store.tables("a")] == [
            ("shop.items", False),
            ("shop.orders", False),
        ]


def test_a_store_without_verifications_gets_them(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:10])
        older.setattr(migrations, "FORMAT_VERSION", 10)
        StateStore(url).close()
    _execute(
        state_file,
        "INSERT INTO replicators VALUES ('a', 'u', 'running', 'c', '{}', 'none', NULL, '/j', 0, NULL, '', 0)",
    )
    with closing_store(url) as store:
        assert store.verifications("a") == {}
        outcome = VerificationOutcome(
            table=TableId("shop", "items"), incarnation=1, result=Result.EQUAL, is_whole=True, begun_at=store.now()
        )
        noted = store.note_verification("a", outcome)
        assert store.verifications("a") == {outcome.table: noted}


def test_a_store_without_counters_begins_to_count(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:11])
        older.setattr(migrations, "FORMAT_VERSION", 11)
        StateStore(url).close()
    _execute(
        state_file,
        "INSERT INTO replicators VALUES ('a', 'u', 'running', 'c', '{}', 'none', NULL, '/j', 0, NULL, '', 0)",
    )
    with closing_store(url) as store:
        assert store.counters("a") == {}
        retry = RetryReport(role="capture", retry_in_s=1.0, code="source_error", message="no")
        store.put_report("a", retry)
        store.put_report("a", retry)
        assert store.counters("a")[CounterName.ERRORS, ("source_error",)] == 2


def test_a_store_without_tokens_can_have_some(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = migrations.MIGRATIONS.index(migrations._tokens)
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:before])
        older.setattr(migrations, "FORMAT_VERSION", before)
        StateStore(url).close()
    with closing_store(url) as store:
        assert store.tokens.all() == []
        token = store.tokens.add("grafana", Scope.READ, "digest", None)
        assert store.tokens.find("digest") == token


def test_a_store_without_alerts_can_have_some(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = migrations.MIGRATIONS.index(migrations._watches)
    assert before == 15, "this is format 16"
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:before])
        older.setattr(migrations, "FORMAT_VERSION", before)
        StateStore(url).close()
    with closing_store(url) as store:
        store.create_replicator("shop", "name: shop", "/j")
        assert store.alerts.read("shop") == AlertingState()
        assert store.watches.hold("shop", Job.ALERTS, "host:1:boot", 60)
        assert not store.watches.hold("shop", Job.ALERTS, "other:1:boot", 60)


def test_a_store_without_workers_can_have_some(url: str, state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = migrations.MIGRATIONS.index(migrations._workers)
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:before])
        older.setattr(migrations, "FORMAT_VERSION", before)
        StateStore(url).close()
    with closing_store(url) as store:
        assert store.workers.scene().workers == ()
        store.workers.announce("host:1:boot", capacity=3, is_draining=False, version="1", refusals={})
        assert [worker.capacity for worker in store.workers.scene().workers] == [3]


def test_a_store_of_release_0_1_keeps_what_it_knows_and_knows_nothing_of_audits(url: str, state_file: Path) -> None:
    """`format_2.sql` was written by the code of commit c273901."""
    _load(state_file, "format_2.sql")
    orders, failed = TableId("public", "orders"), TableId("public", "failed")
    with closing_store(url) as store:
        found = store.applied("shop")
        assert (found[orders].last_applied, found[orders].claimed_by, found[failed].has_failed) == (9, 1, True)
        assert {(r.merged, r.audited_to, r.alarms) for r in found.values()} == {(Merged(), None, ())}
        assert TargetCopy.WHOLE not in {r.copy for r in found.values()}
        assert store.tables("shop")[0].table == orders
        lease = store.acquire_lease("shop", "host:1:boot", 60)
        assert lease is not None
        record = replace(found[orders], copy=TargetCopy.WHOLE, merged=Merged(inserted=3), audited_to="v1")
        store.put_applied("shop", lease.epoch, [record])
        assert store.applied("shop")[orders] == record
    assert _execute(state_file, "SELECT format_version FROM store") == [(migrations.FORMAT_VERSION,)]


def test_states_of_format_3_get_their_names(url: str, state_file: Path) -> None:
    """`format_3.sql` was written by the code of commit 842680e, with every state that was told by what was not there."""
    _load(state_file, "format_3.sql")
    with closing_store(url) as store:
        tables = {r.table.name: r for r in store.tables("shop")}
        applied = {t.name: r for t, r in store.applied("shop").items()}
        preparations = [present(store.replicator(name)).preparation for name in ("fresh", "begun", "shop")]
        requests = [(r.kind, r.payload["tables"]) for r in store.requests("shop")[:3]]
        kinds = [r.kind for r in (*store.requests("shop"), *store.requests("fresh"))]
        events = [e.event for e in present(store.last_segment("shop")).events]
    assert {n: r.stage for n, r in tables.items()} == {
        "waiting": Stage.PENDING, "pending_again": Stage.PENDING, "pending_recreate": Stage.PENDING,
        "first_copy": Stage.SNAPSHOT, "in_place": Stage.SNAPSHOT, "streaming": Stage.STREAMING, "never": Stage.STREAMING,
        "failed_at_once": Stage.FAILED, "failed": Stage.FAILED, "failed_recreate": Stage.FAILED, "removed": Stage.REMOVED,
    }  # fmt: skip
    assert {n for n, r in tables.items() if r.is_recreated} == {"failed_recreate", "pending_recreate"}
    assert {n: (p.kind, p.start_number) for n, r in tables.items() if (p := r.snapshot) is not None} == {
        "first_copy": (SnapshotKind.FIRST, None), "in_place": (SnapshotKind.IN_PLACE, 6), "streaming": (SnapshotKind.FIRST, None),
        "failed": (SnapshotKind.FIRST, None), "failed_recreate": (SnapshotKind.FIRST, None),
    }  # fmt: skip
    assert (present(tables["in_place"].snapshot).is_outdated, present(tables["in_place"].snapshot).keys) == (
        True,
        (("4",),),
    )
    assert (tables["in_place"].identity, tables["in_place"].first_change) == (TableIdentity(object="2", storage="2"), 4)
    assert (present(tables["failed_at_once"].error).is_finding, present(tables["failed"].error).is_finding) == (
        True,
        False,
    )
    assert {n: r.copy for n, r in applied.items()} == {
        "first_copy": TargetCopy.SNAPSHOT, "in_place": TargetCopy.SNAPSHOT, "streaming": TargetCopy.WHOLE,
        "never": TargetCopy.CHANGES, "failed": TargetCopy.WHOLE, "failed_recreate": TargetCopy.SNAPSHOT,
        "pending_again": TargetCopy.UNKNOWN, "pending_recreate": TargetCopy.SNAPSHOT,
    }  # fmt: skip
    assert {n for n, r in applied.items() if r.has_failed} == {"failed", "failed_recreate"}
    assert applied["streaming"].alarms[0].count == 2
    assert preparations == [Preparation.NONE, Preparation.INTENT, Preparation.READY]
    assert requests == [
        (RequestKind.RECREATE, ["public.streaming"]), (RequestKind.SNAPSHOT, []), (RequestKind.RESTART, ["public.streaming"])
    ]  # fmt: skip
    assert kinds[3:] == [RequestKind.POSITION, RequestKind.DELETE]
    snapshots = [(e.phase, e.kind, e.start_number) for e in events if isinstance(e, SnapshotEvent)]
    assert snapshots == [
        (SnapshotPhase.STARTED, SnapshotKind.FIRST, None), (SnapshotPhase.COMPLETED, SnapshotKind.FIRST, None),
        (SnapshotPhase.STARTED, SnapshotKind.IN_PLACE, 6), (SnapshotPhase.STARTED, SnapshotKind.IN_PLACE, 7),
        (SnapshotPhase.COMPLETED, SnapshotKind.IN_PLACE, 7),
    ]  # fmt: skip
    assert isinstance(events[-1], DDLEvent)
    assert events[-1].statement == 'TRUNCATE "start_number"'


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO tables (replicator, table_name, incarnation, stage, document) VALUES ('shop', 'a.b', 1, 'failing', '{}')",
        "INSERT INTO applied (replicator, table_name, incarnation, last_applied, row_count, is_failing) VALUES ('shop', 'a.b', 1, 7, 3, 0)",
        "UPDATE replicators SET prepared = 'ready'",
    ],
)
def test_a_worker_of_format_3_cannot_write_any_more(url: str, state_file: Path, statement: str) -> None:
    _load(state_file, "format_3.sql")
    StateStore(url).close()
    with pytest.raises(sqlite3.OperationalError, match=r"no (such )?column"):
        _execute(state_file, statement)


def test_identities_of_format_4_get_fields(url: str, state_file: Path) -> None:
    """`format_4_identities.sql` was written by the code of commit 632f1a9, with identities as the sources gave them."""
    _load(state_file, "format_4_identities.sql")
    with closing_store(url) as store:
        found = {r.table.name: r.identity for r in store.tables("shop")}
        lease = store.acquire_lease("shop", "host:1:boot", 60)
        assert lease is not None
        store.put_tables("shop", lease.epoch, store.tables("shop"))
        assert {r.table.name: r.identity for r in store.tables("shop")} == found
    assert {n: (i.object, i.storage) for n, i in found.items() if i is not None} == {
        "object": ("16385", "16385"), "partitioned": ("16386", "0"), "truncated": ("16388", Truncated(by="760")),
        "truncated_by_unknown": ("16389", Truncated(by=None)), "truncated_long_ago": ("16390", Truncated(by=None)),
        "innodb": (None, "1063:2"), "myisam": (None, "2026-11-22 14:00:00"),
    }  # fmt: skip
    assert found["waiting"] is None
    assert present(found["innodb"]).parts == {"engine": "InnoDB"}
    parts = present(found["partitioned"]).parts
    assert (parts["publish"], parts["partitions"]) == (["delete", "insert"], {"16387": [16387, "d"]})


def test_a_worker_of_format_4_cannot_write_a_table_any_more(url: str, state_file: Path) -> None:
    _load(state_file, "format_4_identities.sql")
    StateStore(url).close()
    with pytest.raises(sqlite3.OperationalError, match="no column"):
        _execute(
            state_file,
            "INSERT INTO tables (replicator, table_name, incarnation, state, document) VALUES ('shop', 'a.b', 1, 'failed', '{}')",
        )


def _load(state_file: Path, dump: str) -> None:
    state_file.parent.mkdir()
    with closing(sqlite3.connect(state_file)) as connection:
        connection.executescript((Path(__file__).parent / dump).read_text(encoding="utf-8"))


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
            store.runs("a")


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
