"""What bytes a text has: by the type and the collation of the expression that it is. PostgreSQL knows neither of its own texts.

nchar, nvarchar and ntext are UTF-16, whatever their collation. char and varchar are UTF-8 in a collation of UTF-8, and otherwise of a code
page [DOC: Collation and Unicode support]. An expression has the collation that is named in it, or that of its column; and it is wide if
one of its parts is [DOC: Collation precedence, Data type precedence].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from replicator_testbed.sqlserver.sqltypes import NARROW_TEXTS, WIDE_TEXTS, SqlType

_NOTED: Final = "encoding"
_WIDE: Final = frozenset({exp.DType.NCHAR, exp.DType.NVARCHAR})
_NARROW: Final = frozenset({exp.DType.CHAR, exp.DType.VARCHAR, exp.DType.TEXT})
_NUMBERS: Final = (exp.SHA2, exp.DateDiff)
"""Functions whose value has nothing of the texts that they are given. So has DATALENGTH."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Of a text. `is_known`: whether there is a text in the expression at all whose type the model knows."""

    is_wide: bool = False
    is_utf8: bool = False
    is_known: bool = False

    def __or__(self, other: Encoding) -> Encoding:
        """That of an expression with both."""
        return Encoding(self.is_wide or other.is_wide, self.is_utf8 or other.is_utf8, self.is_known or other.is_known)


class Encodings:
    """The encodings of the expressions of one statement."""

    def __init__(self) -> None:
        self._columns: dict[str, Encoding] = {}

    def note_column(self, name: str, kind: SqlType | None) -> None:
        """Of a column of one of the statement's tables."""
        if kind is not None and kind.name in WIDE_TEXTS | NARROW_TEXTS:
            is_utf8 = kind.collation.upper().endswith("UTF8")
            self._columns[name.lower()] = Encoding(kind.name in WIDE_TEXTS, is_utf8, is_known=True)

    def note(self, node: exp.Expression, encoding: Encoding) -> None:
        """Remember what an expression was, before it was rewritten."""
        node.meta[_NOTED] = encoding

    def of(self, node: exp.Expression) -> Encoding:
        """Of an expression whose parts were rewritten."""
        if isinstance(node, exp.National):
            return Encoding(is_wide=True, is_known=True)
        if isinstance(node, exp.Literal):
            return Encoding(is_known=node.is_string)
        if isinstance(node, exp.Column):
            return self._columns.get(node.name.lower(), Encoding())
        if isinstance(node, _NUMBERS) or (isinstance(node, exp.Anonymous) and node.name.upper() == "DATALENGTH"):
            return Encoding()
        if isinstance(node, (exp.Cast, exp.Convert)):
            return self._of_cast(node)
        if isinstance(node, exp.Collate):
            inner = self._noted(node.this)
            return Encoding(inner.is_wide, node.expression.name.upper().endswith("UTF8"), inner.is_known)
        found = Encoding()
        for part in _values(node):
            found |= self._noted(part)
        return found

    def bytes(self, text: exp.Expression) -> exp.Expression:
        """The bytes of an expression, if it is a text whose encoding is known; else the expression."""
        encoding = self._noted(text)
        if not encoding.is_known:
            return text
        if encoding.is_wide:
            return _call("utf16_bytes", text)
        return _call("utf8_bytes" if encoding.is_utf8 else "page_bytes", text)

    def length(self, value: exp.Expression) -> exp.Expression:
        """DATALENGTH."""
        encoding = self._noted(value)
        if not encoding.is_known or encoding.is_wide:
            return _call("datalength", value)
        return _call("utf8_length" if encoding.is_utf8 else "page_length", value)

    def _of_cast(self, node: exp.Cast | exp.Convert) -> Encoding:
        to = node.to if isinstance(node, exp.Cast) else node.this
        value = node.this if isinstance(node, exp.Cast) else node.args["expression"]
        if to.this not in _WIDE | _NARROW:
            return Encoding()
        return Encoding(to.this in _WIDE, self._noted(value).is_utf8, is_known=True)

    def _noted(self, node: exp.Expression) -> Encoding:
        found = node.meta.get(_NOTED)
        return found if isinstance(found, Encoding) else Encoding()


def _values(node: exp.Expression) -> Iterator[exp.Expression]:
    """The parts of an expression that its value is made of: of a CASE not what is asked there."""
    if isinstance(node, exp.Case):
        yield from node.args["ifs"]
        if node.args.get("default") is not None:
            yield node.args["default"]
    elif isinstance(node, exp.If):
        yield node.args["true"]
    else:
        yield from node.iter_expressions()


def _call(name: str, argument: exp.Expression) -> exp.Expression:
    function = exp.Anonymous(this=name, expressions=[argument])
    return exp.Dot(this=exp.to_identifier("sqlserver"), expression=function)
