"""The journal's index: segments, their files and events, in the order of sequence numbers.

`seal` is the commit point of capture. It runs about once a second over an index of thousands of segments, so everything it
reads is found by a primary key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Executable, Row, Table, delete, func, insert, select, update

from replicator.model.errors import FatalError
from replicator.model.offset import Offset
from replicator.model.schema import TableId, TableSchema
from replicator.state.codec import read_event, read_file, read_schema, write_event, write_file
from replicator.state.database.engine import Database, upsert
from replicator.state.database.errors import DamagedValueError
from replicator.state.records import EventEntry, Segment, SegmentFile
from replicator.state.tables import DROPPED, REPLICATORS, SCHEMAS, SEGMENT_EVENTS, SEGMENT_FILES, SEGMENTS

_KEYS_PER_STATEMENT = 500


def insert_segments(
    connection: Connection, name: str, segments: Sequence[Segment], schemas: Sequence[TableSchema]
) -> None:
    """Append segments that follow the newest one without a gap.

    The newest segment is deleted if it is empty: it only had the offset and the numbering, which the new ones have from now on.

    Raises:
        FatalError: `index_conflict`: another process has written under the same epoch.
    """
    newest = _newest(connection, name)
    _check_continuity(name, newest, segments)
    if newest is not None and newest.is_empty:
        connection.execute(delete(SEGMENTS).where((SEGMENTS.c.replicator == name) & (SEGMENTS.c.id == newest.id)))
    owner = {"replicator": name}
    times = [newest.source_time if newest is not None else None, *(s.source_time for s in segments)]
    rows = [{**owner, **_segment_row(s), "earlier_time": earlier} for s, earlier in zip(segments, times, strict=False)]
    _insert(connection, SEGMENTS, rows)
    _insert(
        connection,
        SEGMENT_FILES,
        [{**owner, "segment_id": s.id, **write_file(file)} for s in segments for file in s.files],
    )
    _insert(
        connection,
        SEGMENT_EVENTS,
        [{**owner, "segment_id": s.id, **write_event(entry)} for s in segments for entry in s.events],
    )
    documents = [
        {**owner, "table_name": str(s.table), "fingerprint": s.fingerprint, "document": s.to_json()} for s in schemas
    ]
    upsert(connection, SCHEMAS, documents)
    _add_bytes(connection, name, sum(file.bytes for segment in segments for file in segment.files))


def first_number(item: SegmentFile | EventEntry) -> int:
    """Return the lowest sequence number of a file or event: orders the items of one table."""
    return item.first if isinstance(item, SegmentFile) else item.sequence_num


def drop_segments(connection: Connection, name: str, ids: Sequence[int]) -> None:
    """Delete segments except the newest, and record up to which number each table's history was dropped."""
    newest = _newest(connection, name)
    wanted = sorted({i for i in ids if newest is not None and i != newest.id})
    for start in range(0, len(wanted), _KEYS_PER_STATEMENT):
        some = wanted[start : start + _KEYS_PER_STATEMENT]
        _remember_dropped(connection, name, some)
        dropped = select(func.sum(SEGMENT_FILES.c.byte_count)).where(
            SEGMENT_FILES.c.replicator == name, SEGMENT_FILES.c.segment_id.in_(some)
        )
        _add_bytes(connection, name, -int(connection.scalar(dropped) or 0))
        for table, column in (
            (SEGMENT_FILES, SEGMENT_FILES.c.segment_id),
            (SEGMENT_EVENTS, SEGMENT_EVENTS.c.segment_id),
            (SEGMENTS, SEGMENTS.c.id),
        ):
            connection.execute(delete(table).where((table.c.replicator == name) & column.in_(some)))


def _remember_dropped(connection: Connection, name: str, ids: Sequence[int]) -> None:
    rows = connection.execute(select(DROPPED).where(DROPPED.c.replicator == name))
    marks = {row.table_name: (row.incarnation, row.last_num) for row in rows}
    before = dict(marks)
    for table, number in ((SEGMENT_FILES, SEGMENT_FILES.c.last_num), (SEGMENT_EVENTS, SEGMENT_EVENTS.c.sequence_num)):
        query = (
            select(table.c.table_name, table.c.incarnation, func.max(number))
            .where(table.c.replicator == name, table.c.segment_id.in_(ids))
            .group_by(table.c.table_name, table.c.incarnation)
        )
        for text, incarnation, last in connection.execute(query):
            marks[text] = max(marks.get(text, (incarnation, last)), (incarnation, last))
    changed = {text: mark for text, mark in marks.items() if before.get(text) != mark}
    upsert(
        connection,
        DROPPED,
        [
            {"replicator": name, "table_name": text, "incarnation": incarnation, "last_num": last}
            for text, (incarnation, last) in changed.items()
        ],
    )


def _add_bytes(connection: Connection, name: str, nbytes: int) -> None:
    if nbytes:
        total = REPLICATORS.c.journal_bytes + nbytes
        connection.execute(update(REPLICATORS).where(REPLICATORS.c.name == name).values(journal_bytes=total))


