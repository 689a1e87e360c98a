"""Spark's process: it dies with ours, and its death is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from replicator_testing.waiting import PATIENCE

# Prints the JVM's process id and continues working until it is killed.
CHILD = """
from replicator.config import SparkConfig
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost
from replicator_testbed.spark.java import jvm_pid, short_lived_options
settings = {"spark.driver.memory": "512m", **short_lived_options()}
host = SparkHost(SparkConfig(master="local[1]", settings=settings), SparkNeeds(), cores=1)
host.session()
print(jvm_pid(host), flush=True)
input()
"""


def test_jvm_ends_when_its_process_is_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        jvm = psutil.Process(int(child.stdout.readline()))
        child.kill()
        child.wait()
        jvm.wait(timeout=60 * PATIENCE)


@pytest.mark.matrix
def test_killed_jvm_is_noticed_and_started_again(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from replicator.config import SparkConfig
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost, spark_error
from replicator_testbed.spark.java import jvm_pid, short_lived_options
log = Path({str(tmp_path / "spark.log")!r})
settings = {{"spark.driver.memory": "512m", **short_lived_options()}}
host = SparkHost(SparkConfig(master="local[1]", settings=settings), SparkNeeds(), cores=1, log_file=log)
session = host.session()
os.kill(jvm_pid(host), signal.SIGKILL)
try:
    session.range(1).count()
except Exception as error:
    print(spark_error(error).code)
print(host.session().range(3).count(), jvm_pid(host) is not None)
host.stop()
host.stop()
print(jvm_pid(host))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["spark_lost", "3", "True", "None"], done.stderr
    assert done.stderr == ""
    assert (tmp_path / "spark.log").stat().st_size > 0


def test_refused_setting_is_an_error_with_sparks_own_words() -> None:
    script = """
from replicator.config import SparkConfig
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost
config = SparkConfig(master="local[1]", settings={"spark.driver.memory": "1k"})
SparkHost(config, SparkNeeds(), cores=1).session()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ConfigError: Spark with master local[1] did not start." in done.stderr
