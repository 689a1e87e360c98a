"""`token create|list|revoke`, and the owner of a token."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from replicator.model.access import Scope
from replicator.model.errors import ConfigError
from replicator.state.store import StateStore
from replicator.state.tokens import TokenRecord

PREFIX: Final = "replicator_"
"""Prefix by which scanners for leaked secrets, and people, recognise a token."""
_BYTES: Final = 32
_TOKEN: Final = re.compile(r"replicator_[A-Za-z0-9_-]{43}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def create(store: StateStore, name: str, scope: Scope, lifetime: timedelta | None) -> tuple[TokenRecord, str]:
    """Create a token. Its text is returned this once and stored nowhere.

    Raises:
        ConfigError: `invalid_token_name`, `token_exists`.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "The name of a token has 1 to 63 characters: a-z, 0-9, _ and -, the first one a letter or a digit.",
            code="invalid_token_name",
            action="Choose another name.",
        )
    text = PREFIX + secrets.token_urlsafe(_BYTES)
    return store.tokens.add(name, scope, digest(text), lifetime), text


def find(store: StateStore, text: str) -> TokenRecord | None:
    """Return the token of that text, if it is valid now."""
    return store.tokens.find(digest(text)) if _TOKEN.fullmatch(text) else None


def everything(store: StateStore) -> Sequence[TokenRecord]:
    """Return all tokens, by name."""
    return store.tokens.all()


def revoke(store: StateStore, name: str) -> None:
    """Make a token invalid, at once.

    Raises:
        ConfigError: `unknown_token`.
    """
    if not store.tokens.remove(name):
        known = ", ".join(token.name for token in store.tokens.all()) or "none"
        raise ConfigError(f"There is no token called {name!r}.", code="unknown_token", action=f"Known here: {known}.")


def digest(text: str) -> str:
    """Return the hash stored of a token. It holds 256 random bits: neither salt nor a slow hash would make guessing it harder."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
