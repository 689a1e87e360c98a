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
from replicator.model.rules import Section, sources, tables, targets

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

BYTES_BUDGET: Final = PLAN_BUDGET.worded(
    ("Batches will be billed up to {value} a day, and the limit is {bytes_max}: pauses between them grow."),
    action="Raise apply.max_wait, or the limit.",
    location="target.budget.bytes_per_day",
)

JOBS_BUDGET: Final = PLAN_BUDGET.worded(
    ("Batches will need up to {value:,.0f} load jobs a day, and the limit is {jobs_max:,}: pauses between them grow."),
    action="Raise apply.max_wait, or the limit if the project's quota allows it.",
    location="target.budget.load_jobs_per_day",
)

TARGET_THROTTLED: Final = SECTION.rule(
    "target_throttled",
    raises=(ThrottledError,),
    meaning="BigQuery asks to slow down.",
    remedy="Nothing; if it happens often, lengthen `apply.max_wait`.",
)

STATEMENTS_QUEUED: Final = TARGET_THROTTLED.worded("Too many statements are already waiting for the table: {words}")

SLOW_DOWN: Final = TARGET_THROTTLED.worded("BigQuery asks to slow down: {words}")

QUOTA_EXCEEDED: Final = SECTION.rule(
    "quota_exceeded",
    raises=(ThrottledError,),
    meaning="A quota is used up.",
    remedy=(
        "Nothing: it is retried every ten minutes, without a time limit. Raise it, lengthen `apply.max_wait` or "
        "set `target.budget`."
    ),
    text="A quota of BigQuery is used up: {words}",
    action=(
        "It is retried every ten minutes. Daily quotas come back within 24 hours, a project's own at midnight "
        "Pacific Time. Raise the quota, or lengthen apply.max_wait."
    ),
)

JOB_FAILED: Final = SECTION.rule(
    "job_failed",
    raises=(ThrottledError,),
    meaning="A job failed inside BigQuery's service.",
    remedy="Nothing; if it continues, check the service's status page.",
    text="A BigQuery job failed ({reason}): {words}",
)

CREDENTIALS_REFUSED: Final = SECTION.rule(
    "credentials_refused",
    raises=(AccessDeniedError,),
    meaning="There are no credentials, or Google refuses them.",
    remedy="Renew them, then resume.",
    text="Google refuses the credentials: {words}",
    action=("Renew the credentials (target.credentials, or `gcloud auth application-default login`), then resume."),
)

BILLING_NOT_ENABLED: Final = SECTION.rule(
    "billing_not_enabled",
    raises=(FatalError,),
    meaning="The project has no billing.",
    remedy="Enable it, then resume.",
    text="Google refuses because billing is not enabled: {words}",
    action="Enable billing for the project, then resume.",
)

RIGHTS_MISSING: Final = SECTION.rule(
    "rights_missing",
    found=(Severity.BLOCKING,),
    meaning="A right on a dataset or on the bucket is missing.",
    remedy="Grant the role that the message names.",
)

BUCKET_RIGHTS_MISSING: Final = RIGHTS_MISSING.worded(
    "The bucket {bucket} lacks privileges for these credentials: {missing}.",
    action=(
        "Grant the role Storage Object Admin (roles/storage.objectAdmin) on gs://{bucket}, and Storage Legacy "
        "Bucket Reader to see its location."
    ),
    location="target.staging.bucket",
)

DATASET_RIGHTS_MISSING: Final = RIGHTS_MISSING.worded(
    "These credentials may not create tables in the dataset {path}.",
    action="Grant the role BigQuery Data Editor (roles/bigquery.dataEditor) on {path}.",
    location="target.dataset",
)

BUCKET_MISSING: Final = SECTION.rule(
    "bucket_missing",
    found=(Severity.BLOCKING,),
    meaning="The staging bucket does not exist or is not visible.",
    remedy="Make it, or grant the role.",
    text="There is no bucket {bucket}, or these credentials may not see it.",
    action="Create it: gcloud storage buckets create gs://{bucket} --location={where}",
    location="target.staging.bucket",
)

BUCKET_ELSEWHERE: Final = SECTION.rule(
    "bucket_elsewhere",
    found=(Severity.BLOCKING,),
    meaning="The bucket is in another location than the datasets.",
    remedy="A bucket in `target.location`.",
    text=("The bucket {bucket} is in {where}, the datasets are in {where_2}: BigQuery cannot load from there."),
    action="Use a bucket in {where_2}.",
    location="target.staging.bucket",
)

