"""Log events with fields, from which secrets are kept out."""

from replicator.observability.logs import LogFormat, bind_context, configure_logging, get_logger
from replicator.observability.redaction import MASK, is_sensitive_name, redact, register_secret

__all__ = [
    "MASK",
    "LogFormat",
    "bind_context",
    "configure_logging",
    "get_logger",
    "is_sensitive_name",
    "redact",
    "register_secret",
]
