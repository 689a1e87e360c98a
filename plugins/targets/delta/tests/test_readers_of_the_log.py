"""delta-rs and DuckDB find tables of every name, show what the lane wrote of their history, and read older versions. No Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest
from deltalake import DeltaTable, QueryBuilder
from duckdb_extensions import import_extension

from plugins.targets.delta.tests.test_lane import ITEMS, Bare
from replicator.model.schema import TableId
from replicator.plugins.kit.lake import joining
from replicator_target_delta.engine import CHECKPOINT_INTERVAL
from replicator_target_delta.lane.creation import first_version
from replicator_target_delta.ledger import Entry
from replicator_target_delta.log import store as logstore
from replicator_target_delta.log.table import read_log
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.storage import Storage
from replicator_testbed.delta import read_by_duckdb, read_delta, rows_of
from replicator_testbed.present import present
from replicator_testing.batches import delete, insert, update

ODD = TableId("caf\u00e9 d'\u00e9t\u00e9", "order items.\u65e5\u672c_x20_%41")
PATHS = [
    *("caf\u00e9", "cafe\u0301", "\u65e5\u672c\u8a9e\u8868", "\u0416\u0443\u043a", "\u0627\u0644\u0641", "order items", "a.b", ".."),
    *("a:b", "a=1", "{a,b}", "a*", "a?", "a#b", "[a]", "a\\b", "a/b", "a%20b", "a@v1", "~", "_x20_", "_delta_log", "_temporary", "-"),
]  # fmt: skip
"""Letters of several scripts, composed and decomposed, and what file systems, Hadoop, partitions and Delta take for something else."""
ROWS = [[], [1, 2, 3], [2, 3], [2, 3, 4], [2, 3, 4], [2, 3, 4], []]
"""By version: the keys."""


class Linked:
    """Writes versions as `LogStore` does on a local disk, without Delta's lock: nobody else writes."""

    def __init__(self, bare: Bare) -> None:
        self._bare = bare

    def make_folder(self) -> None:
        """It is there."""

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """As `LogStore.put`."""
        return bool(self._bare.commits.put(version, lines))


def copied_as(table: Path, lake: Path, name: str) -> Path:
    """A table's copy where the target has a table of that name, in a schema of that name."""
    copy = Path(Storage(str(lake)).table_path(TableId(name, name)))
    shutil.copytree(table, copy)
    return copy


def rows_by_others(path: Path, columns: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """A table's rows as delta-rs and as DuckDB find them."""
    return [sorted(rows_of(read(path, columns))) for read in (read_delta, read_by_duckdb)]


def test_a_table_of_any_name_is_found(tmp_path: Path) -> None:
    bare = Bare(tmp_path, replace(ITEMS, table=ODD))
    bare.apply(*[insert(0, {"id": i, "name": "a", "price": None}) for i in (1, 2)], is_append=True)
    bare.apply(delete(0, {"id": 1}))
    assert rows_by_others(bare.path, ["id"]) == [[(2,)]] * 2
    found = {name: rows_by_others(copied_as(bare.path, tmp_path / "lake", name), ["id"]) for name in PATHS[::6]}
    assert {name: rows for name, rows in found.items() if rows != [[(2,)]] * 2} == {}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bare:
    """A table with a version of every kind: created, appended, merged, its ledger moved, files joined, cleared."""
    bare = Bare(tmp_path, ITEMS)
    for version in bare.log.glob("*.json"):
        version.unlink()
    new = ddl.new_table(bare.table, ITEMS, clustering=True)
    store, path, now = cast("Any", Linked(bare)), str(bare.path), int(time.time() * 1000)
    ledgers = {bare.table.ledger_name: Entry(1, 0).version}
    assert logstore.create(store, bare.storage, path, first_version(new, ledgers, now), "Manual Update")
    bare.lane = bare.new_lane()
    bare.apply(*[insert(0, {"id": i, "name": "a", "price": None}) for i in (1, 2, 3)], is_append=True)
    bare.apply(delete(0, {"id": 1}), update(0, {"id": 2, "name": "b", "price": None}), expects_rows=True)
    bare.apply(insert(0, {"id": 4, "name": "c", "price": None}))
    log, bare.next = present(read_log(bare.storage, path)), bare.next + 1
    entry = {"txn": {"appId": bare.table.ledger_name, "version": Entry(1, bare.next - 1).version, "lastUpdated": now}}
    assert (log.version + 1) % CHECKPOINT_INTERVAL
    assert logstore.commit(store, bare.storage, path, log, [entry], "Manual Update")
    monkeypatch.setattr(joining, "FILES_PER_TIER", 2)
    bare.lane.refresh()
    plan = present(bare.lane.plan_rewrite(bare.table, ITEMS, small_file_size=1 << 20, deleted_share_max=1))
    assert bare.lane.commit_rewrite(bare.table, bare.lane.rewrite(plan))
    bare.clear()
    return bare


def test_delta_rs_shows_history_details_and_every_version(bare: Bare) -> None:
    table = DeltaTable(bare.path)
    told = table.history()
    operations = ["Manual Update", "WRITE", "MERGE", "MERGE", "Manual Update", "OPTIMIZE", "DELETE"]
    assert [entry["operation"] for entry in reversed(told)] == operations
    assert [entry.get("readVersion") for entry in reversed(told)] == [None, 0, 1, 2, 3, 4, 5]
    assert [entry["operation"] for entry in table.history(1)] == ["DELETE"]
    assert table.metadata().configuration["replicator.table"] == str(ITEMS.table)
    assert table.transaction_version(bare.table.ledger_name) == Entry(1, bare.next - 1).version
    assert [field.name for field in table.schema().fields] == ["id", "name", "price", "_sequence_num"]
    for version, keys in enumerate(ROWS):
        table.load_as_version(version)
        rows = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
        assert rows["id"].to_pylist() == keys


def test_duckdb_reads_every_version(bare: Bare) -> None:
    with duckdb.connect() as connection:
        import_extension("delta", con=connection)
        connection.execute("LOAD delta")
        for version, keys in enumerate(ROWS):
            found = connection.execute(
                "SELECT id FROM delta_scan($1, version = $2) ORDER BY id", [str(bare.path), version]
            )
            assert [key for (key,) in found.fetchall()] == keys
