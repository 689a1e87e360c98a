"""Upkeep: when it is due, that it changes no row, and that it gives way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from replicator_target_delta.config import MaintenanceConfig
from replicator_target_delta.maintenance import PATIENCE, Condition, Turns, Upkeep, due, statement, takes_turn

NOW = datetime(2026, 1, 10, tzinfo=UTC)
CONFIG = MaintenanceConfig(small_files_max=10)


def condition(**changes):
    values = {"files": 1, "small_files": 1, "rows": 100, "deleted_rows": 0, "last_vacuum": NOW}
    return Condition(**{**values, **changes})


def test_the_most_urgent_comes_first():
    assert due(condition(), CONFIG, NOW) is None
    assert due(condition(last_vacuum=NOW - timedelta(days=1)), CONFIG, NOW) is Upkeep.VACUUM
    assert due(condition(small_files=11, last_vacuum=NOW - timedelta(days=9)), CONFIG, NOW) is Upkeep.COMPACT
    assert due(condition(small_files=11, deleted_rows=21), CONFIG, NOW) is Upkeep.PURGE
    assert due(condition(small_files=11), MaintenanceConfig(enabled=False), NOW) is None


def test_vacuum_looks_at_the_folder_and_keeps_what_the_retention_says():
    assert statement(Upkeep.VACUUM, "/x", timedelta(days=7)) == "VACUUM delta.`/x` RETAIN 168 HOURS"


def test_upkeep_takes_no_turn_while_a_merge_has_it():
    turns = Turns()
    with turns.writing(), turns.upkeep(None, "tag") as has_turn:
        assert not has_turn


def test_vacuum_runs_beside_a_merge_unless_its_retention_is_short(new_lake):
    assert takes_turn(Upkeep.COMPACT, timedelta(days=7))
    assert not takes_turn(Upkeep.VACUUM, timedelta(days=1))
    lake = new_lake(maintenance={"vacuum_retention": "5m"})
    lake.target._last_vacuum = lambda _place, now: now - timedelta(days=2)
    with lake.target._place(lake.table.table).turns.writing():
        assert lake.target.maintain(lake.table)["outcome"] == "merge_in_progress"
    assert lake.target.maintain(lake.table)["outcome"] == "done"


class Session:
    """Counts how often its jobs are cancelled."""

    def __init__(self):
        self.cancelled = 0

    def addTag(self, tag):  # noqa: N802 - Spark's name
        pass

    removeTag = addTag  # noqa: N815

    def interruptTag(self, tag):  # noqa: N802
        self.cancelled += 1


def test_merge_cuts_upkeep_short_but_not_for_ever():
    turns, session = Turns(), Session()
    for _ in range(PATIENCE + 2):
        with turns.upkeep(session, "tag") as has_turn:
            assert has_turn
            turns._interrupt()
    assert session.cancelled == PATIENCE
    turns.done()
    with turns.upkeep(session, "tag"):
        turns._interrupt()
    assert session.cancelled == PATIENCE + 1


def test_upkeep_leaves_every_row_where_it_was(new_lake):
    small = {"small_files_max": 2, "vacuum_retention": "0s", "vacuum_every": "1h"}
    lake = new_lake(maintenance=small)
    lake.apply(*[lake.insert(id=i, name="a", note="x") for i in range(20)])
    lake.apply(*[lake.delete(id=i) for i in range(10)])
    rows = lake.rows()
    orphan = lake.path / "part-of-a-killed-merge.parquet"
    orphan.write_bytes(b"")
    report = lake.target.maintain(lake.table)
    assert (report["upkeep"], report["outcome"]) == ("purge", "done")
    assert lake.rows() == rows
    for i in range(30, 33):
        lake.apply(lake.insert(id=i, name="a", note="x"), is_append=True)
    report = lake.target.maintain(lake.table)
    assert (report["upkeep"], report["outcome"]) == ("compact", "done")
    assert lake.target.maintain(lake.table) is None
    lake.target._last_vacuum = lambda _place, now: now - timedelta(hours=2)
    report = lake.target.maintain(lake.table)
    assert (report["upkeep"], report["outcome"]) == ("vacuum", "done")
    assert not orphan.exists()
    assert len(lake.rows()) == 13
    lake.apply(lake.update(id=15, name="still writable", note=None))
    assert (15, "still writable", None) in lake.rows()
