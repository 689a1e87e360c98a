"""docs/metrics.md, the rules and the dashboard name the metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from replicator.observability.metrics import METRICS, MetricKind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
MONITORING = ROOT / "examples" / "monitoring"
_NAME = re.compile(r"\breplicator_[a-z_]+\b")
_PARTS = ("_bucket", "_sum", "_count")


def stored_names() -> set[str]:
    """Every name under which Prometheus stores a series."""
    plain = {metric.full_name for metric in METRICS if metric.kind is not MetricKind.HISTOGRAM}
    return plain | {m.full_name + part for m in METRICS if m.kind is MetricKind.HISTOGRAM for part in _PARTS}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    dashboard = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def test_the_page_lists_the_catalogue() -> None:
    rows = re.findall(r"^\| `(replicator_[a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows]
    assert listed == [(metric.full_name, metric.kind.value, metric.labels, metric.help) for metric in METRICS]


def test_the_page_names_no_other_metric() -> None:
    assert set(_NAME.findall(PAGE)) <= {metric.full_name for metric in METRICS}


def test_rules_and_dashboard_use_metrics_that_there_are() -> None:
    used = {name for expr in (*(rule["expr"] for rule in rules()), *queries()) for name in _NAME.findall(expr)}
    assert used - stored_names() == set()
    assert used


def test_rules_and_dashboard_use_labels_that_there_are() -> None:
    labels = {metric.full_name: {*metric.labels, "le"} for metric in METRICS}
    texts = [*(rule["expr"] for rule in rules()), *queries()]
    for name, inside in (found for text in texts for found in re.findall(r"(replicator_[a-z_]+)\{([^}]*)\}", text)):
        base = name if name in labels else re.sub("(_bucket|_sum|_count)$", "", name)
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) <= labels[base], name


def test_every_rule_says_what_to_do() -> None:
    assert all({"summary", "action"} <= rule["annotations"].keys() for rule in rules())
