"""`docs/configuration.md` is what `make docs` writes."""

from __future__ import annotations

from pathlib import Path

from replicator.plugins.reference import installed_reference

REFERENCE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_configuration_reference_is_what_the_models_say() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == installed_reference(), "run `make docs`"
