"""The status of running replicators: redrawn in a terminal, in plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from replicator.cli import show
from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator.model.errors import StateUnavailableError
from replicator.service.status import assemble as status_service
from replicator.service.status.snapshots import Meter, News
from replicator.state.store import StateStore

_LIVE_S: Final = 1.0
_PLAIN_S: Final = 2.0
_QUIET_S: Final = 30.0
"""Pause between lines if no snapshot runs and the output is no terminal."""
WATCH_S: Final = 2.0
"""Seconds between two pictures of `status --watch`."""

_MOVING: Final = (TableState.PENDING, TableState.SNAPSHOT)

_MILESTONES: Final[Mapping[str, str]] = {
    "log_opened": "capture is running: it reads the source's log.",
    "apply_started": "apply is running: it writes to the target.",
    "spark_starting": "Spark is starting. This can take a minute.",
    "spark_jvm_started": "Spark's Java process is up, with its packages. It opens its session.",
    "spark_started": "Spark is running.",
}
"""Log events of workers that say that a part is up, in words."""


class ProgressDisplay:
    """Display of `run`: a live status in a terminal, elsewhere the workers' log lines. Both get a line when a part is up."""

    def __init__(self, store: StateStore, name: str) -> None:
        self._store, self._name = store, name
        self._is_live = sys.stderr.isatty()
        self._live = Live(console=show.terminal(stderr=True), auto_refresh=False, transient=False)
        self._meter, self._news = Meter(), News()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._is_live:
            self._live.stop()

    def log_line(self, line: str) -> None:
        """Take a line of a worker's log."""
        if not self._is_live:
            click.echo(line, err=True)
        if text := _milestone(line):
            self.say(text)

    def say(self, text: str) -> None:
        """Print a plain line, above the live status if there is one. Thread-safe."""
        if self._is_live:
            self._live.console.print(Text(f"{self._name}: {text}"))
        else:
            click.echo(f"{self._name}: {text}", err=True)

    def _draw(self) -> None:
        pause_s = _LIVE_S
        while True:
            # While the store is unavailable, the last status stays; the workers log what they do about it.
            with suppress(StateUnavailableError):
                if record := self._store.replicator(self._name):
                    pause_s = self._show(status_service.status(self._store, record))
            if self._done.wait(pause_s):
                return

    def _show(self, document: ReplicatorStatus) -> float:
        """Show a status; return the seconds until the next one is worth a look."""
        now = time.monotonic()
        paces = self._meter.observe(document, now)
        if self._is_live:
            self._live.update(show.render(document, paces), refresh=True)
            return _LIVE_S
        for line in self._news.lines(document, paces, now):
            self.say(line)
        is_quiet = bool(document.tables) and all(table.state not in _MOVING for table in document.tables)
        return _QUIET_S if is_quiet else _PLAIN_S


def watch(
    look: Callable[[], Sequence[ReplicatorStatus]],
    stop: threading.Event,
    *,
    every_s: float = WATCH_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show what `look` returns repeatedly until `stop`: in a terminal in one picture, elsewhere one below the other."""
    is_live = sys.stdout.isatty()
    meters: dict[str, Meter] = {}
    live = Live(console=show.terminal(), auto_refresh=False)
    with live if is_live else nullcontext():
        while True:
            with suppress(StateUnavailableError):  # the last picture stays
                documents, now = look(), clock()
                paces = {one.uuid: meters.setdefault(one.uuid, Meter()).observe(one, now) for one in documents}
                if is_live:
                    pictures: list[RenderableType] = [show.render(one, paces[one.uuid]) for one in documents]
                    live.update(Group(*(pictures or [Text(show.NOTHING_STORED)])), refresh=True)
                else:
                    for one in documents:
                        show.status(one)
                    if not documents:
                        click.echo(show.NOTHING_STORED, err=True)
            if stop.wait(every_s):
                return


def _milestone(line: str) -> str | None:
    """Return a line of a worker's log about its start, in words; None for other lines."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    if event.get("event") == "worker_started":
        return f"the process of {event.get('role')} is up."
    return _MILESTONES.get(str(event.get("event")))
