"""Rules about Spark."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    ConfigError,
    FatalError,
    Severity,
    TableError,
    TargetCrashedError,
    TargetUnavailableError,
)
from replicator.model.rules import Section

SECTION: Final = Section("Spark")


JAVA_MISSING: Final = SECTION.rule(
    "java_missing",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="No Java in JAVA_HOME or on the PATH.",
    remedy="Install Java 17 or later.",
    text="Spark needs Java, and {where}.",
    action="Install Java 17 or later, or set JAVA_HOME.",
    location="spark",
)

SPARK_MASTER_UNSUPPORTED: Final = SECTION.rule(
    "spark_master_unsupported",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="`spark.master` is not supported. Spark Connect is not supported either.",
    remedy="`local[…]`, `spark://`, `yarn` or `k8s://`.",
    text="{master} is not a supported Spark master.",
    action=(
        "Set spark.master to local[*], spark://HOST:PORT, yarn or k8s://…; Spark Connect (sc://) is not supported."
    ),
    location="spark.master",
)

SPARK_PACKAGES_UNRESOLVED: Final = SECTION.rule(
    "spark_packages_unresolved",
    raises=(ConfigError,),
    meaning="Spark could not fetch its jars.",
    remedy=("Name a mirror (`spark.jars.repositories`, `spark.jars.ivySettings`), or give every jar in `spark.jars`."),
    text="Spark could not resolve {wanted_packages} from its Maven repositories. Its output ends:\n{tail}",
    action=(
        "Behind a mirror, set spark.settings.spark.jars.repositories or spark.jars.ivySettings; without a "
        "network list every jar, including dependencies, as a local file in spark.jars."
    ),
)

SPARK_NOT_STARTED: Final = SECTION.rule(
    "spark_not_started",
    raises=(ConfigError,),
    meaning="Spark did not start; its last lines are in the message.",
    remedy="Check the `spark:` block and Java.",
    text="Spark with master {master} did not start. Its output ends:\n{tail}",
)

SPARK_MASTER_UNREACHABLE: Final = SECTION.rule(
    "spark_master_unreachable",
    raises=(TargetUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="Nobody answers at the `spark://` master, or it did not accept the application within a minute.",
    remedy=(
        "Start it, or correct `spark.master`: it needs the master's own port, Spark 4.2 with Scala 2.13, and a "
        "network path back to the driver (`docs/spark.md`)."
    ),
)

MASTER_UNREACHABLE: Final = SPARK_MASTER_UNREACHABLE.worded(
    "The Spark master {master} cannot be reached from this host ({reasons}).",
    action=("Start the master, or correct spark.master: it is the URL at the top of the master's own web page."),
    location="spark.master",
)

MASTER_ACCEPTS_NOTHING: Final = SPARK_MASTER_UNREACHABLE.worded(
    "The Spark master {master} did not accept this application within a minute.",
    action=(
        "Check that the port is the master's own (not its web page's), that the cluster runs Spark 4.2 with "
        "Scala 2.13, and that the master can connect to this host (spark.settings: spark.driver.host, "
        "spark.driver.port)."
    ),
)

SPARK_NO_EXECUTORS: Final = SECTION.rule(
    "spark_no_executors",
    raises=(TargetUnavailableError,),
    meaning="The cluster gave work no executor for `spark.executors_timeout`; Spark was started again.",
    remedy="Workers with enough free cores and memory that can connect to the driver.",
    text="The Spark cluster {master} gave no executor for {waited_s:.0f} s.",
    action=(
        "Check that workers run with enough free cores and memory (spark.executor.cores, spark.executor.memory), "
        "and that they can connect to the driver. It is retried automatically."
    ),
)

SPARK_SCRATCH_UNUSABLE: Final = SECTION.rule(
    "spark_scratch_unusable",
    raises=(TargetUnavailableError,),
    meaning="Spark cannot write or read its temporary files.",
    remedy=(
        "Check space and rights of `SPARK_LOCAL_DIRS` on the workers (local masters: of `REPLICATOR_HOME`, or of "
        "`spark.local.dir`; the message names the folder), and that nothing clears it."
    ),
    text="Spark cannot start without temporary files in {folder}: {fact}.",
    action="Free some space on the volume of that folder, or make it writable.",
)

PATH_NOT_SHARED: Final = SECTION.rule(
    "path_not_shared",
    raises=(FatalError,),
    found=(Severity.WARNING,),
    meaning=(
        "The journal's or the target's path is on this host, and executors of a cluster are, or may be, "
        "elsewhere; or they run as a user who has no right to read the journal."
    ),
    remedy=("Use a location that this host and all executors share, and run the executors as the Replicator's user."),
    text="{uri} is a path on this host, and Spark's executors run on the cluster {master}.",
    action=(
        "If executors run on other hosts, use a location that all share (s3a://…, gs://…, hdfs://…, or a network "
        "mount)."
    ),
)

SPARK_LOST: Final = SECTION.rule(
    "spark_lost",
    raises=(TargetCrashedError,),
    meaning=(
        "Spark's JVM died, or Spark ended the application: a master does so when executors ended ten times right "
        "after their start. The tables that were being applied are applied alone until something of theirs is."
    ),
    remedy="Nothing; if it happens again, give it more memory, or check the executors' logs.",
)

JVM_DIED: Final = SPARK_LOST.worded(
    "Spark's JVM has died.", action="It restarts automatically. If it dies again, give it more memory."
)

APPLICATION_ENDED: Final = SPARK_LOST.worded(
    "Spark ended this application.",
    action=(
        "It restarts automatically. If it ends again, read the logs of the driver, the master and the executors "
        "(work folders of the workers). A master ends an application when its executors end ten times right "
        "after their start. Often they cannot connect to the driver."
    ),
)

ENGINE_CRASHED: Final = SECTION.rule(
    "engine_crashed",
    raises=(TableError,),
    meaning=(
        "Spark died four times while it applied this table alone, in smaller and smaller batches. Other tables "
        "continue; this one is not retried."
    ),
    remedy=(
        "Look for the cause in `NAME.spark.log` and the kernel's log (a container's memory limit ends "
        "processes). After that, `replicator pause NAME` and `replicator resume NAME` try the table once more; a "
        "new snapshot does, too."
    ),
    text=(
        "The target's engine crashed {crashes_alone_max} times while it applied this table alone, also with "
        "smaller batches. The last error: {message}"
    ),
    action=(
        "Read the engine's log (for Spark, NAME.spark.log). Often it has too little memory for the table's "
        "values. To retry: replicator pause NAME, then replicator resume NAME."
    ),
)
