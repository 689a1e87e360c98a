"""The Delta Lake target: checks paths, claims tables, applies DDL and batches, each with its ledger entry."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pyarrow.fs as pafs

from replicator.model.crash import crash_point
from replicator.model.errors import FatalError, Problem, SchemaConflictError, TableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.model.naming import check_names, refuse_columns
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import (
    EMPTY_LEDGER,
    Audit,
    Batch,
    BatchResult,
    Claim,
    DeltaTarget,
    Ledger,
    SparkNeeds,
    TargetContext,
    TargetTable,
)
from replicator_target_delta import ddl, history, maintenance
from replicator_target_delta.check import length_problems, path_problems, place_problems
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
    fenced,
    identified,
    not_ours,
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


@dataclass(slots=True)
class _Held:
    """What this process knows of a table that it has claimed."""

    session: Any
    """A SparkSession of its own: a transaction's identifier is a setting of the session."""
    ledger_name: str
    epoch: int
    last: int
    properties: Mapping[str, str]
    lacks_rows: bool = False
    """A merge found that rows are missing: until a snapshot or another process, they are counted before each merge."""


@dataclass(slots=True)
class _Place:
    """A table in the target: its path, whose turn it is, and what is held there."""

    path: str
    turns: maintenance.Turns = field(default_factory=maintenance.Turns)
    held: _Held | None = None


