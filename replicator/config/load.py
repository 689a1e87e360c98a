"""Turns a YAML file into one immutable configuration, or reports everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from replicator.config.document import DOCUMENT_BYTES_MAX, PLACEHOLDER, Document, Path, read_document
from replicator.config.literals import literal_secrets, texts_to_mask
from replicator.config.messages import (
    Block,
    literal_secret,
    not_filled_in,
    problems_of,
    unknown_plugin,
    wrong_scalar,
)
from replicator.config.model import ReplicatorConfig
from replicator.config.references import Resolver, environment
from replicator.config.secrets import Resolved
from replicator.config.shape import Shape, shape_at
from replicator.model.errors import ConfigError, Problem, Severity
from replicator.observability import is_sensitive_name, register_secret

KINDS: Final = ("source", "target")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedConfig:
    """A configuration that has passed every check of its form.

    Attributes:
        document: The text as written, references included: it may be stored, and loads again.
        origin: Name of the file in messages.
        config: The host's settings.
        source_type, target_type: Names of the plugins.
        source, target: Their settings, secrets resolved.
        warnings: Findings that do not prevent its use.
    """

    document: str
    origin: str
    config: ReplicatorConfig
    source_type: str
    source: BaseModel
    target_type: str
    target: BaseModel
    warnings: tuple[Problem, ...] = field(default=())

    def __repr__(self) -> str:
        """Return a short name of the configuration. Its fields may hold values from the environment, so they are not shown."""
        return f"<configuration of {self.config.name}: {self.source_type} to {self.target_type}>"


def load(
    source: FilePath | str,
    *,
    sources: Mapping[str, type[BaseModel]],
    targets: Mapping[str, type[BaseModel]],
    origin: str | None = None,
    broken: Callable[[str, str], str | None] = lambda *_: None,
    env: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> LoadedConfig:
    """Read and check a configuration.

    Args:
        source: A Path is a file; a str is the YAML itself.
        sources: Settings models of the source plugins by name; asked only for the one that is named, unless there is none.
        targets: The same for targets.
        origin: Name for messages; the file's name, or `configuration`, by default.
        broken: Returns the reason why the installed plugin of a kind and a name cannot be used, for a better message; None: it can.
        env: Environment variables; those of this process by default.
        without: Blocks to leave out: their references are not resolved, and their settings are the defaults.

    Secrets that it resolves are registered with the log redaction before anything is checked.

    Raises:
        ConfigError: Has every problem that was found, each with line, path and remedy.
    """
    text, origin = _read(source, origin)
    document = read_document(text, origin)
    if document.problems and not document.values:
        raise _refusal(document.origin, document.problems)
    resolver = Resolver(document, environment() if env is None else env)
    values = resolver.resolve({key: value for key, value in document.values.items() if key not in without})
    for exposed in texts_to_mask(values):
        register_secret(exposed)
    models = {"source": sources, "target": targets}
    chosen, problems = _choose_plugins(document, values, models, broken)
    blocks = _blocks(document, values, chosen)
    for block in blocks:
        _register_secrets(block)
    results: dict[Path, BaseModel] = {}
    for block in blocks:
        result, found = _validate(block, resolver.unresolved)
        problems += found
        if result is not None:
            results[block.prefix] = result
    # Values that could not even be read are not judged again.
    unread = {problem.location for problem in document.problems}
    problems = [problem for problem in problems if problem.location not in unread]
    findings = sorted((*document.problems, *resolver.problems, *problems), key=lambda problem: _line(problem, origin))
    if any(finding.severity is Severity.BLOCKING for finding in findings):
        raise _refusal(origin, tuple(findings))
    config = results[()]
    assert isinstance(config, ReplicatorConfig)
    return LoadedConfig(
        document=text,
        origin=origin,
        config=config,
        source_type=chosen["source"][0],
        source=results["source",],
        target_type=chosen["target"][0],
        target=results["target",],
        warnings=tuple(findings),
    )


def _read(source: FilePath | str, origin: str | None) -> tuple[str, str]:
    if isinstance(source, str):
        return source, origin or "configuration"
    origin = origin or source.name
    try:
        with source.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX * 4 + 1)
        # The byte order mark of Windows editors is no part of the text.
        return data.decode("utf-8-sig"), origin
    except OSError as error:
        message = f"{source} cannot be read: {error.strerror}."
        problem = Problem(
            code="file_not_readable", message=message, location=origin, action="Check the path and its rights."
        )
    except UnicodeDecodeError:
        message = f"{source} is not UTF-8 text."
        problem = Problem(code="file_not_readable", message=message, location=origin, action="Save the file as UTF-8.")
    raise _refusal(origin, (problem,))


def _choose_plugins(
    document: Document,
    values: Mapping[str, Any],
    models: Mapping[str, Mapping[str, type[BaseModel]]],
    broken: Callable[[str, str], str | None],
) -> tuple[dict[str, tuple[str, type[BaseModel]]], list[Problem]]:
    chosen: dict[str, tuple[str, type[BaseModel]]] = {}
    problems: list[Problem] = []
    for kind in KINDS:
        known = models[kind]
        block = values.get(kind)
        if not isinstance(block, dict):
            what = "must be a block of keys and values" if kind in values else "is missing"
            code = "wrong_type" if kind in values else "missing_key"
            action = f"Add `{kind}:` with a `type:` and the plugin's settings. {_installed(kind, known)}"
            problems.append(
                Problem(code=code, message=f"`{kind}` {what}.", location=document.where((kind,)), action=action)
            )
            continue
        name = block.get("type")
        where = document.where((kind, "type"))
        if not isinstance(name, str):
            what = "must be text" if "type" in block else "is missing"
            code = "wrong_type" if "type" in block else "missing_key"
            action = f"Name a plugin. {_installed(kind, known)}"
            problems.append(Problem(code=code, message=f"`{kind}.type` {what}.", location=where, action=action))
        elif name not in known:
            problems.append(replace(unknown_plugin(kind, name, known, broken(kind, name)), location=where))
        else:
            chosen[kind] = str(name), known[name]
    return chosen, problems


def _installed(kind: str, known: Iterable[str]) -> str:
    return f"Installed {kind}s: {', '.join(sorted(known)) or 'none'}."


def _blocks(
    document: Document, values: Mapping[str, Any], chosen: Mapping[str, tuple[str, type[BaseModel]]]
) -> list[Block]:
    host = {key: value for key, value in values.items() if key not in KINDS}
    blocks = [Block(document=document, prefix=(), model=ReplicatorConfig, values=host, extra_keys=KINDS)]
    for kind, (_, model) in chosen.items():
        own = {key: value for key, value in values[kind].items() if key != "type"}
        blocks.append(Block(document=document, prefix=(kind,), model=model, values=own, extra_keys=("type",)))
    return blocks


def _register_secrets(block: Block) -> None:
    """Register values that are secrets, or look like one by their name; literals too, so that no message repeats them."""
    for path, value in _scalars(block.values):
        if not isinstance(value, str):
            continue
        shape = shape_at(block.model, path)
        is_secret = shape is not None and shape.is_secret
        is_named_so = isinstance(value, Resolved) and any(is_sensitive_name(str(part)) for part in path)
        if is_secret or is_named_so:
            register_secret(str(value))


def _validate(block: Block, unresolved: set[Path]) -> tuple[BaseModel | None, list[Problem]]:
    depth = len(block.prefix)
    blind = [path[depth:] for path in unresolved if path[:depth] == block.prefix]
    problems = [
        wrong_scalar(block, path, shape)
        for path, value in _scalars(block.values)
        if (shape := shape_at(block.model, path)) is not None and _is_mistaken(shape, value)
    ]
    problems += [literal_secret(block, path) for path in dict.fromkeys(literal_secrets(block.values))]
    problems += [not_filled_in(block, path) for path, value in _scalars(block.values) if value == PLACEHOLDER]
    mistaken = {problem.location for problem in problems}
    result: BaseModel | None = None
    try:
        result = block.model.model_validate(dict(block.values))
    except ValidationError as error:
        found = problems_of(block, error, blind)
        problems += [problem for problem in found if problem.location not in mistaken]
    return result, problems


def _is_mistaken(shape: Shape, value: Any) -> bool:
    """Return whether pydantic would quietly convert a scalar that was hardly meant so: `chunk_rows: yes`, `port: 5432.0`."""
    if shape.scalar is int:
        return isinstance(value, bool | float)
    if shape.scalar is bool:
        return not isinstance(value, bool | Resolved | dict | list) and value is not None
    return shape.quantity is not None and isinstance(value, bool | float)


def _scalars(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _scalars(item, (*path, key))
        case list():
            for position, item in enumerate(value):
                yield from _scalars(item, (*path, position))
        case _:
            yield path, value


def _line(problem: Problem, origin: str) -> int:
    number = (problem.location or "").removeprefix(f"{origin}:").split(" ", 1)[0]
    return int(number) if number.isdecimal() else 0


def _refusal(origin: str, problems: tuple[Problem, ...]) -> ConfigError:
    count = sum(problem.severity is Severity.BLOCKING for problem in problems)
    noun = "problem" if count == 1 else "problems"
    return ConfigError(f"{origin} cannot be used: {count} {noun}.", problems=problems)
