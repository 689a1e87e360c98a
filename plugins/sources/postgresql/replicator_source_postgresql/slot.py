"""What a replicator keeps in the source: its publication and its replication slot, and whether the log still joins there.

Order of making: publication, then slot (a slot older than its publication fails for ever). Order of removal: slot,
then publication, whose comment says whose both are. A crash between two steps leaves something that the next call
finds and brings in line.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from replicator.model.errors import ConfigError, LogGapError, OffsetExpiredError, Problem, SourceUnavailableError
from replicator.model.schema import TableId
from replicator_source_postgresql.catalogue import CatalogTable, Publication
from replicator_source_postgresql.discovery import Connection, read_publication
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text
from replicator_source_postgresql.position import Position

PLUGIN: Final = "pgoutput"
VERSION_INVALIDATION_REASON: Final = 170000
NAME_BYTES_MAX: Final = 63
BLOCKERS_MAX: Final = 20
RESTART_ACTION: Final = (
    "`replicator snapshot {name} --restart` starts at a new place in the log"
    " and takes a new snapshot of every table, in place."
)

_PREFIX: Final = "replicator_"
_COMMENT: Final = "Made by the Replicator for {name} ({uuid}). Dropped by `replicator delete {name}`."
_COMMENT_PATTERN: Final = re.compile(r"Made by the Replicator for (\S+) \(([^)]*)\)")


def resource_name(replicator: str) -> str:
    """The name of slot and publication of a replicator, unlike that of any other replicator.

    Slots allow no hyphen. Where replacing it, or the length, could make two names one, a hash of the name tells them apart.
    """
    name = _PREFIX + replicator.replace("-", "_")
    if "-" not in replicator and len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(replicator.encode()).hexdigest()[:8]
    return f"{name[: NAME_BYTES_MAX - 9]}_{digest}"


# -- publication ---------------------------------------------------------------------------------------------------------


def publication_statement(name: str, tables: Sequence[TableId]) -> str:
    """`CREATE PUBLICATION` that lists the tables by name."""
    # ONLY: the children of an inheritance tree are tables of their own. It means nothing for partitioned tables,
    # whose partitions always belong to them.
    listed = f" FOR TABLE {_table_list(tables)}" if tables else ""
    return (
        f"CREATE PUBLICATION {_quote(name)}{listed}"
        " WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
    )


def belongs_to_another(publication: Publication, uuid: str) -> bool:
    """Whether the publication's comment names another replicator than `uuid`. Unknown on either side: no."""
    match = _COMMENT_PATTERN.search(publication.comment or "")
    return bool(match and match[2] and uuid and match[2] != uuid)


def align_publication(
    connection: Connection, name: str, tables: Sequence[CatalogTable], *, replicator: str, uuid: str
) -> None:
    """Make our publication list exactly these tables, in one transaction. Replay: does nothing.

    Tables that are in it and stay are not touched.

    Raises:
        ConfigError: The publication is not ours, or a table cannot be published without making the application's updates fail.
    """
    publication = read_publication(connection, name)
    _refuse_foreign(publication, name, uuid)
    listed = publication.tables if publication else frozenset()
    wanted = {table.table for table in tables}
    added = [table for table in tables if table.table not in listed]
    # A partition's changes are published as its root's, also if it became one after it was listed.
    _refuse_unfit([*added, *(table for table in tables if table.is_partition and table.table in listed)])
    comment = sql.Literal(_COMMENT.format(name=replicator, uuid=uuid)).as_string(None)
    statements = []
    if publication is None:
        statements.append(publication_statement(name, [table.table for table in tables]))
        statements.append(f"COMMENT ON PUBLICATION {_quote(name)} IS {comment}")
    else:
        if removed := sorted(listed - wanted):
            statements.append(f"ALTER PUBLICATION {_quote(name)} DROP TABLE {_table_list(removed)}")
        # Somebody's column list or row filter would make the copy partial. Listed anew, the table has another
        # identity, which the host notices.
        if narrowed := sorted(t.table for t in tables if t.table in listed and _is_narrowed(t)):
            statements.append(f"ALTER PUBLICATION {_quote(name)} DROP TABLE {_table_list(narrowed)}")
            added = [*added, *(t for t in tables if t.table in set(narrowed))]
        if added:
            statements.append(f"ALTER PUBLICATION {_quote(name)} ADD TABLE {_table_list([t.table for t in added])}")
        if publication.operations != _ALL_OPERATIONS or not publication.via_root:
            statements.append(
                f"ALTER PUBLICATION {_quote(name)} SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
            )
    if not statements:
        return
    with connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())


