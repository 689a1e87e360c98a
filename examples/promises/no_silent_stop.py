"""Promise 5: what cannot be replicated fails its table, with the reason and the next step; the others continue."""

from __future__ import annotations

from typing import Any

from replicator_testbed.playground import is_streaming, playground

TABLE = "products"


def of_table(status: dict[str, Any]) -> dict[str, Any]:
    """What the status says of the table."""
    return next(entry for entry in status["tables"] if entry["table"] == f"public.{TABLE}")


with playground(__doc__) as play:
    worker = play.rig.start()
    play.rig.wait_for_status(is_streaming, worker)
    play.database.execute(f"ALTER TABLE {TABLE} ALTER price TYPE text", f"UPDATE {TABLE} SET price = 'ask us'")
    status = play.rig.wait_for_status(lambda status: of_table(status)["error"] is not None, worker)
    error = of_table(status)["error"]
    play.say(
        f"  public.{TABLE}: {of_table(status)['state']}, {error['code']}\n  {error['message']}\n  {error['action']}"
    )
    if not error["action"]:
        play.fail("no next step")
    play.database.execute("UPDATE customers SET name = 'still replicated' WHERE id = 1")
    play.rig.stop(worker)
    play.rig.catch_up(check=1)  # not all is well, and the exit code says so
    play.compare(but=TABLE)
    play.say("A new snapshot of the table, as the status says …")
    play.rig.command("snapshot", play.rig.name, f"public.{TABLE}")
    play.rig.catch_up()
    play.compare()
