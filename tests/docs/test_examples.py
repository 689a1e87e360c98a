"""Every configuration that we show loads with the installed plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicator.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "configuration.md"]


def configurations() -> Iterator[tuple[str, str]]:
    for file in sorted(EXAMPLES.glob("**/*.yaml")):
        yield file.name, file.read_text(encoding="utf-8")
    for page in PAGES:
        blocks = re.findall(r"^```yaml\n(name:.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert blocks, page
        for number, block in enumerate(blocks, start=1):
            yield f"{page.name}-{number}", block


@pytest.mark.parametrize(("origin", "text"), [pytest.param(*c, id=c[0]) for c in configurations()])
def test_configurations_load(origin: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", text):
        monkeypatch.setenv(name, "not-a-real-secret")
    loaded = Registry.discover().load(text, origin=origin)
    assert loaded.warnings == ()
    assert "not-a-real-secret" not in loaded.document


def test_the_list_of_examples_is_complete_and_names_what_exists() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [f.name for f in EXAMPLES.glob("*.yaml") if f"`{f.name}" not in text] == []
    assert [path for path in re.findall(r"tests/[a-z_/]+\.py", text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "docs/quickstart.md", "docs/operating.md", "docs/plugins.md"]
)
def test_pages_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|tests|examples|plugins|replicator)/[A-Za-z0-9_./-]+)`", text)
    # The guide's own package is made up.
    missing = [n for n in named if not (ROOT / n).exists() and "acme" not in n]
    assert missing == []
