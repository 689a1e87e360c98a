"""docs/lineage.md: its configuration loads, and it names the events that there are."""

from __future__ import annotations

import re
from pathlib import Path

from replicator.config import LineageConfig, Resolver, read_document
from replicator.service.lineage.advance import LineageEvent

PAGE = (Path(__file__).parents[2] / "docs" / "lineage.md").read_text(encoding="utf-8")


def test_the_configuration_loads() -> None:
    document = read_document(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0], "lineage.md")
    values = Resolver(document, {"LINEAGE_KEY": "not-a-real-key"}).resolve(document.values)
    assert LineageConfig.model_validate(values["lineage"]).has_sink


def test_every_event_is_explained() -> None:
    assert re.findall(r"^\| ([A-Z]+) \|", PAGE, re.MULTILINE) == [event.value for event in LineageEvent]
