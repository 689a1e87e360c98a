"""The form of a new replicator, and the configuration that its fields make."""

from __future__ import annotations

import pytest
import yaml

from replicator.config import ReplicatorConfig
from replicator.config.shape import fields_of
from replicator.model.errors import Severity
from replicator.plugins.registry import Registry
from replicator.service.configuring.document import Finding
from replicator.web.dashboard import wizard

REGISTRY = Registry.discover()
KINDS = {"source": "postgresql", "target": "delta"}
MODELS = wizard.Models(REGISTRY.source("postgresql").config_model, REGISTRY.target("delta").config_model)
FILLED = {
    "name": "shop",
    "source.host": "127.0.0.1",
    "source.port": "5433",
    "source.user": "u",
    "source.database": "d",
    "source.password": "${env:SHOP_PASSWORD}",
    "target.path": "/lake",
    "target.clustering": "false",
    "target.maintenance.deleted_rows_share_max": "0.5",
    "tables.include": "public.a\n\n public.b \n",
    "apply.max_wait": "5s",
    "snapshot.mode": "never",
    "freshness": "  ",
}


def inputs(values: dict[str, str] | None = None, findings: tuple[Finding, ...] = ()) -> dict[str, wizard.Input]:
    return {one.path: one for one in wizard.inputs(wizard.form(MODELS, values or {}, findings))}


def finding(location: str) -> Finding:
    return Finding(
        code="x", severity=Severity.BLOCKING, message="m", line=1, location=location, table=None, action=None, sql=()
    )


def test_the_fields_make_a_configuration_that_loads() -> None:
    text = wizard.text_of(wizard.document(MODELS, KINDS, FILLED))
    assert yaml.safe_load(text) == {
        "name": "shop",
        "source": {
            "type": "postgresql", "host": "127.0.0.1", "port": 5433, "user": "u", "database": "d", "password": "${env:SHOP_PASSWORD}",
        },
        "target": {"type": "delta", "path": "/lake", "clustering": False, "maintenance": {"deleted_rows_share_max": 0.5}},
        "tables": {"include": ["public.a", "public.b"]},
        "snapshot": {"mode": "never"},
        "apply": {"max_wait": "5s"},
    }  # fmt: skip
    assert list(yaml.safe_load(text))[:3] == ["name", "source", "target"]
    loaded = REGISTRY.load(text, env={"SHOP_PASSWORD": "hunter2"})
    assert loaded.config.name == "shop"


@pytest.mark.parametrize("source", sorted(REGISTRY.source_models()))
@pytest.mark.parametrize("target", sorted(REGISTRY.target_models()))
def test_every_setting_has_a_field_or_is_named_as_one_for_the_text(source: str, target: str) -> None:
    models = wizard.Models(REGISTRY.source(source).config_model, REGISTRY.target(target).config_model)
    groups = wizard.form(models, {}, ())
    known = {one.path for one in wizard.inputs(groups)} | left_out(groups)
    expected = {path for key, _, model in models.blocks() for path, _ in wizard._fields_in(key, model)}
    expected |= {key for key, one in fields_of(ReplicatorConfig).items() if one.shape.block is None}
    assert known == expected
    shown = {one.path for group in groups for one in shown_of(group)}
    assert {one.path for one in wizard.inputs(groups) if one.is_required} <= shown


def left_out(groups: object) -> set[str]:
    found: set[str] = set()
    for group in groups:  # type: ignore[attr-defined]
        found |= {*group.left_out, *left_out(group.groups)}
    return found


def shown_of(group: wizard.Group) -> list[wizard.Input]:
    return [*group.shown, *(one for inner in group.groups for one in shown_of(inner))]


def test_what_was_found_stands_at_its_field_and_unfolds_it() -> None:
    findings = (finding("tables.include[0]"), finding("spark.master"), finding("public.orders"))
    found = inputs(findings=findings)
    assert {path for path, one in found.items() if one.findings} == {"tables.include", "spark.master"}
    groups = {group.path: group for group in wizard.form(MODELS, {}, findings)}
    assert (groups["spark"].needs_look, groups["ddl"].needs_look) == (True, False)
    optional = {group.path: group for group in wizard.form(MODELS, {"source.port": "1"}, ())}
    assert (optional["source"].needs_folded, optional["target"].needs_folded) == (True, False)


def test_a_secret_that_is_written_out_is_neither_shown_nor_sent() -> None:
    written = {**FILLED, "source.password": "hunter2-hunter2"}
    masked = wizard.without_secrets(MODELS, written, "***")
    assert masked["source.password"] == "***"
    assert wizard.without_secrets(MODELS, FILLED, "***") == FILLED
    assert inputs()["source.password"].kind is wizard.PluginKind.SECRET
    assert "hunter2" not in wizard.text_of(wizard.document(MODELS, KINDS, masked))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5433", 5433),
        ("5433.0", 5433.0),
        ("abc", "abc"),
        ("9" * 500, "9" * 500),
        ("٣", "٣"),
        ("${env:PORT}", "${env:PORT}"),
    ],
)
def test_a_number_is_one_only_where_it_is_written_as_one(text: str, value: object) -> None:
    made = wizard.document(MODELS, KINDS, {**FILLED, "source.port": text})["source"]["port"]
    assert (made, type(made)) == (value, type(value))
