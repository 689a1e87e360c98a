"""Conditions as the grammar has them: terms over names and literals, and their normal form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from replicator.model.schema import TableSchema

if TYPE_CHECKING:
    from replicator.projection.condition.binding import BoundCondition

LENGTH_MAX: Final = 64 * 1024
"""Characters of a condition, and of its normal form."""
OPERANDS_MAX: Final = 2000
"""Names and values. SQL Server takes 2,100 parameters in a statement."""
DEPTH_MAX: Final = 16
"""Parentheses and NOTs within each other. The parser calls itself some 25 times for each."""
PATTERN_MAX: Final = 1000
"""Characters of a pattern. It is compiled again for each batch of rows."""
DIGITS_MAX: Final = 400
"""Digits of a number, and powers of ten: a double ends at 308."""

KEYWORDS: Final = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})
REFUSED: Final = {
    "ILIKE": "LIKE distinguishes case, and nothing here ignores it.",
    **dict.fromkeys(("GLOB", "REGEXP", "RLIKE", "SIMILAR"), "Use LIKE with _ and %."),
    **dict.fromkeys(("ANY", "EXISTS", "SELECT", "SOME"), "Subqueries are not supported: list the values after IN."),
    **dict.fromkeys(("CASE", "CAST", "COLLATE", "CONVERT"), "Compare the column itself with a value of its type."),
    **dict.fromkeys(("DIV", "MOD"), "Arithmetic is not supported: compare the column with the result."),
    **dict.fromkeys(("DISTINCT", "UNKNOWN"), "Use IS NULL, or IS NOT NULL."),
    **dict.fromkeys(("DATE_ADD", "DATE_SUB", "INTERVAL"), "Write the date or the time itself."),
    **dict.fromkeys(
        ("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "LOCALTIME", "LOCALTIMESTAMP", "SESSION_USER"),
        "A condition depends on nothing but the row: write the value itself.",
    ),
    "XOR": "Use AND, OR and NOT.",
}  # fmt: skip
"""Words of databases that have no meaning here, and what to do instead. A column called so is written in quotes."""

_EXCERPT: Final = 40
_PLAIN_EXPONENT: Final = 40


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong in a condition.

    Attributes:
        position: Of the character where it begins, from 1.
        excerpt: The text from there.
        remedy: What the user does, a sentence.
    """

    position: int
    excerpt: str
    message: str
    remedy: str

    def __str__(self) -> str:
        at = f", at {self.excerpt!r}" if self.excerpt else ""
        return f"Position {self.position}{at}: {self.message} {self.remedy}"


class ConditionError(ValueError):
    """A condition is refused: its text, or its columns and values for a table."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class LiteralKind(StrEnum):
    """Kinds of literals."""

    TEXT = "text"
    NUMBER = "number"
    BINARY = "bytes"
    TRUTH = "truth value"
    NULL = "NULL"


class Operator(StrEnum):
    """What a test does with its operands."""

    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    BETWEEN = "BETWEEN"
    IN = "IN"
    LIKE = "LIKE"
    IS_NULL = "IS NULL"
    IS_TRUE = "IS TRUE"

    @property
    def turned(self) -> Operator:
        """Return the comparison for its operands in the other order."""
        return self if self is Operator.UNEQUAL else Operator(self.value.translate(str.maketrans("<>", "><")))


@dataclass(frozen=True, slots=True)
class Name:
    """A column's name as it was written; `at` is its index in the text."""

    text: str
    is_quoted: bool = False
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return '"' + self.text.replace('"', '""') + '"' if self.is_quoted else self.text


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it was written, before it has a type; numbers have no zeros at the end. `at` is its index in the text."""

    kind: LiteralKind
    value: str | Decimal | bytes | bool | None
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        match self.value:
            case str():
                return "'" + self.value.replace("'", "''") + "'"
            case bytes():
                return f"X'{self.value.hex().upper()}'"
            case Decimal():
                return (
                    f"{self.value:f}"
                    if abs(int(self.value.as_tuple().exponent)) <= _PLAIN_EXPONENT
                    else str(self.value)
                )
            case _:
                return str(self.value).upper() if self.value is not None else "NULL"


Operand = Name | Literal


@dataclass(frozen=True, slots=True)
class Predicate:
    """A test of a row.

    `operands` are, of a comparison, a name and a name or value; of BETWEEN the tested one and its bounds; of IN a name and values; of
    LIKE a name, the pattern and, if there is one, the character of ESCAPE; else a name.
    """

    operator: Operator
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return self.written("")

    def written(self, negation: str) -> str:
        """Return the text, negated by `NOT ` or not; a comparison cannot be."""
        first, *others = map(str, self.operands)
        match self.operator:
            case Operator.IS_TRUE:
                return first
            case Operator.IS_NULL:
                return f"{first} IS {negation}NULL"
            case Operator.BETWEEN:
                return f"{first} {negation}BETWEEN {' AND '.join(others)}"
            case Operator.IN:
                return f"{first} {negation}IN ({', '.join(others)})"
            case Operator.LIKE:
                return f"{first} {negation}LIKE {' ESCAPE '.join(others)}"
            case _:
                return f"{first} {self.operator} {others[0]}"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; of what is unknown it is unknown."""

    term: Term

    def __str__(self) -> str:
        if isinstance(self.term, Predicate) and self.term.operator in _NEGATED_INSIDE:
            return self.term.written("NOT ")
        return f"NOT ({self.term})" if isinstance(self.term, Joined) else f"NOT {self.term}"


