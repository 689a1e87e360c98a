"""Writes `docs/plan.schema.json` from its models: `python -m replicator.service.plan_schema docs/plan.schema.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from replicator.service.plan_document import PLAN_VERSION, PlanDocument
from replicator.service.status_schema import document_schema


def plan_schema_text() -> str:
    """Return the schema as the file holds it."""
    schema = document_schema(PlanDocument, f"plan:{PLAN_VERSION}", "What a statement would become in the target")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(plan_schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(plan_schema_text())
