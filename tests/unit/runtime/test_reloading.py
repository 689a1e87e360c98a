"""Which processes a changed configuration concerns."""

from __future__ import annotations

import pytest

from replicator.runtime.reloading import changed_sections, concerned
from replicator.state.records import Role

BEFORE = """
name: shop
source: {type: memory, database: a}
tables:
  include: [public.a]
apply: {max_wait: 5s}
"""
ALL = {Role.CAPTURE, Role.APPLY, Role.VERIFY}


@pytest.mark.parametrize(
    ("now", "sections"),
    [
        (BEFORE, ()),
        (f"# a comment\n{BEFORE}", ()),
        (BEFORE.replace("[public.a]", "[public.a, public.b]"), ("tables",)),
        (BEFORE.replace("5s", "6s") + "verify: {every: 1d}\n", ("apply", "verify")),
        (BEFORE.replace("apply: {max_wait: 5s}\n", ""), ("apply",)),
    ],
)
def test_sections_that_differ_are_named(now: str, sections: tuple[str, ...]) -> None:
    assert changed_sections(BEFORE, now) == sections


@pytest.mark.parametrize(
    ("sections", "roles"),
    [
        ((), set()),
        (("verify",), {Role.VERIFY}),
        (("alerts", "lineage"), set()),
        (("spark",), {Role.APPLY}),
        (("journal", "snapshot"), {Role.CAPTURE}),
        (("apply",), {Role.APPLY, Role.VERIFY}),
        (("source", "spark"), ALL),
        (("tables",), ALL),
        (("something_new",), ALL),
    ],
)
def test_only_processes_that_read_a_section_are_concerned(sections: tuple[str, ...], roles: set[Role]) -> None:
    assert concerned(sections) == roles
