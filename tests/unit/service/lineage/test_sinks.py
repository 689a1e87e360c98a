"""The server of lineage is told its key only if it proves who it is, and no failure shows its address."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from pydantic import ValidationError

from replicator.config import LineageConfig, Secret
from replicator.service.lineage.sinks import _sent, sinks
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate

KEY = "canary-of-the-lineage-key"


def test_a_key_is_not_sent_in_clear_to_another_host() -> None:
    with pytest.raises(ValidationError, match="must begin with https"):
        LineageConfig(url="http://marquez.example", api_key=Secret(KEY))
    assert LineageConfig(url="http://localhost:5000", api_key=Secret(KEY)).url
    assert LineageConfig(url="http://marquez.example").url


def test_a_rogue_server_is_not_told_the_key_and_its_address_is_not_shown(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    with rogue.rogue(rogue.tls_first(context)) as server:
        config = LineageConfig(url=f"https://{rogue.HOST}:{server.port}/secret-path", api_key=Secret(KEY), timeout="5s")
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

        run = Run(runId="01890a5d-ac96-774b-bcce-b302099a8057")
        event = RunEvent(
            eventTime="2026-01-31T12:00:00Z", run=run, job=Job(namespace="n", name="j"), producer="https://example.org",
            eventType=RunState.START,
        )  # fmt: skip
        (sink,) = sinks(config)
        said = _sent(sink, event, "{}")
    assert said is not None
    assert server.connections
    assert KEY.encode() not in server.heard
    assert "certificate verify failed" in said
    for part in (rogue.HOST, "secret-path", str(server.port), KEY):
        assert part not in said
