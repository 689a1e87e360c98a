"""The BigQuery target: claims tables, applies DDL and batches, each in one script with its ledger entry."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from google.api_core import exceptions as api

from replicator.model.crash import crash_point
from replicator.model.errors import (
    FatalError,
    Problem,
    SchemaConflictError,
    TableError,
    TargetUnavailableError,
    ThrottledError,
)
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.naming import check_columns, refuse_columns
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import get_logger
from replicator.plugins.target import Audit, Batch, BatchResult, Claim, DeltaTarget, Ledger, TargetContext, TargetTable
from replicator_target_bigquery import ledger, pruning, statements
from replicator_target_bigquery.assess import Assessor
from replicator_target_bigquery.clients import bigquery_client, storage_client
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import TOO_DEAR, FencedAnswer, translated
from replicator_target_bigquery.governor import Governor
from replicator_target_bigquery.jobs import Done, Jobs
from replicator_target_bigquery.names import Names, column_problems, quoted, text
from replicator_target_bigquery.shape import Shape, shape_of
from replicator_target_bigquery.staging import CloudStore, FolderStore, StagingStore, parquet_files, staged
from replicator_target_bigquery.tables import Standing, Tables, staging_schema

_log = get_logger("target.bigquery")


@dataclass(slots=True)
class _Held:
    """What this process knows of a table that it has claimed."""

    table: TargetTable
    ledger_path: str
    path: str
    row: ledger.Entry

    @property
    def last(self) -> int:
        """The ledger."""
        return self.row.last


class _Services:
    """What talks to Google's services."""

    def __init__(self, config: BigQueryConfig, names: Names, replicator: str) -> None:
        self._clients: list[Any] = [bigquery_client(config)]
        self.tables = Tables(self._clients[0], config, names)
        self.jobs = Jobs(
            self._clients[0],
            location=config.location,
            labels={**config.labels, "replicator": replicator},
            timeout_s=config.job_timeout.total_seconds(),
        )
        self.store: StagingStore
        if config.staging.folder is not None:
            self.store = FolderStore(config.staging.folder, config.staging.bucket, config.location)
        else:
            self._clients.append(storage_client(config))
            self.store = CloudStore(self._clients[1], config.staging.bucket)

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            client.close()


