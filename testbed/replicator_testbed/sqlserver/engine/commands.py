"""Statements that are no queries: SET, transactions, variables, and what says or waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.engine import tables
from replicator_testbed.sqlserver.engine.batches import Statement
from replicator_testbed.sqlserver.engine.ddl import Cursor, sql_type
from replicator_testbed.sqlserver.engine.permissions import EVERYWHERE
from replicator_testbed.sqlserver.engine.procedures import execute
from replicator_testbed.sqlserver.engine.settings import (
    LOCK_TIMEOUT_NONE,
    TEXT_BYTES_MAX,
    USUAL,
    WITHOUT_EFFECT,
    Isolation,
    priority,
)
from replicator_testbed.sqlserver.outcomes import Bound, Count, Notice, Outcome, SqlError

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.session import Session

_DELAY: Final = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")
_DECLARED: Final = 3
"""DECLARE, the name, and at least one word of the type."""


def _set(session: Session, statement: Statement) -> list[Outcome]:  # noqa: C901, PLR0912 - one case for each setting
    words = [token.word or token.text for token in statement.tokens]
    if words[1].startswith("@"):
        if len(words) < 4 or words[2] != "=":
            raise SqlError(102, "Incorrect syntax near 'SET'.", severity=15)
        session.assign(words[1], statement.after(3))
        return []
    settings = session.settings
    value = " ".join(words[2:])
    if words[1:4] == ["TRANSACTION", "ISOLATION", "LEVEL"]:
        try:
            settings.isolation = Isolation(" ".join(words[4:]))
        except ValueError:
            raise SqlError(102, f"Incorrect syntax near '{words[-1]}'.", severity=15) from None
        session.follow_database()
        return []
    match words[1]:
        case "LOCK_TIMEOUT":
            settings.lock_timeout_ms = max(int(value.replace(" ", "")), LOCK_TIMEOUT_NONE)
            session.execute(f"SET lock_timeout = {settings.postgresql_lock_timeout_ms}")
        case "DEADLOCK_PRIORITY":
            settings.deadlock_priority = priority(value.replace(" ", ""))
            session.execute(f"SET deadlock_timeout = {settings.postgresql_deadlock_timeout_ms}")
        case "TEXTSIZE":
            settings.text_bytes = int(value.replace(" ", "")) or TEXT_BYTES_MAX
        case "NOCOUNT":
            settings.no_count = value == "ON"
        case "XACT_ABORT":
            settings.aborts = value == "ON"
        case "IMPLICIT_TRANSACTIONS":
            settings.implicit_transactions = value == "ON"
        case "IDENTITY_INSERT":
            settings.identity_insert = statement.after(2).rsplit(None, 1)[0] if value.endswith("ON") else ""
        case name if name in WITHOUT_EFFECT and value == USUAL.get(name, value):
            pass
        case name:
            raise SqlError(195, f"'{name}' is not a recognized SET option, or the model does not have it as {value}.")
    return []


def _begin(session: Session, statement: Statement) -> list[Outcome]:
    if statement.words(2) not in {"BEGIN TRAN", "BEGIN TRANSACTION"}:
        raise SqlError(102, "The model has no blocks of statements: BEGIN … END.", severity=15)
    session.transactions.begin()
    return []


def _commit(session: Session, _: Statement) -> list[Outcome]:
    session.transactions.commit()
    return []


def _rollback(session: Session, statement: Statement) -> list[Outcome]:
    named = statement.words(2) in {"ROLLBACK TRAN", "ROLLBACK TRANSACTION"} and len(statement.tokens) > 2
    session.transactions.rollback(statement.tokens[2].text if named else "")
    return []


def _save(session: Session, statement: Statement) -> list[Outcome]:
    cursor = Cursor(statement, 1)
    if not (cursor.take("TRAN") or cursor.take("TRANSACTION")):
        raise cursor.wrong()
    session.transactions.save(cursor.name())
    return []


def _declare(session: Session, statement: Statement) -> list[Outcome]:
    cursor = Cursor(statement, 1)
    while True:
        name = cursor.token().text
        cursor.take("AS")
        kind = sql_type(cursor.type_text())
        session.variables[name.lower()] = Bound(name, kind, None)
        if cursor.take("="):
            start = cursor.index
            depth = 0
            while cursor.word and (depth or cursor.word != ","):
                token = cursor.token()
                depth += (token.text == "(") - (token.text == ")")
            base = statement.tokens[0].start
            first, last = statement.tokens[start], statement.tokens[cursor.index - 1]
            session.assign(name, statement.text[first.start - base : last.end - base])
        if not cursor.take(","):
            return []


def _use(session: Session, statement: Statement) -> list[Outcome]:
    """Permissions on the server are granted in master, which is not another database here."""
    name = Cursor(statement, 1).name()
    if name.lower() not in {session.database.lower(), "master"}:
        raise SqlError(911, f"Database '{name}' does not exist: the model has one database, {session.database}.")
    return []


def _print(session: Session, statement: Statement) -> list[Outcome]:
    value, _ = session.value(statement.after(1))
    return [Notice(str(value))]


def _wait(session: Session, statement: Statement) -> list[Outcome]:
    found = _DELAY.search(statement.text)
    if statement.words(2) != "WAITFOR DELAY" or found is None:
        raise SqlError(102, "The model has WAITFOR DELAY 'hh:mm:ss' only.", severity=15)
    seconds = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
    with session.transactions.statement(is_change=False):
        session.execute("SELECT pg_sleep($1)", [seconds])
    return [Count(None)]


def _permit(session: Session, statement: Statement) -> list[Outcome]:
    """DENY, GRANT and REVOKE of permissions on a table, on a schema, on the database or on the server."""
    cursor = Cursor(statement)
    _owner_only(session, 4613, "Grantor does not have GRANT permission.")
    to = {"GRANT": True, "DENY": False, "REVOKE": None}[cursor.token().word]
    names = [cursor.token().word]
    while cursor.word not in {"ON", "TO", "FROM"}:
        if cursor.take(","):
            names.append(cursor.token().word)
        else:
            names[-1] += f" {cursor.token().word}"
    number = EVERYWHERE
    if cursor.take("ON"):
        kind = cursor.token().word if cursor.words_ahead(2)[1:] == ["::"] else "OBJECT"
        cursor.take("::")
        number = _securable(session, kind, cursor.qualified())
    if not cursor.take("TO"):
        cursor.expect("FROM")
    user = cursor.name()
    if cursor.word:
        raise cursor.wrong()
    session.model.permissions.change(user, names, number, to=to)
    return [Count(None)]


def _securable(session: Session, kind: str, name: tuple[str, ...]) -> int:
    if kind == "SCHEMA":
        found = session.execute("SELECT schema_id FROM sqlserver.schemas WHERE lower(name) = $1", [name[-1].lower()])
        return -int(found.fetchall()[0][0])
    schema, table = ("dbo", *name)[-2:]
    return session.names().table(schema, table).oid


def _alter(session: Session, statement: Statement) -> list[Outcome]:
    """ALTER ROLE db_owner; other ALTERs are of tables and databases."""
    cursor = Cursor(statement, 1)
    if not cursor.take("ROLE"):
        return tables.alter(session, statement)
    _owner_only(session, 15151, "Cannot alter the role, because it does not exist or you do not have permission.")
    cursor.expect("DB_OWNER")
    is_owner = cursor.take("ADD")
    if not is_owner:
        cursor.expect("DROP")
    cursor.expect("MEMBER")
    session.model.permissions.set_owner(cursor.name(), is_owner=is_owner)
    return [Count(None)]


def _owner_only(session: Session, number: int, text: str) -> None:
    if not session.model.permissions.is_owner(session.login):
        raise SqlError(number, text)


def _reconfigure(session: Session, _: Statement) -> list[Outcome]:
    """What sp_configure has noted comes into force [DOC: RECONFIGURE]."""
    session.model.execute(
        "UPDATE sqlserver.database SET max_text_repl_size = max_text_repl_size_configured, user_options = user_options_configured"
    )
    return [Count(None)]


Handler = Callable[["Session", Statement], list[Outcome]]

HANDLERS: Final[Mapping[str, Handler]] = {
    "SET": _set,
    "BEGIN": _begin,
    "COMMIT": _commit,
    "ROLLBACK": _rollback,
    "SAVE": _save,
    "DECLARE": _declare,
    "EXEC": execute,
    "EXECUTE": execute,
    "USE": _use,
    "PRINT": _print,
    "WAITFOR": _wait,
    "DENY": _permit,
    "GRANT": _permit,
    "REVOKE": _permit,
    "CREATE": tables.create,
    "ALTER": _alter,
    "RECONFIGURE": _reconfigure,
    "DROP": tables.drop,
    "TRUNCATE": tables.truncate,
}
