"""Random conditions over random rows, each with its answer in plain Python: what the product is compared with shares no code with it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from functools import cache
from math import isnan
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from replicator.model.schema import Column, TableId, TableSchema

Row = dict[str, Any]
Answer = bool | None

NAMES = ("id", "Name", "order", "a b", "grün", 'quo"te', "AND", "x1", "date", "c7")
PORTABLE_NAMES = ("id", "Name", "a b", 'quo"te', "AND", "x1", "c7")


@dataclass(frozen=True)
class Kind:
    """A type, values of its column, and literals with the values that they mean.

    `portable`: DuckDB gives the same answers for the literals.
    """

    type: pa.DataType
    values: Sequence[Any]
    literals: Sequence[tuple[str, Any]]
    comparable: str
    portable: bool = True


def _texts(values: Sequence[str]) -> list[tuple[str, str]]:
    return [("'" + value.replace("'", "''") + "'", value) for value in values]


TEXTS = ("", "a", "A", "ab", "aXb", "a\nb", "é", "e", "z%", "z_", "😀", "\uffff", "it's", "--", "a ")
NUMBERS = [(text, Fraction(text)) for text in ("0", "1", "-1", "2.5", "1.005", "127", "-128", "1e2", "9.99", "-0.0")]
OUTSIDE = [(text, Fraction(text)) for text in ("1e30", "-1e30", "128", "3000000000", "0.00000000001")]
KINDS = {
    "bool": Kind(pa.bool_(), (True, False), [("TRUE", True), ("false", False)], "bool"),
    "int8": Kind(pa.int8(), (0, 1, -1, 2, 3, 127, -128), NUMBERS, "exact"),
    "int32 outside": Kind(pa.int32(), (0, 1, 128, -(2**31)), [*NUMBERS, *OUTSIDE], "exact", portable=False),
    "int64": Kind(pa.int64(), (0, 1, 2**63 - 1, -(2**63)), [*NUMBERS, (str(2**63 - 1), Fraction(2**63 - 1))], "exact"),
    "decimal": Kind(pa.decimal128(5, 2), [Decimal(t) for t in ("0.00", "1.00", "1.01", "-999.99")], NUMBERS, "exact"),
    "decimal outside": Kind(
        pa.decimal128(38, 10), [Decimal("1.0050000000"), Decimal(2)], [*NUMBERS, *OUTSIDE], "exact", portable=False
    ),
    "wide decimal": Kind(
        pa.decimal256(60, 1), [Decimal("1.0"), Decimal(10**58)], [*NUMBERS, *OUTSIDE], "exact", portable=False
    ),
    "double": Kind(
        pa.float64(),
        (0.0, -0.0, 1.0, 0.1, float("nan"), float("inf"), -float("inf"), 1e300),
        [("0", 0.0), ("-0.0", 0.0), ("0.1", 0.1), ("1e300", 1e300), ("-2.5", -2.5)],
        "float",
    ),
    "float": Kind(pa.float32(), (0.5, float("nan"), -1.0, 0.10000000149011612), [("0.5", 0.5), ("0.1", 0.1)], "float", portable=False),
    "text": Kind(pa.string(), TEXTS, _texts(TEXTS), "text"),
    "binary": Kind(pa.binary(), (b"", b"\0", b"a", b"\xff\x00"), [("X''", b""), ("x'00'", b"\0"), ("X'fF00'", b"\xff\x00")],
                   "binary", portable=False),
    "date": Kind(
        pa.date32(),
        (date(1, 1, 1), date(2024, 2, 29), date(1969, 12, 31), date(9999, 12, 31)),
        [("'2024-02-29'", date(2024, 2, 29)), ("'0001-01-01'", date(1, 1, 1)), ("'1970-01-01'", date(1970, 1, 1))],
        "date",
    ),
    "time": Kind(
        pa.time64("us"),
        (time(0), time(23, 59, 59, 999999), time(12, 30)),
        [("'12:30'", time(12, 30)), ("'12:30:00.5'", time(12, 30, 0, 500000)), ("'23:59:59.999999'", time(23, 59, 59, 999999))],
        "time",
    ),
    "timestamp": Kind(
        pa.timestamp("us"),
        (datetime(2024, 2, 29, 12), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1)),
        [("'2024-02-29 12:00'", datetime(2024, 2, 29, 12)), ("'2024-02-29'", datetime(2024, 2, 29)),
         ("'1969-12-31T23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999))],
        "timestamp",
    ),
    "instant": Kind(
        pa.timestamp("us", tz="UTC"),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
        [("'2024-02-29 14:00+02'", datetime(2024, 2, 29, 12, tzinfo=UTC)), ("'1970-01-01T00:00:00Z'", datetime(1970, 1, 1, tzinfo=UTC)),
         ("'1969-12-31 23:59:59.5 -00:30'", datetime(1970, 1, 1, 0, 29, 59, 500000, tzinfo=UTC))],
        "instant",
        portable=False,
    ),
    "list": Kind(pa.list_(pa.int32()), ([], [1], [None]), [], "list"),
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A condition's text, how tightly it binds (0: OR, 1: AND, 2: NOT, 3: a comparison), and its answer for a row."""

    text: str
    binding: int
    answer: Callable[[Row], Answer]
    portable: bool = True

    def within(self, binding: int) -> str:
        return f"({self.text})" if self.binding < binding else self.text


