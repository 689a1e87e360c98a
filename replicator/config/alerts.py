"""The block `alerts:`: channels, kinds and times of messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import Field, StringConstraints, field_validator, model_validator

from replicator.config.base import ConfigModel
from replicator.config.quantities import Duration
from replicator.config.secrets import Secret
from replicator.model.documents.alerts import AlertKind
from replicator.model.hosts import is_loopback

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[Sequence[Day]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ChannelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


class ChannelConfig(ConfigModel):
    """Settings that all channels have."""

    kinds: tuple[AlertKind, ...] = Field(
        (),
        description="Kinds of alerts that this channel gets. Default: all.",
        examples=[["no_worker", "replicator_failed", "source_log_headroom"]],
    )
    timeout: Duration = Field(
        timedelta(seconds=10),
        ge=timedelta(seconds=1),
        le=timedelta(seconds=30),
        description="Time after which an attempt to deliver a message is ended. It is repeated later.",
    )


class WebhookConfig(ChannelConfig):
    """An HTTP server that gets a POST with JSON."""

    url: Secret = Field(
        description="Address to post to, https://. A secret, because such addresses often contain a token.",
        examples=["${env:ALERTS_URL}"],
    )
    signing_key: Secret | None = Field(
        None,
        description="Key with which each message is signed (Standard Webhooks: HMAC-SHA256). Text, or whsec_ and Base64. Default: messages "
        "are not signed.",
        examples=["${env:ALERTS_KEY}"],
    )
    ca_file: str | None = Field(
        None,
        min_length=1,
        description="File with the certificates (PEM) that may sign the server's. Default: those that this machine trusts.",
    )
    allow_http: bool = Field(
        default=False, description="Allows an http:// address of another host: messages are then readable."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: Secret) -> Secret:
        parts = urlsplit(url.reveal())
        if any(not "!" <= character <= "~" for character in url.reveal()):
            raise ValueError("must not have blanks, line breaks or letters that are not ASCII")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address that begins with https://")
        return url

    @model_validator(mode="after")
    def _check_scheme(self) -> Self:
        parts = urlsplit(self.url.reveal())
        if parts.scheme == "http" and not self.allow_http and not is_loopback(parts.hostname or ""):
            raise ValueError("url must begin with https://, or allow_http must be true")
        return self


class CommandConfig(ChannelConfig):
    """A program that is started for each message and reads it as JSON from its standard input."""

    argv: tuple[str, ...] = Field(
        min_length=1,
        description="The program and its arguments, as a list. No shell reads them. Of the environment it gets PATH, HOME, LANG, "
        "TZ and TMPDIR only.",
        examples=[["/usr/local/bin/page", "--team", "data"]],
    )


class AppriseConfig(ChannelConfig):
    """E-mail, chat and others, through apprise. Needs replicator[alerts]."""

    url: Secret = Field(
        description="Address in the form of apprise, such as mailtos://user:password@example.org?to=ops@example.org. A secret.",
        examples=["${env:ALERTS_MAIL}"],
    )


class QuietHours(ConfigModel):
    """A time of the day in which nothing is sent. Alerts still open at its end are sent then."""

    start: str = Field(description="Time at which they begin, such as '22:00' (with quotes).", examples=["22:00"])
    end: str = Field(
        description="Time at which they end, such as '07:00'; if earlier than start, on the next day.",
        examples=["07:00"],
    )
    days: tuple[Day, ...] = Field(
        tuple(DAYS), min_length=1, description="Days on which they begin.", examples=[["sat", "sun"]]
    )
    kinds: tuple[AlertKind, ...] = Field(
        (),
        description="Kinds of alerts that wait; others are sent at once. Default: all wait.",
        examples=[["objective_breached"]],
    )

    @field_validator("start", "end")
    @classmethod
    def _check_time(cls, value: str) -> str:
        if not _TIME.fullmatch(value):
            raise ValueError("must be a time of the day such as '22:00'")
        return value

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.start == self.end:
            raise ValueError("start and end must differ; for whole days write '00:00' and '23:59'")
        return self


class AlertsConfig(ConfigModel):
    """Messages when something is wrong, and when it is right again (docs/alerts.md)."""

    webhooks: Mapping[ChannelName, WebhookConfig] = Field(
        {},
        description="HTTP servers that get messages, by a name of your own.",
        examples=[{"ops": {"url": "${env:ALERTS_URL}"}}],
    )
    commands: Mapping[ChannelName, CommandConfig] = Field(
        {},
        description="Programs that get messages, by a name of your own.",
        examples=[{"pager": {"argv": ["/usr/local/bin/page"]}}],
    )
    apprise: Mapping[ChannelName, AppriseConfig] = Field(
        {},
        description="E-mail, chat and others through apprise, by a name of your own. Needs replicator[alerts].",
        examples=[{"mail": {"url": "${env:ALERTS_MAIL}"}}],
    )
    after: Duration = Field(
        timedelta(minutes=1),
        ge=timedelta(0),
        le=timedelta(days=1),
        description="Time for which something must be wrong before it is an alert, and right before it has recovered.",
    )
    remind_every: Duration | None = Field(
        None,
        ge=timedelta(minutes=1),
        le=timedelta(days=365),
        description="Interval at which an alert that is still open is sent again. Default: never.",
        examples=["4h"],
    )
    give_up_after: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(0),
        le=timedelta(days=7),
        description="Time for which the delivery of a message is repeated before it is given up. `status` shows the failed messages.",
    )
    messages_max: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Messages that wait for one channel; beyond them the oldest is given up.",
    )
    time_zone: str = Field("UTC", description="Zone of quiet_hours, such as Europe/Berlin.", examples=["Europe/Berlin"])
    quiet_hours: tuple[QuietHours, ...] = Field(
        (),
        description="Times of the day in which nothing is sent. Default: none.",
        examples=[[{"start": "22:00", "end": "07:00"}]],
    )
    source_log_headroom_min: Duration = Field(
        timedelta(hours=1),
        ge=timedelta(0),
        le=timedelta(days=365),
        description="source_log_headroom: the least time until the source gives up log that is still needed.",
    )
    source_log_share_min: float = Field(
        0.25,
        ge=0,
        le=1,
        description="source_log_headroom: the least share of the source's limit for its log that must be left, from 0 to 1.",
    )
    journal_free_min: float = Field(
        0.1,
        ge=0,
        le=1,
        description="journal_disk: the least share of journal.bytes_max, and of the disk of a journal in a local folder, that must be "
        "free, from 0 to 1.",
    )

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError, LookupError) as error:
            raise ValueError(
                "must be a time zone that this machine knows, such as Europe/Berlin (package tzdata has them)"
            ) from error
        return value

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = sorted((*self.webhooks, *self.commands, *self.apprise))
        if twice := [name for name, other in pairwise(names) if name == other]:
            raise ValueError(f"the name {twice[0]} is used for two channels")
        return self

    @property
    def channels(self) -> Mapping[str, WebhookConfig | CommandConfig | AppriseConfig]:
        """All channels by name."""
        return {**self.webhooks, **self.commands, **self.apprise}
