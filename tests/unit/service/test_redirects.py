"""A server that sends a client on to another one gets nothing secret sent there: neither the message, nor a header, nor a key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import pytest
from requests import sessions
from requests.models import DEFAULT_REDIRECT_LIMIT

from replicator.config import LineageConfig, Secret, WebhookConfig
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage, AlertNotice
from replicator.service.alerts.apprise_channel import send
from replicator.service.alerts.delivery import deliver
from replicator.service.lineage.sinks import _sent, sinks
from replicator_testbed.network.receiver import Answering, Received, receiving

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICE = AlertNotice(event=AlertEvent.OPENED, kind=AlertKind.NO_WORKER, message="No worker runs shop.", since=NOW)
MESSAGE = AlertMessage(replicator="shop", uuid="u", created_at=NOW, summary="No worker runs shop.", alerts=(NOTICE,))
KEY = "canary-of-a-redirect"


def webhook(host: str) -> str | None:
    return deliver(WebhookConfig(url=Secret(f"http://{host}/{KEY}"), signing_key=Secret(KEY)), MESSAGE, "u-1", NOW)


def apprise(host: str) -> str | None:
    url = f"json://user:{KEY}@{host}/?+X-Token={KEY}"
    return send({"url": url, "title": "t", "text": "x", "type": "info"})


def lineage(host: str) -> str | None:
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

    event = RunEvent(
        eventTime="2026-01-31T12:00:00Z", run=Run(runId="01890a5d-ac96-774b-bcce-b302099a8057"),
        job=Job(namespace="n", name="j"), producer="https://example.org", eventType=RunState.START,
    )  # fmt: skip
    (sink,) = sinks(LineageConfig(url=f"http://{host}", api_key=Secret(KEY)))
    return _sent(sink, event, "{}")


def redirect(status: int, url: str) -> Answering:
    def answer(_: Received, request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Location", url)
        request.end_headers()

    return answer


@pytest.fixture(autouse=True)
def _limit_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel is a process of its own, and changes it for good."""
    monkeypatch.setattr(sessions, "DEFAULT_REDIRECT_LIMIT", DEFAULT_REDIRECT_LIMIT)


# apprise imports it.
@pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")
@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("tell", [webhook, apprise, lineage])
def test_a_redirect_to_another_host_is_not_followed(tell: Callable[[str], str | None], status: int) -> None:
    with receiving() as first, receiving() as other:
        first.answer = redirect(status, other.url.replace("127.0.0.1", "localhost"))
        said = tell(urlsplit(first.url).netloc)
        assert first.received.qsize() == 1
        assert other.received.empty()
    assert said is not None
    assert KEY not in said
    assert "localhost" not in said