def _highest_numbers(table: Table, number: Column[int], name: str) -> Executable:
    """Select rows of (table name, highest number): a loose index scan, `WITH RECURSIVE` from each table name to the next."""
    mine = table.c.replicator == name
    names = select(func.min(table.c.table_name).label("table_name")).where(mine).cte("names", recursive=True)
    following = select(func.min(table.c.table_name)).where(mine, table.c.table_name > names.c.table_name)
    names = names.union_all(select(following.scalar_subquery()).where(names.c.table_name.is_not(None)))
    highest = select(func.max(number)).where(mine, table.c.table_name == names.c.table_name)
    return select(names.c.table_name, highest.scalar_subquery()).where(names.c.table_name.is_not(None))


def _check_continuity(name: str, newest: Row[Any] | None, segments: Iterable[Segment]) -> None:
    id_, last = (0, -1) if newest is None else (newest.id, newest.last_num)
    for segment in segments:
        if segment.id != id_ + 1 or segment.first != last + 1 or segment.last < segment.first - 1:
            raise FatalError(
                f"The journal of {name} ends with segment {id_} at number {last}; segment {segment.id} with numbers {segment.first} "
                f"to {segment.last} does not continue it.",
                code="index_conflict",
                action="Make sure that only one worker runs this replicator, and start it again.",
            )
        id_, last = segment.id, segment.last


def _newest(connection: Connection, name: str) -> Row[Any] | None:
    query = select(SEGMENTS).where(SEGMENTS.c.replicator == name).order_by(SEGMENTS.c.id.desc()).limit(1)
    return connection.execute(query).one_or_none()


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), [dict(row) for row in rows])


def _segment_row(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "first_num": segment.first,
        "last_num": segment.last,
        "epoch": segment.epoch,
        "resume_offset": segment.offset.text if segment.offset else None,
        "source_time": segment.source_time,
        "ring": list(segment.ring),
        "is_empty": not segment.files and not segment.events,
        "sealed_at": segment.sealed_at,
    }


def _read_segment(row: Row[Any], files: Sequence[SegmentFile], events: Sequence[EventEntry]) -> Segment:
    return Segment(
        id=row.id,
        first=row.first_num,
        last=row.last_num,
        epoch=row.epoch,
        offset=None if row.resume_offset is None else Offset(row.resume_offset),
        source_time=row.source_time,
        ring=tuple(row.ring),
        files=tuple(files),
        events=tuple(events),
        sealed_at=row.sealed_at,
    )


def _table(text: str) -> TableId:
    try:
        return TableId.parse(text)
    except ValueError as error:
        raise DamagedValueError(str(error)) from error


