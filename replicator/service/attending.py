"""Sentence about the next step that commands end with: needed if no worker does by itself what was asked of a replicator."""

from __future__ import annotations

from replicator.runtime.placement import HEARD_S, Placement
from replicator.service.configuring.stored import find_kept
from replicator.state import holder_in_words
from replicator.state.records import Desired
from replicator.state.store import StateStore

_START = "To start one: replicator serve (or run FILE)"


def next_step(store: StateStore, name: str) -> str:
    """Return what has to be done before a worker does what was asked, in a sentence; empty while one runs the replicator."""
    record = find_kept(store, name)
    if record.desired is Desired.PAUSED:
        return f"It is paused. To continue: replicator resume {name}"
    if record.error is not None:
        return f"It has failed: [{record.error.code}]. To start it again: replicator resume {name}"
    return "" if store.leases.current(name) is not None else _taker(store, name)


def _taker(store: StateStore, name: str) -> str:
    """Return the sentence for a replicator that is to run and that nobody runs."""
    scene = store.workers.scene()
    placement = Placement.of(scene, heard_within_s=HEARD_S)
    if not placement.seats:
        return f"No worker is running. {_START}"
    if placement.takers(name):
        return "A worker takes it within seconds."
    for worker in scene.workers:
        if worker.holder in placement.seats and (refusal := worker.refusals.get(name)) is not None:
            who = holder_in_words(worker.holder)
            return f"{who[:1].upper()}{who[1:]} cannot run it: {refusal.message} To see all workers: replicator workers"
    return f"No worker has room for another replicator. {_START}"
