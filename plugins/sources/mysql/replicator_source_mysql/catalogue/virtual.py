"""Virtual columns that have one value for every reader.

The log has the value that the writer's session computed, a chunk the one of ours. They may differ wherever an expression
depends on a session: on its time zone, names of months, SQL mode, digits of a division. So only expressions of the forms below
are taken, as the servers print them (measured with both servers under many sessions; `test_virtual.py`); an expression that is not
understood to its last character is refused. STORED columns are computed once, by the writer: they need none of this.

Forms: integers with their operators, comparisons and functions; NULL and conditions; texts of VARCHAR columns; parts of dates
that have no time zone; values out of JSON documents. CHAR columns are texts of another length under PAD_CHAR_TO_FULL_LENGTH,
TIMESTAMP columns have a time zone: of those, and of every other type, it is only asked whether they are NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from replicator_source_mysql.binlog import ColumnSpec, TypeKind
from replicator_source_mysql.flavors import Flavor


class _Type(Enum):
    INTEGER = auto()
    TEXT = auto()
    LITERAL = auto()  # a text without a column: it takes over the other operand's character set and collation
    LABEL = auto()  # of ENUM
    JSON = auto()
    DATE = auto()
    DATETIME = auto()
    CAST = auto()  # to a date: of a zero or partial one, some sessions make NULL, so nothing may look at it
    NULL = auto()
    OTHER = auto()


class _NotUnderstoodError(Exception):
    pass


_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>`(?:[^`]|``)+`)|(?P<number>\d{1,18})(?![\w.])"
    # MySQL prints quotes with a backslash in front; letters of ASCII mean the same everywhere.
    r"|(?:_(?:utf8mb4|utf8mb3|utf8|latin1|ascii))?(?P<quote>\\?')(?P<text>[ -&(-\[\]-~]*)(?P=quote)"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|<>|>=|<=|<<|>>|[-+*%&|^~<>=(),]))"
)
_ARITHMETIC: Final = frozenset({"+", "-", "*", "%", "&", "|", "^", "<<", ">>", "div", "mod"})
_MAKES_UNSIGNED: Final = frozenset({"&", "|", "^", "<<", ">>", "~", "crc32"})
_COMPARISONS: Final = frozenset({"=", "<>", "<", ">", "<=", ">=", "<=>"})
_LOGIC: Final = frozenset({"and", "or", "xor"})
_TEXTS: Final = frozenset({_Type.TEXT, _Type.LITERAL})

# Forms of functions: what their arguments are, the last one repeated, and what comes out.
_INT, _STR, _DAY = frozenset({_Type.INTEGER}), _TEXTS, frozenset({_Type.DATE, _Type.DATETIME})
_FUNCTIONS: Final[Mapping[str, tuple[Sequence[Collection[_Type]], _Type]]] = {
    **dict.fromkeys(("abs", "sign"), ((_INT,), _Type.INTEGER)),
    **dict.fromkeys(("mod", "greatest", "least"), ((_INT, _INT), _Type.INTEGER)),
    **dict.fromkeys(("year", "month", "dayofmonth", "quarter"), ((_DAY,), _Type.INTEGER)),
    **dict.fromkeys(("hour", "minute", "second"), (({_Type.DATETIME},), _Type.INTEGER)),
    **dict.fromkeys(("upper", "ucase", "lower", "lcase", "md5", "sha", "sha1"), ((_STR,), _Type.TEXT)),
    **dict.fromkeys(("left", "right", "sha2"), ((_STR, _INT), _Type.TEXT)),
    **dict.fromkeys(("crc32", "char_length"), ((_STR,), _Type.INTEGER)),
    **dict.fromkeys(("concat", "concat_ws"), (({*_STR, _Type.INTEGER},), _Type.TEXT)),
    "json_extract": (({_Type.JSON}, {_Type.LITERAL}), _Type.JSON),
    "json_unquote": (({_Type.JSON, _Type.TEXT},), _Type.TEXT),
    "json_value": (({_Type.JSON}, {_Type.LITERAL}), _Type.TEXT),
}
_CHOICES: Final = frozenset({"coalesce", "ifnull", "nullif"})
_RESULTS: Final[Mapping[_Type, frozenset[TypeKind]]] = {
    _Type.INTEGER: frozenset({TypeKind.INTEGER}),
    _Type.TEXT: frozenset({TypeKind.TEXT}),
    _Type.LITERAL: frozenset({TypeKind.TEXT}),
    _Type.JSON: frozenset({TypeKind.JSON, TypeKind.TEXT}),
    _Type.DATE: frozenset({TypeKind.DATE}),
    # The reader makes NULL of a zero or partial date too, or fails the table by the column that was cast.
    _Type.CAST: frozenset({TypeKind.DATE}),
    _Type.NULL: frozenset({TypeKind.INTEGER, TypeKind.TEXT}),
}


def is_same_for_all(
    expression: str, column: str, columns: Mapping[str, tuple[str, ColumnSpec | None]], flavor: Flavor
) -> bool:
    """Return whether a virtual column has the same value in every session.

    Args:
        expression: `information_schema.columns.generation_expression` of the column.
        column: The virtual column's name.
        columns: `column_type` and spec of each column of the table.
        flavor: The server's flavor.
    """
    column_type, spec = columns[column]
    if spec is None or (spec.kind is TypeKind.TEXT and column_type.lower().startswith("char")):
        return False
    try:
        parser = _Parser(expression, {n: _type_of(t, s, flavor) for n, (t, s) in columns.items()}, flavor)
        found = parser.whole()
    except _NotUnderstoodError:
        return False
    unsigned = {n for n, (_, s) in columns.items() if s is not None and s.is_unsigned}
    if parser.subtracts and (parser.makes_unsigned or not unsigned.isdisjoint(parser.names)):
        # NO_UNSIGNED_SUBTRACTION.
        return False
    return spec.kind in _RESULTS.get(found, ())


def _type_of(column_type: str, spec: ColumnSpec | None, flavor: Flavor) -> _Type:
    if spec is None:
        return _Type.OTHER
    if spec.kind is TypeKind.TEXT:
        if column_type.lower().startswith("varchar") and spec.charset != "binary":
            return _Type.TEXT
        # A JSON that is text is a LONGTEXT.
        return _Type.JSON if flavor.json_is_text and column_type.lower() == "longtext" else _Type.OTHER
    plain = {
        TypeKind.INTEGER: _Type.INTEGER,
        TypeKind.ENUM: _Type.LABEL,
        TypeKind.JSON: _Type.JSON,
        TypeKind.DATE: _Type.DATE,
        TypeKind.DATETIME: _Type.DATETIME,
    }
    return plain.get(spec.kind, _Type.OTHER)


class _Parser:
    """Reads an expression to its end and says of what type it is.

    Precedence among operators on integers does not matter for that: they all give integers.
    """

    def __init__(self, text: str, columns: Mapping[str, _Type], flavor: Flavor) -> None:
        self._tokens = _tokens(text)
        self._index = 0
        self._columns = columns
        self._flavor = flavor
        self.names: set[str] = set()
        self.subtracts = False
        self.makes_unsigned = False

    def whole(self) -> _Type:
        """The type of the whole expression."""
        found = self._expression()
        if self._index < len(self._tokens):
            raise _NotUnderstoodError
        return found

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._index] if self._index < len(self._tokens) else ("end", "")

    def _take(self, *texts: str) -> str | None:
        """The next token if it is one of these words or signs."""
        kind, text = self._peek()
        if kind in {"word", "sign"} and text in texts:
            self._index += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise _NotUnderstoodError

    def _expression(self) -> _Type:
        found = self._condition()
        while self._take(*_LOGIC):
            if not {found, self._condition()} <= {_Type.INTEGER, _Type.NULL}:
                raise _NotUnderstoodError
            found = _Type.INTEGER
        return found

    def _condition(self) -> _Type:
        left = self._sum()
        if self._take("is"):
            self._take("not")
            self._expect("null")
            if left is _Type.CAST:
                raise _NotUnderstoodError
            return _Type.INTEGER
        if self._take(*_COMPARISONS):
            _compare([left, self._sum()])
            return _Type.INTEGER
        if self._take("in"):
            self._expect("(")
            _compare([left, *self._arguments(self._sum)])
            return _Type.INTEGER
        if self._take("between"):
            low = self._sum()
            self._expect("and")
            _compare([left, low, self._sum()])
            return _Type.INTEGER
        return left

    def _sum(self) -> _Type:
        found = self._factor()
        while (sign := self._take(*_ARITHMETIC)) is not None:
            self.subtracts |= sign == "-"
            self.makes_unsigned |= sign in _MAKES_UNSIGNED
            if not {found, self._factor()} <= {_Type.INTEGER, _Type.NULL}:
                raise _NotUnderstoodError
            found = _Type.INTEGER
        return found

    def _factor(self) -> _Type:
        sign = self._take("-", "~")
        if sign is None:
            return self._primary()
        self.subtracts |= sign == "-"
        self.makes_unsigned |= sign == "~"
        if self._factor() is not _Type.INTEGER:
            raise _NotUnderstoodError
        return _Type.INTEGER

    def _primary(self) -> _Type:
        kind, text = self._peek()
        self._index += 1
        match kind:
            case "number":
                return _Type.INTEGER
            case "text":
                if not text and self._flavor.empty_string_may_be_null:
                    raise _NotUnderstoodError
                return _Type.LITERAL
            case "name":
                self.names.add(text)
                if text not in self._columns:
                    raise _NotUnderstoodError
                return self._columns[text]
            case "sign" if text == "(":
                found = self._expression()
                self._expect(")")
                return found
            case "word":
                return self._word(text)
            case _:
                raise _NotUnderstoodError

    def _word(self, word: str) -> _Type:
        if word == "null":
            return _Type.NULL
        if word in {"true", "false"}:
            return _Type.INTEGER
        if word == "case":
            return self._case()
        self._expect("(")
        if word in {"cast", "convert"}:
            return self._cast() if word == "cast" else self._convert()
        found = self._arguments(self._expression)
        self.makes_unsigned |= word in _MAKES_UNSIGNED
        if word == "if" and len(found) == 3:  # noqa: PLR2004  (a condition and two values)
            if found[0] is not _Type.INTEGER:
                raise _NotUnderstoodError
            return _choice(found[1:])
        if word in _CHOICES:
            if word == "nullif":
                _compare(found)
            return _choice(found)
        return _called(word, found)

    def _cast(self) -> _Type:
        if self._expression() not in _DAY:
            raise _NotUnderstoodError
        for part in ("as", "date", ")"):
            self._expect(part)
        return _Type.CAST

    def _convert(self) -> _Type:
        """CONVERT, which the servers themselves write around a text that meets one of another character set."""
        found = self._expression()
        self._expect("using")
        kind, _ = self._peek()
        self._index += 1
        if found not in _TEXTS or kind != "word":
            raise _NotUnderstoodError
        self._expect(")")
        return found

    def _arguments(self, one: Callable[[], _Type]) -> list[_Type]:
        found = [one()]
        while self._take(","):
            found.append(one())
        self._expect(")")
        return found

    def _case(self) -> _Type:
        subject = None if self._peek() == ("word", "when") else self._expression()
        values = []
        while self._take("when"):
            when = self._expression()
            if subject is not None:
                _compare([subject, when])
            elif when is not _Type.INTEGER:
                raise _NotUnderstoodError
            self._expect("then")
            values.append(self._expression())
        if self._take("else"):
            values.append(self._expression())
        self._expect("end")
        return _choice(values)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    index, end = 0, len(text.rstrip())
    while index < end:
        match = _TOKEN.match(text, index)
        if match is None:
            raise _NotUnderstoodError
        index = match.end()
        if match["text"] is not None:
            tokens.append(("text", match["text"]))
        elif match["name"] is not None:
            tokens.append(("name", match["name"][1:-1].replace("``", "`")))
        else:
            kind = next(k for k in ("number", "word", "sign") if match[k] is not None)
            tokens.append((kind, match[kind].lower()))
    return tokens


def _compare(types: Sequence[_Type]) -> None:
    """Check that all operands are integers, or all texts of which one is a column's, which gives the collation."""
    found = set(types) - {_Type.NULL}
    if found <= {_Type.INTEGER}:
        return
    if found <= {_Type.TEXT, _Type.LITERAL} and _Type.TEXT in found:
        return
    if found == {_Type.LABEL, _Type.LITERAL}:
        return
    raise _NotUnderstoodError


def _choice(types: Sequence[_Type]) -> _Type:
    """The type of one of several values."""
    found = set(types) - {_Type.NULL}
    if not found:
        return _Type.NULL
    if found == _TEXTS:
        return _Type.TEXT
    if len(found) > 1 or not found <= {_Type.INTEGER, _Type.DATE, *_TEXTS}:
        raise _NotUnderstoodError
    return found.pop()


def _called(name: str, types: Sequence[_Type]) -> _Type:
    if name not in _FUNCTIONS:
        raise _NotUnderstoodError
    wanted, result = _FUNCTIONS[name]
    # The last argument may come several times in `concat`, `greatest` and their like only.
    is_open = name in {"concat", "concat_ws", "greatest", "least"}
    if len(types) < len(wanted) or (len(types) > len(wanted) and not is_open):
        raise _NotUnderstoodError
    for index, found in enumerate(types):
        if found not in wanted[min(index, len(wanted) - 1)]:
            raise _NotUnderstoodError
    return result
