"""Reads of a table's tracked changes: the statements, and their rows as Arrow columns.

A changed key is joined to the row that has it now, in one statement and one snapshot. If there is a row it is the row's last state,
which is written whatever was there before; if there is none the key is deleted. `SYS_CHANGE_OPERATION` says less than that, and there
are versions of the server that have it wrong where a transaction deletes a key and inserts it again.

Changes are read in the order of their versions and, in a version, of their keys. So a part is continued where another one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replicator.model.errors import SourceUnavailableError, TableError
from replicator.model.events import DMLOperation
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.kit.cursors import cursors
from replicator.plugins.source import Cursor
from replicator_source_sqlserver.connecting.connection import Row
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.snapshot.chunk_statements import Query, ReadPlan, rows_after

_VERSION, _IS_THERE = range(2)
_META: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTracked:
    """The last change that a read has reached."""

    version: int
    key: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesReader:
    """Changes of one table, each of another key.

    Attributes:
        before, row: See `change_schema`.
        has_other_spelling: True if a changed key has other bytes in its row.
        last: The last change; None if there are none.
        bytes: The size of the decoded columns.
    """

    schema: TableSchema
    operations: pa.StringArray
    before: pa.StructArray
    row: pa.StructArray
    has_other_spelling: bool
    last: LastTracked | None
    bytes: int

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.operations)

    def joined_with(self, later: ChangesReader) -> ChangesReader:
        """Return these changes and later ones of the same table."""
        return replace(
            later,
            operations=pa.concat_arrays([self.operations, later.operations]),
            before=pa.concat_arrays([self.before, later.before]),
            row=pa.concat_arrays([self.row, later.row]),
            has_other_spelling=self.has_other_spelling or later.has_other_spelling,
            last=later.last or self.last,
            bytes=self.bytes + later.bytes,
        )


@dataclass(frozen=True, slots=True)
class TrackedChanges:
    """The tracked changes of a table, read in the shape that the host knows. `name`: its present name."""

    plan: ReadPlan
    name: TableId

    def _changes(self, since: int) -> str:
        """Return the CHANGETABLE. The version is a number: CHANGETABLE takes no expression, and any number since the server's KB2519358."""
        return f"CHANGETABLE(CHANGES {quoted_table(self.name)}, {since}) AS c"

    def counted(self, since: int, number: int) -> str:
        """Return the statement that counts the changes above a version, under a number."""
        return f"SELECT {number}, COUNT(*) FROM {self._changes(since)}"

    def part(self, since: int, last: LastTracked | None, limit: int) -> Query:
        """Return the statement that reads some changes above a version: those after `last`, at most `limit`."""
        plan, schema = self.plan, self.plan.schema
        names = [quoted(name) for name in schema.key]
        keys = [f"c.{name}" for name in names]
        same = " AND ".join(f"t.{name} = c.{name}" for name in names)
        selected = [
            "c.SYS_CHANGE_VERSION AS v",
            f"CASE WHEN t.{names[0]} IS NULL THEN 0 ELSE 1 END AS h",
            *(
                f"{plan.specs[k].selected.format(c)} AS k{n}"
                for n, (k, c) in enumerate(zip(schema.key, keys, strict=True), 1)
            ),
            *(
                f"{plan.specs[c.name].selected.format(f't.{quoted(c.name)}')} AS c{n}"
                for n, c in enumerate(schema.columns, 1)
            ),
        ]
        condition, parameters = "", list[str]()
        if last is not None:
            pieces = rows_after(keys, plan.values(last.key))
            any_of = " OR ".join(f"({piece})" for piece, _ in pieces)
            # A number above 2,147,483,647 is a decimal, and with it the server would make one of each version.
            version = f"CAST({last.version} AS bigint)"
            condition = f" WHERE c.SYS_CHANGE_VERSION > {version} OR (c.SYS_CHANGE_VERSION = {version} AND ({any_of}))"
            parameters = [text for _, texts in pieces for text in texts]
        begun = since if last is None else last.version - 1
        query = (
            f"SELECT TOP ({limit}) {', '.join(selected)} FROM {self._changes(begun)} LEFT JOIN {quoted_table(self.name)} AS t ON {same}"
            f"{condition} ORDER BY c.SYS_CHANGE_VERSION, {', '.join(keys)}"
        )
        return query, parameters

    def decode(self, rows: Sequence[Row], upto: int) -> ChangesReader:
        """Convert rows to changes.

        Args:
            rows: At least one.
            upto: The version that the transaction sees.

        Raises:
            TableError: The rows cannot be decoded.
            SourceUnavailableError: `snapshot_not_exact`.
        """
        schema = self.plan.schema
        columns = columns_of(rows)
        version = int(columns[_VERSION][-1])
        if version > upto:
            raise SourceUnavailableError(
                f"the server's snapshot has changes of version {version}, and says that its version is {upto}.",
                code="snapshot_not_exact",
                table=str(schema.table),
            )
        named = [*schema.key, *(column.name for column in schema.columns)]
        arrays = [self._column(values, name) for name, values in zip(named, columns[_META:], strict=True)]
        keys, values = (
            arrays[: len(schema.key)],
            dict(zip(named[len(schema.key) :], arrays[len(schema.key) :], strict=True)),
        )
        is_there = np.asarray(columns[_IS_THERE], bool)
        row = pa.StructArray.from_arrays(
            [values[column.name] for column in schema.columns], fields=list(schema.row_type), mask=pa.array(~is_there)
        )
        before = pa.StructArray.from_arrays(keys, fields=list(schema.before_type), mask=pa.array(is_there))
        present = pa.array(is_there)
        last = [key.slice(len(rows) - 1) for key in keys]
        return ChangesReader(
            schema=schema,
            operations=pc.if_else(present, DMLOperation.INSERT.value, DMLOperation.DELETE.value),
            before=before,
            row=row,
            has_other_spelling=any(
                not key.filter(present).equals(values[name].filter(present))
                for name, key in zip(schema.key, keys, strict=True)
            ),
            last=LastTracked(version=version, key=cursors(last)[0]),
            bytes=sum(array.nbytes for array in (*keys, *values.values())),
        )

    def _column(self, values: Sequence[object], name: str) -> pa.Array:
        try:
            return decoded(values, self.plan.specs[name], name=name)
        except TableError as error:
            kind = type(error)
            raise kind(
                error.message, code=error.code, table=str(self.plan.schema.table), action=error.action
            ) from error
