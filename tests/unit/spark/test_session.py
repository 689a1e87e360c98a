"""What Spark is started with, and what its end is taken for. No JVM here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pydantic import ValidationError

from replicator.config import SparkConfig
from replicator.model.errors import ConfigError, TargetUnavailableError
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import (
    SparkHost,
    session_confs,
    spark_error,
    start_error,
)


def confs(*, needs: SparkNeeds = SparkNeeds(), **config: Any) -> dict[str, str]:  # noqa: B008 (frozen)
    return session_confs(SparkConfig(**config), needs, cores=6, scratch="/scratch")


def test_small_masters_are_tuned_and_clusters_left_alone() -> None:
    assert confs(master="local[2]")["spark.sql.shuffle.partitions"] == "2"
    assert confs(master="local[2]")["spark.sql.adaptive.enabled"] == "false"
    assert confs(master="local[2]")["spark.sql.sources.parallelPartitionDiscovery.parallelism"] == "2"
    assert confs(master="local[2]")["spark.driver.host"] == "127.0.0.1"
    assert not {"spark.sql.shuffle.partitions", "spark.driver.host", "spark.driver.bindAddress"} & set(
        confs(master="yarn")
    )
    # VACUUM runs as many tasks; Spark's default is 10,000.
    assert int(confs(master="yarn")["spark.sql.sources.parallelPartitionDiscovery.parallelism"]) < 100
    assert "spark.sql.adaptive.enabled" not in confs(master="yarn")
    assert confs(master="yarn")["spark.sql.session.timeZone"] == "UTC"


def test_settings_of_the_user_win() -> None:
    assert confs(settings={"spark.driver.memory": "9g", "spark.ui.enabled": "true"})["spark.driver.memory"] == "9g"


def test_statements_are_never_substituted() -> None:
    name = "spark.sql.variable.substitute"
    unchecked = SparkConfig.model_construct(**{**dict(SparkConfig()), "settings": {name: "true"}})
    assert confs()[name] == session_confs(unchecked, SparkNeeds(), cores=6, scratch="/scratch")[name] == "false"
    assert SparkConfig(settings={name: False}).settings == {name: "false"}
    with pytest.raises(ValidationError, match="must stay false"):
        SparkConfig(settings={name: True})


NEEDS = SparkNeeds(
    packages=("t:target:1",),
    provided_by="target-",
    settings={"spark.t.always": "1", "spark.ui.enabled": "true"},
    local_settings={"spark.t.local": "1"},
    cluster_settings={"spark.t.cluster": "1"},
)


def test_what_the_target_needs_is_fetched_unless_its_jars_are_given() -> None:
    assert confs(needs=NEEDS, packages=("a:b:1",))["spark.jars.packages"] == "t:target:1,a:b:1"
    assert "spark.jars.packages" not in confs(needs=NEEDS, jars=("/x/t_target-1.jar",))
    assert "spark.jars.packages" not in confs()


def test_settings_of_the_target_depend_on_the_master_and_yield_to_the_users() -> None:
    local, cluster = confs(needs=NEEDS, master="local[2]"), confs(needs=NEEDS, master="yarn")
    assert {name for name in local if ".t." in name} == {"spark.t.always", "spark.t.local"}
    assert {name for name in cluster if ".t." in name} == {"spark.t.always", "spark.t.cluster"}
    assert local["spark.ui.enabled"] == "true"
    assert confs(needs=NEEDS, settings={"spark.t.always": "2"})["spark.t.always"] == "2"


def test_unresolved_packages_are_named_with_the_remedy() -> None:
    output = "\n".join([*"noise" * 100, ":: UNRESOLVED DEPENDENCIES ::"])
    error = start_error(output, SparkConfig(packages=("a:b:1",)), SparkNeeds())
    assert error.code == "spark_packages_unresolved"
    assert "a:b:1" in error.message
    assert "spark.jars.repositories" in (error.action or "")
    assert start_error("Java heap", SparkConfig(), SparkNeeds()).code == "spark_not_started"


def test_a_name_without_an_address_is_told_with_the_remedy() -> None:
    output = "Caused by: java.net.UnknownHostException: f4a8: f4a8: Name or service not known\n\tat java.base/…"
    error = start_error(output, SparkConfig(), SparkNeeds())
    assert error.code == "spark_not_started"
    assert "f4a8 has no address" in (error.action or "")
    assert "SPARK_LOCAL_IP" in (error.action or "")


def test_a_master_that_takes_no_application_is_tried_again() -> None:
    output, config = "… ERROR All masters are unresponsive! Giving up.", SparkConfig(master="spark://a:8080")
    error = start_error(output, config, SparkNeeds())
    assert isinstance(error, TargetUnavailableError)
    assert error.code == "spark_master_unreachable"
    assert "spark://a:8080" in error.message


def test_spark_connect_is_refused() -> None:
    with pytest.raises(ConfigError, match="sc://x"):
        SparkHost(SparkConfig(master="sc://x"), SparkNeeds(), cores=1).session()


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "refused"),
        Py4JError("An error occurred while calling o1.x"),
    ],
)
def test_dead_jvm_is_a_transient_error(error: Exception) -> None:
    ours = spark_error(error)
    assert isinstance(ours, TargetUnavailableError)
    assert ours.code == "spark_lost"


def test_an_application_that_the_master_ended_is_started_again() -> None:
    words = "Job aborted due to stage failure: Master removed our application: FAILED"
    ours = spark_error(Py4JError(f"An error occurred while calling o1.x. Trace: {words}"))
    assert isinstance(ours, TargetUnavailableError)
    assert ours.code == "spark_lost"
    assert "executors" in (ours.action or "")


def test_other_errors_are_not_taken_for_a_dead_jvm() -> None:
    assert (
        spark_error(
            Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x does not exist")
        )
        is None
    )
    assert spark_error(ValueError("x")) is None


def test_a_task_that_needs_too_much_memory_does_not_end_a_local_jvm() -> None:
    name = "spark.executor.killOnFatalError.depth"
    assert confs()[name] == "0"
    assert name not in confs(master="spark://host:7077")


def test_a_host_that_never_had_a_session_ends_without_pyspark() -> None:
    """It costs every worker of a target without Spark a tenth of its start."""
    program = """
import sys
from replicator.config import SparkConfig
from replicator.plugins.target import SparkNeeds
from replicator.spark.session import SparkHost
SparkHost(SparkConfig(), SparkNeeds(), cores=2).stop()
print([name for name in sys.modules if name.startswith(("pyspark", "py4j"))])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
