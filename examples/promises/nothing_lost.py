"""Promise 3: nothing is lost and nothing is doubled through `kill -9`, in tables with and without a primary key."""

from __future__ import annotations

import signal
import time

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.playground import playground
from replicator_testbed.rig import is_fresh


def reached(status: ReplicatorStatus | None) -> int:
    """The last sequence number that is durable in the journal; 0 before the first."""
    return max(0, status.journal.last_sequence_num) if status else 0


with playground(__doc__) as play:
    writer = play.shop.writer()
    writer.start()
    try:
        for number in range(3):
            worker = play.rig.start()
            before = reached(play.rig.status())
            play.rig.wait_for_status(lambda status, before=before: reached(status) > before, worker)
            time.sleep(number)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            play.say(f"  kill -9 at sequence number {reached(play.rig.status()):,}")
        worker = play.rig.start()
        play.rig.wait_for_status(is_fresh, worker)
    finally:
        writer.stop()
    play.rig.settle(worker)
    play.rig.stop(worker)
    play.compare()
