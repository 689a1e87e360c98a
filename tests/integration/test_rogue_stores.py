"""A server that takes the name of an object store is told neither the key nor a token, unless the host's operator says `http://`."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from replicator.journal.files import JournalFolder
from replicator.model.errors import JournalUnavailableError
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate

KEY, TOKEN = "canary-of-the-secret-key", "canary-of-the-session-token"


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_rogue_store_is_not_told_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with rogue.rogue(rogue.tls_first(context, refusal) if scheme == "https" else rogue.http(refusal)) as server:
        for name, value in {
            "AWS_ENDPOINT_URL": f"{scheme}://{rogue.HOST}:{server.port}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_SESSION_TOKEN": TOKEN,
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(JournalUnavailableError) as caught:
            JournalFolder("s3://bucket/journal").get("x")
    assert server.connections
    assert KEY.encode() not in server.heard
    assert (TOKEN.encode() in server.heard) is (scheme == "http")
    assert KEY not in str(caught.value)
    assert TOKEN not in str(caught.value)
