"""The BigQuery target: claims tables, applies DDL and batches, each in one script with its ledger entry."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
from google.api_core import exceptions as api

from replicator.model.alteration import Steps, steps
from replicator.model.crash import crash_point
from replicator.model.errors import BatchTooLargeError, Problem, SchemaConflictError, ThrottledError
from replicator.model.naming import check_columns, folded, refuse_columns
from replicator.model.rules import Section
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import get_logger
from replicator.plugins.kit.columns import conflict
from replicator.plugins.kit.ledger import LedgerTarget, refuse_soft_multiset
from replicator.plugins.target import Audit, Batch, Ledger, TargetContext, TargetTable
from replicator.plugins.verification import SupportsTargetVerification, VerifiedState
from replicator_target_bigquery import ledger, pruning, rules, statements, types
from replicator_target_bigquery.alteration import Plan, filled, planned, strangers, touched
from replicator_target_bigquery.assess import Assessor
from replicator_target_bigquery.calls.governor import Governor, steady_clock
from replicator_target_bigquery.calls.jobs import Done, Jobs
from replicator_target_bigquery.columns import recorded
from replicator_target_bigquery.commits import Commits, HeldTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import TOO_DEAR, sized, translated, used_up
from replicator_target_bigquery.incarnations import Incarnations, check_replaced
from replicator_target_bigquery.names import Names, column_problems, quoted, text
from replicator_target_bigquery.services import Services
from replicator_target_bigquery.shape import Shape, shape_of
from replicator_target_bigquery.staging import StagingStore, parquet_files, staged
from replicator_target_bigquery.tables import ExistingTable, TableClient, is_primary_key, staging_schema
from replicator_target_bigquery.verification import state as verification

_log = get_logger("target.bigquery")


class BigQueryTarget(LedgerTarget[BigQueryConfig, HeldTable], SupportsTargetVerification):
    """Tables of a BigQuery project, one dataset per schema or database of the source.

    A batch goes these ways; a crash between them leaves what stands after the dash:

    1. The journal's files are copied to the staging bucket. - Objects that the next process finds or never needs.
    2. One load job puts them into a staging table of their own. - A table that expires.
    3. One script, in one transaction: the ledger is as this process knows it; merge; the ledger moves. - Nothing
       before its commit, everything after it; which of the two, the next claim reads in the ledger.
    4. Staging table and copies are removed. - As in 1 and 2.
    """

    type_name: ClassVar[str] = "bigquery"
    config_model: ClassVar[type[BigQueryConfig]] = BigQueryConfig
    rules: ClassVar[Section | None] = rules.SECTION

    def __init__(self, config: BigQueryConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self._names = Names(config)
        self._swept: set[TableId] = set()
        self._governor = Governor(config.budget, context.max_wait_s, steady_clock())
        self._services_or_none: Services | None = None

    @classmethod
    def default_max_wait_s(cls, config: BigQueryConfig) -> float:  # noqa: ARG003
        """Return five minutes: a batch costs by the table, not by its changes."""
        return 300.0

    # -- what the host asks about -------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """The project, location and naming rule: others would lead to other tables."""
        return {
            "project": self.config.project,
            "location": self.config.location.lower(),
            "dataset": self.config.dataset,
            "own_dataset": self.config.own_dataset,
        }

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Check credentials, privileges, datasets, the bucket, what exists at each table's path, types and names."""
        return Assessor(
            self.config, self.context, self._names, tables=lambda: self._tables, jobs=lambda: self._jobs,
            store=lambda: self._store,
        ).problems(tables)  # fmt: skip

    def widens(self, before: pa.DataType, after: pa.DataType) -> bool:
        """Return whether BigQuery has one type for both, or SET DATA TYPE for the two."""
        return types.widens(before, after)

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:
        """Return the rest of `apply.max_wait`, which a table that lags does not take; longer when a budget runs out."""
        return self._governor.rest_s(table, is_behind=is_behind)

    # -- what the host asks for ---------------------------------------------------------------------------------------

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """The ledger's row, if it is about this table."""
        with translated(str(table.table)):
            row = self._commits.read(self._names.ledger(table.table), table.table)
        if row is None or (row.uuid, row.table) != (table.uuid, str(table.table)):
            return None
        return Ledger(incarnation=row.incarnation, epoch=row.epoch, last_applied=row.last)

    @contextmanager
    def working_on(self, table: TargetTable, batch: Batch | None = None) -> Iterator[None]:
        """Translate errors of Google's clients; one about a batch's size says how large it is."""
        try:
            with translated(str(table.table)):
                yield
        except BatchTooLargeError as error:
            raise sized(error, batch) from error

    def claim_table(self, table: TargetTable) -> HeldTable:
        """Write this epoch into the ledger, waiting for a transaction that is about to commit, and then read it."""
        path, ledger_path = self._names.path(table.table), self._names.ledger(table.table)
        before = self._commits.read(ledger_path, table.table)
        if before is None:
            self._incarnations.check_unknown(table)
            self._tables.ensure_dataset(self._names.own_dataset)
        may_adopt = self.config.adopt == "replace"
        if before is not None and before.uuid != table.uuid and before.state == "live":
            # Of another replicator's table that was moved away only the ledger is left.
            may_adopt = may_adopt or self._tables.find(path) is None
        row = self._commits.claim(ledger_path, table, before, may_adopt=may_adopt)
        # Only now: until the claim, the holder before could still make the table.
        if row.is_of(table):
            self._incarnations.check_found(table, row)
        elif row.state != "dropping":
            self._incarnations.check_owner(table, self._tables.find(path))
        path = self._incarnations.path(table, row)
        return HeldTable(table=table, last=row.last, path=path, ledger_path=ledger_path, row=row)

    def move_ledger(self, held: HeldTable, sequence_num: int) -> None:
        """Move the ledger by a script without a body."""
        self._commits.commit(held, [], sequence_num, "advance")

    def merge_batch(self, held: HeldTable, batch: Batch) -> Mapping[str, Any] | None:
        """Stage, fold and merge."""
        table = held.table.table
        shape = self._shape(held.table, batch.schema)
        self._check_shape(held, shape)
        if room_s := self._governor.begin(table):
            raise used_up(held.table, room_s)
        try:
            done = self._merge(held, batch, shape)
        finally:
            self._governor.ended(table)
        if done is None:
            self._governor.used(table, is_batch=True, bytes_billed=None)
            return None
        whole, own = self._governor.usage(), self._governor.usage(table)
        return {
            "way": "append" if batch.is_append else "merge",
            **done.usage,
            "pause_s": round(self._governor.pause_s(), 1),
            "load_jobs_24h": whole.load_jobs,
            "bytes_billed_24h": whole.bytes_billed,
            "table_load_jobs_24h": own.load_jobs,
            "table_bytes_billed_24h": own.bytes_billed,
            "table_slot_ms_24h": own.slot_ms,
        }

    def audit(self, table: TargetTable, since: str | None) -> Audit:  # noqa: ARG002 - the ledger has sums
        """Return the counts in the ledger. What others do to the table's rows BigQuery does not tell."""
        with self.holding(table) as held:
            return Audit(position=None, merged=held.row.merged)

    def not_compared(self, schema: TableSchema) -> Collection[str]:
        """Return the JSON columns that are not kept as text."""
        return verification.not_compared(schema, self.config.table(schema.table).json_as or "string")

    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> AbstractContextManager[VerifiedState]:
        """Open the table at a moment at which the ledger is at `at`."""
        return verification.open_state(self._services, self.config, self._names, table, schema, columns, at)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Remove leftovers of earlier processes in staging, once per process. BigQuery itself maintains its tables."""
        if table.table in self._swept:
            return None
        self._swept.add(table.table)
        with translated(str(table.table)):
            removed = self._sweep(table, below=table.epoch)
        return {"removed": removed} if removed else None

    def drop(self, table: TargetTable) -> None:
        """Remove table, staging and ledger, the ledger last; nothing if they are another replicator's."""
        with translated(str(table.table)):
            row = self._commits.read(self._names.ledger(table.table), table.table)
            if row is not None and (row.uuid, row.table) != (table.uuid, str(table.table)):
                return
            path = self._names.path(table.table)
            existing = self._tables.find(path)
            if existing is not None and existing.owner == table.uuid:
                self._tables.drop(path)
        self.forget(table)

    def forget(self, table: TargetTable) -> None:
        """Remove staging and ledger; the table stays."""
        with translated(str(table.table)):
            row = self._commits.read(self._names.ledger(table.table), table.table)
            if row is not None and (row.uuid, row.table) == (table.uuid, str(table.table)):
                self._sweep(table, below=table.epoch + 1)
                self._incarnations.forget(table)
                self._tables.drop(self._names.ledger(table.table))
        self.let_go(table.table)

    def close(self) -> None:
        """Close the clients' connections."""
        super().close()
        with self._lock:
            services, self._services_or_none = self._services_or_none, None
        if services is not None:
            services.close()

    # -- clients ------------------------------------------------------------------------------------------------------

    @property
    def _services(self) -> Services:
        """The clients, made when first needed; threads share them."""
        with self._lock:
            if self._services_or_none is None:
                self._services_or_none = Services(self.config, self._names, self._governor, self.context.replicator)
            return self._services_or_none

    @property
    def _tables(self) -> TableClient:
        return self._services.tables

    @property
    def _commits(self) -> Commits:
        return self._services.commits

    @property
    def _jobs(self) -> Jobs:
        return self._services.jobs

    @property
    def _incarnations(self) -> Incarnations:
        return self._services.incarnations

    @property
    def _store(self) -> StagingStore:
        return self._services.store

    # -- tables -------------------------------------------------------------------------------------------------------

    def _shape(self, table: TargetTable, schema: TableSchema) -> Shape:
        refuse_soft_multiset(table, schema)
        return shape_of(schema, table.options, self._names, self.config.table(schema.table).json_as or "string")

    def _check_shape(self, held: HeldTable, shape: Shape) -> None:
        if not held.row.is_of(held.table) or held.row.shape != shape.mark:
            raise self._conflict(held.table)

    def _conflict(self, table: TargetTable) -> SchemaConflictError:
        return self.recreate(
            table,
            "The target table was created with another schema or other settings, or is half altered: columns, types, key, deletes or"
            " source_timestamp differ.",
        )

    def create_table(self, held: HeldTable, schema: TableSchema, sequence_num: int) -> None:
        """Create the table, out of readers' sight if they have an older one; repeating it repairs a crash at any point.

        1. A table there that is not the wanted one is dropped, on the condition that the ledger is still ours.
        2. The table is made by one request, which changes nothing if it is there.
        3. The ledger records when BigQuery made it, and whether readers have it.
        """
        table = held.table
        refuse_columns(schema, [*check_columns(schema), *column_problems(self._names, schema)])
        shape = self._shape(table, schema)
        if held.row.is_of(table) and held.row.shape != shape.mark:
            raise self._conflict(table)
        wanted = (table.uuid, table.incarnation, shape.mark)
        published = self._names.path(table.table)
        self._tables.ensure_dataset(published.rpartition(".")[0])
        if not held.row.is_of(table):
            held.path = self._incarnations.choose(table, self._tables.find(published))
            self._incarnations.sweep(held, sequence_num)
        existing = self._tables.find(held.path)
        # The label has the shape that the table was created with; what it was altered to only the ledger knows.
        is_known = held.row.is_of(table) and existing is not None and existing.made_at_ms == held.row.made_at_ms
        is_other = existing is not None and (existing.owner, existing.incarnation, existing.shape) != wanted
        # One that no ledger knows a crash left without rows; or another replicator took it over, and its rows are old.
        if existing is not None and (not held.row.is_of(table) or (is_other and not is_known)):
            self._incarnations.check_owner(table, existing)
            self._commits.drop_guarded(held, sequence_num, held.path)
            existing = None
        if existing is None:
            self._tables.create(held.path, table, schema, shape, self.config.table(schema.table))
            existing = self._tables.find(held.path)
            if existing is None or (existing.owner, existing.incarnation, existing.shape) != wanted:
                raise ThrottledError(
                    "Another process created or dropped the table at the same moment.",
                    code="target_busy",
                    table=str(table.table),
                    action="It is retried automatically.",
                )
        crash_point("target.table_made")
        made = {
            "made_in": str(table.incarnation),
            "made_at_ms": str(existing.made_at_ms),
            "shape": text(shape.mark),
            "table_columns": text(recorded(self._tables.made(held.path, existing), shape.held)),
            "state": text("live" if held.path == published else "building"),
        }
        self._commits.commit(held, [], sequence_num, "create", made)

    def alter_table(
        self, held: HeldTable, actual: TableSchema, wanted: TableSchema, fill: pa.RecordBatch, sequence_num: int
    ) -> None:
        """Alter the table step by step, and continue where an earlier process died.

        1. The plan stands in the ledger instead of the mark of the shape: no batch is applied until it is done.
        2. One statement after the other, each on the condition that the ledger is still ours, and left out if it was done.
        3. One transaction: rows get the values of new columns, the ledger the new mark and its number.
        """
        table = held.table
        refuse_columns(wanted, [*check_columns(wanted), *column_problems(self._names, wanted)])
        before, after = self._shape(table, actual), self._shape(table, wanted)
        plan = Plan.of(held.row.shape)
        if not held.row.is_of(table) or (held.row.shape != before.mark if plan is None else plan.to != after.mark):
            raise self._conflict(table)
        existing = self._check_unchanged(held)
        todo = steps(actual, wanted)
        values = filled(after, wanted, todo, fill, self.config.unfit_values)
        if plan is None:
            self._refuse_types(table, before, after, todo)
            plan = planned(self._names, before, after, todo, sequence_num)
            if not plan.is_empty:
                self._refuse_plan(held, plan, before, existing)
                self._commits.plan(held, plan.to_text(), "plan")
                crash_point("target.alter_planned")
        if not plan.is_freed:
            self._carry_out(held, plan, sequence_num)
            plan = plan.freed_all()
            self._commits.plan(held, plan.to_text(), "free")
            crash_point("target.names_freed")
        self._carry_out(held, plan, sequence_num)
        body = [statements.fill(held.path, values)] if values else []
        columns = text(recorded(self._tables.made(held.path, self._check_unchanged(held)), after.held))
        self._commits.commit(held, body, sequence_num, "altered", {"shape": text(after.mark), "table_columns": columns})

    def drop_table(self, held: HeldTable, sequence_num: int) -> None:
        """Drop the table, built or not, in a script that first says so in the ledger: a crash after the DROP is no loss then."""
        published = self._names.path(held.table.table)
        if held.row.is_building(held.table):
            self._incarnations.check_owner(held.table, self._tables.find(published))
        guard = ledger.guard(held.ledger_path, held.table, held.last)
        intent = statements.transaction(
            guard, [], ledger.move(held.ledger_path, held.last, {"state": text("dropping")})
        )
        paths = [self._names.building(held.table), published]
        drops = "".join(f"{guard};\nDROP TABLE IF EXISTS {quoted(path)};\n" for path in paths)
        first = f"{intent}\n{drops}"
        cleared = dict.fromkeys(("made_in", "made_at_ms", "shape", "table_columns"), "NULL") | {"state": text("none")}
        self._commits.commit(held, [], sequence_num, "drop", cleared, first)

    def publish_table(self, held: HeldTable, sequence_num: int) -> None:
        """Replace the older table by the built one; of a table that readers have already only the ledger moves."""
        if held.row.is_building(held.table):
            self._incarnations.publish(held, sequence_num)
        else:
            self.move_ledger(held, sequence_num)

    def clear_table(self, held: HeldTable, sequence_num: int, below: int | None = None) -> None:
        """Clear the table by a script with one UPDATE or DELETE, if it is of this incarnation."""
        body = []
        if held.row.is_of(held.table):
            is_soft = held.table.options.deletes == "soft"
            body = [statements.clear(is_soft, held.path, sequence_num, below)]
            self._check_unchanged(held)
        self._commits.commit(held, body, sequence_num, "clear")

    def _refuse_types(self, table: TargetTable, before: Shape, after: Shape, todo: Steps) -> None:
        """Refuse columns that get a type in the target which cannot be set: text that the source calls JSON from now on."""
        known = {column.column.name: column.type for column in before.held}
        retyped = [
            c.name
            for c in after.held
            if (old := known.get(todo.origin[c.column.name] or "", c.type)) != c.type
            and not types.is_settable(old, c.type)
        ]
        if retyped:
            raise self.recreate(
                table, f"ALTER TABLE changes the type of {', '.join(retyped)}.", code="ddl_not_supported"
            )

    def _refuse_plan(self, held: HeldTable, plan: Plan, before: Shape, existing: ExistingTable) -> None:
        """Refuse an alteration that BigQuery cannot do, and a table that others altered, before anything is done."""
        table = held.table
        key = [column.name for column in before.key] if is_primary_key(before.key) else []
        fixed = [name for name in dict.fromkeys([*key, *existing.fixed]) if folded(name) in touched(plan)]
        if fixed:
            raise self.recreate(
                table,
                "BigQuery does not rename or drop columns of the primary key, of the clustering or of the partitioning, nor"
                f" changes their types: {', '.join(fixed)}.",
                code="ddl_not_supported",
            )
        lacking, taken = strangers(plan, before, self._tables.columns(held.path))
        if lacking or taken:
            found = f"it lacks {', '.join(lacking)}" if lacking else f"it has {', '.join(taken)} already"
            raise self.recreate(table, f"Somebody else altered the table in the target: {found}.")

    def _carry_out(self, held: HeldTable, plan: Plan, sequence_num: int) -> None:
        """Do the remaining steps of a stage."""
        for statement in plan.statements(held.path, self._tables.columns(held.path)):
            try:
                self._commits.alter_guarded(held, statement, sequence_num)
            except SchemaConflictError:
                # A statement of the former process may have been under way still.
                if statement in plan.statements(held.path, self._tables.columns(held.path)):
                    raise
            crash_point("target.column_altered")

    # -- batches ------------------------------------------------------------------------------------------------------

    def _merge(self, held: HeldTable, batch: Batch, shape: Shape) -> Done | None:
        """Stage and merge; None if an earlier attempt had done it."""
        table = held.table
        staging = self._names.staging(table, held.last, batch.last)
        folder = f"{self.config.staging.prefix}/{table.uuid}/{staging.rpartition('.')[2]}/"
        with staged(self._store, folder, batch.files, batch.schema, self.config.unfit_values) as uris:
            self._tables.create_staging(staging, batch.schema)
            self._governor.used(table.table, load_jobs=1)  # one that fails counts as well
            self._jobs.load(
                uris,
                staging,
                staging_schema(batch.schema),
                self._commits.job_id(table, "load", f"{held.last + 1}_{batch.last}"),
                is_there=lambda: self._tables.rows(staging) == batch.rows,
            )
            crash_point("target.loaded")
        self._check_rows(table, staging, batch.rows)
        count = partial(ledger.count, held.ledger_path, held.row)
        body = statements.batch_statements(shape, held.path, staging, batch, count, self._within(shape, batch))
        existing = self._check_unchanged(held)
        try:
            done = self._commits.commit(held, body, batch.last, "merge", position=batch.source_position)
        except ThrottledError as error:
            bound = self.config.budget.maximum_bytes_billed
            # A smaller batch is billed less of itself, never less of the table.
            error.may_halve = error.code == TOO_DEAR and (batch.is_append or existing.bytes < (bound or 0))
            raise
        crash_point("target.merged")
        self._tidy(staging)
        return done

    def _within(self, shape: Shape, batch: Batch) -> str | None:
        """Return a condition with literals on the partition column, where that is part of the key: only then no other row can be meant."""
        wanted = self.config.table(batch.schema.table).partition_by
        column = next((c for c in shape.key if c.column.name == wanted), None)
        if column is None or batch.is_append:
            return None
        found = pruning.bounds(parquet_files(batch.files), column)
        return None if found is None else pruning.condition(column, "t", found)

    def _check_unchanged(self, held: HeldTable) -> ExistingTable:
        """Return the table; refuse to write into one that is not the one we made. A process that took it over is reported first."""
        existing = self._tables.find(held.path)
        if existing is None or existing.made_at_ms != held.row.made_at_ms:
            ledger.checked(self._commits.read_again(held.ledger_path, held.table), held.table)
        existing = check_replaced(held.table, held.row, existing)
        if (why := conflict(held.row.columns, self._tables.made(held.path, existing))) is not None:
            raise self.recreate(held.table, f"Somebody else changed the columns of the target table. {why}")
        return existing

    def _check_rows(self, table: TargetTable, staging: str, rows: int) -> None:
        found = self._tables.rows(staging)
        if found != rows:
            raise ThrottledError(
                f"The staging table holds {found} rows; {rows} were loaded.",
                code="staging_incomplete",
                table=str(table.table),
                action="It is retried automatically.",
            )

    def _tidy(self, staging: str) -> None:
        try:
            self._tables.drop(staging)
        except api.GoogleAPICallError as error:
            # The batch is committed; the table expires by itself.
            _log.warning("staging_not_deleted", staging=staging, reason=type(error).__name__)

    def _sweep(self, table: TargetTable, *, below: int) -> int:
        """Remove staging tables and objects of older epochs."""
        prefix = self._names.staging_prefix(table)
        old = [path for path in self._tables.own_tables(prefix) if _epoch_of(path, prefix) < below]
        for path in old:
            self._tables.drop(path)
        folder = f"{self.config.staging.prefix}/{table.uuid}/"
        objects = [
            name
            for name in self._store.names(f"{folder}{prefix}")
            if _epoch_of(name.removeprefix(folder).partition("/")[0], prefix) < below
        ]
        for name in objects:
            self._store.delete(name)
        return len(old) + len(objects)


def _epoch_of(name: str, prefix: str) -> int:
    return int(name.rpartition(".")[2].removeprefix(prefix).split("_")[1])