DATASET_MISSING: Final = SECTION.rule(
    "dataset_missing",
    raises=(TargetUnavailableError,),
    found=(Severity.BLOCKING,),
    meaning="A dataset is not there and `create_datasets` is false.",
    remedy="Make it.",
)

DATASET_MISSING_0: Final = DATASET_MISSING.worded(
    "There is no dataset {path}, and target.create_datasets is false.",
    action="Create it: bq --location={where} mk --dataset {replace}",
    location="target.dataset",
)

DATASET_DISAPPEARED: Final = DATASET_MISSING.worded(
    "There is no dataset {path}, and target.create_datasets is false.", action="Create it; it is retried automatically."
)

DATASET_ELSEWHERE: Final = SECTION.rule(
    "dataset_elsewhere",
    found=(Severity.BLOCKING,),
    meaning="A dataset is in another location than `target.location`.",
    remedy="Correct the setting.",
    text="The dataset {path} is in {where}, target.location is {where_2}.",
    action="Correct target.location, or choose another target.dataset.",
    location="target.location",
)

DATASET_EXPIRES: Final = SECTION.rule(
    "dataset_expires",
    found=(Severity.BLOCKING,),
    meaning="A dataset has a default expiration, which would delete tables and ledgers.",
    remedy="Remove it.",
    text="The dataset {path} lets tables or partitions expire: tables and ledgers would be deleted.",
    action=(
        "Run: ALTER SCHEMA `{path}` SET OPTIONS (default_table_expiration_days = NULL, "
        "default_partition_expiration_days = NULL)"
    ),
    location="target.dataset",
)

LAYOUT_IMPOSSIBLE: Final = SECTION.rule(
    "layout_impossible",
    found=(Severity.BLOCKING,),
    meaning="A column cannot be partitioned or clustered by.",
    remedy="Another column.",
    text="{found}",
    action="Choose another column for {setting}.",
)

PARTITION_FILTER_REQUIRED: Final = SECTION.rule(
    "partition_filter_required",
    found=(Severity.BLOCKING,),
    meaning="A table has `require_partition_filter`; merges have no such filter.",
    remedy="Switch it off.",
    text="{path} has require_partition_filter, and a merge has none.",
    action="Run: ALTER TABLE `{path}` SET OPTIONS (require_partition_filter = false)",
)

ROW_POLICIES: Final = SECTION.rule(
    "row_policies",
    found=(Severity.BLOCKING,),
    meaning="A table has row-level access policies, which hide rows from the writer.",
    remedy="Drop them, or filter in views.",
    text="{path} has row-level access policies: rows that the writer cannot see would be written twice.",
    action="Drop them (DROP ALL ROW ACCESS POLICIES ON `{path}`), or let views filter the rows.",
)

READERS_RESTRICTED: Final = SECTION.rule(
    "readers_restricted",
    raises=(TableError,),
    meaning=(
        "Readers may not see all of the table (row access policies, policy tags), and a new table would show "
        "them everything."
    ),
    remedy="Remove the restrictions, recreate the table, and set them again.",
    text=("The target table has {found}. A new table would not have them, and readers would see what they hide."),
    action="Remove them, run `replicator snapshot NAME TABLE --recreate`, and then set them again.",
)

POLICY_TAGS: Final = SECTION.rule(
    "policy_tags",
    found=(Severity.WARNING,),
    meaning="Columns have policy tags.",
    remedy="Let the writer read them.",
    text="Columns of {path} have policy tags, and a merge reads them.",
    action="Give the writer the role Fine-Grained Reader on these tags.",
)

DAILY_ESTIMATE: Final = SECTION.rule(
    "daily_estimate",
    found=(Severity.NOTICE,),
    meaning="What a table costs a day at most.",
    remedy="Lengthen `apply.max_wait` if it is too much.",
    text=(
        "With a batch every {every} (apply.max_wait): at most {batches} load jobs and as many merges a day; each "
        "merge is billed up to {reads}{total}."
    ),
)

BIGQUERY_REFUSED: Final = SECTION.rule(
    "bigquery_refused",
    raises=(SchemaConflictError,),
    meaning="BigQuery refused a job permanently; the message has its reason, without quoted values.",
    remedy="Fix the reason; then a new snapshot.",
    text="BigQuery refuses ({reason}): {words}",
    action="Run `replicator snapshot NAME TABLE`. If that fails too, exclude the table.",
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
    text="BigQuery does not have enough resources for so large a batch ({reason}): {words}",
    action=("Smaller batches were tried, but this one is a single transaction. Run `replicator snapshot NAME TABLE`."),
)

