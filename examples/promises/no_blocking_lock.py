"""Promise 4: no lock that blocks readers or writers of the source; a waiting ALTER TABLE goes first."""

from __future__ import annotations

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.playground import playground
from replicator_testbed.rig import is_fresh

# What our sessions hold on the shop's tables. ACCESS SHARE, the lock of every SELECT, only conflicts with ACCESS EXCLUSIVE.
HELD = """
SELECT DISTINCT l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND c.relnamespace = 'public'::regnamespace AND a.application_name LIKE 'replicator%'
"""
HARMLESS = {"AccessShareLock", "ShareUpdateExclusiveLock"}

with playground(__doc__) as play:
    writer = play.shop.writer()
    writer.start()
    seen: set[str] = set()
    exclusive = 0
    try:
        worker = play.rig.start()
        with play.database.connect(autocommit=True) as administrator:
            administrator.execute("SET lock_timeout = '5s'")

            def is_done_without_a_block(status: ReplicatorStatus) -> bool:
                global exclusive  # noqa: PLW0603 - a script's counter
                seen.update(mode for (mode,) in administrator.execute(HELD).fetchall())
                with administrator.transaction():  # fails after 5 s if one of our reads does not give way
                    administrator.execute("LOCK TABLE customers IN ACCESS EXCLUSIVE MODE")
                exclusive += 1
                return is_fresh(status)

            play.rig.wait_for_status(is_done_without_a_block, worker)
    finally:
        writer.stop()
    if more := seen - HARMLESS:
        play.fail(f"our sessions held {more}")
    play.say(f"  {exclusive} exclusive locks were granted meanwhile; our sessions held {sorted(seen)} at most")
    play.rig.settle(worker)
    play.rig.stop(worker)
    play.compare()
