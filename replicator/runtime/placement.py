"""Assignment of replicators to workers: each worker decides for itself, from the state store's records of all.

The load of a worker is the number of replicators it runs, divided by its capacity. A free replicator goes to the worker with the lowest
load after taking it. A worker gives one away if another would still have less load than it has now, so nothing moves back and forth.
Conflicting decisions made at the same time from older news are settled by the lease, and evened out afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from replicator.state.workers import Scene

HEARD_S: Final = 6.0
"""A worker silent for this long is not waited for. Less than a lease, so that nobody waits for a host that has just failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker that takes replicators.

    Attributes:
        worker: Its name in leases.
        capacity: Number of replicators it takes at most.
        held: Number of replicators it runs.
        refused: Replicators that it cannot run.
    """

    worker: str
    capacity: int
    held: int
    refused: frozenset[str] = frozenset()

    @property
    def load(self) -> Fraction:
        """Number of replicators it runs, divided by its capacity."""
        return Fraction(self.held, self.capacity)

    @property
    def load_with_one_more(self) -> Fraction:
        """The load if it took one more."""
        return Fraction(self.held + 1, self.capacity)

    def can_take(self, replicator: str) -> bool:
        """Return whether it has room and can run the replicator."""
        return self.held < self.capacity and replicator not in self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The workers that count now."""

    seats: Mapping[str, Seat]

    @classmethod
    def of(cls, scene: Scene, *, heard_within_s: float) -> Placement:
        """Build the placement from the workers that were heard lately and do not end."""
        held = list(scene.holders.values())
        return cls(
            seats={
                worker.holder: Seat(
                    worker=worker.holder,
                    capacity=worker.capacity,
                    held=held.count(worker.holder),
                    refused=frozenset(worker.refusals),
                )
                for worker in scene.workers
                if not worker.is_draining and scene.is_heard(worker, heard_within_s)
            }
        )

    def takers(self, replicator: str) -> Collection[str]:
        """Return the workers that are to take a free replicator: one, or several that are equal."""
        able = [seat for seat in self.seats.values() if seat.can_take(replicator)]
        lowest = min((seat.load_with_one_more for seat in able), default=None)
        return [seat.worker for seat in able if seat.load_with_one_more == lowest]

    def can_take(self, worker: str, replicator: str) -> bool:
        """Return whether a worker could take it, even if another should."""
        return worker in self.seats and self.seats[worker].can_take(replicator)

    def after_taking(self, worker: str) -> Placement:
        """Return the placement after a worker has taken one more."""
        seat = self.seats.get(worker)
        return self if seat is None else Placement(seats={**self.seats, worker: replace(seat, held=seat.held + 1)})

    def to_give(self, worker: str, held: Sequence[str]) -> Sequence[str]:
        """Return the replicators that this worker should hand over, one at a time. Only the worker with the highest load gives any."""
        seat = self.seats.get(worker)
        if seat is None or any((other.load, other.worker) > (seat.load, worker) for other in self.seats.values()):
            return ()
        others = [other for other in self.seats.values() if other.load_with_one_more < seat.load]
        return [name for name in held if any(other.can_take(name) for other in others)]
