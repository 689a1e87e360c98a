"""Messages by e-mail, through apprise to a real mail server."""

from __future__ import annotations

import email
import email.policy
import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from replicator.config import AppriseConfig, Secret
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage, AlertNotice
from replicator.service.alerts import text
from replicator.service.alerts.delivery import deliver
from replicator_testing.waiting import PATIENCE

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 31, 13, tzinfo=UTC)
FAILED = AlertNotice(
    event=AlertEvent.OPENED, kind=AlertKind.TABLE_FAILED, table="public.orders", message="shop: public.orders has failed.",
    action="replicator ddl accept shop public.orders", since=NOW,
)  # fmt: skip
OVER = AlertNotice(
    event=AlertEvent.RECOVERED, kind=AlertKind.NO_WORKER, message="No worker runs shop.", since=NOW, ended_at=LATER
)


def message(*notices: AlertNotice, **changes: Any) -> AlertMessage:
    made = {"replicator": "shop", "uuid": "u", "created_at": NOW, "summary": notices[0].message, "alerts": notices}
    return AlertMessage.model_validate({**made, **changes})


class Mailbox:
    """Takes mail, or refuses it."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.mails: queue.Queue[EmailMessage] = queue.Queue()

    async def handle_DATA(  # noqa: N802 as the server calls it
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.put(email.message_from_bytes(envelope.content, policy=email.policy.default))
        return self._answer


@contextmanager
def mail_server(answer: str = "250 OK") -> Iterator[tuple[Mailbox, AppriseConfig]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mailbox = Mailbox(answer)
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield mailbox, channel(port)
    finally:
        controller.stop()


def channel(port: int, *, timeout: str = "30s", user: str = "") -> AppriseConfig:
    url = f"mailto://{user}127.0.0.1:{port}?from=replicator@example.org&to=ops@example.org&format=text"
    return AppriseConfig.model_validate({"url": Secret(url), "timeout": timeout})


def test_a_mail_has_all_alerts_with_their_next_steps() -> None:
    with mail_server() as (mailbox, to):
        assert deliver(to, message(FAILED, OVER), "u-1", NOW) is None
        mail = mailbox.mails.get(timeout=30 * PATIENCE)
    assert mail["subject"] == "[replicator] shop: public.orders has failed."
    assert "ops@example.org" in mail["to"]
    found = mail.get_body(("plain",))
    assert found is not None
    assert found.get_content().replace("\r\n", "\n").strip() == text.body(message(FAILED, OVER)).strip()


def test_a_table_s_name_is_text_in_a_mail_of_html_and_no_header() -> None:
    name = 'public.<a href="http://evil.example">x</a>'
    failed = FAILED.model_copy(update={"message": f"shop: {name} has failed."})
    evil = message(failed, summary="shop: a\r\nBcc: other@example.org\r\n\r\nb has failed.")
    with mail_server() as (mailbox, to):
        html = AppriseConfig.model_validate(
            {"url": Secret(to.url.reveal().replace("&format=text", "")), "timeout": "30s"}
        )
        assert deliver(html, evil, "u-1", NOW) is None
        mail = mailbox.mails.get(timeout=30 * PATIENCE)
    assert mail["subject"] == "[replicator] shop: a Bcc: other@example.org b has failed."
    assert mail["bcc"] is None
    # Which of both it is, is up to apprise.
    found = mail.get_body(("html", "plain"))
    assert found is not None
    assert found.get_content_subtype() == "plain" or "<a" not in found.get_content()
    assert "evil.example" in found.get_content()


def test_a_mail_that_the_server_refuses_is_a_failure() -> None:
    with mail_server("550 no such user") as (_, to):
        assert "550" in str(deliver(to, message(FAILED), "u-1", NOW))


def test_a_password_is_in_no_failure() -> None:
    with mail_server() as (_, to):
        port = int(to.url.reveal().rpartition(":")[2].partition("?")[0])
        # The server knows no users.
        said = str(deliver(channel(port, user="ops:hunter2hunter2@"), message(FAILED), "u-1", NOW))
    assert "hunter2" not in said
    assert "AUTH" in said


def test_a_mail_server_that_never_answers_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert (
            deliver(channel(silent.getsockname()[1], timeout="3s"), message(FAILED), "u-1", NOW)
            == "no answer within 3 s"
        )


def test_an_address_that_apprise_does_not_know_is_a_failure_that_does_not_show_it() -> None:
    unknown = AppriseConfig.model_validate({"url": Secret("nosuch://user:hunter2@example.org"), "timeout": "30s"})
    said = str(deliver(unknown, message(FAILED), "u-1", NOW))
    assert said == "apprise does not understand the address"


def test_a_text_says_what_is_over_and_what_is_not_listed() -> None:
    reminder = FAILED.model_copy(update={"event": AlertEvent.REMINDER})
    assert text.body(message(OVER, reminder, is_digest=True, left_out=3)) == (
        "Held back during quiet hours:\n\n"
        "Recovered: No worker runs shop.\n  from 2026-01-31 12:00:00 UTC to 2026-01-31 13:00:00 UTC\n\n"
        "Still: shop: public.orders has failed.\n  since 2026-01-31 12:00:00 UTC\n  → replicator ddl accept shop public.orders\n\n"
        "3 more: replicator status shop\n"
    )


@pytest.mark.parametrize(("summary", "length"), [("short", 18), ("x" * 500, 120)])
def test_a_title_is_one_short_line(summary: str, length: int) -> None:
    assert len(text.title(message(FAILED, summary=summary))) == length