def verify_publication(publication: Publication | None, name: str, tables: Sequence[CatalogTable]) -> None:
    """See that the user's publication lists the tables.

    Raises:
        ConfigError: It does not exist, or lacks some.
    """
    if publication is None:
        statement = publication_statement(name, [table.table for table in tables])
        raise ConfigError(
            f"there is no publication {name} in the source.",
            code="publication_missing",
            action=f"Run there: {statement};",
        )
    _refuse_unfit([table for table in tables if table.is_partition])
    lacking = [table.table for table in tables if table.published is None]
    if lacking:
        message = f"the publication {name} does not list"
        action = "Run in the source: ALTER PUBLICATION {publication} ADD TABLE {tables};"
        raise ConfigError(
            f"{message} {', '.join(map(str, lacking))}.",
            code="table_not_published",
            action=action.format(publication=_quote(name), tables=_table_list(lacking)),
            problems=tuple(
                Problem(
                    code="table_not_published",
                    message=f"{message} it",
                    place=str(table),
                    action=action.format(publication=_quote(name), tables=_table_list([table])),
                )
                for table in lacking
            ),
        )


def drop_publication(connection: Connection, name: str) -> None:
    """Drop our publication. Replay: does nothing."""
    connection.execute(f"DROP PUBLICATION IF EXISTS {_quote(name)}".encode())


_ALL_OPERATIONS: Final = frozenset({"insert", "update", "delete", "truncate"})


def _refuse_foreign(publication: Publication | None, name: str, uuid: str) -> None:
    if publication is None:
        return
    if belongs_to_another(publication, uuid):
        raise ConfigError(
            f"the publication {name} in the source, and the slot of that name, belong to another replicator of this name.",
            code="publication_of_another",
            action="Rename this replicator; or, if the other one is gone for good, drop its slot and its publication.",
        )
    if publication.is_for_all_tables or publication.schemas:
        raise ConfigError(
            f"the publication {name} in the source is for all tables or for schemas, so it is not one that we made.",
            code="publication_name_taken",
            action="Rename the replicator, or drop that publication.",
        )


def _refuse_unfit(tables: Sequence[CatalogTable]) -> None:
    unfit = [table for table in tables if table.key_fault is not None or table.is_partition]
    if not unfit:
        return
    names = ", ".join(str(table.table) for table in unfit)
    why = "are partitions" if all(table.is_partition for table in unfit) else "have no usable identity"
    raise ConfigError(
        f"these tables {why}: {names}.",
        code="table_not_publishable",
        action="`replicator validate` prints the SQL that cures them.",
        problems=tuple(map(_unfit_problem, unfit)),
    )


def _unfit_problem(table: CatalogTable) -> Problem:
    if table.is_partition:
        return Problem(
            code="is_partition",
            message="it is a partition: its changes are published as those of its root",
            place=str(table.table),
            action="Take it out of `tables.include` and name its root instead.",
        )
    assert table.key_fault is not None
    return Problem(
        code=table.key_fault.value,
        message="it cannot be published: its changes could not be attributed to rows, and its updates might fail",
        place=str(table.table),
    )


def _is_narrowed(table: CatalogTable) -> bool:
    return table.published is not None and (
        table.published.columns is not None or table.published.row_filter is not None
    )


