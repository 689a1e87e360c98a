"""The dashboard of a real `replicator serve`, in a real browser: each page, each action, and who may see them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from replicator.model.processes.reports import AppliedTable, ApplyReport, CaptureReport
from replicator.model.schema import TableId
from replicator.state import holder_id
from replicator.state.points import Freshness
from replicator.state.records import (
    AppliedRecord,
    Desired,
    ErrorRecord,
    RequestKind,
    Segment,
    SegmentFile,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator_testbed.network import browser as browsers
from replicator_testbed.network.rest import RestServer, command, serving
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

pytestmark = pytest.mark.skipif(browsers.missing() is not None, reason=str(browsers.missing()))

SECRET = "hunter2-hunter2"
ORDERS, ITEMS, EVENTS, LEGACY = (TableId("public", name) for name in ("orders", "order_items", "events", "legacy"))
INVOICES = TableId("public", "invoices")
HOSTILE = TableId("public", "<script>alert(1)</script>")
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
CSS = Path(__file__).parents[2] / "replicator/web/dashboard/static/dashboard.css"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def now() -> datetime:
    """When the first test began: the module may have been read hours earlier."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def store(home: Path, now: datetime) -> Iterator[StateStore]:
    """Three replicators whose worker is this test, so that nothing else acts on what is asked of them."""
    store = StateStore(f"sqlite:///{home / 'state.db'}")
    store.create_replicator("billing", "name: billing\nfreshness: 5m\n", str(home / "b"))
    _record_points(home, now)
    _shop(store, home, now)
    lease = present(store.leases.acquire("billing", holder_id(), 3600))
    _seal(store, "billing", lease.epoch, now)
    store.put_tables("billing", lease.epoch, [TableRecord(table=INVOICES, incarnation=1, stage=Stage.STREAMING)])
    record = AppliedRecord(table=INVOICES, incarnation=1, rows=182_733, snapshot_rows=90_000, copy=TargetCopy.WHOLE)
    store.put_applied("billing", lease.epoch, [record])
    store.create_replicator("archive", "name: archive\n", str(home / "a"))
    store.set_desired("archive", Desired.PAUSED)
    (home / "logs").mkdir()
    events = [
        {"timestamp": (now - timedelta(minutes=9)).isoformat(), "level": "info", "event": "log_opened"},
        {"timestamp": now.isoformat(), "level": "error", "event": "table_failed", "table": str(LEGACY), "password": SECRET},
    ]  # fmt: skip
    (home / "logs" / "shop.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    yield store
    store.close()


def _record_points(home: Path, now: datetime) -> None:
    """Two hours, of which the server was away for half of one, and a table was late in eight minutes."""
    moment = now
    with closing(StateStore(f"sqlite:///{home / 'state.db'}", clock=lambda: moment)) as earlier:
        for minute in (*range(120, 90, -2), *range(60, 0, -2)):
            moment = now - timedelta(minutes=minute)
            is_late = 30 <= minute < 46
            fresh = Freshness(worst_s=400.0 if is_late else 0.6 + minute % 7, late=int(is_late))
            earlier.points.record({"billing": fresh})


def _shop(store: StateStore, home: Path, now: datetime) -> None:
    """One with a table in each state."""
    store.create_replicator("shop", "name: shop\nfreshness: 5m\n", str(home / "journal"))
    lease = present(store.leases.acquire("shop", holder_id(), 3600))
    error = ErrorRecord(
        code="schema_changed",
        message="The column price got another type: numeric, before integer.",
        action="Run: replicator ddl accept NAME TABLE",
        at=now,
    )
    _seal(store, "shop", lease.epoch, now - timedelta(hours=42), now, behind=EVENTS)
    progress = SnapshotProgress(rows=1_250_000, estimated_rows=4_000_000, started_at=now)
    store.put_tables(
        "shop",
        lease.epoch,
        [
            TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING),
            TableRecord(table=EVENTS, incarnation=1, stage=Stage.STREAMING),
            TableRecord(table=ITEMS, incarnation=1, stage=Stage.SNAPSHOT, snapshot=progress),
            TableRecord(table=LEGACY, incarnation=1, stage=Stage.FAILED, error=error),
            TableRecord(table=HOSTILE, incarnation=1, stage=Stage.PENDING),
        ],
    )
    whole, part = TargetCopy.WHOLE, TargetCopy.SNAPSHOT
    store.put_applied(
        "shop",
        lease.epoch,
        [
            AppliedRecord(table=ORDERS, incarnation=1, rows=48_211, snapshot_rows=40_000, copy=whole),
            AppliedRecord(table=EVENTS, incarnation=1, rows=9_120_455, snapshot_rows=9_000_000, copy=whole),
            AppliedRecord(table=ITEMS, incarnation=1, rows=1_000_000, snapshot_rows=1_000_000, copy=part),
        ],
    )


