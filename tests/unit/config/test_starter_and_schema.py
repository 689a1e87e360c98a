"""The starter file loads, the schema describes what loads, the reference names every key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from replicator.config import ReplicatorConfig, json_schema, load, plugin_schema, reference_markdown, starter
from replicator.config.shape import fields_of
from replicator.model.errors import ConfigError

from .models import ENV, GOOD, SOURCES, TARGETS, SourceModel, TargetModel, load_text


def make_starter() -> str:
    return starter("postgresql", SourceModel, "delta", TargetModel)


def test_starter_loads_once_it_is_filled_in_and_its_variables_are_set() -> None:
    text = make_starter()
    assert re.findall(r"(?m)^ *[^#\n]*\$\{env:(\w+)\}", text) == ["SOURCE_PASSWORD"]
    loaded = load_text(text.replace("CHANGE-ME", "filled-in"), SOURCE_PASSWORD="abcdef")
    assert loaded.config == ReplicatorConfig(name="shop-to-lake")


def test_what_is_not_filled_in_is_named_with_its_path_and_purpose() -> None:
    with pytest.raises(ConfigError) as raised:
        load_text(make_starter(), SOURCE_PASSWORD="abcdef")
    lines = [line for line in make_starter().splitlines() if line.endswith(": CHANGE-ME") and "#" not in line]
    assert len(raised.value.problems) == len(lines) > 0
    for problem in raised.value.problems:
        assert re.fullmatch(r"`(source|target)\.[\w.]+` is still CHANGE-ME\.", problem.message)
        assert (problem.action or "").startswith("Set it. ")


def test_starter_with_every_comment_taken_away_loads_too() -> None:
    text = re.sub(r"(?m)^( *)#(?=\S)", r"\1", make_starter().replace("CHANGE-ME", "filled-in"))
    loaded = load_text(
        text,
        SOURCE_PASSWORD="abcdef",
        SOURCE_POOL_TOKEN="ghijkl",
        ALERTS_URL="https://example.org/hook",
        ALERTS_MAIL="mailto://x",
        LINEAGE_API_KEY="a-key",
    )
    defaults = ReplicatorConfig(name="x")
    # The target's own default is none of ours: an example stands there.
    by_example = defaults.apply.model_copy(update={"max_wait": timedelta(seconds=5)})
    for block, expected in (
        ("snapshot", defaults.snapshot), ("apply", by_example), ("ddl", defaults.ddl), ("retry", defaults.retry),
    ):  # fmt: skip
        assert getattr(loaded.config, block) == expected
        assert getattr(loaded.config, block).model_fields_set


def test_what_must_be_filled_in_comes_first_in_its_block() -> None:
    class Late(SourceModel):
        database: str = Field(description="Database to replicate.")

    block = starter("postgresql", Late, "delta", TargetModel).partition("\nsource:\n")[2].partition("\ntarget:\n")[0]
    keys = [line.strip() for line in block.splitlines() if re.match(r" {2}#?\w+:", line)]
    is_comment = [key.startswith("#") for key in keys]
    assert "database: CHANGE-ME" in keys
    assert is_comment == sorted(is_comment), keys


def test_starter_explains_every_key() -> None:
    lines = make_starter().splitlines()
    for number, line in enumerate(lines):
        if re.match(r" *#?\w+:", line) and not re.match(r"(source|target|  type):", line):
            assert re.match(r" *# \S", lines[number - 1]), line


def walk(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from walk(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from walk(value)


def accepts(schema: dict[str, Any], value: Any, definitions: dict[str, Any]) -> bool:  # noqa: PLR0911 one rule a line
    """As much of JSON Schema as ours uses."""
    if "$ref" in schema and not accepts(definitions[schema["$ref"].removeprefix("#/$defs/")], value, definitions):
        return False
    if "anyOf" in schema and not any(accepts(option, value, definitions) for option in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(accepts(option, value, definitions) for option in schema["oneOf"]) != 1:
        return False
    if ("const" in schema and value != schema["const"]) or ("enum" in schema and value not in schema["enum"]):
        return False
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        return all(accepts(schema.get("items", {}), item, definitions) for item in value)
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not set(schema.get("required", ())) <= set(value):
            return False
        for key, item in value.items():
            inner = properties.get(key, rest)
            if inner is False or (isinstance(inner, dict) and not accepts(inner, item, definitions)):
                return False
    return True


def test_schema_accepts_what_loads_and_refuses_what_does_not() -> None:
    schema = json_schema(SOURCES, TARGETS)
    json.dumps(schema)
    good = GOOD + "apply: {max_wait: 5s, tables_parallel: '${env:N}'}\njournal: {keep: 24h}\n"
    cases = {
        good: True,
        good.replace("/data/lake", "/data/lake\n  unfit: null"): True,
        good.replace("/data/lake", "/data/lake\n  unfit: 'null'"): True,
        good.replace("/data/lake", "/data/lake\n  adopt: null"): False,
        good.replace("5s", "5"): False,
        good.replace("24h", "24"): False,
        good.replace("max_wait", "max_wiat"): False,
        good.replace("${env:DB_PASSWORD}", "literal"): False,
        good.replace("type: delta", "type: other"): False,
        good.replace("name:", "nam:"): False,
        make_starter(): True,
    }
    for text, expected in cases.items():
        assert accepts(schema, yaml.safe_load(text), schema["$defs"]) is expected, text


def test_schema_has_all_definitions_it_refers_to() -> None:
    schema = json_schema({"a": SourceModel, "b": SourceModel}, TargetModel)
    definitions = schema["$defs"]
    references = {part["$ref"].removeprefix("#/$defs/") for part in walk(schema) if isinstance(part.get("$ref"), str)}
    assert references <= set(definitions)
    assert {"source.a.Pool", "source.b.Pool"} <= references


def test_schema_spells_defaults_as_users_do() -> None:
    schema = json_schema(SOURCES, TARGETS)
    assert schema["$defs"]["JournalConfig"]["properties"]["keep"]["default"] == "1d"
    assert schema["$defs"]["JournalConfig"]["properties"]["bytes_max"]["default"] == "50GiB"


def test_plugin_schema_has_its_type() -> None:
    schema = plugin_schema("delta", TargetModel)
    assert schema["properties"]["type"]["const"] == "delta"
    assert schema["required"] == ["type", "path"]


def test_reference_names_every_key_and_default() -> None:
    text = reference_markdown(SOURCES, TARGETS)
    for key, field in fields_of(ReplicatorConfig).items():
        assert f"`{key}`" in text
        for inner in fields_of(field.shape.block) if field.shape.block else ():
            assert f"`{key}.{inner}`" in text
    for expected in ("`source.pool.size`", "`tables.settings.*.deletes`", "at least 1 and at most 65535", "`50GiB`"):
        assert expected in text


def test_example_of_the_reference_loads() -> None:
    text = reference_markdown({}, {})
    example = (
        text.split("```yaml\n")[1].split("```")[0].replace("  user: replicator\n", "").replace("  database: shop\n", "")
    )
    loaded = load(example, sources=SOURCES, targets=TARGETS, env=ENV | {"SHOP_DB_PASSWORD": "abcdef"})
    assert loaded.config.name == "shop-to-lake"


def test_every_field_of_the_host_has_a_description() -> None:
    waiting: list[type[BaseModel]] = [ReplicatorConfig]
    while waiting:
        for field in fields_of(waiting.pop()).values():
            assert field.description.endswith("."), field.key
            waiting += [block for shape in (field.shape, field.shape.items) if shape and (block := shape.block)]
