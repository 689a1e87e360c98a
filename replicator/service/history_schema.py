"""Writes `docs/history.schema.json` from its models: `python -m replicator.service.history_schema docs/history.schema.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from replicator.service.history_document import HISTORY_VERSION, HistoryDocument
from replicator.service.status_schema import document_schema


def history_schema_text() -> str:
    """Return the schema as the file holds it."""
    schema = document_schema(HistoryDocument, f"history:{HISTORY_VERSION}", "History of a replicator's tables")
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(history_schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(history_schema_text())
