"""Log events with fields, from which secrets are kept out."""

from replicator.model.redaction import MASK, is_sensitive_name, redact, register_secret
from replicator.observability.logs import LogFormat, bind_context, configure_logging, get_logger

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
