from __future__ import annotations

import pytest

from replicator.observability import redaction


@pytest.fixture(autouse=True)
def no_secrets_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with nothing registered: another test's secret must not hide a leak here."""
    monkeypatch.setattr(redaction, "_redactor", redaction._Redactor())
