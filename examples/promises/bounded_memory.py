"""Promise 6: memory is bounded, whatever the size of a table, a transaction or the backlog."""

from __future__ import annotations

from subprocess import Popen

import psutil

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.playground import Playground, playground
from replicator_testbed.rig import is_fresh

ROWS, BYTES = 200_000, 1_000
MIB = 1 << 20


def capture_bytes(worker: int) -> int:
    """Memory of the process that reads the source, without what it shares."""
    [capture] = [child for child in psutil.Process(worker).children(recursive=True) if "capture" in child.cmdline()]
    return int(capture.memory_full_info().uss)


def insert(play: Playground, worker: Popen[str], first: int, count: int) -> int:
    """Commit so many rows at once; return the most memory that capture needed until they were in the journal."""
    play.database.execute(
        f"INSERT INTO events SELECT i, left(repeat(md5(i::text), 32), {BYTES}) FROM generate_series({first}, {first + count - 1}) i"
    )
    peaks = [0]

    def is_captured(status: ReplicatorStatus) -> bool:
        peaks.append(capture_bytes(worker.pid))
        return status.journal.last_sequence_num >= first + count - 1

    play.rig.wait_for_status(is_captured, worker)
    play.say(f"  a transaction of {count * BYTES // MIB} MiB: capture needed {max(peaks) // MIB} MiB")
    return max(peaks)


with playground(__doc__) as play:
    play.database.execute("CREATE TABLE events (id int PRIMARY KEY, body text NOT NULL)")
    play.rig.tables = ["events"]
    play.rig.write_yaml()
    worker = play.rig.start()
    play.rig.wait_for_status(is_fresh, worker)
    once = insert(play, worker, 1, ROWS)
    thrice = insert(play, worker, ROWS + 1, 3 * ROWS)
    play.rig.stop(worker)
    if thrice > 1.5 * once:
        play.fail("capture's memory grows with the transaction")
