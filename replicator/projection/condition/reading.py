"""Conditions from texts.

The text is cut into tokens here. sqlglot parses their skeleton, in which a name is `"3"` and a value `'5'` (the index of its token). So
it decides on precedence and nesting only: no user's text reaches it, and none of its dialects, functions and conveniences applies. What
it returns is converted form by form, and refused if it is, or has, anything else.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple, NoReturn

import sqlglot
from sqlglot import exp

from replicator.projection.condition import syntax
from replicator.projection.condition.syntax import (
    DEPTH_MAX,
    DIGITS_MAX,
    KEYWORDS,
    LENGTH_MAX,
    OPERANDS_MAX,
    PATTERN_MAX,
    REFUSED,
    Condition,
    ConditionError,
    Joined,
    Literal,
    LiteralKind,
    Name,
    Not,
    Operand,
    Operator,
    Predicate,
    Term,
)

_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<text> ' (?: [^'] | '' )* ' )
    | (?P<binary> [xX] ' [^']* ' )
    | (?P<name> " (?: [^"] | "" )+ " | ` (?: [^`] | `` )+ ` | \[ (?: [^\]] | \]\] )+ \] )
    | (?P<number> [0-9]+ (?: \.[0-9]+ )? (?: [eE] [+-]? [0-9]+ )? (?! [\w.$] ) )
    | (?P<word> [^\W\d] [\w$]* )
    | (?P<comment> -- | /\* | \# )
    | (?P<symbol> <= | >= | <> | != | [=<>(),-] )
    """,
    re.VERBOSE,
)
_HINTS: Final = {
    "'": ("A text has no end.", "Close it with '; inside of a text, write '' for '."),
    "\"`[": ("A name has no end, or is empty.", "Write it as \"name\", with \"\" for a \" in it."),
    ";": ("A condition is no statement.", "Remove the semicolon and what follows it."),
    "?:$@": ("Parameters and casts are not supported.", "Write the value itself."),
    "+*/%|&^~": ("Arithmetic and operators of single databases are not supported.", "Compare the column with the result."),
    "0123456789": ("This is no number.", "Write 12, -12, 1.5 or 1.5e3."),
    ".": ("A point has no meaning here.", "Write a column's name without its table, and 0.5 for .5."),
}  # fmt: skip
"""Characters with which no token begins, and what is meant by them."""

_TESTS: Final[Mapping[type[exp.Expr], tuple[Operator, tuple[str, ...]]]] = {
    exp.EQ: (Operator.EQUAL, ("this", "expression")),
    exp.NEQ: (Operator.UNEQUAL, ("this", "expression")),
    exp.LT: (Operator.LESS, ("this", "expression")),
    exp.LTE: (Operator.LESS_EQUAL, ("this", "expression")),
    exp.GT: (Operator.GREATER, ("this", "expression")),
    exp.GTE: (Operator.GREATER_EQUAL, ("this", "expression")),
    exp.Between: (Operator.BETWEEN, ("this", "low", "high")),
    exp.In: (Operator.IN, ("this", "expressions")),
    exp.Like: (Operator.LIKE, ("this", "expression")),
    exp.Is: (Operator.IS_NULL, ("this", "expression")),
    exp.Column: (Operator.IS_TRUE, ("this",)),
}
"""Nodes of sqlglot, and the parts that are operands."""
_SHAPE: Final = "Join comparisons by AND, OR and NOT; each has a column on one side."


class Token(NamedTuple):
    """A part of the text. `text` is a keyword or symbol; of names and values `operand` is set instead."""

    at: int
    text: str
    operand: Operand | None = None


def read(text: str) -> Condition:
    """Read a condition; ConditionError if it is none."""
    if len(text) > LENGTH_MAX:
        _refuse(text, 0, f"The condition has {len(text)} characters, more than {LENGTH_MAX}.", "Shorten it.")
    tokens = _tokens(text)
    _check_neighbours(text, tokens)
    _check_size(text, tokens)
    condition = Condition(_Converter(text, tokens).condition(), text)
    if len(str(condition)) > LENGTH_MAX:
        _refuse(text, 0, f"The condition's normal form has more than {LENGTH_MAX} characters.", "Shorten it.")
    return condition


