"""The tokens that the REST API accepts. Only their hashes are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, insert, select
from sqlalchemy.exc import IntegrityError

from replicator.model.access import Scope
from replicator.model.errors import ConfigError
from replicator.state.database.engine import Database
from replicator.state.tables import TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token, without the token itself. `expires_at` None: it does not expire."""

    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None


class Tokens:
    """The part of the state store that holds tokens. Errors as those of `StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, scope: Scope, digest: str, lifetime: timedelta | None) -> TokenRecord:
        """Store a token by its hash.

        Raises:
            ConfigError: `token_exists`: there is one of that name.
        """
        try:
            with self._database.write() as connection:
                now = self._database.now(connection)
                values = {
                    "name": name,
                    "scope": scope.value,
                    "digest": digest,
                    "created_at": now,
                    "expires_at": None if lifetime is None else now + lifetime,
                }
                connection.execute(insert(TOKENS), [values])
                return _read(connection.execute(select(TOKENS).where(TOKENS.c.name == name)).one())
        except IntegrityError as error:
            raise ConfigError(
                f"A token named {name} already exists.",
                code="token_exists",
                action=f"Choose another name, or run: replicator token revoke {name}",
            ) from error

    def find(self, digest: str) -> TokenRecord | None:
        """Return the token with that hash; None if there is none, or if it has expired."""
        with self._database.read() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.digest == digest)).one_or_none()
            if row is None or (row.expires_at is not None and row.expires_at <= self._database.now(connection)):
                return None
            return _read(row)

    def all(self) -> Sequence[TokenRecord]:
        """Return all tokens, by name; those that have expired, too."""
        with self._database.read() as connection:
            return [_read(row) for row in connection.execute(select(TOKENS).order_by(TOKENS.c.name))]

    def remove(self, name: str) -> bool:
        """Remove a token; False if there is none of that name."""
        with self._database.write() as connection:
            return connection.execute(delete(TOKENS).where(TOKENS.c.name == name)).rowcount > 0


def _read(row: Row[Any]) -> TokenRecord:
    return TokenRecord(name=row.name, scope=Scope(row.scope), created_at=row.created_at, expires_at=row.expires_at)
