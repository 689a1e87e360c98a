"""Connections to PostgreSQL that wait for an answer for a limited time: psycopg itself has no limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from typing_extensions import override

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10
KEEP_ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""A server whose host or network has failed is noticed within 25 s, also while nothing is asked."""


def connector(answer_s: float, *, demands_tls: bool) -> Callable[..., psycopg.Connection[Any]]:
    """Return a function that makes connections with a limit for answers. A slower one is closed, and is an OperationalError.

    So is one without TLS where it is demanded, whatever the installed library makes of the parameters.
    """

    class BoundedConnection(psycopg.Connection[Any]):
        @override
        def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
            try:
                return super().wait(_until(gen, time.monotonic() + answer_s), *arguments, **options)
            except _NoAnswerError as error:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"the server did not answer within {answer_s:.0f} s") from error

    def connect(*arguments: Any, **options: Any) -> psycopg.Connection[Any]:
        given = {"connect_timeout": CONNECT_TIMEOUT_S, **KEEP_ALIVE, **options}
        connection = BoundedConnection.connect(*arguments, **given)
        if demands_tls and not connection.pgconn.ssl_in_use:
            connection.close()
            raise psycopg.OperationalError("the connection is not encrypted, although TLS is demanded")
        return connection

    return connect


class _NoAnswerError(Exception):
    """The server took too long."""


def _until(steps: PQGen[T], deadline: float) -> PQGen[T]:
    """Yield the same steps, until nothing was ready at the deadline. psycopg reports that several times a second."""
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                steps.close()
                raise _NoAnswerError
            wanted = steps.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
