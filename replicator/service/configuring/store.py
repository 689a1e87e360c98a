"""Configurations from the network: checked as by `validate`, stored as by `start` and `reload`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import yaml

from replicator.config import LoadedConfig, environment
from replicator.model.errors import ConfigError, Problem, RequestError
from replicator.observability import register_secret
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service import lifecycle, reloading
from replicator.service.configuring import assess
from replicator.service.configuring.document import ORIGIN, ConfiguredDocument, ValidationDocument
from replicator.state.records import Desired
from replicator.state.store import StateStore


class MaskedEnvironment(Mapping[str, str]):
    """This process's environment. Every variable that a configuration reads is masked in all later answers."""

    def __getitem__(self, name: str) -> str:
        """Return the value of a variable."""
        value = environment()[name]
        register_secret(value)
        return value

    def __contains__(self, name: object) -> bool:
        """Return whether it is set."""
        return name in environment()

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names."""
        return iter(environment())

    def __len__(self) -> int:
        """Return the number of variables."""
        return len(environment())


def yaml_of_json(text: str) -> str:
    """Return the same document as YAML, as it is stored.

    Raises:
        RequestError: `invalid_request`: it is not JSON, or has a key twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse_constant)
        # Half of a surrogate pair is no text; neither UTF-8 nor a state store can have it.
        json.dumps(value, ensure_ascii=False).encode()
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno}"
    except UnicodeEncodeError:
        reason = "it has half of a surrogate pair"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise RequestError(f"The body cannot be read as JSON: {reason}.", status=422, code="invalid_request")


def validate(store: StateStore, home: Home, registry: Registry, text: str, *, has_lines: bool) -> ValidationDocument:
    """Check a configuration as `replicator validate` does: changes nothing anywhere.

    Raises:
        ConfigError: The file itself is wrong; with every finding.
    """
    loaded = _load(registry, text)
    record = store.replicator(loaded.config.name)
    found = assess.assess(loaded, registry, home, uuid=record.uuid if record else "")
    return ValidationDocument.made(loaded.config.name, found, has_lines=has_lines)


def configure(
    store: StateStore,
    home: Home,
    registry: Registry,
    name: str,
    text: str,
    *,
    has_lines: bool,
    must_be_new: bool = False,
) -> ConfiguredDocument:
    """Give a replicator this configuration: as `replicator start` if it is new, as `replicator reload` if it is not.

    The same text again changes nothing. A stored replicator stays as it is: running, paused or failed.

    Raises:
        ConfigError: `name_differs`; `exists`, with `must_be_new`; as `lifecycle.put`. Nothing is stored then.
    """
    loaded = _load(registry, text)
    if loaded.config.name != name:
        message = f"The file is that of {loaded.config.name}, and the path names another replicator."
        problem = Problem(
            code="name_differs",
            message=message,
            location="name",
            action="Use the same name in the path and in the file.",
        )
        raise ConfigError(message, code="name_differs", action=problem.action, problems=(problem,))
    record = store.replicator(name)
    if record is None:
        try:
            record, found = lifecycle.put(store, home, registry, loaded)
        except ConfigError as error:
            if error.code != "exists" or must_be_new:
                raise
            # Another caller was faster: the configuration that it stored is changed.
        else:
            lifecycle.start(store, record)
            return ConfiguredDocument.first(
                name, found, has_worker=store.leases.current(name) is not None, has_lines=has_lines
            )
    elif must_be_new:
        raise ConfigError(
            f"There is a replicator called {name} already.",
            code="exists",
            action=f"Choose another name. To change that one: replicator reload FILE. To see it: replicator status {name}",
        )
    elif record.config == text and record.identity and record.desired is not Desired.DELETED:
        return ConfiguredDocument.same(name, has_worker=store.leases.current(name) is not None)
    return ConfiguredDocument.again(name, reloading.reload(store, home, registry, loaded), has_lines=has_lines)


def _load(registry: Registry, text: str) -> LoadedConfig:
    return registry.load(text, origin=ORIGIN, env=MaskedEnvironment())


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("a number is not finite")
