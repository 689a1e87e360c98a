"""Every code of this distribution's errors and findings, with its texts."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import (
    AccessDeniedError,
    BatchTooLargeError,
    FatalError,
    SchemaConflictError,
    Severity,
    TableError,
    TargetUnavailableError,
    ThrottledError,
    UnsupportedTypeError,
)
from replicator.model.rules import Section, targets

SECTION: Final = Section("BigQuery")

PLAN_BUDGET: Final = SECTION.rule(
    "plan_budget",
    found=(Severity.WARNING,),
    meaning=(
        "`plan`: the changes of a day will use more than `target.budget` allows, so the pauses between batches "
        "will grow (BigQuery)."
    ),
    remedy="Raise `apply.max_wait`, or the limit.",
)

TARGET_THROTTLED: Final = SECTION.rule(
    "target_throttled",
    raises=(ThrottledError,),
    meaning="BigQuery asks to slow down.",
    remedy="Nothing; if it happens often, lengthen `apply.max_wait`.",
)

QUOTA_EXCEEDED: Final = SECTION.rule(
    "quota_exceeded",
    raises=(ThrottledError,),
    meaning="A quota is used up.",
    remedy=(
        "Nothing: it is retried every ten minutes, without a time limit. Raise it, lengthen `apply.max_wait` or "
        "set `target.budget`."
    ),
)

JOB_FAILED: Final = SECTION.rule(
    "job_failed",
    raises=(ThrottledError,),
    meaning="A job failed inside BigQuery's service.",
    remedy="Nothing; if it continues, check the service's status page.",
)

CREDENTIALS_REFUSED: Final = SECTION.rule(
    "credentials_refused",
    raises=(AccessDeniedError,),
    meaning="There are no credentials, or Google refuses them.",
    remedy="Renew them, then resume.",
)

BILLING_NOT_ENABLED: Final = SECTION.rule(
    "billing_not_enabled",
    raises=(FatalError,),
    meaning="The project has no billing.",
    remedy="Enable it, then resume.",
)

RIGHTS_MISSING: Final = SECTION.rule(
    "rights_missing",
    found=(Severity.BLOCKING,),
    meaning="A right on a dataset or on the bucket is missing.",
    remedy="Grant the role that the message names.",
)

BUCKET_MISSING: Final = SECTION.rule(
    "bucket_missing",
    found=(Severity.BLOCKING,),
    meaning="The staging bucket does not exist or is not visible.",
    remedy="Make it, or grant the role.",
)

BUCKET_ELSEWHERE: Final = SECTION.rule(
    "bucket_elsewhere",
    found=(Severity.BLOCKING,),
    meaning="The bucket is in another location than the datasets.",
    remedy="A bucket in `target.location`.",
)

DATASET_MISSING: Final = SECTION.rule(
    "dataset_missing",
    raises=(TargetUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="A dataset is not there and `create_datasets` is false.",
    remedy="Make it.",
)

DATASET_ELSEWHERE: Final = SECTION.rule(
    "dataset_elsewhere",
    found=(Severity.BLOCKING,),
    meaning="A dataset is in another location than `target.location`.",
    remedy="Correct the setting.",
)

DATASET_EXPIRES: Final = SECTION.rule(
    "dataset_expires",
    found=(Severity.BLOCKING,),
    meaning="A dataset has a default expiration, which would delete tables and ledgers.",
    remedy="Remove it.",
)

LAYOUT_IMPOSSIBLE: Final = SECTION.rule(
    "layout_impossible",
    found=(Severity.BLOCKING,),
    meaning="A column cannot be partitioned or clustered by.",
    remedy="Another column.",
)

PARTITION_FILTER_REQUIRED: Final = SECTION.rule(
    "partition_filter_required",
    found=(Severity.BLOCKING,),
    meaning="A table has `require_partition_filter`; merges have no such filter.",
    remedy="Switch it off.",
)

ROW_POLICIES: Final = SECTION.rule(
    "row_policies",
    found=(Severity.BLOCKING,),
    meaning="A table has row-level access policies, which hide rows from the writer.",
    remedy="Drop them, or filter in views.",
)

READERS_RESTRICTED: Final = SECTION.rule(
    "readers_restricted",
    raises=(TableError,),
    meaning=(
        "Readers may not see all of the table (row access policies, policy tags), and a new table would show "
        "them everything."
    ),
    remedy="Remove the restrictions, recreate the table, and set them again.",
)

POLICY_TAGS: Final = SECTION.rule(
    "policy_tags",
    found=(Severity.WARNING,),
    meaning="Columns have policy tags.",
    remedy="Let the writer read them.",
)

DAILY_ESTIMATE: Final = SECTION.rule(
    "daily_estimate",
    found=(Severity.NOTICE,),
    meaning="What a table costs a day at most.",
    remedy="Lengthen `apply.max_wait` if it is too much.",
)

BIGQUERY_REFUSED: Final = SECTION.rule(
    "bigquery_refused",
    raises=(SchemaConflictError,),
    meaning="BigQuery refused a job permanently; the message has its reason, without quoted values.",
    remedy="Fix the reason; then a new snapshot.",
)

BATCH_TOO_LARGE: Final = SECTION.rule(
    "batch_too_large",
    raises=(BatchTooLargeError,),
    meaning=(
        "BigQuery has not enough room to fold a batch (`resourcesExceeded`). Batches are halved until they fit; "
        "this one cannot be split, because it is one transaction. The message has the number of its changes and "
        "their size in the journal."
    ),
    remedy="A new snapshot.",
)

KEY_CHAIN_TOO_LONG: Final = SECTION.rule(
    "key_chain_too_long",
    raises=(TableError,),
    meaning="In one batch a row that lacks columns changed its key more than 500 times.",
    remedy="A new snapshot.",
)

TOO_MANY_BYTES_BILLED: Final = SECTION.rule(
    "too_many_bytes_billed",
    raises=(ThrottledError,),
    meaning=(
        "A script would be billed more than `target.budget.maximum_bytes_billed`, and a smaller batch would not "
        "help. The table waits."
    ),
    remedy="Raise the bound, or partition the table by a column of its key (`snapshot --recreate`).",
)

BUDGET_USED_UP: Final = SECTION.rule(
    "budget_used_up",
    raises=(ThrottledError,),
    meaning="What `target.budget` allows for 24 hours is used up. The table waits for the budget.",
    remedy="Nothing; raise the budget to continue sooner.",
)

JOB_STOPPED: Final = SECTION.rule(
    "job_stopped",
    raises=(TableError,),
    meaning="Somebody ended a job, or it took longer than `target.job_timeout`.",
    remedy="A new snapshot.",
)

VALUE_OUT_OF_RANGE: Final = SECTION.rule(
    "value_out_of_range",
    raises=(UnsupportedTypeError,),
    meaning="A date or time outside BigQuery's range.",
    remedy="Correct the row, or `target.unfit_values: null`; then a new snapshot.",
)

EMPTY_FILE: Final = SECTION.rule(
    "empty_file",
    raises=(UnsupportedTypeError,),
    meaning="A bug: a journal file without rows.",
    remedy="Report it.",
)

STAGING_CONFLICT: Final = SECTION.rule(
    "staging_conflict",
    raises=(TableError,),
    meaning="An object of the name is in the bucket and has another content.",
    remedy="Another `target.staging.prefix`, or delete it.",
)

STAGING_INCOMPLETE: Final = SECTION.rule(
    "staging_incomplete",
    raises=(ThrottledError,),
    meaning="A staging table holds another number of rows than were loaded.",
    remedy="Nothing.",
)

LEDGER_MOVED: Final = SECTION.rule(
    "ledger_moved",
    raises=(ThrottledError,),
    meaning="An earlier attempt succeeded after all.",
    remedy="Nothing: the next attempt continues from the ledger.",
)

NEWER_LEDGER: Final = SECTION.rule(
    "newer_ledger",
    raises=(FatalError,),
    meaning="A newer version wrote the ledger of a table. The table fails.",
    remedy="Use that version; then a new snapshot.",
)

OLDER_LEDGER: Final = SECTION.rule(
    "older_ledger",
    raises=(FatalError,),
    meaning="A version before the first release wrote the ledger of a table. The table fails.",
    remedy="Use that version; or drop the table and its ledger, then recreate the table.",
)

TARGET_REPLACED: Final = SECTION.rule(
    "target_replaced",
    raises=(TableError,),
    meaning="The table, or its ledger, was dropped, recreated or restored by somebody else.",
    remedy="Drop what is left of the table, then recreate it.",
)

SECTION.note(
    targets.STATE_NOT_READABLE,
    meaning=(
        "BigQuery: the table was replaced or dropped meanwhile, it has no history, or BigQuery refuses the query."
    ),
    remedy='BigQuery: see "Verifying" in `targets/bigquery.md`.',
)

SECTION.note(targets.COMMENT_CHANGED, remedy="See `targets/bigquery.md`.")

SECTION.note(targets.TYPE_CHANGED, remedy="See `targets/bigquery.md`.")