KEY_CHAIN_TOO_LONG: Final = SECTION.rule(
    "key_chain_too_long",
    raises=(TableError,),
    meaning="In one batch a row that lacks columns changed its key more than 500 times.",
    remedy="A new snapshot.",
    text=("In one batch a row that lacks columns changed its key more often than BigQuery can process (500 times)."),
    action="Run `replicator snapshot NAME TABLE`.",
)

TOO_MANY_BYTES_BILLED: Final = SECTION.rule(
    "too_many_bytes_billed",
    raises=(ThrottledError,),
    meaning=(
        "A script would be billed more than `target.budget.maximum_bytes_billed`, and a smaller batch would not "
        "help. The table waits."
    ),
    remedy="Raise the bound, or partition the table by a column of its key (`snapshot --recreate`).",
    text="A script would be billed more than target.budget.maximum_bytes_billed: {words}",
    action=(
        "Nothing is billed or lost; it is retried every ten minutes. Raise the limit, or partition the table by "
        "a column of its key and recreate it: replicator snapshot NAME TABLE --recreate."
    ),
)

BUDGET_USED_UP: Final = SECTION.rule(
    "budget_used_up",
    raises=(ThrottledError,),
    meaning="What `target.budget` allows for 24 hours is used up. The table waits for the budget.",
    remedy="Nothing; raise the budget to continue sooner.",
    text="The target.budget for 24 hours is used up.",
    action=("The table continues automatically when the budget allows it; raise target.budget to continue sooner."),
)

JOB_STOPPED: Final = SECTION.rule(
    "job_stopped",
    raises=(TableError,),
    meaning="Somebody ended a job, or it took longer than `target.job_timeout`.",
    remedy="A new snapshot.",
    text="A job of the table was cancelled, or took longer than target.job_timeout.",
    action="Run `replicator snapshot NAME TABLE`.",
)

VALUE_OUT_OF_RANGE: Final = SECTION.rule(
    "value_out_of_range",
    raises=(UnsupportedTypeError,),
    meaning="A date or time outside BigQuery's range.",
    remedy="Correct the row, or `target.unfit_values: null`; then a new snapshot.",
    text=(
        "The column {name} ({source_type}) has a value outside of BigQuery's range (years 0001 to 9999, 00:00 to "
        "23:59:59.999999)."
    ),
    action=(
        "Correct the row, or set target.unfit_values: null (not for keys); then run `replicator snapshot NAME TABLE`."
    ),
)

EMPTY_FILE: Final = SECTION.rule(
    "empty_file",
    raises=(UnsupportedTypeError,),
    meaning="A bug: a journal file without rows.",
    remedy="Report it.",
    text="A journal file holds no rows.",
)

STAGING_CONFLICT: Final = SECTION.rule(
    "staging_conflict",
    raises=(TableError,),
    meaning="An object of the name is in the bucket and has another content.",
    remedy="Another `target.staging.prefix`, or delete it.",
    text="{uri} exists and differs from the journal's file of that name.",
    action="Choose another target.staging.prefix, or delete the object.",
)

STAGING_INCOMPLETE: Final = SECTION.rule(
    "staging_incomplete",
    raises=(ThrottledError,),
    meaning="A staging table holds another number of rows than were loaded.",
    remedy="Nothing.",
    text="The staging table holds {found} rows; {rows} were loaded.",
    action="It is retried automatically.",
)

LEDGER_MOVED: Final = SECTION.rule(
    "ledger_moved",
    raises=(ThrottledError,),
    meaning="An earlier attempt succeeded after all.",
    remedy="Nothing: the next attempt continues from the ledger.",
    text="The ledger is at {last}, but {last_2} was expected: an earlier attempt succeeded.",
    action="It is retried automatically.",
)

NEWER_LEDGER: Final = SECTION.rule(
    "newer_ledger",
    raises=(FatalError,),
    meaning="A newer version wrote the ledger of a table. The table fails.",
    remedy="Use that version; then a new snapshot.",
    text="The ledger has format {found}; this program knows format {known}.",
    action="Use the version of the Replicator that wrote it, or a newer one.",
)

OLDER_LEDGER: Final = SECTION.rule(
    "older_ledger",
    raises=(FatalError,),
    meaning="A version before the first release wrote the ledger of a table. The table fails.",
    remedy="Use that version; or drop the table and its ledger, then recreate the table.",
    text="The ledger has format {found}; this program knows format {known}.",
    action="Use the version of the Replicator that wrote it, or drop the table and its ledger.",
)

