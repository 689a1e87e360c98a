"""A page of the log: the changes of some commits, put in order over all tables and delivered in pieces.

Commits follow each other by `__$start_lsn`. Inside one, `__$command_id` is numbered for each instance alone, so it orders one table only.
Over the tables of a commit the highest `__$seqval` that a table has reached decides: it is a position in the log. It never changes the
order of the rows of one table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.model.events import change_schema
from replicator.plugins.kit.arrow import Longs
from replicator.plugins.source import TRANSACTION_SCHEMA, LogBatch, TableChanges
from replicator_source_sqlserver.cdc.change_table import LSN, Decoded
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.lsn import SIZE, lsn_to_text

_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A transaction, or an entry without one. `moment`: by the server's clock, without a zone."""

    lsn: bytes
    moment: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Changes of one table in a page; `ordinals` ascend, `owners` are numbers of commits with changes."""

    decoded: Decoded
    ordinals: Longs
    owners: Longs


class Page:
    """The changes of some commits, which `take` returns in pieces.

    Args:
        tables: The changes that were read, at most one part for each table; of a transaction that is read in parts, a part.
        commits: All commits of the page, in order.
        zone: The offset of the server's clock from UTC.
        is_whole: True if the last commit ends in the page; if not, the page has only one.
        position_of: Returns the position after a commit.
        marks: The marks reached at the end of the page.
    """

    def __init__(
        self,
        tables: Sequence[Decoded],
        commits: Sequence[Commit],
        *,
        zone: timedelta,
        position_of: Callable[[bytes], Position],
        is_whole: bool = True,
        marks: Sequence[str] = (),
    ) -> None:
        starts = np.concatenate([np.empty(0, LSN), *(table.starts for table in tables)])
        seqvals = np.concatenate([np.empty(0, LSN), *(table.seqvals for table in tables)])
        # Numbers in the order of the texts.
        used, owner = np.unique(starts, return_inverse=True)
        _, rank = np.unique(seqvals, return_inverse=True)
        bounds = np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.int64)
        height = np.concatenate(
            [
                np.empty(0, np.int64),
                *(_height(owner[a:b], rank[a:b], len(starts)) for a, b in itertools.pairwise(bounds)),
            ]
        )
        ordinals = np.empty(len(starts), np.int64)
        ordinals[np.argsort(height, kind="stable")] = np.arange(len(starts))
        self._tables = [
            _Rows(decoded=table, ordinals=ordinals[a:b], owners=owner[a:b])
            for table, a, b in zip(tables, bounds, bounds[1:], strict=False)
            if len(table)
        ]
        by_lsn = {commit.lsn: commit for commit in commits}
        # numpy leaves out the zeros at the end of bytes.
        self._used = [by_lsn[bytes(lsn).ljust(SIZE, b"\0")] for lsn in used]
        self._ends = np.cumsum(np.bincount(owner, minlength=len(used))).astype(np.int64)
        self._zone, self._is_whole, self._position_of, self._marks = zone, is_whole, position_of, marks
        self._end = commits[-1]
        self._at = 0
        self._is_over = False
        self.events = len(starts)
        self.bytes = sum(table.bytes for table in tables)

    @property
    def is_over(self) -> bool:
        """Return whether everything was taken."""
        return self._is_over

    def take(self, rows: int) -> LogBatch:
        """Take the next changes, at most `rows`; the last piece also has the page's marks and its end."""
        first, last = self._at, min(self.events, self._at + max(1, rows))
        self._at = last
        self._is_over = last == self.events
        ended = [n for n, end in enumerate(self._ends) if first < end <= last or (end == 0 and self._is_whole)]
        if self._is_over and not self._is_whole and ended:
            ended.pop()
        is_end = self._is_over and self._is_whole
        behind = self._end if is_end else self._used[ended[-1]] if ended else None
        return LogBatch(
            open_transaction=None if is_end else self._open_at(last),
            changes=[changes for table in self._tables if (changes := self._piece(table, first, last)) is not None],
            events=last - first,
            transactions=self._transactions(ended, first),
            marks=self._marks if is_end else (),
            offset=self._position_of(behind.lsn).offset if behind is not None else None,
            source_time=self.utc(behind.moment) if behind is not None else None,
        )

    def utc(self, moment: datetime) -> datetime:
        """Convert a time of the server's clock to UTC. Its times are rounded to 1/300 s: the result is never later than it was."""
        return (moment - self._zone - timedelta(milliseconds=4)).replace(tzinfo=UTC)

    def _open_at(self, ordinal: int) -> str | None:
        if not self._is_whole:
            return lsn_to_text(self._used[-1].lsn) if self._used else None
        owner = int(np.searchsorted(self._ends, ordinal, side="right"))
        begun = self._ends[owner - 1] if owner else 0
        return lsn_to_text(self._used[owner].lsn) if owner < len(self._used) and begun < ordinal else None

    def _piece(self, table: _Rows, first: int, last: int) -> TableChanges | None:
        a, b = (int(np.searchsorted(table.ordinals, at)) for at in (first, last))
        if a == b:
            return None
        decoded, owners = table.decoded, table.owners[a:b]
        arrays = [
            pa.array(table.ordinals[a:b] - first),
            decoded.operations.slice(a, b - a),
            pa.repeat(pa.scalar(False), b - a),
            self._times(self._used).take(pa.array(owners)),
            pa.array([lsn_to_text(c.lsn) for c in self._used], pa.string()).take(pa.array(owners)),
            decoded.absent.slice(a, b - a),
            decoded.before.slice(a, b - a),
            decoded.row.slice(a, b - a),
        ]
        schema = decoded.schema
        return TableChanges(schema=schema, rows=pa.RecordBatch.from_arrays(arrays, schema=change_schema(schema)))

    def _times(self, commits: Sequence[Commit]) -> pa.Array:
        return pa.array([(c.moment - self._zone).replace(tzinfo=UTC) for c in commits], _TIMESTAMP)

    def _transactions(self, ended: Sequence[int], first: int) -> pa.RecordBatch:
        commits = [self._used[n] for n in ended]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([lsn_to_text(c.lsn) for c in commits], pa.string()),
                pa.array([int(self._ends[n]) - first for n in ended], pa.int64()),
                self._times(commits),
            ],
            schema=TRANSACTION_SCHEMA,
        )


def _height(owner: npt.NDArray[Any], rank: npt.NDArray[Any], count: int) -> Longs:
    """Return, for each row of one table, its commit, and how far in it the table has come."""
    return np.maximum.accumulate(owner.astype(np.int64) * (count + 1) + rank) if len(owner) else np.empty(0, np.int64)
