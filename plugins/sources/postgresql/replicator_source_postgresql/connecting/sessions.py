"""The connections of a source: one for each role, all to one running server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from replicator.model.errors import ReplicatorError
from replicator_source_postgresql.connecting.connection import ANOTHER_SERVER, SameServer, Session


class Sessions:
    """A session for each role, opened when it is first needed. All lead to one running server (`same`).

    Args:
        parameters: How to connect.
        server: The server's name in messages.
        lock_timeout: How long a statement waits for a lock.
        statement_timeout: How long a statement may take.
        chunk_settings: Of sessions that read chunks.
        state_settings: Of sessions that read states.
    """

    def __init__(
        self,
        parameters: Mapping[str, str],
        *,
        server: str,
        lock_timeout: timedelta,
        statement_timeout: timedelta,
        chunk_settings: Mapping[str, str],
        state_settings: Mapping[str, str],
    ) -> None:
        bounds = {"lock_timeout": _milliseconds(lock_timeout), "statement_timeout": _milliseconds(statement_timeout)}
        self.same = same = SameServer()

        def session(settings: Mapping[str, str], **more: str) -> Session:
            return Session({**parameters, **more}, same, settings=settings, server=server)

        self.control = session(bounds)
        self.watch = session(bounds)
        self.log_catalogue = session(bounds)
        # The standby's answer is not waited for: the message is in the log, and decoded, as soon as it is flushed here.
        self.marking = session({**bounds, "synchronous_commit": "local"})
        # Making a slot waits for transactions to end, for as long as that takes.
        self.replication = session({"lock_timeout": "0", "statement_timeout": "0"}, replication="database")
        self.probe = session(bounds)
        self.reading = session({**bounds, **chunk_settings})
        self.verifying = session({**bounds, **state_settings})

    def verify_host(self) -> None:
        """Verify that the host still leads to the server that is read: connections that stand do not notice a failover.

        Raises:
            SourceUnavailableError: It leads to another one. A host that cannot be asked is left to the connections that are in use.
        """
        try:
            with self.probe.use("comparing the server"):
                self.probe.release()
        except ReplicatorError as error:
            if error.code == ANOTHER_SERVER:
                raise

    def close(self) -> None:
        """Close all of them."""
        for session in (
            self.control, self.watch, self.log_catalogue, self.marking, self.replication, self.probe, self.reading, self.verifying
        ):  # fmt: skip
            session.close()


def _milliseconds(duration: timedelta) -> str:
    return str(max(1, round(duration.total_seconds() * 1000)))
