"""Text of a message for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from replicator.model.documents.alerts import AlertEvent, AlertMessage, AlertNotice

_TITLE_CHARACTERS: Final = 120


def title(message: AlertMessage) -> str:
    """Return the title, one line."""
    line = " ".join(f"[replicator] {message.summary}".split())
    return line if len(line) <= _TITLE_CHARACTERS else f"{line[: _TITLE_CHARACTERS - 1]}…"


def body(message: AlertMessage) -> str:
    """Return the text: all alerts, each with its next step."""
    lines = ["Held back during quiet hours:", ""] if message.is_digest else []
    for notice in message.alerts:
        lines += [*_lines(notice), ""]
    if message.left_out:
        lines.append(f"{message.left_out} more: replicator status {message.replicator}")
    return "\n".join(lines).strip() + "\n"


def _lines(notice: AlertNotice) -> Iterator[str]:
    since = f"{notice.since:%Y-%m-%d %H:%M:%S} UTC"
    match notice.event:
        case AlertEvent.RECOVERED:
            yield f"Recovered: {notice.message}"
            yield f"  from {since} to {notice.ended_at:%Y-%m-%d %H:%M:%S} UTC"
        case AlertEvent.REMINDER:
            yield f"Still: {notice.message}"
            yield f"  since {since}"
        case _:
            yield notice.message
            yield f"  since {since}"
    if notice.action:
        yield f"  → {notice.action}"