class BigQueryTarget(DeltaTarget[BigQueryConfig]):
    """Tables of a BigQuery project, one dataset per schema or database of the source.

    A batch goes these ways; a crash between them leaves what stands behind the dash:

    1. The journal's files are copied to the staging bucket. - Objects that the next process finds or never needs.
    2. One load job puts them into a staging table of their own. - A table that expires.
    3. One script, in one transaction: the ledger is what this process knows; merge; the ledger moves on. - Nothing
       before its commit, everything after it; which of the two, the next claim reads in the ledger.
    4. Staging table and copies are removed. - As in 1 and 2.
    """

    type_name: ClassVar[str] = "bigquery"
    config_model: ClassVar[type[BigQueryConfig]] = BigQueryConfig
    # A batch costs by the table, not by its changes.
    default_max_wait_s: ClassVar[float] = 300.0

    def __init__(self, config: BigQueryConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self._names = Names(config)
        self._lock = threading.Lock()
        self._held: dict[TableId, _Held] = {}
        self._swept: set[TableId] = set()
        self._governor = Governor(config.budget, context.max_wait_s, time.time)
        self._services_or_none: _Services | None = None

    # -- what the host asks about -------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """Project, location and naming rule: another one would be other tables."""
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

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:
        """The rest of `apply.max_wait`, which a table that is behind does not take; longer when a budget runs out."""
        return self._governor.rest_s(table, is_behind=is_behind)

    # -- what the host asks for ---------------------------------------------------------------------------------------

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """The ledger's row, if it is about this table."""
        with translated(str(table.table)):
            row = self._read(self._names.ledger(table.table))
        if row is None or (row.uuid, row.table) != (table.uuid, str(table.table)):
            return None
        return Ledger(incarnation=row.incarnation, epoch=row.epoch, last_applied=row.last)

    def claim(self, table: TargetTable) -> Claim:
        """Write this epoch into the ledger, waiting for a transaction that is about to commit, and then read it."""
        with translated(str(table.table)):
            held = self._claim(table)
        return Claim(last_applied=held.last)

    def apply_ddl(self, table: TargetTable, event: DDLEvent, sequence_num: int) -> None:
        """CREATE_TABLE, DROP_TABLE and TRUNCATE_TABLE; datasets are made with their first table and never dropped."""
        with translated(str(table.table)):
            held = self._holding(table)
            if sequence_num <= held.last:
                return
            crash_point("target.before_ddl")
            match event.operation:
                case DDLOperation.CREATE_TABLE:
                    self._create(held, event, sequence_num)
                case DDLOperation.DROP_TABLE:
                    self._drop_table(held, sequence_num)
                case DDLOperation.TRUNCATE_TABLE:
                    self._clear(held, sequence_num)
                case DDLOperation.CREATE_DATABASE | DDLOperation.DROP_DATABASE:
                    self._commit(held, [], sequence_num, "advance")
                case _:
                    raise SchemaConflictError(
                        f"{event.operation} is not supported by the BigQuery target yet.",
                        code="ddl_not_supported",
                        table=str(table.table),
                        action="Recreate it: replicator snapshot NAME TABLE --recreate.",
                    )
            crash_point("target.after_ddl")

    def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
        """Stage, fold and merge; or only move the ledger, where that is all there is to do."""
        with translated(str(table.table)):
            held = self._holding(table)
            if batch.last <= held.last:
                return BatchResult(was_skipped=True)
            if not batch.files or not batch.rows:
                self._commit(held, [], batch.last, "advance")
                return BatchResult(details={"way": "advance"})
            shape = self._shape(table, batch.schema)
            self._check_shape(held, shape)
            if room_s := self._governor.begin(table.table):
                raise _used_up(table, room_s)
            try:
                crash_point("target.before_merge")
                done = self._merge(held, batch, shape)
                crash_point("target.after_merge")
            finally:
                self._governor.ended(table.table)
        if done is None:
            self._governor.used(table.table, is_batch=True, bytes_billed=None)
            return BatchResult(was_skipped=True)
        whole, own = self._governor.usage(), self._governor.usage(table.table)
        return BatchResult(
            details={
                "way": "append" if batch.is_append else "merge",
                **done.usage,
                "pause_s": round(self._governor.pause_s(), 1),
                "load_jobs_24h": whole.load_jobs,
                "bytes_billed_24h": whole.bytes_billed,
                "table_load_jobs_24h": own.load_jobs,
                "table_bytes_billed_24h": own.bytes_billed,
                "table_slot_ms_24h": own.slot_ms,
            }
        )

    def audit(self, table: TargetTable, since: str | None) -> Audit:  # noqa: ARG002 - the ledger has sums
        """The counts in the ledger. What others do to the table's rows BigQuery does not tell."""
        with translated(str(table.table)):
            return Audit(place=None, merged=self._holding(table).row.merged)

    def complete_snapshot(self, table: TargetTable, start_number: int, sequence_num: int) -> None:
        """Delete (soft: mark) what the snapshot did not find."""
        with translated(str(table.table)):
            held = self._holding(table)
            if sequence_num > held.last:
                self._clear(held, sequence_num, below=start_number)

    def advance(self, table: TargetTable, sequence_num: int) -> None:
        """Record the number alone."""
        with translated(str(table.table)):
            held = self._holding(table)
            if sequence_num > held.last:
                self._commit(held, [], sequence_num, "advance")

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Once per process: remove what earlier processes left in staging. BigQuery itself looks after its tables."""
        if table.table in self._swept:
            return None
        self._swept.add(table.table)
        with translated(str(table.table)):
            removed = self._sweep(table, below=table.epoch)
        return {"removed": removed} if removed else None

    def drop(self, table: TargetTable) -> None:
        """Remove table, staging and ledger, the ledger last; nothing if they are another replicator's."""
        with translated(str(table.table)):
            row = self._read(self._names.ledger(table.table))
            if row is not None and (row.uuid, row.table) != (table.uuid, str(table.table)):
                return
            path = self._names.path(table.table)
            standing = self._tables.find(path)
            if standing is not None and standing.owner == table.uuid:
                self._tables.drop(path)
        self.forget(table)

    def forget(self, table: TargetTable) -> None:
        """Remove staging and ledger; the table stays."""
        with translated(str(table.table)):
            row = self._read(self._names.ledger(table.table))
            if row is not None and (row.uuid, row.table) == (table.uuid, str(table.table)):
                self._sweep(table, below=table.epoch + 1)
                self._tables.drop(self._names.ledger(table.table))
        with self._lock:
            self._held.pop(table.table, None)

    def close(self) -> None:
        """Close the clients' connections."""
        with self._lock:
            services, self._services_or_none = self._services_or_none, None
            self._held.clear()
        if services is not None:
            services.close()

    # -- clients ------------------------------------------------------------------------------------------------------

    @property
    def _services(self) -> _Services:
        """The clients, made when first needed; threads share them."""
        with self._lock:
            if self._services_or_none is None:
                self._services_or_none = _Services(self.config, self._names, self.context.replicator)
            return self._services_or_none

    @property
    def _tables(self) -> Tables:
        return self._services.tables

    @property
    def _jobs(self) -> Jobs:
        return self._services.jobs

    @property
    def _store(self) -> StagingStore:
        return self._services.store

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def _holding(self, table: TargetTable) -> _Held:
        """What is held, claimed first if this process has not."""
        with self._lock:
            held = self._held.get(table.table)
        if held is None or (held.table.ledger_name, held.table.epoch) != (table.ledger_name, table.epoch):
            return self._claim(table)
        held.table = table
        return held

    def _claim(self, table: TargetTable) -> _Held:
        path, ledger_path = self._names.path(table.table), self._names.ledger(table.table)
        may_adopt = self.config.adopt == "replace"
        standing = self._tables.find(path)
        before = self._read(ledger_path)
        if before is None:
            self._check_owner(table, standing)
            if standing is not None and standing.owner == table.uuid and standing.incarnation == table.incarnation:
                raise _replaced(table, "its ledger is missing")
            self._tables.ensure_dataset(self._names.own_dataset)
            self._jobs.script(ledger.create_statement(ledger_path, table), self._job_id(table, "ledger", uuid4().hex))
        elif before.format < ledger.FORMAT:
            for statement in ledger.migration(ledger_path):
                self._jobs.script(statement, self._job_id(table, "migrate", uuid4().hex))
        claim = ledger.claim_statement(ledger_path, table, may_adopt=may_adopt)
        done = self._jobs.script(claim, self._job_id(table, "claim", uuid4().hex))
        row = self._read(ledger_path)
        if row is None:
            raise _damaged(table)
        row = ledger.checked(row, table)
        self._governor.recall(table.table, row.used, None if row.batch_at_ms is None else row.batch_at_ms / 1000)
        self._note(table, done)
        # Looked at again: until the claim, the holder before could still make the table.
        standing = self._tables.find(path)
        if row.is_of(table):
            _check_standing(table, row, standing)
        elif row.state != "dropping":
            self._check_owner(table, standing)
        crash_point("target.claimed")
        held = _Held(table, ledger_path, path, row)
        with self._lock:
            self._held[table.table] = held
        return held

    def _check_owner(self, table: TargetTable, standing: Standing | None) -> None:
        if standing is None:
            return
        if standing.kind != "TABLE":
            raise TableError(
                f"A {standing.kind.lower()} already has this name.",
                code="target_occupied",
                table=str(table.table),
                action="Move it away, or choose another target.dataset.",
            )
        if standing.owner != table.uuid and self.config.adopt != "replace":
            raise ledger.not_ours(table, standing.owner)

    def _read(self, path: str) -> ledger.Entry | None:
        """The ledger's row; None if there is no ledger."""
        try:
            rows = self._jobs.rows(ledger.read_statement(path))
        except api.NotFound:
            return None
        if len(rows) != 1:
            raise FatalError(
                f"The ledger {path} holds {len(rows)} rows.",
                code="ledger_damaged",
                action="Something else wrote into it. Drop it and its table, then recreate the table.",
            )
        return ledger.Entry.of(rows[0])

    def _commit(
        self,
        held: _Held,
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
            kept["batch_at_ms"] = str(int(time.time() * 1000))
            kept["source_position"] = "NULL" if position is None else text(position)
        script = statements.transaction(
            ledger.guard(held.ledger_path, table, held.last),
            body,
            ledger.move(held.ledger_path, last, {**(made or {}), **kept}),
        )
        job_id = self._job_id(table, what, f"{held.last + 1}_{last}")
        done: Done | None = None
        try:
            with translated(str(table.table)):
                done = self._jobs.script(f"{first}{script}", job_id, bytes_max=self.config.budget.maximum_bytes_billed)
            self._note(table, done, is_batch=is_batch)
            if done.was_there:
                self._settle(held, last)
        except FencedAnswer:
            self._settle(held, last)
            done = None
        except TargetUnavailableError:
            with suppress(TargetUnavailableError):
                self._settle(held, last)
                return None
            raise
        # What a batch counted stands in the row alone.
        is_known = made is None and done is not None and not is_batch
        held.row = self._row_after(held, last) if is_known else self._reread(held)
        return done

    def _note(self, table: TargetTable, done: Done, *, is_batch: bool = False) -> None:
        usage = done.usage
        self._governor.used(
            table.table, bytes_billed=usage["bytes_billed"], slot_ms=usage["slot_ms"], is_batch=is_batch
        )

    def _row_after(self, held: _Held, last: int) -> ledger.Entry:
        return replace(held.row, last=last)

    def _reread(self, held: _Held) -> ledger.Entry:
        row = self._read(held.ledger_path)
        if row is None:
            raise _damaged(held.table)
        return row

    def _settle(self, held: _Held, last: int) -> None:
        """Read in the ledger whether something was committed.

        Raises:
            FencedError: A newer epoch has the table.
            TargetUnavailableError: It was not, or something else was: an attempt of ours with other bounds.
        """
        with translated(str(held.table.table)):
            row = ledger.checked(self._reread(held), held.table)
        held.row = row
        if row.last != last:
            with self._lock:
                self._held.pop(held.table.table, None)
            raise ThrottledError(
                f"The ledger is at {row.last}, but {last} was expected: an earlier attempt succeeded.",
                code="ledger_moved",
                table=str(held.table.table),
                action="It is retried automatically.",
            )

    def _job_id(self, table: TargetTable, what: str, place: str) -> str:
        mark = self._names.mark(table.table)
        return f"replicator_{table.uuid[:8]}_{mark}_{table.incarnation}_{table.epoch}_{what}_{place}"

    # -- tables -------------------------------------------------------------------------------------------------------

    def _shape(self, table: TargetTable, schema: TableSchema) -> Shape:
        json_as = self.config.table(schema.table).json_as or "string"
        shape = shape_of(schema, table.options, self._names, json_as)
        if shape.is_soft and not shape.key:
            raise SchemaConflictError(
                "A table without a key cannot keep deleted rows: equal rows cannot be told apart.",
                code="soft_deletes_need_key",
                table=str(table.table),
                action="Set deletes: hard for this table.",
            )
        return shape

    def _check_shape(self, held: _Held, shape: Shape) -> None:
        if not held.row.is_of(held.table) or held.row.shape != shape.mark:
            raise _conflict(held.table)

    def _create(self, held: _Held, event: DDLEvent, sequence_num: int) -> None:
        """Create the table, whatever an older incarnation left there; repeating it repairs a crash at any point.

        1. What stands there and is not the wanted table is dropped, on the condition that the ledger is still ours.
        2. The table is made by one request, which changes nothing if it is there.
        3. The ledger learns when BigQuery made it.
        """
        assert event.schema is not None
        table = held.table
        refuse_columns(event.schema, [*check_columns(event.schema), *column_problems(self._names, event.schema)])
        shape = self._shape(table, event.schema)
        if held.row.is_of(table) and held.row.shape != shape.mark:
            raise _conflict(table)
        wanted = (table.uuid, table.incarnation, shape.mark)
        self._tables.ensure_dataset(held.path.rpartition(".")[0])
        standing = self._tables.find(held.path)
        if standing is not None and (standing.owner, standing.incarnation, standing.shape) != wanted:
            self._check_owner(table, standing)
            self._drop_guarded(held, sequence_num)
            standing = None
        if standing is None:
            self._tables.create(table, event.schema, shape, self.config.table(event.schema.table))
            standing = self._tables.find(held.path)
            if standing is None or (standing.owner, standing.incarnation, standing.shape) != wanted:
                raise ThrottledError(
                    "Another process created or dropped the table at the same moment.",
                    code="target_busy",
                    table=str(table.table),
                    action="It is retried automatically.",
                )
        crash_point("target.table_made")
        made = {
            "made_in": str(table.incarnation),
            "made_at_ms": str(standing.made_at_ms),
            "shape": text(shape.mark),
            "state": text("live"),
        }
        self._commit(held, [], sequence_num, "create", made)

    def _drop_guarded(self, held: _Held, sequence_num: int) -> None:
        guard = ledger.guard(held.ledger_path, held.table, held.last)
        script = f"{guard};\nDROP TABLE IF EXISTS {quoted(held.path)};"
        try:
            with translated(str(held.table.table)):
                self._jobs.script(script, self._job_id(held.table, "replace", f"{sequence_num}_{uuid4().hex}"))
        except FencedAnswer:
            self._settle(held, sequence_num)

    def _drop_table(self, held: _Held, sequence_num: int) -> None:
        """Drop the table in a script that first says so in the ledger: a crash behind the DROP is no loss then."""
        guard = ledger.guard(held.ledger_path, held.table, held.last)
        intent = statements.transaction(
            guard, [], ledger.move(held.ledger_path, held.last, {"state": text("dropping")})
        )
        first = f"{intent}\n{guard};\nDROP TABLE IF EXISTS {quoted(held.path)};\n"
        gone = {"made_in": "NULL", "made_at_ms": "NULL", "shape": "NULL", "state": text("none")}
        self._commit(held, [], sequence_num, "drop", gone, first)

    def _clear(self, held: _Held, sequence_num: int, below: int | None = None) -> None:
        body = []
        if held.row.is_of(held.table):
            is_soft = held.table.options.deletes == "soft"
            body = [statements.clear(is_soft, held.path, sequence_num, below)]
            self._check_unchanged(held)
        self._commit(held, body, sequence_num, "clear")

    # -- batches ------------------------------------------------------------------------------------------------------

    def _merge(self, held: _Held, batch: Batch, shape: Shape) -> Done | None:
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
                self._job_id(table, "load", f"{held.last + 1}_{batch.last}"),
                is_there=lambda: self._tables.rows(staging) == batch.rows,
            )
            crash_point("target.loaded")
        self._check_rows(table, staging, batch.rows)
        count = partial(ledger.count, held.ledger_path, held.row)
        body = statements.batch_statements(shape, held.path, staging, batch, count, self._within(shape, batch))
        standing = self._check_unchanged(held)
        try:
            done = self._commit(held, body, batch.last, "merge", position=batch.source_position)
        except ThrottledError as error:
            bound = self.config.budget.maximum_bytes_billed
            # A smaller batch is billed less of itself, never less of the table.
            error.may_halve = error.code == TOO_DEAR and (batch.is_append or standing.bytes < (bound or 0))
            raise
        crash_point("target.merged")
        self._tidy(staging)
        return done

    def _within(self, shape: Shape, batch: Batch) -> str | None:
        """A condition with literals on the partition column, where that is part of the key: only then no other row can be meant."""
        wanted = self.config.table(batch.schema.table).partition_by
        column = next((c for c in shape.key if c.column.name == wanted), None)
        if column is None or batch.is_append:
            return None
        found = pruning.bounds(parquet_files(batch.files), column)
        return None if found is None else pruning.condition(column, "t", found)

    def _check_unchanged(self, held: _Held) -> Standing:
        """The table; refuse to write into one that is not the one we made. Who took it over is told first."""
        standing = self._tables.find(held.path)
        if standing is None or standing.made_at_ms != held.row.made_at_ms:
            ledger.checked(self._reread(held), held.table)
        return _check_standing(held.table, held.row, standing)

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


def _conflict(table: TargetTable) -> SchemaConflictError:
    return SchemaConflictError(
        "The table in the target does not match the changes: columns, types, key, deletes or settings differ.",
        code="schema_conflict",
        table=str(table.table),
        action="Recreate it: replicator snapshot NAME TABLE --recreate.",
    )


def _check_standing(table: TargetTable, row: ledger.Entry, standing: Standing | None) -> Standing:
    """Refuse a table that is not the one the ledger is about: somebody dropped, replaced or restored it."""
    if standing is None or standing.made_at_ms != row.made_at_ms:
        raise _replaced(table, "it is missing" if standing is None else "it was replaced by another one")
    return standing


def _used_up(table: TargetTable, room_s: float) -> ThrottledError:
    return ThrottledError(
        "The target.budget for 24 hours is used up.",
        code="budget_used_up",
        table=str(table.table),
        action="The table continues automatically when the budget allows it; raise target.budget to continue sooner.",
        rest_s=room_s,
        is_limit=True,
    )


def _replaced(table: TargetTable, how: str) -> TableError:
    return TableError(
        f"The table in the target was changed by somebody else: {how}.",
        code="target_replaced",
        table=str(table.table),
        action="Drop the table, then recreate it: replicator snapshot NAME TABLE --recreate.",
    )


def _damaged(table: TargetTable) -> FatalError:
    return FatalError(
        "The ledger was deleted while it was in use.",
        code="ledger_damaged",
        table=str(table.table),
        action="Something else dropped it. Drop its table too, then recreate it.",
    )
