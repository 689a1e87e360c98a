"""A batch of T-SQL cut into its statements, which need no semicolons between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from replicator_testbed.sqlserver.outcomes import SqlError

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>N?'(?:[^']|'')*')
      | (?P<quoted>\[(?:[^\]]|\]\])*\]|"(?:[^"]|"")*")
      | (?P<hex>0x[0-9a-f]*)
      | (?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)
      | (?P<word>[@#_a-z\u0080-\uffff][@#$\w]*)
      | (?P<other><=|>=|<>|!=|\|\||[-+*/%]=|::|.)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_BEGINNINGS: Final = frozenset(
    [
        "ALTER",
        "BEGIN",
        "COMMIT",
        "CREATE",
        "DECLARE",
        "DELETE",
        "DROP",
        "EXEC",
        "EXECUTE",
        "IF",
        "INSERT",
        "MERGE",
        "PRINT",
        "RAISERROR",
        "ROLLBACK",
        "SAVE",
        "SELECT",
        "SET",
        "THROW",
        "TRUNCATE",
        "UPDATE",
        "USE",
        "WAITFOR",
        "WHILE",
        "WITH",
        "GO",
        "CHECKPOINT",
        "GRANT",
        "REVOKE",
        "DENY",
        "RETURN",
        "END",
        "RECONFIGURE",
    ]
)
"""Words that a statement begins with."""
_ROWS: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH"})
"""Words that statements about rows begin with."""
_INNER: Final[dict[str, frozenset[str]]] = {
    "INSERT": frozenset({"SELECT", "EXEC", "EXECUTE", "WITH"}),
    "WITH": frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"}),
    "UPDATE": frozenset({"SET"}),
    "DROP": frozenset({"IF"}),
    "CREATE": frozenset({"SELECT", "WITH", "END"}),
    "ALTER": frozenset({"DROP", "ALTER", "SET", "WITH", "CHECK"}),
    "GRANT": frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "ALTER", "EXECUTE", "CREATE", "WITH"}),
    "DENY": frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "ALTER", "EXECUTE", "CREATE"}),
    "REVOKE": frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "ALTER", "EXECUTE", "CREATE"}),
}
"""Words that begin a statement, but not where they stand in one that began with this."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, literal or sign of a batch; `text` as it stands there, `word` in capitals where it is a bare word."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in capitals; empty for what is no word."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text and its tokens."""

    text: str
    tokens: tuple[Token, ...]

    def words(self, count: int) -> str:
        """The first words, in capitals, with single spaces."""
        return " ".join(token.word or token.text for token in self.tokens[:count])

    def after(self, count: int) -> str:
        """The text behind the first tokens."""
        return self.text[self.tokens[count].start - self.tokens[0].start :] if count < len(self.tokens) else ""


def tokens(batch: str) -> list[Token]:
    """Everything of a batch except spaces and comments.

    Raises:
        SqlError: A literal or a comment has no end.
    """
    found: list[Token] = []
    for match in _TOKEN.finditer(batch):
        kind = match.lastgroup or "other"
        if kind == "space":
            continue
        if kind == "other" and match[0] in {"'", '"', "["}:
            raise SqlError(105, "Unclosed quotation mark after the character string ''.", severity=15)
        found.append(Token(kind, match[0], match.start(), match.end()))
    return found


def statements(batch: str) -> Iterator[Statement]:
    """The statements of a batch, in order.

    Raises:
        SqlError: A literal or a comment has no end.
    """
    everything = tokens(batch)
    while everything:
        count = _length(everything)
        part = everything[:count]
        if part and part[-1].text == ";":
            part = part[:-1]
        if part:
            yield _statement(batch, part)
        everything = everything[max(count, 1) :]


def compiled(batch: str) -> list[Statement]:
    """The statements of a batch, which is compiled as a whole before the first one runs.

    What changes or reads a table that is there cannot name a column that the same batch adds; of a table that is not there yet, it can
    [DOC: deferred name resolution].

    Raises:
        SqlError: A literal or a comment has no end; 207, such a column is named.
    """
    found = list(statements(batch))
    made, added = set[str](), set[tuple[str, str]]()
    for statement in found:
        names = [_bare(token) for token in statement.tokens]
        if statement.words(2) == "CREATE TABLE":
            made |= set(names)
        elif statement.words(2) == "ALTER TABLE" and "add" in names[:-1]:
            at = names.index("add")
            if names[at - 1] not in made:
                added.add((names[at - 1], names[at + 1]))
        elif statement.words(1) in _ROWS:
            for table, column in sorted(added):
                if table in names and column in names:
                    raise SqlError(207, f"Invalid column name '{column}'.")
    return found


def placeholders(batch: str) -> list[str]:
    """The variables that a batch uses, each once, in order."""
    used = [token.text for token in tokens(batch) if token.text.startswith("@") and not token.text.startswith("@@")]
    return list(dict.fromkeys(used))


def condition_and_rest(statement: Statement) -> tuple[str, str]:
    """The condition of an IF, and what is done if it holds.

    Raises:
        SqlError: There is nothing behind the condition.
    """
    depth = 0
    for index, token in enumerate(statement.tokens[1:], 1):
        depth += (token.text == "(") - (token.text == ")")
        if not depth and token.word in _BEGINNINGS:
            base = statement.tokens[0].start
            return statement.text[2 : token.start - base], statement.after(index)
    raise SqlError(102, "Incorrect syntax near 'IF'.", severity=15)


def _length(everything: list[Token]) -> int:
    """How many tokens the first statement has, its semicolon included."""
    first = everything[0].word
    inner = _INNER.get(first, frozenset())
    depth = cases = 0
    is_condition = first == "IF"
    for index, token in enumerate(everything):
        if token.text == ";" and not depth:
            return index + 1
        depth += (token.text == "(") - (token.text == ")")
        cases += (token.word == "CASE") - (token.word == "END" and cases > 0)
        if not index or depth or cases or token.word not in _BEGINNINGS:
            continue
        if is_condition:
            # What the condition guards is a part of the statement.
            is_condition = False
            inner = _INNER.get(token.word, frozenset())
            continue
        before = everything[index - 1]
        if token.word in inner or _continues(first, before, token, everything, index):
            if first in {"WITH", "INSERT"} and token.word in {"UPDATE", "INSERT"}:
                inner |= _INNER[token.word]
            continue
        return index
    return len(everything)


def _continues(first: str, before: Token, token: Token, everything: list[Token], index: int) -> bool:
    """Whether a word that may begin a statement stands inside of one here."""
    if token.word == "END":
        return True
    if token.word == "WITH":
        # A table's hints, WITH TIES, an option of a statement: what begins a statement is followed by a name and AS.
        following = everything[index + 1 : index + 2]
        return not following or following[0].text == "(" or first in {"RAISERROR", "EXEC", "EXECUTE"}
    if before.word in {"UNION", "ALL", "EXCEPT", "INTERSECT"} and token.word in {"SELECT", "WITH"}:
        return True
    if before.text in {".", "="} or before.word in {"AS", "FOR", "THEN"}:
        return True
    return token.word == "SET" and first == "MERGE"


def _bare(token: Token) -> str:
    return (token.text[1:-1] if token.kind == "quoted" else token.text).lower()


def _statement(batch: str, part: list[Token]) -> Statement:
    return Statement(batch[part[0].start : part[-1].end], tuple(part))
