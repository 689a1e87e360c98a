"""Somebody in the middle who takes the names of Google's servers is told no key, no token and no assertion of ours."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pydantic import ValidationError

from replicator.model.errors import ReplicatorError, Severity
from replicator_target_bigquery.calls import clients
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import translated
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate
from replicator_testing.defaults import target_context
from replicator_testing.target_harness import UUID, items_schema

SECRETS = (b"Authorization", b"authorization", b"Bearer", b"assertion", b"PRIVATE KEY")


@pytest.fixture
def rogue_of_tls(tmp_path: Path) -> Iterator[rogue.Rogue]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    with rogue.rogue(rogue.tls_first(context)) as server:
        yield server


def config(folder: Path, endpoint: str, token_uri: str) -> BigQueryConfig:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {
        "type": "service_account", "client_email": "rep@p.iam.gserviceaccount.com", "private_key": pem, "token_uri": token_uri,
    }  # fmt: skip
    file = folder / "key.json"
    file.write_text(json.dumps(account))
    staging = {"bucket": "bucket", "endpoint": endpoint} | ({"folder": folder} if endpoint.startswith("http:") else {})
    values = {"project": "p", "location": "EU", "dataset": "d", "endpoint": endpoint, "staging": staging}
    return BigQueryConfig.model_validate({**values, "credentials": {"file": file}})


def blocking(target: BigQueryTarget) -> list[str]:
    return [str(p) for p in target.check([items_schema()]) if p.severity is Severity.BLOCKING]


def test_a_rogue_server_with_a_certificate_that_nobody_trusts_is_told_nothing(
    tmp_path: Path, rogue_of_tls: rogue.Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "READ_RETRY", clients.READ_RETRY.with_timeout(0.5))
    here = f"https://{rogue.HOST}:{rogue_of_tls.port}"
    target = BigQueryTarget(
        config(tmp_path, here, f"{here}/token"),
        target_context(replicator="contract", uuid=UUID, epoch=1, max_wait_s=0.0),
    )
    try:
        found = blocking(target)
    finally:
        target.close()
    assert found
    assert rogue_of_tls.connections
    assert [secret for secret in SECRETS if secret in rogue_of_tls.heard] == []


def test_an_address_without_tls_is_refused_unless_it_is_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="not encrypted"):
        config(tmp_path, f"http://{rogue.HOST}:9", "https://oauth2.googleapis.com/token")


def test_an_emulator_gets_no_credentials(tmp_path: Path) -> None:
    with rogue.rogue(
        rogue.http(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    ) as server:
        here = f"http://127.0.0.1:{server.port}"
        client = clients.bigquery_client(config(tmp_path, here, f"{here}/token"))
        with pytest.raises(Exception, match="403"):
            client.get_dataset("d")
        client.close()
    assert b"GET /bigquery" in server.heard
    assert [secret for secret in SECRETS if secret in server.heard] == []


def redirect(port: int, status: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nLocation: http://{rogue.HOST}:{port}/elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return head.encode()


ASKED: dict[str, Callable[[Any], object]] = {
    "read": lambda client: client.get_dataset("d", retry=None),
    "statement": lambda client: client.query("SELECT 'SECRET'", retry=None, job_retry=None),
    "file": lambda client: client.bucket("bucket").blob("secret").upload_from_string("SECRET", retry=None),
    "token": lambda client: client.get_dataset("d", retry=None),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_redirect_is_not_followed(tmp_path: Path, what: str) -> None:
    with (
        rogue.rogue(rogue.http(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")) as other,
        rogue.rogue(rogue.http(redirect(other.port, "307 Temporary Redirect"))) as server,
    ):
        here = f"http://127.0.0.1:{server.port}"
        settings = config(tmp_path, "https://bigquery.googleapis.com" if what == "token" else here, f"{here}/token")
        client = clients.storage_client(settings) if what == "file" else clients.bigquery_client(settings)
        with pytest.raises(ReplicatorError, match="redirect") as refused, translated():
            ASKED[what](client)
        client.close()
    assert refused.value.code == "target_unreachable"
    assert server.heard
    assert bytes(other.heard) == b""
