"""A webhook that never answers, and a sender that is killed, next to a replicator at work."""

from __future__ import annotations

import psutil
import pytest

from replicator.runtime.watch_process import LOOK_VARIABLE
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.network.receiver import receiving
from replicator_testbed.rig import Rig, is_streaming, is_worker
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

# With nothing to be free in it the journal is full from its first byte on.
ALERTS = """
alerts:
  after: 0s
  journal_free_min: 1
  webhooks:
    ops: {url: "${env:RIG_HOOK}", timeout: 30s}
"""


@pytest.mark.matrix
def test_a_webhook_that_hangs_holds_no_change_up(rig: Rig, writer: ShopWriter, target_tables: TargetTables) -> None:
    with receiving() as receiver:
        receiver.answer = receiver.hang
        rig.environ |= {"RIG_HOOK": receiver.url, LOOK_VARIABLE: "0.1"}
        rig.extra += ALERTS
        rig.write_yaml()
        process = rig.start()
        hanging = receiver.next()
        assert [alert["kind"] for alert in hanging.document["alerts"]] == ["journal_disk"]
        rig.wait_for_status(is_streaming, process)
        rig.database.execute("UPDATE customers SET name = name || ' again'")
        writer.stop()
        rig.settle(process)
        assert rig.differences(target_tables) == {}

        (sender,) = (
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "replicator.service.watching" in child.cmdline()
        )
        sender.kill()
        rig.database.execute("UPDATE customers SET name = name || ' and again'")
        rig.settle(process)
        again = wait_until(lambda: None if receiver.received.empty() else receiver.next(), "the next one sends it")
        assert again.headers["webhook-id"] == hanging.headers["webhook-id"]
        found = rig.wait_for_status(is_streaming, process)
        assert is_worker(found, process), "the worker is the same"
        assert rig.stop(process) == 0, rig.output()
    assert rig.differences(target_tables) == {}
