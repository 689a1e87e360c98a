"""`replicator verify` of a table that is so large that it is compared range by range, from real databases to Delta."""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

from replicator.model.schema import TableId
from replicator.state.store import StateStore
from replicator_testbed.background import in_background
from replicator_testbed.processes import kill_all
from replicator_testbed.rig import Rig, is_streaming
from replicator_testing.waiting import wait_until
from tests.faults.test_verify import Somebody, somebody

__all__ = ["somebody"]

ROWS = 250_000
# Ids are ten apart, so ranges of 100,000 rows end at these.
BORDERS = (1_000_000, 2_000_000)
ENDS = (-(2**63), 2**63 - 1)
FILL = {
    "postgresql": f"INSERT INTO events SELECT n * 10, 'x' FROM generate_series(1, {ROWS}) n",
    "mariadb": f"INSERT INTO events SELECT seq * 10, 'x' FROM seq_1_to_{ROWS}",
    # The model has no rows of numbers: one statement doubles them again and again.
    "sqlserver": "INSERT INTO events SELECT id + {step}, 'x' FROM events WHERE id + {step} <= {last}",
}


def fill(rig: Rig, kind: str) -> None:
    """Make the table with its rows."""
    rig.database.execute("CREATE TABLE events (id bigint NOT NULL PRIMARY KEY, note varchar(20))")
    if kind != "sqlserver":
        rig.database.execute(FILL[kind])
        return
    doubled = (FILL[kind].format(step=10 * 2**n, last=10 * ROWS) for n in range(ROWS.bit_length()))
    rig.database.execute("INSERT INTO events VALUES (10, 'x')", *doubled)
    # Captured from here on: the rows come by the snapshot.
    rig.database.execute(
        "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'events', @role_name = NULL, @supports_net_changes = 0"
    )


def verified(rig: Rig, *arguments: str, check: int) -> Any:
    """The document of `verify --json` of the table."""
    done = rig.command("verify", rig.name, rig.full_name("events"), *arguments, "--json", check=check)
    [table] = json.loads(done.stdout)["tables"]
    return table


def moving(rig: Rig) -> AbstractContextManager[None]:
    """Rows move over the ends of ranges and back, as fast as the database takes it."""

    def write(stop: threading.Event) -> None:
        while not stop.is_set():
            for border in BORDERS:
                rig.database.execute(
                    f"UPDATE events SET id = {border + 5} WHERE id = {border - 100}",
                    f"UPDATE events SET id = {border - 100} WHERE id = {border + 5}",
                    f"UPDATE events SET note = 'y' WHERE id = {border}",
                )

    return in_background(write)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("postgresql", "duckdb"),
        *(pytest.param(kind, "delta", marks=pytest.mark.matrix) for kind in ("postgresql", "mariadb", "sqlserver")),
    ],
)
def test_a_large_table_is_verified_range_by_range(rig: Rig, somebody: Somebody, kind: str) -> None:
    rig.may_alarm = True
    fill(rig, kind)
    rig.tables, rig.extra = ("events",), rig.extra.replace("chunk_rows: 1000", "chunk_rows: 50000")
    rig.write_yaml()
    process = rig.start()
    rig.wait_for_status(is_streaming, process)

    equal = verified(rig, check=0)
    assert (equal["ranges"], equal["ranges_kept"], equal["rows_source"], equal["rows_target"]) == (3, 0, ROWS, ROWS)
    status = rig.table("events").verify
    assert (status.ranges_proven, status.ranges_total, status.rows) == (3, 3, ROWS)

    with moving(rig):
        # The rows that move are compared again and again; none of them ever differs.
        for options in ((), ("--rows-per-second", "1000000")):
            found = verified(rig, *options, check=0)
            assert (found["result"], found["ranges"]) == ("equal", 3)

    quiet = verified(rig, check=0)
    assert (quiet["rows_source"], quiet["rows_target"]) == (ROWS, ROWS)

    # A command that is killed behind its first range.
    store = StateStore(f"sqlite:///{rig.home / 'state.db'}")
    table = TableId(rig.database.namespace, "events")
    before = store.verifications.ranges(rig.name, table)
    slow = rig.start("verify", rig.name, rig.full_name("events"), "--rows-per-second", "10000")

    def later() -> list[Any]:
        return [one for one in store.verifications.ranges(rig.name, table) if one not in before]

    wait_until(later, "a range is proven")
    kill_all(slow)
    store.close()
    resumed = verified(rig, "--resume", check=0)
    assert (resumed["ranges"], resumed["ranges_kept"], resumed["rows_source"]) == (3, 3, ROWS)

    lost, changed = (10, 500_000), (*BORDERS, *(border + 10 for border in BORDERS), ROWS * 10)
    extra = (*ENDS, -5, 5, BORDERS[0] + 5, BORDERS[1] - 5, ROWS * 10 + 1, 10**15)
    somebody.changes("events", f"DELETE FROM {{table}} WHERE id IN {lost}")
    somebody.changes("events", f"UPDATE {{table}} SET note = 'other' WHERE id IN {changed}")
    values = ", ".join(f"({id_})" for id_ in extra)
    rest = "t.* EXCEPT (id) FROM {table} AS t WHERE t.id = 20"
    somebody.changes(
        "events", f"INSERT INTO {{table}} SELECT v.new, r.* FROM (SELECT {rest}) AS r, (VALUES {values}) AS v(new)"
    )
    found = verified(rig, check=3)
    assert found["counts"] == {"missing": len(lost), "extra": len(extra), "different": len(changed)}
    told = {(int(one["key"]["id"]), one["kind"]) for one in found["differences"]}
    kinds = {"missing": lost, "extra": extra, "different": changed}
    assert told == {(id_, kind_) for kind_, ids in kinds.items() for id_ in ids}
    assert verified(rig, "--repair", check=0)["repaired"] == found["counts"]
    again = verified(rig, check=0)
    assert (again["rows_source"], again["ranges"]) == (ROWS, 3)

    rig.database.execute(*(f"INSERT INTO events VALUES ({id_}, 'end')" for id_ in ENDS))
    rig.settle(process)
    assert verified(rig, check=0)["rows_target"] == ROWS + 2
    somebody.changes("events", f"DELETE FROM {{table}} WHERE id IN {ENDS}")
    assert verified(rig, check=3)["counts"] == {"missing": 2, "extra": 0, "different": 0}
    assert verified(rig, "--repair", check=0)["repaired"]["missing"] == 2
    assert verified(rig, check=0)["rows_target"] == ROWS + 2
    assert rig.stop(process) == 0, rig.output()
