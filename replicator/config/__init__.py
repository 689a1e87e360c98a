"""Reads YAML, the environment and secret files into one immutable, validated configuration."""

from replicator.config.alerts import (
    AlertsConfig,
    AppriseConfig,
    ChannelConfig,
    CommandConfig,
    QuietHours,
    WebhookConfig,
)
from replicator.config.base import ConfigModel
from replicator.config.document import Document, read_document
from replicator.config.lineage import LineageConfig
from replicator.config.load import LoadedConfig, load
from replicator.config.masks import Mask, MaskFunction
from replicator.config.messages import nearest, unknown_plugin
from replicator.config.model import (
    ApplyConfig,
    ColumnsConfig,
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
from replicator.config.patterns import ColumnPattern, Selection, TablePattern, select
from replicator.config.quantities import Duration, Size, format_duration, format_size, parse_duration, parse_size
from replicator.config.reference import reference_markdown
from replicator.config.references import Resolver, environment
from replicator.config.schema import json_schema, plugin_schema
from replicator.config.secrets import Secret
from replicator.config.starter import starter

__all__ = [
    "AlertsConfig",
    "ApplyConfig",
    "AppriseConfig",
    "ChannelConfig",
    "ColumnPattern",
    "ColumnsConfig",
    "CommandConfig",
    "ConfigModel",
    "DDLConfig",
    "DDLPolicy",
    "Document",
    "Duration",
    "JournalConfig",
    "LineageConfig",
    "LoadedConfig",
    "Mask",
    "MaskFunction",
    "QuietHours",
    "ReplicatorConfig",
    "Resolver",
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
    "WebhookConfig",
    "environment",
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
