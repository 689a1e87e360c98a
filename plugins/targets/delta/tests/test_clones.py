"""CLONE and VACUUM without retention, by somebody who has Spark: our table continues, a clone is a table of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.delta import read_by_duckdb, read_delta, rows_of

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

pytestmark = [pytest.mark.matrix, pytest.mark.parametrize("engine", ["auto", "spark"])]
CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def begun(new_lake: Callable[..., Lake], engine: str) -> Lake:
    """A table of five rows; of one file a row was deleted."""
    lake = new_lake(engine=engine)
    lake.apply(*[lake.insert(id=i, name=f"n{i}", note="x") for i in range(6)])
    lake.apply(lake.delete(id=0))
    return lake


def continues(lake: Lake, position: str | None) -> None:
    """A batch of this process and one of the next; nothing that others did is told."""
    lake.apply(lake.update(id=1, name="new", note="x"))
    lake.target = lake.process()
    lake.table = replace(lake.table, epoch=lake.table.epoch + 1)
    lake.apply(lake.update(id=2, name="new", note="x"))
    assert list(lake.target.audit(lake.table, position).changed_by_others) == []
    wanted = [(1, "new"), (2, "new"), (3, "n3"), (4, "n4"), (5, "n5")]
    for read in (read_delta, read_by_duckdb):
        assert sorted(rows_of(read(lake.path, ["id", "name"]))) == wanted
    columns = {column.name: column.name for column in lake.schema.columns}
    with lake.target.open_state(lake.table, lake.schema, columns=columns, at=lake.next - 1):
        pass


def test_a_shallow_clone_is_a_table_of_its_own(new_lake: Callable[..., Lake], tmp_path: Path, engine: str) -> None:
    lake = begun(new_lake, engine)
    position = lake.target.audit(lake.table, None).position
    clone = tmp_path / "clones" / "public" / "people"
    lake.spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{lake.path}`")
    continues(lake, position)
    assert {row.name for row in rows_by_spark(lake.spark, clone)} == {f"n{i}" for i in range(1, 6)}
    another = lake.process("u-2")
    config = DeltaLakeConfig(path=str(tmp_path / "clones"))
    target = DeltaLakeTarget(config, another.context)
    assert [problem.code for problem in target.check([lake.schema])] == ["not_ours"]


def rows_by_spark(spark: SparkSession, path: Path) -> list[Any]:
    return list(spark.sql(f"SELECT * FROM delta.`{path}`").collect())


@pytest.mark.parametrize("clone_of", ["of the table", "of an older version", "of another table"])
def test_delta_replaces_no_table_that_has_rows_by_a_clone(
    new_lake: Callable[..., Lake], tmp_path: Path, engine: str, clone_of: str
) -> None:
    lake = begun(new_lake, engine)
    ours, other = f"delta.`{lake.path}`", f"delta.`{tmp_path / 'other'}`"
    source = {"of the table": other, "of an older version": f"{ours} VERSION AS OF 1", "of another table": other}[
        clone_of
    ]
    if clone_of == "of the table":
        lake.spark.sql(f"CREATE TABLE {other} SHALLOW CLONE {ours}")
    elif clone_of == "of another table":
        lake.spark.sql(f"CREATE TABLE {other} USING delta AS SELECT 1L AS id, 'o' AS name, 'o' AS note")
    position = lake.target.audit(lake.table, None).position
    with pytest.raises(Exception, match=r"column mapping mode|[Nn]on-?[Ee]mpty|not empty|cloneReplaceNonEmptyTable"):
        lake.spark.sql(f"CREATE OR REPLACE TABLE {ours} SHALLOW CLONE {source}")
    continues(lake, position)


def test_a_vacuum_without_retention_leaves_what_the_newest_version_needs(
    new_lake: Callable[..., Lake], engine: str
) -> None:
    lake = begun(new_lake, engine)
    position = lake.target.audit(lake.table, None).position
    session = lake.spark.newSession()
    session.conf.set(CHECK, "false")
    session.sql(f"VACUUM delta.`{lake.path}` RETAIN 0 HOURS")
    continues(lake, position)
