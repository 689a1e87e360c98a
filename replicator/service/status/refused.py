"""Status of a configuration that cannot be used for something, while data moves on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replicator.model.documents.status import RefusedStatus
from replicator.model.errors import with_names
from replicator.model.processes.reports import RefusedReport, digest
from replicator.state.records import Lease, ReplicatorRecord, Reported, Reports
from replicator.state.store import StateStore
from replicator.state.watches import WatchJob

WORDS: Final[Mapping[str, str]] = {
    "reload": "the worker continues with the configuration that it had",
    "alerts": "no alerts are sent",
    "lineage": "no lineage events are sent",
}
"""`RefusedStatus.of` → the effect, in words."""


def of_replicator(
    store: StateStore, record: ReplicatorRecord, reports: Reports, lease: Lease | None
) -> tuple[RefusedStatus, ...]:
    """Return the refusals of the configuration that is stored now, if they still hold."""
    config = digest(record.config)
    return tuple(
        RefusedStatus(
            of=one.report.of,
            code=one.report.code,
            message=one.report.message,
            action=one.report.action and with_names(one.report.action, record.name, None),
            at=one.at,
        )
        for one in reports.refused
        if one.report.config == config and _holds(store, record.name, one, lease)
    )


def _holds(store: StateStore, name: str, one: Reported[RefusedReport], lease: Lease | None) -> bool:
    """Return whether a refusal still holds: a worker's as long as it runs; a watching process's until one can do the job."""
    if one.report.of == "reload":
        return lease is not None and one.report.stamp[0] == lease.epoch
    return store.watches.holder(name, WatchJob(one.report.of)) is None