@dataclass(frozen=True)
class Load:
    schema: TableSchema
    rows: list[Row]
    condition: Written


def order(value: Any) -> Any:
    """Return what Python compares as the databases do."""
    if isinstance(value, float):
        return (1, 0.0) if isnan(value) else (0, value)
    if isinstance(value, bool | date | time):
        return value
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else Fraction(value)


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compared(sign: str, left: Any, right: Any) -> Answer:
    return None if left is None or right is None else COMPARISONS[sign](order(left), order(right))


def both(left: Answer, right: Answer) -> Answer:
    return False if left is False or right is False else None if left is None or right is None else True


def opposite(answer: Answer) -> Answer:
    return None if answer is None else not answer


def like(text: str | None, pattern: str, escape: str | None) -> Answer:
    """Match by the definition, character by character."""
    if text is None:
        return None

    @cache
    def match(at: int, of: int) -> bool:
        if of == len(pattern):
            return at == len(text)
        if pattern[of] == escape:
            return at < len(text) and text[at] == pattern[of + 1] and match(at + 1, of + 2)
        if pattern[of] == "%":
            return match(at, of + 1) or (at < len(text) and match(at + 1, of))
        return at < len(text) and pattern[of] in {"_", text[at]} and match(at + 1, of + 1)

    return match(0, 0)


@st.composite
def loads(draw: st.DrawFn, *, portable: bool = False) -> Load:
    """A table with its rows, and a condition over it."""
    usable = [kind for kind, made in KINDS.items() if made.portable or not portable]
    names = draw(st.lists(st.sampled_from(PORTABLE_NAMES if portable else NAMES), min_size=1, max_size=6, unique=True))
    kinds = {name: KINDS[draw(st.sampled_from(usable))] for name in names}
    schema = TableSchema(
        table=TableId("shop", "t"),
        columns=tuple(Column(name=name, type=kind.type, source_type="t") for name, kind in kinds.items()),
    )
    values = {name: st.none() | st.sampled_from(kind.values) for name, kind in kinds.items()}
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=8))
    condition = draw(conditions(kinds, draw(st.integers(0, 3))))
    return Load(schema, rows, condition)


def spelled(draw: st.DrawFn, name: str) -> str:
    plain = name.replace("_", "").isalnum() and name != "AND"
    quoted = '"' + name.replace('"', '""') + '"'
    return draw(st.sampled_from([name, name.upper(), quoted] if plain else [quoted]))


