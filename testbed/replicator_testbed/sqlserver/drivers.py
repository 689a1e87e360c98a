"""The two ODBC drivers that tests speak to the model with: FreeTDS, which Debian has, and Microsoft's, which a Python package brings."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replicator_testbed.scratch_servers import ServerProgramsNotFoundError

if TYPE_CHECKING:
    import pyodbc

_FREETDS_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu/odbc",
    "/usr/lib/aarch64-linux-gnu/odbc",
    "/usr/lib64",
    "/usr/local/lib",
)
LOGIN_SECONDS: Final = 60


class Driver(StrEnum):
    """A driver."""

    FREETDS = "freetds"
    MICROSOFT = "microsoft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is, and who connects."""

    host: str
    port: int
    user: str
    password: str
    database: str


def library(driver: Driver) -> Path:
    """The driver's shared library.

    Raises:
        ServerProgramsNotFoundError: It is not installed.
    """
    if driver is Driver.FREETDS:
        for folder in _FREETDS_FOLDERS:
            if (found := Path(folder) / "libtdsodbc.so").exists():
                return found
        raise ServerProgramsNotFoundError("FreeTDS' ODBC driver is not installed: Debian's package is tdsodbc.")
    package = importlib.resources.files("mssql_python_odbc")
    with importlib.resources.as_file(package / "libs" / "linux" / "debian_ubuntu") as programs:
        libraries = sorted(programs.glob("*/lib/libmsodbcsql-*.so*"))
    if not libraries:
        raise ServerProgramsNotFoundError("Microsoft's ODBC driver is not in the package mssql-python-odbc.")
    return libraries[-1]


def connection_string(driver: Driver, address: Address, options: Mapping[str, str] | None = None) -> str:
    """What `pyodbc.connect` takes; `options` are the driver's own, an empty one removes a default."""
    own: dict[str, str] = {"DRIVER": str(library(driver)), "UID": address.user, "DATABASE": address.database}
    if driver is Driver.FREETDS:
        own |= {"SERVER": address.host, "PORT": str(address.port), "TDS_Version": "7.4", "ClientCharset": "UTF-8"}
    else:
        own |= {"SERVER": f"{address.host},{address.port}", "Encrypt": "no"}
    # No braces: FreeTDS takes one at the end of the string for a part of the password.
    own |= {"PWD": address.password, **(options or {})}
    return ";".join(f"{name}={value}" for name, value in own.items() if value)


def connect(
    driver: Driver, address: Address, *, options: Mapping[str, str] | None = None, **more: Any
) -> pyodbc.Connection:
    """Connect by pyodbc: autocommit unless `more` says otherwise."""
    import pyodbc

    # The drivers are named by path, and a pool would keep connections of a test for the next one.
    pyodbc.pooling = False
    return pyodbc.connect(
        connection_string(driver, address, options), **{"autocommit": True, "timeout": LOGIN_SECONDS, **more}
    )
