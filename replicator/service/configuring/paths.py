"""Paths of a configuration that depend on the folder in which a worker starts. The stored configuration knows no such folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from replicator.config import LoadedConfig
from replicator.model.errors import Problem

LOCATIONS: Final = ("path", "uri")
"""Names of a target's location, in its identity and its settings."""
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def path_findings(loaded: LoadedConfig, target: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each path that is not absolute: the journal's, the target's, and those of files.

    Args:
        loaded: The configuration.
        target: The target's identity, in which its path is absolute.
    """
    written = {f"{side}.{name}": str(path) for side, name, path in _files(loaded)}
    if (journal := loaded.config.journal.uri) is not None:
        written["journal.uri"] = journal
    for name in LOCATIONS:
        if name in target and isinstance(value := getattr(loaded.target, name, None), str):
            written[f"target.{name}"] = value
    return [_not_absolute(location, value) for location, value in written.items() if _is_relative(value)]


def _files(loaded: LoadedConfig) -> Iterator[tuple[str, str, Path]]:
    for side, block in (("source", loaded.source), ("target", loaded.target)):
        yield from ((side, name, path) for name, path in _files_of(block))


def _files_of(block: BaseModel) -> Iterator[tuple[str, Path]]:
    for name, value in block:
        if isinstance(value, Path):
            yield name, value
        elif isinstance(value, BaseModel):
            yield from ((f"{name}.{inner}", path) for inner, path in _files_of(value))


def _is_relative(value: str) -> bool:
    return not _URI.match(value) and not Path(value).is_absolute()


def _not_absolute(location: str, value: str) -> Problem:
    return Problem(
        code="path_not_absolute",
        message=f"The path {value} is not absolute: it would lead elsewhere for a worker that starts in another folder.",
        location=location,
        action=f"Write the whole path, for example {Path(value).expanduser().absolute()}.",
    )
