"""Records the freshness of the replicators, minute by minute, while the server runs, for the dashboard's charts."""

from __future__ import annotations

import threading
from typing import Final

from replicator.model.documents.status import ReplicatorStatus
from replicator.model.errors import ReplicatorError
from replicator.observability import get_logger
from replicator.service.status.assemble import statuses
from replicator.state.points import Freshness
from replicator.web.access import Access

EVERY_S: Final = 60.0
_log = get_logger(__name__)


def freshness_of(one: ReplicatorStatus) -> Freshness:
    """Return the freshness that a status reports."""
    return Freshness(worst_s=one.freshness_s, late=sum(row.is_objective_met is False for row in one.tables))


class Recorder:
    """A thread that records. While the state store is unavailable there are no points; the chart shows the gap."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, once a record that has begun is done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def record(self) -> None:
        """Record the current freshness."""
        store = self._access.store
        store.points.record({one.name: freshness_of(one) for one in statuses(store)})

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.record()
            except ReplicatorError as error:
                _log.warning("points_not_recorded", code=error.code, error=str(error))
            except Exception:  # noqa: BLE001 - the end of this thread would go unnoticed
                _log.exception("recorder_failed")
            self._stop.wait(EVERY_S)