class JournalIndex:
    """Reads the index of a journal. `StateStore.seal` writes it. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last_segment(self, name: str) -> Segment | None:
        """Return the newest segment: it has the offset, the ring and the numbering."""
        with self._database.read() as connection:
            newest = _newest(connection, name)
            return None if newest is None else _with_contents(connection, name, [newest])[0]

    def segments(self, name: str, after_id: int, limit: int) -> Sequence[Segment]:
        """Return segments in order, from the first with an id above `after_id`."""
        with self._database.read() as connection:
            mine = (SEGMENTS.c.replicator == name) & (SEGMENTS.c.id > after_id)
            rows = connection.execute(select(SEGMENTS).where(mine).order_by(SEGMENTS.c.id).limit(limit)).all()
            return _with_contents(connection, name, rows)

    def sealed_by(self, name: str, number: int) -> int | None:
        """Return the newest epoch that assigned numbers up to this one, of those that the journal still has; None if it has none."""
        with self._database.read() as connection:
            below = (SEGMENTS.c.replicator == name) & (SEGMENTS.c.first_num <= number)
            return connection.scalar(select(SEGMENTS.c.epoch).where(below).order_by(SEGMENTS.c.id.desc()).limit(1))

    def feed(self, name: str, table: TableId, after: int, limit: int) -> Sequence[SegmentFile | EventEntry]:
        """Return files (`last` > after) and events (number > after) of a table over all incarnations, in order of sequence numbers."""
        with self._database.read() as connection:
            files, events = SEGMENT_FILES.c, SEGMENT_EVENTS.c
            some_files = (
                select(SEGMENT_FILES)
                .where(files.replicator == name, files.table_name == str(table), files.last_num > after)
                .order_by(files.last_num)
                .limit(limit)
            )
            some_events = (
                select(SEGMENT_EVENTS)
                .where(events.replicator == name, events.table_name == str(table), events.sequence_num > after)
                .order_by(events.sequence_num)
                .limit(limit)
            )
            items: list[SegmentFile | EventEntry] = [read_file(row) for row in connection.execute(some_files)]
            items += [read_event(row) for row in connection.execute(some_events)]
            return sorted(items, key=first_number)[:limit]

    def feed_tables(self, name: str) -> Mapping[TableId, int]:
        """Return the highest sequence number of each table in the index: files and events."""
        with self._database.read() as connection:
            highest: dict[TableId, int] = {}
            for table, number in (
                (SEGMENT_FILES, SEGMENT_FILES.c.last_num),
                (SEGMENT_EVENTS, SEGMENT_EVENTS.c.sequence_num),
            ):
                for text, last in connection.execute(_highest_numbers(table, number, name)):
                    table_id = _table(text)
                    highest[table_id] = max(highest.get(table_id, last), last)
            return highest

    def feed_end(self, name: str, table: TableId) -> int | None:
        """Return the highest sequence number of one table in the index; None if it has nothing of the table."""
        with self._database.read() as connection:
            numbers = [
                connection.scalar(
                    select(func.max(number)).where(of.c.replicator == name, of.c.table_name == str(table))
                )
                for of, number in (
                    (SEGMENT_FILES, SEGMENT_FILES.c.last_num),
                    (SEGMENT_EVENTS, SEGMENT_EVENTS.c.sequence_num),
                )
            ]
            return max((number for number in numbers if number is not None), default=None)

    def schema(self, name: str, table: TableId, fingerprint: str) -> TableSchema:
        """Return the schema of a file's rows; CorruptStreamError (`corrupt_state`) if it is missing."""
        with self._database.read() as connection:
            mine = (
                (SCHEMAS.c.replicator == name)
                & (SCHEMAS.c.table_name == str(table))
                & (SCHEMAS.c.fingerprint == fingerprint)
            )
            document = connection.scalar(select(SCHEMAS.c.document).where(mine))
            if document is None:
                raise DamagedValueError(f"the schema {fingerprint} of {table} is missing")
            return read_schema(document)

    def uris(self, name: str) -> frozenset[str]:
        """Return the URI of every file that the index names."""
        with self._database.read() as connection:
            return frozenset(connection.scalars(select(SEGMENT_FILES.c.uri).where(SEGMENT_FILES.c.replicator == name)))

    def dropped(self, name: str, table: TableId) -> tuple[int, int] | None:
        """Return the latest incarnation of which something was dropped, and the highest number dropped of it."""
        with self._database.read() as connection:
            query = select(DROPPED).where(DROPPED.c.replicator == name, DROPPED.c.table_name == str(table))
            row = connection.execute(query).one_or_none()
            return None if row is None else (row.incarnation, row.last_num)

    def total_bytes(self, name: str) -> int:
        """Return the bytes of all files that the index names."""
        with self._database.read() as connection:
            return connection.scalar(select(REPLICATORS.c.journal_bytes).where(REPLICATORS.c.name == name)) or 0

    def snapshot_rows_above(self, name: str, table: TableId, incarnation: int, after: int) -> int:
        """Count the rows of a table's snapshots that the index has after a sequence number."""
        with self._database.read() as connection:
            files = SEGMENT_FILES.c
            mine = (files.replicator == name) & (files.table_name == str(table)) & (files.last_num > after)
            query = select(func.sum(files.snapshot_rows)).where(mine, files.incarnation == incarnation)
            return int(connection.scalar(query) or 0)

    def oldest_above(self, name: str, applied: Mapping[TableId, int]) -> datetime | None:
        """Return the time when the oldest segment was sealed that has something of a table above its given number; None if none has."""
        with self._database.read() as connection:
            files, oldest = SEGMENT_FILES.c, None
            for table, number in applied.items():
                above = (files.replicator == name) & (files.table_name == str(table)) & (files.last_num > number)
                found = connection.scalar(select(files.segment_id).where(above).order_by(files.last_num).limit(1))
                oldest = found if oldest is None or (found is not None and found < oldest) else oldest
            mine = (SEGMENTS.c.replicator == name) & (SEGMENTS.c.id == oldest)
            return None if oldest is None else connection.scalar(select(SEGMENTS.c.sealed_at).where(mine))


def _with_contents(connection: Connection, name: str, rows: Sequence[Row[Any]]) -> Sequence[Segment]:
    files: dict[int, list[SegmentFile]] = {row.id: [] for row in rows}
    events: dict[int, list[EventEntry]] = {row.id: [] for row in rows}
    if rows:
        low, high = rows[0].id, rows[-1].id
        column = SEGMENT_FILES.c
        of_files = select(SEGMENT_FILES).where(column.replicator == name, column.segment_id.between(low, high))
        for row in connection.execute(of_files.order_by(column.segment_id, column.first_num)):
            files[row.segment_id].append(read_file(row))
        column = SEGMENT_EVENTS.c
        of_events = select(SEGMENT_EVENTS).where(column.replicator == name, column.segment_id.between(low, high))
        for row in connection.execute(of_events.order_by(column.segment_id, column.sequence_num)):
            events[row.segment_id].append(read_event(row))
    return [_read_segment(row, files[row.id], events[row.id]) for row in rows]
