"""What cannot be read of a stored configuration: it never stops data, and the status names every problem."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicator.cli.entry import main
from replicator.model.errors import ConfigError, Problem, Severity, in_full
from replicator.model.processes.reports import RefusedReport
from replicator.plugins.registry import Registry
from replicator.runtime import assembly, messages
from replicator.service.alerts.watcher import AlertWatcher
from replicator.service.lineage.watcher import LineageWatcher
from replicator.service.status.assemble import status
from replicator.state import holder_id
from replicator.state.records import ErrorRecord
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob
from replicator.web.dashboard.words import remarks
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource, MemoryTarget

REGISTRY = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
CONFIG = """\
name: shop
source: {type: memory, database: /d}
target: {type: memory, database: /d}
alerts: {webhooks: {ops: {url: "${env:NOT_SET_HOOK}"}}}
lineage: {url: "${env:NOT_SET_LINEAGE}"}
"""
REFUSED = ConfigError(
    "shop (stored) cannot be used: 2 problems.",
    problems=(
        Problem(code="variable_not_set", message="The environment variable A is not set.", location="line 3", action="Set A."),
        Problem(code="variable_not_set", message="The environment variable B is not set.", location="line 4", action="Set B."),
        Problem(code="file_readable_by_all", message="Every user may read it.", severity=Severity.WARNING),
    ),
)  # fmt: skip
LISTED = (
    "shop (stored) cannot be used: 2 problems: line 3: The environment variable A is not set. line 4: The environment variable B is not "
    "set."
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    monkeypatch.setenv("REPLICATOR_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATOR_STATE_URL", raising=False)
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    store.create_replicator("shop", CONFIG, str(tmp_path / "journal"))
    yield store
    store.close()


def test_who_moves_data_needs_no_variable_of_alerts_and_lineage(store: StateStore) -> None:
    record = present(store.replicator("shop"))
    loaded = assembly.load(record, REGISTRY)
    assert (loaded.config.alerts.channels, loaded.config.lineage.has_sink) == ({}, False)
    with pytest.raises(ConfigError, match="2 problems"):
        assembly.load(record, REGISTRY, without=())


def test_a_message_that_counts_problems_names_them_wherever_it_goes(store: StateStore) -> None:
    record = ErrorRecord.of(REFUSED, store.now())
    assert (record.message, record.action) == (LISTED, "Set A.")
    told = messages.decode_error(json.loads(json.dumps(messages.encode_error(REFUSED))))
    assert (type(told), told.message, told.code) == (ConfigError, LISTED, "invalid_configuration")
    assert str(REFUSED) == f"{LISTED} Set A."
    many = ConfigError("no: 7 problems.", problems=tuple(Problem(code="c", message=f"It is {n}.") for n in range(7)))
    assert in_full(many).message == "no: 7 problems: It is 0. It is 1. It is 2. It is 3. It is 4. And 2 more."
    one = ConfigError("It is so.", problems=(Problem(code="c", message="It is so."),))
    assert (str(one), in_full(one).message) == ("It is so.", "It is so.")


def test_a_refused_reload_stands_in_the_status_while_its_worker_runs(store: StateStore) -> None:
    lease = present(store.leases.acquire("shop", holder_id(), 60))
    store.put_report("shop", RefusedReport.made("reload", CONFIG, REFUSED, messages.stamp(lease.epoch)))
    (refused,) = status(store, present(store.replicator("shop"))).refused
    assert (refused.of, refused.code, refused.message) == ("reload", "invalid_configuration", LISTED)
    printed = CliRunner().invoke(main, ["status", "shop"]).stdout
    assert f"the worker continues with the configuration that it had: [invalid_configuration] {LISTED}" in printed
    assert any(remark.message == LISTED for remark in remarks(status(store, present(store.replicator("shop")))))
    store.set_config("shop", CONFIG + "# another\n")
    assert status(store, present(store.replicator("shop"))).refused == ()
    store.set_config("shop", CONFIG)
    store.leases.release(lease)
    assert store.leases.acquire("shop", holder_id(), 60)
    assert status(store, present(store.replicator("shop"))).refused == (), "the next worker may be able to read it"


def test_alerts_and_lineage_that_cannot_be_read_stand_in_the_status_until_a_process_can(store: StateStore) -> None:
    for watcher in (AlertWatcher(store, holder_id()), LineageWatcher(store, holder_id(), REGISTRY)):
        watcher.look()
        watcher.close()
    found = status(store, present(store.replicator("shop"))).refused
    assert [(one.of, one.code) for one in found] == [
        ("alerts", "alerts_not_readable"),
        ("lineage", "invalid_configuration"),
    ]
    assert "NOT_SET_HOOK is not set" in found[0].message
    assert "NOT_SET_LINEAGE is not set" in found[1].message
    printed = CliRunner().invoke(main, ["status", "shop"]).stdout
    assert "no alerts are sent: [alerts_not_readable]" in printed
    assert "no process watches" not in printed, "one does, and says why it cannot"
    assert store.watches.hold("shop", WatchJob.ALERTS, holder_id(), 60)
    assert [one.of for one in status(store, present(store.replicator("shop"))).refused] == ["lineage"]
