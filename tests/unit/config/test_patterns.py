"""Patterns match as the design says, whatever the names hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.config import TablePattern, TablesConfig, select
from replicator.model.errors import Severity
from replicator.model.schema import TableId

PARTS = st.text(alphabet="ab.*\\ Ä", min_size=1, max_size=6)
TABLES = st.builds(TableId, PARTS, PARTS)


def table(text: str) -> TableId:
    return TableId.parse(text)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("public.*", "public.orders", True),
        ("public.*", "Public.orders", False),
        ("public.*", "public2.orders", False),
        ("*.*", "a.b", True),
        ("*.orders", "shop.orders", True),
        ("pub*.ord*s", "public.orders", True),
        ("pub*.ord*s", "public.order", False),
        ("a.b*b", "a.b", False),
        ("a.b*b", "a.bb", True),
        ("a.*x*y*", "a.1x2y3", True),
        ("a.*x*y*", "a.1y2x3", False),
        (r"a.b\*", "a.b*", True),
        (r"a.b\*", "a.bc", False),
        (r"a\.b.c", r"a\.b.c", True),
        (r"a.b\\", r"a.b\\", True),
        ("public.orders", "public.orders", True),
        ("public.orders", "public.orders2", False),
    ],
)
def test_pattern_matches(pattern: str, name: str, matches: bool) -> None:
    assert TablePattern(pattern).matches(table(name)) is matches


@pytest.mark.parametrize("text", ["", "a", ".", "a.", ".a", "a.b.c", "a.b\\", "\\.a", "a" * 2000 + ".b"])
def test_what_is_not_two_parts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table pattern"):
        TablePattern(text)


def pattern_of(one: TableId) -> TablePattern:
    """Matches exactly this table."""
    return TablePattern(str(one).replace("*", "\\*"))


@given(TABLES)
def test_pattern_of_a_table_matches_it(one: TableId) -> None:
    assert pattern_of(one).matches(one)


@given(TABLES, TABLES)
def test_pattern_of_a_table_matches_no_other(one: TableId, other: TableId) -> None:
    assert pattern_of(one).matches(other) is (one == other)


@given(TABLES)
def test_stars_match_every_table(one: TableId) -> None:
    assert TablePattern("*.*").matches(one)


@given(st.from_regex(r"[ab*]{1,6}\.[ab*]{1,6}", fullmatch=True), st.builds(TableId, *[st.text("ab.", min_size=1)] * 2))
def test_matching_agrees_with_a_regular_expression(text: str, one: TableId) -> None:
    namespace, name = (re.compile(part.replace("*", ".*"), re.DOTALL) for part in text.split("."))
    expected = bool(namespace.fullmatch(one.namespace) and name.fullmatch(one.name))
    assert TablePattern(text).matches(one) is expected


def test_many_stars_cost_nothing() -> None:
    pattern = TablePattern("a." + "*a" * 400 + "*b")
    assert not pattern.matches(TableId("a", "a" * 100_000))


def test_selection_keeps_order_and_excludes() -> None:
    tables = [table("public.b"), table("public.a"), table("other.c"), table("public.audit")]
    chosen = select(tables, [TablePattern("public.*")], [TablePattern("*.audit")])
    assert chosen.tables == (table("public.b"), table("public.a"))
    assert chosen.problems == ()


def test_pattern_without_a_match_is_a_warning() -> None:
    config = TablesConfig.model_validate(
        {"include": ["a.*", "typo.*"], "exclude": ["a.none"], "settings": {"a.missing": {"deletes": "soft"}}}
    )
    chosen = config.select([table("a.b")])
    assert chosen.tables == (table("a.b"),)
    assert [(problem.location, problem.severity) for problem in chosen.problems] == [
        ("tables.include", Severity.WARNING),
        ("tables.exclude", Severity.WARNING),
        ("tables.settings", Severity.WARNING),
    ]


def test_nothing_selected_is_blocking() -> None:
    chosen = select([table("a.b")], [TablePattern("c.*")])
    assert [p.code for p in chosen.problems if p.severity is Severity.BLOCKING] == ["no_tables"]


def test_a_source_without_tables_is_told_apart_from_patterns_that_match_none() -> None:
    assert [p.message for p in select([], [TablePattern("c.*")]).problems if p.code == "no_tables"] == [
        "The source shows no tables to this user."
    ]
    assert [p.message for p in select([table("a.b")], [TablePattern("c.*")]).problems if p.code == "no_tables"] == [
        "The patterns match none of the tables that the source shows to this user (1)."
    ]


def test_later_settings_win_key_by_key() -> None:
    config = TablesConfig.model_validate(
        {
            "settings": {
                "public.*": {"deletes": "soft", "source_timestamp": True},
                "public.orders": {"deletes": "hard"},
                "*.other": {"source_timestamp": True},
            }
        }
    )
    orders = config.options_for(table("public.orders"))
    assert (orders.deletes, orders.source_timestamp) == ("hard", True)
    assert config.options_for(table("x.y")).deletes == "hard"
