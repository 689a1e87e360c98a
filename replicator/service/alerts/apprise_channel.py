"""Sends one message through apprise: `python -m replicator.service.alerts.apprise_channel` reads it from its standard input.

It runs in a process of its own, as `webhook.py` does. The address is a secret and comes with the message.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

from replicator.service.alerts.reasons import known_facts

_LINES_KEPT: Final = 3


class _Last(logging.Handler):
    """Keeps the last log lines of apprise, which reports only there why a server did not take a message.

    Lines about exceptions are among its debug messages, of which no others are kept: they may quote addresses.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record, as logging requires."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING or "Exception" in text:
            self.lines = [*self.lines, text][-_LINES_KEPT:]


def send(settings: Mapping[str, Any]) -> str | None:
    """Send a message; return the reason why it was not taken, or None."""
    try:
        import apprise
    except ImportError:
        return "apprise is not installed: pip install 'replicator[alerts]'"
    last = _Last()
    logger = logging.getLogger("apprise")
    logger.addHandler(last)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    refuse_redirects()
    sender = apprise.Apprise()
    if not sender.add(settings["url"]):
        return "apprise does not understand the address"
    types = {
        "failure": apprise.NotifyType.FAILURE,
        "success": apprise.NotifyType.SUCCESS,
        "info": apprise.NotifyType.INFO,
    }
    is_sent = sender.notify(
        title=settings["title"],
        body=settings["text"],
        notify_type=types[settings["type"]],
        # Otherwise it would be taken for what the service prefers, mostly HTML: a table's name could be a link.
        body_format=apprise.NotifyFormat.TEXT,
    )
    return None if is_sent else _refusal(settings["url"], " ".join(last.lines))


def refuse_redirects() -> None:
    """Make later requests of this process follow no redirect, which would take headers, with tokens in them, to another host."""
    from requests import sessions

    sessions.DEFAULT_REDIRECT_LIMIT = 0  # type: ignore[attr-defined]  # it is not among what requests exports


def _refusal(url: str, said: str) -> str:
    """Return the reason why a message was not taken, without any part of the address except its scheme."""
    facts = known_facts(said)
    return f"{url.partition(':')[0]}: the server did not take the message{f' ({facts})' if facts else ''}"


def main() -> int:
    """Send the message on the standard input, and print the reason why it was not taken."""
    settings = json.loads(sys.stdin.read())
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing but the answer may go there
    signal.signal(signal.SIGALRM, _take_too_long)
    signal.setitimer(signal.ITIMER_REAL, settings["timeout_s"])
    try:
        error = send(settings)
    except TimeoutError:
        error = f"no answer within {settings['timeout_s']:g} s"
    signal.setitimer(signal.ITIMER_REAL, 0)
    json.dump({"error": error}, answers)
    answers.flush()
    return 0


def _take_too_long(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
