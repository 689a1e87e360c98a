"""The `target:` block of the YAML file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from replicator.plugins import Secret
from replicator.plugins.kit.transactional import TransactionalConfig


class PostgresConfig(TransactionalConfig):
    """Settings of the PostgreSQL target."""

    host: str = Field(min_length=1, description="Host name of the server.")
    port: int = Field(default=5432, ge=1, le=65535, description="Port of the server.")
    user: str = Field(min_length=1, description="User that owns the replicated tables.")
    password: Secret | None = Field(default=None, description="Password, as ${env:NAME} or ${file:/path}.")
    database: str = Field(min_length=1, description="Database that the tables are written to.")
    sslmode: Literal["verify-full", "require", "disable"] = Field(
        default="verify-full", description="How the connection is encrypted, as libpq calls it."
    )
