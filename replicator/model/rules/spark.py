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
)

SPARK_MASTER_UNSUPPORTED: Final = SECTION.rule(
    "spark_master_unsupported",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="`spark.master` is not supported. Spark Connect is not supported either.",
    remedy="`local[…]`, `spark://`, `yarn` or `k8s://`.",
)

SPARK_PACKAGES_UNRESOLVED: Final = SECTION.rule(
    "spark_packages_unresolved",
    raises=(ConfigError,),
    meaning="Spark could not fetch its jars.",
    remedy=("Name a mirror (`spark.jars.repositories`, `spark.jars.ivySettings`), or give every jar in `spark.jars`."),
)

SPARK_NOT_STARTED: Final = SECTION.rule(
    "spark_not_started",
    raises=(ConfigError,),
    meaning="Spark did not start; its last lines are in the message.",
    remedy="Check the `spark:` block and Java.",
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

SPARK_NO_EXECUTORS: Final = SECTION.rule(
    "spark_no_executors",
    raises=(TargetUnavailableError,),
    meaning="The cluster gave work no executor for `spark.executors_timeout`; Spark was started again.",
    remedy="Workers with enough free cores and memory that can connect to the driver.",
)

SPARK_SCRATCH_UNUSABLE: Final = SECTION.rule(
    "spark_scratch_unusable",
    raises=(TargetUnavailableError,),
    meaning="Spark cannot write or read its temporary files.",
    remedy=(
        "Check space and rights of `SPARK_LOCAL_DIRS` on the workers (local masters: of `REPLICATOR_HOME`, or of "
        "`spark.local.dir`; the message names the folder), and that nothing clears it."
    ),
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
)
