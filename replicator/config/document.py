"""Reads YAML into plain values that remember their lines, and refuses YAML features that a configuration does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from replicator.config.shape import Part, Path
from replicator.model.errors import Problem

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
        message = f"The file is larger than {DOCUMENT_BYTES_MAX >> 10}KiB, the most that a configuration may be."
        return _unreadable(origin, 1, "document_too_large", message)
    try:
        root = yaml.compose(text, Loader=_BoundedLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Only the parser's own words: its full text quotes lines of the file, which may hold a secret, and its words quote what it reads as
        # names: of `password: *abc` those of a password.
        words = _NAMED.sub(r"\1", "; ".join(part for part in (error.context, error.problem) if part))
        return _unreadable(
            origin, mark.line + 1 if mark else 1, "invalid_yaml", f"This is not valid YAML: {words}.", _remedy(words)
        )
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = "This is not valid YAML: there is a control character in it."
        return _unreadable(origin, line, "invalid_yaml", message, "Remove the character.")
    if root is None:
        return _unreadable(
            origin, 1, "empty_document", "The file is empty.", "`replicator init` writes a file to start from."
        )
    if not isinstance(root, yaml.MappingNode):
        message = f"The file must hold keys and values (name:, source:, target:); it holds {kind_of(root.value)}."
        return _unreadable(origin, root.start_mark.line + 1, "not_a_mapping", message)
    reader = _Reader(origin)
    try:
        values = reader.mapping(root, ())
    except _TooMuchError:
        message = f"The file's aliases (*name) unfold to more than {NODES_MAX} values, or contain themselves."
        return _unreadable(origin, 1, "document_too_large", message, "Write the values out.")
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


def _unreadable(origin: str, line: int, code: str, message: str, action: str | None = None) -> Document:
    problem = Problem(code=code, message=message, location=f"{origin}:{line}", action=action)
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
                message = f"`{key}` is written twice; first on line {self.lines[here]}."
                self._problem("duplicate_key", message, line, here, "Remove one of them.")
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
        message = "YAML tags (!…) are not supported."
        self._problem("invalid_yaml", message, node.start_mark.line + 1, path, "Write a plain value.")
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
            self._problem(
                "invalid_yaml", "This cannot be read as a date or number.", node.start_mark.line + 1, path,
                "If it is meant as text, put it in quotes.",
            )  # fmt: skip
            return None

    def _entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and not _is_text(key.value):
                self._not_text(key, path)
            elif isinstance(key, yaml.ScalarNode) and key.tag == _PREFIX + "str":
                yield key.value, line, value
            elif isinstance(key, yaml.ScalarNode) and key.tag == _PREFIX + "merge":
                self._problem("invalid_yaml", "Merge keys (<<) are not supported.", line, path, "Write the keys out.")
            else:
                message = "A key must be text."
                self._problem(
                    "invalid_yaml", message, line, path, "Put it in quotes: YAML reads on, no and 1 as values."
                )

    def _not_text(self, node: yaml.ScalarNode, path: Path) -> None:
        message = "An escape in this text is half of a surrogate pair, which is no character."
        self._problem("invalid_yaml", message, node.start_mark.line + 1, path, "Write the character itself.")

    def _problem(self, code: str, message: str, line: int, path: Path, action: str) -> None:
        where = f"{self.origin}:{line} {dotted(path)}".rstrip()
        self.problems.append(Problem(code=code, message=message, location=where, action=action))


__all__ = ["DOCUMENT_BYTES_MAX", "Document", "Part", "Path", "dotted", "kind_of", "read_document"]
