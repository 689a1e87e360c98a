"""Settings of an ODBC driver: the connection string, and for FreeTDS a file of its own.

FreeTDS encrypts without looking at the certificate unless its own file of settings names authorities, and compares no names unless that
file says so. So it gets a private file with one server in it, which the environment variable FREETDSCONF names.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.model.errors import ConfigError
from replicator.plugins.kit.relational import TlsMode
from replicator_source_sqlserver.config import SqlServerConfig

_SECTION: Final = "replicator"
_SECTION_OF_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""A host that FreeTDS takes for a section of its file as it stands, and that the protocol takes for a server's name."""
APPLICATION: Final = "replicator"
_SETTINGS: Final = {"DATABASE": "source.database", "UID": "source.user", "PWD": "source.password"}
_ENCRYPTION: Final[Mapping[TlsMode, str]] = {
    "disable": "off",
    "prefer": "request",
    "require": "require",
    "verify-ca": "require",
    "verify-full": "require",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of one connection. `freetds_conf` is the text of FreeTDS's file; None for other drivers."""

    connection_string: str
    freetds_conf: str | None = None


def settings_of(config: SqlServerConfig) -> DriverSettings:
    """Return the driver's settings for a configuration.

    Raises:
        ConfigError: `tls_not_verifiable`: the driver cannot do what `tls` asks for, or cannot use `tls_ca`; `driver_cannot_be_told`.
    """
    account = {
        "DRIVER": config.driver,
        "DATABASE": config.database,
        "UID": config.user,
        "PWD": config.password.reveal() if config.password is not None else "",
        "APP": APPLICATION,
    }
    if config.is_freetds:
        return DriverSettings(
            connection_string=_freetds_string({**account, "SERVERNAME": _section(config)}),
            freetds_conf=_freetds_conf(config),
        )
    return DriverSettings(connection_string=_microsoft_string({**account, **_microsoft(config)}))


def _microsoft_string(parts: Mapping[str, str]) -> str:
    """Put each value in braces, in which a closing brace is doubled: nothing else in it has a meaning."""
    return ";".join(f"{name}={{{value.replace('}', '}}')}}}" for name, value in parts.items())


def _freetds_string(parts: Mapping[str, str]) -> str:
    """Put each value in braces. FreeTDS takes them to end at the first `};`, doubles nothing, and needs a semicolon at the very end."""
    for name, value in parts.items():
        if "};" in value:
            raise ConfigError(
                f"source: FreeTDS cannot be told {_SETTINGS.get(name, name)}: it has a closing brace and a semicolon.",
                code="driver_cannot_be_told",
                action="Change the value in the server, or use Microsoft's driver.",
            )
    return "".join(f"{name}={{{value}}};" for name, value in parts.items())


def _section(config: SqlServerConfig) -> str:
    """Return the section's name, which FreeTDS sends as the server's: by it Azure knows which one is meant."""
    is_usable = _SECTION_OF_HOST.fullmatch(config.host) and config.host.lower() != "global"
    return config.host if is_usable else _SECTION


def _freetds_conf(config: SqlServerConfig) -> str:
    settings = {
        "host": config.host,
        "port": str(config.port),
        "tds version": "7.4",
        "client charset": "UTF-8",
        "text size": "2147483647",
        "encryption": _ENCRYPTION[config.tls_mode],
        "connect timeout": str(max(1, round(config.connect_timeout.total_seconds()))),
    }
    if config.tls_mode in {"verify-ca", "verify-full"}:
        settings |= {
            "ca file": str(_system_authorities() if config.tls_ca is None else _readable(config.tls_ca)),
            "check certificate hostname": "yes" if config.tls_mode == "verify-full" else "no",
        }
    return f"[{_section(config)}]\n" + "".join(f"\t{name} = {value}\n" for name, value in settings.items())


def _readable(authorities: Path) -> Path:
    """Return the file, which was read once: of one that it cannot use FreeTDS only says that there is no connection."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authorities)
    except OSError as error:
        reason = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"source.tls_ca: {authorities} cannot be used: {reason}.",
            code="tls_not_verifiable",
            action="Set `source.tls_ca` to a PEM file of the authority of the server's certificate, which Replicator may read.",
        ) from error
    return authorities


def _system_authorities() -> Path:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None:
        raise ConfigError(
            "source.tls: this system has no file of certificate authorities.",
            code="tls_not_verifiable",
            action="Set `source.tls_ca` to the authority of the server's certificate.",
        )
    return Path(paths.cafile)


def _microsoft(config: SqlServerConfig) -> Mapping[str, str]:
    """Return the settings of Microsoft's driver, which trusts the authorities of the system, and names no file of its own."""
    # A connection that the driver restored by itself would not have been asked which database it has reached.
    server = {"SERVER": f"tcp:{config.host},{config.port}", "ConnectRetryCount": "0"}
    if config.tls_mode == "disable":
        return {**server, "Encrypt": "no"}
    if config.tls_mode == "prefer":
        return {**server, "Encrypt": "optional", "TrustServerCertificate": "yes"}
    if config.tls_mode == "require":
        return {**server, "Encrypt": "yes", "TrustServerCertificate": "yes"}
    if config.tls_ca is not None or config.tls_mode == "verify-ca":
        raise ConfigError(
            f"source.tls: Microsoft's driver takes no file of certificate authorities, which {config.tls_mode} with tls_ca asks for.",
            code="tls_not_verifiable",
            action="Let the system trust the authority and leave `source.tls_ca` out, or use FreeTDS.",
        )
    return {**server, "Encrypt": "yes", "TrustServerCertificate": "no"}


def write_freetds_conf(text: str, folder: Path) -> Path:
    """Write FreeTDS's file for its owner only; it has no secret, but its content is trusted."""
    path = folder / "freetds.conf"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    return path
