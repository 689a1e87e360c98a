from __future__ import annotations

import sys
from pathlib import Path

import pytest

from replicator.observability import redaction

# With `--import-mode=importlib` a test's neighbours are found only if their folder is on the path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_secrets_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with nothing registered: another test's secret must not hide a leak here."""
    monkeypatch.setattr(redaction, "_redactor", redaction._Redactor())
