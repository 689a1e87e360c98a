"""Hosts of connections: loopback addresses, and the certificate authorities that this system trusts."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Final

# Where distributions keep the certificate authorities they trust, tried in order if Python's own default is not there.
_SYSTEM_AUTHORITIES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def is_loopback(host: str) -> bool:
    """Return whether the host can only be this machine: `localhost`, 127.0.0.0/8, ::1. No look-up: a name may resolve to anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def system_authorities() -> str:
    """Return the file of certificate authorities that this system trusts, or `system`, which leaves the search to libpq."""
    default = ssl.get_default_verify_paths().cafile
    for path in (default, *_SYSTEM_AUTHORITIES):
        if path is not None and Path(path).is_file():
            return path
    return "system"