def _table_list(tables: Sequence[TableId]) -> str:
    return ", ".join(f"ONLY {sql.Identifier(t.namespace, t.name).as_string(None)}" for t in tables)


# -- slot ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A replication slot as the server shows it. `lost` says why it can no longer be read, None if it can."""

    name: str
    plugin: str | None
    database: str | None
    is_temporary: bool
    active_pid: int | None
    confirmed_flush: int | None
    lost: str | None

    def unusable_in(self, database: str) -> str | None:
        """Why the slot cannot serve for this database, whatever its position; None if it can."""
        if self.plugin is None:
            return "is a physical slot"
        if self.plugin != PLUGIN:
            return f"was made with the plugin {self.plugin}, not with {PLUGIN}"
        if self.database != database:
            return f"belongs to the database {self.database}"
        return "is temporary" if self.is_temporary else None


def read_slot(connection: Connection, name: str) -> SlotState | None:
    """Read a slot; None if there is none of that name."""
    reason = "invalidation_reason" if connection.info.server_version >= VERSION_INVALIDATION_REASON else "NULL::text"
    row = connection.execute(
        f"SELECT plugin, database, temporary, active_pid, confirmed_flush_lsn::text, wal_status, {reason}"  # noqa: S608 our own text
        " FROM pg_replication_slots WHERE slot_name = %s".encode(),
        (name,),
    ).fetchone()
    if row is None:
        return None
    plugin, database, is_temporary, pid, flushed, wal_status, invalidation = row
    lost = invalidation or ("wal_removed" if wal_status == "lost" else None)
    return SlotState(
        name=name,
        plugin=plugin,
        database=database,
        is_temporary=is_temporary,
        active_pid=pid,
        confirmed_flush=lsn_from_text(flushed) if flushed else None,
        lost=lost,
    )


def create_slot(replication: Connection, name: str) -> int:
    """Make the slot and return its consistent point. Waits for the transactions that are open now; cancelled, nothing is left.

    Args:
        replication: A replication connection without statement and lock time-outs.
        name: The slot's name.
    """
    row = replication.execute(
        f"CREATE_REPLICATION_SLOT {_quote(name)} LOGICAL {PLUGIN} NOEXPORT_SNAPSHOT".encode()
    ).fetchone()
    assert row is not None
    return lsn_from_text(row[1])


def drop_slot(replication: Connection, slot: SlotState, *, wait_s: float) -> None:
    """Drop the slot, waiting so long for its present user to let go of it. Replay: does nothing.

    A reader that was killed a moment ago still counts as its user until the server has noticed.

    Args:
        replication: A replication connection without statement and lock time-outs.
        slot: The slot as it was seen.
        wait_s: Bound of the wait, in seconds.

    Raises:
        TransientError: `slot_active`.
    """
    try:
        with _cancelled_after(replication, wait_s):
            replication.execute(f"DROP_REPLICATION_SLOT {_quote(slot.name)} WAIT".encode())
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.QueryCanceled as error:
        raise slot_active_error(slot.name, slot.active_pid) from error


def slot_active_error(name: str, pid: int | None) -> SourceUnavailableError:
    """The error for a slot that somebody else reads."""
    holder = f"the server process {pid}" if pid is not None else "another process"
    return SourceUnavailableError(
        f"the replication slot {name} is in use by {holder}.",
        code="slot_active",
        action="End its other user: a second replicator of this name, or a reader that was killed a moment ago.",
    )


@contextmanager
def _cancelled_after(connection: Connection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.cancel_safe)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def blockers(connection: Connection, waiting_pid: int) -> list[str]:
    """Who keeps the making of a slot, by the server process `waiting_pid`, from ending; empty if nobody does.

    The server waits for the open writing transactions of all databases, one after the other; those that it waits for now come first.
    """
    rows = connection.execute(_BLOCKERS_QUERY, {"pid": waiting_pid, "limit": BLOCKERS_MAX}).fetchall()
    return [_blocker_text(*row) for row in rows]


