"""The document that `plugins --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from replicator.model.documents.status import StatusModel
from replicator.plugins.registry import PluginInfo


class PluginDocument(StatusModel):
    """An installed plugin."""

    name: str = Field(description="The `type:` of the configuration; of a broken plugin the name of its entry point.")
    kind: Literal["source", "target"] | None = Field(description="Null if a broken plugin does not tell.")
    distribution: str = Field(description="The Python package that it came with.")
    version: str = Field(description="Version of that package.")
    state: Literal["ok", "broken"] = Field(description="`ok`: it can be used.")
    reason: str | None = Field(description="Reason why it cannot be used; otherwise null.")


def documents(found: Sequence[PluginInfo]) -> tuple[PluginDocument, ...]:
    """Return the plugins as documents."""
    return tuple(
        PluginDocument(
            name=p.name, kind=p.kind, distribution=p.distribution, version=p.version, state=p.state, reason=p.reason
        )
        for p in found
    )
