"""What readers of the status cost: processor time of `replicator serve --listen` under a steady load, with and without them.

A reader does what a dashboard does: it asks `GET /api/v1/replicators/NAME` every five seconds, with the ETag of its last answer. One
`serve` runs the replicator and answers. Stretches with and without readers follow each other, in pairs, and the order turns with each
pair. What is compared is processor time per applied change: of the processes of `serve` (supervisor, capture, apply and the server of the
API). That of Spark's Java process is not in it: it writes a checkpoint once in a hundred batches, which falls into some stretches only,
and with it the share of the readers would be smaller.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks import data
from benchmarks.measure import busy_cores, say
from benchmarks.product import Product, serving
from benchmarks.report import Line, Report, at_most
from benchmarks.scale import Scale
from benchmarks.steady import Load, make_tables, writing
from replicator.state.store import StateStore
from replicator_testing.waiting import wait_until

READERS: Final = 100
EVERY_S: Final = 5.0
PAIRS: Final = 5
GOAL_RATIO: Final = 1.05
_RATE: Final = 1000
_STRETCH_S: Final = 60.0
_TIMEOUT_S: Final = 600.0
_ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of the load.

    Attributes:
        readers: How many there were.
        changes: Applied in it.
        seconds: How long it took.
        all_s: Processor time of all processes but Spark's.
        web_s: The part of the server of the API.
        answers: Given to readers in it.
        not_modified: Those of them without a body.
    """

    readers: int
    changes: int
    seconds: float
    all_s: float
    web_s: float
    answers: int
    not_modified: int

    @property
    def per_1000(self) -> float:
        """Processor time per 1,000 applied changes."""
        return 1000 * self.all_s / self.changes


@dataclass(slots=True, kw_only=True)
class _Readers:
    """Dashboards, each with a connection of its own that it opens again when the server has closed it."""

    port: int
    path: str
    many: int
    answers: int = 0
    not_modified: int = 0
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read until the block ends."""
        threads = [threading.Thread(target=self._read, args=(number,)) for number in range(self.many)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.errors, self.errors[:3]

    def counts(self) -> tuple[int, int]:
        """Answers, and those of them without a body."""
        with self._lock:
            return self.answers, self.not_modified

    def _read(self, number: int) -> None:
        # Spread evenly, as those of many people are.
        pause, tag = EVERY_S * number / self.many, ""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        while not self._stop.wait(pause):
            began = time.monotonic()
            try:
                status, tag = self._ask(connection, tag)
            except (OSError, http.client.HTTPException):
                # The server closes a connection that is not used for as long as a reader pauses.
                connection.close()
                try:
                    status, tag = self._ask(connection, tag)
                except (OSError, http.client.HTTPException) as error:
                    self.errors.append(repr(error))
                    return
            with self._lock:
                self.answers += 1
                self.not_modified += status == http.HTTPStatus.NOT_MODIFIED
            pause = max(0.0, EVERY_S - (time.monotonic() - began))
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, tag: str) -> tuple[int, str]:
        connection.request("GET", self.path, headers={"If-None-Match": tag} if tag else {})
        response = connection.getresponse()
        response.read()
        if response.status not in {http.HTTPStatus.OK, http.HTTPStatus.NOT_MODIFIED}:
            raise http.client.HTTPException(f"status {response.status}")
        return response.status, response.headers["etag"]


def run(scale: Scale) -> Report:
    """One table, as in `freshness`."""
    pairs, stretch_s, warm_s = (1, 10.0, 10.0) if scale.is_quick else (PAIRS, _STRETCH_S, 60.0)
    # A stretch ends with a batch, so it may take a little longer.
    seconds = round(warm_s + 2 * pairs * (stretch_s + 15))
    load = Load(tables=1, held_rows=scale.rows // 10, rate=_RATE, warm_s=round(warm_s), measured_s=seconds)
    found: list[tuple[Stretch, Stretch]] = []
    busy_before = busy_cores()
    with data.server() as server, server.database("bench") as database:
        make_tables(database, load)
        with serving(database, engine="auto") as (product, port):
            say("the first snapshot")
            product.wait_until_applied(load.names, lambda r: r.rows >= load.held_rows, timeout_s=_TIMEOUT_S)
            say(f"{_RATE} transactions a second; {warm_s:.0f} s to warm up")
            with writing(database, load) as writer, _Watch.of(product) as watch:
                writer.join(timeout=warm_s)
                for number in range(pairs):
                    order = (0, READERS) if number % 2 == 0 else (READERS, 0)
                    one, other = (_stretch(watch, port, readers, stretch_s) for readers in order)
                    found.append((one, other) if number % 2 == 0 else (other, one))
                    say(f"  pair {number + 1}: {_spell(found[-1][0])} without, {_spell(found[-1][1])} with readers")
                assert writer.is_alive(), "the load lasted to the end"
    return _report(found, max(busy_before, busy_cores()))


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Looks at a product from outside."""

    product: Product
    store: StateStore

    @classmethod
    @contextmanager
    def of(cls, product: Product) -> Iterator[_Watch]:
        """With the state store open."""
        store = product.store()
        try:
            yield cls(product=product, store=store)
        finally:
            store.close()

    def at_a_batch(self) -> tuple[int, float, float, float]:
        """Once a batch has been applied: changes applied until then, the time, and processor seconds of all and of the API's server."""
        before = self._applied()
        wait_until(lambda: self._applied() > before, "a batch is applied", timeout_s=_TIMEOUT_S, every_s=0.02)
        return (self._applied(), time.monotonic(), *self._processor_seconds())

    def _applied(self) -> int:
        return sum(record.rows for record in self.store.applied(self.product.rig.name).values())

    def _processor_seconds(self) -> tuple[float, float]:
        root = psutil.Process(self.product.process.pid)
        total = web = 0.0
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended: its parent counts it
                command = process.cmdline()
                if command and Path(command[0]).name == "java":
                    continue
                times = process.cpu_times()
                # With those of its children that have ended.
                used = times.user + times.system + times.children_user + times.children_system
                total += used
                web += used if "replicator.web" in command else 0.0
        return total, web


