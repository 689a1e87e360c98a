"""Promise 2: the target shows only states of a table that the source committed, in that order.

Every transaction moves money from one account to another and counts itself, so each committed state has the same sum.
"""

from __future__ import annotations

import random
import threading

from replicator_testbed.playground import Playground, playground
from replicator_testbed.rig import is_fresh

ACCOUNTS, BALANCE = 100, 1_000


def transfer(play: Playground, done: threading.Event) -> None:
    """Move money until told to end."""
    draw = random.Random(1)
    with play.database.connect() as connection:
        while not done.wait(0.005):
            giver, taker = draw.sample(range(1, ACCOUNTS + 1), 2)
            with connection.transaction():
                connection.execute("UPDATE accounts SET balance = balance - 10 WHERE id = %s", (giver,))
                connection.execute("UPDATE accounts SET balance = balance + 10 WHERE id = %s", (taker,))
                connection.execute("UPDATE accounts SET transfers = transfers + 1 WHERE id = 0")


with playground(__doc__) as play:
    play.database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, transfers int NOT NULL DEFAULT 0)",
        "INSERT INTO accounts VALUES (0, 0)",
        f"INSERT INTO accounts SELECT i, {BALANCE} FROM generate_series(1, {ACCOUNTS}) i",
    )
    play.rig.tables = ["accounts"]
    play.rig.write_yaml()
    done = threading.Event()
    writer = threading.Thread(target=transfer, args=(play, done), name="transfers")
    writer.start()
    try:
        worker = play.rig.start()
        play.rig.wait_for_status(is_fresh, worker)
        states: list[int] = []
        while len(set(states)) < 10:
            rows = play.target_tables.rows(play.database.namespace, "accounts", ["id", "balance", "transfers"])
            if (total := sum(balance for _, balance, _ in rows)) != ACCOUNTS * BALANCE:
                play.fail(
                    f"the target shows {len(rows)} accounts with {total} in all, which the source never committed"
                )
            states += [transfers for id_, _, transfers in rows if id_ == 0]
    finally:
        done.set()
        writer.join()
    if states != sorted(states):
        play.fail(f"the target went back: {states}")
    play.rig.stop(worker)
    play.say(
        f"  {len(states)} reads of the target saw {len(set(states))} states, each whole, in the order of the source"
    )
