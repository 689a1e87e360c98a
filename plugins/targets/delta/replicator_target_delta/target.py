"""The Delta Lake target: checks paths, claims tables, applies DDL and batches, each with its ledger entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pyarrow.fs as pafs

from replicator.model.errors import FatalError, Problem, TableError
from replicator.model.naming import check_names, refuse_columns
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.ledger import Held, LedgerTarget, fenced, not_ours
from replicator.plugins.target import EMPTY_LEDGER, Audit, Batch, Ledger, SparkNeeds, TargetContext, TargetTable
from replicator_target_delta import ddl, history, maintenance
from replicator_target_delta.check import existing_problems, length_problems, path_problems
from replicator_target_delta.comments import comment_notices
from replicator_target_delta.config import DeltaConfig
from replicator_target_delta.errors import is_concurrent, is_missing, translated
from replicator_target_delta.ledger import (
    EPOCH_MAX,
    Entry,
    Transaction,
    adopted,
    claim_lost,
    entries_of,
    exists,
    identified,
    plan_claim,
)
from replicator_target_delta.names import column_problems
from replicator_target_delta.rewrite import readable_files
from replicator_target_delta.sharing import SharingCheck
from replicator_target_delta.spark import SPARK_NEEDS
from replicator_target_delta.storage import DROP_MARK, Storage, absolute
from replicator_target_delta.tablelog import DROPPED, SCHEMA, STATE, UUID, DamagedLogError, read_log
from replicator_target_delta.types import type_problems

if TYPE_CHECKING:
    from replicator_target_delta.merging import Merging


@dataclass(slots=True, kw_only=True)
class HeldTable(Held):
    """A table that this process has claimed."""

    path: str
    session: Any
    """A SparkSession of its own: a transaction's identifier is a setting of the session."""
    properties: Mapping[str, str]
    lacks_rows: bool = False
    """A merge found that rows are missing: until a snapshot or another process, they are counted before each merge."""


