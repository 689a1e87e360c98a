"""Writes the JSON Schemas of the documents that commands print: `python -m replicator.service.schemas docs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema

from replicator.model.documents.status import VERSION, ReplicatorStatus, StatusModel
from replicator.service.history.document import HISTORY_VERSION, HistoryDocument
from replicator.service.plan.ddl_document import PLAN_VERSION, PlanDocument
from replicator.service.plan.start_document import START_PLAN_VERSION, StartPlanDocument
from replicator.service.verify.document import VERSION as VERIFY_VERSION
from replicator.service.verify.document import VerifyDocument

DOCUMENTS: Final[dict[str, tuple[type[StatusModel], int, str]]] = {
    "history": (HistoryDocument, HISTORY_VERSION, "History of a replicator's tables"),
    "plan": (PlanDocument, PLAN_VERSION, "Effect of a statement on the target"),
    "start-plan": (StartPlanDocument, START_PLAN_VERSION, "Forecast of a start"),
    "status": (ReplicatorStatus, VERSION, "Status of a replicator"),
    "verify": (VerifyDocument, VERIFY_VERSION, "Comparison of source and target"),
}
"""Names of documents → their model, version and title."""


_DEFS: Final = "#/$defs/"


def document_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document of `DOCUMENTS`.

    Readers may meet keys that a later release added, so the schema allows them, although the models do not. Commands print several
    statuses as an array, which `$defs` describes as `list`.
    """
    model, version, title = DOCUMENTS[name]
    made = model.model_json_schema(mode="serialization")
    titles = {name: one.get("title", name) for name, one in made["$defs"].items()}
    generated = _for_readers(made, titles)
    definitions = dict(sorted((titles[name], one) for name, one in generated.pop("$defs").items()))
    if name == "status":
        several = {"description": "Several replicators, by name.", "type": "array", "items": {"$ref": "#"}}
        definitions = {"list": several, **definitions}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:replicator:{name}:{version}",
        "title": title,
        **generated,
        "$defs": definitions,
    }


def schema_text(name: str) -> str:
    """Return the schema of a document as its file holds it."""
    return json.dumps(document_schema(name), indent=2, ensure_ascii=False) + "\n"


def _for_readers(node: Any, titles: Mapping[str, str]) -> Any:
    """Leave out titles, line breaks, and rules that refuse later releases' keys; a definition is called by its title, not by its class."""
    if isinstance(node, list):
        return [_for_readers(one, titles) for one in node]
    if isinstance(node, str):
        name = node.removeprefix(_DEFS)
        return f"{_DEFS}{titles[name]}" if name != node else " ".join(node.split())
    if not isinstance(node, dict):
        return node
    return {
        key: _for_readers(value, titles)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "additionalProperties" and value is False)
    }


if __name__ == "__main__":
    for one in DOCUMENTS:
        (Path(sys.argv[1]) / f"{one}.schema.json").write_text(schema_text(one), encoding="utf-8")
