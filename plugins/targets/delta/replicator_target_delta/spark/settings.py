"""Settings of Spark by which it can write Delta tables, and does so cheaply."""

from __future__ import annotations

from typing import Final

from replicator.plugins.target import SparkNeeds

SPARK_NEEDS: Final = SparkNeeds(
    # What fits pyspark 4.2.0. The jars of delta-spark 4.4.1 were never published.
    packages=("io.delta:delta-spark_4.2_2.13:4.4.0",),
    provided_by="delta-spark_",
    settings={
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A merge's source is read from immutable files, so there is nothing to make deterministic: a quarter of the time saved.
        "spark.databricks.delta.merge.materializeSource": "none",
    },
    # The state of a table is little data: each partition of it is a task.
    local_settings={"spark.databricks.delta.snapshotPartitions": "1"},
    cluster_settings={"spark.databricks.delta.snapshotPartitions": "8"},
)
