"""The tables of the state store in the current format.

Times are text (UTC, microseconds), so that they sort as they read and
look alike in SQLite and PostgreSQL; documents are JSON text.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, MetaData, Table, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from replicator.state.database.errors import DamagedValueError

METADATA: Final = MetaData()


class Json(TypeDecorator[Any]):
    """A JSON document as text; SQL NULL is None."""

    impl = Text
    cache_ok = True

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert Python to text."""
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Convert text to Python."""
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise DamagedValueError(f"a document is not JSON ({error})") from error


class Moment(TypeDecorator[datetime]):
    """An aware time in UTC as `2026-01-31T23:59:59.000000Z`."""

    impl = Text
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        """Convert Python to text."""
        if value is None:
            return None
        assert value.tzinfo is not None, "times are aware"
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        """Convert text to Python."""
        if value is None:
            return None
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except ValueError as error:
            raise DamagedValueError(f"{value!r} is not a time") from error


def _owner() -> Column[str]:
    return Column("replicator", Text, ForeignKey("replicators.name"), primary_key=True)


STORE: Final = Table(
    "store",
    METADATA,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("format_version", Integer, nullable=False),
    # Ids of requests and runs are drawn from here, so that none is ever used twice.
    Column("last_id", BigInteger, nullable=False),
    # The highest epoch of any deleted replicator: one of the same name made later begins above it.
    Column("epoch_floor", BigInteger, nullable=False),
)

REPLICATORS: Final = Table(
    "replicators",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("uuid", Text, nullable=False, unique=True),
    Column("desired", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("identity", Json, nullable=False),
    Column("preparation", Text, nullable=False),
    Column("start_offset", Text),
    Column("journal_uri", Text, nullable=False),
    Column("apply_paused", Boolean, nullable=False),
    Column("error", Json),
    Column("created_at", Moment, nullable=False),
    # Sum over the files in the index, which may be hundreds of thousands.
    Column("journal_bytes", BigInteger, nullable=False),
    Column("restarted_at", Moment),
)

# One row per replicator for its whole life: the epoch must survive a release. A free lease has no holder.
LEASES: Final = Table(
    "leases",
    METADATA,
    _owner(),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text),
    Column("expires_at", Moment),
    # Per token that capture claimed the journal's folder with, the highest count; the latest tokens, in order.
    Column("journal_claims", Json, nullable=False),
)

SEGMENTS: Final = Table(
    "segments",
    METADATA,
    _owner(),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("first_num", BigInteger, nullable=False),
    Column("last_num", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("resume_offset", Text),
    Column("source_time", Moment),
    # That of the segment before, which may be deleted.
    Column("earlier_time", Moment),
    Column("ring", Json, nullable=False),
    # Neither files nor events: it only moves the offset.
    Column("is_empty", Boolean, nullable=False),
    Column("sealed_at", Moment, nullable=False),
)

# `last_num` belongs to one row of one table, so it tells files apart. Files of one table never overlap.
SEGMENT_FILES: Final = Table(
    "segment_files",
    METADATA,
    _owner(),
    Column("segment_id", BigInteger, primary_key=True, autoincrement=False),
    Column("last_num", BigInteger, primary_key=True, autoincrement=False),
    Column("first_num", BigInteger, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("schema_fingerprint", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("byte_count", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("snapshot_rows", BigInteger, nullable=False),
    Column("has_absent", Boolean, nullable=False),
    Column("has_key_changes", Boolean, nullable=False),
    # Last segment of the commit that sealed it.
    Column("seal_id", BigInteger, nullable=False),
    Index("segment_files_feed", "replicator", "table_name", "last_num"),
)

SEGMENT_EVENTS: Final = Table(
    "segment_events",
    METADATA,
    _owner(),
    Column("segment_id", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence_num", BigInteger, primary_key=True, autoincrement=False),
    Column("table_name", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("event", Json, nullable=False),
    Index("segment_events_feed", "replicator", "table_name", "sequence_num"),
)

SCHEMAS: Final = Table(
    "schemas",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    Column("document", Json, nullable=False),
)

# End of the part of a table's latest dropped incarnation that retention has dropped.
DROPPED: Final = Table(
    "dropped",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("last_num", BigInteger, nullable=False),
)

TABLES: Final = Table(
    "tables",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("stage", Text, nullable=False),
    Column("record", Json, nullable=False),
    Column("is_altered", Boolean, nullable=False),
    # Its name in the source, where it was renamed there.
    Column("source_table", Text),
)

APPLIED: Final = Table(
    "applied",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("claimed_by", BigInteger, nullable=False),
    Column("last_applied", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("error", Json),
    Column("record", Json, nullable=False),
)

# Results of comparisons of both sides, per table.
VERIFICATIONS: Final = Table(
    "verifications",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("record", Json, nullable=False),
)

# Of tables that are compared range by range: the compared ranges, in no order.
VERIFIED_RANGES: Final = Table(
    "verified_ranges",
    METADATA,
    _owner(),
    Column("table_name", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("record", Json, nullable=False),
)

# The latest changes of tables' definitions. They outlive the segments and shapes of the journal, so a row has all that is shown of it.
HISTORY: Final = Table(
    "history",
    METADATA,
    _owner(),
    # Ascending per replicator, without gaps.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence_num", BigInteger, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    # The position from which the log is read after the commit that sealed it.
    Column("resume_offset", Text),
    Column("entry", Json, nullable=False),
    Index("history_of_table", "replicator", "table_name", "id"),
)

# Counters, kept for as long as the replicator exists.
COUNTERS: Final = Table(
    "counters",
    METADATA,
    _owner(),
    Column("counter", Text, primary_key=True),
    Column("labels", Json, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# The process that does a side job of a replicator (alerts, lineage), and the job's state.
WATCHES: Final = Table(
    "watches",
    METADATA,
    _owner(),
    Column("job", Text, primary_key=True),
    Column("holder", Text),
    Column("expires_at", Moment),
    Column("record", Json, nullable=False),
)

# Problems of a replicator or of a table of it, and the messages about them. `subject`: the table, or nothing.
ALERTS: Final = Table(
    "alerts",
    METADATA,
    _owner(),
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("record", Json, nullable=False),
)

# Messages that wait for their channel.
ALERT_MESSAGES: Final = Table(
    "alert_messages",
    METADATA,
    _owner(),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("channel", Text, nullable=False),
    Column("record", Json, nullable=False),
)

REQUESTS: Final = Table(
    "requests",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("replicator", Text, ForeignKey("replicators.name"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", Json, nullable=False),
    Column("created_at", Moment, nullable=False),
)

STATUSES: Final = Table(
    "statuses",
    METADATA,
    _owner(),
    Column("role", Text, primary_key=True),
    Column("updated_at", Moment, nullable=False),
    Column("document", Json, nullable=False),
)

RUNS: Final = Table(
    "runs",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("replicator", Text, ForeignKey("replicators.name"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("outcome", Text),
    Column("error", Json),
)

# Freshness of a replicator, one row per minute.
POINTS: Final = Table(
    "points",
    METADATA,
    _owner(),
    Column("minute", Moment, primary_key=True),
    Column("freshness_ms", BigInteger),
    Column("late", BigInteger, nullable=False),
)

# The processes that run replicators (`serve`), with their last report. They belong to no replicator.
WORKERS: Final = Table(
    "workers",
    METADATA,
    Column("holder", Text, primary_key=True),
    Column("capacity", BigInteger, nullable=False),
    Column("is_draining", Boolean, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    # Per replicator that it cannot run: the reason.
    Column("refusals", Json, nullable=False),
)

# Tokens of the REST API; only hashes of them. They belong to no replicator.
TOKENS: Final = Table(
    "tokens",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
)

OWNED: Final = (
    LEASES, SEGMENT_FILES, SEGMENT_EVENTS, SEGMENTS, SCHEMAS, DROPPED, TABLES, APPLIED, VERIFICATIONS, VERIFIED_RANGES, HISTORY,
    COUNTERS, WATCHES, ALERTS, ALERT_MESSAGES, REQUESTS, STATUSES, RUNS, POINTS,
)  # fmt: skip
"""All tables whose rows belong to one replicator."""
