"""YAML, environment and secret files in; one immutable, validated configuration out."""

from replicator.config.document import read_document
from replicator.config.load import LoadedConfig, load
from replicator.config.messages import nearest, unknown_plugin
from replicator.config.model import (
    ApplyConfig,
    ConfigModel,
    DDLConfig,
    DDLPolicy,
    JournalConfig,
    ReplicatorConfig,
    RetryConfig,
    SnapshotConfig,
    SparkConfig,
    TableOptions,
    TablesConfig,
    VerifyConfig,
    options_for,
)
from replicator.config.patterns import Selection, TablePattern, select
from replicator.config.quantities import Duration, Size, format_duration, format_size, parse_duration, parse_size
from replicator.config.reference import reference_markdown
from replicator.config.schema import json_schema, plugin_schema
from replicator.config.secrets import Secret
from replicator.config.starter import starter

__all__ = [
    "ApplyConfig",
    "ConfigModel",
    "DDLConfig",
    "DDLPolicy",
    "Duration",
    "JournalConfig",
    "LoadedConfig",
    "ReplicatorConfig",
    "RetryConfig",
    "Secret",
    "Selection",
    "Size",
    "SnapshotConfig",
    "SparkConfig",
    "TableOptions",
    "TablePattern",
    "TablesConfig",
    "VerifyConfig",
    "format_duration",
    "format_size",
    "json_schema",
    "load",
    "nearest",
    "options_for",
    "parse_duration",
    "parse_size",
    "plugin_schema",
    "read_document",
    "reference_markdown",
    "select",
    "starter",
    "unknown_plugin",
]
