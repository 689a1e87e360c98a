"""The tokens of a statement, cut as the servers cut them. Pure.

Sources: the manuals (comments, identifiers, literals), `sql/sql_lex.cc` of both servers, and what they did when asked.
A comment `/*!NNNNN …*/` that a server does not execute stands in its log as `/* NNNNN …*/`, with the comments inside
spelled `(* *)`: what still has its exclamation mark was executed, whatever version wrote the log. Only MariaDB executes
`/*M!`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replicator_source_mysql.binlog.charset_tables import SINGLE_BYTES
from replicator_source_mysql.flavors import Flavor

ANSI_QUOTES: Final = 1 << 2
NO_BACKSLASH_ESCAPES: Final = 1 << 20


class TokenKind(Enum):
    """The kind of a token."""

    WORD = "word"
    """A key word or a name, without quotes."""
    QUOTED = "quoted"
    """A name in quotes."""
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `text` of a name in quotes is the name; `word` is a WORD in capitals, empty for everything that is no key word."""

    kind: TokenKind
    text: str
    word: str = ""


END: Final = Token(TokenKind.END, "")


class UnreadableError(Exception):
    """The text ends inside a quote or a comment, or could be read in two ways."""


_NOT_ASCII: Final = "swe7"
_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")
_LINE_COMMENT: Final = re.compile(r"(?:#|--(?=[\x00-\x20\x7f]|\Z))[^\n]*")
# Possessive: nothing is tried twice, however long a quote that does not end is.
_BACKTICKS: Final = re.compile(r"`((?:[^`]++|``)*+)`")
_ANSI_NAME: Final = re.compile(r'"((?:[^"]++|"")*+)"')
_STRINGS: Final = {
    ("'", True): re.compile(r"'(?:[^'\\]++|''|\\.)*+'", re.DOTALL),
    ('"', True): re.compile(r'"(?:[^"\\]++|""|\\.)*+"', re.DOTALL),
    ("'", False): re.compile(r"'(?:[^']++|'')*+'"),
    ('"', False): re.compile(r'"(?:[^"]++|"")*+"'),
}
_BITS: Final = re.compile(r"[xX]'[0-9a-fA-F]*'|[bB]'[01]*'")
_RUN: Final = re.compile(r"[0-9A-Za-z$_\x80-\U0010ffff]+")
_NUMBER: Final = re.compile(
    r"(?:0x[0-9a-fA-F]+|0b[01]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![0-9A-Za-z$_\x80-\U0010ffff])"
)


def tokens(text: str, *, sql_mode: int | None, flavor: Flavor, charset: str) -> Iterator[Token]:
    """The tokens of a statement, in order and as they are asked for; without end mark.

    Args:
        text: The statement, decoded from the client's character set.
        sql_mode: The session's; None: not known, and then text that depends on it cannot be read.
        flavor: The server's flavor.
        charset: The client's character set.

    Raises:
        UnreadableError: See there.
    """
    if charset == _NOT_ASCII:
        raise UnreadableError(f"the character set {charset} has letters where others have quotes")
    executed = flavor.executed_comment
    offset, is_inside = 0, False
    # A name follows a name and a dot, whatever it looks like: `shop.1t`, `shop.select`.
    is_behind_dot = is_name = False
    while offset < len(text):
        end, is_inside = _skipped(text, offset, executed, is_inside=is_inside)
        if end > offset:
            offset = end
            is_behind_dot = is_name = False
            continue
        if is_name and text[offset] == ".":
            token, offset = Token(TokenKind.SYMBOL, "."), offset + 1
            is_behind_dot = True
        else:
            token, offset = _token(text, offset, sql_mode, is_behind_dot=is_behind_dot)
            is_behind_dot = False
        is_name = token.kind in {TokenKind.WORD, TokenKind.QUOTED}
        if charset in SINGLE_BYTES and token.kind in {TokenKind.WORD, TokenKind.SYMBOL} and not _is_plain(token.text):
            raise UnreadableError(
                "a byte that is not a letter of a single-byte character set may be a space, or nothing at all"
            )
        yield token
    if is_inside:
        raise UnreadableError("a comment that is executed does not end")


def _skipped(text: str, offset: int, executed: re.Pattern[str], *, is_inside: bool) -> tuple[int, bool]:
    """The end of a space, a comment or the mark of an executed one, if one begins here; and whether an executed one is open."""
    found = _SPACE.match(text, offset) or _LINE_COMMENT.match(text, offset)
    if found is not None:
        return found.end(), is_inside
    if is_inside and text.startswith("*/", offset):
        # One end closes all of them.
        return offset + 2, False
    found = executed.match(text, offset)
    if found is not None:
        return found.end(), True
    if text.startswith("/*", offset):
        return _end_of_comment(text, offset), is_inside
    return offset, is_inside


def _end_of_comment(text: str, offset: int) -> int:
    end = text.find("*/", offset + 2)
    if end < 0:
        raise UnreadableError("a comment does not end")
    return end + 2


def _token(text: str, offset: int, sql_mode: int | None, *, is_behind_dot: bool) -> tuple[Token, int]:
    char = text[offset]
    if char == "`" or (char == '"' and _has(sql_mode, ANSI_QUOTES)):
        found = (_BACKTICKS if char == "`" else _ANSI_NAME).match(text, offset)
        if found is None:
            raise UnreadableError("a name in quotes does not end")
        return Token(TokenKind.QUOTED, found[1].replace(char * 2, char)), found.end()
    if char in "'\"":
        return _string(text, offset, sql_mode)
    if not is_behind_dot:
        if char in "nN" and text.startswith("'", offset + 1):
            return _string(text, offset + 1, sql_mode)
        number = _BITS.match(text, offset) or _NUMBER.match(text, offset)
        if number is not None:
            return Token(TokenKind.NUMBER, number[0]), number.end()
    run = _RUN.match(text, offset)
    if run is not None:
        return Token(TokenKind.WORD, run[0], "" if is_behind_dot else _upper(run[0])), run.end()
    return Token(TokenKind.SYMBOL, char), offset + 1


def _string(text: str, offset: int, sql_mode: int | None) -> tuple[Token, int]:
    found = _STRINGS[text[offset], False].match(text, offset)
    if found is None or "\\" in found[0]:
        found = _STRINGS[text[offset], not _has(sql_mode, NO_BACKSLASH_ESCAPES)].match(text, offset)
    if found is None:
        raise UnreadableError("a string does not end")
    return Token(TokenKind.STRING, found[0]), found.end()


def _has(sql_mode: int | None, mode: int) -> bool:
    if sql_mode is None:
        raise UnreadableError("the SQL mode is unknown")
    return bool(sql_mode & mode)


def _is_plain(text: str) -> bool:
    return text.isascii() or all(char.isascii() or char.isalpha() for char in text)


def _upper(text: str) -> str:
    """The word in capitals. Key words are ASCII: `str.upper` would make one of other letters, too."""
    return text.upper() if text.isascii() else text
