"""The `source:` block of a PostgreSQL replicator, and the libpq parameters that follow from it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from replicator.model.hosts import system_authorities
from replicator.model.schema import TableId
from replicator.plugins import Duration, Secret
from replicator.plugins.kit.relational import RelationalConfig, TlsMode
from replicator.plugins.lineage import DatasetName

NAME_BYTES_MAX: Final = 63
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


class PostgresqlConfig(RelationalConfig):
    """Settings of the PostgreSQL source."""

    host: str = Field(
        min_length=1,
        description="Host name or address of the server, or the absolute path of the folder of its Unix socket.",
    )
    port: int = Field(default=5432, ge=1, le=65535, description="Port of the server.")
    user: str = Field(
        min_length=1,
        description="Role that reads. It needs LOGIN, REPLICATION, and SELECT on the tables; a superuser has more privileges than needed.",
    )
    password: Secret | None = Field(
        default=None,
        description="The role's password, as ${env:NAME} or ${file:/path}; leave it out if the server needs none or ~/.pgpass has it.",
    )
    database: str = Field(min_length=1, description="Database to replicate. One replicator reads one database.")
    tls: TlsMode | None = Field(
        default=None,
        description="How the connection is protected, as libpq's sslmode. Default: verify-full; for a loopback address prefer; for a "
        "Unix socket disable.",
    )
    slot: str | None = Field(
        default=None,
        description="Logical replication slot that you created with the plugin pgoutput; Replicator never drops it. Default: "
        "Replicator creates one, named after the replicator.",
    )
    publication: str | None = Field(
        default=None,
        description=(
            "Publication that you created; Replicator never alters it. Default: Replicator creates one that "
            "lists the tables by name."
        ),
    )
    unrepresentable: Literal["fail", "null"] = Field(
        default="fail",
        description="What to do with a value that its Arrow type cannot hold, such as an infinite date: fail the table (fail), or "
        "replicate NULL (null). Values in key columns always fail the table.",
    )
    lock_timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(milliseconds=1),
        le=timedelta(hours=1),
        description="How long one of our statements may wait for a lock before it is retried later.",
    )
    statement_timeout: Duration = Field(
        default=timedelta(minutes=10),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="How long one of our statements may run, except reading a table without a key and creating the slot.",
    )

    @field_validator("slot")
    @classmethod
    def _slot_is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not _SLOT.fullmatch(value):
            raise ValueError(
                "is not a valid name of a replication slot: use lower-case letters, digits and underscores, at most 63"
            )
        return value

    @field_validator("publication", "database", "user")
    @classmethod
    def _is_an_identifier(cls, value: str | None) -> str | None:
        if value is not None and (not value or "\0" in value or len(value.encode()) > NAME_BYTES_MAX):
            raise ValueError(f"must have 1 to {NAME_BYTES_MAX} bytes and no NUL")
        return value

    @property
    @override
    def tls_mode(self) -> TlsMode:
        is_socket = self.host.startswith(("/", "@"))
        return "disable" if self.tls is None and is_socket else super().tls_mode

    def libpq_parameters(self) -> dict[str, str]:
        """The connection's parameters, without `options`, `replication` and `application_name`. Holds the password."""
        parameters = {
            "host": self.host,
            "port": str(self.port),
            "user": self.user,
            "dbname": self.database,
            "connect_timeout": str(max(1, round(self.connect_timeout.total_seconds()))),
            "sslmode": self.tls_mode,
            # Encryption by Kerberos would go around what `tls` asks for.
            "gssencmode": "disable",
            "keepalives": "1",
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
        }
        if self.password is not None:
            parameters["password"] = self.password.reveal()
        if self.tls_mode in ("verify-ca", "verify-full"):
            parameters["sslrootcert"] = str(self.tls_ca) if self.tls_ca else system_authorities()
        if self.tls_cert is not None and self.tls_key is not None:
            parameters |= {"sslcert": str(self.tls_cert), "sslkey": str(self.tls_key)}
        return parameters

    def dataset_name(self, table: TableId) -> DatasetName:
        """See `SupportsLineage`."""
        name = f"{self.database}.{table.namespace}.{table.name}"
        return DatasetName(namespace=f"postgres://{self.host}:{self.port}", name=name)

    def column_name(self, name: str) -> str:
        """See `SupportsLineage`."""
        return name