def unfinished(connection: Connection, next_id: int) -> list[str]:
    """Who has a transaction id below `next_id` (64 bits) and has not ended; the oldest first."""
    rows = connection.execute(_UNFINISHED_QUERY, {"next": next_id % (1 << 32), "limit": BLOCKERS_MAX}).fetchall()
    return [_blocker_text(*row) for row in rows]


def _blocker_text(
    pid: int | None, user: str | None, database: str | None, state: str | None, since: str | None, prepared: str | None
) -> str:
    if pid is None:
        return f"the prepared transaction {prepared!r} in {database}"
    details = [
        f"user {user}" if user else None,
        f"database {database}" if database else None,
        state,
        f"open since {since}" if since else None,
    ]
    text = ", ".join(detail for detail in details if detail)
    return f"pid {pid}" + (f" ({text})" if text else "")


# A transaction that has an id holds the exclusive lock on it, and so does a prepared one, without a process.
_HOLDERS: Final = """
holders AS (SELECT DISTINCT l.pid, CASE WHEN l.pid IS NULL THEN l.transactionid END AS prepared_id FROM pg_locks l
  WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND {condition})
SELECT h.pid, a.usename, coalesce(a.datname, x.database), a.state, to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS TZ'), x.gid
FROM holders h
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts x ON h.pid IS NULL AND x.transaction = h.prepared_id
"""
# Ids go round: the half of the circle before one is older than it.
_UNFINISHED_QUERY: Final = f"""
WITH {_HOLDERS.format(condition="(l.transactionid::text::int8 - %(next)s + 6442450944) %% 4294967296 < 2147483648")}
ORDER BY coalesce(a.xact_start, x.prepared), h.pid
LIMIT %(limit)s
"""
_BLOCKERS_QUERY: Final = f"""
WITH waits_for AS (SELECT unnest(pg_blocking_pids(%(pid)s)) AS pid),
{_HOLDERS.format(condition="l.pid IS DISTINCT FROM %(pid)s")}
WHERE EXISTS (SELECT FROM waits_for)
ORDER BY coalesce(h.pid, 0) IN (SELECT pid FROM waits_for) DESC, coalesce(a.xact_start, x.prepared), h.pid
LIMIT %(limit)s
"""  # noqa: S608 our own text


# -- whether the log joins -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What IDENTIFY_SYSTEM says."""

    identifier: str
    timeline: int


def identify_system(replication: Connection) -> System:
    """Ask a replication connection which server this is."""
    row = replication.execute(b"IDENTIFY_SYSTEM").fetchone()
    assert row is not None
    return System(identifier=row[0], timeline=int(row[1]))


def read_timeline_history(replication: Connection, timeline: int) -> dict[int, int]:
    """Where each timeline that leads to this one ended, by its number."""
    if timeline == 1:
        return {}
    row = replication.execute(f"TIMELINE_HISTORY {timeline}".encode()).fetchone()
    assert row is not None
    content = row[1]
    return parse_timeline_history(content.decode() if isinstance(content, bytes) else content)


def parse_timeline_history(text: str) -> dict[int, int]:
    """Read a timeline history file: lines of timeline, switch point, reason."""
    switches = {}
    for line in text.splitlines():
        fields = line.split("#", 1)[0].split()
        if fields:
            timeline, switch, *_ = fields
            switches[int(timeline)] = lsn_from_text(switch)
    return switches


def verify_joins(
    slot: SlotState | None,
    slot_name: str,
    database: str,
    after: Position,
    system: System,
    history: dict[int, int],
    log_end: int | None,
    replicator: str,
) -> None:
    """See that the log continues exactly behind `after`: same server, same history, a slot that was never moved beyond it.

    `log_end`: up to where the server's log is on disk; None on a standby.

    Raises:
        LogGapError: It does not.
        OffsetExpiredError: The slot has lost its log.
        TransientError: Somebody else reads the slot.
    """
    if fault := _gap(slot, slot_name, database, after, system, history, log_end):
        raise _gap_error(fault, replicator)
    assert slot is not None
    if slot.lost is not None:
        raise OffsetExpiredError(
            f"the replication slot {slot_name} has lost its log ({slot.lost}).",
            code="slot_lost",
            action=RESTART_ACTION.format(name=replicator),
        )
    if slot.active_pid is not None:
        raise slot_active_error(slot_name, slot.active_pid)