def _seal(store: StateStore, name: str, epoch: int, *moments: datetime, behind: TableId | None = None) -> None:
    """Seal a segment without rows at each moment but the last; in that one a table has a change, if one is to be behind."""
    for number, at in enumerate(moments, start=1):
        is_last = number == len(moments) and behind is not None
        file = SegmentFile(
            table=behind or EVENTS, incarnation=1, schema_fingerprint="0" * 16, uri="file:///j/0.parquet", rows=1, bytes=100,
            sha256="ab" * 32, first=0, last=0, snapshot_rows=0, has_absent=False, has_key_changes=False,
        )  # fmt: skip
        segment = Segment(
            id=number, first=0, last=0 if is_last else -1, epoch=epoch, offset=None, source_time=at, ring=(),
            files=(file,) if is_last else (), events=(), sealed_at=at,
        )  # fmt: skip
        store.seal(name, epoch, [segment], tables=[])


def _report(store: StateStore) -> None:
    """What workers say of both. It counts for half a minute."""
    now = store.now()
    store.put_report("billing", CaptureReport(source_time=now, retained_bytes=48 << 20, clock_ahead_s=0.0))
    store.put_report("billing", ApplyReport(tables={str(INVOICES): AppliedTable()}))
    store.put_report(
        "shop",
        CaptureReport(
            source_time=now, position="0/1A2B3C4D", retained_bytes=310 << 20, clock_ahead_s=0.0, silent_s=1.0, heartbeat_s=10.0,
            log_bytes_left=3 << 30, log_bytes_max=4 << 30, log_bytes_per_s=400_000.0,
        ),
    )  # fmt: skip
    tables = {str(ORDERS): AppliedTable(), str(EVENTS): AppliedTable()}
    store.put_report("shop", ApplyReport(tables=tables))


