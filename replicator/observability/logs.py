"""Sets up structlog and the standard library's logging as one stream of events with fields.

Every event has `timestamp` (UTC), `level`, `logger` and `event`; other fields are named as in the glossary, units last
(`rows`, `duration_ms`, `lag_ms`). Secrets are masked in fields, messages and tracebacks, those of other libraries included.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.contextvars import bind_contextvars as bind_context
from structlog.contextvars import merge_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

from replicator.model.redaction import redact_mapping, redact_value
from replicator.model.terminal import cleaned

__all__ = ["LogFormat", "bind_context", "configure_logging", "get_logger"]

LogFormat = Literal["auto", "json", "console"]
_JSON: Final = structlog.processors.JSONRenderer()

# Routine output of these libraries is not for the operator of a replicator: their errors reach us as exceptions.
_QUIET_LOGGERS: Final = {
    "py4j": logging.CRITICAL,
    "pyspark": logging.ERROR,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    "fsspec": logging.WARNING,
    "psycopg": logging.ERROR,
    "sqlalchemy": logging.WARNING,
    "urllib3": logging.WARNING,
}
# Never redacted: structlog's processors use the first ones among themselves, the others cannot hold a secret, and a password such
# as `replicator` must not make the logger's name unreadable.
_TRUSTED_FIELDS: Final = ("_record", "_from_structlog", "exc_info", "stack_info", "timestamp", "level", "logger")


def configure_logging(
    format: LogFormat = "auto",  # noqa: A002 the word the command line uses
    *,
    stream: TextIO | None = None,
    level: int | str = "INFO",
) -> None:
    """Send every log event of this process, ours and other libraries', to one stream.

    Args:
        format: `json`: one object per line; `console`: for people; `auto`: console if the stream is a terminal.
        stream: Destination; standard error by default, because standard output belongs to results.
        level: Events below it are dropped.

    Calling it again replaces what an earlier call set up.
    """
    target = stream if stream is not None else sys.stderr
    # Commands clean what they print. Events are cleaned below, before they get colours.
    target = getattr(target, "rich_proxied_file", target)
    is_terminal = bool(getattr(target, "isatty", lambda: False)())
    is_console = format == "console" or (format == "auto" and is_terminal)
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *_shared_processors()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *((_clean_event, _console_renderer(is_terminal=is_terminal)) if is_console else (_JSON,)),
            ],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if getattr(h, "is_replicators", False)]:
        root.removeHandler(old)
    handler.is_replicators = True  # type: ignore[attr-defined]  # so that only our own handler is replaced
    root.addHandler(handler)
    root.setLevel(level)
    for name, least in _QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    logging.captureWarnings(capture=True)
    _configure_structlog()


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module.

    Use: `log = get_logger(__name__)` at the top, then `log.info("chunk_merged", table=…, rows=…)`.
    Before `configure_logging`, events go to the standard library's logging, redacted, as they would from any library.
    """
    if not structlog.is_configured():
        _configure_structlog()
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Caching would tie loggers made before `configure_logging` to the set-up of that moment.
        cache_logger_on_first_use=False,
    )


def _shared_processors() -> list[Processor]:
    return [
        merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        structlog.processors.StackInfoRenderer(),
        # As text, before redaction: a traceback quotes messages that may hold secrets.
        structlog.processors.format_exc_info,
        _redact_event,
    ]


def _redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    trusted = {name: event[name] for name in _TRUSTED_FIELDS if name in event}
    public = {name: value for name, value in event.items() if name not in trusted}
    text = redact_value(public.pop("event", ""))
    return {"event": text, **redact_mapping(public), **trusted}


def _clean_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remove what a terminal would act on from texts; Python's `repr` escapes it in other values, and JSON in all of them."""
    return {cleaned(name): cleaned(value) if isinstance(value, str) else value for name, value in event.items()}


def _console_renderer(*, is_terminal: bool) -> Any:
    return structlog.dev.ConsoleRenderer(
        colors=is_terminal, timestamp_key="timestamp", exception_formatter=structlog.dev.plain_traceback
    )
