"""A statement's tokens, read from left to right; an unexpected one is not understood."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from typing import Final

from replicator.model.schema import TableId
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.sql.lexer import END, Token, TokenKind, UnreadableError, tokens

_SHOWN_MAX: Final = 200
# A name that is that of a file, as it is.
_FILE_PREFIX: Final = "#mysql50#"
# They follow the last action without a comma.
_PARTITIONING: Final = frozenset({("PARTITION", "BY"), ("REMOVE", "PARTITIONING")})
_LITERAL_WORDS: Final = frozenset({"NULL", "TRUE", "FALSE"})


class NotUnderstoodError(Exception):
    """The statement is none of the forms that are known."""


class Reader:
    """Reads one statement.

    Args:
        query: The statement.
        flavor: The server's flavor.
        is_lower_case: The server stores names in lower case.

    Attributes:
        flavor: The server's flavor.
        sql_mode: The session's; None: not known.
    """

    def __init__(self, query: Query, flavor: Flavor, *, is_lower_case: bool) -> None:
        self.flavor = flavor
        self.sql_mode = query.sql_mode
        self._coming = tokens(query.text, sql_mode=query.sql_mode, flavor=flavor, charset=query.charset)
        self._ahead: list[Token] = []
        self._database = query.database
        self._is_lower_case = is_lower_case

    # ---- tokens ----

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one `ahead` of it; END after the last one."""
        while len(self._ahead) <= ahead:
            try:
                self._ahead.append(next(self._coming, END))
            except UnreadableError as error:
                raise NotUnderstoodError(str(error)) from error
        return self._ahead[ahead]

    def take(self) -> Token:
        """Take the next token."""
        token = self.peek()
        if token is not END:
            self._ahead.pop(0)
        return token

    @property
    def is_at_end(self) -> bool:
        """Return whether nothing is left but semicolons."""
        ahead = 0
        while self.peek(ahead).text == ";" and self.peek(ahead).kind is TokenKind.SYMBOL:
            ahead += 1
        return self.peek(ahead) is END

    def end(self) -> None:
        """Insist that nothing is left."""
        if not self.is_at_end:
            raise NotUnderstoodError

    # ---- words and symbols ----

    def skip(self, *words: str) -> bool:
        """Pass these words, outside quotes, if all of them come next."""
        if any(self.peek(i).word != word for i, word in enumerate(words)):
            return False
        for _ in words:
            self.take()
        return True

    def skip_any(self, words: Collection[str]) -> str:
        """Pass one of these words if it comes next; empty if none does."""
        return self.take().word if self.peek().word and self.peek().word in words else ""

    def expect(self, *words: str) -> None:
        """Pass these words."""
        if not self.skip(*words):
            raise NotUnderstoodError

    def expect_any(self, words: Collection[str]) -> str:
        """Pass one of these words."""
        found = self.skip_any(words)
        if not found:
            raise NotUnderstoodError
        return found

    def skip_symbol(self, symbol: str) -> bool:
        """Pass a symbol if it comes next."""
        if self.peek().kind is not TokenKind.SYMBOL or self.peek().text != symbol:
            return False
        self.take()
        return True

    def expect_symbol(self, symbol: str) -> None:
        """Pass a symbol."""
        if not self.skip_symbol(symbol):
            raise NotUnderstoodError

    # ---- names ----

    def name(self) -> str:
        """The next name, as written."""
        token = self.take()
        if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
            raise NotUnderstoodError
        return token.text

    def names(self) -> None:
        """Pass a list of names."""
        self.name()
        while self.skip_symbol(","):
            self.name()

    def database(self) -> str:
        """The next database's name, as the server stores it."""
        return self._stored(self.name())

    def table(self) -> TableId:
        """The next table's name, as the server stores it."""
        first = self._stored(self.name())
        if self.skip_symbol("."):
            return TableId(first, self._stored(self.name()))
        return TableId(self._folded(self._database), first)

    def tables(self) -> Iterable[TableId]:
        """A list of tables."""
        found = [self.table()]
        while self.skip_symbol(","):
            found.append(self.table())
        return found

    def _stored(self, name: str) -> str:
        if name.lower().startswith(_FILE_PREFIX):
            raise NotUnderstoodError
        return self._folded(name)

    def _folded(self, name: str) -> str:
        return name.lower() if self._is_lower_case else name

    # ---- values ----

    def string(self) -> None:
        """Pass a string."""
        if self.take().kind is not TokenKind.STRING:
            raise NotUnderstoodError
        while self.peek().kind is TokenKind.STRING:
            self.take()

    def number(self) -> None:
        """Pass a number."""
        if self.take().kind is not TokenKind.NUMBER:
            raise NotUnderstoodError

    def literal(self) -> None:
        """Pass a literal."""
        if self.skip_any(_LITERAL_WORDS):
            return
        if self.peek().kind is TokenKind.WORD and self.peek().text.startswith("_") and self.peek(1).kind in _LITERALS:
            self.take()
        is_signed = self.skip_symbol("-") or self.skip_symbol("+")
        if self.peek().kind is TokenKind.NUMBER:
            self.take()
        elif is_signed:
            raise NotUnderstoodError
        else:
            self.string()

    def parentheses(self) -> None:
        """Pass parentheses and their content."""
        self._pass_parentheses([])

    def parenthesised(self) -> Reader:
        """Pass parentheses; return a reader of their content."""
        passed: list[Token] = []
        self._pass_parentheses(passed)
        return self._of(passed[1:-1])

    def rest_of_item(self) -> Reader:
        """Pass everything up to a comma outside parentheses, PARTITION BY, REMOVE PARTITIONING or the end; return a reader of it."""
        passed: list[Token] = []
        while not self.is_at_end:
            if self.peek().kind is TokenKind.SYMBOL and self.peek().text == ",":
                break
            if (self.peek().word, self.peek(1).word) in _PARTITIONING:
                break
            if self.peek().kind is TokenKind.SYMBOL and self.peek().text == "(":
                self._pass_parentheses(passed)
            else:
                passed.append(self.take())
        return self._of(passed)

    def _pass_parentheses(self, passed: list[Token]) -> None:
        depth = 0
        while True:
            token = self.take()
            if token is END or (not depth and (token.kind, token.text) != (TokenKind.SYMBOL, "(")):
                raise NotUnderstoodError
            passed.append(token)
            if token.kind is TokenKind.SYMBOL:
                depth += (token.text == "(") - (token.text == ")")
            if not depth:
                return

    def _of(self, part: list[Token]) -> Reader:
        """A reader of tokens that this one has passed."""
        found = copy(self)
        found._coming, found._ahead = iter(()), part  # noqa: SLF001 - of its own class
        return found


_LITERALS: Final = frozenset({TokenKind.STRING, TokenKind.NUMBER})


def shown(query: Query, flavor: Flavor) -> str:
    """A statement for a message: shortened, without comments, and with `?` for every literal."""
    parts: list[str] = []
    size = 0
    try:
        for token in tokens(query.text, sql_mode=query.sql_mode, flavor=flavor, charset=query.charset):
            text = token.text
            if token.kind in _LITERALS:
                text = "?"
            elif token.kind is TokenKind.QUOTED:
                text = "`" + text.replace("`", "``") + "`"
            is_tight = text in _TIGHT or (bool(parts) and parts[-1] in _OPENING)
            parts.append(text if is_tight or not parts else f" {text}")
            size += len(parts[-1])
            if size > _SHOWN_MAX:
                return "".join(parts)[:_SHOWN_MAX] + "…"
    except UnreadableError:
        parts.append(" …")
    return "".join(parts)


_TIGHT: Final = frozenset({",", ".", ")", ";"})
_OPENING: Final = frozenset({".", " (", "("})
