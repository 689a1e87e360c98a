"""One Spark for a whole test session: `from replicator_testbed.spark.session import spark, spark_host` in a conftest."""

from __future__ import annotations

import atexit
import functools
import os
from typing import TYPE_CHECKING, Final

import pytest

from replicator.config import SparkConfig
from replicator.plugins.registry import Registry
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost
from replicator_testbed import hostile
from replicator_testbed.spark.cluster import SparkCluster
from replicator_testbed.spark.java import short_lived_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET: Final = "canary-of-the-lake-7a41"  # noqa: S105
"""What nobody but the JVM may read: the value of the two below."""

SECRET_SETTING: Final = "spark.hadoop.fs.s3a.secret.key"  # noqa: S105
SECRET_VARIABLE: Final = "SHOP_DB_PASSWORD"  # noqa: S105

MASTER_VARIABLE: Final = "REPLICATOR_TEST_SPARK"
"""`cluster` lets tests that share a Spark run on a standalone cluster of their own instead of in the driver."""


def lake_needs() -> SparkNeeds:
    """What the target that writes Delta tables asks of Spark."""
    needs = Registry.discover().target("delta").spark_needs
    assert needs is not None
    return needs


@functools.cache
def shared_spark() -> SparkHost:
    """The Spark that all tests of this process share; it ends with the process."""
    # Names and comments of tests refer to it, and the environment of a JVM is the one that it began with.
    os.environ[hostile.CANARY_VARIABLE] = hostile.CANARY
    os.environ[SECRET_VARIABLE] = SECRET
    master, settings = "local[2]", short_lived_options()
    if os.environ.get(MASTER_VARIABLE) == "cluster":
        cluster = SparkCluster()
        atexit.register(cluster.close)
        cluster.__enter__()
        master, settings = cluster.url, {**settings, **cluster.settings()}
    config = SparkConfig(master=master, settings={"spark.driver.memory": "1500m", SECRET_SETTING: SECRET, **settings})
    host = SparkHost(config, lake_needs(), cores=os.cpu_count() or 2)
    atexit.register(host.stop)
    return host


@pytest.fixture(scope="session")
def spark_host() -> SparkHost:
    """The shared Spark's owner."""
    return shared_spark()


@pytest.fixture(scope="session")
def spark(spark_host: SparkHost) -> SparkSession:
    """The shared SparkSession, with Delta."""
    session: SparkSession = spark_host.session()
    return session
