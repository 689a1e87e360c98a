"""A new incarnation of a table that readers have is built where they do not look, and gets the name when its snapshot is complete.

The table that is built stands in our own dataset (`building_…`). The ledger's row is about it from its creation on (state `building`), and
everything that is applied goes there. Publishing has four steps, each on the condition that the ledger is still ours:

1. `CREATE OR REPLACE TABLE … COPY` replaces the older one by it at once. BigQuery refuses that for tables that are partitioned or
   clustered differently: then the older one's clustering is changed, or if that is not enough, it is dropped first.
2. The table gets the primary key, if that did not come along.
3. What was built is dropped.
4. The ledger is about the table that readers have (state `live`).

A process that dies before 3 leaves both tables: the next one repeats all steps. One that dies before 4 leaves a table with the labels of
this incarnation, and nothing that was built: the next one does the last step. Because 3 comes before 4, a process of the past whose
first step arrives late does not undo what batches did to the table since: it finds nothing to replace it by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.api_core import exceptions as api

from replicator.model.crash import crash_point
from replicator.model.errors import SchemaConflictError, TableError
from replicator.plugins import get_logger
from replicator.plugins.kit.ledger import not_ours
from replicator.plugins.target import TargetTable
from replicator_target_bigquery import ledger, statements
from replicator_target_bigquery.commits import Commits, HeldTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.names import Names, text
from replicator_target_bigquery.tables import ExistingTable, TableClient

_log = get_logger("target.bigquery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnations:
    """The locations of tables' incarnations, and the replacement of an older one by a new one."""

    config: BigQueryConfig
    names: Names
    tables: TableClient
    commits: Commits

    def check_owner(self, table: TargetTable, existing: ExistingTable | None) -> None:
        """Refuse a table that is not ours, and an object that is no table."""
        if existing is None:
            return
        if existing.kind != "TABLE":
            raise TableError(
                f"A {existing.kind.lower()} already has this name.",
                code="target_occupied",
                table=str(table.table),
                action="Move it away, or choose another target.dataset.",
            )
        if existing.owner != table.uuid and self.config.adopt != "replace":
            raise not_ours(table.table, existing.owner, "target.dataset")

    def path(self, table: TargetTable, row: ledger.Entry) -> str:
        """Return the path of the table that the ledger's row is about."""
        return self.names.building(table) if row.is_building(table) else self.names.path(table.table)

    def check_unknown(self, table: TargetTable) -> None:
        """Refuse a table of this incarnation that no ledger is about."""
        published = self.tables.find(self.names.path(table.table))
        self.check_owner(table, published)
        for existing in (published, self.tables.find(self.names.building(table))):
            if existing is not None and _is_of(existing, table):
                raise replaced(table, "its ledger is missing")

    def check_found(self, table: TargetTable, row: ledger.Entry) -> None:
        """Refuse a table that is not the one the ledger's row is about."""
        existing = self.tables.find(self.path(table, row))
        if existing is None and row.is_building(table):
            existing = self.tables.find(self.names.path(table.table))
            if existing is not None and _is_of(existing, table):
                # A process died before it could say so.
                return
        check_replaced(table, row, existing)

    def choose(self, table: TargetTable, existing: ExistingTable | None) -> str:
        """Choose the path of a new incarnation: in our own dataset if readers have one of ours already.

        Raises:
            TableError: `readers_restricted`.
        """
        if existing is None or existing.owner != table.uuid or existing.incarnation == table.incarnation:
            return self.names.path(table.table)
        self._refuse_restricted(table, existing)
        return self.names.building(table)

    def sweep(self, held: HeldTable, sequence_num: int) -> None:
        """Drop tables that were built to replace the table and are not the process's present work, those of other replicators, too."""
        for path in self._built(held.table):
            if path != held.path:
                self.commits.drop_guarded(held, sequence_num, path)

    def forget(self, table: TargetTable) -> None:
        """Drop the tables that were built to replace the table."""
        for path in self._built(table):
            self.tables.drop(path)

    def publish(self, held: HeldTable, sequence_num: int) -> None:
        """Let readers see the incarnation."""
        published = self.names.path(held.table.table)
        built = self.tables.find(held.path)
        if built is not None:
            if built.made_at_ms != held.row.made_at_ms:
                raise self._lost(held)
            self._replace(held, built, sequence_num)
            crash_point("target.replaced")
            self.commits.drop_guarded(held, sequence_num, held.path)
            crash_point("target.building_dropped")
        there = self._in_place(held)
        made = {"made_at_ms": str(there.made_at_ms), "state": text("live")}
        self.commits.commit(held, [], sequence_num, "publish", made)
        held.path = published

    def _replace(self, held: HeldTable, built: ExistingTable, sequence_num: int) -> None:
        """Do steps 1 and 2."""
        table, published = held.table, self.names.path(held.table.table)
        older = self.tables.find(published)
        self.check_owner(table, older)
        if older is not None:
            self._refuse_restricted(table, older)
            if older.layout != built.layout:
                older = self._made_replaceable(held, older, built)
        statement = statements.replaced_by(
            published,
            held.path,
            labels=built.labels,
            description=built.description,
            kms_key=self.config.kms_key,
            is_replaceable=older is None or older.layout == built.layout,
        )
        self.commits.alter_guarded(held, statement, sequence_num)
        there = self._in_place(held)
        if there.columns != built.columns:
            raise SchemaConflictError(
                "BigQuery gave the published table other columns or collations than the one that was built.",
                code="schema_conflict",
                table=str(table.table),
                action="Compare the columns of the table and the default collation of its dataset with those of the building_… table in"
                f" {self.names.own_dataset}, and report this.",
            )
        if built.primary_key and not there.primary_key:
            self.commits.alter_guarded(held, statements.add_primary_key(published, built.primary_key), sequence_num)

    def _made_replaceable(self, held: HeldTable, older: ExistingTable, built: ExistingTable) -> ExistingTable | None:
        """Cluster the older table as the new one is, if possible: that changes none of its rows. Return it, or None."""
        types = {name: type_ for name, type_, _ in built.columns}
        clustered_by = {(name, types[name]) for name in built.clustered_by}
        has_columns = clustered_by <= {(name, type_) for name, type_, _ in older.columns}
        if has_columns and older.layout[:-1] == built.layout[:-1]:
            published = self.names.path(held.table.table)
            ledger.checked(self.commits.read_again(held.ledger_path, held.table), held.table)
            try:
                self.tables.cluster(published, built.clustered_by)
            except (api.BadRequest, api.PreconditionFailed) as error:
                _log.warning("clustering_not_changed", table=str(held.table.table), reason=type(error).__name__)
            return self.tables.find(published)
        return older

    def _refuse_restricted(self, table: TargetTable, existing: ExistingTable) -> None:
        """Refuse to replace a table that hides rows or columns from readers: the new one would show them."""
        if existing.has_policy_tags:
            found = "columns with policy tags"
        elif self.tables.has_row_policies(self.names.path(table.table)):
            found = "row-level access policies"
        else:
            return
        raise TableError(
            f"The target table has {found}. A new table would not have them, and readers would see what they hide.",
            code="readers_restricted",
            table=str(table.table),
            action="Remove them, run `replicator snapshot NAME TABLE --recreate`, and then set them again.",
        )

    def _in_place(self, held: HeldTable) -> ExistingTable:
        """Return the table that readers have, if it is the one of this incarnation."""
        there = self.tables.find(self.names.path(held.table.table))
        if there is None or not _is_of(there, held.table):
            raise self._lost(held)
        return there

    def _lost(self, held: HeldTable) -> TableError:
        """The error where the new incarnation does not exist. That another process took the table over is reported first."""
        ledger.checked(self.commits.read_again(held.ledger_path, held.table), held.table)
        return replaced(held.table, "its new incarnation is missing")

    def _built(self, table: TargetTable) -> list[str]:
        prefix = self.names.building_prefix(table.table)
        paths = self.tables.own_tables(prefix)
        return [p for p in paths if re.fullmatch(r"[0-9a-f]{8}_\d+", p.rpartition(".")[2].removeprefix(prefix))]


def check_replaced(table: TargetTable, row: ledger.Entry, existing: ExistingTable | None) -> ExistingTable:
    """Refuse a table that is not the one the ledger is about: it was dropped, replaced or restored by others."""
    if existing is None or existing.made_at_ms != row.made_at_ms:
        raise replaced(table, "it is missing" if existing is None else "it was replaced by another one")
    return existing


def replaced(table: TargetTable, how: str) -> TableError:
    """The error for a table that others changed."""
    return TableError(
        f"The table in the target was changed by somebody else: {how}.",
        code="target_replaced",
        table=str(table.table),
        action="Drop the table, then recreate it: replicator snapshot NAME TABLE --recreate.",
    )


def _is_of(existing: ExistingTable, table: TargetTable) -> bool:
    return (existing.owner, existing.incarnation, existing.kind) == (table.uuid, table.incarnation, "TABLE")
