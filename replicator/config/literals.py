"""Finds secrets that are written out where a configuration allows any text: settings of Spark, addresses, arguments of commands.

Fields that are secrets refuse them by their type. These are other fields, where a name or a form reveals a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from replicator.config.document import Path
from replicator.config.secrets import Resolved
from replicator.observability import is_sensitive_name

_PASSWORD_IN_ADDRESS: Final = re.compile(r"://[^/?#\s@]*:[^/?#\s]*@")
_USER_IN_ADDRESS: Final = re.compile(r"://[^/?#\s]*@")
# A token in place of a user, which services of git and packages take.
_USER_ON_THE_WEB: Final = re.compile(r"https?://[^/?#\s@]+@", re.IGNORECASE)
_QUERY: Final = re.compile(r"[?&]([\w.-]+)=([^\s&#]+)")
# Of signed addresses, and of functions for which the address is enough; too short for names of settings.
_QUERY_SECRETS: Final = frozenset({"sig", "signature", "sas"})
# Often something else: the name of a key, a status.
_QUERY_KEYS: Final = frozenset({"key", "code"})
_LOOKS_MADE: Final = re.compile(r"(?=\D*\d)\S{16,}")
# Addresses whose path is secret.
_CAPABILITY: Final = re.compile(
    r"https://(?:hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|[\w.-]*webhook\.office\.com/|api\.telegram\.org/bot)\w",
    re.IGNORECASE,
)
_ASSIGNED: Final = re.compile(r"(?:^|[\s?&;,])-{0,2}D?([\w.-]+)=([^\s&;,]+)")
_HEADER: Final = re.compile(
    r"(?:^(?:-H)?|[\s\"'=])(?:[\w-]*authorization|cookie|x-[\w-]*key|[\w-]*(?:(?:api|access|private)-?key|token|secret))\s*:\s*\S",
    re.IGNORECASE,
)
_MEMBER: Final = re.compile(r"""["']([\w.-]+)["']\s*:\s*["']([^"']+)["']""")
_FLAG: Final = re.compile(r"--?([\w.-]+)")
# curl's and wget's option for the caller.
_USER_FLAG: Final = re.compile(r"-u|--(?:proxy-)?user")
# Not the numbers of a user and a group, nor a group that is called as its user.
_PAIR: Final = re.compile(r"(?!\d+:\d+$|([\w-]+):\1$)[^\s:]*:\S+")
# Programs whose `-u` is a user of the host, whatever follows it.
_CALLER: Final = re.compile(r"(?:.*/)?(?:curl|wget|https?|xh)")
_AS_USER: Final = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl|sudo|systemd-run)(?:-compose)?")
# Keys of Spark's file systems, and signatures in place of keys.
_KEY_OF_STORAGE: Final = re.compile(r"encryption[.-]key$|\.azure\.sas\.", re.IGNORECASE)
# Names a key that the cloud keeps, and is none.
_KEY_ID: Final = re.compile(r"(?:arn:|alias/)\S+")
# Names that mention a secret but hold none: classes, paths, numbers, switches.
_ABOUT: Final = re.compile(
    r"(?:providers?|types?|class|factory|files?|paths?|alias|aliases|location|dir|enabled|required|length|bits|bitlength|url|uri|"
    r"endpoint|host|expiry|lifetime|interval|duration|timeout)(?:\.(?:path|type|file|class))?$",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(r"true|false|none|\d+[a-z]*", re.IGNORECASE)


def literal_secrets(values: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths of texts that look like a secret and come from no reference, in the settings of the host or of a plugin."""
    yield from (path for path, _ in _found(values))


def texts_to_mask(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a configuration that no message may repeat: literal secrets, and addresses used as keys."""
    yield from (text for _, text in _found(values))
    yield from (key for key in _keys(values) if "://" in key)


def _found(values: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for path, text in _literals(values):
        # Of lineage, a user alone may be a token, too.
        in_address = _USER_IN_ADDRESS if path[:2] == ("lineage", "url") else _PASSWORD_IN_ADDRESS
        is_named_so = path[:2] == ("spark", "settings") and _is_secret(str(path[-1]), text)
        if is_named_so or in_address.search(text) or _is_signed(text) or _has_assignment(path, text):
            yield path, text
    for path, words in _commands(values):
        yield from _of_command(path, words)


def _has_assignment(path: Path, text: str) -> bool:
    """Return whether a text contains `password=…`, in fields that hold options: an address, arguments, options of Java."""
    if path[0] not in ("spark", "lineage", "alerts"):
        return False
    is_told = any(pattern.search(text) for pattern in (_HEADER, _USER_ON_THE_WEB, _CAPABILITY))
    return is_told or any(_is_secret(*found) for found in (*_ASSIGNED.findall(text), *_MEMBER.findall(text)))


def _is_signed(text: str) -> bool:
    """Return whether an address has a secret among its parameters."""
    if "://" not in text:
        return False
    return any(
        name.lower() in _QUERY_SECRETS
        or (name.lower() in _QUERY_KEYS and _LOOKS_MADE.fullmatch(value) is not None)
        or _is_secret(name, value)
        for name, value in _QUERY.findall(text)
    )


def _of_command(path: Path, words: Sequence[Any]) -> Iterator[tuple[Path, str]]:
    """Yield arguments that follow `--token` or `-password`, and user and password that follow `-u`."""
    if not words:
        return
    is_as_user = isinstance(words[0], str) and _AS_USER.fullmatch(words[0]) is not None
    for at, word in enumerate(words[1:], start=1):
        if not isinstance(word, str) or isinstance(word, Resolved):
            continue
        # The program that it starts may be one of those.
        is_as_user = is_as_user and _CALLER.fullmatch(word) is None
        before = words[at - 1] if isinstance(words[at - 1], str) else ""
        flag = _FLAG.fullmatch(before)
        is_pair = not is_as_user and _USER_FLAG.fullmatch(before) is not None and _PAIR.fullmatch(word) is not None
        if is_pair or (flag is not None and _is_secret(flag[1], word)):
            yield (*path, at), word


def _is_secret(name: str, value: str) -> bool:
    is_about = _ABOUT.search(name) is not None or _NO_SECRET.fullmatch(value.strip()) is not None
    is_key = _KEY_OF_STORAGE.search(name) is not None and _KEY_ID.fullmatch(value) is None
    is_named_so = is_sensitive_name(name) or is_key
    return bool(value.strip()) and not value.startswith(("-", "/")) and is_named_so and not is_about


def _commands(values: Mapping[str, Any]) -> Iterator[tuple[Path, Sequence[Any]]]:
    commands = alerts.get("commands") if isinstance(alerts := values.get("alerts"), dict) else None
    for name, command in (commands if isinstance(commands, dict) else {}).items():
        if isinstance(command, dict) and isinstance(argv := command.get("argv"), list):
            yield ("alerts", "commands", name, "argv"), argv


def _keys(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield str(key)
                yield from _keys(item)
        case list():
            for item in value:
                yield from _keys(item)


def _literals(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    match value:
        case Resolved():
            return
        case dict():
            for key, item in value.items():
                yield from _literals(item, (*path, key))
        case list():
            for position, item in enumerate(value):
                yield from _literals(item, (*path, position))
        case str():
            yield path, value
