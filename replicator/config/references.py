"""Replaces `${env:NAME}` and `${file:/path}` in the texts of a configuration."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from replicator.config.document import Document, Path
from replicator.config.secrets import Resolved
from replicator.model.errors import Problem, Severity
from replicator.observability import is_sensitive_name, register_secret

SECRET_FILE_BYTES_MAX: Final = 64 << 10
RESOLVED_CHARACTERS_MAX: Final = 1 << 20
"""Limit for all references of a document together: one that names a large file again and again must not fill the memory."""

# `$${` is a literal `${`.
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_WELL_FORMED = re.compile(r"(?P<kind>env|file):(?P<name>.+)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _ReferenceProblemError(Exception):
    """A reference that cannot be resolved; has code, message and action."""

    def __init__(self, code: str, message: str, action: str) -> None:
        super().__init__(message)
        self.code, self.message, self.action = code, message, action


@dataclass
class Resolver:
    """Resolves the references of one document.

    Attributes:
        problems: References that cannot be resolved (blocking), and files that everybody may read (warnings).
        unresolved: Paths of the former; their values mean nothing.
    """

    document: Document
    environment: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    unresolved: set[Path] = field(default_factory=set)
    _characters: int = 0

    def resolve(self, value: Any, path: Path = ()) -> Any:
        """Return a copy of `value` in which texts with references are `Resolved`."""
        match value:
            case dict():
                return {key: self.resolve(item, (*path, key)) for key, item in value.items()}
            case list():
                return [self.resolve(item, (*path, position)) for position, item in enumerate(value)]
            case str() if "${" in value:
                return self._text(value, path)
            case _:
                return value

    def _text(self, text: str, path: Path) -> str:
        values: list[str] = []

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            try:
                values.append(self._value(match, path))
            except _ReferenceProblemError as error:
                self.unresolved.add(path)
                self._problem(error.code, error.message, path, error.action)
                values.append("")
            return values[-1]

        result = _REFERENCE.sub(replace, text)
        return Resolved(result, text, values) if values else result

    def _value(self, match: re.Match[str], path: Path) -> str:
        parts = _WELL_FORMED.fullmatch(match["inside"]) if match["end"] else None
        if parts is None:
            message = "`${…}` must be a reference to an environment variable or a file."
            action = "Write ${env:NAME} or ${file:/path}; $${ means a literal ${."
            raise _ReferenceProblemError("invalid_reference", message, action)
        if self._characters > RESOLVED_CHARACTERS_MAX:
            message = f"The references stand for more than {RESOLVED_CHARACTERS_MAX >> 10}Ki characters."
            raise _ReferenceProblemError("document_too_large", message, "Use fewer references, or smaller files.")
        value = self._variable(parts["name"]) if parts["kind"] == "env" else self._file(parts["name"], path)
        self._characters += len(value)
        return value

    def _variable(self, name: str) -> str:
        if not _VARIABLE.fullmatch(name):
            message = "The name after env: is not a valid name of an environment variable."
            raise _ReferenceProblemError("invalid_reference", message, "Write ${env:NAME}.")
        if name not in self.environment:
            message = f"The environment variable {name} is not set."
            raise _ReferenceProblemError(
                "variable_not_set", message, f"Set it where the replicator runs: export {name}=…"
            )
        value = self.environment[name]
        if is_sensitive_name(name):
            register_secret(value)
        return value

    def _file(self, name: str, path: Path) -> str:
        if not FilePath(name).is_absolute():
            message = f"The path of the file {name} is not absolute."
            raise _ReferenceProblemError("invalid_reference", message, "Write ${file:/full/path}.")
        try:
            value, mode = _read_regular_file(name)
        except UnicodeDecodeError:
            message = f"The file {name} is not UTF-8 text."
            raise _ReferenceProblemError("file_not_readable", message, "Store the value as text.") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"The file {name} cannot be read: {reason}."
            action = "Correct the path, or let the user that runs the replicator read it."
            raise _ReferenceProblemError("file_not_readable", message, action) from None
        register_secret(value)
        if mode & stat.S_IROTH:
            message = f"Every user of this machine may read the file {name}."
            self._problem("file_readable_by_all", message, path, f"chmod o-rwx {name}", Severity.WARNING)
        return value

    def _problem(
        self, code: str, message: str, path: Path, action: str, severity: Severity = Severity.BLOCKING
    ) -> None:
        location = self.document.where(path)
        self.problems.append(Problem(code=code, message=message, location=location, action=action, severity=severity))


def environment() -> Mapping[str, str]:
    """Return this process's environment."""
    return os.environ


def _read_regular_file(name: str) -> tuple[str, int]:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer without a time limit.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is not a regular file")
        data = file.read(SECRET_FILE_BYTES_MAX + 1)
    if len(data) > SECRET_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {SECRET_FILE_BYTES_MAX >> 10}KiB")
    text = data.decode("utf-8")
    ending = "\r\n" if text.endswith("\r\n") else "\n"
    return text.removesuffix(ending), mode
