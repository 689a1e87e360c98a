"""Statements in the log, and their effects on their transaction and the replicated tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from replicator.model.errors import TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.schema import TableId
from replicator.plugins import get_logger
from replicator_source_mysql.coordinates.cursor import ReadPosition
from replicator_source_mysql.ddl.alterations import Alteration
from replicator_source_mysql.ddl.statements import Effect, TableEffect, effects, opens_group
from replicator_source_mysql.events import Query
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.log.groups import Group, Undoing
from replicator_source_mysql.log.pulls import Pull
from replicator_source_mysql.log.table_rows import TableRows, committed_at
from replicator_source_mysql.log.xa import XaTransactions
from replicator_source_mysql.reach.cascades import Cascades
from replicator_source_mysql.reach.definitions import KnownDefinitions, defines_nothing, first_word
from replicator_source_mysql.reach.tables import CHANGING
from replicator_source_mysql.sql.reader import shown

_log = get_logger(__name__)

_DDL: Final = {
    Effect.TRUNCATE: DDLOperation.TRUNCATE_TABLE,
    Effect.DROP: DDLOperation.DROP_TABLE,
    Effect.RENAME: DDLOperation.RENAME_TABLE,
    Effect.ALTER: DDLOperation.ALTER_TABLE,
    Effect.REPLACED: DDLOperation.CREATE_TABLE,
}


class Statements:
    """Takes the QUERY events of one open log.

    Args:
        flavor: The server's flavor.
        is_lower_case: The server stores names in lower case.
        rows: The replicated tables.
        xa: Takes statements about XA transactions.
        undoing: Takes back what transactions roll back.
        cascades: See `TableRows`.
        definitions: Tells what a statement met on the server; None: nothing does.
        cursor: The reader's position in the server's files.
    """

    def __init__(
        self,
        *,
        flavor: Flavor,
        is_lower_case: bool,
        rows: TableRows,
        xa: XaTransactions,
        undoing: Undoing,
        cascades: Cascades | None,
        definitions: KnownDefinitions | None,
        cursor: ReadPosition,
    ) -> None:
        self._flavor = flavor
        self._is_lower_case = is_lower_case
        self._rows = rows
        self._xa = xa
        self._undoing = undoing
        self._cascades = cascades
        self._definitions = definitions
        self._cursor = cursor

    def take(self, statement: Query, group: Group, offset: int, pull: Pull) -> bool:
        """Take a statement that ends at this offset of its group; return whether it commits the group."""
        text = statement.text.strip()
        head = text[:64].upper()
        if head == "BEGIN":
            group.is_open = True
            return False
        if head == "COMMIT":
            return True
        if head == "ROLLBACK":
            if not group.is_skipped:
                self._undoing.roll_back(group, pull)
            return True
        if head.startswith("XA "):
            return self._xa.take(text, group, pull)
        if group.is_open and self._undoing.take(group, text, offset, pull):
            return False
        return self._other(statement, group, pull)

    def _other(self, statement: Query, group: Group, pull: Pull) -> bool:
        if self._definitions is not None and not defines_nothing(statement, self._flavor):
            self._definitions.forget()
        if not group.is_skipped:
            tables = self._rows.tables
            found = effects(statement, tables, flavor=self._flavor, is_lower_case=self._is_lower_case)
            if (reached := self._reached(found, statement, group)) is not None:
                self._take_unlogged(reached, statement, group, pull)
                found = []
            # Of tables that get a name, the columns are known.
            renamed = {effect.new_table for effect in found if effect.effect is Effect.RENAME}
            for effect in found:
                self._apply(
                    replace(effect, is_other_table=effect.is_other_table and effect.table not in renamed),
                    statement,
                    group,
                    pull,
                )
            changed = self._cascades.of_statement(statement.text) if self._cascades is not None else None
            if changed:
                pull.unlogged(group.ensure_transaction(), changed)
        if opens_group(statement, self._flavor):
            group.is_open = True
        return not group.is_open

    def _reached(self, found: Sequence[TableEffect], statement: Query, group: Group) -> Collection[TableId] | None:
        """The tables that a statement in place of rows may have changed; None: it is none, or they may be all."""
        if group.is_xa or not found or any(effect.effect is not Effect.STATEMENT for effect in found):
            return None
        if self._definitions is None or first_word(statement, self._flavor) not in CHANGING:
            return None
        definitions = self._definitions.at(self._cursor.file, self._cursor.pos)
        reached = definitions.reached(statement.text, statement.database) if definitions is not None else None
        return None if reached is None else [effect.table for effect in found if effect.table in reached]

    def _take_unlogged(self, tables: Collection[TableId], statement: Query, group: Group, pull: Pull) -> None:
        if not tables:
            return
        text = shown(statement, self._flavor)
        errors = {table: refusal(TableEffect(effect=Effect.STATEMENT, table=table), text) for table in tables}
        for table in sorted(tables, key=str):
            _log.warning("statement_instead_of_rows", table=str(table), statement=text)
        pull.unlogged_statement(group.ensure_transaction(), errors)

    def _apply(self, effect: TableEffect, statement: Query, group: Group, pull: Pull) -> None:
        if effect.effect not in _DDL:
            pull.fail(effect.table, refusal(effect, shown(statement, self._flavor)))
            self._rows.drop(effect.table)
            return
        altered: Alteration | None = None
        if effect.effect is Effect.ALTER:
            columns = None if group.begin.is_alter_phase else effect.columns
            altered = self._rows.alter(effect.table, columns)
            if altered is None and columns is not None and not columns.clauses and not columns.changes_rows:
                return  # A default; of a table whose columns nobody knows there is nothing to say.
        elif effect.effect is Effect.DROP or effect.is_other_table:
            # Until rows show that a table of its name has its columns, no statement is applied to them.
            self._rows.alter(effect.table, None)
        if effect.effect not in {Effect.TRUNCATE, Effect.RENAME} and altered is None:
            self._rows.expect_any_key(effect.table)
        if effect.effect is Effect.RENAME and effect.new_table is not None:
            self._rows.rename(effect.table, effect.new_table)
            if self._cascades is not None:
                self._cascades.rename(effect.table, effect.new_table)
        transaction = group.ensure_transaction()
        event = event_of(effect, altered, statement.text)
        assert event is not None
        if effect.effect is Effect.ALTER and altered is None:
            event = replace(event, shown=shown(statement, self._flavor))
        pull.event(
            transaction,
            replace(event, transaction_id=transaction.id, source_timestamp=committed_at(transaction)),
        )


def event_of(effect: TableEffect, altered: Alteration | None, statement: str) -> DDLEvent | None:
    """Convert a statement's effect on a table to the host's event, without its transaction; None: it fails the table.

    Args:
        effect: The effect.
        altered: Shapes of the table before and after an ALTER; None if they are not known.
        statement: The statement's text.
    """
    operation = _DDL.get(effect.effect)
    if operation is None:
        return None
    return DDLEvent(
        operation=operation,
        table=effect.table,
        schema=altered.schema if altered is not None else None,
        before=altered.before if altered is not None else None,
        fill=altered.fill if altered is not None else None,
        new_table=effect.new_table,
        statement=statement,
    )


def refusal(effect: TableEffect, statement: str) -> TableError:
    """The error by which a statement in the log fails a table; `statement`: its text without values."""
    if effect.effect is Effect.STATEMENT:
        return TableError(
            f"The log has a statement instead of the rows that it changed; these may be rows of this table: {statement}",
            code="statement_format",
            table=str(effect.table),
            action="Remove what sets it: the session that wrote (SET SESSION binlog_format), or for all (SET GLOBAL binlog_format = 'ROW')."
            " Then run `replicator snapshot NAME TABLE`.",
        )
    return TableError(
        f"The log has a statement that was not understood and may be about this table: {statement}",
        code="ddl_not_understood",
        table=str(effect.table),
        action="Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now.",
    )
