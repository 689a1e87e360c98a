"""delta-rs as another writer of our tables: what it refuses, what the lane continues behind, and what an audit says of it. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from plugins.targets.delta.tests.test_lane import ITEMS, Bare, item
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.lane.losses import check_files
from replicator_target_delta.log import history
from replicator_target_delta.log.table import LostFilesError
from replicator_target_delta.storage import Storage
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.delta import read_by_duckdb, read_delta, rows_of
from replicator_testing.batches import delete, insert, update
from replicator_testing.defaults import target_context

Act = Callable[[Bare], object]
ADDED = pa.table(
    {
        "id": pa.array([500], pa.int64()),
        "name": ["theirs"],
        "price": pa.array([None], pa.decimal128(12, 2)),
        "_sequence_num": pa.array([0], pa.int64()),
    }
)


def made(folder: Path, *, clustered: bool) -> Bare:
    """A table of four files, of one of which a row is deleted; with or without clustering, which is the default."""
    bare = Bare(folder, ITEMS)
    if not clustered:
        first = bare.log / f"{0:020}.json"
        first.write_text(first.read_text().replace(', "domainMetadata", "clustering"', ""))
        bare.lane = bare.new_lane()
    for k in range(4):
        bare.apply(*[insert(0, item(10 * k + i)) for i in range(10)], is_append=True)
    bare.apply(delete(0, item(1)))
    return bare


def table(bare: Bare) -> DeltaTable:
    return DeltaTable(bare.path)


def vacuum(bare: Bare, *, full: bool) -> list[str]:
    return table(bare).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=full)


WRITES: dict[str, Act] = {
    "append": lambda bare: write_deltalake(bare.path, ADDED, mode="append"),
    "overwrite": lambda bare: write_deltalake(bare.path, ADDED, mode="overwrite"),
    "delete": lambda bare: table(bare).delete("id = 2"),
    "update": lambda bare: table(bare).update(updates={"name": "'theirs'"}, predicate="id = 2"),
    "restore": lambda bare: table(bare).restore(2),
    "compact": lambda bare: table(bare).optimize.compact(),
    "z_order": lambda bare: table(bare).optimize.z_order(["id"]),
    "add_columns": lambda bare: table(bare).alter.add_columns([Field("extra", PrimitiveType("string"))]),
    "properties": lambda bare: table(bare).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 3 days"}
    ),
    "vacuum of all files": lambda bare: vacuum(bare, full=True),
}


def continues(bare: Bare) -> list[tuple[Any, ...]]:
    """Commit something, by the lane and by that of a new process; the keys then, as DuckDB and delta-rs read them."""
    bare.apply(update(0, item(5, "new")))
    bare.lane = bare.new_lane()
    bare.apply(update(0, item(6, "new")))
    check_files(bare.storage, str(bare.path))
    names = dict(rows_of(read_by_duckdb(bare.path, ["id", "name"])))
    assert (names[5], names[6]) == ("new", "new")
    assert dict(bare.rows("id", "name")) == names
    return sorted(names.items())


def audited(bare: Bare, act: Act) -> list[str]:
    """What an audit says that others did meanwhile."""
    before = history.audit(bare.storage, str(bare.path), bare.table, None)
    act(bare)
    return list(history.audit(bare.storage, str(bare.path), bare.table, before.position).changed_by_others)


@pytest.mark.parametrize(
    "write", ["append", *(pytest.param(name, marks=pytest.mark.matrix) for name in list(WRITES)[1:])]
)
def test_it_refuses_to_write_clustered_tables(tmp_path: Path, write: str) -> None:
    bare = made(tmp_path, clustered=True)
    version = bare.version()
    with pytest.raises(Exception, match=r"ClusteredTable|Column mapping is not supported"):
        WRITES[write](bare)
    assert bare.version() == version
    assert len(continues(bare)) == 39


@pytest.mark.parametrize(
    ("write", "operation", "rows"),
    [
        ("append", "WRITE", 40),
        *(
            pytest.param(*case, marks=pytest.mark.matrix)
            for case in (("delete", "DELETE", 38), ("update", "UPDATE", 39), ("restore", "RESTORE", 20))
        ),
    ],
)
def test_what_it_changes_is_kept_and_told(tmp_path: Path, write: str, operation: str, rows: int) -> None:
    bare = made(tmp_path, clustered=False)
    assert audited(bare, WRITES[write]) == [f"version 6: {operation}"]
    assert len(continues(bare)) == rows


@pytest.mark.parametrize("clustered", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_its_checkpoints_and_vacuums_are_followed(tmp_path: Path, clustered: bool) -> None:
    bare = made(tmp_path, clustered=clustered)
    assert audited(bare, lambda bare: table(bare).create_checkpoint()) == []
    table(bare).cleanup_metadata()
    assert len(continues(bare)) == 39
    if not clustered:
        bare.compact()
        assert audited(bare, lambda bare: vacuum(bare, full=False)) == []
        assert len(continues(bare)) == 39


def test_its_vacuum_of_all_files_takes_deletion_vectors_along_and_an_audit_says_so(tmp_path: Path) -> None:
    """delta-rs 1.6 does not know that the newest version needs them. Without clustering it does not refuse either."""
    bare = made(tmp_path, clustered=False)
    (vectors,) = (file.name for file in bare.path.glob("deletion_vector_*"))
    assert vacuum(bare, full=True) == [vectors]
    with pytest.raises(LostFilesError, match=vectors):
        check_files(bare.storage, str(bare.path))


def test_a_copied_folder_is_read_and_is_not_another_replicators(tmp_path: Path) -> None:
    bare = made(tmp_path, clustered=True)
    copy = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "lake", copy)
    bare.apply(insert(0, item(99)))
    folder = Path(Storage(str(copy)).table_path(ITEMS.table))
    assert [len(list(rows_of(read(folder, ["id"])))) for read in (read_delta, read_by_duckdb)] == [39, 39]
    assert len(bare.rows()) == 40
    for uuid, codes in (("u", []), ("another", ["not_ours"])):
        target = DeltaLakeTarget(
            DeltaLakeConfig(path=str(copy)), target_context(replicator="test", uuid=uuid, epoch=1, spark=None)
        )
        assert [problem.code for problem in target.check([ITEMS])] == codes
