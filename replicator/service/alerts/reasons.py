"""Reasons why a server was not reached or did not take a message, without any part of its address, which may be a token.

Libraries quote addresses in their messages in many ways. So only the phrases listed here, and numbers of protocols, are passed on.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

_DEPTH_MAX: Final = 10
_SHORTEST: Final = 3
_KNOWN: Final = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "No address associated with hostname",
    "Connection refused",
    "Connection reset",
    "Connection aborted",
    "No route to host",
    "Network is unreachable",
    "Broken pipe",
    "timed out",
    "certificate verify failed",
    "certificate has expired",
    "Hostname mismatch",
    "IP address mismatch",
    "self-signed certificate",
    "unable to get local issuer certificate",
    "WRONG_VERSION_NUMBER",
    "Remote end closed connection without response",
    "SMTP AUTH extension not supported",
    "STARTTLS extension not supported",
    "Authentication failed",
    "Unauthorized",
    "Forbidden",
    "Not Found",
    "Too Many Requests",
)
_NUMBER: Final = re.compile(
    r"\berror=(\d{3})\b|\((\d{3}), b|\b(\d{3}) (?:Client|Server) Error\b|\bstatus(?: code)?[ =:]+(\d{3})\b"
)


def known_facts(text: str) -> str:
    """Return the parts of a library's message that are known to hold no address; empty if there are none."""
    found = [fact for fact in _KNOWN if fact.lower() in text.lower()]
    numbers = [next(filter(None, match.groups())) for match in _NUMBER.finditer(text)]
    return ", ".join(dict.fromkeys([*found, *(f"status {number}" for number in numbers)]))


def reason(error: BaseException) -> str:
    """Return the reason why a network call failed: the facts of the error and of its causes, or its class."""
    facts = [fact for one in _family(error) if (fact := _fact(one))]
    return ", ".join(dict.fromkeys(facts)) or type(error).__name__


def without_address(url: str, text: str) -> str:
    """Return a server's answer, unless it repeats a part of the address it was asked at: then an empty text."""
    split = urlsplit(url)
    parts = {split.hostname or "", split.username or "", split.password or "", split.query, split.fragment}
    parts |= {*split.path.split("/"), *re.split(r"[&=;]", split.query)}
    spellings = {spelling.lower() for part in parts for spelling in (part, unquote(part)) if len(spelling) >= _SHORTEST}
    return "" if any(spelling in text.lower() for spelling in spellings) else text


def _family(error: BaseException) -> Iterator[BaseException]:
    waiting: list[tuple[BaseException, int]] = [(error, 0)]
    seen: set[int] = set()
    while waiting:
        one, depth = waiting.pop(0)
        if id(one) in seen or depth > _DEPTH_MAX:
            continue
        seen.add(id(one))
        yield one
        more = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        waiting += [(other, depth + 1) for other in more if isinstance(other, BaseException)]


def _fact(error: BaseException) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return f"status {status}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return known_facts(f"certificate verify failed {error.verify_message}")
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return known_facts(error.strerror) or (error.reason or "" if isinstance(error, ssl.SSLError) else "")
    return known_facts(str(error))
