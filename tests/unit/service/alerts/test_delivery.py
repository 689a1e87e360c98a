"""Messages go to real servers and real programs, and none of them holds the sender up."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from replicator.config import CommandConfig, Secret, WebhookConfig
from replicator.model.documents.alerts import AlertEvent, AlertKind, AlertMessage, AlertNotice
from replicator.service.alerts.delivery import deliver
from replicator_testbed.network.receiver import Received, Receiver, make_certificate, receiving, refuse
from replicator_testing.waiting import wait_until

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICE = AlertNotice(event=AlertEvent.OPENED, kind=AlertKind.NO_WORKER, message="No worker runs shop.", since=NOW)
MESSAGE = AlertMessage(replicator="shop", uuid="u", created_at=NOW, summary="No worker runs shop.", alerts=(NOTICE,))
KEY = "a key of somebody's own"


def webhook(receiver: Receiver, *, key: str | None = KEY, **settings: Any) -> WebhookConfig:
    signing_key = None if key is None else Secret(key)
    return WebhookConfig.model_validate(
        {"url": Secret(receiver.url), "signing_key": signing_key, "timeout": "5s", **settings}
    )


def send(channel: WebhookConfig | CommandConfig) -> str | None:
    return deliver(channel, MESSAGE, "u-7", NOW)


def signed_by(received: Received, secret: bytes) -> bool:
    """As docs/alerts.md says."""
    signed = f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}.".encode() + received.body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(received.headers["webhook-signature"], f"v1,{expected}")


def test_a_server_gets_signed_json() -> None:
    with receiving() as receiver:
        assert send(webhook(receiver)) is None
        received = receiver.next()
    assert received.path == "/hook"
    assert AlertMessage.model_validate(received.document) == MESSAGE
    assert received.headers["content-type"] == "application/json"
    assert (received.headers["webhook-id"], received.headers["webhook-timestamp"]) == ("u-7", str(int(NOW.timestamp())))
    assert signed_by(received, KEY.encode())
    assert not signed_by(received, b"another key")


def test_a_key_of_the_specifications_form_is_decoded() -> None:
    with receiving() as receiver:
        assert send(webhook(receiver, key="whsec_" + base64.b64encode(b"0123456789").decode())) is None
        assert signed_by(receiver.next(), b"0123456789")
        assert send(webhook(receiver, key=None)) is None
        assert "webhook-signature" not in receiver.next().headers


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
def test_an_answer_that_is_no_success_is_a_failure(status: int) -> None:
    with receiving() as receiver:
        receiver.answer = refuse(status, "no such room")
        said = send(webhook(receiver))
        assert said is not None
        assert said.startswith(f"the server answered {status}")
        receiver.next()
        assert receiver.received.empty(), "a redirect is not followed"


def test_a_server_that_never_answers_is_left_in_time() -> None:
    with receiving() as receiver:
        receiver.answer = receiver.hang
        assert send(webhook(receiver, timeout="1s")) == "no answer within 1 s"


def test_a_server_that_answers_a_byte_now_and_then_is_left_in_time() -> None:
    with receiving() as receiver:
        receiver.answer = receiver.drip
        assert send(webhook(receiver, timeout="1s")) == "no answer within 1 s"


def test_a_server_that_is_not_there_is_a_failure() -> None:
    with receiving() as receiver:
        pass
    assert "cannot be reached" in str(send(webhook(receiver)))


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    own, other = make_certificate(tmp_path, "own"), make_certificate(tmp_path, "other")
    with receiving(certificate=own) as receiver:
        assert send(webhook(receiver, ca_file=str(own[0]))) is None
        receiver.next()
        for ca_file in (str(other[0]), None):
            assert "certificate verify failed" in str(send(webhook(receiver, ca_file=ca_file)))
        assert receiver.received.empty(), "nothing is sent to a server that is not trusted"
        missing = str(tmp_path / "missing.pem")
        assert f"the certificates in {missing} cannot be read" in str(send(webhook(receiver, ca_file=missing)))


def test_what_a_failure_says_masks_the_secrets() -> None:
    with receiving() as receiver:
        receiver.answer = refuse(400, f"the key {KEY} is wrong")
        assert send(webhook(receiver)) == "the server answered 400: the key *** is wrong"


def command(*argv: str, timeout: str = "5s") -> CommandConfig:
    return CommandConfig.model_validate({"argv": argv, "timeout": timeout})


def python(code: str, *arguments: str) -> CommandConfig:
    return command(sys.executable, "-c", code, *arguments, timeout="30s")


def test_a_command_reads_the_message_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import sys, json, os; json.dump([sys.argv[2:], sys.stdin.read(), dict(os.environ)], open(sys.argv[1], 'w'))"
    os.environ["SHOP_DB_PASSWORD"] = "hunter2"
    try:
        assert send(python(code, str(out), "$(touch x); *", "")) is None
    finally:
        del os.environ["SHOP_DB_PASSWORD"]
    argv, message, environment = json.loads(out.read_text())
    assert argv == ["$(touch x); *", ""]
    assert AlertMessage.model_validate_json(message) == MESSAGE
    assert environment["REPLICATOR_ALERT_ID"] == "u-7"
    assert "SHOP_DB_PASSWORD" not in environment


def test_a_command_that_fails_is_told_with_what_it_said_last() -> None:
    said = str(send(python("import sys; sys.stderr.write('x' * 100_000 + ' no such room'); sys.exit(3)")))
    assert said.startswith(f"{sys.executable} ended with status 3: ")
    assert len(said) <= 300
    assert "no such room" in str(send(python("import sys; sys.exit('no such room')")))
    assert send(command("/nowhere/page")) == "/nowhere/page cannot be started: No such file or directory"
    assert (
        send(python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"))
        == f"{sys.executable} ended with signal 15"
    )


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = 'sleep 1000 & echo $! > "$1.tmp"; mv "$1.tmp" "$1"; wait'
    assert send(command("sh", "-c", code, "sh", str(pid), timeout="3s")) == "sh did not end within 3 s"
    child = int(pid.read_text())
    wait_until(
        lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE,
        "the command's child has ended",
    )
