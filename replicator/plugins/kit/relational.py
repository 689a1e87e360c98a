"""Settings of every source over a database connection: its address, account, protection and time-outs."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from replicator.config import ConfigModel, Duration, Secret, Size
from replicator.model.hosts import is_loopback

TlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


class RelationalConfig(ConfigModel):
    """Base for the `source:` block of a relational database. A subclass gives `port` its default and names privileges."""

    host: str = Field(min_length=1, description="Host name or address of the server.")
    port: int = Field(ge=1, le=65535, description="Port of the server.")
    user: str = Field(min_length=1, description="Account that reads.")
    password: Secret | None = Field(
        default=None,
        description="The account's password, as ${env:NAME} or ${file:/path}; leave it out if there is none.",
    )
    tls: TlsMode | None = Field(
        default=None,
        description="How the connection is protected. Default: verify-full; for a loopback address prefer.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description=(
            "File of the certificate authorities (PEM) that may sign the server's certificate. Default: those "
            "that the system trusts."
        ),
    )
    tls_cert: Path | None = Field(
        default=None,
        description="File of the client's own certificate (PEM), if the server asks for one. Needs tls_key.",
    )
    tls_key: Path | None = Field(
        default=None,
        description="File of the client's private key (PEM), readable by its owner only. Needs tls_cert.",
    )
    connect_timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(seconds=1),
        le=timedelta(minutes=10),
        description="How long to wait for a connection.",
    )
    lock_timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="How long one of our statements may wait for a lock before it is retried later.",
    )
    statement_timeout: Duration = Field(
        default=timedelta(minutes=10),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="How long one of our statements may run, except reading a table without a key.",
    )
    yield_after: Duration = Field(
        default=timedelta(seconds=1),
        ge=timedelta(milliseconds=10),
        le=timedelta(minutes=10),
        description=(
            "How often a running read checks whether another session waits for its lock. If so, the read stops "
            "and is retried later."
        ),
    )
    chunk_bytes_max: Size = Field(
        default=256 << 20,
        ge=1 << 20,
        le=1 << 30,
        description="Largest chunk in bytes of memory. For tables with wide rows, a chunk has fewer rows than snapshot.chunk_rows.",
    )

    @model_validator(mode="after")
    def _tls_is_complete(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_mode == "verify-ca" and self.tls_ca is None:
            raise ValueError(
                "tls: verify-ca needs tls_ca; with the system's certificate authorities only verify-full is safe"
            )
        return self

    @property
    def tls_mode(self) -> TlsMode:
        """Return the mode in force: `tls`, or the default that fits the host."""
        if self.tls is not None:
            return self.tls
        return "prefer" if is_loopback(self.host) else "verify-full"

    @property
    def demands_tls(self) -> bool:
        """Return whether a connection without TLS must not be used. Sources check after connecting, as drivers may change the mode."""
        return self.tls_mode not in ("disable", "prefer")

    @property
    def server(self) -> str:
        """Return `host:port`, for messages."""
        return f"{self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for a driver that takes Python's; None where TLS is off or only preferred."""
        if not self.demands_tls:
            return None
        context = ssl.create_default_context(cafile=str(self.tls_ca) if self.tls_ca else None)
        # Authorities that servers make for themselves often lack extensions that RFC 5280 asks for; the proof does not rest on it.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.tls_mode == "verify-full"
        context.verify_mode = ssl.CERT_NONE if self.tls_mode == "require" else ssl.CERT_REQUIRED
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context