@pytest.fixture(scope="module")
def server(home: Path, store: StateStore) -> Iterator[RestServer]:
    del store
    with serving(home, "--requests-per-second", "1000") as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browsers.browsing(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(autouse=True)
def reported(store: StateStore, server: RestServer, browser: Chrome) -> None:
    """Once both are up, which may take a while."""
    _report(store)


def url(server: RestServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def shot(browser: Chrome, name: str) -> None:
    """Keep a picture of the page, light and dark."""
    SCREENSHOTS.mkdir(exist_ok=True)
    height = browser.execute_script("return Math.min(2400, document.documentElement.scrollHeight)")
    browser.set_window_size(1280, max(700, height + 20))
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.save_screenshot(str(SCREENSHOTS / f"{name}-{theme}.png"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def text_of(browser: Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def heading(browser: Chrome) -> str:
    return text_of(browser, "h1")


def click(browser: Chrome, id_: str) -> None:
    """Click on what leads to another page, and wait for that."""
    with leaving(browser):
        browser.find_element(By.ID, id_).click()


@contextmanager
def leaving(browser: Chrome) -> Iterator[None]:
    page = browser.find_element(By.TAG_NAME, "html")
    yield
    wait_until(lambda: is_stale(page) and browser.find_elements(By.TAG_NAME, "h1"), "the page stays", every_s=0.05)


def is_stale(page: WebElement) -> bool:
    try:
        page.is_displayed()
    except StaleElementReferenceException:
        return True
    except WebDriverException as error:
        # What the driver says of a page that goes while it looks.
        if "does not belong to the document" in str(error.msg):
            return True
        raise
    return False


@pytest.mark.matrix
def test_the_fleet_shows_the_worst_first_with_its_reason(browser: Chrome, server: RestServer) -> None:
    browser.get(url(server, "/"))
    assert heading(browser) == "1 of 3 needs attention"
    rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "tbody th")]
    assert rows == ["shop", "archive", "billing"]
    assert "replicator ddl accept shop public.legacy" in text_of(browser, "tbody")
    shot(browser, "fleet")


def test_a_replicator_shows_its_tables_worst_first_and_what_to_do(browser: Chrome, server: RestServer) -> None:
    browser.get(url(server, "/replicators/shop"))
    assert heading(browser) == "shop\nrunning"
    rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#tables tbody th")]
    assert rows[0] == str(LEGACY)
    assert str(HOSTILE) in rows
    attention = text_of(browser, "#attention")
    assert "schema_changed" in attention
    assert "Next step: Run: replicator ddl accept shop public.legacy" in attention
    assert re.search(r"Freshness is 42 h \d+ min; the objective is 5 min\.", attention)
    assert "75 % " in text_of(browser, "#state")
    assert "table failed" in text_of(browser, "#events")
    assert SECRET not in browser.page_source
    shot(browser, "replicator")


def test_a_replicator_shows_how_fresh_it_was(
    browser: Chrome, server: RestServer, store: StateStore, now: datetime
) -> None:
    """The server adds points of its own, of now: perhaps before the workers have said anything."""

    def recorded() -> tuple[int, int]:
        """In how many minutes it was late, and of how many that is known."""
        points = store.points.of("billing", now - timedelta(hours=3))
        return sum(point.freshness.late > 0 for point in points), len(points)

    late, minutes = recorded()
    assert (late >= 8, minutes >= 45) == (True, True)
    browser.get(url(server, "/replicators/billing"))
    drawing = browser.find_element(By.CSS_SELECTOR, "#chart svg")
    said = str(drawing.accessible_name)
    shown = re.match(
        r"Freshness of the last 6 hours\. At worst 7 min, over the objective \(5 min\) in (\d+) of (\d+) min", said
    )
    assert shown, said
    assert late <= int(shown[1]) <= recorded()[0]
    assert minutes <= int(shown[2]) <= recorded()[1]
    assert said.removeprefix("Freshness of the last 6 hours. ") in text_of(browser, "#chart figcaption")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#chart .freshness")) >= 2, "a gap where nothing was recorded"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#chart .late")) == int(shown[1])
    assert len(browser.find_elements(By.CSS_SELECTOR, "#chart .objective")) == 1
    shot(browser, "chart")


def test_the_server_records_how_fresh_replicators_are(server: RestServer, store: StateStore, now: datetime) -> None:
    since = now - timedelta(seconds=90)
    (point, *_) = wait_until(lambda: store.points.of("shop", since), "the first point is recorded")
    assert point.freshness.late >= 1


def test_a_table_shows_its_snapshot_and_its_error(browser: Chrome, server: RestServer) -> None:
    browser.get(url(server, "/replicators/shop/tables/public.order_items"))
    assert "in the target: 31 %, captured: 1,250,000 of about 4,000,000" in text_of(browser, "#progress")
    shot(browser, "table")
    browser.get(url(server, "/replicators/shop/tables/public.legacy"))
    assert "The column price got another type" in text_of(browser, "#attention")
    browser.get(url(server, "/replicators/shop"))
    with leaving(browser):
        browser.find_element(By.LINK_TEXT, str(HOSTILE)).click()
    assert heading(browser) == f"{HOSTILE}\npending"


def test_logs_are_of_all_tables_or_of_one(browser: Chrome, server: RestServer) -> None:
    browser.get(url(server, "/replicators/shop/logs"))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#log tbody tr")) == 2
    shot(browser, "logs")
    browser.find_element(By.CSS_SELECTOR, f"option[value='{LEGACY}']").click()
    with leaving(browser):
        browser.find_element(By.CSS_SELECTOR, ".filter button").click()
    assert [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#log tbody td:nth-child(3)")] == [
        "table failed"
    ]


def test_a_page_is_refreshed_where_it_stands(browser: Chrome, server: RestServer, store: StateStore) -> None:
    browser.get(url(server, "/replicators/billing"))
    browser.execute_script("window.isSamePage = true")
    assert heading(browser) == "billing\nrunning"
    store.set_desired("billing", Desired.PAUSED)
    wait_until(lambda: browser.find_elements(By.ID, "resume"), "the page does not show the pause")
    assert browser.execute_script("return window.isSamePage")
    assert text_of(browser, "#connection") == "Live"
    store.set_desired("billing", Desired.RUNNING)


@pytest.mark.matrix
def test_pausing_and_resuming_with_the_keyboard(browser: Chrome, server: RestServer, store: StateStore) -> None:
    browser.get(url(server, "/replicators/billing"))
    with leaving(browser):
        browser.find_element(By.ID, "pause").send_keys(Keys.ENTER)
    assert "Pausing was asked for." in text_of(browser, ".notice")
    assert present(store.replicator("billing")).desired is Desired.PAUSED
    with leaving(browser):
        browser.find_element(By.ID, "resume").send_keys(Keys.ENTER)
    assert present(store.replicator("billing")).desired is Desired.RUNNING
    click(browser, "pause-apply")
    assert present(store.replicator("billing")).apply_paused
    click(browser, "resume")
    assert not present(store.replicator("billing")).apply_paused


def test_a_snapshot_and_a_new_position_are_asked_for_after_a_question(
    browser: Chrome, server: RestServer, store: StateStore
) -> None:
    browser.get(url(server, "/replicators/billing/tables/public.invoices"))
    click(browser, "snapshot")
    assert store.requests.open("billing") == []
    browser.find_element(By.NAME, "recreate").click()
    click(browser, "confirm")
    assert "A new snapshot was asked for." in text_of(browser, ".notice")
    click(browser, "restart")
    click(browser, "confirm")
    kinds = [(request.kind, request.payload["tables"]) for request in store.requests.open("billing")]
    assert kinds == [(RequestKind.RECREATE, ["public.invoices"]), (RequestKind.RESTART, ["public.invoices"])]


def test_a_replicator_is_deleted_only_under_its_name(browser: Chrome, server: RestServer, store: StateStore) -> None:
    browser.get(url(server, "/replicators/billing/delete"))
    shot(browser, "delete")
    browser.find_element(By.ID, "name").send_keys("shop")
    click(browser, "confirm")
    assert "Nothing was deleted." in text_of(browser, ".notice")
    assert present(store.replicator("billing")).desired is Desired.RUNNING
    browser.get(url(server, "/replicators/billing/delete"))
    browser.find_element(By.NAME, "drop_target").click()
    browser.find_element(By.ID, "name").send_keys("billing")
    click(browser, "confirm")
    assert "It is being deleted." in text_of(browser, "#actions")
    payload = next(r.payload for r in store.requests.open("billing") if r.kind is RequestKind.DELETE)
    assert (payload["drop_target"], payload["force"]) == (True, False)


@pytest.mark.matrix
def test_no_page_makes_the_browser_complain(browser: Chrome, server: RestServer) -> None:
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    for path in (
        "/",
        "/replicators/shop",
        "/replicators/shop/tables/public.orders",
        "/replicators/shop/delete",
        "/new?source=mysql&target=bigquery",
        "/login",
    ):
        browser.get(url(server, path))
        complaints = [one for one in browser.get_log("browser") if one["level"] in ("WARNING", "SEVERE")]  # type: ignore[no-untyped-call]
        assert complaints == [], path
    assert "unsafe" not in server.ask("/").headers["content-security-policy"]


def test_what_is_not_there_is_a_page(browser: Chrome, server: RestServer) -> None:
    for path in ("/replicators/none", "/replicators/shop/tables/none", "/replicators/shop/nothing"):
        browser.get(url(server, path))
        assert "status 404" in text_of(browser, "main"), path
    assert server.ask("/static/none.css").status == 404


def test_pages_can_be_read_without_javascript(server: RestServer, tmp_path: Path) -> None:
    with browsers.browsing(tmp_path / "profile", has_javascript=False) as browser:
        browser.get(url(server, "/replicators/shop"))
        assert "schema_changed" in text_of(browser, "#attention")
        click(browser, "pause")
        assert "Pausing was asked for." in text_of(browser, ".notice")
        click(browser, "resume")
        assert browser.find_elements(By.ID, "pause")


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (FORM, b"", 403),
        (FORM, b"form=guessed", 403),
        ({**FORM, "Cookie": "replicator_form=a"}, b"form=b", 403),
        ({**FORM, "Cookie": "replicator_form="}, b"form=", 403),
        ({**FORM, "Cookie": "replicator_form=a", "Origin": "http://evil.example"}, b"form=a", 403),
        ({**FORM, "Cookie": "replicator_form=a", "Origin": "null"}, b"form=a", 403),
        ({**FORM, "Cookie": "replicator_form=a", "Sec-Fetch-Site": "same-site"}, b"form=a", 403),
        ({**FORM, "Cookie": "replicator_form=a"}, b"form=\xff", 422),
        ({"Content-Type": "text/plain", "Cookie": "replicator_form=a"}, b"form=a", 415),
        ({"Content-Type": "application/json", "Cookie": "replicator_form=a"}, b"{}", 415),
    ],
)
def test_a_form_of_another_page_changes_nothing(
    server: RestServer, store: StateStore, headers: Mapping[str, str], body: bytes, status: int
) -> None:
    answer = server.ask("/replicators/shop/pause", method="POST", headers=headers, body=body)
    assert answer.status == status
    assert present(store.replicator("shop")).desired is Desired.RUNNING


@pytest.mark.matrix
def test_where_tokens_are_demanded_one_logs_in(browser: Chrome, home: Path) -> None:
    reading, operating = token_of(home, "reader"), token_of(home, "operator", "--scope", "operate")
    with serving(home, "--behind-proxy") as server:
        browser.get(url(server, "/"))
        assert heading(browser) == "Log in"
        log_in(browser, "replicator_" + "x" * 43)
        assert "The token is not valid." in text_of(browser, ".notice")
        shot(browser, "login")
        log_in(browser, reading)
        assert heading(browser).endswith("attention")
        browser.get(url(server, "/replicators/shop"))
        assert not browser.find_elements(By.ID, "pause")
        cookie = present(browser.get_cookie("replicator_token"))
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", True)
        refused = server.ask("/api/v1/replicators", headers={"Cookie": f"replicator_token={operating}"})
        assert refused.status == 401
        headers = {**FORM, "Cookie": f"replicator_token={reading}; replicator_form=a"}
        assert server.ask("/replicators/shop/pause", method="POST", headers=headers, body=b"form=a").status == 403
        click(browser, "logout")
        browser.get(url(server, "/"))
        log_in(browser, operating)
        browser.get(url(server, "/replicators/shop"))
        assert browser.find_elements(By.ID, "pause")
        assert operating not in "".join(server.lines)


def log_in(browser: Chrome, token: str) -> None:
    browser.find_element(By.ID, "token").send_keys(token)
    click(browser, "login")


def token_of(home: Path, name: str, *options: str) -> str:
    return subprocess.check_output(
        command("token", "create", name, *options),
        text=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "REPLICATOR_HOME": str(home)},
    ).strip()