class DeltaLakeTarget(LedgerTarget[DeltaConfig, HeldTable]):
    """Tables of a Delta lake, each at `<path>/<namespace>/<table>`.

    Every change of a table is one commit of its log, and each such commit carries the ledger. A crash before it
    leaves files that no version names (VACUUM removes them), a crash after it is found by the next `claim`.
    """

    type_name: ClassVar[str] = "delta"
    config_model: ClassVar[type[DeltaConfig]] = DeltaConfig
    sees_others: ClassVar[bool] = True
    spark_needs: ClassVar[SparkNeeds | None] = SPARK_NEEDS

    def __init__(self, config: DeltaConfig, context: TargetContext) -> None:
        super().__init__(config, context)
        self._root = absolute(config.path)
        self._turns_of: dict[TableId, maintenance.Turns] = {}
        self._storage_or_none: Storage | None = None
        self._sharing = SharingCheck()

    # -- without Spark ------------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        """The absolute path or URI."""
        return {"path": self._root}

    def check(self, tables: Sequence[TableSchema]) -> Sequence[Problem]:
        """Check the path, what exists at each table's path, types and names."""
        problems = [*path_problems(lambda: self._storage, self._root), *check_names(schema.table for schema in tables)]
        is_reachable = not problems or problems[0].place != "target.path"
        for schema in tables:
            problems += [*column_problems(schema), *type_problems(schema), *comment_notices(schema)]
            problems += length_problems(self._root, schema.table)
            if is_reachable:
                problems += existing_problems(self._storage, schema.table, self.context.uuid, self.config.adopt)
        return problems

    def drop(self, table: TargetTable) -> None:
        """Remove the table's folder: first its data, then its log, last the mark that says whose it was. Nothing if it is another's."""
        path = self._storage.table_path(table.table)
        mark = f"{path}/{DROP_MARK}"
        with translated(str(table.table)):
            is_marked = self._is_marked(mark, table)
            try:
                log = read_log(self._storage, path)
            except DamagedLogError:
                if not is_marked:
                    raise
                log = None  # what an attempt before left of it
            if log is not None:
                if log.properties.get(UUID) != table.uuid:
                    return
                self._storage.write_json(mark, {"uuid": table.uuid})
            elif not is_marked:
                return
            names = sorted(self._storage.names(path), key=lambda name: (name == DROP_MARK, name == "_delta_log"))
            for name in names:
                self._storage.remove(f"{path}/{name}")
            self._storage.remove(path)
        self.let_go(table.table)

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """The table's newest transaction identifier of ours, by two or three small files of its log."""
        with translated(str(table.table)):
            log = read_log(self._storage, self._storage.table_path(table.table))
        if log is None or log.properties.get(UUID) != table.uuid:
            return None
        entries = entries_of(table, log.transactions)
        if not entries:
            return None
        incarnation, entry = max(entries.items())
        if entry.epoch == EPOCH_MAX:
            raise adopted(table)
        return Ledger(incarnation=incarnation, epoch=entry.epoch, last_applied=entry.last)

    # -- with Spark ---------------------------------------------------------------------------------------------------

    @contextmanager
    def working_on(self, table: TargetTable, batch: Batch | None = None) -> Iterator[None]:
        """Take the table's turn from upkeep; errors of Spark and Delta become ours."""
        uris = () if batch is None else tuple(file.uri for file in batch.files)
        with translated(str(table.table), files=uris), self._turns(table.table).writing():
            yield

    def held(self, table: TargetTable) -> HeldTable | None:
        """What is held, unless the host's Spark is another one by now."""
        held = super().held(table)
        return held if held is not None and held.session.sparkContext is self._spark.sparkContext else None

    def claim_table(self, table: TargetTable) -> HeldTable:
        """Record this epoch in every ledger of the table, in one commit."""
        session = self._spark.newSession()
        self._sharing.run(session, self._storage)
        # Audits read what merges counted in their commits.
        session.conf.set("spark.databricks.delta.history.metricsEnabled", "true")
        path = self._storage.table_path(table.table)
        transaction = Transaction(session, path)
        last = EMPTY_LEDGER
        if transaction.exists:
            claimed = plan_claim(
                table, transaction.transactions, transaction.properties, may_adopt=self.config.adopt == "replace"
            )
            last = claimed.last
            if claimed.records:
                transaction.record(claimed.records)
        return HeldTable(table=table, last=last, path=path, session=session, properties=transaction.properties)

    def create_table(self, held: HeldTable, schema: TableSchema, sequence_num: int) -> None:
        """Replace what is there by an empty table; databases are folders and need nothing."""
        table = held.table
        refuse_columns(schema, column_problems(schema))
        transaction, ledgers = self._begin(held)
        ledgers[table.ledger_name] = Entry(table.epoch, sequence_num).version
        if transaction.exists and exists(table, transaction.properties):
            self._check_schema(table, transaction.properties, schema)
            transaction.record(ledgers)
        else:
            if not transaction.exists and set(self._storage.names(held.path)) - {"_delta_log"}:
                raise TableError(
                    f"{held.path} contains files but is not a Delta table.",
                    code="target_occupied",
                    table=str(table.table),
                    action="Move the folder away, or choose another target.path.",
                )
            template = self._storage.own_path("shapes", uuid4().hex)
            try:
                ddl.new_table(table, schema, clustering=self.config.clustering).create(held.session, template)
                transaction.replace(template, held.session, ledgers)
            finally:
                self._storage.remove(template)
        held.properties = Transaction(held.session, held.path).properties

    def drop_table(self, held: HeldTable, sequence_num: int) -> None:
        """Leave only the log, which still holds the ledger; readers find an empty table."""
        transaction, ledgers = self._begin(held)
        if not transaction.exists:
            return
        ledgers[held.table.ledger_name] = Entry(held.table.epoch, sequence_num).version
        # Listed before the commit: what stands there after it may be the next holder's.
        files = self._storage.files(held.path, besides="_delta_log")
        transaction.empty({STATE: DROPPED}, ledgers)
        for file in files:
            self._storage.remove(file)
        held.properties = {**held.properties, STATE: DROPPED}

    def clear_table(self, held: HeldTable, sequence_num: int, below: int | None = None) -> None:
        """One DELETE or UPDATE; where there is nothing to clear, Delta makes no commit, and the ledger moves alone."""
        from replicator_target_delta import merge

        self._sharing.run(held.session, self._storage)
        self._check_exists(held)
        self._check_claim(held)
        with identified(held.session, held.table, sequence_num):
            held.session.sql(merge.clear_statement(held.path, held.table.options, sequence_num, below))
        if self._recorded(held) != Entry(held.table.epoch, sequence_num).version:
            self.move_ledger(held, sequence_num)
        held.lacks_rows = held.lacks_rows and below is None

    def move_ledger(self, held: HeldTable, sequence_num: int) -> None:
        """One small commit without a Spark job on data."""
        transaction, ledgers = self._begin(held)
        if transaction.exists:
            ledgers[held.table.ledger_name] = Entry(held.table.epoch, sequence_num).version
            transaction.record(ledgers)

    def merge_batch(self, held: HeldTable, batch: Batch) -> Mapping[str, Any] | None:
        """Merge, or append where the batch allows it."""
        self._sharing.run(held.session, self._storage)
        self._check_exists(held)
        self._check_schema(held.table, held.properties, batch.schema)
        with readable_files([file.uri for file in batch.files], batch.schema, self._storage) as uris:
            details = self._write(held, batch, uris)
        if details is None:
            self._check_applied(held, batch.last)
        return details

    def audit(self, table: TargetTable, since: str | None) -> Audit:
        """What the commits since then say, without Spark."""
        with translated(str(table.table)):
            return history.audit(self._storage, self._storage.table_path(table.table), table, since)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Do what is due; a merge that comes meanwhile cuts it short, and a commit that it loses against is no error."""
        held = self.held(table)
        if held is None or not self.config.maintenance.enabled or not exists(table, held.properties):
            return None
        # Not the session of the merges, whose statements may have an identifier at this moment.
        session = self._spark.newSession()
        with translated(str(table.table)):
            now = datetime.now(UTC)
            condition = maintenance.condition_of(
                session, held.path, self.config.maintenance, self._last_vacuum(held.path, now)
            )
            upkeep = maintenance.due(condition, self.config.maintenance, now)
            if upkeep is None:
                return None
            outcome = self._maintain(session, held.path, self._turns(table.table), upkeep, now)
        return maintenance.report(upkeep, condition, outcome)

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

    def _is_marked(self, mark: str, table: TargetTable) -> bool:
        """Whether an attempt to delete the table had begun; a mark that is not whole says nothing."""
        if self._storage.kind(mark) is pafs.FileType.NotFound:
            return False
        try:
            return bool(json.loads(self._storage.read(mark)) == {"uuid": table.uuid})
        except ValueError:
            return False

    def _turns(self, table: TableId) -> maintenance.Turns:
        with self._lock:
            return self._turns_of.setdefault(table, maintenance.Turns())

    def _begin(self, held: HeldTable) -> tuple[Transaction, dict[str, int]]:
        """A transaction on a table that is still ours to change, and the ledgers to record in it."""
        table, transaction = held.table, Transaction(held.session, held.path)
        if not transaction.exists:
            return transaction, {}
        claimed = plan_claim(
            table, transaction.transactions, transaction.properties, may_adopt=self.config.adopt == "replace"
        )
        if claimed.last > held.last:
            own = Entry.of(transaction.transactions.get(table.ledger_name))
            if own is not None and own.epoch < table.epoch:
                # Created by an older epoch after we had claimed a path without a table.
                raise claim_lost(table)
            # Somebody of our own epoch applied something: only a second process with our lease could.
            raise fenced(table, table.epoch, table.incarnation)
        return transaction, dict(claimed.records)

    def _check_exists(self, held: HeldTable) -> None:
        """What changes rows needs a table of this incarnation; one that was dropped has to be recreated."""
        if not exists(held.table, held.properties):
            raise self.recreate(held.table, "The table was dropped in the target.")

    def _check_schema(self, table: TargetTable, properties: Mapping[str, str], schema: TableSchema) -> None:
        if properties.get(SCHEMA) != ddl.schema_mark(schema, table.options):
            raise self.recreate(
                table,
                "The target table was created with another schema or other settings: columns, types, key, deletes or"
                " source_timestamp differ.",
            )

    def _check_claim(self, held: HeldTable) -> int:
        """What our ledger in the table's log says now, as Delta keeps it.

        Delta compares a statement's identifier with the log that it finds: in one that was recreated since we claimed
        the table it finds nothing to compare with.

        Raises:
            TableError: `not_ours`.
            TargetUnavailableError: Our claim is not there.
        """
        table, log = held.table, read_log(self._storage, held.path)
        if log is not None and log.properties.get(UUID) != table.uuid:
            raise not_ours(table.table, log.properties.get(UUID), "target.path")
        recorded = None if log is None else log.transactions.get(table.ledger_name)
        if recorded is None:
            raise claim_lost(table)
        return recorded

    def _write(self, held: HeldTable, batch: Batch, uris: Sequence[str]) -> Mapping[str, Any] | None:
        """Write the batch; None if Delta skipped it."""
        from replicator.spark.journal import read_changes
        from replicator_target_delta import merge
        from replicator_target_delta.merging import merging_of

        recorded = self._check_claim(held)
        changes = read_changes(held.session, uris, batch.schema, skip_to=batch.skip_to)
        if batch.is_append:
            return self._append(held, batch, changes, recorded)
        merging = merging_of(held.session, held.path, held.table, batch, changes)
        merging.source.createOrReplaceTempView(merge.VIEW)
        try:
            counts = self._merge(held, batch, merging)
        finally:
            held.session.catalog.dropTempView(merge.VIEW)
        return {"way": "merge", **counts[0].asDict()} if counts else None

    def _merge(self, held: HeldTable, batch: Batch, merging: Merging) -> Any:
        """Run the merge; its counts, none if Delta skipped it.

        As long as nothing is missing, the merge itself sees that. One that fails because a row is missing has committed nothing: what
        is missing is counted, and the batch merged all the same.
        """
        if merging.checked is not None and not held.lacks_rows:
            try:
                with identified(held.session, held.table, batch.last):
                    return held.session.sql(merging.checked).collect()
            except Exception as error:
                if not is_missing(error):
                    raise
                held.lacks_rows = True
        with identified(held.session, held.table, batch.last, merging.note() if batch.expects_rows else None):
            return held.session.sql(merging.statement).collect()

    def _append(self, held: HeldTable, batch: Batch, changes: Any, recorded: int) -> Mapping[str, Any] | None:
        from replicator_target_delta import merge

        rows = merge.append_rows(changes, batch.schema, held.table.options)
        # Unlike a merge, an append does not say whether Delta skipped it: the log does, by the number it had before
        # and has now.
        version = Entry(held.table.epoch, batch.last).version
        if recorded >= version:
            return None
        with identified(held.session, held.table, batch.last):
            rows.write.format("delta").mode("append").save(held.path)
        return {"way": "append", "rows": batch.rows} if self._recorded(held) == version else None

    def _recorded(self, held: HeldTable) -> int | None:
        log = read_log(self._storage, held.path)
        return log.transactions.get(held.table.ledger_name) if log else None

    def _check_applied(self, held: HeldTable, last: int) -> None:
        """After Delta skipped a write: who has written it?

        Raises:
            FencedError: A newer epoch holds the table.
            FatalError: Nobody did it: ledger and statement disagree.
        """
        table = held.table
        entry = Entry.of(Transaction(held.session, held.path).transactions.get(table.ledger_name))
        if entry is not None and entry.epoch > table.epoch:
            raise fenced(table, entry.epoch, table.incarnation)
        if entry is None or entry.last < last:
            raise FatalError(
                f"Delta skipped a batch up to {last}, and the ledger says {entry}.",
                code="ledger_disagrees",
                table=str(table.table),
            )

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def _maintain(
        self, session: Any, path: str, turns: maintenance.Turns, upkeep: maintenance.Upkeep, now: datetime
    ) -> str:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from replicator.spark.session import spark_error

        tag = f"upkeep-{uuid4().hex}"
        retention = self.config.maintenance.vacuum_retention
        try:
            with ExitStack() as stack:
                takes_turn = maintenance.takes_turn(upkeep, retention)
                if takes_turn and not stack.enter_context(turns.upkeep(session, tag)):
                    return "merge_in_progress"
                was_done = maintenance.carry_out(session, upkeep, path, self.config.maintenance)
            if upkeep is maintenance.Upkeep.VACUUM:
                Transaction(session, path).record({maintenance.VACUUM_LEDGER: int(now.timestamp())})
        except (PySparkException, Py4JError) as error:
            # A merge is what matters: upkeep that met one is simply done another time.
            if is_concurrent(error):
                return "lost_to_another_commit"
            # A job is also cancelled when Spark ends.
            if turns.is_cut and "cancelled" in str(error).lower() and spark_error(error) is None:
                return "cut_short_by_a_merge"
            raise
        turns.done()
        return "done" if was_done else "nothing_to_do"

    def _last_vacuum(self, path: str, now: datetime) -> datetime:
        log = read_log(self._storage, path)
        if log is None:
            return now
        seconds = log.transactions.get(maintenance.VACUUM_LEDGER)
        return datetime.fromtimestamp(seconds, UTC) if seconds is not None else log.created
