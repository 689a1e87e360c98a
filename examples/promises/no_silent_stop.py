"""Promise 5: what cannot be replicated fails its table, with the reason and the next step; the others continue."""

from __future__ import annotations

from replicator_testbed.playground import playground
from replicator_testbed.rig import is_fresh

TABLE = "products"


with playground(__doc__) as play:
    worker = play.rig.start()
    play.rig.wait_for_status(is_fresh, worker)
    play.database.execute(f"ALTER TABLE {TABLE} ALTER price TYPE text", f"UPDATE {TABLE} SET price = 'ask us'")
    play.rig.wait_for_status(lambda _: play.rig.table(TABLE).error is not None, worker)
    table = play.rig.table(TABLE)
    assert table.error is not None
    play.say(f"  {table.table}: {table.state}, {table.error.code}\n  {table.error.message}\n  {table.error.action}")
    if not table.error.action:
        play.fail("no next step")
    play.database.execute("UPDATE customers SET name = 'still replicated' WHERE id = 1")
    play.rig.stop(worker)
    play.rig.catch_up(check=1)  # not all is well, and the exit code says so
    play.compare(but=TABLE)
    play.say("A new snapshot of the table, as the status says …")
    play.rig.command("snapshot", play.rig.name, f"public.{TABLE}")
    play.rig.catch_up()
    play.compare()
