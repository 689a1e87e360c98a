"""The dashboard's actions on a replicator that runs, clicked in a real browser while its source is written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from replicator.model.documents.status import ReplicatorState, TableState
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.network import browser as browsers
from replicator_testbed.network.rest import serving
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(browsers.missing() is not None, reason=str(browsers.missing()))


def shows(browser: Chrome, state: str) -> None:
    """Wait until the page has been refreshed, without loading it again, to that state."""
    wait_until(
        lambda: browser.find_element(By.CSS_SELECTOR, "h1 .status").text == state, f"the page never says {state}"
    )


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_running_replicator_obeys_the_dashboard(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, tmp_path: Path
) -> None:
    process = rig.start()
    before = rig.wait_for_status(is_streaming, process)
    table, incarnation = before.tables[0].table, before.tables[0].incarnation
    # This `serve` is only a standby: `run` has the replicator.
    with serving(rig.home) as server, browsers.browsing(tmp_path / "profile") as browser:
        browser.get(f"http://127.0.0.1:{server.port}/replicators/{rig.name}")
        shows(browser, "running")
        browser.find_element(By.ID, "pause").click()
        rig.wait_for_status(lambda s: s.state is ReplicatorState.PAUSED, process)
        shows(browser, "paused")
        browser.find_element(By.ID, "resume").click()
        rig.wait_for_status(is_streaming, process)
        shows(browser, "running")

        browser.get(f"http://127.0.0.1:{server.port}/replicators/{rig.name}/snapshot?table={table}")
        browser.find_element(By.NAME, "recreate").click()
        browser.find_element(By.ID, "confirm").click()
        rig.wait_for_status(
            lambda s: any(
                t.table == table and t.incarnation > incarnation and t.state is TableState.STREAMING for t in s.tables
            ),
            process,
        )
        writer.stop()
        rig.settle(process)
        assert rig.differences(target_tables) == {}

        browser.get(f"http://127.0.0.1:{server.port}/replicators/{rig.name}/delete")
        browser.find_element(By.ID, "name").send_keys(rig.name)
        browser.find_element(By.ID, "confirm").click()
        wait_until(lambda: "status 404" in browser_page(browser), "the replicator is never deleted")


def browser_page(browser: Chrome) -> str:
    browser.refresh()
    return browser.find_element(By.TAG_NAME, "main").text
