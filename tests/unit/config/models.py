"""Settings models of two imaginary plugins, and a file for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from replicator.config import ConfigModel, LoadedConfig, Secret, Size, load


class Pool(ConfigModel):
    """Connections."""

    size: int = Field(4, ge=1, le=32, description="Connections kept open.")
    token: Secret | None = Field(None, description="Token of the pool.")


class SourceModel(ConfigModel):
    """A source's settings."""

    host: str = Field(description="Host name.")
    port: int = Field(5432, ge=1, le=65535, description="Port.")
    password: Secret = Field(description="Password.")
    tls: Literal["verify-full", "require", "disable"] = Field("verify-full", description="How to encrypt.")
    chunk: Size = Field(1 << 20, ge=1 << 10, description="Bytes read at once.")
    compress: bool = Field(default=False, description="Whether to compress.")
    pool: Pool = Field(Pool(), description="Connections.")
    label: str | None = Field(None, description="A label.")

    @field_validator("label")
    @classmethod
    def _quote_it(cls, value: str | None) -> str | None:
        if value is not None and " " in value:
            raise ValueError(f"must not contain spaces: {value!r}")
        return value


class TargetModel(ConfigModel):
    """A target's settings."""

    path: str = Field(description="Folder.", examples=["/data/lake"])
    adopt: Literal["refuse", "replace"] = Field("refuse", description="What to do with foreign tables.")
    unfit: Literal["stop", "null"] = Field("stop", description="What to do with values that do not fit.")


SOURCES = {"postgresql": SourceModel}
TARGETS = {"delta": TargetModel}
SECRET = "hunter2-Räuber"
ENV = {"DB_PASSWORD": SECRET}
GOOD = """\
name: shop-to-lake
source:
  type: postgresql
  host: db.internal
  password: ${env:DB_PASSWORD}
target:
  type: delta
  path: /data/lake
"""


def load_text(text: str, **env: str) -> LoadedConfig:
    return load(text, sources=SOURCES, targets=TARGETS, origin="shop.yaml", env=ENV | env)
