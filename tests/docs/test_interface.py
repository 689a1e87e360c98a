"""Nothing that users, programs and dashboards rely on is lost by accident: the pages of `docs/` have what `interface.txt` lists.

The pages are held to the code by their own tests. A line leaves the list together with a line of the changelog that says what replaces
it; new lines are added by `python -m tests.docs.test_interface`, from the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LIST = Path(__file__).with_name("interface.txt")
TABLES = {
    "setting": ("configuration.md", r"\| `([^`]+)` \|"),
    "metric": ("metrics.md", r"\| `(replicator_[^`]+)` \|"),
    "code": ("errors.md", r"\| `([a-z0-9_]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$"),
    "path": ("rest.md", r"\| `((?:GET|POST|PUT|DELETE) [^`]+)`"),
}
"""Kinds of lines → the page that has them, and how one looks there."""


def offered() -> Iterator[str]:
    """Commands, their options, settings, metrics, codes of errors and paths of the REST API, a line each."""
    command = ""
    for line in (DOCS / "cli.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"###? (.+)", line):
            command = heading.group(1)
            yield f"command {command}"
        elif row := re.match(r"\| (`--[^|]+) \|", line):
            yield from (f"option {command} {name}" for name in re.findall(r"`(-[^`]+)`", row.group(1)))
    for kind, (page, pattern) in TABLES.items():
        found = re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        yield from (f"{kind} {name}" for name in found)


def test_everything_of_the_list_is_there() -> None:
    listed = LIST.read_text(encoding="utf-8").splitlines()
    assert len(listed) > 700
    assert sorted(set(listed) - set(offered())) == []


def test_what_is_new_is_listed() -> None:
    missing = sorted(set(offered()) - set(LIST.read_text(encoding="utf-8").splitlines()))
    assert missing == [], "run `python -m tests.docs.test_interface`"


if __name__ == "__main__":
    known = {*LIST.read_text(encoding="utf-8").splitlines(), *offered()}
    LIST.write_text("".join(f"{line}\n" for line in sorted(known)), encoding="utf-8")
