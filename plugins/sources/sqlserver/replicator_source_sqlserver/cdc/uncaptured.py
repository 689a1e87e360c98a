"""Errors of tables whose changes are not captured as they are needed, each with the T-SQL that fixes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from replicator.model.errors import THEN_BY_ITSELF, CurableError, TableError
from replicator.model.schema import TableId
from replicator_source_sqlserver import remedies
from replicator_source_sqlserver.catalogue.server import Account
from replicator_source_sqlserver.catalogue.tables import CaptureInstance

COMMAND_ID: Final = "__$command_id"
"""The column of a change table without which the order of changes in a transaction is unknown."""


def table_not_captured(table: TableId, name: str, account: Account) -> TableError:
    """The error of a table that has no capture instance; `name`: of one that is to be made."""
    return CurableError(
        "no capture instance has its changes.",
        code="table_not_captured",
        table=str(table),
        action=f"{' '.join(remedies.enable_table(table, name, account))} {THEN_BY_ITSELF}",
    )


def table_missing(table: TableId) -> TableError:
    """The error of a table that the catalogue no longer has."""
    return TableError(
        "there is no such table, or the account may not see it.",
        code="table_missing",
        table=str(table),
        action="Exclude it in `tables.exclude`. Or create it again, or grant SELECT on it, and run `replicator snapshot NAME TABLE`.",
    )


def column_not_captured(
    table: TableId, columns: Collection[str], name: str, instances: Sequence[CaptureInstance], account: Account
) -> TableError:
    """The error of a table that has columns which no capture instance has; `name`: of one that is to be made."""
    return CurableError(
        f"the capture instance lacks {', '.join(sorted(columns))}.",
        code="column_not_captured",
        table=str(table),
        action=_made(table, name, instances, account, why="has all columns"),
    )


def command_id_missing(table: TableId, name: str, instances: Sequence[CaptureInstance], account: Account) -> TableError:
    """The error of a table whose change table an old server made; `name`: of another instance."""
    return CurableError(
        f"its change table has no {COMMAND_ID}: the order of changes in a transaction is unknown.",
        code="command_id_missing",
        table=str(table),
        action=_made(table, name, instances, account, why="has that column"),
    )


def _made(table: TableId, name: str, instances: Sequence[CaptureInstance], account: Account, *, why: str) -> str:
    replacing = remedies.replace_instance(table, name, instances, account)
    making = (
        f"Make another instance, which {why}: {' '.join(remedies.another_instance(table, name, instances, account))}"
    )
    return f"{replacing or making} {THEN_BY_ITSELF}"