def palettes() -> Iterator[dict[str, str]]:
    """The colours of the style sheet, light then dark."""
    blocks = re.findall(r":root \{(.*?)\}", CSS.read_text(encoding="utf-8"), re.DOTALL)
    yield from (dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block)) for block in blocks)


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(theme: int) -> None:
    colours = list(palettes())[theme]
    texts = ("text", "soft", "link", "good", "busy", "warning", "bad", "off")
    low = {
        (text, back): contrast(colours[text], colours[back])
        for text in texts
        for back in ("back", "panel", "button")
        if contrast(colours[text], colours[back]) < 4.5
    }
    assert low == {}
    assert all(contrast(colours["focus"], colours[back]) >= 3 for back in ("back", "panel"))


def fill(browser: Chrome, path: str, text: str) -> None:
    field = browser.find_element(By.ID, f"f-{path}")
    field.clear()
    field.send_keys(text)


@pytest.mark.matrix
def test_a_new_replicator_is_checked_in_the_form_and_in_the_text(
    browser: Chrome, server: RestServer, home: Path, store: StateStore, tmp_path: Path
) -> None:
    token = token_of(home, "configurer", "--scope", "configure")
    browser.get(url(server, "/"))
    click(browser, "new")
    assert "you need a token with the scope configure" in text_of(browser, ".notice")
    browser.get(url(server, "/login"))
    log_in(browser, token)
    browser.get(url(server, "/new"))
    for kind, plugin in (("source", "postgresql"), ("target", "delta")):
        browser.find_element(By.ID, f"plugin-{kind}").send_keys(plugin)
    click(browser, "choose")
    # Optional settings are folded away, required ones are not.
    assert browser.find_element(By.ID, "f-source.host").is_displayed()
    assert not browser.find_element(By.ID, "f-source.lock_timeout").is_displayed()
    assert not browser.find_element(By.ID, "f-spark.master").is_displayed()
    shot(browser, "new")

    for path, text in {
        "name": "Shop!",
        "source.host": "127.0.0.1",
        "source.user": "u",
        "source.password": SECRET,
    }.items():
        fill(browser, path, text)
    browser.find_element(By.CSS_SELECTOR, "#more summary").click()
    fill(browser, "spark.executors_timeout", "soon")
    click(browser, "validate")
    assert text_of(browser, "#f-name-wrong").startswith("`name` does not have the required form")
    assert "is missing" in text_of(browser, "#f-source\\.database-wrong")
    assert "is a secret and must not be written in the file" in text_of(browser, "#f-source\\.password-wrong")
    assert browser.find_element(By.ID, "f-spark.executors_timeout").is_displayed()
    assert browser.find_element(By.ID, "f-source.host").get_attribute("value") == "127.0.0.1"
    assert SECRET not in browser.page_source
    shot(browser, "new-findings")

    changed = {"name": "fresh", "source.port": "1", "source.database": "d", "target.path": str(tmp_path / "lake")}
    browser.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    for path, text in {**changed, "spark.executors_timeout": "", "source.connect_timeout": "1s"}.items():
        fill(browser, path, text)
    click(browser, "start")
    assert "source_unavailable" in text_of(browser, "#found")
    assert "host: 127.0.0.1" in text_of(browser, "#yaml")
    assert store.replicator("fresh") is None

    click(browser, "edit")
    field = browser.find_element(By.ID, "text")
    assert "port: 1\n" in str(field.get_attribute("value"))
    field.send_keys("\nfresness: 5m\n")
    click(browser, "validate")
    assert "Did you mean `freshness`?" in text_of(browser, "#found")
    assert "line " in text_of(browser, "#found .subject")
    shot(browser, "new-text")
    click(browser, "logout")


@pytest.mark.matrix
def test_a_new_replicator_can_be_checked_without_javascript(server: RestServer, home: Path, tmp_path: Path) -> None:
    token = token_of(home, "plain", "--scope", "configure")
    with browsers.browsing(tmp_path / "profile", has_javascript=False) as browser:
        browser.get(url(server, "/login"))
        log_in(browser, token)
        browser.get(url(server, "/new?source=postgresql&target=delta"))
        fill(browser, "name", "shop")
        click(browser, "validate")
        assert "is missing" in text_of(browser, "#f-source\\.host-wrong")
        assert browser.find_element(By.ID, "f-name").get_attribute("value") == "shop"


def test_every_field_of_the_form_has_a_label_and_a_description(browser: Chrome, server: RestServer) -> None:
    browser.get(url(server, "/new?source=postgresql&target=bigquery"))
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
        ".filter((one) => !one.labels.length || (one.getAttribute('aria-describedby') || '').split(' ').filter(Boolean)"
        ".some((id) => !document.getElementById(id))).map((one) => one.name)"
    )
    assert nameless == []
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