def _refuse(text: str, at: int, message: str, remedy: str) -> NoReturn:
    raise ConditionError((syntax.fault(text, at, message, remedy),))


def _tokens(text: str) -> Sequence[Token]:
    """Cut a text into tokens; numbers have their sign."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            known = (hint for characters, hint in _HINTS.items() if text[at] in characters)
            _refuse(
                text,
                at,
                *next(known, ("This character has no meaning here.", "Write texts as 'text' and names as \"name\".")),
            )
        assert found.lastgroup is not None
        if found.lastgroup == "comment":
            _refuse(text, at, "Comments are not supported.", "Remove it.")
        if found.lastgroup != "space":
            tokens.append(_token(text, at, found.lastgroup, found[0], tokens))
        at = found.end()
    if tokens and tokens[-1].text == "-":
        _refuse(text, tokens[-1].at, *_HINTS["+*/%|&^~"])
    return tokens


def _token(text: str, at: int, group: str, found: str, before: list[Token]) -> Token:
    if before and before[-1].text == "-":
        sign = before.pop()
        if group != "number" or (before and (before[-1].operand is not None or before[-1].text == ")")):
            _refuse(text, sign.at, *_HINTS["+*/%|&^~"])
        found, at = "-" + found, sign.at
    match group:
        case "text":
            return Token(at, "", Literal(LiteralKind.TEXT, _encodable(text, at, found[1:-1].replace("''", "'")), at))
        case "binary":
            if not re.fullmatch(r"([0-9a-fA-F]{2})*", found[2:-1]):
                _refuse(text, at, "These are no pairs of hex digits.", "Write bytes as X'00FF'.")
            return Token(at, "", Literal(LiteralKind.BINARY, bytes.fromhex(found[2:-1]), at))
        case "name":
            end = found[-1]
            return Token(at, "", Name(_encodable(text, at, found[1:-1].replace(end * 2, end)), True, at))
        case "number":
            return Token(at, "", Literal(LiteralKind.NUMBER, _number(text, at, found), at))
        case "word":
            return _word(text, at, found, before)
        case _:
            return Token(at, "<>" if found == "!=" else found)


def _word(text: str, at: int, found: str, before: Sequence[Token]) -> Token:
    word = found.upper()
    if word in REFUSED:
        _refuse(text, at, f"{word} is not supported.", f'{REFUSED[word]} A column called so is written "{found}".')
    previous = [token.text for token in before[-2:]]
    if word == "NULL" and previous[-1:] != ["IS"] and previous != ["IS", "NOT"]:
        return Token(at, "", Literal(LiteralKind.NULL, None, at))
    if word in {"TRUE", "FALSE"}:
        return Token(at, "", Literal(LiteralKind.TRUTH, word == "TRUE", at))
    return Token(at, word) if word in KEYWORDS else Token(at, "", Name(_encodable(text, at, found), at=at))


def _encodable(text: str, at: int, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(text, at, "This is not Unicode: half of a pair of surrogates.", "Write the character itself.")
    return value


def _number(text: str, at: int, found: str) -> Decimal:
    """Return the one form of all equal numbers: without zeros at the end, and without the sign of zero."""
    message = f"The number has more than {DIGITS_MAX} digits or powers of ten."
    if len(found) > 2 * DIGITS_MAX + len("-0.E+0000") or len(found.lower().partition("e")[2]) > len("+0000"):
        _refuse(text, at, message, "No column has such a value.")
    number = Decimal(found).normalize(Context(prec=len(found))) if Decimal(found) else Decimal()
    _, digits, exponent = number.as_tuple()
    if len(digits) > DIGITS_MAX or abs(int(exponent)) > DIGITS_MAX:
        _refuse(text, at, message, "No column has such a value.")
    return number


def _check_neighbours(text: str, tokens: Sequence[Token]) -> None:
    """Refuse tokens that cannot follow each other: these are nearly all mistakes, and here they have their exact position."""
    after_operand, before = False, Token(0, "")
    for token in tokens:
        begins = token.operand is not None or token.text == "("
        if after_operand and begins:
            if token.text == "(" and isinstance(before.operand, Name):
                _refuse(text, before.at, "Functions are not supported.", "Compare the column itself with a value.")
            remedy = "Write a value without its type or a prefix, and join comparisons by AND or OR."
            _refuse(text, token.at, "No operator stands before this.", remedy)
        follows = token.text in {"NOT", "NULL"} or (before.text == "NOT" and token.text in {"BETWEEN", "IN", "LIKE"})
        if not (after_operand or begins or follows):
            _refuse(text, token.at, "No column or value stands before this.", "Complete the comparison.")
        after_operand, before = token.operand is not None or token.text in {")", "NULL"}, token
    if not after_operand:
        _refuse(text, len(text), "The condition is incomplete." if tokens else "The condition is empty.", _SHAPE)


def _check_size(text: str, tokens: Sequence[Token]) -> None:
    """Refuse a condition that is too large, or whose parentheses do not match."""
    operands = [token for token in tokens if token.operand is not None]
    if len(operands) > OPERANDS_MAX:
        remedy = "Compare with a column of the source that says the same."
        _refuse(
            text, operands[OPERANDS_MAX].at, f"The condition has more than {OPERANDS_MAX} names and values.", remedy
        )
    opened: list[int] = []
    depth = negations = 0
    for token in tokens:
        negations += token.text == "NOT"
        if depth + negations > DEPTH_MAX:
            _refuse(
                text, token.at, f"More than {DEPTH_MAX} parentheses and NOTs are within each other.", "Simplify it."
            )
        if token.text == "(":
            opened.append(negations + 1)
            depth += negations + 1
        elif token.text == ")":
            if not opened:
                _refuse(text, token.at, "This parenthesis was not opened.", "Remove it.")
            depth -= opened.pop()
        if token.text != "NOT":
            negations = 0
    if opened:
        _refuse(text, len(text), "A parenthesis is not closed.", "Write the missing ).")


class _Converter:
    """Makes terms of what sqlglot found in the tokens of a text."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens

    def condition(self) -> Term:
        written = [_placeholder(index, token) for index, token in enumerate(self._tokens)]
        try:
            return self._term(sqlglot.parse_one(" ".join(written)))
        except sqlglot.errors.ParseError as error:
            ends = list(accumulate(len(word) + 1 for word in written))
            index = min(bisect_left(ends, error.errors[0]["col"]), len(ends) - 1)
            _refuse(self._text, self._tokens[index].at, "The condition cannot be read from here.", _SHAPE)

    def _term(self, node: exp.Expr) -> Term:
        while isinstance(node, exp.Paren):
            (node,) = self._parts(node, "this")
        if isinstance(node, exp.And | exp.Or):
            return self._joined(node, type(node), "AND" if isinstance(node, exp.And) else "OR")
        if isinstance(node, exp.Not):
            (inner,) = self._parts(node, "this")
            return Not(self._term(inner))
        return self._test(node)

    def _joined(self, node: exp.Expr, kind: type[exp.Expr], word: str) -> Joined:
        """Return a chain of terms. It is as deep as it is long: no recursion."""
        found = []
        while isinstance(node, kind):
            node, right = self._parts(node, "this", "expression")
            found.append(self._term(right))
        found.append(self._term(node))
        nested = ((t.terms if isinstance(t, Joined) and t.word == word else (t,)) for t in reversed(found))
        return Joined(word, tuple(chain.from_iterable(nested)))

    def _test(self, node: exp.Expr) -> Term:
        escape: list[Operand] = []
        if isinstance(node, exp.Escape):
            node, character = self._parts(node, "this", "expression")
            escape.append(self._operand(character))
        operator, names = _TESTS.get(type(node), (None, ()))
        if operator is None or (escape and operator is not Operator.LIKE):
            self._refuse(node, "This is no condition.", _SHAPE)
        if operator is Operator.IS_TRUE:
            return Predicate(operator, (self._name(self._operand(node)),))
        is_negated = operator is Operator.LIKE and bool(node.args.get("negate"))
        first, *others = self._parts(node, *names, *["negate"] * is_negated)[: len(names)]
        if operator is Operator.IS_NULL:
            if not isinstance(others[0], exp.Null):
                self._refuse(others[0], "Only NULL, or NOT NULL, follows IS.", "Compare with =.")
            return Predicate(operator, (self._name(self._operand(first)),))
        if operator is Operator.IN:
            (others,) = others
        test = self._checked(operator, self._operand(first), [*map(self._operand, others), *escape])
        return Not(test) if is_negated else test

    def _checked(self, operator: Operator, first: Operand, others: Sequence[Operand]) -> Predicate:
        """Return the test if names and values are where it takes them."""
        match operator:
            case Operator.IN:
                for name in (value for value in others if isinstance(value, Name)):
                    self._fail(name.at, "IN has a list of values; this is a column.", "Compare columns with = and OR.")
                first = self._name(first)
            case Operator.LIKE:
                first = self._name(first)
                self._check_pattern(others)
            case _ if isinstance(first, Literal) and not all(isinstance(other, Name) for other in others):
                remedy = "One of two that are compared has to be a column. Texts stand in '…', names do not."
                self._fail(first.at, "Two values are compared.", remedy)
            case _ if isinstance(first, Literal) and operator is not Operator.BETWEEN:
                operator, first, others = operator.turned, others[0], [first]
        return Predicate(operator, (first, *others))

    def _check_pattern(self, texts: Sequence[Operand]) -> None:
        for operand in texts:
            if not isinstance(operand, Literal) or operand.kind is not LiteralKind.TEXT:
                self._fail(operand.at, "A text is expected here.", "Write it as '…'.")
        pattern, *escape = (str(operand.value) for operand in texts if isinstance(operand, Literal))
        at = texts[0].at
        if len(pattern) > PATTERN_MAX:
            self._fail(at, f"The pattern has more than {PATTERN_MAX} characters.", "Shorten it.")
        if not escape and "\\" in pattern:
            remedy = "Add ESCAPE '\\', or ESCAPE with another character if \\ means itself."
            self._fail(at, "Databases differ in what \\ means in a pattern.", remedy)
        if escape and len(escape[0]) != 1:
            self._fail(texts[1].at, "The text after ESCAPE is not one character.", "Write for example ESCAPE '!'.")
        if escape and re.sub(f"{re.escape(escape[0])}.", "", pattern, flags=re.DOTALL).endswith(escape[0]):
            self._fail(at, "The pattern ends with the character of ESCAPE.", "Write it twice if it means itself.")

    def _operand(self, node: exp.Expr) -> Operand:
        while isinstance(node, exp.Paren | exp.Column):
            (node,) = self._parts(node, "this")
        if not isinstance(node, exp.Identifier | exp.Literal):
            self._refuse(node, "A column or a value is expected here.", _SHAPE)
        operand = self._tokens[int(node.name)].operand
        assert operand is not None
        return operand

    def _name(self, operand: Operand) -> Name:
        if isinstance(operand, Literal):
            self._fail(operand.at, "A column is expected here.", "Write its name, without '…'.")
        return operand

    def _parts(self, node: exp.Expr, *names: str) -> list[Any]:
        """Return parts of a node; one that lacks them, or has others, is refused."""
        if {name for name, value in node.args.items() if value} != set(names):
            self._refuse(node, "This is no condition.", _SHAPE)
        return [node.args[name] for name in names]

    def _refuse(self, node: exp.Expr, message: str, remedy: str) -> NoReturn:
        first = node.find(exp.Identifier, exp.Literal)
        self._fail(self._tokens[int(first.name)].at if first else 0, message, remedy)

    def _fail(self, at: int, message: str, remedy: str) -> NoReturn:
        _refuse(self._text, at, message, remedy)


def _placeholder(index: int, token: Token) -> str:
    match token.operand:
        case None:
            return token.text
        case Name():
            return f'"{index}"'
        case Literal():
            return f"'{index}'"
