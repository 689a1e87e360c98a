"""The source as a whole: settings, connections, marks, crash points."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from replicator.model.errors import CorruptStreamError, SourceUnavailableError
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.plugins import Secret
from replicator.plugins.source import LogBatch, LogReader, PullLimits, Seen
from replicator_source_postgresql import hooks
from replicator_source_postgresql import source as module
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.log.lookups import LogCatalogue
from replicator_source_postgresql.position import Position
from replicator_source_postgresql.source import PostgresqlSource
from replicator_testbed.postgresql.programs import find_distribution
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testing.defaults import chunk_request
from replicator_testing.waiting import wait_until

T = TableId("public", "t")
MakeSource = Callable[..., PostgresqlSource]
OURS = "FROM pg_stat_activity WHERE application_name LIKE 'replicator %' AND datname = current_database()"
BASE = {"host": "db.internal", "user": "u", "database": "d"}


def pulled(reader: LogReader, mark: str) -> list[LogBatch]:
    """Everything up to the mark."""
    batches: list[LogBatch] = []
    while not batches or mark not in batches[-1].marks:
        batches.append(reader.pull(PullLimits(rows=1000, bytes=1 << 20, wait_s=1.0)))
    return batches


# -- settings


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        ("db.internal", "verify-full"),
        ("10.0.0.1", "verify-full"),
        ("localhost.evil.example", "verify-full"),
        ("localhost", "prefer"),
        ("127.0.0.1", "prefer"),
        ("127.1.2.3", "prefer"),
        ("::1", "prefer"),
        ("/var/run/postgresql", "disable"),
    ],
)
def test_a_host_that_is_not_this_machine_must_prove_who_it_is(host: str, mode: str) -> None:
    assert PostgresqlConfig(**{**BASE, "host": host}).tls_mode == mode


def test_a_mode_named_explicitly_holds() -> None:
    config = PostgresqlConfig(**BASE, tls="disable")
    assert (config.tls_mode, config.libpq_parameters()["sslmode"]) == ("disable", "disable")
    assert "sslrootcert" not in config.libpq_parameters()


def test_the_system_s_authorities_vouch_where_no_file_is_named() -> None:
    assert Path(PostgresqlConfig(**BASE).libpq_parameters()["sslrootcert"]).is_file()
    assert PostgresqlConfig(**BASE, tls_ca="/ca.pem").libpq_parameters()["sslrootcert"] == "/ca.pem"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_cert": "/c.pem"}, "tls_cert and tls_key must be set together"),
        ({"tls": "verify-ca"}, "needs tls_ca"),
        ({"tls": "allow"}, "tls"),
        ({"slot": "Not-a-slot"}, "not a valid name of a replication slot"),
        ({"publication": "x" * 64}, "1 to 63 bytes"),
        ({"port": 0}, "port"),
        ({"password": "literal"}, "password"),
        ({"passwrod": "x"}, "passwrod"),
        ({"lock_timeout": 5}, "unit"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        PostgresqlConfig(**{**BASE, **settings})


def test_every_setting_is_described() -> None:
    assert [name for name, field in PostgresqlConfig.model_fields.items() if not field.description] == []


def test_the_password_goes_to_libpq_and_nowhere_else() -> None:
    config = PostgresqlConfig(**BASE, password=Secret("canary-1"))
    assert config.libpq_parameters()["password"] == "canary-1"
    assert "canary-1" not in repr(config) + str(config) + config.model_dump_json()


def test_the_plugin_registers_its_source() -> None:
    assert list(hooks.replicator_register_sources()) == [PostgresqlSource]


def test_an_offset_that_is_not_ours_is_corrupt() -> None:
    position = Position(lsn=(1 << 32) + 16, timeline=3, system="7")
    assert position.offset.value == {"lsn": "1/10", "timeline": 3, "system": "7"}
    assert Position.of(position.offset) == position
    for value in ({}, {"lsn": "x", "timeline": 1, "system": "7"}, {"lsn": "0/1", "timeline": None, "system": "7"}):
        with pytest.raises(CorruptStreamError):
            Position.of(Offset.of(value))


# -- the server's answers


def test_identity_names_server_database_slot_and_publication(
    any_database: ScratchDatabase, make_source: MakeSource
) -> None:
    source = make_source(any_database, publication="mine")
    assert source.identity() == {
        "system": any_database.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0],
        "database": any_database.name,
        "slot": f"replicator_{any_database.name}",
        "publication": "mine",
    }
    assert source.status().now.tzinfo is UTC


def test_retained_bytes_grow_until_the_log_is_acknowledged(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert source.status().retained_bytes is None
    source.prepare([T], is_first=True)
    before = source.status().retained_bytes
    any_database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 1000) i")
    after = source.status().retained_bytes
    assert before is not None
    assert after is not None
    assert after > before + 1_000_000


def test_sessions_say_whose_they_are(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    source.status()
    names = any_database.execute(f"SELECT application_name {OURS}")
    assert names == [(f"replicator {any_database.name}",)]


def test_a_connection_that_was_lost_is_made_again(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    source.status()
    any_database.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
    wait_until(lambda: not any_database.execute(f"SELECT pid {OURS}"), "the session has ended")
    with pytest.raises(SourceUnavailableError):
        source.status()
    source.status()


def test_a_closed_source_says_so_and_may_be_closed_again(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    source.status()
    source.close()
    source.close()
    with pytest.raises(SourceUnavailableError) as caught:
        source.status()
    assert caught.value.code == "source_closed"


# -- marks


def test_a_mark_does_not_wait_for_a_standby_that_never_answers(source_of: MakeSource) -> None:
    """Under synchronous replication every commit of the application may hang, visible to nobody; marks and reads continue."""
    with PostgresServer(find_distribution()) as server:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        source = source_of(server)
        start = source.prepare([T], is_first=True)
        schema = source.describe([T])[T].schema
        reader = source.open_log(start, {T: schema})
        server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        wait_until(lambda: server.execute("SHOW synchronous_standby_names") == [("nobody",)], "the setting holds")
        with server.connect() as writer:
            writer.pgconn.send_query(b"INSERT INTO t VALUES (2)")
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: server.execute(waiting) == [(1,)], "the writer hangs in its commit")
            chunk = source.read_chunk(chunk_request(schema))
            batches = pulled(reader, source.mark())
            # Delivered before the mark, and yet unseen by the read: the very case that the visibility rule is for.
            assert chunk.rows.column("id").to_pylist() == [1]
            (changed,) = [batch for batch in batches if batch.events]
            assert changed.transactions.num_rows >= 1
            (delivered,) = set(changed.changes[0].rows.column("_transaction_id").to_pylist())
            assert chunk.visibility.classify(pa.array([delivered])).to_pylist() == [Seen.UNSEEN]
            writer.cancel_safe()
            while writer.pgconn.get_result() is not None:
                pass
        reader.close()
        source.close()


def test_before_14_a_mark_is_a_position_in_the_log(
    any_database: ScratchDatabase, source: PostgresqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERSION_WITH_MESSAGES", 10**6)
    first, second = source.mark(), source.mark()
    assert first.startswith("lsn:")
    assert first != second
    assert source._lsn_marks.reached(2**63) == [first, second]


# -- crashes

SCRIPT = """
import sys
from replicator.model.schema import TableId
from replicator.plugins.source import SourceContext
from replicator_source_postgresql.config import PostgresqlConfig
from replicator_source_postgresql.source import PostgresqlSource
host, port, user, database = sys.argv[1:]
config = PostgresqlConfig(host=host, port=int(port), user=user, database=database)
source = PostgresqlSource(config, SourceContext(replicator=database, uuid="u1", epoch=1))
source.prepare([TableId("public", "t")], is_first=True)
"""


@pytest.mark.parametrize("point", ["source.publication_made", "source.slot_made"])
def test_what_a_killed_preparation_left_is_recreated(
    any_database: ScratchDatabase, source: PostgresqlSource, point: str
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    server = any_database.server
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.host, str(server.port), server.user, any_database.name],
        env={**os.environ, "REPLICATOR_CRASH_AT": point},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    start = source.prepare([T], is_first=True)
    assert any_database.execute("SELECT tablename FROM pg_publication_tables") == [("t",)]
    reader = source.open_log(start, {T: source.describe([T])[T].schema})
    any_database.execute("INSERT INTO t VALUES (1)")
    assert sum(batch.events for batch in pulled(reader, source.mark())) == 1
    reader.close()


def test_nothing_of_ours_stays_connected_after_close(any_database: ScratchDatabase, source: PostgresqlSource) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    start = source.prepare([T], is_first=True)
    schema = source.describe([T])[T].schema
    source.open_log(start, {T: schema}).close()
    source.read_chunk(chunk_request(schema))
    source.mark()
    source.close()
    wait_until(lambda: any_database.execute(f"SELECT count(*) {OURS}") == [(0,)], "the server has noticed")


def test_types_named_by_the_log_are_looked_up_while_another_thread_reads(
    any_database: ScratchDatabase, source: PostgresqlSource
) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    infos = LogCatalogue(source._sessions.log_catalogue, "p").types([23, 25])
    assert {info.name for info in infos.values()} == {"int4", "text"}


def test_every_setting_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[4] / "docs" / "sources" / "postgresql.md").read_text()
    assert [name for name in PostgresqlConfig.model_fields if f"`{name}`" not in page] == []


def test_a_process_that_reads_no_statement_loads_no_parser() -> None:
    program = "import sys, replicator_source_postgresql.source; print('sqlglot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
