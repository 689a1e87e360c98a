"""Settings of a stored configuration for status, checks and metrics. It holds references and is read without its plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pydantic import ValidationError

from replicator.config import Document, ReplicatorConfig, Resolver, environment, read_document
from replicator.model.errors import ConfigError, Problem, Severity
from replicator.state.records import ReplicatorRecord

_NAME: Final = "stored"
_DOCUMENTS_KEPT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSettings:
    """Some settings of a stored configuration.

    Attributes:
        config: Has `freshness`, `tables.settings.<pattern>.freshness` and `journal.bytes_max` as stored; everything else is the default.
        problems: References of these that this process's environment cannot resolve; their settings are left out.
    """

    config: ReplicatorConfig
    problems: Sequence[Problem] = field(default=())


@lru_cache(maxsize=_DOCUMENTS_KEPT)
def stored_document(config: str) -> Document:
    """Return the YAML of a stored configuration."""
    return read_document(config, _NAME)


def stored_settings(config: str) -> StoredSettings:
    """Read the settings, with references as this process's environment has them."""
    document = stored_document(config)
    wanted = _wanted(document.values)
    resolver = Resolver(document, environment())
    values = _without(resolver.resolve(wanted), resolver.unresolved)
    return StoredSettings(config=_validated(values), problems=tuple(resolver.problems))


def _wanted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that are read, without the others: those may refer to secrets, which are not needed here."""
    wanted: dict[str, Any] = {}
    if "freshness" in values:
        wanted["freshness"] = values["freshness"]
    settings = _mapping(_mapping(values.get("tables")).get("settings"))
    objectives = {
        pattern: {"freshness": block["freshness"]}
        for pattern, block in settings.items()
        if isinstance(block, dict) and "freshness" in block
    }
    if objectives:
        wanted["tables"] = {"settings": objectives}
    journal = _mapping(values.get("journal"))
    if "bytes_max" in journal:
        wanted["journal"] = {"bytes_max": journal["bytes_max"]}
    return wanted


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _without(values: dict[str, Any], unresolved: set[tuple[str | int, ...]]) -> dict[str, Any]:
    """Return the values without those whose references cannot be resolved."""
    for path in unresolved:
        block: Any = values
        for part in path[:-1]:
            block = block[part]
        del block[path[-1]]
    return values


def _validated(values: Mapping[str, Any]) -> ReplicatorConfig:
    """Return the values as the models read them, without those that another version took and this one refuses."""
    kept: dict[str, Any] = {"name": _NAME}
    for key, value in values.items():
        try:
            ReplicatorConfig.model_validate({**kept, key: value})
        except ValidationError:
            continue
        kept[key] = value
    return ReplicatorConfig.model_validate(kept)


def check_objectives(record: ReplicatorRecord) -> None:
    """Refuse a check of objectives that cannot be read here: it would pass without looking.

    Raises:
        ConfigError: `objective_not_readable`.
    """
    problems = stored_settings(record.config).problems
    blocking = tuple(problem for problem in problems if problem.severity is Severity.BLOCKING)
    if blocking:
        raise ConfigError(
            f"The objectives of {record.name} cannot be read here.",
            code="objective_not_readable",
            action="Run this where the worker runs, with the same environment.",
            problems=blocking,
        )
