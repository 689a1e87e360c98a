"""The tokens of a statement, read one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

# The names of sqlglot's kinds of tokens. It takes a tenth of the start of a process to import, and few processes read a statement.
_QUOTED: Final = frozenset({"IDENTIFIER"})
_TEXTS: Final = frozenset({"STRING", "HEREDOC_STRING", "BYTE_STRING", "NATIONAL_STRING"})
_OPENING: Final = frozenset({"L_PAREN", "L_BRACKET"})
_CLOSING: Final = frozenset({"R_PAREN", "R_BRACKET"})


class NotUnderstoodError(Exception):
    """The text has none of the known forms."""


class Token(NamedTuple):
    """A token; `start` and `end` are the positions of its first and its last character."""

    kind: str
    text: str
    start: int
    end: int


class Name(NamedTuple):
    """A table's name; `schema` is None if it is left out."""

    schema: str | None
    name: str


def cursor_of(text: str) -> Cursor:
    """Read a statement, with or without a semicolon at its end."""
    from sqlglot.errors import SqlglotError

    try:
        tokens = _tokens(text)
    except SqlglotError as error:
        raise NotUnderstoodError from error
    while tokens and tokens[-1].kind == "SEMICOLON":
        tokens.pop()
    depth = 0
    for token in tokens:
        depth += _deeper(token)
        if depth < 0 or token.kind == "SEMICOLON":
            raise NotUnderstoodError
    if depth:
        raise NotUnderstoodError
    return Cursor(text, tokens)


class Cursor:
    """Reads tokens one after another; NotUnderstoodError where something else is wanted."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        """Take the tokens of `text`."""
        self._text = text
        self._tokens = tokens
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Return whether no token is left."""
        return self._at >= len(self._tokens)

    def end(self) -> None:
        """Raise NotUnderstoodError if something is left."""
        if not self.is_at_end:
            raise NotUnderstoodError

    def words(self) -> list[str]:
        """Return the keywords of the next token, which may be several; none if it is a name in quotes, or a text."""
        if self.is_at_end or self._tokens[self._at].kind in _QUOTED | _TEXTS:
            return []
        return self._tokens[self._at].text.upper().split()

    def accept(self, phrase: str) -> bool:
        """Pass these keywords if they come next; return whether they did."""
        start, wanted = self._at, phrase.split()
        while wanted:
            found = self.words()
            if not found or found != wanted[: len(found)]:
                self._at = start
                return False
            wanted = wanted[len(found) :]
            self._at += 1
        return True

    def expect(self, phrase: str) -> None:
        """Pass these keywords."""
        if not self.accept(phrase):
            raise NotUnderstoodError

    def one_of(self, *phrases: str) -> str | None:
        """Pass the first of these that comes next, and return it; None if none does."""
        return next((phrase for phrase in phrases if self.accept(phrase)), None)

    def identifier(self) -> str:
        """Read a name, in small letters unless it is in quotes."""
        if self.is_at_end:
            raise NotUnderstoodError
        token = self._tokens[self._at]
        self._at += 1
        if token.kind in _QUOTED:
            return token.text
        if (
            token.kind in _TEXTS
            or not token.text.replace("_", "a").replace("$", "a").isalnum()
            or token.text[0].isdigit()
        ):
            raise NotUnderstoodError
        return token.text.lower()

    def name(self) -> Name:
        """Read a table's name."""
        first = self.identifier()
        return Name(first, self.identifier()) if self.accept(".") else Name(None, first)

    def names(self) -> list[Name]:
        """Read names with commas between them."""
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        return found

    def identifiers(self) -> list[str]:
        """Read a list of names in parentheses."""
        self.expect("(")
        found = [self.identifier()]
        while self.accept(","):
            found.append(self.identifier())
        self.expect(")")
        return found

    def parts(self) -> list[Cursor]:
        """Return the remaining tokens, split at their commas."""
        found: list[list[Token]] = [[]]
        depth = 0
        for token in self._tokens[self._at :]:
            depth += _deeper(token)
            if token.kind == "COMMA" and not depth:
                found.append([])
            else:
                found[-1].append(token)
        self._at = len(self._tokens)
        return [Cursor(self._text, tokens) for tokens in found]

    def inner(self) -> Cursor:
        """Return the contents of the parentheses that come next."""
        self.expect("(")
        start = self._at
        self._skip(lambda token: token.kind == "R_PAREN")
        found = Cursor(self._text, self._tokens[start : self._at])
        self.expect(")")
        return found

    def text_until(self, ends: frozenset[str]) -> str:
        """Return the text of at least one token, up to one of these keywords that is in no parentheses."""
        start = self._at
        if self.is_at_end:
            raise NotUnderstoodError
        self._skip(
            lambda token: (
                self._at > start and token.kind not in _QUOTED | _TEXTS and token.text.upper().split()[0] in ends
            )
        )
        first, last = self._tokens[start], self._tokens[self._at - 1]
        return self._text[first.start : last.end + 1]

    def _skip(self, is_end: Callable[[Token], bool]) -> None:
        depth = 0
        while not self.is_at_end:
            token = self._tokens[self._at]
            if not depth and is_end(token):
                return
            depth += _deeper(token)
            self._at += 1


def functions_in(text: str) -> set[str]:
    """Return the names before parentheses in an expression: those of its functions, and some that are none."""
    tokens = _tokens(text)
    called = [token for token, following in pairwise(tokens) if following.kind == "L_PAREN"]
    return {token.text if token.kind in _QUOTED else token.text.lower() for token in called}


def _tokens(text: str) -> list[Token]:
    import sqlglot

    return [Token(t.token_type.name, t.text, t.start, t.end) for t in sqlglot.tokenize(text, read="postgres")]


def _deeper(token: Token) -> int:
    return (token.kind in _OPENING) - (token.kind in _CLOSING)
