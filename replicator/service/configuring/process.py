"""`python -m replicator.service.configuring.process`: reads, checks and stores one configuration, in a process of its own.

A configuration from the network makes the process that reads it connect to servers of the sender's choice, read files, and remember
secrets. That ends with this process, whatever it does, and at its time limit.
"""

from __future__ import annotations

import os
import sys
import threading
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from replicator.model.errors import ReplicatorError
from replicator.observability import configure_logging, get_logger
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.configuring import store as configuring
from replicator.service.configuring.document import ConfiguredDocument, Refusal, ValidationDocument
from replicator.state.store import StateStore

_NICENESS = 10
_log = get_logger(__name__)


class Deed(StrEnum):
    """Action requested for a configuration."""

    VALIDATE = "validate"
    CONFIGURE = "configure"


class Asked(BaseModel):
    """One line for the process. `name`: the replicator that is to have it; with `must_be_new` there may be none of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deed: Deed
    text: str
    is_json: bool
    name: str = ""
    must_be_new: bool = False


class ConfiguringOutcome(BaseModel):
    """The answer line: one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    validated: ValidationDocument | None = None
    configured: ConfiguredDocument | None = None
    refused: Refusal | None = None


def main() -> int:
    """Do what the first line of the standard input asks, and answer with a line."""
    os.nice(_NICENESS)
    configure_logging(format="json", stream=sys.stderr)
    asked = Asked.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="leash", daemon=True).start()
    sys.stdout.write(answer(asked, Home.from_environment(), Registry.discover()).model_dump_json() + "\n")
    sys.stdout.flush()
    return 0


def answer(asked: Asked, home: Home, registry: Registry) -> ConfiguringOutcome:
    """Do what is asked. Never raises."""
    try:
        return _done(asked, home, registry)
    except ReplicatorError as error:
        return ConfiguringOutcome(refused=Refusal.of(error, has_lines=not asked.is_json))
    except Exception:  # noqa: BLE001 - a bug is answered; its traceback is in the log
        _log.exception("configuration_failed", deed=asked.deed.value)
        bug = ReplicatorError("The server failed at this configuration.", code="internal_error")
        return ConfiguringOutcome(refused=Refusal.of(bug, has_lines=False))


def _done(asked: Asked, home: Home, registry: Registry) -> ConfiguringOutcome:
    text = configuring.yaml_of_json(asked.text) if asked.is_json else asked.text
    home.ensure()
    store = StateStore(home.state_url)
    how: dict[str, Any] = {"has_lines": not asked.is_json}
    try:
        if asked.deed is Deed.VALIDATE:
            return ConfiguringOutcome(validated=configuring.validate(store, home, registry, text, **how))
        how["must_be_new"] = asked.must_be_new
        return ConfiguringOutcome(configured=configuring.configure(store, home, registry, asked.name, text, **how))
    finally:
        store.close()


def _end_with_parent() -> None:
    """End at once when the process that asked has ended: its end of the pipe is closed then."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
