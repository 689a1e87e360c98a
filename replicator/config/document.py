"""Reads YAML into plain values that remember their lines, and refuses YAML features that a configuration does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from replicator.config.shape import Part, Path
from replicator.model.errors import Problem
from replicator.model.rules import Rule
from replicator.model.rules.configuration import (
    ALIASES_TOO_MANY,
    CONTROL_CHARACTER,
    DOCUMENT_TOO_LARGE,
    DUPLICATE_KEY,
    EMPTY_DOCUMENT,
    HALF_A_CHARACTER,
    INVALID_YAML,
    KEY_NOT_TEXT,
    MERGE_KEYS,
    NO_DATE_OR_NUMBER,
    NOT_A_MAPPING,
    TAGS,
)

PLACEHOLDER: Final = "CHANGE-ME"
"""Placeholder that `replicator init` writes where only the user knows the value."""

# A configuration is a page or two. The limits keep a hostile or mistaken file from costing anything.
DOCUMENT_BYTES_MAX: Final = 256 << 10
DEPTH_MAX: Final = 32
NODES_MAX: Final = 20_000

_PREFIX: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = frozenset(_PREFIX + name for name in ("null", "bool", "int", "float", "str", "timestamp"))
_NAMED: Final = re.compile(r"""\b(alias|anchor|handle) (?:'.*?'|".*?")(?=;|$)""", re.DOTALL)
_ALIAS_HINT: Final = "Put a pattern that begins with * in quotes."
_TAB_HINT: Final = "Indent with spaces; YAML does not allow tabs."
_SHAPE_HINT: Final = (
    "Check indentation, brackets and quotes in this line and above. Put texts with special characters in quotes."
)


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping read from YAML.

    Attributes:
        origin: Name of the file in messages.
        values: The content; keys are texts, scalars as YAML reads them. Empty if it could not be read.
        lines: Line (from 1) by path; `()` is the document itself.
        problems: Errors in it as YAML.
    """

    origin: str
    values: dict[str, Any]
    lines: Mapping[Path, int]
    problems: tuple[Problem, ...]

    def where(self, path: Path) -> str:
        """Return `file.yaml:LINE dotted.path`, for the nearest path at or above `path` that stands in the file."""
        return f"{self.origin}:{self.line(path)} {dotted(path)}".rstrip()

    def line(self, path: Path) -> int:
        """Return the line of `path`, or of the nearest block around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def read_document(text: str, origin: str) -> Document:
    """Read YAML. Never raises: errors become problems."""
    if len(text) > DOCUMENT_BYTES_MAX:
        return _unreadable(origin, 1, DOCUMENT_TOO_LARGE, most_kib=DOCUMENT_BYTES_MAX >> 10)
    try:
        root = yaml.compose(text, Loader=_BoundedLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Only the parser's own words: its full text quotes lines of the file, which may hold a secret, and its words quote what it reads as
        # names: of `password: *abc` those of a password.
        words = _NAMED.sub(r"\1", "; ".join(part for part in (error.context, error.problem) if part))
        line = mark.line + 1 if mark else 1
        return _unreadable(origin, line, INVALID_YAML, action=_remedy(words), words=words)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _unreadable(origin, line, CONTROL_CHARACTER)
    if root is None:
        return _unreadable(origin, 1, EMPTY_DOCUMENT)
    if not isinstance(root, yaml.MappingNode):
        return _unreadable(origin, root.start_mark.line + 1, NOT_A_MAPPING, found=kind_of(root.value))
    reader = _Reader(origin)
    try:
        values = reader.mapping(root, ())
    except _TooMuchError:
        return _unreadable(origin, 1, ALIASES_TOO_MANY, most=NODES_MAX)
    return Document(origin=origin, values=values, lines=reader.lines, problems=tuple(reader.problems))


def _remedy(words: str) -> str:
    """Return the most likely fix for the parser's message."""
    if "'\\t'" in words:
        return _TAB_HINT
    return _ALIAS_HINT if "alias" in words else _SHAPE_HINT


def dotted(path: Path) -> str:
    """Spell a path as `tables.include[0]` or `tables.settings["public.*"].deletes`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part and all(char.isalnum() or char in "_-" for char in part):
            text += f".{part}" if text else part
        else:
            quoted = part.replace("\\", "\\\\").replace('"', '\\"')
            text += f'["{quoted}"]'
    return text


def kind_of(value: Any) -> str:
    """Name the kind of a value read from YAML, without the value."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return "a date"


def _unreadable(origin: str, line: int, rule: Rule, *, action: str | None = None, **fields: Any) -> Document:
    problem = rule.finding(location=f"{origin}:{line}", action=action, **fields)
    return Document(origin=origin, values={}, lines={(): line}, problems=(problem,))


def _is_text(value: str) -> bool:
    """Return whether every character is valid. An escape can make half of a surrogate pair, which neither UTF-8 nor a database can have."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class _TooMuchError(Exception):
    """Raised when the document unfolds to more than it may."""


class _BoundedLoader(yaml.SafeLoader):
    """SafeLoader that gives up on deep nesting before Python does."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node, counting its depth."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # not in types-PyYAML
            raise yaml.composer.ComposerError(None, None, f"more than {DEPTH_MAX} levels of nesting", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


@dataclass
class _Reader:
    """Turns nodes into values, noting lines and problems."""

    origin: str
    lines: dict[Path, int] = field(default_factory=lambda: {(): 1})
    problems: list[Problem] = field(default_factory=list)
    _nodes: int = 0
    _constructor: yaml.constructor.SafeConstructor = field(default_factory=yaml.constructor.SafeConstructor)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, line, value in self._entries(node, path):
            here = (*path, key)
            if key in values:
                self._problem(DUPLICATE_KEY, line, here, key=key, line_before=self.lines[here])
                continue
            self.lines[here] = line
            values[key] = self.value(value, here)
        return values

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX or len(path) > DEPTH_MAX:
            raise _TooMuchError
        if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
            return [self._item(child, (*path, position)) for position, child in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS:
            return self._scalar(node, path)
        self._problem(TAGS, node.start_mark.line + 1, path)
        return None

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if not _is_text(node.value):
            self._not_text(node, path)
            return None
        try:
            return self._constructor.construct_object(node)
        except (ValueError, OverflowError, yaml.YAMLError):
            # "2024-13-45" looks like a date to YAML; a number may have too many digits for Python.
            self._problem(NO_DATE_OR_NUMBER, node.start_mark.line + 1, path)
            return None

    def _entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and not _is_text(key.value):
                self._not_text(key, path)
            elif isinstance(key, yaml.ScalarNode) and key.tag == _PREFIX + "str":
                yield key.value, line, value
            elif isinstance(key, yaml.ScalarNode) and key.tag == _PREFIX + "merge":
                self._problem(MERGE_KEYS, line, path)
            else:
                self._problem(KEY_NOT_TEXT, line, path)

    def _not_text(self, node: yaml.ScalarNode, path: Path) -> None:
        self._problem(HALF_A_CHARACTER, node.start_mark.line + 1, path)

    def _problem(self, rule: Rule, line: int, path: Path, **fields: Any) -> None:
        where = f"{self.origin}:{line} {dotted(path)}".rstrip()
        self.problems.append(rule.finding(location=where, **fields))


__all__ = ["DOCUMENT_BYTES_MAX", "Document", "Part", "Path", "dotted", "kind_of", "read_document"]
