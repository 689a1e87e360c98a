"""The ledger: one table of ours per target table, holding one row, which names the writer and the last number that was applied.

1. The table is made together with its row by one statement (`CREATE TABLE IF NOT EXISTS … AS SELECT`), so that there
   never are two rows.
2. A new holder **claims** with an UPDATE outside of a transaction. BigQuery lets two statements change one table only
   one after the other: the UPDATE waits for a transaction that is about to commit, and a transaction that began before
   it and changes the ledger after it is cancelled. Only then the row is read.
3. Every script that changes the target begins with `guard`, which fails unless the one row is exactly what its writer
   knew (replicator, incarnation, epoch, number), and ends with `move`. Both stand in the script's transaction.

A crash before a commit leaves nothing, after it everything. The row also knows when the target table was made: one that
was dropped, recreated or restored by others has another time. And it keeps what the next process continues from:
what the table's jobs used, and when its last batch was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

from replicator.model.errors import FatalError, TableError
from replicator.model.merged import Merged
from replicator.plugins.kit.ledger import fenced, not_ours
from replicator.plugins.target import EMPTY_LEDGER, TargetTable
from replicator_target_bigquery.errors import FENCED
from replicator_target_bigquery.names import quoted, text

FORMAT: Final = 4
State = Literal["none", "building", "live", "dropping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The row.

    Attributes:
        last: The last sequence number applied in `incarnation`.
        made_in: The incarnation that the target table was made in; None: it was not.
        made_at_ms: The time at which the target table was made, as BigQuery says.
        shape: The mark of the table's shape; while it is altered, the plan (`alteration.Plan.to_text`).
        state: `none`: no table of ours; `building`: readers do not have it yet, perhaps they have an older one (`incarnations`);
            `live`; `dropping`: it is about to be dropped, or was.
        source_position: Position in the source's log after the last batch, in the source's own format.
        used: The use of the table's jobs, as `Governor.memory` wrote it.
        batch_at_ms: The time of the last batch's commit, by the clock of its process.
        merged: The counts of the incarnation's batches.
        columns: Our columns in the order in which the table has them (`columns.recorded`); none if that is not known.
        updated_at: The beginning of the statement that wrote the row, by BigQuery's clock: after the commit before, not after its own.
    """

    uuid: str
    table: str
    incarnation: int
    epoch: int
    last: int
    made_in: int | None
    made_at_ms: int | None
    shape: str | None
    state: State
    source_position: str | None
    used: str | None
    batch_at_ms: int | None
    merged: Merged
    columns: Sequence[Sequence[str]]
    updated_at: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Entry:
        """Read the row.

        Raises:
            FatalError: `newer_ledger`, `older_ledger`: another version wrote it.
        """
        if row["format"] != FORMAT:
            is_newer = row["format"] > FORMAT
            raise FatalError(
                f"The ledger has format {row['format']}; this program knows format {FORMAT}.",
                code="newer_ledger" if is_newer else "older_ledger",
                table=str(row["table_name"]),
                action="Use the version of the Replicator that wrote it"
                + (", or a newer one." if is_newer else ", or drop the table and its ledger."),
            )
        return cls(
            uuid=row["uuid"],
            table=row["table_name"],
            incarnation=row["incarnation"],
            epoch=row["epoch"],
            last=row["sequence_num"],
            made_in=row["made_in"],
            made_at_ms=row["made_at_ms"],
            shape=row["shape"],
            state=row["state"],
            source_position=row["source_position"],
            used=row["used"],
            batch_at_ms=row["batch_at_ms"],
            merged=Merged(**json.loads(row["merged"] or "{}")),
            columns=json.loads(row["table_columns"] or "[]"),
            updated_at=row["updated_at"],
        )

    def is_of(self, table: TargetTable) -> bool:
        """Return whether the row's table is the one of this incarnation."""
        is_made = self.state in {"building", "live"}
        return self.uuid == table.uuid and self.made_in == table.incarnation and is_made

    def is_building(self, table: TargetTable) -> bool:
        """Return whether readers do not have the table of this incarnation yet."""
        return self.is_of(table) and self.state == "building"


