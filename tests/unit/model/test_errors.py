"""No error or finding repeats a secret that a server quoted."""

from __future__ import annotations

from replicator.model.errors import ConfigError, Problem, SourceUnavailableError
from replicator.observability import register_secret

SECRET = "canary-of-a-server-8c2"


def test_what_a_server_quotes_of_a_secret_is_masked() -> None:
    register_secret(SECRET)
    said = f'password authentication failed for "{SECRET}"'
    error = SourceUnavailableError(said, code="source_unavailable", action=f"Try {SECRET}.")
    problem = Problem(code="x", message=said, location=f"source.{SECRET}", action=f"Try {SECRET}.")
    printed = Problem(code="x", message="m", sql=(f"ALTER USER u PASSWORD '{SECRET}';",))
    refusal = ConfigError(said, problems=(problem, printed))
    shown = f"{error!r} {error} {error.message} {error.action} {problem} {refusal!r} {refusal}"
    assert SECRET not in shown.replace(str(printed.sql), "")
    assert (problem.message, problem.action) == ('password authentication failed for "***"', "Try ***.")
    assert error.args == ('password authentication failed for "***"',)
