"""Posts one message to an HTTP server: `python -m replicator.service.alerts.webhook` reads it from its standard input.

It runs in a process of its own, which is killed when it takes too long: no server can hold the sender up. It loads only what it needs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final

from replicator.service.alerts.reasons import reason, without_address

_PREFIX: Final = "whsec_"
_ANSWER_CHARACTERS: Final = 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Sends a message to the configured address only: follows no redirect."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        del req, fp, code, msg, headers, newurl


def signature(key: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message by the specification Standard Webhooks: HMAC-SHA256 of id, timestamp and body."""
    secret = base64.b64decode(key.removeprefix(_PREFIX)) if key.startswith(_PREFIX) else key.encode()
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode("ascii")


def headers(key: str | None, message_id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """Return the headers of a request."""
    found = {
        "Content-Type": "application/json",
        "User-Agent": "replicator",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
    }
    return found if key is None else {**found, "webhook-signature": signature(key, message_id, timestamp, body)}


def post(settings: Mapping[str, Any]) -> str | None:
    """Post a message; return the reason why it was not taken, or None."""
    body = settings["body"].encode()
    try:
        context = ssl.create_default_context(cafile=settings["ca_file"])
    except (OSError, ssl.SSLError) as error:
        return f"the certificates in {settings['ca_file']} cannot be read: {error}"
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
    try:
        request = urllib.request.Request(  # noqa: S310 the configuration allows http and https only
            settings["url"],
            data=body,
            headers=dict(headers(settings["key"], settings["id"], settings["timestamp"], body)),
            method="POST",
        )
        with opener.open(request, timeout=settings["timeout_s"]) as answer:
            answer.read(_ANSWER_CHARACTERS)
            return None
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_ANSWER_CHARACTERS).decode("utf-8", "replace").strip()
        said = without_address(settings["url"], said)
        return f"the server answered {error.code}{f': {said}' if said else ''}"
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return _no_answer(settings)
        return f"the server cannot be reached: {reason(error)}"
    except TimeoutError:
        return _no_answer(settings)
    except (OSError, HTTPException, ValueError) as error:
        return f"the server cannot be reached: {reason(error)}"


def _no_answer(settings: Mapping[str, Any]) -> str:
    return f"no answer within {settings['timeout_s']:g} s"


def main() -> int:
    """Post the message on the standard input, and print the reason why it was not taken."""
    settings = json.loads(sys.stdin.read())
    # The timeout of the connection limits each read and write; this one limits all of them.
    signal.signal(signal.SIGALRM, _take_too_long)
    signal.setitimer(signal.ITIMER_REAL, settings["timeout_s"])
    json.dump({"error": post(settings)}, sys.stdout)
    return 0


def _take_too_long(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
