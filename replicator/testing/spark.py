"""One Spark for a whole test session: `from replicator.testing.spark import spark, spark_host` in a conftest."""

from __future__ import annotations

import atexit
import functools
import os
from typing import Any

import pytest

from replicator.spark.session import SparkHost, SparkSettings
from replicator.testing.java import short_lived_options


@functools.cache
def shared_spark() -> SparkHost:
    """The Spark that all tests of this process share; it ends with the process."""
    host = SparkHost(
        SparkSettings(master="local[2]", memory="1500m", settings=short_lived_options()), cores=os.cpu_count() or 2
    )
    atexit.register(host.stop)
    return host


@pytest.fixture(scope="session")
def spark_host() -> SparkHost:
    """The shared Spark's owner."""
    return shared_spark()


@pytest.fixture(scope="session")
def spark(spark_host: SparkHost) -> Any:
    """The shared SparkSession, with Delta."""
    return spark_host.session()
