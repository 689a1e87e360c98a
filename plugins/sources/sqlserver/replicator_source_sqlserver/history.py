"""The history of a database: while it is the same, positions in its log, and versions of change tracking, keep their meaning.

A database that is restored, or that an asynchronous replica takes over, goes back to an earlier state and counts on from there. What was
read after that state never happened in it, and once it has counted past our position no number shows that. The server gives each such
history another identifier, its *recovery fork*. So every offset has it, and it is compared on each connection that reads the log: a
restore ends all connections.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from typing_extensions import override

from replicator.model.errors import LogGapError, SourceUnavailableError
from replicator.model.offset import Offset
from replicator.plugins.source import LogBatch, LogReader, PullLimits
from replicator_source_sqlserver.catalogue.server import read_history, read_reached
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.moments import in_milliseconds

_FIELD: Final = "history"
_CREATED: Final = "created"
_TELLING: Final = ("fork", _CREATED)
"""Parts that tell two histories apart: the first of these that is known of both."""


@dataclass(slots=True)
class KnownHistory:
    """The history that an offset belongs to; empty until it is known. Used from one thread at a time."""

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, offset: Offset) -> KnownHistory:
        """Read the history in an offset."""
        names = dict(offset.value.get(_FIELD, {}))
        if _CREATED in names:
            names[_CREATED] = in_milliseconds(datetime.fromisoformat(names[_CREATED])).isoformat()
        return cls(names)

    def verify(self, connection: Connection) -> None:
        """Verify that the database has this history.

        Raises:
            LogGapError: `other_history`.
        """
        known, now = self.names, read_history(connection)
        told = next((name for name in _TELLING if name in known and name in now), None)
        if told is not None and known[told] != now[told]:
            raise LogGapError(
                "The database has another history than the one that was read: it was restored, or a replica took over that lacked "
                f"changes ({told}: {known[told]}, now {now[told]}).",
                code="other_history",
                action="Run `replicator snapshot NAME --changed-only` or `--restart`.",
            )
        self.names = now

    def noted(self, offset: Offset) -> Offset:
        """Return the offset with the history that it belongs to."""
        return Offset.of({**offset.value, _FIELD: self.names})


class SameDatabase:
    """The database that the connections of one source object reach. Thread-safe."""

    def __init__(self) -> None:
        """Begin without a database."""
        self._lock = threading.Lock()
        self._names: Mapping[str, str] = {}

    def verify(self, connection: Connection) -> None:
        """Take the first database that answers for the one, and refuse any other.

        Rows of another one would be taken for those of the log's: positions of both are numbers of the same form. What a server does not
        show to our account is not compared.

        Raises:
            SourceUnavailableError: `another_server`: a new process begins with the server that answers then, and compares positions.
        """
        now = read_reached(connection)
        with self._lock:
            known = self._names = {**now, **self._names}
        other = [f"{name}: {value}, before {known[name]}" for name, value in now.items() if known[name] != value]
        if other:
            raise SourceUnavailableError(
                f"The connection reached another database than those before ({'; '.join(other)}).",
                code="another_server",
                action="Set source.host to one server, or to an availability group's listener. A proxy must not spread connections over"
                " several servers.",
            )


class HistoryReader(LogReader):
    """Reads by another reader, whose offsets get the history that its session found."""

    def __init__(self, reader: LogReader, history: KnownHistory) -> None:
        self._reader, self._history = reader, history

    @override
    def pull(self, limits: PullLimits) -> LogBatch:
        batch = self._reader.pull(limits)
        return batch if batch.offset is None else replace(batch, offset=self._history.noted(batch.offset))

    @override
    def acknowledge(self, offset: Offset) -> None:
        self._reader.acknowledge(offset)

    @override
    def keep_alive(self) -> None:
        self._reader.keep_alive()

    @override
    def close(self) -> None:
        self._reader.close()
