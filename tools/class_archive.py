"""Make an archive of Spark's classes for the JVMs of demos and tests, which then start in two thirds of the time.

The JVM writes it when it ends (class data sharing), so a Spark is started that copies and changes one table as a
replicator does. A JVM that cannot write one costs nothing but the time saved.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from replicator.config import SparkConfig
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import TargetContext, TargetTable
from replicator.spark.session import SparkHost
from replicator_target_delta.config import DeltaLakeConfig
from replicator_target_delta.spark.settings import SPARK_NEEDS
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.spark.java import CLASS_ARCHIVE, short_lived_options
from replicator_testing.batches import delete, insert, update, write_batch
from replicator_testing.target_harness import item, items_schema

UUID = "00000000-0000-0000-0000-00000000c1a5"


def main() -> None:
    """Write the archive again."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    schema = items_schema()
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    with tempfile.TemporaryDirectory(prefix="class-archive-") as name:
        folder = Path(name)
        settings = short_lived_options(f"-XX:ArchiveClassesAtExit={CLASS_ARCHIVE}")
        host = SparkHost(SparkConfig(settings=settings), SPARK_NEEDS, cores=2, log_file=folder / "spark.log")
        context = TargetContext(replicator="archive", uuid=UUID, epoch=1, spark=host.session, max_wait_s=0.0)
        target = DeltaLakeTarget(DeltaLakeConfig(path=str(folder / "lake")), context)
        target.claim(table)
        target.apply_ddl(table, DDLEvent(operation=DDLOperation.CREATE_TABLE, table=schema.table, schema=schema), 0)
        rows = [insert(n, item(n), is_snapshot=True) for n in range(1, 100)]
        target.apply_batch(table, write_batch(folder, schema, rows, skip_to=0, is_append=True))
        changes = [update(100, item(1, "changed")), delete(101, item(2)), insert(102, item(200))]
        target.apply_batch(table, write_batch(folder, schema, changes, skip_to=99))
        copy = (
            host.session().read.format("delta").load(str(folder / "lake" / schema.table.namespace / schema.table.name))
        )
        assert copy.toArrow().num_rows == len(rows), "one inserted, one deleted"
        target.close()
        host.stop()


if __name__ == "__main__":
    main()