def _stretch(watch: _Watch, port: int, many: int, seconds: float) -> Stretch:
    readers = _Readers(port=port, path=f"/api/v1/replicators/{watch.product.rig.name}", many=many)
    with readers.running():
        # All have begun.
        wait_until(lambda: readers.errors or readers.counts()[0] >= many, "every reader has an answer", timeout_s=120)
        answers, not_modified = readers.counts()
        changes, began, all_s, web_s = watch.at_a_batch()
        threading.Event().wait(seconds)
        changes_then, ended, all_then, web_then = watch.at_a_batch()
        answers_then, not_modified_then = readers.counts()
    return Stretch(
        readers=many,
        changes=changes_then - changes,
        seconds=ended - began,
        all_s=all_then - all_s,
        web_s=web_then - web_s,
        answers=answers_then - answers,
        not_modified=not_modified_then - not_modified,
    )


def _spell(stretch: Stretch) -> str:
    return f"{stretch.per_1000:.3f} CPU-s per 1,000 changes ({stretch.changes:,} changes, {stretch.answers} answers)"


def _report(found: Sequence[tuple[Stretch, Stretch]], busy: float) -> Report:
    without, with_ = ([pair[side].per_1000 for pair in found] for side in (0, 1))
    ratios = [pair[1].per_1000 / pair[0].per_1000 for pair in found]
    ratio = statistics.median(ratios)
    per_answer = statistics.median((pair[1].web_s - pair[0].web_s) / pair[1].answers for pair in found)
    lines = [
        Line(
            what=f"processor time per 1,000 applied changes with {READERS} readers that ask every {EVERY_S:.0f} s"
            f" (median of {len(found)} pairs, each a minute with and one without)",
            figure=f"{statistics.median(with_):.3f} s",
            against=f"without: {statistics.median(without):.3f} s",
            ratio=ratio,
            goal=f"≤ {GOAL_RATIO}x",
            is_met=ratio <= GOAL_RATIO,
        ),
        Line(what="the ratios of the pairs", figure=", ".join(f"{one:.3f}" for one in sorted(ratios))),
        at_most("processor time of the API's server per answer", 1000 * per_answer, None, "ms"),
        at_most("cores that others used before or after", busy, None, "cores"),
    ]
    return Report(name="readers", lines=lines, raw={"pairs": [[asdict(one) for one in pair] for pair in found]})
