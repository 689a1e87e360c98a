"""Writes `docs/start-plan.schema.json` from its models: `python -m replicator.service.start_plan_schema docs/start-plan.schema.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from replicator.service.start_plan_document import START_PLAN_VERSION, StartPlanDocument
from replicator.service.status_schema import document_schema


def start_plan_schema_text() -> str:
    """Return the schema as the file holds it."""
    schema = document_schema(StartPlanDocument, f"start-plan:{START_PLAN_VERSION}", "What a start will take")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(start_plan_schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(start_plan_schema_text())
