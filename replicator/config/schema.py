"""JSON Schema of the configuration, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from replicator.config.model import ReplicatorConfig
from replicator.config.shape import fields_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = "Reference"
_REFERENCE_SCHEMA: Final = {
    "type": "string",
    "pattern": r"\$\{(env|file):[^}]+\}",
    "description": "A value from outside the file: ${env:NAME} or ${file:/path}.",
}
# Restrictions that a reference may not meet, although the value that it stands for does.
_RESTRICTIONS: Final = ("enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated")


def json_schema(
    sources: Mapping[str, type[BaseModel]] | type[BaseModel], targets: Mapping[str, type[BaseModel]] | type[BaseModel]
) -> dict[str, Any]:
    """Return the schema of a whole file.

    Args:
        sources: Settings models of the source plugins by name; or one model, whose `type` may then be any text.
        targets: The same for targets.
    """
    schema, definitions = _model_schema(ReplicatorConfig)
    properties = schema["properties"]
    blocks: dict[str, Any] = {}
    for kind, models in (("source", sources), ("target", targets)):
        named: list[tuple[str | None, type[BaseModel]]] = (
            [(None, models)] if isinstance(models, type) else [*models.items()]
        )
        choices = []
        for name, model in named:
            block, more = _plugin_block(name, model)
            # Two plugins may call a part of their models alike.
            choices.append(_prefixed(block, f"{kind}.{name or 'plugin'}."))
            definitions |= {
                f"{kind}.{name or 'plugin'}.{key}": _prefixed(value, f"{kind}.{name or 'plugin'}.")
                for key, value in more.items()
            }
        blocks[kind] = choices[0] if len(choices) == 1 else {"oneOf": choices}
    schema["properties"] = {"name": properties.pop("name"), **blocks, **properties}
    schema["required"] = ["name", "source", "target"]
    return _document(schema, definitions)


def plugin_schema(type_name: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of one plugin's block, `type` included."""
    return _document(*_plugin_block(type_name, model))


def _document(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DIALECT, **schema, "$defs": {**definitions, _REFERENCE: _REFERENCE_SCHEMA}}


def _plugin_block(name: str | None, model: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema, definitions = _model_schema(model)
    kind = {"const": name} if name is not None else {"type": "string"}
    schema["properties"] = {"type": {**kind, "description": "The plugin."}, **schema.get("properties", {})}
    schema["required"] = ["type", *schema.get("required", ())]
    return schema, definitions


def _model_schema(model: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    for block, own in ((model, schema), *((block, definitions.get(block.__name__)) for block in _blocks_in(model))):
        if own is not None:
            _spell_defaults(own, block)
            _allow_null(own, block)
    return _allow_references(schema), {name: _allow_references(value) for name, value in definitions.items()}


def _spell_defaults(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Write defaults as users would; pydantic spells a duration PT5S."""
    for key, field in fields_of(model).items():
        if "default" not in schema["properties"][key]:
            continue
        if field.shape.block is not None or field.default is None:
            # A block's defaults are those of its keys.
            del schema["properties"][key]["default"]
        else:
            schema["properties"][key]["default"] = field.default


def _allow_null(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Allow the word null without quotes, as the file does."""
    for key, field in fields_of(model).items():
        if "null" in field.shape.choices:
            schema["properties"][key]["enum"].append(None)
            del schema["properties"][key]["type"]


def _blocks_in(model: type[BaseModel]) -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    waiting = [model]
    while waiting:
        for field in fields_of(waiting.pop()).values():
            for shape in (field.shape, field.shape.items):
                if shape is not None and shape.block is not None and shape.block not in found:
                    found.add(shape.block)
                    waiting.append(shape.block)
    return found


def _allow_references(schema: Any) -> Any:
    """Allow a reference wherever a scalar is allowed, as the file does."""
    if isinstance(schema, list):
        return [_allow_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own_type = schema.get("type")
    is_restricted = own_type in ("integer", "number", "boolean") or (
        own_type in ("string", None) and any(name in schema for name in _RESTRICTIONS)
    )
    if is_restricted and schema.get("pattern") != _REFERENCE_SCHEMA["pattern"]:
        outer = {key: value for key, value in schema.items() if key in _ANNOTATIONS}
        inner = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        return {**outer, "anyOf": [inner, {"$ref": f"#/$defs/{_REFERENCE}"}]}
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _allow_references(item) for name, item in value.items()}
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems"):
            result[key] = _allow_references(value)
        else:
            result[key] = value
    return result


def _prefixed(schema: Any, prefix: str) -> Any:
    if isinstance(schema, list):
        return [_prefixed(item, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    start = "#/$defs/"
    return {
        key: f"{start}{prefix}{value.removeprefix(start)}"
        if key == "$ref" and isinstance(value, str) and value != f"{start}{_REFERENCE}"
        else _prefixed(value, prefix)
        for key, value in schema.items()
    }
