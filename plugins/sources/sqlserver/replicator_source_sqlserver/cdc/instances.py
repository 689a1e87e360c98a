"""Select the capture instance that has a table's changes, and check that all of them are there.

A table has at most two instances. From the start of the second one on both have the same rows, so the older one is read up to there, and
the newer one from there on. Cleanup raises the start of an instance before it deletes what lies below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from replicator_source_sqlserver.catalogue.tables import CaptureInstance
from replicator_source_sqlserver.cdc.position import NEVER, Position
from replicator_source_sqlserver.lsn import next_lsn, previous_lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A part of an instance's change table: commits after `after`, up to and including `upto`."""

    instance: CaptureInstance
    after: bytes
    upto: bytes


def readings(instances: Sequence[CaptureInstance], after: bytes, upto: bytes) -> list[Reading]:
    """Plan the reading of a table's instances, the oldest first, to have the commits after `after`, up to and including `upto`."""
    found = []
    for instance, newer in zip_longest(instances, instances[1:]):
        if instance.start_lsn is None:
            continue  # the capture job has not met the statement that made it
        first = max(after, previous_lsn(instance.start_lsn))
        last = upto if newer is None or newer.start_lsn is None else min(upto, previous_lsn(newer.start_lsn))
        if first < last:
            found.append(Reading(instance=instance, after=first, upto=last))
    return found


def may_have_lost(instances: Sequence[CaptureInstance], position: Position) -> bytes | None:
    """Return the position from which on a table has all changes, if that is after `position`; None if it has all of them.

    Cleanup has deleted what was captured of the table between the two, if anything was: the answer is in `cdc.lsn_time_mapping`.

    Commits before the start of an instance that was made later were never captured. Nothing is lost: the table is read again because of
    the new instance (`CatalogTable.identity`), and that read sees it. An instance that had begun at the position is never taken for one
    that was made later, whatever became of the server's clock: `instances_until` is the latest time of all that had.
    """
    begun = [instance for instance in instances if instance.start_lsn is not None]
    lowest = min((instance.start_lsn for instance in begun if instance.start_lsn is not None), default=None)
    if lowest is None or lowest <= next_lsn(position.lsn):
        return None
    return lowest if min(instance.created_at for instance in begun) <= position.instances_until else None


def begun_until(instances: Iterable[CaptureInstance], lsn: bytes) -> datetime:
    """Return the creation time of the newest of the instances that begin at or before a position."""
    begun = (i.created_at for i in instances if i.start_lsn is not None and i.start_lsn <= lsn)
    return max(begun, default=NEVER)
