"""The Delta Lake target: checks paths, claims tables, applies DDL and batches, each with its ledger entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa

from replicator.model.errors import FatalError, Problem
from replicator.model.naming import check_names, refuse_columns
from replicator.model.rules import Section
from replicator.model.schema import TableId, TableSchema
from replicator.plugins import get_logger
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.lake.index import KEYS_TOO_LARGE
from replicator.plugins.kit.ledger import LedgerTarget, refuse_soft_multiset
from replicator.plugins.target import (
    EMPTY_LEDGER,
    Audit,
    Batch,
    EngineReport,
    Ledger,
    SparkNeeds,
    TargetContext,
    TargetTable,
)
from replicator.plugins.verification import SupportsTargetVerification, VerifiedState
from replicator_target_delta import rules
from replicator_target_delta.check import existing_problems, folder_problems, occupied, path_problems
from replicator_target_delta.config import DIRECT_ROWS, LOG_RETENTION_MIN, DeltaLakeConfig
from replicator_target_delta.definition import building
from replicator_target_delta.definition.dropping import drop_folder
from replicator_target_delta.engine import DIRECT, DirectTable, Lanes, Pace, found_by_spark, merged_by_spark
from replicator_target_delta.errors import refuse_columns_of_others, translated
from replicator_target_delta.held import HeldTable
from replicator_target_delta.journal_files import readable_files
from replicator_target_delta.lane import losses
from replicator_target_delta.ledger import (
    Entry,
    Look,
    Plans,
    Transaction,
    check_last,
    claim_lost,
    exists,
    identified,
    record_alone,
)
from replicator_target_delta.log import history
from replicator_target_delta.log.table import DROPPED, SCHEMA, STATE, TableLog, read_log
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.shape import types
from replicator_target_delta.shape.comments import comment_notices
from replicator_target_delta.shape.names import column_problems
from replicator_target_delta.shape.types import type_problems
from replicator_target_delta.sharing import SharingCheck
from replicator_target_delta.spark import engine as spark_engine
from replicator_target_delta.spark.settings import SPARK_NEEDS
from replicator_target_delta.storage import Storage, absolute
from replicator_target_delta.upkeep import due as maintenance
from replicator_target_delta.upkeep import turns as upkeep

_ROWS_MIN: Final = 10_000
_log = get_logger("target.delta")


class DeltaLakeTarget(LedgerTarget[DeltaLakeConfig, HeldTable], SupportsTargetVerification):
    """Tables of a Delta lake, each at `<path>/<namespace>/<table>`.

    Every change of a table is one commit of its log, and each such commit carries the ledger. A crash before it
    leaves files that no version names (VACUUM removes them), a crash after it is found by the next `claim`.
    """

    type_name: ClassVar[str] = "delta"
    config_model: ClassVar[type[DeltaLakeConfig]] = DeltaLakeConfig
    rules: ClassVar[Section | None] = rules.SECTION
    sees_others: ClassVar[bool] = True
    spark_needs: ClassVar[SparkNeeds | None] = SPARK_NEEDS

    def __init__(self, config: DeltaLakeConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self._root = absolute(config.path)
        self._turns_of: dict[TableId, maintenance.Turns] = {}
        self._storage_or_none: Storage | None = None
        self._sharing = SharingCheck()
        self._plans = Plans(may_adopt=config.adopt == "replace")
        self._lanes = Lanes(config)
        self._buildings = building.Buildings()
        self._pace = Pace(context.max_wait_s)
        self._engines: dict[TableId, EngineReport] = {}
        # Tables that Spark merges whatever the size of a batch.
        self._sparks: set[TableId] = set()
        # Of tables with large rows: changes of a batch that the direct writer may have in memory.
        self._rows_max: dict[TableId, int] = {}
        self._files = losses.FileChecks()

    @classmethod
    def default_max_wait_s(cls, config: DeltaLakeConfig) -> float:
        """Default of `apply.max_wait`: short with direct commits, which cost little."""
        return 1.0 if config.engine == "auto" else super().default_max_wait_s(config)

    # -- without Spark ------------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """The absolute path or URI."""
        return {"path": self._root}

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Check the path, the data at each table's path, types and names."""
        problems = [*path_problems(lambda: self._storage, self._root), *check_names(schema.table for schema in tables)]
        is_reachable = not problems or problems[0].location != "target.path"
        for schema in tables:
            problems += [*column_problems(schema), *type_problems(schema), *comment_notices(schema)]
            problems += folder_problems(self._root, schema.table)
            if is_reachable:
                problems += existing_problems(self._storage, schema.table, self.context.uuid, self.config.adopt)
        return problems

    def drop(self, table: TargetTable) -> None:
        """Remove the table's folder and its buildings; nothing if it is another's."""
        self.forget(table)
        with translated(str(table.table)):
            was_ours = drop_folder(self._storage, self._storage.table_path(table.table), table)
        if was_ours:
            self.let_go(table.table)

    def forget(self, table: TargetTable) -> None:
        """Remove the buildings of the table, which readers do not see."""
        with translated(str(table.table)):
            self._buildings.sweep(self._storage, table)

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """The table's newest transaction identifier of ours, by two or three small files of its log."""
        with translated(str(table.table)):
            return building.newest(self._storage, table)

    def open_state(
        self, table: TargetTable, schema: TableSchema, *, columns: Mapping[str, str], at: int
    ) -> AbstractContextManager[VerifiedState]:
        """Read the newest version that had the ledger there, or below."""
        from replicator_target_delta.verification.states import open_state  # loads DuckDB

        return open_state(self._storage, table, schema, columns, at)

    # -- with Spark ---------------------------------------------------------------------------------------------------

    @contextmanager
    def working_on(self, table: TargetTable, batch: Batch | None = None) -> Iterator[None]:
        """Hold the table against upkeep; errors of Spark and Delta become ours."""
        held = super().held(table)
        path = self._storage.table_path(table.table) if held is None else held.path
        with translated(str(table.table), path=path, batch=batch), self._turns(table.table).writing():
            yield

    def held(self, table: TargetTable) -> HeldTable | None:
        """The table that is held, unless the host's Spark is another one by now."""
        held = super().held(table)
        return held if held is not None and held.session.sparkContext is self._spark.sparkContext else None

    def claim_table(self, table: TargetTable) -> HeldTable:
        """Record this epoch in every ledger of the table, in one commit; then in its building, if readers see an older incarnation."""
        session = self._spark.newSession()
        self._sharing.run(session, self._storage)
        # Audits read what merges counted in their commits.
        session.conf.set("spark.databricks.delta.history.metricsEnabled", "true")
        path = self._storage.table_path(table.table)
        found = building.claim_log(session, self._storage, path, table, lambda log: self._plans.claim(table, log))
        is_building = found is not None and building.is_older(table, found[0])
        self._buildings.sweep(self._storage, table, but=table.incarnation if is_building else None)
        if is_building:
            path = self._storage.building_path(table.uuid, table.table, table.incarnation)
            found = record_alone(session, self._storage, path, lambda log: self._plans.claim(table, log))
        last, properties = (EMPTY_LEDGER, {}) if found is None else (found[1].last, found[0].properties)
        return HeldTable(
            table=table, last=last, path=path, session=session, properties=properties, is_building=is_building
        )

    def create_table(self, held: HeldTable, schema: TableSchema, sequence_num: int) -> None:
        """Replace the existing table by an empty one, or begin its building; databases are folders and need nothing."""
        table = held.table
        refuse_soft_multiset(table, schema)
        refuse_columns(schema, column_problems(schema))
        retention = max(self.config.maintenance.vacuum_retention, LOG_RETENTION_MIN)
        new = ddl.with_log_retention(ddl.new_table(table, schema, clustering=self.config.clustering), retention)
        own = Entry(table.epoch, sequence_num)
        # Where there is anything, a transaction decides what becomes of it.
        if not self._storage.names(held.path):
            with suppress(EngineNeededError):
                if self._lanes.create(held.session, self._storage, held.path, new, {table.ledger_name: own.version}):
                    held.properties = new.properties
                    return
        transaction, ledgers = self._begin(held, held.path)
        ledgers[table.ledger_name] = own.version
        if transaction.exists and exists(table, transaction.properties):
            self._check_schema(table, transaction.properties, schema)
            transaction.record(ledgers)
        else:
            if not transaction.exists and set(self._storage.names(held.path)) - {"_delta_log"}:
                raise occupied(held.path, table.table)
            template = self._storage.own_path("shapes", uuid4().hex)
            try:
                new.create(held.session, template)
                transaction.replace(template, held.session, ledgers)
            finally:
                self._storage.remove(template)
        held.properties = Transaction(held.session, held.path).properties

    def drop_table(self, held: HeldTable, sequence_num: int) -> None:
        """Leave only the log, which still holds the ledger; readers find an empty table."""
        path = self._storage.table_path(held.table.table)
        transaction, ledgers = self._begin(held, path)
        if not transaction.exists:
            return
        ledgers[held.table.ledger_name] = Entry(held.table.epoch, sequence_num).version
        # Listed before the commit: what stands there after it may be the next holder's.
        files = self._storage.files(path, besides="_delta_log")
        transaction.empty({STATE: DROPPED}, ledgers)
        for file in files:
            self._storage.remove(file)
        self._show(held, path, {**transaction.properties, STATE: DROPPED})

    def widens(self, before: pa.DataType, after: pa.DataType) -> bool:
        """Return whether Delta's type widening can do it; the same where data files are written again instead."""
        return types.widens(before, after)

    def publish(self, table: TargetTable, sequence_num: int) -> None:
        """See `LedgerTarget.publish`; a building is swapped in even if its ledger is further."""
        with self.holding(table) as held:
            if held.is_building or sequence_num > held.last:
                number = max(sequence_num, held.last)
                self.publish_table(held, number)
                held.last = number

    def publish_table(self, held: HeldTable, sequence_num: int) -> None:
        """Swap the building in, in one commit; where readers have seen the incarnation all the time, the ledger moves."""
        from replicator_target_delta.definition.swapping import swap

        if not held.is_building:
            self.move_ledger(held, sequence_num)
            return
        if held.direct is not None:
            held.direct.drop_rewrite()
        self._check_exists(held)
        recorded = Entry.of(spark_engine.check_claim(held, self._storage))
        if recorded is None or recorded.epoch != held.table.epoch:
            raise claim_lost(held.table)
        path = self._storage.table_path(held.table.table)

        def ledgers(log: Look) -> Mapping[str, int]:
            return self._plans.move(held, log, sequence_num).records

        try:
            properties = swap(held, self._storage, path, ledgers)
        except EngineNeededError as why:
            raise self.recreate(held.table, f"The new incarnation is not understood: {why}.") from why
        self._show(held, path, properties)

    def alter_table(
        self, held: HeldTable, actual: TableSchema, wanted: TableSchema, fill: pa.RecordBatch, sequence_num: int
    ) -> None:
        """Alter by one version of the log; Spark writes all rows again where new columns have values in them, or types may not be mixed."""
        from replicator_target_delta.definition.altering import alter_table
        from replicator_target_delta.definition.metadata import RefusedError

        table = held.table
        refuse_columns(wanted, column_problems(replace(wanted, columns=wanted.held, kept=())))
        if held.direct is not None:
            held.direct.drop_rewrite()
        self._sharing.run(held.session, self._storage)

        def claim(log: TableLog | None) -> Mapping[str, int]:
            if log is None or not exists(table, log.properties):
                raise self.recreate(table, "The table was dropped in the target.")
            claimed, own = self._plans.move(held, log, sequence_num), Entry.of(log.transactions.get(table.ledger_name))
            if own is None:
                raise claim_lost(table)
            check_last(table, own, held.last)
            refuse_columns_of_others(str(table.table), log.metadata)
            self._check_schema(table, log.properties, actual)
            return claimed.records

        try:
            held.properties = alter_table(
                held, self._storage, actual, wanted, fill, claim, may_mix=self.config.type_widening == "enable"
            )
        except (RefusedError, EngineNeededError) as why:
            raise self.recreate(table, f"The target table cannot be altered: {why}.", code="ddl_not_supported") from why

    def clear_table(self, held: HeldTable, sequence_num: int, below: int | None = None) -> None:
        """Clear by one direct commit, or by one DELETE or UPDATE of Spark where the direct writer refuses."""
        try:
            if not self._direct(held).clear(held.table, sequence_num, below, held.last):
                spark_engine.check_applied(held, sequence_num)
        except EngineNeededError:
            self._clear_by_spark(held, sequence_num, below)
        held.lacks_rows = held.lacks_rows and below is None

    def _clear_by_spark(self, held: HeldTable, sequence_num: int, below: int | None) -> None:
        """Clear by Spark. Where there is nothing to clear, Delta makes no commit, and the ledger moves alone."""
        from replicator_target_delta.spark import statements as merge

        self._sharing.run(held.session, self._storage)
        self._check_exists(held)
        spark_engine.check_claim(held, self._storage)
        with identified(held.session, held.table, sequence_num):
            held.session.sql(merge.clear_statement(held.path, held.table.options, sequence_num, below))
        if spark_engine.recorded(held, self._storage) != Entry(held.table.epoch, sequence_num).version:
            self.move_ledger(held, sequence_num)

    def move_ledger(self, held: HeldTable, sequence_num: int) -> None:
        """Move the ledger by one small commit without a Spark job."""
        record_alone(held.session, self._storage, held.path, lambda log: self._plans.move(held, log, sequence_num))

    def merge_batch(self, held: HeldTable, batch: Batch) -> Mapping[str, Any] | None:
        """Commit the batch directly, or let Spark merge it where the direct writer refuses."""
        table = held.table.table
        try:
            details, engine = self._apply_directly(held, batch)
        except EngineNeededError as refused:
            self._note_refusal(table, refused)
            details, engine = self._merge_by_spark(held, batch), merged_by_spark(str(refused))
        self._note_engine(table, engine)
        if details is None:
            spark_engine.check_applied(held, batch.last)
        return details

    def rest_s(self, table: TableId, *, is_behind: bool) -> float:
        """The rest of `apply.max_wait` after a direct commit; 0 for a table that lags."""
        return 0.0 if is_behind else self._pace.rest_s(table)

    def rows_max(self, table: TableId) -> int | None:
        """The best number of changes for one direct commit, unless the table is one that Spark merges."""
        is_direct = self.config.engine == "auto" and table not in self._sparks
        return self._rows_max.get(table, DIRECT_ROWS) if is_direct else None

    def engine(self, table: TableId) -> EngineReport | None:
        """The engine of the last batch: the direct writer, or Spark and why."""
        return self._engines.get(table)

    def _direct(self, held: HeldTable) -> DirectTable:
        """The table's direct writer, opened when it is first needed."""
        if held.direct is None:
            held.direct = self._lanes.open(held.session, self._storage, held.path)
        return held.direct

    def _apply_directly(self, held: HeldTable, batch: Batch) -> tuple[Mapping[str, Any] | None, EngineReport]:
        """Apply by the direct writer; rows of a batch that is too large for it are found and written by Spark.

        Raises:
            EngineNeededError: Nothing was changed; Spark must merge the batch.
        """
        direct, engine, began = self._direct(held), DIRECT, self._pace.now()
        try:
            self._check_last_refusal(held.table.table, batch)
            details, written = direct.apply(held.table, batch, held.last)
            self._sparks.discard(held.table.table)
        except TooLargeError as refused:
            self._note_refusal(held.table.table, refused)
            if not refused.is_of_table and _ROWS_MIN < batch.rows <= DIRECT_ROWS:
                # Too many bytes: its rows are large.
                self._rows_max[held.table.table] = max(_ROWS_MIN, batch.rows // 2)
            details, written = self._apply_bulk(held, batch, direct)
            engine = found_by_spark(str(refused))
        self._pace.committed(held.table.table, began, written)
        return details, engine

    def _check_last_refusal(self, table: TableId, batch: Batch) -> None:
        """Refuse a large batch, unread, of a table whose last one was refused because of the table. Smaller ones try again."""
        if table in self._sparks and batch.rows > DIRECT_ROWS and not batch.is_append:
            raise TooLargeError(KEYS_TOO_LARGE, is_of_table=True)

    def _note_refusal(self, table: TableId, refused: EngineNeededError) -> None:
        if refused.is_of_table:
            self._sparks.add(table)

    def _note_engine(self, table: TableId, engine: EngineReport) -> None:
        before = self._engines.get(table, DIRECT)
        if engine != before and "L0" in (engine.rung, before.rung):
            _log.info("engine_changed", table=str(table), rung=engine.rung, reason=engine.reason)
        self._engines[table] = engine

    def _apply_bulk(self, held: HeldTable, batch: Batch, direct: DirectTable) -> tuple[Mapping[str, Any] | None, int]:
        from replicator_target_delta.spark.fold import bulk_of

        self._sharing.run(held.session, self._storage)
        try:
            with (
                readable_files([file.uri for file in batch.files], batch.schema, self._storage) as uris,
                bulk_of(held, batch, uris) as bulk,
            ):
                return direct.apply_bulk(held.table, batch, bulk, held.last)
        except EngineNeededError as refused:
            raise TooLargeError(str(refused)) from refused  # of this batch

    def _merge_by_spark(self, held: HeldTable, batch: Batch) -> Mapping[str, Any] | None:
        """Merge, or append where the batch allows it."""
        self._sharing.run(held.session, self._storage)
        self._check_exists(held)
        self._check_schema(held.table, held.properties, batch.schema)
        with readable_files([file.uri for file in batch.files], batch.schema, self._storage) as uris:
            return spark_engine.apply_batch(held, batch, uris, self._storage)

    def audit(self, table: TargetTable, since: str | None) -> Audit:
        """Audit the commits since then, without Spark; every few minutes also check that the log and all files are there."""
        with translated(str(table.table)):
            held = super().held(table)
            path = self._storage.table_path(table.table)
            where = building.path_of(self._storage, table, read_log(self._storage, path)) if held is None else held.path
            self._files.check(self._storage, where, table, None if held is None else held.direct)
            return history.audit(self._storage, where, table, since, is_building=where != path)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Carry out upkeep that is due; a merge that comes meanwhile cuts it short, and a commit that it loses against is no error."""
        held = self.held(table)
        if held is None or not self.config.maintenance.enabled or not exists(table, held.properties):
            return None
        with translated(str(table.table), path=held.path):
            if held.direct is not None:
                held.direct.check()
                held.direct.finish(table)
            now = datetime.now(UTC)
            # Not the session of the merges, whose statements may have an identifier at this moment.
            session = self._spark.newSession()
            # Before executors read the log.
            self._sharing.run(session, self._storage)
            condition = self._condition(held, session, maintenance.last_vacuum(self._storage, held.path, now))
            kind = maintenance.due(condition, self.config.maintenance, now)
            if kind is None:
                return None
            retention = self.config.maintenance.vacuum_retention
            if held.direct is not None and not held.direct.make_way(kind, retention):
                return None
            work = (session, self._storage, held.path, self._turns(table.table), kind, self.config.maintenance, now)
            if held.direct is None or maintenance.takes_turn(kind, retention):
                outcome = upkeep.run(*work)
            elif held.direct.vacuum(upkeep.run, *work):
                outcome = "begun"
            else:
                return None
        return maintenance.report(kind, condition, outcome)

    # -- one table ----------------------------------------------------------------------------------------------------

    @property
    def _storage(self) -> Storage:
        if self._storage_or_none is None:
            self._storage_or_none = Storage(self._root)
        return self._storage_or_none

    @property
    def _spark(self) -> Any:
        if self.context.spark is None:
            raise FatalError(
                "The Delta Lake target needs Spark, but the host did not provide it.", code="spark_missing"
            )
        return self.context.spark()

    def _turns(self, table: TableId) -> maintenance.Turns:
        with self._lock:
            return self._turns_of.setdefault(table, maintenance.Turns())

    def _begin(self, held: HeldTable, path: str) -> tuple[Transaction, dict[str, int]]:
        """A transaction on a table that is still ours to change, and the ledgers to record in it."""
        transaction = Transaction(held.session, path)
        return transaction, dict(self._plans.next(held, transaction).records) if transaction.exists else {}

    def _show(self, held: HeldTable, path: str, properties: Mapping[str, str]) -> None:
        """Hold the incarnation at the path at which readers see it now."""
        held.path, held.properties, held.direct = path, properties, None
        if held.is_building:
            held.is_building = False
            self._buildings.sweep(self._storage, held.table)

    def _check_exists(self, held: HeldTable) -> None:
        """Check that the table of this incarnation exists, before rows change; one that was dropped has to be recreated."""
        if not exists(held.table, held.properties):
            raise self.recreate(held.table, "The table was dropped in the target.")

    def _check_schema(self, table: TargetTable, properties: Mapping[str, str], schema: TableSchema) -> None:
        if properties.get(SCHEMA) != ddl.schema_mark(schema, table.options):
            raise self.recreate(
                table,
                "The target table was created with another schema or other settings: columns, types, key, deletes or"
                " source_timestamp differ.",
            )

    def let_go(self, table: TableId) -> None:
        """See `LedgerTarget.let_go`; a rewrite in progress is given up."""
        with self._lock:
            held = self._held.get(table)
        if held is not None and held.direct is not None:
            held.direct.drop_rewrite()
        super().let_go(table)

    def close(self) -> None:
        """See `LedgerTarget.close`; no upkeep is begun."""
        super().close()
        self._lanes.close()

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def _condition(self, held: HeldTable, session: Any, last_vacuum: datetime) -> maintenance.Condition:
        if held.direct is not None:
            with suppress(EngineNeededError):
                return held.direct.condition(last_vacuum)
        return maintenance.condition_of(session, held.path, self.config.maintenance, last_vacuum)
