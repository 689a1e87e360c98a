"""Texts of conditions: the grammar, the normal form, and refusals with their position."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.projection.condition import Condition, ConditionError, conjunction, parse
from replicator.projection.condition.syntax import DEPTH_MAX, LENGTH_MAX, OPERANDS_MAX, PATTERN_MAX

NORMAL_FORMS = {
    "a=1": "a = 1",
    " a != -1.50 ": "a <> -1.5",
    "a = - 1e3": "a = -1000",
    "a = 0.0 or a = -0": "a = 0 OR a = 0",
    "a = 1e-400": "a = 1E-400",
    "a = 120e50 OR a = -0.00120e-50": "a = 1.2E+52 OR a = -1.2E-53",
    "a = 1" + "0" * 399: "a = 1E+399",
    "a = 9" + "1" * 399 + "e400": "a = 9." + "1" * 399 + "E+799",
    "a = 100 OR a = 00.00100": "a = 100 OR a = 0.001",
    "1 < a": "a > 1",
    "'x' >= a": "a <= 'x'",
    "1 <> a": "a <> 1",
    "(a) = ((1))": "a = 1",
    "a between 1 and 2 and b": "a BETWEEN 1 AND 2 AND b",
    "'2020-01-01' BETWEEN a AND b": "'2020-01-01' BETWEEN a AND b",
    "a Not In (1, null, TRUE)": "a NOT IN (1, NULL, TRUE)",
    "NOT a IN (1)": "a NOT IN (1)",
    "a is not null": "a IS NOT NULL",
    "not a is null": "a IS NOT NULL",
    "not not a": "NOT NOT a",
    "not a = 1 or b": "NOT a = 1 OR b",
    "not (a = 1 or b)": "NOT (a = 1 OR b)",
    "a or b and c": "a OR b AND c",
    "(a or b) and c": "(a OR b) AND c",
    "a and (b and (c and d))": "a AND b AND c AND d",
    "(a or (b or c)) or d": "a OR b OR c OR d",
    "a LIKE 'x%' escape '!'": "a LIKE 'x%' ESCAPE '!'",
    "a not like 'it''s'": "a NOT LIKE 'it''s'",
    "a like 'x\\_' escape '\\'": "a LIKE 'x\\_' ESCAPE '\\'",
    '"a""b" = `c``d` and [e]]f] = 1': '"a""b" = "c`d" AND "e]f" = 1',
    "[SELECT] = \"and\"": '"SELECT" = "and"',
    "x'0aFF' = a": "a = X'0AFF'",
    "größe$1 = 'ß'\n": "größe$1 = 'ß'",
    "order = 1 and user = 2 and date = 3 and left = 4": "order = 1 AND user = 2 AND date = 3 AND left = 4",
    "a = 'AND \"--/*;?'": "a = 'AND \"--/*;?'",
}  # fmt: skip


@pytest.mark.parametrize(("text", "normal"), NORMAL_FORMS.items())
def test_a_condition_has_one_normal_form(text: str, normal: str) -> None:
    assert str(parse(text)) == normal
    assert parse(normal) == parse(text)
    assert str(parse(normal)) == normal


REFUSED = {
    "": (1, "is empty"),
    " \n": (3, "is empty"),
    "a =": (4, "is incomplete"),
    "a = 1 AND": (10, "is incomplete"),
    "a = = 1": (5, "No column or value"),
    "a == 1": (4, "No column or value"),
    "a <=> 1": (5, "No column or value"),
    "a = 1 b": (7, "No operator"),
    "a = 'x' 'y'": (9, "No operator"),
    "a = DATE '2020-01-01'": (10, "No operator"),
    "a = E'\\n'": (6, "No operator"),
    "a = N'x'": (6, "No operator"),
    "a AND lower(b) = 'x'": (7, "Functions"),
    '"a" (1)': (1, "Functions"),
    "a IN (SELECT b FROM c)": (7, "SELECT is not supported. Subqueries"),
    "EXISTS (SELECT 1)": (1, "EXISTS"),
    "a LIKE ANY ('x')": (8, "ANY"),
    "a ILIKE 'x'": (3, "ILIKE"),
    "a = CAST('1' AS int)": (5, "CAST"),
    "a COLLATE x = 'y'": (3, "COLLATE"),
    "a IS DISTINCT FROM 1": (6, "DISTINCT"),
    "a < current_timestamp": (5, "depends on nothing but the row"),
    "CASE WHEN a THEN b END": (1, "CASE"),
    "a::int = 1": (2, "casts"),
    "a = $1": (5, "Parameters"),
    "a = :x": (5, "Parameters"),
    "a = ?": (5, "Parameters"),
    "a = @x": (5, "Parameters"),
    "a = %s": (5, "Arithmetic"),
    "a = 1 + 1": (7, "Arithmetic"),
    "a - 1 = 0": (3, "Arithmetic"),
    "a = -b": (5, "Arithmetic"),
    "a = -": (5, "Arithmetic"),
    "a || b = 'x'": (3, "Arithmetic"),
    "a = 1; DROP TABLE b": (6, "no statement"),
    "a = 1 -- b": (7, "Comments"),
    "a /* b */ = 1": (3, "Comments"),
    "a = 1 # b": (7, "Comments"),
    "a = 'x": (5, "no end"),
    "a = 'x\\'y'": (10, "no end"),
    'a = "x': (5, "no end"),
    '"" = 1': (1, "no end, or is empty"),
    "a = \x00": (5, "no meaning"),
    "a = '\ud800'": (5, "not Unicode"),
    "b.a = 1": (2, "without its table"),
    "a = .5": (5, "0.5 for .5"),
    "a = 5.": (5, "no number"),
    "a = 1_000": (5, "no number"),
    "a = 0x1f": (5, "no number"),
    "a = 1e401": (5, "more than 400"),
    "a = " + "9" * 401: (5, "more than 400"),
    "a = 0." + "0" * 900 + "1": (5, "more than 400"),
    "a = 1e99999999": (5, "more than 400"),
    "a = X'0'": (5, "hex digits"),
    "a = X'0 0'": (5, "hex digits"),
    "(a": (3, "not closed"),
    "a)": (2, "not opened"),
    "()": (2, "No column or value"),
    "a IN ()": (7, "No column or value"),
    "a IN (1,)": (9, "No column or value"),
    "a IN 1": (6, "no condition"),
    "a IN (b)": (7, "a column"),
    "1 IN (a)": (7, "a column"),
    "1 IN (2)": (1, "A column is expected"),
    "(a, b) = (1, 2)": (2, "A column or a value is expected"),
    "a, b": (2, "cannot be read from here"),
    "a = b = 1": (1, "A column or a value is expected"),
    "a = 1 IS NULL": (5, "A column or a value is expected"),
    "a = (b = 1)": (10, "A column or a value is expected"),
    "a BETWEEN 1": (11, "cannot be read from here"),
    "1 BETWEEN a AND 2": (1, "Two values"),
    "1 = 1": (1, "Two values"),
    "'a' = 'b'": (1, "names do not"),
    "a IS 1": (6, "Only NULL"),
    "a IS NOT TRUE": (10, "Only NULL"),
    "NULL IS NULL": (1, "A column is expected"),
    "a NOT NULL": (7, "cannot be read from here"),
    "TRUE": (1, "no condition"),
    "a AND 1": (7, "no condition"),
    "a LIKE b": (8, "A text is expected"),
    "a LIKE NULL": (8, "A text is expected"),
    "1 LIKE '1'": (1, "A column is expected"),
    "a LIKE 'x' ESCAPE '!!'": (19, "one character"),
    "a LIKE 'x' ESCAPE ''": (19, "one character"),
    "a LIKE 'x!' ESCAPE '!'": (8, "ends with the character"),
    "a LIKE 'x\\_'": (8, "differ in what"),
    f"a LIKE '{'_' * (PATTERN_MAX + 1)}'": (8, "more than 1000"),
    "a = 'x' ESCAPE '!'": (16, "cannot be read from here"),
    "a" * (LENGTH_MAX + 1): (1, "characters"),
    "a = '" + "ä" * LENGTH_MAX: (1, "characters"),
    "`" + '"' * 40_000 + "` = 1": (1, "normal form"),
    " OR ".join(["a"] * (OPERANDS_MAX + 1)): (5 * OPERANDS_MAX + 1, "names and values"),
    "(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1): (DEPTH_MAX + 2, "within each other"),
    "NOT " * (DEPTH_MAX + 1) + "a": (4 * DEPTH_MAX + 1, "within each other"),
    "NOT (" * 9 + "a" + ")" * 9: (41, "within each other"),
}


@pytest.mark.parametrize(
    ("text", "position", "said"), [(t, *f) for t, f in REFUSED.items()], ids=[ascii(t)[:30] for t in REFUSED]
)
def test_what_is_no_condition_is_refused_with_its_position(text: str, position: int, said: str) -> None:
    with pytest.raises(ConditionError) as refused:
        parse(text)
    (fault,) = refused.value.faults
    assert fault.position == position
    assert said in str(refused.value)
    assert fault.remedy.endswith(".")
    assert len(str(refused.value)) < 300


WORDS = [
    "a",
    '"b"',
    "1",
    "-",
    "'x'",
    "x'00'",
    "NULL",
    "TRUE",
    "(",
    ")",
    ",",
    "=",
    "<",
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "LIKE",
    "BETWEEN",
    "ESCAPE",
]


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from([*WORDS, "(a = 1)", "a IN (", "'", "é", ";"]), max_size=14).map(" ".join)
)
@settings(max_examples=120)
@example("a NOT LIKE 'x' LIKE 'y'")
@example("NOT a NOT BETWEEN 1 AND NOT 2")
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = parse(text)
    except ConditionError:
        return
    assert parse(str(condition)) == condition


def test_the_largest_conditions_are_read() -> None:
    assert len(parse(f"a IN ({', '.join(['1'] * (OPERANDS_MAX - 1))})").term.operands) == OPERANDS_MAX  # type: ignore[union-attr]
    deep = parse("NOT (" * (DEPTH_MAX // 2) + "a OR b" + ")" * (DEPTH_MAX // 2))
    assert parse(str(deep)) == deep


def test_columns_are_named_once_in_their_order() -> None:
    assert parse("b = 1 AND (a = c OR 'x' BETWEEN \"B\" AND d) AND a IS NULL AND NOT e LIKE '%'").columns == (
        "b",
        "a",
        "c",
        "B",
        "d",
        "e",
    )


def test_conditions_are_joined_by_and() -> None:
    joined = conjunction([parse("a = 1 OR b"), parse("c"), parse("NOT d AND e")])
    assert joined == parse("(a = 1 OR b) AND c AND NOT d AND e")
    assert conjunction([parse("a OR b")]) == parse("a OR b")
    assert conjunction([]) is None


def test_comparisons_with_null_are_remarked() -> None:
    remarks = parse("a = NULL OR b NOT IN (1, NULL) OR c IS NULL").remarks
    assert [remark.position for remark in remarks] == [5, 26]


def test_sqlglot_is_not_loaded_before_a_condition_is_read() -> None:
    program = "import sys; from replicator.projection.condition import parse; print(sorted({'sqlglot', 'pyarrow'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_condition_is_a_value() -> None:
    assert len({parse("a=1"), parse("a = 1.0"), parse("a = TRUE"), parse('"a" = 1')}) == 3
    assert isinstance(parse("a"), Condition)
