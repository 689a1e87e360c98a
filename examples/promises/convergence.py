"""Promise 1: once the source is quiet, each replicated table equals its source, row for row."""

from __future__ import annotations

from replicator_testbed.playground import playground
from replicator_testbed.rig import is_fresh

with playground(__doc__) as play:
    writer = play.shop.writer()
    writer.start()
    try:
        play.say("The shop is written to while its snapshots are taken …")
        worker = play.rig.start()
        play.rig.wait_for_status(is_fresh, worker)
        play.say("All tables have their snapshots; now changes are streamed …")
        enough = writer.transactions + 200
        play.rig.wait_for_status(lambda _: writer.transactions >= enough, worker)
    finally:
        writer.stop()
    play.say(f"The source is quiet after {writer.transactions:,} transactions. Catching up …")
    play.rig.settle(worker)
    play.rig.stop(worker)
    play.compare()
