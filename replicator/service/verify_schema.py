"""Writes `docs/verify.schema.json` from its models: `python -m replicator.service.verify_schema docs/verify.schema.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from replicator.service.status_schema import document_schema
from replicator.service.verify_document import VERSION, VerifyDocument


def verify_schema_text() -> str:
    """Return the schema as the file holds it."""
    schema = document_schema(VerifyDocument, f"verify:{VERSION}", "Whether both sides are equal")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(verify_schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(verify_schema_text())
