"""Events come out as fields, with every secret masked, from every logger."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from replicator.config import Secret
from replicator.observability import bind_context, configure_logging, get_logger, redact, register_secret
from replicator.observability.logs import LogFormat


@pytest.fixture(autouse=True)
def fresh_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configuration = list(root.handlers), root.level, structlog.get_config()
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()
    structlog.configure(**configuration)


def logged(action: Callable[[], object], format: LogFormat = "json", level: str = "DEBUG") -> list[str]:  # noqa: A002 the parameter's name
    stream = io.StringIO()
    configure_logging(format, stream=stream, level=level)
    action()
    return stream.getvalue().splitlines()


def test_event_is_one_json_object_with_fields() -> None:
    (line,) = logged(lambda: get_logger("replicator.x").info("chunk_merged", table="a.b", rows=3))
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "chunk_merged", "level": "info", "logger": "replicator.x", "table": "a.b", "rows": 3}


def test_context_stands_in_every_event() -> None:
    bind_context(replicator="shop")
    (line,) = logged(lambda: get_logger("x").info("one"))
    assert json.loads(line)["replicator"] == "shop"


def test_other_libraries_come_out_the_same_way() -> None:
    (line,) = logged(lambda: logging.getLogger("other").warning("took %d s", 3, extra={"rows": 4}))
    event = json.loads(line)
    assert (event["event"], event["level"], event["logger"], event["rows"]) == ("took 3 s", "warning", "other", 4)


def test_console_is_readable_and_without_colours_elsewhere() -> None:
    (line,) = logged(lambda: get_logger("x").info("chunk_merged", rows=3), format="console")
    assert "chunk_merged" in line
    assert "rows=3" in line
    assert "\x1b" not in line


def test_auto_is_json_when_nobody_watches() -> None:
    (line,) = logged(lambda: get_logger("x").info("one"), format="auto")
    assert json.loads(line)["event"] == "one"


def test_level_and_noise() -> None:
    def noise() -> None:
        get_logger("x").debug("hidden")
        logging.getLogger("py4j.java_gateway").error("Error while sending or receiving.")
        logging.getLogger("pyspark.sql").warning("noise")

    assert logged(noise, level="INFO") == []


def test_configuring_twice_writes_once() -> None:
    first = io.StringIO()
    configure_logging("json", stream=first)
    lines = logged(lambda: get_logger("x").info("one"))
    assert len(lines) == 1
    assert first.getvalue() == ""


def test_warnings_become_events() -> None:
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # `catch_warnings` puts the default back, which would print.
            logging.captureWarnings(capture=False)
            logging.captureWarnings(capture=True)
            warnings.warn("old thing", DeprecationWarning, stacklevel=1)

    lines = logged(warn)
    assert any("old thing" in json.loads(line)["event"] for line in lines)


def fail(secret: str) -> None:
    raise ValueError(f"connection with {secret} refused")


@pytest.mark.parametrize("format_", ["json", "console"])
@given(secret=st.text(alphabet="ΑΒΓΔΕ\n\"'\\", min_size=4).filter(lambda text: len(text.strip("\n\"'\\")) >= 4))
def test_secret_shows_in_no_log_line(format_: LogFormat, secret: str) -> None:
    register_secret(secret)

    def act() -> None:
        log = get_logger("x")
        event = f"as event {secret}"
        log.info(event, field=secret, nested={"list": [secret, {secret: secret}]}, object_=Secret(secret))
        log.info("as %s", secret)
        log.info("bytes", data=secret.encode(), error=ValueError(secret))
        logging.getLogger("other").warning("says %r", secret)
        try:
            fail(secret)
        except ValueError:
            log.exception("failed")
            logging.getLogger("other").exception("failed")

    text = "\n".join(logged(act, format=format_))
    assert "failed" in text
    assert secret not in text
    assert json.dumps(secret)[1:-1] not in text
    assert repr(secret)[1:-1] not in text


def test_fields_with_telling_names_are_hidden_whatever_they_hold() -> None:
    (line,) = logged(lambda: get_logger("x").info("one", password="ab", options={"api_key": 1}, keys=3, passed=True))
    event = json.loads(line)
    assert (event["password"], event["options"], event["keys"], event["passed"]) == ("***", {"api_key": "***"}, 3, True)


def test_url_quoted_secret_is_masked() -> None:
    register_secret("p@ss/w rd")
    assert redact("postgresql://u:p%40ss%2Fw%20rd@h p%40ss%2Fw+rd") == "postgresql://u:***@h ***"


def test_lines_of_a_key_file_are_masked() -> None:
    register_secret("-----BEGIN KEY-----\nMIIEabcdefgh\n-----END KEY-----\n")
    assert redact("bad line MIIEabcdefgh") == "bad line ***"


def test_containing_secret_disappears_whole() -> None:
    register_secret("abcd")
    register_secret("abcd-efgh")
    assert redact("abcd-efgh abcd") == "*** ***"


def test_very_short_values_are_left_alone() -> None:
    register_secret("a")
    assert redact("a table") == "a table"


def test_numbers_that_are_secrets_are_masked() -> None:
    register_secret("123456")
    (line,) = logged(lambda: get_logger("x").info("one", port=123456, other=12))
    assert (json.loads(line)["port"], json.loads(line)["other"]) == ("***", 12)


def test_without_set_up_events_are_redacted_too(caplog: pytest.LogCaptureFixture) -> None:
    structlog.reset_defaults()
    register_secret("Geheimnis")
    with caplog.at_level("INFO"):
        get_logger("x").info("one", value="Geheimnis")
    assert "one" in caplog.text
    assert "Geheimnis" not in caplog.text
