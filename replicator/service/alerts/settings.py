"""The block `alerts:` of a stored configuration, which is read without its plugins, and without the secrets of its source."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from replicator.config import AlertsConfig, Resolver, environment
from replicator.model.errors import ConfigError, Severity
from replicator.service.configuring.stored_settings import stored_document
from replicator.state.records import ReplicatorRecord


def has_alerts(config: str) -> bool:
    """Return whether a stored configuration has such a block."""
    # Most have none, and need not be parsed to find out.
    return "alerts" in config and bool(stored_document(config).values.get("alerts"))


def alert_settings(record: ReplicatorRecord) -> AlertsConfig:
    """Read the block, with references as this process's environment has them.

    Raises:
        ConfigError: `alerts_not_readable`.
    """
    document = stored_document(record.config)
    resolver = Resolver(document, environment())
    block: dict[str, Any] = resolver.resolve({"alerts": document.values.get("alerts") or {}})["alerts"]
    blocking = tuple(problem for problem in resolver.problems if problem.severity is Severity.BLOCKING)
    try:
        if not blocking:
            return AlertsConfig.model_validate(block)
    except ValidationError as error:
        raise _refusal(record.name) from error
    raise _refusal(record.name, problems=blocking)


def _refusal(name: str, **found: Any) -> ConfigError:
    return ConfigError(
        f"The settings of {name}'s alerts cannot be read here.",
        code="alerts_not_readable",
        action="Run this where the variables and files are that its `alerts:` names, or correct them: replicator validate FILE",
        **found,
    )