TARGET_REPLACED: Final = SECTION.rule(
    "target_replaced",
    raises=(TableError,),
    meaning="The table, or its ledger, was dropped, recreated or restored by somebody else.",
    remedy="Drop what is left of the table, then recreate it.",
    text="The table in the target was changed by somebody else: {how}.",
    action="Drop the table, then recreate it: replicator snapshot NAME TABLE --recreate.",
)

OCCUPIED_BY: Final = targets.TARGET_OCCUPIED.worded(
    "{path} is a {sort}.", action="Move it away, or choose another target.dataset."
)

NAME_OCCUPIED: Final = targets.TARGET_OCCUPIED.worded(
    "A {sort} already has this name.", action="Move it away, or choose another target.dataset."
)

LEDGER_CHANGED: Final = targets.LEDGER_DAMAGED.worded(
    "{what}: something else wrote into it.",
    action="Drop it and its table, then recreate the table: replicator snapshot NAME TABLE --recreate.",
)

LEDGER_DELETED: Final = targets.LEDGER_DAMAGED.worded(
    "Something else deleted the ledger while it was in use.",
    action="Drop its table too, then recreate it: replicator snapshot NAME TABLE --recreate.",
)

LEDGER_WRITTEN: Final = targets.TARGET_BUSY.worded(
    "Another process wrote into the ledger at the same moment.", action="It is retried automatically."
)

TRANSACTION_LOST: Final = targets.TARGET_BUSY.worded(
    "Another transaction changed the table or its ledger at the same moment: {words}"
)

TABLE_CREATED_OR_DROPPED: Final = targets.TARGET_BUSY.worded(
    "Another process created or dropped the table at the same moment.", action="It is retried automatically."
)

STATE_NOT_READABLE: Final = targets.STATE_NOT_READABLE.worded("The state to compare cannot be read. {why}.")

ACCESS_DENIED: Final = sources.ACCESS_DENIED.worded(
    "A privilege is missing: {words}", action="Grant the roles that `replicator validate` names, then resume."
)

SERVICE_UNREACHABLE: Final = targets.TARGET_UNREACHABLE.worded("Google's service {failed} ({reason}): {words}")

STORAGE_UNREACHABLE: Final = targets.TARGET_UNREACHABLE.worded("Cloud Storage answered {status_code}: {words}")

KEY_MISSING: Final = tables.KEY_MISSING.worded("A change has no value in a key column.")

MERGE_NOT_UNIQUE: Final = targets.MERGE_NOT_UNIQUE.worded(
    "Two rows of a merge's source have one key.", action="Report this as a bug."
)

SCHEMA_CONFLICT: Final = targets.SCHEMA_CONFLICT.worded(
    "BigQuery gave the published table other columns or collations than the one that was built.",
    action=(
        "Compare the columns of the table and the default collation of its dataset with those of the building_… "
        "table in {own_dataset}, and report this."
    ),
)

NAME_USED: Final = tables.TABLE_NAMES_CLASH.worded(
    "Its name in BigQuery is also that of {table_name}.",
    action="Exclude one of them, or choose target.dataset and target.table so that the names differ.",
)

NAMES_CLASH: Final = tables.TABLE_NAMES_CLASH.worded(
    "{group} would both be {path}.",
    action="Exclude all but one of them (tables.exclude), or separate them with target.dataset.",
)

COLUMN_NAMES_CLASH: Final = tables.COLUMN_NAMES_CLASH.worded(
    "The columns {columns} would both be called {name}.",
    action=(
        "Rename all but one of them in the source, set target.names: unicode, or exclude the table (tables.exclude)."
    ),
)

COLUMN_NAME_RESERVED: Final = tables.COLUMN_NAME_RESERVED.worded(
    "The column {column} would be called {name}, which is a column of the Replicator's own.",
    action="Rename the column in the source, or exclude the table (tables.exclude).",
)

JOURNAL_FILE_UNREADABLE: Final = targets.JOURNAL_FILE_UNREADABLE.worded(
    "A journal file cannot be read.", action="Restore the file, or run `replicator snapshot NAME TABLE`."
)

UNSUPPORTED_TYPE: Final = tables.UNSUPPORTED_TYPE.worded("The type {type_} does not exist in BigQuery.")

SECTION.note(
    targets.STATE_NOT_READABLE,
    meaning=(
        "BigQuery: the table was replaced or dropped meanwhile, it has no history, or BigQuery refuses the query."
    ),
    remedy='BigQuery: see "Verifying" in `targets/bigquery.md`.',
)

SECTION.note(targets.COMMENT_CHANGED, remedy="See `targets/bigquery.md`.")

SECTION.note(targets.TYPE_CHANGED, remedy="See `targets/bigquery.md`.")