@st.composite
def conditions(draw: st.DrawFn, kinds: dict[str, Kind], depth: int) -> Written:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(tests(kinds))
    inner = draw(st.lists(conditions(kinds, depth - 1), min_size=1, max_size=3))
    portable = all(term.portable for term in inner)
    if len(inner) == 1:
        text = inner[0].within(draw(st.sampled_from([2, 4])))
        return Written(f"not {text}", 2, lambda row: opposite(inner[0].answer(row)), portable)
    if draw(st.booleans()):
        text = " AND ".join(term.within(draw(st.sampled_from([1, 1, 4]))) for term in inner)
        return Written(text, 1, lambda row: all_of([term.answer(row) for term in inner]), portable)
    text = "\n or ".join(term.within(draw(st.sampled_from([0, 0, 4]))) for term in inner)
    return Written(text, 0, lambda row: opposite(all_of([opposite(t.answer(row)) for t in inner])), portable)


def all_of(answers: list[Answer]) -> Answer:
    found: Answer = True
    for answer in answers:
        found = both(found, answer)
    return found


@st.composite
def tests(draw: st.DrawFn, kinds: dict[str, Kind]) -> Written:
    """A test of one column, or of two."""
    name = draw(st.sampled_from(sorted(kinds)))
    kind = kinds[name]
    column = spelled(draw, name)
    negation = draw(st.sampled_from(["", "not "]))
    turned = opposite if negation else (lambda answer: answer)
    forms = ["null"]
    if kind.literals:
        forms += ["compare", "compare", "between", "in", "columns", "turned"]
    forms += ["like", "like"] if kind.comparable == "text" else ["bare"] if kind.comparable == "bool" else []
    literals = st.sampled_from([*kind.literals, ("NULL", None)]) if kind.literals else st.nothing()
    match draw(st.sampled_from(forms)):
        case "null":
            return Written(f"{column} is {negation}NULL", 3, lambda row: turned(row[name] is None))
        case "bare":
            return Written(column, 3, lambda row: row[name])
        case "compare":
            sign, (text, value) = draw(st.sampled_from(sorted(COMPARISONS))), draw(literals)
            return Written(f"{column} {sign} {text}", 3, lambda row: compared(sign, row[name], value), kind.portable)
        case "turned":
            sign, (text, value) = draw(st.sampled_from(sorted(COMPARISONS))), draw(literals)
            return Written(f"{text} {sign} ({column})", 3, lambda row: compared(sign, value, row[name]), kind.portable)
        case "between":
            (low, bottom), (high, top) = draw(literals), draw(literals)
            text = f"{column} {negation}between {low} AND {high}"
            return Written(
                text,
                3,
                lambda row: turned(both(compared(">=", row[name], bottom), compared("<=", row[name], top))),
                kind.portable,
            )
        case "in":
            found = draw(st.lists(literals, min_size=1, max_size=4))
            text = f"{column} {negation}in ({', '.join(text for text, _ in found)})"

            def is_in(row: Row) -> Answer:
                return turned(opposite(all_of([compared("<>", row[name], value) for _, value in found])))

            return Written(text, 3, is_in, kind.portable)
        case "columns":
            others = sorted(other for other, made in kinds.items() if made.comparable == kind.comparable)
            other, sign = draw(st.sampled_from(others)), draw(st.sampled_from(sorted(COMPARISONS)))
            text = f"{column} {sign} {spelled(draw, other)}"
            return Written(text, 3, lambda row: compared(sign, row[name], row[other]), kind.portable)
        case _:
            parts = draw(
                st.lists(
                    st.sampled_from(["a", "b", "%", "_", "é", "\n", "!%", "!_", "!!", "'", "😀", ".", "z"]), max_size=4
                )
            )
            pattern, escape = "".join(parts), draw(st.sampled_from(["!", None]))
            written = "'" + pattern.replace("'", "''") + "'" + (" escape '!'" if escape else "")
            return Written(
                f"{column} {negation}LIKE {written}", 3, lambda row: turned(like(row[name], pattern, escape))
            )
