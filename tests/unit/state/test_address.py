"""The state store's URL: what is refused, what is shown of it, and whom its password is told."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from replicator.model.errors import ConfigError, ReplicatorError
from replicator.observability import redact
from replicator.state.database import address
from replicator.state.database.address import parse_state_url, secrets
from replicator.state.store import StateStore
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import make_certificate

SECRET = "canary-of-the-store"


@pytest.fixture(autouse=True)
def nothing_of_libpq_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://rep:a@{SECRET}/state",
        f"postgresql://rep:a@h/{SECRET}@host/state",
        f"postgresql://rep:a@b:{SECRET}@host/state",
        f"postgresql://rep:a@b?{SECRET}=x@host/state",
        f"{SECRET}://rep@host/state",
        f"postgresql://rep@host/state?sslmode={SECRET}",
        "postgresql://rep@host/state?sslmode=allow",
        "postgresql://rep@host/state?sslmode=verify-ca",
    ],
)
def test_a_url_whose_parts_are_not_certain_is_refused_and_nothing_of_it_is_shown(text: str) -> None:
    text = text.replace("rep:a@" + SECRET, f"rep:a@{SECRET}@host")
    with pytest.raises(ConfigError) as caught:
        parse_state_url(text)
    assert caught.value.code == "invalid_state_url"
    assert SECRET not in f"{caught.value} {caught.value.action} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("text", "environ", "mode"),
    [
        ("postgresql://db.internal/x", {}, "verify-full"),
        ("postgresql://10.0.0.1/x", {}, "verify-full"),
        ("postgresql://localhost.evil.example/x", {}, "verify-full"),
        ("postgresql:///x?host=127.0.0.1&host=db.internal", {}, "verify-full"),
        ("postgresql:///x?host=127.0.0.1,db.internal", {}, "verify-full"),
        ("postgresql:///x?host=localhost:5432&host=localhost:5433", {}, "prefer"),
        ("postgresql:///x?host=localhost&hostaddr=10.0.0.1", {}, "verify-full"),
        ("postgresql://localhost/x?service=far", {}, "verify-full"),
        ("postgresql://localhost/x", {"PGSERVICE": "far"}, "verify-full"),
        ("postgresql://localhost/x", {"PGHOSTADDR": "10.0.0.1"}, "verify-full"),
        ("postgresql:///x", {"PGHOST": "db.internal"}, "verify-full"),
        ("postgresql:///x", {"PGHOST": "localhost"}, "prefer"),
        ("postgresql://localhost/x", {"PGHOST": "db.internal"}, "prefer"),
        ("postgresql://127.1.2.3/x", {}, "prefer"),
        ("postgresql://[::1]/x", {}, "prefer"),
        ("postgresql:///x?host=/run/postgresql", {}, "disable"),
        ("postgresql:///x", {}, "disable"),
        ("postgresql://db.internal/x?sslmode=disable", {}, "disable"),
        ("postgresql://localhost/x?sslmode=verify-full", {"PGSSLMODE": "disable"}, "verify-full"),
        ("postgresql://db.internal/x", {"PGSSLMODE": "disable"}, "verify-full"),
    ],
)
def test_a_store_that_is_not_on_this_machine_must_prove_who_it_is(
    text: str, environ: Mapping[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    url = parse_state_url(text)
    found = address.protection(url)
    assert (found["sslmode"], found["gssencmode"]) == (mode, "disable")
    assert address.demands_tls(url) is (mode == "verify-full")
    assert ("sslrootcert" in found) is (mode == "verify-full")


def test_the_authorities_of_the_url_hold() -> None:
    url = parse_state_url("postgresql://h/x?sslmode=verify-ca&sslrootcert=/ca.pem")
    assert "sslrootcert" not in address.protection(url)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("mode", ["", "?sslmode=require", "?sslmode=prefer"])
def test_a_rogue_server_gets_the_store_s_password_only_where_the_url_says_so(
    tmp_path: Path, is_encrypted: bool, mode: str
) -> None:
    context = None
    if is_encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(tmp_path, "rogue"))
    with rogue.rogue(rogue.postgresql(context)) as server, pytest.raises(ReplicatorError) as caught:
        StateStore(f"postgresql://rep:{SECRET}@{rogue.HOST}:{server.port}/state{mode}", busy_timeout_s=5)
    assert server.connections
    asked_for = mode == "?sslmode=prefer" or (mode == "?sslmode=require" and is_encrypted)
    assert (SECRET.encode() in server.heard) is asked_for
    assert f"postgresql://rep@{rogue.HOST}:{server.port}/state:" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert ("sslrootcert=" in str(caught.value)) is not asked_for
    assert redact(SECRET) == "***"


@pytest.mark.parametrize(
    "option", ["password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"]
)
def test_every_secret_among_the_options_is_masked(option: str) -> None:
    assert secrets(parse_state_url(f"postgresql://u@h/d?{option}=canary-51c&application_name=me")) == ["canary-51c"]
