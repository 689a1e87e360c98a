"""The host's part of a configuration: everything except the `source:` and `target:` blocks, which are their plugins' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from replicator.config.alerts import AlertsConfig
from replicator.config.base import ConfigModel
from replicator.config.lineage import LineageConfig
from replicator.config.masks import Mask, MaskFunction
from replicator.config.patterns import ColumnPattern, Selection, TablePattern, select
from replicator.config.quantities import Duration, Size, format_duration
from replicator.model.schema import TableId

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"

DDLPolicy = Literal["apply", "ignore", "stop"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


DropColumnPolicy = Literal["keep", "apply", "ignore", "stop"]
CreateTablePolicy = Literal["apply", "ignore"]
KeyPolicy = Literal["apply", "stop"]
UnknownPolicy = Literal["stop"]


class TableDDLConfig(ConfigModel):
    """Policies of the tables that match a pattern. Policies not set are as under `ddl:`."""

    add_column: DDLPolicy | None = Field(None, description="As ddl.add_column, for these tables.")
    drop_column: DropColumnPolicy | None = Field(None, description="As ddl.drop_column, for these tables.")
    rename_column: DDLPolicy | None = Field(None, description="As ddl.rename_column, for these tables.")
    widen_type: DDLPolicy | None = Field(None, description="As ddl.widen_type, for these tables.")
    change_type: DDLPolicy | None = Field(None, description="As ddl.change_type, for these tables.")
    change_nullability: DDLPolicy | None = Field(None, description="As ddl.change_nullability, for these tables.")
    change_default: DDLPolicy | None = Field(None, description="As ddl.change_default, for these tables.")
    change_key: KeyPolicy | None = Field(None, description="As ddl.change_key, for these tables.")
    create_table: CreateTablePolicy | None = Field(None, description="As ddl.create_table, for these tables.")
    drop_table: DDLPolicy | None = Field(None, description="As ddl.drop_table, for these tables.")
    truncate_table: DDLPolicy | None = Field(None, description="As ddl.truncate_table, for these tables.")
    rename_table: DDLPolicy | None = Field(None, description="As ddl.rename_table, for these tables.")
    unknown: UnknownPolicy | None = Field(None, description="As ddl.unknown, for these tables.")


class ColumnsConfig(ConfigModel):
    """The columns that leave the source: all but those under `exclude`, or only those under `include`."""

    include: tuple[ColumnPattern, ...] | None = Field(
        None,
        min_length=1,
        description="Names or patterns of the columns to replicate; no others are.",
        examples=[["id", "status"]],
    )
    exclude: tuple[ColumnPattern, ...] | None = Field(
        None, min_length=1, description="Names or patterns of the columns to leave out.", examples=[["ssn", "*_note"]]
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.include is None) == (self.exclude is None):
            raise ValueError("must have either include or exclude")
        return self


class TableOptions(ConfigModel):
    """Settings of the tables that match a pattern."""

    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description=(
            "Effect of a deleted row on the target: the row is deleted there too (hard), or it stays with _is_deleted set to "
            "true (soft)."
        ),
    )
    source_timestamp: bool = Field(
        default=False,
        description="Adds the column _source_timestamp, the commit time of the row's last change in the source.",
    )
    rename_starts_new_table: bool = Field(
        default=False,
        description="Effect of renaming one of these tables in the source. false: the target table keeps its name and continues. "
        "true: the table under its new name is replicated as a new one, and the target table of the old name stays as it is.",
    )
    columns: ColumnsConfig | None = Field(
        None,
        description="The columns that leave the source. Settings of several patterns add up: a column must be included by each, and "
        "excluded by none. Default: all.",
    )
    new_columns: Literal["include", "exclude"] | None = Field(
        None,
        description="Columns that are added in the source later: replicate them (include), or only those that columns.include names "
        "without a star (exclude). exclude in the settings of one pattern beats include in those of another. Default: include; with "
        "columns.include: exclude.",
    )
    mask: Mapping[ColumnPattern, Mask] = Field(
        {},
        description="What becomes of the values of columns, by name or pattern: sha256, hmac(${env:KEY}), redact, last(n), "
        "date(year), date(month), date(day), bucket(n), null; clear takes the mask of a pattern away from one column. See "
        "docs/projection.md. A name beats a pattern, then the later one wins; masks of several patterns of tables add up.",
        examples=[{"email": "sha256"}],
    )
    rename: Mapping[str, str] = Field(
        {},
        description="Names that columns have in the target, by their names in the source.",
        examples=[{"cust_no": "customer_number"}],
    )
    freshness: Duration | None = Field(
        None,
        ge=timedelta(seconds=1),
        le=timedelta(days=3650),
        description="As freshness, for these tables. null: they have no objective. Default: as under freshness.",
        examples=["15m"],
    )
    ddl: TableDDLConfig = Field(
        TableDDLConfig(),
        description="Policies for changes of the definition of these tables in the source. Default: as under ddl.",
        examples=[{"drop_column": "apply"}],
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        for pattern, mask in self.mask.items():
            if mask.function is MaskFunction.CLEAR and not pattern.is_name:
                raise ValueError(f"mask: clear needs the name of one column; {pattern} is a pattern")
        _refuse_blank([*self.rename, *self.rename.values()])
        return self


def _refuse_blank(names: Iterable[str]) -> None:
    if not all(name.strip() for name in names):
        raise ValueError("rename: a column needs a name")


COMBINED: Final = frozenset({"columns", "new_columns", "mask"})
"""Settings of tables of which those of all matching patterns hold; of others the later ones replace the earlier ones."""


class TablesConfig(ConfigModel):
    """Selection of the tables to replicate, and their settings."""

    include: tuple[TablePattern, ...] = Field(
        (TablePattern("*.*"),),
        min_length=1,
        description="Patterns of tables to replicate, schema.table (MySQL: database.table). Case-sensitive; * matches any characters "
        "within one part.",
        examples=[["public.*"]],
    )
    exclude: tuple[TablePattern, ...] = Field(
        (), description="Patterns of tables to leave out of the included ones.", examples=[["public.audit_log"]]
    )
    settings: Mapping[TablePattern, TableOptions] = Field(
        {},
        description="Settings by table pattern. If several match a table, later ones win.",
        examples=[{"public.customers": {"deletes": "soft"}}],
    )

    def select(self, tables: Iterable[TableId]) -> Selection:
        """Choose from the source's tables those to replicate, and report patterns without effect."""
        return select(tables, self.include, self.exclude, self.settings)

    def options_for(self, table: TableId) -> TableOptions:
        """Return the settings of a table: those of every matching pattern; later ones win, setting by setting."""
        return options_for(table, self.settings)


