"""What is told of a server that took no message has nothing of its address."""

from __future__ import annotations

import socket
import ssl
import urllib.error
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from replicator.config import AppriseConfig, Secret, WebhookConfig
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage, AlertNotice
from replicator.service.alerts.apprise_channel import send
from replicator.service.alerts.delivery import deliver
from replicator.service.alerts.reasons import known_facts, reason, without_address
from replicator.service.alerts.webhook import post
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate, receiving, refuse

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICE = AlertNotice(event=AlertEvent.OPENED, kind=AlertKind.NO_WORKER, message="No worker runs shop.", since=NOW)
MESSAGE = AlertMessage(replicator="shop", uuid="u", created_at=NOW, summary="No worker runs shop.", alerts=(NOTICE,))
TOKEN = "AAHtelegramBOTTOKENtelegramBOTTOKEN"


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {
        "url": url, "key": None, "ca_file": None, "timeout_s": 5.0, "id": "1", "timestamp": 0, "body": "{}",
        "title": "t", "text": "x", "type": "info", **more,
    }  # fmt: skip


@pytest.fixture
def nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


# apprise imports it.
@pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")
@pytest.mark.parametrize(
    "url",
    [
        f"tgram://123456789:{TOKEN}/12315544/",
        "ifttt://WEBHOOKIDwebhookid@EventSecret/",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/",
        "json://user-secret:hunter2hunter2@host-secret.example/path-secret",
        "mailtos://user-secret:hunter2hunter2@host-secret.example?to=ops@example.org",
    ],
)
def test_a_service_that_is_not_reached_shows_no_token(nothing_is_found: None, url: str) -> None:
    said = str(send(settings(url)))
    assert said.startswith(url.partition(":")[0] + ": the server did not take the message")
    for secret in (TOKEN, "123456789", "WEBHOOKID", "EventSecret", "TIiaj", "T1JJ3T3L2", "-secret", "hunter2"):
        assert secret.lower() not in said.lower()


@pytest.mark.parametrize("tail", [" ,x", "\n", "/é"])
def test_an_address_that_cannot_be_used_is_not_quoted(tail: str) -> None:
    url = f"https://hooks.secret.example/services/T0/B0/{TOKEN}{tail}"
    said = str(post(settings(url)))
    assert "cannot be reached" in said
    assert TOKEN not in said
    assert "secret" not in said
    with pytest.raises(ValueError, match="ASCII") as caught:
        WebhookConfig.model_validate({"url": Secret(url)})
    assert TOKEN not in str(caught.value)


def test_an_answer_that_repeats_the_address_is_not_passed_on() -> None:
    with receiving() as receiver:
        receiver.answer = refuse(404, f"Cannot POST /services/{TOKEN}")
        assert post(settings(receiver.url.replace("/hook", f"/services/{TOKEN}"))) == "the server answered 404"
        receiver.answer = refuse(400, "invalid_payload")
        assert post(settings(receiver.url)) == "the server answered 400: invalid_payload"
    assert without_address("https://h/x?token=a%20bc", "you said A BC") == ""


def test_errors_inside_of_errors_are_told_by_their_facts() -> None:
    error = urllib.error.URLError(OSError(111, "Connection refused"))
    outer = RuntimeError(f"HTTPSConnectionPool(host='{TOKEN}'): Max retries exceeded")
    outer.__cause__ = error
    assert reason(outer) == "Connection refused"
    assert reason(RuntimeError(TOKEN)) == "RuntimeError"
    assert known_facts(f"Failed to send to {TOKEN}: error=401.") == "status 401"


@pytest.mark.parametrize("kind", ["webhook", "mail with TLS that is not offered", "mail with a stranger's certificate"])
def test_a_rogue_server_is_told_nothing_secret(tmp_path: Path, kind: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    talk = rogue.smtp() if "not offered" in kind else rogue.tls_first(context)
    channel: WebhookConfig | AppriseConfig
    with rogue.rogue(talk) as server:
        here = f"{rogue.HOST}:{server.port}"
        if kind == "webhook":
            channel = WebhookConfig(url=Secret(f"https://{here}/{TOKEN}"), signing_key=Secret(TOKEN))
        else:
            mode = "starttls" if "not offered" in kind else "ssl"
            channel = AppriseConfig(
                url=Secret(
                    f"mailtos://user:{TOKEN}@{here}?smtp={rogue.HOST}&mode={mode}&from=a@example.org&to=b@example.org"
                )
            )
        said = deliver(channel, MESSAGE, "u-1", NOW)
    assert said is not None
    assert server.connections
    assert TOKEN.encode() not in server.heard
    assert b"AUTH" not in server.heard.split(b"\n", 1)[-1]
    assert TOKEN not in said
    assert rogue.HOST not in said