@dataclass(frozen=True, slots=True)
class Joined:
    """Terms joined by `AND` or by `OR`, the word; none of them is joined by the same word."""

    word: str
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        texts = (f"({term})" if isinstance(term, Joined) and term.word == "OR" else str(term) for term in self.terms)
        return f" {self.word} ".join(texts)


Term = Predicate | Not | Joined
_NEGATED_INSIDE: Final = {Operator.BETWEEN, Operator.IN, Operator.IS_NULL, Operator.LIKE}


@dataclass(frozen=True)
class Condition:
    """A condition whose text was understood; its columns and types are not known yet.

    Two conditions are equal if their normal forms are. `text` is what positions in faults refer to.
    """

    term: Term
    text: str = field(compare=False)

    def __str__(self) -> str:
        """Return the normal form: a text in standard SQL that `parse` reads as an equal condition."""
        return str(self.term)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the names of columns as they were written, each once, in the order of the text."""
        names = sorted((part for part in operands(self.term) if isinstance(part, Name)), key=lambda name: name.at)
        return tuple(dict.fromkeys(name.text for name in names))

    @cached_property
    def remarks(self) -> tuple[Fault, ...]:
        """Return what is allowed, but is hardly meant: comparisons with NULL."""
        nulls = (part for part in operands(self.term) if isinstance(part, Literal) and part.kind is LiteralKind.NULL)
        return tuple(
            self.fault(null.at, "A comparison with NULL is never true, nor is its opposite.", "Use IS NULL, or IS NOT NULL.")
            for null in nulls
        )  # fmt: skip

    def bind(self, schema: TableSchema) -> BoundCondition:
        """Resolve the names in a version of a table, and give every value its column's type.

        Raises:
            ConditionError: A column does not exist, or a value does not fit its type. It has every fault.
        """
        from replicator.projection.condition.binding import bind

        return bind(self, schema)

    def fault(self, at: int, message: str, remedy: str) -> Fault:
        """Return what is wrong at an index of the text."""
        return fault(self.text, at, message, remedy)


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        ConditionError: The text is no condition, or is larger than the limits of this module.
    """
    from replicator.projection.condition.reading import read  # loads sqlglot

    return read(text)


def conjunction(conditions: Sequence[Condition]) -> Condition | None:
    """Join conditions by AND; None if there are none.

    Raises:
        ConditionError: Together they are larger than the limits of this module.
    """
    if len(conditions) < 2:  # noqa: PLR2004
        return conditions[0] if conditions else None
    return parse(" AND ".join(f"({c})" if isinstance(c.term, Joined) else str(c) for c in conditions))


def operands(term: Term) -> Iterator[Operand]:
    """Return the names and values of a term, with those of terms inside."""
    match term:
        case Predicate():
            yield from term.operands
        case Not():
            yield from operands(term.term)
        case Joined():
            for inner in term.terms:
                yield from operands(inner)


def fault(text: str, at: int, message: str, remedy: str) -> Fault:
    """Return what is wrong at an index of a text."""
    excerpt = text[at : at + _EXCERPT]
    return Fault(at + 1, excerpt + "…" if at + _EXCERPT < len(text) else excerpt, message, remedy)
