"""`serve --listen`: address of the REST API, and its demands on callers. Decided before anything is started."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from pathlib import Path
from socket import AF_INET, AF_INET6, AI_PASSIVE, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from replicator.model.errors import ConfigError
from replicator.model.hosts import is_loopback

_NEEDED: Final = ("fastapi", "h11", "jinja2", "prometheus_client", "uvicorn")
CONNECTIONS_PER_CLIENT: Final = 64
_BACKLOG: Final = 128
_PORT_MAX: Final = 65_535


class Listening(BaseModel):
    """Options of the server's socket. The server's process gets them as JSON.

    Attributes:
        host: An address of this host, or `localhost`.
        allowed_hosts: Names by which callers may address the server, in addition to IP addresses and `localhost`.
        connections_per_client: Connections that an address may have open; with a proxy, requests that a token may have under way.
        needs_token: Each request must have a token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    requests_per_second: int = 100
    connections_per_client: int = CONNECTIONS_PER_CLIENT
    needs_token: bool = False
    is_behind_proxy: bool = False

    @classmethod
    def read(
        cls,
        address: str,
        *,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        behind_proxy: bool = False,
        allowed_hosts: tuple[str, ...] = (),
        requests_per_second: int = 100,
        connections_per_client: int = CONNECTIONS_PER_CLIENT,
    ) -> Self:
        """Read the options of `serve`.

        Raises:
            ConfigError: `missing_extra`, `invalid_listen`, `tls_required`, `tls_unusable`.
        """
        _check_extra()
        host, port = _address(address)
        if (tls_cert is None) != (tls_key is None):
            raise _no_tls("--tls-cert and --tls-key belong together.")
        is_local = is_loopback(host)
        if not is_local and tls_cert is None and not behind_proxy:
            raise ConfigError(
                f"{host} can be reached from other hosts, so TLS is needed.",
                code="tls_required",
                action="Add --tls-cert and --tls-key; or --behind-proxy, if a proxy on the way adds TLS; or listen on 127.0.0.1.",
            )
        if tls_cert is not None and tls_key is not None:
            _check_tls(tls_cert, tls_key)
        return cls(
            host=host,
            port=port,
            tls_cert=None if tls_cert is None else tls_cert.absolute(),
            tls_key=None if tls_key is None else tls_key.absolute(),
            allowed_hosts=tuple(name.lower().rstrip(".") for name in allowed_hosts),
            requests_per_second=requests_per_second,
            connections_per_client=connections_per_client,
            is_behind_proxy=behind_proxy,
            # With a proxy in front a caller is not local, wherever the proxy is.
            needs_token=not is_local or behind_proxy,
        )

    def bind(self) -> socket:
        """Return the socket that the server will accept connections from.

        Raises:
            ConfigError: `cannot_listen`: the port is taken, or the address is not one of this host.
        """
        try:
            family, *_, address = getaddrinfo(self.host, self.port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
            listener = socket(family, SOCK_STREAM)
            try:
                listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise ConfigError(
                f"{self.host}:{self.port} cannot be listened on: {error.strerror}.",
                code="cannot_listen",
                action="Choose another port, or end the process that uses it: ss -ltnp",
            ) from error
        assert family in (AF_INET, AF_INET6)
        return listener


def _check_extra() -> None:
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"--listen needs packages that are not installed: {', '.join(missing)}.",
            code="missing_extra",
            action="Run: pip install 'replicator[web]'",
        )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_host = bool(host) and (is_bracketed or ":" not in host)
    if not colon or not is_host or not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise ConfigError(
            f"--listen {text} is not an address and a port.",
            code="invalid_listen",
            action="Write, for example, 127.0.0.1:8410 or [::1]:8410.",
        )
    return host, int(port)


def _check_tls(cert: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        # An SSLError is an OSError.
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise _no_tls(f"{cert} and {key} cannot be used for TLS: {reason}.") from error


def _no_password() -> str:
    """Raise, because OpenSSL would otherwise ask at the terminal."""
    raise ValueError("the key is encrypted")


def _no_tls(message: str) -> ConfigError:
    return ConfigError(
        message,
        code="tls_unusable",
        action="Give a certificate with its chain, and its private key without a password, both as PEM files.",
    )
