"""Writes `docs/status.schema.json` from the models of the status: `python -m replicator.service.status_schema docs/status.schema.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from replicator.model.status import VERSION, ReplicatorStatus, StatusModel

_TITLE: Final = "Status of a replicator"


def status_schema() -> dict[str, Any]:
    """Return the JSON Schema of the status document.

    The array of several is described, too.
    """
    everything = {"description": "Several replicators, by name.", "type": "array", "items": {"$ref": "#"}}
    schema = document_schema(ReplicatorStatus, f"status:{VERSION}", _TITLE)
    return {**schema, "$defs": {"list": everything, **schema["$defs"]}}


def document_schema(model: type[StatusModel], name: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a document that a command prints.

    Readers may meet keys that a later release added, so the schema allows them, although the models do not.
    """
    generated = _for_readers(model.model_json_schema(mode="serialization"))
    definitions = generated.pop("$defs")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:replicator:{name}",
        "title": title,
        **generated,
        "$defs": definitions,
    }


def status_schema_text() -> str:
    """Return the schema as the file holds it."""
    return json.dumps(status_schema(), indent=2, ensure_ascii=False) + "\n"


def _for_readers(node: Any) -> Any:
    """Leave out what pydantic makes of the names of classes and fields, line breaks, and what refuses keys of later releases."""
    if isinstance(node, list):
        return [_for_readers(one) for one in node]
    if isinstance(node, str):
        return " ".join(node.split())
    if not isinstance(node, dict):
        return node
    return {
        key: _for_readers(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "additionalProperties" and value is False)
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(status_schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(status_schema_text())
