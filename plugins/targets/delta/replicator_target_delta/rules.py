"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    FatalError,
    Severity,
    TableError,
    TargetDamagedError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.rules import Section, targets

SECTION: Final = Section("Delta")

SPARK_EXECUTORS_LOST: Final = SECTION.rule(
    "spark_executors_lost",
    raises=(TargetUnavailableError,),
    meaning="Executors were lost while a table was worked on, more often than Spark itself retries.",
    remedy="Nothing; if it happens again, check the executors' logs (exit codes 52 and 137: too little memory).",
)

SPARK_OUT_OF_MEMORY: Final = SECTION.rule(
    "spark_out_of_memory",
    raises=(TargetUnavailableError, ThrottledError),
    meaning=(
        "Spark ran out of memory. Smaller batches are tried; a batch that cannot be split waits, and its table "
        "fails in the end. Other tables continue."
    ),
    remedy="Raise `spark.settings.spark.driver.memory`. Values of 100 MB need some gigabytes.",
)

SPARK_REFUSED: Final = SECTION.rule(
    "spark_refused",
    raises=(TableError,),
    meaning="Spark refuses a statement for the table; the message quotes it.",
    remedy="Report it; until it is fixed, exclude the table.",
)

SPARK_FAILED: Final = SECTION.rule(
    "spark_failed",
    raises=(TargetUnavailableError,),
    meaning="A Spark job failed for a reason without a code of its own; the message quotes the cause.",
    remedy="Nothing; it is retried. If it keeps failing, read the log and report it.",
)

SPARK_MISSING: Final = SECTION.rule(
    "spark_missing",
    raises=(FatalError,),
    meaning="A target needs Spark, but the host did not provide it.",
    remedy="Report it.",
)

TARGET_UNREADABLE: Final = SECTION.rule(
    "target_unreadable",
    raises=(TargetDamagedError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "The Delta log of a table at this path cannot be read. The message names the file of a commit that was "
        "written in half or is damaged."
    ),
    remedy=(
        "Follow the message: restore the file or recreate the table; or, where the first versions are damaged, "
        "move the folder away and recreate it."
    ),
)

TARGET_FILE_UNREADABLE: Final = SECTION.rule(
    "target_file_unreadable",
    raises=(TargetDamagedError,),
    meaning=(
        "A file that the table needs (data, deleted rows) was removed, cut off or changed by something else. A "
        "batch, upkeep or a verification met it, or the comparison with a listing of the folder, at most ten "
        "minutes later."
    ),
    remedy="Recreate the table.",
)

LEDGER_DISAGREES: Final = SECTION.rule(
    "ledger_disagrees",
    raises=(FatalError,),
    meaning="A bug: Delta skipped a batch that the ledger does not hold. The table fails.",
    remedy="Report it; then a new snapshot.",
)

SECTION.note(
    targets.STATE_NOT_READABLE,
    meaning="Delta: its version or files were removed, or only Spark understands the table.",
    remedy='Delta: see "Reading" in `targets/delta.md`.',
)

SECTION.note(targets.COMMENT_CHANGED, meaning="Delta gets `$ {` for `${`.", remedy="See `targets/delta.md`.")

SECTION.note(targets.TYPE_CHANGED, remedy="See `targets/delta.md`.")