class SnapshotConfig(ConfigModel):
    """Settings of the snapshots of tables."""

    mode: Literal["initial", "never", "only"] = Field(
        "initial",
        description=(
            "Take a snapshot of each table, then replicate its changes (initial); replicate changes only (never); or take the "
            "snapshots and exit (only)."
        ),
    )
    chunk_rows: int = Field(
        50_000,
        ge=1,
        le=1_000_000,
        description="Rows read from a table by one statement. Fewer rows put less load on the source; more rows are faster.",
    )
    unexplained_change: Literal["resnapshot", "stop"] = Field(
        "resnapshot",
        description="Reaction to a change of a table that the source's catalogue shows and its log did not contain: take a new "
        "snapshot in place (resnapshot), or stop the replicator (stop).",
    )


class ApplyConfig(ConfigModel):
    """Settings of the writes to the target."""

    max_wait: Duration | None = Field(
        None,
        ge=timedelta(0),
        le=timedelta(days=1),
        description="The longest that captured changes wait to be applied together with later ones. Default: the target's own, "
        "which is named with the target's settings.",
        examples=["5s"],
    )
    batch_rows_max: int = Field(
        5_000_000,
        ge=1,
        le=1_000_000_000,
        description="Changes of one table applied as one unit; a larger transaction is still one unit. A target may take fewer at "
        "once, as its page says.",
    )
    batch_bytes_max: Size = Field(
        GIB,
        ge=MIB,
        le=1024 * GIB,
        description="Journal bytes of one table applied as one unit; a larger transaction is still one unit.",
    )
    tables_parallel: int = Field(4, ge=1, le=64, description="Tables written at the same time.")


class JournalConfig(ConfigModel):
    """Storage of captured changes between source and target, and its limits."""

    uri: str | None = Field(
        None,
        min_length=1,
        description="Folder of the journal: an absolute path, or a URI (gs://, s3://, hdfs://) that Spark's executors can read too. "
        "Default: under REPLICATOR_HOME.",
        examples=["/var/lib/replicator/journal"],
    )
    bytes_max: Size = Field(
        50 * GIB,
        ge=MIB,
        description="Size at which segments of failed tables are deleted. If that is not enough, capture stops.",
    )
    keep: Duration = Field(
        timedelta(hours=24),
        ge=timedelta(0),
        le=timedelta(days=3650),
        description="Time for which applied segments are kept, for replays and for looking up past changes.",
    )
    segment_rows: int = Field(
        1_000_000, ge=1, le=100_000_000, description="Rows at which a segment's files are closed."
    )
    segment_bytes: Size = Field(
        128 * MIB, ge=64 * KIB, le=4 * GIB, description="Size in memory at which a segment's files are closed."
    )
    seal_every: Duration = Field(
        timedelta(milliseconds=250),
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=1),
        description=(
            "The longest that a captured change waits to be sealed into the journal. A shorter time is fresher; a longer one makes "
            "fewer files."
        ),
    )