def create_statement(path: str, table: TargetTable) -> str:
    """Return the statement that makes the table with its row, if it does not exist. The epoch is one that nobody has: a claim follows."""
    return f"""
CREATE TABLE IF NOT EXISTS {quoted(path)} AS
SELECT {text(table.uuid)} AS uuid, {text(str(table.table))} AS table_name, {table.incarnation} AS incarnation,
  -1 AS epoch, {EMPTY_LEDGER} AS sequence_num, CAST(NULL AS INT64) AS made_in, CAST(NULL AS INT64) AS made_at_ms,
  CAST(NULL AS STRING) AS shape, 'none' AS state, {FORMAT} AS format, CURRENT_TIMESTAMP() AS updated_at,
  CAST(NULL AS STRING) AS source_position, CAST(NULL AS STRING) AS used, CAST(NULL AS INT64) AS batch_at_ms,
  CAST(NULL AS STRING) AS merged, CAST(NULL AS STRING) AS table_columns"""


def claim_statement(path: str, table: TargetTable, *, may_adopt: bool) -> str:
    """Return the statement that records the epoch, unless a newer one is recorded; a ledger of an older incarnation starts again."""
    same = f"uuid = {text(table.uuid)}"
    allowed = f"{same} AND table_name = {text(str(table.table))} AND epoch <= {table.epoch} AND incarnation <= {table.incarnation}"
    if may_adopt:
        allowed = f"({allowed}) OR NOT ({same})"
    stays = f"{same} AND incarnation = {table.incarnation}"
    return f"""
UPDATE {quoted(path)} SET
  sequence_num = IF({stays}, sequence_num, {EMPTY_LEDGER}),
  made_in = IF({same}, made_in, NULL), made_at_ms = IF({same}, made_at_ms, NULL), shape = IF({same}, shape, NULL),
  table_columns = IF({same}, table_columns, NULL), state = IF({same}, state, 'none'), source_position = IF({stays}, source_position, NULL),
  merged = IF({stays}, merged, NULL),
  used = IF({same}, used, NULL), batch_at_ms = IF({same}, batch_at_ms, NULL),
  uuid = {text(table.uuid)}, table_name = {text(str(table.table))},
  incarnation = {table.incarnation}, epoch = {table.epoch}, updated_at = CURRENT_TIMESTAMP()
WHERE {allowed}"""


def checked(row: Entry, table: TargetTable) -> Entry:
    """Return the row after a claim, if the claim holds.

    Raises:
        FencedError: The row has a newer epoch or incarnation.
        TableError: `not_ours`, `table_names_clash`.
    """
    if row.uuid != table.uuid:
        raise not_ours(table.table, row.uuid, "target.dataset")
    if row.table != str(table.table):
        raise TableError(
            f"Its name in BigQuery is also that of {row.table}.",
            code="table_names_clash",
            table=str(table.table),
            action="Exclude one of them, or choose target.dataset and target.table so that the names differ.",
        )
    if (row.epoch, row.incarnation) != (table.epoch, table.incarnation):
        raise fenced(table, row.epoch, row.incarnation)
    return row


def guard(path: str, table: TargetTable, last: int) -> str:
    """Return the first statement of every script: it fails unless the ledger is as its writer knew it, and the row the only one."""
    expected = (
        f"uuid = {text(table.uuid)} AND table_name = {text(str(table.table))}"
        f" AND incarnation = {table.incarnation} AND epoch = {table.epoch}"
        f" AND sequence_num = {last}"
    )
    found = f"(SELECT COUNT(*) = 1 AND LOGICAL_AND({expected}) FROM {quoted(path)})"
    return f"SELECT IF({found}, 1, ERROR('{FENCED}'))"


def move(path: str, last: int, besides: Mapping[str, str] | None = None) -> str:
    """Return the last statement of a script's transaction.

    Args:
        path: The path of the ledger.
        last: The number applied.
        besides: Other columns to set, as GoogleSQL.
    """
    values = {"sequence_num": str(last), **(besides or {}), "updated_at": "CURRENT_TIMESTAMP()"}
    return f"UPDATE {quoted(path)} SET {', '.join(f'{k} = {v}' for k, v in values.items())} WHERE TRUE"


def count(path: str, row: Entry, found: str) -> str:
    """Return the statement that adds a batch's counts to the row's, before it changes it: the guard has seen that the row is the given one.

    `found` is a query of one row, with a column for each count.
    """
    sums = ", ".join(f"{value} + {name} AS {name}" for name, value in asdict(row.merged).items())
    return f"UPDATE {quoted(path)} SET merged = (SELECT TO_JSON_STRING(STRUCT({sums})) FROM ({found})) WHERE TRUE"
