"""The document of `replicator workers` and `GET /workers`: the workers of all hosts, and what each runs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field, PositiveInt

from replicator.model.documents.status import Code, StatusModel
from replicator.runtime.placement import HEARD_S
from replicator.state.leases import host_of, pid_of
from replicator.state.store import StateStore
from replicator.state.workers import Scene, WorkerRecord


class WorkerState(StrEnum):
    """The state of a worker."""

    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"
    RUNNING = "running"


class RefusalDocument(StatusModel):
    """A replicator that a worker cannot run."""

    replicator: str = Field(description="Name of the replicator.")
    code: Code = Field(description="See docs/errors.md.")
    message: str = Field(description="Reason why this host cannot run it.")


class WorkerDocument(StatusModel):
    """A worker."""

    version: Literal[1] = Field(description="Version of this document.")
    host: str = Field(description="Its host: `REPLICATOR_HOST`, or the host's own name.")
    pid: int | None = Field(description="Its process on that host; null if that is not known.")
    holder: str = Field(description="Its name in leases, which no other process ever has.")
    state: WorkerState = Field(
        description="`serving`: a `serve` that takes replicators. `draining`: a `serve` that ends. `silent`: a `serve` of which nothing "
        "was heard for some seconds; it is forgotten after an hour. `running`: a `run`, or a command that holds a replicator's lease."
    )
    capacity: PositiveInt | None = Field(description="Number of replicators it runs at most; null for a `run`.")
    release: str | None = Field(description="Version of the Replicator; null for a `run`.")
    started_at: AwareDatetime | None = Field(description="Time of its start; null for a `run`.")
    seen_at: AwareDatetime | None = Field(description="Time when it was last heard; null for a `run`.")
    replicators: tuple[str, ...] = Field(description="The replicators whose lease it holds, by name.")
    refuses: tuple[RefusalDocument, ...] = Field(
        description="Replicators that it leaves to others because its host cannot run them."
    )


def workers(store: StateStore) -> Sequence[WorkerDocument]:
    """Return all workers, by host and process."""
    scene = store.workers.scene()
    served = {worker.holder for worker in scene.workers}
    found = [_served(scene, worker) for worker in scene.workers]
    found += [_run(scene, holder) for holder in sorted(set(scene.holders.values()) - served)]
    return sorted(found, key=lambda one: (one.host, one.pid or 0, one.holder))


def _served(scene: Scene, worker: WorkerRecord) -> WorkerDocument:
    state = WorkerState.DRAINING if worker.is_draining else WorkerState.SERVING
    return WorkerDocument(
        version=1,
        host=host_of(worker.holder),
        pid=pid_of(worker.holder),
        holder=worker.holder,
        state=state if scene.is_heard(worker, HEARD_S) else WorkerState.SILENT,
        capacity=worker.capacity,
        release=worker.version,
        started_at=worker.started_at,
        seen_at=worker.seen_at,
        replicators=_held(scene, worker.holder),
        refuses=tuple(
            RefusalDocument(replicator=name, code=one.code, message=one.message)
            for name, one in sorted(worker.refusals.items())
        ),
    )


def _run(scene: Scene, holder: str) -> WorkerDocument:
    return WorkerDocument(
        version=1,
        host=host_of(holder),
        pid=pid_of(holder),
        holder=holder,
        state=WorkerState.RUNNING,
        capacity=None,
        release=None,
        started_at=None,
        seen_at=None,
        replicators=_held(scene, holder),
        refuses=(),
    )


def _held(scene: Scene, holder: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, other in scene.holders.items() if other == holder))
