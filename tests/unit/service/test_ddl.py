"""`ddl accept` asks for what waits, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.model.errors import ConfigError
from replicator.model.schema import TableId
from replicator.service import ddl
from replicator.state import table_life
from replicator.state.records import ErrorRecord, RequestKind
from replicator.state.store import StateStore

TABLE = TableId("public", "t")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    monkeypatch.setenv("REPLICATOR_STATE_URL", url)
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    store = StateStore(url)
    store.create_replicator("shop", "name: shop", "/j")
    yield store
    store.close()


def fail(store: StateStore, code: str) -> None:
    lease = store.leases.acquire("shop", "here:1:1", 3600)
    assert lease is not None
    error = ErrorRecord(code=code, message="It stopped.", action=None, at=datetime(2026, 1, 1, tzinfo=UTC))
    store.put_tables("shop", lease.epoch, [table_life.failed(table_life.added(TABLE), error)])


@pytest.mark.parametrize("code", table_life.ACCEPTABLE)
def test_what_stopped_at_a_change_is_asked_for(store: StateStore, code: str) -> None:
    fail(store, code)
    assert ddl.accept(store, "shop", "public.t") == TABLE
    (request,) = store.requests.open("shop")
    assert (request.kind, request.payload) == (RequestKind.ACCEPT, {"tables": ["public.t"]})


def test_nothing_is_asked_for_where_nothing_waits(store: StateStore) -> None:
    fail(store, "table_missing")
    for name, table, code in (
        ("shop", "public.t", "nothing_to_accept"),
        ("shop", "public.u", "unknown_table"),
        ("stop", "public.t", "unknown_replicator"),
    ):
        with pytest.raises(ConfigError) as refused:
            ddl.accept(store, name, table)
        assert refused.value.code == code
        assert CliRunner().invoke(main, ["ddl", "accept", name, table]).exit_code == 2
    assert not store.requests.open("shop")


def test_the_command_says_what_it_did(store: StateStore) -> None:
    fail(store, "ddl_stop")
    done = CliRunner().invoke(main, ["ddl", "accept", "shop", "public.t"])
    assert (done.exit_code, "Accepted the change of public.t" in done.output) == (0, True)
