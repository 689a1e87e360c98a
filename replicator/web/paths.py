"""Which paths are pages of the dashboard. All others speak JSON."""

from __future__ import annotations

from typing import Final

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
NEW: Final = "/new"
STATIC: Final = "/static/"
VALIDATE: Final = "/api/v1/validate"
_REPLICATORS: Final = "/api/v1/replicators/"
_PAGES: Final = ("/replicators/", STATIC)
_EXACT: Final = frozenset({"/", LOGIN, LOGOUT, NEW})


def is_page(path: str) -> bool:
    """Whether a browser asks for it: it answers in HTML, takes forms, and the token may come in a cookie."""
    return path in _EXACT or path.startswith(_PAGES)


def has_no_token(path: str) -> bool:
    """Whether it is needed without a valid token: the page that asks for one, its style, and the way out."""
    return path in (LOGIN, LOGOUT) or path.startswith(STATIC)


def takes_configuration(method: str, path: str) -> bool:
    """Whether it takes a configuration, in YAML or JSON."""
    return (method == "POST" and path == VALIDATE) or (method == "PUT" and path.startswith(_REPLICATORS))


def configures(method: str, path: str) -> bool:
    """Whether it takes a configuration in any form, which needs a scope of its own."""
    return takes_configuration(method, path) or (method == "POST" and path == NEW)
