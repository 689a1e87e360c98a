"""Scopes: the rows of a table that are compared. A scope chooses again whenever the table's definition may have changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from replicator.journal.reader import JournalReader
from replicator.model.documents.verdict import Result
from replicator.plugins.kit.canonical import DIGEST_DIGITS
from replicator.plugins.verification import IDS_MAX, Among, Below, Ids
from replicator.state.records import TableRecord
from replicator.state.store import StateStore
from replicator.verify.barriers import Barriers, NotVerifiedError
from replicator.verify.keys import ids_of
from replicator.verify.moving import Moving, TableChangedError
from replicator.verify.verdicts import Extent

PERCENT_MAX: Final = 100
_LARGER: Final = 100
"""Factor by which a sample grows if it has no rows."""
_IDS: Final = 16**DIGEST_DIGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The rows of one table that are compared.

    Attributes:
        among: Their ids; None: all rows.
        sample: Their part of the table, in percent.
    """

    extent: Extent = Extent.TABLE
    among: Among | None = None
    sample: float | None = None

    @property
    def keys(self) -> int | None:
        """Return the number of rows that are looked for, if they are known one by one."""
        return len(self.among.ids) if isinstance(self.among, Ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJournal:
    """A table, as it is compared, and its part of the journal (`moving`)."""

    record: TableRecord
    moving: Moving
    store: StateStore
    reader: JournalReader
    barriers: Barriers
    name: str

    def changed_since(self, moment: datetime) -> frozenset[str] | None:
        """Return the ids of rows that the journal says were changed since then: at least those that were committed since then.

        None: there are too many, or the whole table was changed, or its definition.

        Raises:
            NotVerifiedError: The journal does not have all of these changes any more.
        """
        with self.barriers.held() as now:
            upto = now.position  # everything that was committed by now
        after = self._last_before(moment)
        self._check_kept(moment, after)
        found = self._changed(after, upto)
        if found is not None:
            self._check_kept(moment, after)
        return found

    def changed_behind(self, position: int) -> frozenset[str] | None:
        """Return the ids of rows that were changed after a position. None: as `changed_since`, or the journal does not keep all changes."""
        with self.barriers.held() as now:
            upto = now.position
        found = self._changed(position, upto)
        is_lost = self.reader.is_lost(self.record.table, self.record.incarnation, position)
        return None if is_lost else found

    def _changed(self, after: int, upto: int) -> frozenset[str] | None:
        found = set[str]()
        try:
            for id_ in self.moving.each(after, upto):
                found.add(id_)
                if len(found) > IDS_MAX:
                    return None
        except TableChangedError:
            return None
        return frozenset(found)

    def _check_kept(self, moment: datetime, after: int) -> None:
        if self.reader.is_lost(self.record.table, self.record.incarnation, after):
            raise NotVerifiedError(
                f"the journal may lack some of its changes since {moment:%Y-%m-%d %H:%M:%S} UTC",
                "Verify the whole table, or a --sample of it. To keep changes for longer, raise journal.keep.",
            )

    def _last_before(self, moment: datetime) -> int:
        """Return the last number of the newest segment that is still there and was sealed before; -1 if there is none."""
        newest = self.store.journal.last_segment(self.name)
        if newest is None:
            return -1
        id_ = bisect_left(range(newest.id + 1), True, key=lambda below: self._is_since(moment, below))
        found = self.store.journal.segments(self.name, id_ - 1, 1) if id_ else ()
        # It may have been deleted at this moment.
        return found[0].last if found and found[0].id == id_ else -1

    def _is_since(self, moment: datetime, below: int) -> bool:
        """Return whether the first segment above an id was sealed at a time or later."""
        following = self.store.journal.segments(self.name, below, 1)
        return not following or following[0].sealed_at >= moment


class VerifyScope(ABC):
    """Rule that chooses the rows of any table that are compared."""

    extent: Extent

    @abstractmethod
    def choose(self, table: TableJournal) -> Chosen:
        """Choose the rows of a table.

        Raises:
            NotVerifiedError: The rows are not known.
            ConfigError: The table has no such rows.
        """

    def without_rows(self, chosen: Chosen) -> Chosen | Result:  # noqa: ARG002 - some do not look
        """Return more rows to compare, or the result, if neither side has any of the chosen rows.

        Raises:
            NotVerifiedError: Nothing may have been compared.
        """
        return Result.EQUAL


class Whole(VerifyScope):
    """All rows."""

    extent = Extent.TABLE

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        del table
        return Chosen()


@dataclass(frozen=True, slots=True)
class Sample(VerifyScope):
    """A percentage of the rows, above 0 and up to 100: those with the lowest ids, the same ones each time."""

    percent: Decimal
    extent = Extent.SAMPLE

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        del table
        return self._of(self.percent)

    def without_rows(self, chosen: Chosen) -> Chosen | Result:
        """See `VerifyScope.without_rows`. A table of few rows may have none in the sample: then a larger one is compared."""
        if chosen.among is None:
            return Result.EQUAL
        return self._of(min(Decimal(str(chosen.sample)) * _LARGER, Decimal(PERCENT_MAX)))

    @staticmethod
    def _of(percent: Decimal) -> Chosen:
        below = int(_IDS * percent / PERCENT_MAX)
        among = Below(f"{below:0{DIGEST_DIGITS}x}") if percent < PERCENT_MAX else None
        return Chosen(extent=Extent.SAMPLE, among=among, sample=float(percent))


@dataclass(frozen=True, slots=True)
class OfIds(VerifyScope):
    """The rows that have these ids."""

    ids: frozenset[str]
    extent = Extent.KEYS

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        del table
        return Chosen(extent=Extent.KEYS, among=Ids(self.ids))


@dataclass(frozen=True, slots=True)
class Keys(VerifyScope):
    """The rows that have these keys, each as JSON."""

    keys: Sequence[str]
    extent = Extent.KEYS

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        schema = table.record.schema
        assert schema is not None, "only tables with a shape are compared"
        return Chosen(extent=Extent.KEYS, among=Ids(ids_of(self.keys, schema)))

    def without_rows(self, chosen: Chosen) -> Chosen | Result:
        """See `VerifyScope.without_rows`. A key without a row may be misspelt."""
        del chosen
        raise NotVerifiedError(
            "neither source nor target has a row with such a key", "Write each key exactly as the table holds it."
        )


@dataclass(frozen=True, slots=True)
class Since(VerifyScope):
    """The rows that were changed since some time; whole tables where all rows were."""

    moment: datetime
    extent = Extent.SINCE

    def choose(self, table: TableJournal) -> Chosen:
        """See `VerifyScope.choose`."""
        ids = table.changed_since(self.moment)
        return Chosen() if ids is None else Chosen(extent=Extent.SINCE, among=Ids(ids))

    def without_rows(self, chosen: Chosen) -> Chosen | Result:
        """See `VerifyScope.without_rows`. Rows that were changed and are on neither side were deleted on both."""
        return Result.EQUAL if chosen.keys else Result.NOTHING_COMPARED
