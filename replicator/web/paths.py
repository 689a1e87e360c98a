"""Paths of the dashboard's pages, by their text: a first look. The router decides which route a path leads to (`demands.py`)."""

from __future__ import annotations

from typing import Final

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
NEW: Final = "/new"
STATIC: Final = "/static/"
_PAGES: Final = ("/replicators/", STATIC)
_EXACT: Final = frozenset({"/", LOGIN, LOGOUT, NEW})


def is_page(path: str) -> bool:
    """Return whether a browser asks for it: it answers in HTML, takes forms, and the token may come in a cookie."""
    return path in _EXACT or path.startswith(_PAGES)


def has_no_token(path: str) -> bool:
    """Return whether it is needed without a valid token: the page that asks for one, its style, and the way out."""
    return path in (LOGIN, LOGOUT) or path.startswith(STATIC)
