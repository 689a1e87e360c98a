"""Rules about commands."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import ConfigError, FatalError, ReplicatorError, Severity
from replicator.model.rules import Section

SECTION: Final = Section("Commands")

NOTHING_TO_ACCEPT: Final = SECTION.rule(
    "nothing_to_accept",
    raises=(ConfigError,),
    meaning="`ddl accept` names a table that has not stopped at a change of its definition.",
    remedy="`replicator status NAME` shows the state of each table.",
)

ASSESSMENT_FAILED: Final = SECTION.rule(
    "assessment_failed",
    raises=(ConfigError,),
    meaning="A blocking problem prevents the start; it is printed above this line.",
    remedy="Fix what is marked `blocking`.",
)

UNKNOWN_REPLICATOR: Final = SECTION.rule(
    "unknown_replicator",
    raises=(ConfigError, FatalError),
    meaning="No replicator of that name is stored; for a worker: it was deleted in the meantime.",
    remedy="`replicator list`; check `REPLICATOR_HOME` and `REPLICATOR_STATE_URL`.",
)

OBJECTIVE_NOT_READABLE: Final = SECTION.rule(
    "objective_not_readable",
    raises=(ConfigError,),
    meaning=(
        "`status --check`: an objective (`freshness`) of the stored configuration is a reference that leads "
        "nowhere in this environment."
    ),
    remedy="Run the check where the worker runs, with the same environment.",
)

ALERTS_NOT_READABLE: Final = SECTION.rule(
    "alerts_not_readable",
    raises=(ConfigError,),
    meaning=(
        "The `alerts:` of the stored configuration have a reference that leads nowhere in this environment, or a "
        "value that this version refuses. A process that watches alerts logs it, `status` shows it (`refused`), "
        "and the replicator is left to others. Data moves on."
    ),
    remedy=(
        "Run this where the variables and files are, or correct the file: `replicator validate FILE`, then "
        "`replicator reload FILE`."
    ),
)

LINEAGE_NOT_SUPPORTED: Final = SECTION.rule(
    "lineage_not_supported",
    raises=(ConfigError,),
    meaning=(
        "The configuration has `lineage:`, and its source or target plugin does not name its tables for "
        "OpenLineage. A process that watches logs it; the replicator runs without lineage."
    ),
    remedy="Remove `lineage:`, or use plugins that do.",
)

UNKNOWN_CHANNEL: Final = SECTION.rule(
    "unknown_channel",
    raises=(ConfigError,),
    meaning="`alert test`: the replicator has no channel of that name, or none at all.",
    remedy="Name one of those that the message lists, or add one: `alerts.md`.",
)

MISSING_EXTRA: Final = SECTION.rule(
    "missing_extra",
    raises=(ConfigError,),
    meaning="A command needs packages that are not installed with Replicator by default.",
    remedy="Install the extra that the message names.",
)

UNKNOWN_TABLE: Final = SECTION.rule(
    "unknown_table",
    raises=(ConfigError,),
    meaning="The replicator does not replicate a table named in the command.",
    remedy="Write it as `status` shows it.",
)

UNKNOWN_REPORT: Final = SECTION.rule(
    "unknown_report",
    raises=(ConfigError,),
    meaning=("`verify --report` names a file that is neither `.json` nor `.md`, or in a folder that does not exist."),
    remedy="Choose another file.",
)

TWO_SCOPES: Final = SECTION.rule(
    "two_scopes",
    raises=(ConfigError,),
    meaning=(
        "`verify` with two of `--sample`, `--keys` and `--since`, or with one of them and `--resume` or "
        "`--rows-per-second`, which are for whole tables."
    ),
    remedy="Choose one of them.",
)

UNKNOWN_SAMPLE: Final = SECTION.rule(
    "unknown_sample",
    raises=(ConfigError,),
    meaning="`verify --sample` is not a number above 0 and up to 100.",
    remedy="Write a percentage, such as `5` or `0.5`.",
)

UNKNOWN_DURATION: Final = SECTION.rule(
    "unknown_duration",
    raises=(ConfigError,),
    meaning="`verify --since` is not a duration.",
    remedy="Write a number with a unit, such as `90m`.",
)

UNKNOWN_ROW_KEY: Final = SECTION.rule(
    "unknown_row_key",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning=(
        "`verify --keys` without exactly one table, of a table without a key, or with what cannot be a key of "
        "it: other columns, a missing one, NULL, or a value that is not of the column's type."
    ),
    remedy="The message names the option and the column; `verify.md` has the form for each type.",
)

JOURNAL_TOO_SHORT: Final = SECTION.rule(
    "journal_too_short",
    raises=(ConfigError,),
    meaning="`verify --since` is longer than `journal.keep`.",
    remedy="Choose a shorter time, or verify the whole table or a sample.",
)

REHEARSAL_NOT_SUPPORTED: Final = SECTION.rule(
    "rehearsal_not_supported",
    raises=(ConfigError,),
    meaning="`plan --ddl`: the source's plugin cannot say beforehand what a statement would bring.",
    remedy="`schema-changes.md` says what becomes of each change.",
)

PLANNING_NOT_SUPPORTED: Final = SECTION.rule(
    "planning_not_supported",
    found=(Severity.NOTICE,),
    meaning="`plan`: the source's plugin cannot say how much there is to replicate.",
    remedy="`plan` still shows what `validate` finds.",
)

PLAN_LOG_SHORT: Final = SECTION.rule(
    "plan_log_short",
    found=(Severity.WARNING,),
    meaning=(
        "`plan`: the source gives up its log after less than a day, or before the first snapshot is complete. A "
        "worker that is stopped for longer loses its position."
    ),
    remedy="Have the source keep its log for longer.",
)

PLAN_JOURNAL_LIMIT: Final = SECTION.rule(
    "plan_journal_limit",
    found=(Severity.WARNING,),
    meaning="`plan`: the journal will need more than `journal.bytes_max`; capture stops there.",
    remedy="Raise it, or lower `journal.keep`.",
)

PLAN_DISK_SMALL: Final = SECTION.rule(
    "plan_disk_small",
    found=(Severity.WARNING,),
    meaning="`plan`: the journal will need more than is free on its disk.",
    remedy="Name a larger disk in `journal.uri`, or lower `journal.keep`.",
)

RESTART_WITH_TABLES: Final = SECTION.rule(
    "restart_with_tables",
    raises=(ConfigError,),
    meaning="`snapshot --restart` and `--changed-only` concern every table.",
    remedy=(
        "Leave the table names out. For some tables whose log is not lost: `replicator verify NAME TABLE --repair`."
    ),
)

RESTART_WITH_RECREATE: Final = SECTION.rule(
    "restart_with_recreate",
    raises=(ConfigError,),
    meaning="`--restart` or `--changed-only` together with `--recreate`.",
    remedy="First one, then the other.",
)

EXISTS: Final = SECTION.rule(
    "exists",
    raises=(ConfigError,),
    meaning="A replicator of that name was stored at the same moment.",
    remedy="Repeat the command, or choose another name.",
)

DEMO_NOT_INSTALLED: Final = SECTION.rule(
    "demo_not_installed",
    raises=(ConfigError,),
    meaning="`replicator demo` is not part of the plain installation.",
    remedy='`pip install "replicator[demo]"`',
)

DEMO_BROKEN: Final = SECTION.rule(
    "demo_broken",
    raises=(ConfigError,),
    meaning="The installed demo cannot be loaded; the message has the reason. Other commands do not need it.",
    remedy='Repair the installation: `pip install --force-reinstall "replicator[demo]"`.',
)

FILE_EXISTS: Final = SECTION.rule(
    "file_exists",
    raises=(ConfigError,),
    meaning="`init` would overwrite a file.",
    remedy="Choose another name.",
)

HOME_COPIED: Final = SECTION.rule(
    "home_copied",
    raises=(ConfigError,),
    meaning=(
        "`REPLICATOR_HOME` or the state store was copied, moved or restored from a backup: it names a journal in "
        "another home's folder, or a journal that was used since with another copy of the state store. It would "
        "delete journal files of the original."
    ),
    remedy=(
        "Use the original. If the home was moved, move it back, or put a symbolic link to the new folder where "
        "it was. If the original was lost, make sure that no worker uses it, delete the file that the message "
        "names (`claim.json` in the journal's folder) and start again. To get rid of a copy, delete its files; "
        "`delete --force` would delete what the original uses."
    ),
)

IDENTITY_CHANGED: Final = SECTION.rule(
    "identity_changed",
    raises=(ConfigError,),
    meaning="The file names another source or target than the stored replicator of that name.",
    remedy="Give it another name, or delete the stored one first.",
)

ALREADY_RUNNING: Final = SECTION.rule(
    "already_running",
    raises=(ConfigError,),
    meaning="Another process holds the replicator's lease; the message names host, process and since when.",
    remedy="Check it with `status`, or stop that process; the lease of a dead host expires after 10 s.",
)

BEING_DELETED: Final = SECTION.rule(
    "being_deleted",
    raises=(ConfigError,),
    meaning="The replicator is being deleted.",
    remedy="Wait, or `replicator delete NAME --yes`.",
)

PAUSED: Final = SECTION.rule(
    "paused",
    raises=(ReplicatorError,),
    meaning="`run` of a replicator that was paused.",
    remedy="`replicator resume NAME`.",
)

NO_LOG: Final = SECTION.rule(
    "no_log",
    raises=(ConfigError,),
    meaning="This host has no log of the replicator.",
    remedy="Look on the host whose worker ran it.",
)