class DDLConfig(ConfigModel):
    """Policies for the target when a table's definition changes in the source."""

    create_table: CreateTablePolicy = Field(
        "apply",
        description="A new table that tables.include matches: replicate it within a minute (apply), or from the next start on (ignore).",
    )
    drop_table: DDLPolicy = Field(
        "ignore",
        description="A source table is dropped: drop the target table (apply), or keep it as it is (ignore, stop). The table fails in any "
        "case, until it is excluded or created again.",
    )
    truncate_table: DDLPolicy = Field(
        "apply",
        description="A source table is truncated: empty the target table (apply), keep its rows (ignore), or fail the table (stop).",
    )
    add_column: DDLPolicy = Field(
        "apply",
        description="A column is added to a source table: add it to the target table (apply), leave it out there (ignore), or fail the "
        "table (stop).",
    )
    drop_column: DropColumnPolicy = Field(
        "keep",
        description="A column of a source table is dropped: keep it in the target table with the values that it has (keep, ignore), drop "
        "it there, too (apply), or fail the table (stop).",
    )
    rename_column: DDLPolicy = Field(
        "apply",
        description="A column of a source table is renamed: rename it in the target table (apply), keep its name there (ignore), or fail "
        "the table (stop).",
    )
    widen_type: DDLPolicy = Field(
        "apply",
        description="A column gets a type that holds all values of its old one: give the target's column that type, too (apply), keep its "
        "type for as long as the values fit (ignore), or fail the table (stop).",
    )
    change_type: DDLPolicy = Field(
        "stop",
        description="A column gets any other type: rebuild the target table, and replace the old one once it is complete (apply), keep "
        "the type in the target for as long as the values fit (ignore), or fail the table (stop).",
    )
    change_nullability: DDLPolicy = Field(
        "apply",
        description="A column may be NULL from now on, or no longer: record it (apply, ignore), or fail the table (stop). Target "
        "columns may be NULL except for those of the key.",
    )
    change_default: DDLPolicy = Field(
        "apply",
        description="A column gets another default: record it (apply, ignore), or fail the table (stop). Rows come with their values.",
    )
    change_key: KeyPolicy = Field(
        "stop",
        description="Other columns make the key of a table: rebuild the target table, and replace the old one once it is complete "
        "(apply), or fail the table (stop).",
    )
    rename_table: DDLPolicy = Field(
        "apply",
        description="A source table is renamed: continue into the same target table (apply), treat it as dropped (ignore), or fail "
        "it (stop).",
    )
    unknown: UnknownPolicy = Field(
        "stop",
        description="A statement that Replicator does not understand: fail the tables that it may be about (stop).",
    )