class DeltaLakeTarget(DeltaTarget[DeltaConfig]):
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
        self._lock = threading.Lock()
        self._places: dict[TableId, _Place] = {}
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
                problems += place_problems(self._storage, schema.table, self.context.uuid, self.config.adopt)
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
        with self._lock:
            self._places.pop(table.table, None)

    def read_ledger(self, table: TargetTable) -> Ledger | None:
        """The table's newest transaction identifier of ours, by two or three small files of its log."""
        with translated(str(table.table)):
            log = read_log(self._storage, self._place(table.table).path)
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

    def claim(self, table: TargetTable) -> Claim:
        """Record this epoch in every ledger of the table, in one commit, and say what ours says."""
        place = self._place(table.table)
        with translated(str(table.table), path=place.path), place.turns.writing():
            held = self._claim(table, place)
            return Claim(last_applied=held.last)

    def apply_ddl(self, table: TargetTable, event: DDLEvent, sequence_num: int) -> None:
        """CREATE_TABLE, DROP_TABLE and TRUNCATE_TABLE; databases are folders and need nothing."""
        place = self._place(table.table)
        with translated(str(table.table), path=place.path), place.turns.writing():
            held = self._holding(table, place)
            if sequence_num <= held.last:
                return
            crash_point("target.before_ddl")
            match event.operation:
                case DDLOperation.CREATE_TABLE:
                    self._create(table, place, held, event, sequence_num)
                case DDLOperation.DROP_TABLE:
                    self._drop_table(table, place, held, sequence_num)
                case DDLOperation.TRUNCATE_TABLE:
                    self._clear(table, place, held, sequence_num)
                case DDLOperation.CREATE_DATABASE | DDLOperation.DROP_DATABASE:
                    self._advance(table, place, held, sequence_num)
                case _:
                    raise SchemaConflictError(
                        f"{event.operation} is not supported by the Delta Lake target yet.",
                        code="ddl_not_supported",
                        table=str(table.table),
                        action="Take a new snapshot of the table.",
                    )
            crash_point("target.after_ddl")

    def apply_batch(self, table: TargetTable, batch: Batch) -> BatchResult:
        """Fold and merge; or append, or only move the ledger, where that is all there is to do."""
        place = self._place(table.table)
        uris = tuple(file.uri for file in batch.files)
        with translated(str(table.table), path=place.path, files=uris), place.turns.writing():
            held = self._holding(table, place)
            if batch.last <= held.last:
                return BatchResult(was_skipped=True)
            if not uris or not batch.rows:
                self._advance(table, place, held, batch.last)
                return BatchResult(details={"way": "advance"})
            self._check_exists(table, held)
            if held.properties.get(SCHEMA) != ddl.schema_mark(batch.schema, table.options):
                raise ddl.schema_conflict(table, self.context.replicator)
            crash_point("target.before_merge")
            with readable_files(uris, batch.schema, self._storage) as readable:
                details = self._write(table, place, held, batch, readable)
            crash_point("target.after_merge")
            if details is None:
                self._find_out(table, place, held, batch.last)
                return BatchResult(was_skipped=True)
            held.last = batch.last
            return BatchResult(details=details)

    def audit(self, table: TargetTable, since: str | None) -> Audit:
        """What the commits since then say, without Spark."""
        with translated(str(table.table)):
            return history.audit(self._storage, self._place(table.table).path, table, since)

    def complete_snapshot(self, table: TargetTable, start_number: int, sequence_num: int) -> None:
        """Delete (soft: mark) what the snapshot did not find."""
        place = self._place(table.table)
        with translated(str(table.table), path=place.path), place.turns.writing():
            held = self._holding(table, place)
            if sequence_num > held.last:
                self._clear(table, place, held, sequence_num, below=start_number)
                held.lacks_rows = False

    def advance(self, table: TargetTable, sequence_num: int) -> None:
        """Record the number alone, in one small commit without a Spark job on data."""
        place = self._place(table.table)
        with translated(str(table.table), path=place.path), place.turns.writing():
            held = self._holding(table, place)
            if sequence_num > held.last:
                self._advance(table, place, held, sequence_num)

    def maintain(self, table: TargetTable) -> Mapping[str, Any] | None:
        """Do what is due; a merge that comes meanwhile cuts it short, and a commit that it loses against is no error."""
        place = self._place(table.table)
        held = place.held
        if held is None or not self.config.maintenance.enabled or not exists(table, held.properties):
            return None
        # Not the session of the merges, whose statements may have an identifier at this moment.
        session = self._spark.newSession()
        with translated(str(table.table), path=place.path):
            now = datetime.now(UTC)
            condition = maintenance.condition_of(
                session, place.path, self.config.maintenance, self._last_vacuum(place, now)
            )
            upkeep = maintenance.due(condition, self.config.maintenance, now)
            if upkeep is None:
                return None
            outcome = self._maintain(session, place, upkeep, now)
        return maintenance.report(upkeep, condition, outcome)

    def close(self) -> None:
        """Forget what is held; Spark is the host's."""
        with self._lock:
            self._places.clear()

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

    def _place(self, table: TableId) -> _Place:
        with self._lock:
            return self._places.setdefault(table, _Place(self._storage.table_path(table)))

    def _holding(self, table: TargetTable, place: _Place) -> _Held:
        """What is held, claimed first if this process has not, or if its Spark is another one by now."""
        held = place.held
        spark = self._spark
        if (
            held is None
            or (held.ledger_name, held.epoch) != (table.ledger_name, table.epoch)
            or held.session.sparkContext is not spark.sparkContext
        ):
            return self._claim(table, place)
        self._sharing.run(held.session, self._storage)
        return held

    def _claim(self, table: TargetTable, place: _Place) -> _Held:
        session = self._spark.newSession()
        self._sharing.run(session, self._storage)
        # Audits read what merges counted in their commits.
        session.conf.set("spark.databricks.delta.history.metricsEnabled", "true")
        transaction = Transaction(session, place.path)
        last = EMPTY_LEDGER
        if transaction.exists:
            claimed = plan_claim(
                table, transaction.transactions, transaction.properties, may_adopt=self.config.adopt == "replace"
            )
            last = claimed.last
            if claimed.records:
                transaction.record(claimed.records)
        crash_point("target.claimed")
        place.held = _Held(session, table.ledger_name, table.epoch, last, transaction.properties)
        return place.held

    def _begin(self, table: TargetTable, place: _Place, held: _Held) -> tuple[Transaction, dict[str, int]]:
        """A transaction on a table that is still ours to change, and the ledgers to record in it."""
        transaction = Transaction(held.session, place.path)
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
            raise fenced(table, table.epoch)
        return transaction, dict(claimed.records)

    def _check_exists(self, table: TargetTable, held: _Held) -> None:
        """What changes rows needs a table of this incarnation; one that was dropped has to be recreated."""
        if not exists(table, held.properties):
            raise ddl.table_missing(table, self.context.replicator)

    def _check_claim(self, table: TargetTable, place: _Place) -> int:
        """What our ledger in the table's log says now, as Delta keeps it.

        Delta compares a statement's identifier with the log that it finds: in one that was recreated since we claimed
        the table it finds nothing to compare with.

        Raises:
            TableError: `not_ours`.
            TargetUnavailableError: Our claim is not there.
        """
        log = read_log(self._storage, place.path)
        if log is not None and log.properties.get(UUID) != table.uuid:
            raise not_ours(table, log.properties.get(UUID))
        recorded = None if log is None else log.transactions.get(table.ledger_name)
        if recorded is None:
            raise claim_lost(table)
        return recorded

    def _create(self, table: TargetTable, place: _Place, held: _Held, event: DDLEvent, sequence_num: int) -> None:
        assert event.schema is not None
        refuse_columns(event.schema, column_problems(event.schema))
        transaction, ledgers = self._begin(table, place, held)
        ledgers[table.ledger_name] = Entry(table.epoch, sequence_num).version
        if transaction.exists and exists(table, transaction.properties):
            if transaction.properties.get(SCHEMA) != ddl.schema_mark(event.schema, table.options):
                raise ddl.schema_conflict(table, self.context.replicator)
            transaction.record(ledgers)
        else:
            if not transaction.exists and set(self._storage.names(place.path)) - {"_delta_log"}:
                raise TableError(
                    f"{place.path} contains files but is not a Delta table.",
                    code="target_occupied",
                    table=str(table.table),
                    action="Move the folder away, or choose another target.path.",
                )
            template = self._storage.own_path("shapes", uuid4().hex)
            try:
                ddl.new_table(table, event.schema, clustering=self.config.clustering).create(held.session, template)
                transaction.replace(template, held.session, ledgers)
            finally:
                self._storage.remove(template)
        held.properties = Transaction(held.session, place.path).properties
        held.last = sequence_num

    def _drop_table(self, table: TargetTable, place: _Place, held: _Held, sequence_num: int) -> None:
        """Leave only the log, which still holds the ledger; readers find an empty table."""
        transaction, ledgers = self._begin(table, place, held)
        if not transaction.exists:
            held.last = sequence_num
            return
        ledgers[table.ledger_name] = Entry(table.epoch, sequence_num).version
        # Listed before the commit: what stands there after it may be the next holder's.
        files = self._storage.files(place.path, besides="_delta_log")
        transaction.empty({STATE: DROPPED}, ledgers)
        for file in files:
            self._storage.remove(file)
        held.properties = {**held.properties, STATE: DROPPED}
        held.last = sequence_num

    def _clear(
        self, table: TargetTable, place: _Place, held: _Held, sequence_num: int, below: int | None = None
    ) -> None:
        from replicator_target_delta import merge

        self._check_exists(table, held)
        self._check_claim(table, place)
        with identified(held.session, table, sequence_num):
            held.session.sql(merge.clear_statement(place.path, table.options, sequence_num, below))
        # Where there was nothing to clear, Delta makes no commit.
        self._advance(table, place, held, sequence_num, may_be_there=True)

    def _advance(
        self, table: TargetTable, place: _Place, held: _Held, sequence_num: int, *, may_be_there: bool = False
    ) -> None:
        if may_be_there and self._recorded(place, table) == Entry(table.epoch, sequence_num).version:
            held.last = sequence_num
            return
        transaction, ledgers = self._begin(table, place, held)
        if transaction.exists:
            ledgers[table.ledger_name] = Entry(table.epoch, sequence_num).version
            transaction.record(ledgers)
        held.last = sequence_num

    def _write(
        self, table: TargetTable, place: _Place, held: _Held, batch: Batch, uris: Sequence[str]
    ) -> dict[str, Any] | None:
        """Write the batch; None if Delta skipped it."""
        from replicator.spark.journal import read_changes
        from replicator_target_delta import merge
        from replicator_target_delta.merging import merging_of

        recorded = self._check_claim(table, place)
        changes = read_changes(held.session, uris, batch.schema, skip_to=batch.skip_to)
        if batch.is_append:
            return self._append(table, place, held, batch, changes, recorded)
        merging = merging_of(held.session, place.path, table, batch, changes)
        merging.source.createOrReplaceTempView(merge.VIEW)
        try:
            counts = self._merge(table, held, batch, merging)
        finally:
            held.session.catalog.dropTempView(merge.VIEW)
        return {"way": "merge", **counts[0].asDict()} if counts else None

    def _merge(self, table: TargetTable, held: _Held, batch: Batch, merging: Merging) -> Any:
        """Run the merge; its counts, none if Delta skipped it.

        As long as nothing is missing, the merge itself sees that. One that fails because a row is missing has committed nothing: what
        is missing is counted, and the batch merged all the same.
        """
        if merging.checked is not None and not held.lacks_rows:
            try:
                with identified(held.session, table, batch.last):
                    return held.session.sql(merging.checked).collect()
            except Exception as error:
                if not is_missing(error):
                    raise
                held.lacks_rows = True
        with identified(held.session, table, batch.last, merging.note() if batch.expects_rows else None):
            return held.session.sql(merging.statement).collect()

    def _append(
        self, table: TargetTable, place: _Place, held: _Held, batch: Batch, changes: Any, recorded: int
    ) -> dict[str, Any] | None:
        from replicator_target_delta import merge

        rows = merge.append_rows(changes, batch.schema, table.options)
        # Unlike a merge, an append does not say whether Delta skipped it: the log does, by the number it had before
        # and has now.
        version = Entry(table.epoch, batch.last).version
        if recorded >= version:
            return None
        with identified(held.session, table, batch.last):
            rows.write.format("delta").mode("append").save(place.path)
        return {"way": "append", "rows": batch.rows} if self._recorded(place, table) == version else None

    def _recorded(self, place: _Place, table: TargetTable) -> int | None:
        log = read_log(self._storage, place.path)
        return log.transactions.get(table.ledger_name) if log else None

    def _find_out(self, table: TargetTable, place: _Place, held: _Held, last: int) -> None:
        """After Delta skipped a write: say by whom it was done.

        Raises:
            FencedError: A newer epoch holds the table.
            FatalError: Nobody did it: ledger and statement disagree.
        """
        entry = Entry.of(Transaction(held.session, place.path).transactions.get(table.ledger_name))
        if entry is not None and entry.epoch > table.epoch:
            raise fenced(table, entry.epoch)
        if entry is None or entry.last < last:
            raise FatalError(
                f"Delta skipped a batch up to {last}, and the ledger says {entry}.",
                code="ledger_disagrees",
                table=str(table.table),
            )
        held.last = entry.last

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def _maintain(self, session: Any, place: _Place, upkeep: maintenance.Upkeep, now: datetime) -> str:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from replicator.spark.session import spark_error

        tag = f"upkeep-{uuid4().hex}"
        retention = self.config.maintenance.vacuum_retention
        try:
            with ExitStack() as stack:
                takes_turn = maintenance.takes_turn(upkeep, retention)
                if takes_turn and not stack.enter_context(place.turns.upkeep(session, tag)):
                    return "merge_in_progress"
                was_done = maintenance.carry_out(session, upkeep, place.path, self.config.maintenance)
            if upkeep is maintenance.Upkeep.VACUUM:
                Transaction(session, place.path).record({maintenance.VACUUM_LEDGER: int(now.timestamp())})
        except (PySparkException, Py4JError) as error:
            # A merge is what matters: upkeep that met one is simply done another time.
            if is_concurrent(error):
                return "lost_to_another_commit"
            # A job is also cancelled when Spark ends.
            if place.turns.is_cut and "cancelled" in str(error).lower() and spark_error(error) is None:
                return "cut_short_by_a_merge"
            raise
        place.turns.done()
        return "done" if was_done else "nothing_to_do"

    def _last_vacuum(self, place: _Place, now: datetime) -> datetime:
        log = read_log(self._storage, place.path)
        if log is None:
            return now
        seconds = log.transactions.get(maintenance.VACUUM_LEDGER)
        return datetime.fromtimestamp(seconds, UTC) if seconds is not None else log.created
