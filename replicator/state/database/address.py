"""The state store's URL: its allowed forms, its location, and the protection of its connections.

A URL on PostgreSQL most often has a password. Nothing of it is shown except user, host and database, and those only once it is clear
where the password ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from replicator.model.errors import ConfigError
from replicator.model.hosts import is_loopback, system_authorities
from replicator.model.redaction import is_sensitive_name

TLS_MODES: Final = ("disable", "prefer", "require", "verify-ca", "verify-full")
# Of SCRAM, the keys are as good as the password.
_KEYS: Final = ("scram_client_key", "scram_server_key")


def parse_state_url(text: str) -> URL:
    """Read a state store's URL: `sqlite:///path` or `postgresql://…`.

    Raises:
        ConfigError: `invalid_state_url`. The message never repeats the text, which may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _invalid("it is not a URL") from None  # its message quotes the URL
    if url.drivername in {"sqlite", "sqlite+pysqlite"}:
        if not url.database or url.database == ":memory:" or url.query:
            raise _invalid("a SQLite store is a file without options")
        return url.set(drivername="sqlite+pysqlite")
    if url.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        if text.count("@") > 1:
            # It is unknown which of them ends the password, and text after the wrong one would be shown as the host.
            raise _invalid("it has more than one @; write each @ of the user's name and password as %40")
        _check_mode(url)
        return url.set(drivername="postgresql+psycopg")
    raise _invalid("it begins with neither sqlite: nor postgresql:")


def is_server(url: URL) -> bool:
    """Return whether the store is a server, which workers with homes of their own can share."""
    return url.get_backend_name() == "postgresql"


def is_shared(url: URL) -> bool:
    """Return whether workers on several hosts may use the store: PostgreSQL, unless it is reached over loopback or a local socket."""
    return is_server(url) and not all(_is_socket(host) or is_loopback(host) for host in _hosts(url))


def location(url: URL) -> str:
    """Return the store's name in messages: without password and options."""
    if not is_server(url):
        return str(Path(url.database or "").absolute())
    return URL.create("postgresql", url.username, None, url.host, url.port, url.database).render_as_string()


def secrets(url: URL) -> Sequence[str]:
    """Return the parts of a URL that must not be shown."""
    query = (value for name, value in url.query.items() if is_sensitive_name(name) or name in _KEYS)
    return [value for value in (url.password, *query) if isinstance(value, str) and value]


def protection(url: URL) -> Mapping[str, str]:
    """Return libpq's parameters that protect the connection, by the rule of the sources.

    The server must prove its identity (`verify-full`) unless it can only be this machine, or the URL says otherwise (`sslmode=`).
    """
    mode = _mode(url)
    # Encryption by Kerberos would go around what `sslmode` asks for.
    parameters = {"sslmode": mode, "gssencmode": "disable"}
    if mode.startswith("verify") and "sslrootcert" not in url.query:
        parameters["sslrootcert"] = system_authorities()
    return parameters


def demands_tls(url: URL) -> bool:
    """Return whether a connection without TLS must not be used."""
    return _mode(url) not in ("disable", "prefer")


def _mode(url: URL) -> str:
    given = url.query.get("sslmode")
    if given is not None:
        return str(given)
    hosts = _hosts(url)
    if all(_is_socket(host) for host in hosts):
        return "disable"
    return "prefer" if all(_is_socket(host) or is_loopback(host) for host in hosts) else "verify-full"


def _check_mode(url: URL) -> None:
    mode = url.query.get("sslmode")
    if mode is not None and mode not in TLS_MODES:
        raise _invalid(f"sslmode must be one of {', '.join(TLS_MODES)}")
    if mode == "verify-ca" and "sslrootcert" not in url.query:
        raise _invalid("sslmode=verify-ca needs sslrootcert=; with the system's authorities only verify-full is safe")


def _hosts(url: URL) -> Sequence[str]:
    """Return the hosts that libpq connects to, as far as known here; a service may name any host, and is not on this machine."""
    if "service" in url.query or "PGSERVICE" in os.environ:
        return ["a service"]
    given: list[str] = []
    for name, variable in (("hostaddr", "PGHOSTADDR"), ("host", "PGHOST")):
        value = url.query.get(name)
        parts = [value] if isinstance(value, str) else list(value or ())
        if name == "host" and url.host and not parts:
            parts = [url.host]
        given = [host for part in parts for host in part.split(",")] or os.environ.get(variable, "").split(",")
        if any(given):
            break
    return [host if _is_socket(host) or is_loopback(host) else _without_port(host) for host in given]


def _without_port(host: str) -> str:
    """Remove the port: of several hosts each may have one, as in `host=a:5432`."""
    name, colon, port = host.rpartition(":")
    return name.strip("[]") if colon and port.isdigit() and (":" not in name or name.startswith("[")) else host


def _is_socket(host: str) -> bool:
    return host == "" or host.startswith(("/", "@"))


def _invalid(fact: str) -> ConfigError:
    return ConfigError(
        f"The state store's URL cannot be used: {fact}.",
        code="invalid_state_url",
        action="Set REPLICATOR_STATE_URL to `sqlite:////path/of/state.db` or `postgresql://user@host/database`.",
    )
