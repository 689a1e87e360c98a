from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from replicator.config import Secret
from replicator.model.errors import ConfigError
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.driver import settings_of, write_freetds_conf
from replicator_testbed.sqlserver.certificates import Authority

MICROSOFT = "ODBC Driver 18 for SQL Server"


def config(**changed: Any) -> SqlServerConfig:
    return SqlServerConfig(
        **{"host": "db.internal", "user": "r", "password": Secret("pw"), "database": "shop", **changed}
    )


def test_freetds_verifies_certificate_and_name_unless_told_otherwise(tmp_path: Path) -> None:
    ca = Authority.make(tmp_path).certificate
    conf = settings_of(config(tls_ca=ca)).freetds_conf
    assert conf is not None
    assert "encryption = require\n" in conf
    assert f"ca file = {ca}\n" in conf
    assert "check certificate hostname = yes\n" in conf


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("shop.database.windows.net", "shop.database.windows.net"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1", "replicator"),
        ("Global", "replicator"),
        ("a" * 128, "a" * 128),
        ("a" * 129, "replicator"),
    ],
)
def test_freetds_calls_the_server_by_its_host_where_a_section_can(host: str, name: str) -> None:
    settings = settings_of(config(host=host))
    assert settings.freetds_conf is not None
    assert settings.freetds_conf.startswith(f"[{name}]\n\thost = {host}\n")
    assert f"SERVERNAME={{{name}}};" in settings.connection_string


def test_microsofts_driver_restores_no_connection_by_itself() -> None:
    """What it restored would not have been asked which database it has reached."""
    assert "ConnectRetryCount={0}" in settings_of(config(driver=MICROSOFT)).connection_string


def test_without_a_file_freetds_trusts_what_the_system_trusts() -> None:
    conf = settings_of(config()).freetds_conf
    assert conf is not None
    assert "ca file = /" in conf


@pytest.mark.parametrize(
    ("tls", "said"), [("verify-ca", "check certificate hostname = no\n"), ("disable", "encryption = off\n")]
)
def test_weaker_modes_are_what_they_say(tls: str, said: str, tmp_path: Path) -> None:
    conf = settings_of(config(tls=tls, tls_ca=Authority.make(tmp_path).certificate)).freetds_conf
    assert conf is not None
    assert said in conf


@pytest.mark.parametrize("tls", [None, "verify-ca"])
@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("", "no certificate in PEM"), ("no certificate\n", "no certificate in PEM")],
)
def test_a_file_without_authorities_is_refused(text: str | None, said: str, tls: str | None, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    if text is not None:
        ca.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        settings_of(config(tls=tls, tls_ca=ca))
    assert caught.value.code == "tls_not_verifiable"
    assert caught.value.message.startswith(f"source.tls_ca: {ca} ")


def test_where_nothing_is_verified_the_file_is_not_needed(tmp_path: Path) -> None:
    conf = settings_of(config(tls="require", tls_ca=tmp_path / "ca.pem")).freetds_conf
    assert conf is not None
    assert "ca file" not in conf


def test_microsofts_driver_verifies_by_default() -> None:
    text = settings_of(config(driver=MICROSOFT)).connection_string
    assert "Encrypt={yes}" in text
    assert "TrustServerCertificate={no}" in text
    assert "SERVER={tcp:db.internal,1433}" in text


@pytest.mark.parametrize("tls", [None, "verify-ca"])
def test_what_microsofts_driver_cannot_verify_is_refused(tls: str | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(config(driver=MICROSOFT, tls=tls, tls_ca=tmp_path / "ca.pem"))
    assert caught.value.code == "tls_not_verifiable"


def test_nothing_in_a_password_ends_it() -> None:
    text = settings_of(
        SqlServerConfig(host="h", user="u", password=Secret("a}b;Encrypt=no"), database="d")
    ).connection_string
    assert "PWD={a}b;Encrypt=no};" in text


@pytest.mark.parametrize(
    "changed", [{"host": "a\nb"}, {"host": "a;b"}, {"host": "a#b"}, {"tls_ca": "/ca\nencryption = off"}]
)
def test_nothing_adds_settings_to_freetds(changed: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="FreeTDS cannot read"):
        SqlServerConfig(**{"host": "h", "user": "u", "database": "d", **changed})


@pytest.mark.parametrize("changed", [{"tls_cert": "/c"}, {"tls_key": "/k"}, {"tls_cert": "/c", "tls_key": "/k"}])
def test_a_clients_certificate_is_refused_without_asking_for_the_other_file(changed: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**changed)
    assert {error["loc"] for error in caught.value.errors()} == {(name,) for name in changed}
    assert {error["msg"].partition(";")[0] for error in caught.value.errors()} == {
        "Value error, SQL Server knows no accounts by certificate over ODBC"
    }


@pytest.mark.parametrize("driver", ["a;b", "{x}", "a=b", ""])
def test_a_driver_cannot_add_settings(driver: str) -> None:
    with pytest.raises(ValueError, match="driver"):
        config(driver=driver)


def test_the_file_is_its_owners(tmp_path: Path) -> None:
    path = write_freetds_conf("[replicator]\n", tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "[replicator]\n"
