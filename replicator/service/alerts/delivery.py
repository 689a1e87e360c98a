"""Delivers one message to one channel, within its time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any, Final

from replicator.config import AppriseConfig, CommandConfig, WebhookConfig
from replicator.config.alerts import ChannelConfig
from replicator.model.documents.alerts import AlertEvent, AlertMessage
from replicator.observability import redact
from replicator.runtime.process import python
from replicator.service.alerts import text

_START_S: Final = 5.0
"""Time for the start of Python, in addition to what the network may take."""
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")
"""Variables that a command gets from our environment, which also holds passwords."""
_NETWORK: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir", "PYTHONPATH")
_TYPES: Final = {AlertEvent.RECOVERED: "success", AlertEvent.TEST: "info"}
"""Event of all alerts of a message → its type in apprise, which chooses the colour; other messages are failures."""
_ERROR_CHARACTERS: Final = 300
_READ_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 1.0
"""Time to wait for the last output of a command that ended; a process that it started may keep the pipe open."""

ATTEMPT_MAX_S: Final = 30.0 + _START_S
"""Longest time of an attempt: the longest timeout that the configuration takes, and the start."""


def deliver(channel: ChannelConfig, message: AlertMessage, message_id: str, now: datetime) -> str | None:
    """Deliver a message; return the reason why it was not taken, or None. Takes at most the channel's timeout and a process's start.

    A message that is delivered twice, because the first answer was lost, has the same `message_id`.
    """
    body = message.model_dump_json()
    match channel:
        case WebhookConfig():
            settings = {
                "url": channel.url.reveal(),
                "key": None if channel.signing_key is None else channel.signing_key.reveal(),
                "ca_file": channel.ca_file,
                "timeout_s": channel.timeout.total_seconds(),
                "id": message_id,
                "timestamp": int(now.timestamp()),
                "body": body,
            }
            error = _in_process("replicator.service.alerts.webhook", settings)
        case AppriseConfig():
            events = {notice.event for notice in message.alerts}
            settings = {
                "url": channel.url.reveal(),
                "timeout_s": channel.timeout.total_seconds(),
                "title": text.title(message),
                "text": text.body(message),
                "type": _TYPES.get(next(iter(events)), "failure") if len(events) == 1 else "failure",
            }
            error = _in_process("replicator.service.alerts.apprise_channel", settings)
        case CommandConfig():
            error = _run(channel.argv, body, message_id, channel.timeout.total_seconds())
        case _:
            raise AssertionError(f"a channel of an unknown kind: {type(channel).__name__}")
    return None if error is None else redact(error)[:_ERROR_CHARACTERS]


def _in_process(module: str, settings: Mapping[str, Any]) -> str | None:
    """Deliver by a module of ours in a process of its own, and return its answer. It gets its secrets by its standard input."""
    process = subprocess.Popen(
        python(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment((*_ENVIRONMENT, *_NETWORK)),
        start_new_session=True,
    )
    try:
        said, failed = process.communicate(json.dumps(settings), timeout=settings["timeout_s"] + _START_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        return f"no answer within {settings['timeout_s']:g} s"
    try:
        error: str | None = json.loads(said)["error"]
    except (ValueError, KeyError, TypeError):
        # The last line of a traceback is the class of an error and its words, which may quote the address.
        kind = failed.strip().rpartition("\n")[2].partition(":")[0]
        return f"the process that delivers ended with status {process.returncode}{f' ({kind})' if kind.isidentifier() else ''}"
    return error


def _run(argv: Sequence[str], body: str, message_id: str, timeout_s: float) -> str | None:
    """Start a command; return the reason why it did not take the message, or None. Its output is read to the end and kept in part."""
    with tempfile.TemporaryFile() as message:
        message.write(body.encode())
        message.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=message,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**_environment(_ENVIRONMENT), "REPLICATOR_ALERT_ID": message_id},
                start_new_session=True,
            )
        except OSError as error:
            return f"{argv[0]} cannot be started: {error.strerror}"
    assert process.stderr is not None
    last = bytearray()
    reader = threading.Thread(target=_keep_last, args=(process.stderr, last), name="alert-command", daemon=True)
    reader.start()
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
        return f"{argv[0]} did not end within {timeout_s:g} s"
    if code == 0:
        return None
    reader.join(_LAST_WORDS_S)
    how = f"signal {-code}" if code < 0 else f"status {code}"
    failed = last.decode("utf-8", "replace").strip()
    return f"{argv[0]} ended with {how}{f': {failed}' if failed else ''}"


def _keep_last(pipe: IO[bytes], last: bytearray) -> None:
    """Read a pipe to its end, so that no writer waits, and keep the last part."""
    with pipe:
        while read := os.read(pipe.fileno(), _READ_BYTES):
            last[:] = (last + read)[-_ERROR_CHARACTERS:]


def _kill(process: subprocess.Popen[Any]) -> None:
    """End a process, and all processes that it started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _environment(names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in names or name.lower() in names}