def verify_not_moved(slot: SlotState | None, slot_name: str, after: Position, replicator: str) -> None:
    """See that a slot that is being read was not made anew, beyond `after`, since `verify_joins`.

    Raises:
        LogGapError: It was.
    """
    if slot is not None and (fault := _ahead(slot, slot_name, after)):
        raise _gap_error(fault, replicator)


def _gap_error(fault: tuple[str, str], replicator: str) -> LogGapError:
    code, message = fault
    return LogGapError(message, code=code, action=RESTART_ACTION.format(name=replicator))


def _gap(
    slot: SlotState | None,
    slot_name: str,
    database: str,
    after: Position,
    system: System,
    history: dict[int, int],
    log_end: int | None,
) -> tuple[str, str] | None:
    if system.identifier != after.system:
        return (
            "other_system",
            f"the server's system identifier is {system.identifier}, the recorded position belongs to {after.system}.",
        )
    if system.timeline != after.timeline:
        switch = history.get(after.timeline)
        if switch is None:
            return (
                "other_timeline",
                f"the server is on timeline {system.timeline}, which does not descend from the recorded timeline {after.timeline}.",
            )
        if switch < after.lsn:
            places = f"at {lsn_to_text(switch)}, before the recorded position {lsn_to_text(after.lsn)}"
            return "timeline_behind", f"the server went over to timeline {system.timeline} {places}."
    if log_end is not None and log_end < after.lsn:
        places = f"ends at {lsn_to_text(log_end)}, before the recorded position {lsn_to_text(after.lsn)}"
        return "log_behind", f"the server's log {places}: it was set back to an older state."
    if slot is None:
        return (
            "slot_missing",
            f"the replication slot {slot_name} does not exist; what was committed since {lsn_to_text(after.lsn)} may be lost.",
        )
    if fault := slot.unusable_in(database):
        return "slot_replaced", f"the replication slot {slot_name} {fault}."
    return _ahead(slot, slot_name, after)


def _ahead(slot: SlotState, slot_name: str, after: Position) -> tuple[str, str] | None:
    if slot.lost is None and slot.confirmed_flush is not None and slot.confirmed_flush > after.lsn:
        places = f"stands at {lsn_to_text(slot.confirmed_flush)}, beyond the recorded position {lsn_to_text(after.lsn)}"
        return "slot_ahead", f"the replication slot {slot_name} {places}: it was made anew or moved by somebody else."
    return None


def verify_usable(slot: SlotState | None, name: str, database: str) -> SlotState:
    """See that the user's own slot can be read from now on.

    Raises:
        ConfigError: It does not exist, is of another kind, or has lost its log.
        TransientError: Somebody reads it.
    """
    if slot is None:
        literal = sql.Literal(name).as_string(None)
        raise ConfigError(
            f"there is no replication slot {name} in the source.",
            code="slot_missing",
            action=f"Run there: SELECT pg_create_logical_replication_slot({literal}, '{PLUGIN}'); or leave source.slot out.",
        )
    if fault := slot.unusable_in(database):
        raise ConfigError(
            f"the replication slot {name} {fault}.",
            code="slot_unusable",
            action=f"Name a lasting logical slot of this database made with {PLUGIN}.",
        )
    if slot.lost is not None:
        raise ConfigError(
            f"the replication slot {name} has lost its log ({slot.lost}).",
            code="slot_lost",
            action="Drop it and make it again.",
        )
    if slot.active_pid is not None:
        raise slot_active_error(name, slot.active_pid)
    return slot


def _quote(name: str) -> str:
    return sql.Identifier(name).as_string(None)
