"""`replicator.service.watching [NAME…]`: the watching process, which runs separately from replicators.

It sends alerts and lineage. Nothing that moves data waits for it, or depends on its end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection

from replicator.model.errors import ReplicatorError
from replicator.observability import configure_logging, get_logger
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.watch_process import LOOK_S, LOOK_VARIABLE, STOP
from replicator.service.alerts.settings import has_alerts
from replicator.service.alerts.watcher import AlertWatcher
from replicator.service.lineage.watcher import LineageWatcher, has_lineage
from replicator.state import holder_id
from replicator.state.store import StateStore

_NICENESS = 10
_log = get_logger(__name__)


def watch(store: StateStore, names: Collection[str] | None, stop: threading.Event) -> None:
    """Watch replicators, or all, until `stop`. While the state store is unavailable, it is asked again."""
    every_s = float(os.environ.get(LOOK_VARIABLE, LOOK_S))
    alerts = AlertWatcher(store, holder_id(), names)
    lineage = LineageWatcher(store, holder_id(), Registry.discover(), names)
    try:
        while not stop.is_set():
            try:
                alerts.look()
                lineage.look()
            except ReplicatorError as error:
                _log.warning("watch_failed", code=error.code, error=str(error))
            stop.wait(every_s)
    finally:
        try:
            alerts.close()
            lineage.close()
        except ReplicatorError as error:
            _log.warning("watch_not_released", code=error.code, error=str(error))


def is_watched(store: StateStore, names: Collection[str] = ()) -> Callable[[], bool]:
    """Return a function that tells whether one of these replicators, or of all, has anything to watch; its last answer without a store."""
    last = False

    def has_any() -> bool:
        nonlocal last
        try:
            records = store.replicators()
        except ReplicatorError as error:
            _log.info("watches_not_read", code=error.code)
            return last
        configs = [record.config for record in records if not names or record.name in names]
        last = any(has_alerts(config) or has_lineage(config) for config in configs)
        return last

    return has_any


def main(names: list[str]) -> int:
    """Watch until the process that started this one says stop, or ends."""
    os.nice(_NICENESS)
    configure_logging(format="json", stream=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_obey, args=(stop,), name="leash", daemon=True).start()
    try:
        store = StateStore(Home.from_environment().state_url)
    except ReplicatorError as error:
        _log.warning("watch_failed", code=error.code, error=str(error))
        return 1
    watch(store, names or None, stop)
    store.close()
    return 0


def _obey(stop: threading.Event) -> None:
    """Stop when told; end at once when the pipe closes, because the process that started this one has ended."""
    for line in sys.stdin:
        if line.strip() == STOP:
            stop.set()
    if not stop.is_set():
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