class RetryConfig(ConfigModel):
    """Limits on the retries of transient errors."""

    give_up_after: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(0),
        le=timedelta(days=365),
        description="Time without progress after which the replicator stops with the error, or one table fails if only that table "
        "cannot be written. 0s: at the first error. Limits (rates, quotas, budgets) are waited for without a time limit.",
    )
    backoff_initial: Duration = Field(
        timedelta(seconds=1),
        ge=timedelta(milliseconds=1),
        le=timedelta(hours=1),
        description="Pause before the first retry; each further pause is twice as long, with jitter.",
    )
    backoff_max: Duration = Field(
        timedelta(minutes=1),
        ge=timedelta(milliseconds=1),
        le=timedelta(days=1),
        description="The longest pause between retries.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.backoff_initial > self.backoff_max:
            low, high = format_duration(self.backoff_initial), format_duration(self.backoff_max)
            raise ValueError(f"backoff_initial ({low}) must not be longer than backoff_max ({high})")
        return self


def _as_text(value: Any) -> Any:
    """Convert a number or boolean to text: Spark's settings are texts; YAML reads `200` and `true` as something else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class SparkConfig(ConfigModel):
    """Settings of the Spark that the target uses."""

    master: str = Field(
        "local[*]",
        min_length=1,
        description="Spark's master: local[*] on this machine, spark://, yarn or k8s:// for a cluster.",
    )
    packages: tuple[str, ...] = Field(
        (),
        description=(
            "Maven coordinates of further jars, such as org.apache.hadoop:hadoop-aws:3.4.2; those of the target are added "
            "automatically."
        ),
    )
    jars: tuple[str, ...] = Field((), description="Paths or URIs of further jars.")
    settings: Mapping[str, Annotated[str, BeforeValidator(_as_text)]] = Field(
        {},
        # The only setting where secrets may be plain strings: keys of object stores are Spark settings.
        repr=False,
        description="Further Spark settings; they override those that the replicator chooses.",
        examples=[{"spark.driver.memory": "4g"}],
    )
    executors_timeout: Duration = Field(
        timedelta(minutes=2),
        ge=timedelta(seconds=10),
        le=timedelta(days=1),
        description="On a cluster: time for which work may wait without any executor before Spark restarts. retry.give_up_after limits the "
        "retries.",
    )

    @model_validator(mode="after")
    def _refuse_substitution(self) -> Self:
        # Spark would replace variables in names and comments of the source with values of this process's environment.
        if self.settings.get("spark.sql.variable.substitute", "false").strip().lower() != "false":
            raise ValueError(
                "settings: spark.sql.variable.substitute must stay false; statements contain names from the source"
            )
        return self


class VerifyConfig(ConfigModel):
    """Settings of the verification of tables."""

    every: Duration | None = Field(
        None,
        ge=timedelta(seconds=1),
        le=timedelta(days=3650),
        description="Interval at which a running replicator verifies each table by itself, one after another. Default: never; tables are "
        "verified only by `replicator verify`.",
        examples=["7d"],
    )
    rows_per_second: int = Field(
        10_000,
        ge=1,
        le=1_000_000_000,
        description="Rows per second that `every` verifies: after each range of keys that was read, it pauses until "
        "this many rows per second would have been read. A table that is compared in one read is read at full speed; the next one waits.",
    )
    repair_rows_max: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="If more rows of a table differ, `verify --repair` leaves them as they are: a new snapshot costs less.",
    )


class ReplicatorConfig(ConfigModel):
    """One replicator: the settings of the host."""

    name: str = Field(
        pattern=NAME_PATTERN,
        description="Name of the replicator in commands and logs: lower-case letters, digits, - and _, at most 63 of them.",
        examples=["shop-to-lake"],
    )
    tables: TablesConfig = Field(
        TablesConfig(), description="Tables to replicate, and their settings. Default: every user table."
    )
    freshness: Duration | None = Field(
        None,
        ge=timedelta(seconds=1),
        le=timedelta(days=3650),
        description="The objective: how far tables may lag the source once their first snapshot is in the target. `status` shows "
        "whether they meet it, and `status --check` exits 4 if one does not. Default: none.",
        examples=["5m"],
    )
    snapshot: SnapshotConfig = Field(SnapshotConfig(), description="Settings of the snapshots of tables.")
    apply: ApplyConfig = Field(ApplyConfig(), description="Settings of the writes to the target.")
    journal: JournalConfig = Field(
        JournalConfig(), description="Storage of captured changes between source and target, and its limits."
    )
    ddl: DDLConfig = Field(
        DDLConfig(), description="Policies for the target when a table's definition changes in the source."
    )
    retry: RetryConfig = Field(RetryConfig(), description="Limits on the retries of transient errors.")
    verify: VerifyConfig = Field(VerifyConfig(), description="Settings of the verification of tables.")
    alerts: AlertsConfig = Field(
        AlertsConfig(), description="Messages when something is wrong, and when it is right again. Default: none."
    )
    lineage: LineageConfig = Field(
        LineageConfig(), description="Destinations of events for OpenLineage. Default: none, and no events."
    )
    spark: SparkConfig = Field(SparkConfig(), description="The Spark that the target uses.")

    def ddl_for(self, table: TableId) -> DDLConfig:
        """Return the policies of a table: those under `ddl`, unless settings of the table name others."""
        own = self.tables.options_for(table).ddl
        return self.ddl.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

    def freshness_for(self, table: TableId) -> timedelta | None:
        """Return the freshness objective of a table: `freshness`, unless settings of the table name another, or none."""
        own = self.tables.options_for(table)
        return own.freshness if "freshness" in own.model_fields_set else self.freshness


def options_for(table: TableId, settings: Mapping[TablePattern, TableOptions]) -> TableOptions:
    """Return the settings of a table: those of every matching pattern; later ones win, setting by setting.

    Without those of its columns, which `replicator.projection` combines.
    """
    values: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    for pattern, block in settings.items():
        if pattern.matches(table):
            values |= {name: getattr(block, name) for name in block.model_fields_set - COMBINED}
            policies |= {name: getattr(block.ddl, name) for name in block.ddl.model_fields_set}
    return TableOptions(**values | {"ddl": TableDDLConfig(**policies)})
