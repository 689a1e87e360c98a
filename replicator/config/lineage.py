"""The block `lineage:`: destinations of events for OpenLineage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import PurePosixPath
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from replicator.config.base import ConfigModel
from replicator.config.quantities import Duration
from replicator.config.secrets import Secret
from replicator.model.hosts import is_loopback


class LineageConfig(ConfigModel):
    """Destinations of OpenLineage events: the source of each table, column by column (docs/lineage.md). Needs replicator[lineage]."""

    file: str | None = Field(
        None,
        min_length=1,
        description="File to which each event is appended as a line of JSON: an absolute path.",
        examples=["/var/log/replicator/lineage.ndjson"],
    )
    url: str | None = Field(
        None,
        min_length=1,
        description="Server that gets each event by POST at /api/v1/lineage, such as Marquez or DataHub.",
        examples=["https://marquez.example.org"],
    )
    api_key: Secret | None = Field(None, description="Key that the server asks for (Authorization: Bearer).")
    timeout: Duration = Field(
        timedelta(seconds=5),
        ge=timedelta(seconds=1),
        le=timedelta(minutes=1),
        description="Time after which an attempt to send an event to url is ended.",
    )
    console: bool = Field(default=False, description="Logs each event (lineage_event).")
    namespace: str = Field("replicator", min_length=1, max_length=200, description="Namespace of the jobs.")
    every: Duration = Field(
        timedelta(minutes=10),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="Interval of the events that say that a table is still replicated.",
    )
    queue_max: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Events that wait to be sent. Beyond them, new ones are dropped and counted.",
    )

    @field_validator("file")
    @classmethod
    def _check_file(cls, value: str | None) -> str | None:
        if value is not None and not PurePosixPath(value).is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname):
            raise ValueError("must be an address that begins with https:// or http://")
        return value

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.api_key is not None and self.url is None:
            raise ValueError("api_key needs url")
        parts = urlsplit(self.url or "")
        if self.api_key is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError(
                "url must begin with https:// if there is an api_key, which is readable on its way otherwise"
            )
        return self

    @property
    def has_sink(self) -> bool:
        """Return whether events are sent anywhere."""
        return self.file is not None or self.url is not None or self.console
