"""Commits of a table: each changes it and moves its ledger in one script."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from google.api_core import exceptions as api

from replicator.model.errors import SchemaConflictError, TableError, TargetUnavailableError, ThrottledError
from replicator.model.schema import TableId
from replicator.plugins.kit.ledger import Held
from replicator.plugins.target import TargetTable
from replicator_target_bigquery import ledger, statements
from replicator_target_bigquery.calls.governor import Governor
from replicator_target_bigquery.calls.jobs import Done, Jobs
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import FencedAnswer, translated
from replicator_target_bigquery.names import Names, quoted, text


@dataclass(slots=True, kw_only=True)
class HeldTable(Held):
    """A table that this process has claimed; `row` is its ledger as it was read last, `path` the table that the ledger is about."""

    path: str
    ledger_path: str
    row: ledger.Entry


class Commits:
    """Runs scripts that begin with the ledger's guard, and finds out what became of one whose answer was lost."""

    def __init__(self, jobs: Jobs, config: BigQueryConfig, names: Names, governor: Governor) -> None:
        self._jobs = jobs
        self._names = names
        self._governor = governor
        self._bytes_max = config.budget.maximum_bytes_billed

    def read(self, path: str, table: TableId, at: str | None = None) -> ledger.Entry | None:
        """The ledger's row, now or at a moment of its history, in GoogleSQL; None if there is no ledger.

        Raises:
            TableError: `ledger_damaged`.
            FatalError: `newer_ledger`, `older_ledger`.
        """
        try:
            rows = self._jobs.rows(statements.everything(path, at))
        except api.NotFound:
            return None
        if len(rows) != 1:
            raise _damaged(f"The ledger {path} holds {len(rows)} rows", table)
        try:
            return ledger.Entry.of(rows[0])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(f"The ledger {path} cannot be read", table) from error

    def read_again(self, path: str, table: TargetTable) -> ledger.Entry:
        """The row of a ledger that was there a moment ago."""
        row = self.read(path, table.table)
        if row is None:
            raise TableError(
                "Something else deleted the ledger while it was in use.",
                code="ledger_damaged",
                table=str(table.table),
                action="Drop its table too, then recreate it: replicator snapshot NAME TABLE --recreate.",
            )
        return row

    def claim(self, path: str, table: TargetTable, before: ledger.Entry | None, *, may_adopt: bool) -> ledger.Entry:
        """Create the ledger, if there is none, write the epoch into it, and then return its row."""
        if before is None:
            self._jobs.script(ledger.create_statement(path, table), self.job_id(table, "ledger", uuid4().hex))
        claim = ledger.claim_statement(path, table, may_adopt=may_adopt)
        done = self._jobs.script(claim, self.job_id(table, "claim", uuid4().hex))
        row = ledger.checked(self.read_again(path, table), table)
        self._governor.recall(table.table, row.used, None if row.batch_at_ms is None else row.batch_at_ms / 1000)
        self._note(table, done)
        return row

    def commit(
        self,
        held: HeldTable,
        body: Sequence[str],
        last: int,
        what: str,
        made: Mapping[str, str] | None = None,
        first: str = "",
        position: str | None = None,
    ) -> Done | None:
        """Run a body and move the ledger in one transaction; None if the ledger was moved by an earlier attempt.

        Raises:
            FencedError: A newer epoch has the table.
            TargetUnavailableError: It is not known whether it was committed; or an earlier attempt moved the ledger
                to another number. A claim settles both.
        """
        table, is_batch = held.table, what == "merge"
        kept = {"used": text(self._governor.memory(table.table))} if body else {}
        if is_batch:
            kept["batch_at_ms"] = str(int(self._governor.now() * 1000))
            kept["source_position"] = "NULL" if position is None else text(position)
        script = statements.transaction(
            ledger.guard(held.ledger_path, table, held.last),
            body,
            ledger.move(held.ledger_path, last, {**(made or {}), **kept}),
        )
        job_id = self.job_id(table, what, f"{held.last + 1}_{last}")
        done: Done | None = None
        try:
            with translated(str(table.table)):
                done = self._jobs.script(f"{first}{script}", job_id, bytes_max=self._bytes_max)
            self._note(table, done, is_batch=is_batch)
            if done.was_there:
                self.settle(held, last)
        except FencedAnswer:
            self.settle(held, last)
            done = None
        except TargetUnavailableError:
            with suppress(TargetUnavailableError):
                self.settle(held, last)
                return None
            raise
        except SchemaConflictError:
            # If it is the ledger that is missing, BigQuery says so in its text alone.
            self.read_again(held.ledger_path, table)
            raise
        # What a batch counted stands in the row alone.
        if made is not None or done is None or is_batch:
            held.row = self.read_again(held.ledger_path, table)
        return done

    def drop_guarded(self, held: HeldTable, sequence_num: int, path: str) -> None:
        """Drop a table, on the condition that the ledger is still ours."""
        guard = ledger.guard(held.ledger_path, held.table, held.last)
        script = f"{guard};\nDROP TABLE IF EXISTS {quoted(path)};"
        try:
            with translated(str(held.table.table)):
                self._jobs.script(script, self.job_id(held.table, "replace", f"{sequence_num}_{uuid4().hex}"))
        except FencedAnswer:
            self.settle(held, sequence_num)

    def plan(self, held: HeldTable, shape: str, what: str) -> None:
        """Write another text instead of the shape's mark: the columns are neither the former nor the later ones."""
        self.commit(held, [], held.last, what, {"shape": text(shape), "table_columns": "NULL"})
        if held.row.shape != shape:
            raise _busy(held)

    def alter_guarded(self, held: HeldTable, statement: str, sequence_num: int) -> None:
        """Alter or replace the table, if the ledger is still ours. The same statement is sent once for the same number."""
        script = f"{ledger.guard(held.ledger_path, held.table, held.last)};\n{statement};"
        mark = hashlib.sha256(statement.encode()).hexdigest()[:16]
        try:
            with translated(str(held.table.table)):
                self._jobs.script(script, self.job_id(held.table, "alter", f"{sequence_num}_{mark}"))
        except FencedAnswer:
            self.settle(held, held.last)
            raise _busy(held) from None

    def settle(self, held: HeldTable, last: int) -> None:
        """Read in the ledger whether something was committed.

        Raises:
            FencedError: A newer epoch has the table.
            TargetUnavailableError: It was not, or something else was: an attempt of ours with other bounds.
        """
        with translated(str(held.table.table)):
            row = ledger.checked(self.read_again(held.ledger_path, held.table), held.table)
        held.row = row
        if row.last != last:
            raise ThrottledError(
                f"The ledger is at {row.last}, but {last} was expected: an earlier attempt succeeded.",
                code="ledger_moved",
                table=str(held.table.table),
                action="It is retried automatically.",
            )

    def job_id(self, table: TargetTable, what: str, suffix: str) -> str:
        """Return a job id that the same piece of work has in every attempt."""
        mark = self._names.mark(table.table)
        return f"replicator_{table.uuid[:8]}_{mark}_{table.incarnation}_{table.epoch}_{what}_{suffix}"

    def _note(self, table: TargetTable, done: Done, *, is_batch: bool = False) -> None:
        usage = done.usage
        self._governor.used(
            table.table, bytes_billed=usage["bytes_billed"], slot_ms=usage["slot_ms"], is_batch=is_batch
        )


def _damaged(what: str, table: TableId) -> TableError:
    return TableError(
        f"{what}: something else wrote into it.",
        code="ledger_damaged",
        table=str(table),
        action="Drop it and its table, then recreate the table: replicator snapshot NAME TABLE --recreate.",
    )


def _busy(held: HeldTable) -> ThrottledError:
    return ThrottledError(
        "Another process wrote into the ledger at the same moment.",
        code="target_busy",
        table=str(held.table.table),
        action="It is retried automatically.",
    )
