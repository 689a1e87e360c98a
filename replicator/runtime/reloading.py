"""The stored configuration of a running replicator: which processes a change of it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from replicator.config import read_document
from replicator.model.errors import ReplicatorError
from replicator.model.processes.reports import RefusedReport
from replicator.observability import get_logger
from replicator.runtime import messages
from replicator.runtime.policy import RetryLimits
from replicator.state.records import ReplicatorRecord, Role
from replicator.state.store import StateStore

_READ_BY: Final[Mapping[str, frozenset[Role]]] = {
    "source": frozenset({Role.CAPTURE, Role.VERIFY}),
    "snapshot": frozenset({Role.CAPTURE}),
    "journal": frozenset({Role.CAPTURE}),
    "apply": frozenset({Role.APPLY, Role.VERIFY}),
    "spark": frozenset({Role.APPLY}),
    "verify": frozenset({Role.VERIFY}),
    "alerts": frozenset(),
    "lineage": frozenset(),
}
"""Section of the file → the processes that read it; any other section is read by all."""
ON_THE_SIDE: Final = tuple(section for section, roles in _READ_BY.items() if not roles)
"""Sections that only the process that watches replicators reads; no other process sees them."""
_ALL: Final = frozenset({Role.CAPTURE, Role.APPLY, Role.VERIFY})


_log = get_logger(__name__)


class Reload(NamedTuple):
    """A changed configuration: the processes that must be started again, and the retry limits from now on."""

    roles: frozenset[Role]
    limits: RetryLimits


class ConfigurationWatch:
    """Notices that the stored configuration of a replicator changed.

    One that cannot be read here, because a variable is missing in this environment, say, is reported and ignored: the processes that
    run continue with the old one.

    Args:
        store: The state store.
        name: Name of the replicator.
        read_limits: Reads the retry limits of a changed configuration with the rest of it. None: the configuration does not change.
    """

    def __init__(
        self, store: StateStore, name: str, read_limits: Callable[[ReplicatorRecord], RetryLimits] | None
    ) -> None:
        self._store, self._name, self._read_limits = store, name, read_limits
        self._used: str | None = None
        self._refused: str | None = None

    def look(self, record: ReplicatorRecord, epoch: int) -> Reload | None:
        """Return the change since the last look; None if there is none, or none that can be used. `epoch`: of our lease."""
        if self._used is None:
            self._used = record.config
        if self._read_limits is None or record.config in {self._used, self._refused}:
            return None
        try:
            limits = self._read_limits(record)
        except ReplicatorError as error:
            self._refused = record.config
            report = RefusedReport.made("reload", record.config, error, messages.stamp(epoch))
            self._store.put_report(self._name, report)
            _log.warning("reload_refused", replicator=self._name, code=error.code, error=str(error))
            return None
        roles = concerned(changed_sections(self._used, record.config))
        self._used, self._refused = record.config, None
        return Reload(roles, limits)


def changed_sections(before: str, now: str) -> tuple[str, ...]:
    """Return the names of the sections that differ between two documents; comments and order do not count."""
    old, new = (_values(document) for document in (before, now))
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def concerned(sections: tuple[str, ...]) -> frozenset[Role]:
    """Return the processes that must be started again to read these sections."""
    return frozenset[Role]().union(*(_READ_BY.get(section, _ALL) for section in sections))


def _values(document: str) -> Mapping[str, Any]:
    return read_document(document, "stored").values
