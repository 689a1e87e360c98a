"""The standalone cluster of the kit: it works, and nothing of it is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from replicator_testbed.spark.cluster import SparkCluster
from replicator_testing.waiting import wait_until

CHILD = """
from replicator_testbed.spark.cluster import SparkCluster
cluster = SparkCluster(workers=1).__enter__()
print(cluster.folder, cluster.workers[0].pid, flush=True)
input()
"""


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.matrix
def test_nothing_of_a_cluster_outlives_its_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        folder, worker = child.stdout.readline().split()
        assert Path(folder).is_dir()
        assert not _is_gone(int(worker))
        child.kill()
        child.wait()
    wait_until(lambda: _is_gone(int(worker)) and not Path(folder).exists(), "worker and folder are gone")


@pytest.mark.matrix
def test_work_without_executors_ends_with_the_reason() -> None:
    """Spark itself would wait without end."""
    script = """
import sys
from replicator.config import SparkConfig
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost, spark_error
config = SparkConfig(master=sys.argv[1], settings={"spark.driver.memory": "512m"}, executors_timeout="10s")
host = SparkHost(config, SparkNeeds(), cores=1)
try:
    host.session().range(10).count()
except Exception as error:
    print(spark_error(error).code)
host.stop()
"""
    with SparkCluster(workers=0) as cluster:
        done = subprocess.run([sys.executable, "-c", script, cluster.url], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["spark_no_executors"], done.stderr
