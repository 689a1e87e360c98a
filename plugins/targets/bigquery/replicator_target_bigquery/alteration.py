"""Steps that remain until a table has the wanted columns, whatever was done before. Pure.

BigQuery alters one thing after the other, outside of transactions, and tells no identity of a column: its name is all there is.
So that a name never means two columns at any moment between the statements, an alteration has two stages:

1. **Free**: columns whose names other columns get (or which get their own name in another case) are given temporary names.
   Nothing else gets a name here.
2. **Set**: the other columns get their final names, columns that go a temporary one, columns get wider types, new columns are
   added, and then columns that go are dropped. No name that a step of this stage looks for comes into being here, but temporary ones.

The plan and its stage stand in the ledger before the first statement of the stage. Each step is left out if the table's columns
show that it was done. Temporary names have the alteration's number in them, so that none is used twice: a column is dropped under
such a name, and its own name is free at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa

from replicator.model.alteration import Steps
from replicator.model.naming import cut, folded
from replicator.model.schema import TableSchema
from replicator_target_bigquery.names import Names, quoted, text
from replicator_target_bigquery.rewrite import fitted
from replicator_target_bigquery.shape import Shape
from replicator_target_bigquery.types import literal

DESCRIPTION_MAX: Final = 1024
TEMPORARY: Final = "_replicator_tmp_"
_WORD: Final = "altering "


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An alteration as the ledger has it. Names are those in the target.

    Attributes:
        to: The mark of the shape that it ends with.
        freed: First stage: column → its temporary name.
        renamed: Second stage: column, or its temporary name → its name afterwards; of columns that go a temporary one.
        retyped: Final name and type of columns that get a wider type.
        added: Name, type and description of new columns.
        dropped: Temporary names of columns that go.
        is_freed: The first stage is done.
    """

    to: str
    freed: Sequence[tuple[str, str]] = ()
    renamed: Sequence[tuple[str, str]] = ()
    retyped: Sequence[tuple[str, str]] = ()
    added: Sequence[tuple[str, str, str | None]] = ()
    dropped: Sequence[str] = ()
    is_freed: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether the table has these columns already."""
        return not (self.freed or self.renamed or self.retyped or self.added or self.dropped)

    def freed_all(self) -> Plan:
        """Return the plan in its second stage."""
        return replace(self, is_freed=True)

    def to_text(self) -> str:
        """Return a text that `of` reads back, and which is no mark of a shape."""
        return f"{_WORD}{json.dumps(asdict(self))}"

    @classmethod
    def of(cls, shape: str | None) -> Plan | None:
        """Read what `to_text` wrote; None if it is the mark of a shape."""
        if shape is None or not shape.startswith(_WORD):
            return None
        found: dict[str, Any] = json.loads(shape.removeprefix(_WORD))
        lists = ("freed", "renamed", "retyped", "added")
        return cls(**found | {name: [tuple(pair) for pair in found[name]] for name in lists})

    def statements(self, path: str, columns: Mapping[str, str]) -> Iterator[str]:
        """Generate the remaining statements of the stage.

        Args:
            path: The path of the table.
            columns: The columns that it has: name → type.
        """
        there: dict[str, str] = {folded(name): type_ for name, type_ in columns.items()}
        table = f"ALTER TABLE {quoted(path)}"
        for old, new in self.renamed if self.is_freed else self.freed:
            if folded(old) in there:
                yield f"{table} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
                there[folded(new)] = there.pop(folded(old))
        if not self.is_freed:
            return
        for name, type_ in self.retyped:
            if there.get(folded(name), type_) != type_:
                yield f"{table} ALTER COLUMN {quoted(name)} SET DATA TYPE {type_}"
        for name, type_, description in self.added:
            if folded(name) not in there:
                options = f" OPTIONS(description={text(description)})" if description else ""
                yield f"{table} ADD COLUMN IF NOT EXISTS {quoted(name)} {type_}{options}"
        for name in self.dropped:
            if folded(name) in there:
                yield f"{table} DROP COLUMN IF EXISTS {quoted(name)}"


def planned(names: Names, before: Shape, after: Shape, todo: Steps, sequence_num: int) -> Plan:
    """Plan how a table gets the columns of a shape.

    Args:
        names: The rules for names of columns in the target.
        before: The shape that it has.
        after: The shape that it gets.
        todo: The steps for the source's columns.
        sequence_num: The number of the alteration.
    """
    renamed = {names.column(old): names.column(new) for old, new in todo.renamed.items()}
    renamed = {old: new for old, new in renamed.items() if old != new}
    dropped = [names.column(name) for name in todo.dropped]
    wanted = {folded(column.name) for column in after.held}
    temporary = {old: f"{TEMPORARY}{sequence_num}_{n}" for n, old in enumerate([*renamed, *dropped])}
    freed = [(old, temporary[old]) for old in temporary if folded(old) in wanted]
    is_freed = dict(freed)
    types = {column.column.name: column.type for column in before.held}
    return Plan(
        to=after.mark,
        freed=freed,
        renamed=[
            *((is_freed.get(old, old), new) for old, new in renamed.items()),
            *((old, temporary[old]) for old in dropped if old not in is_freed),
        ],
        retyped=[(c.name, c.type) for c in after.held if types.get(todo.origin[c.column.name] or "", c.type) != c.type],
        added=[
            (c.name, c.type, cut(c.column.comment, DESCRIPTION_MAX) if c.column.comment else None)
            for c in after.held
            if c.column.name in todo.added
        ],
        dropped=[temporary[old] for old in dropped],
        is_freed=not freed,
    )


def strangers(plan: Plan, before: Shape, columns: Collection[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return columns that the table should have and lacks, and columns with a name that the plan gives, but that are not ours."""
    there, ours = {folded(name) for name in columns}, {folded(column.name) for column in before.held}
    given = [*(new for _, new in (*plan.freed, *plan.renamed)), *(name for name, *_ in plan.added)]
    lacking = [column.name for column in before.held if folded(column.name) not in there]
    return lacking, [name for name in given if folded(name) in there - ours]


def touched(plan: Plan) -> Collection[str]:
    """Return columns that lose their names or types, folded."""
    temporary = {folded(new) for _, new in plan.freed}
    return {folded(name) for name, _ in (*plan.freed, *plan.renamed, *plan.retyped)} - temporary


def filled(
    after: Shape, wanted: TableSchema, todo: Steps, fill: pa.RecordBatch, unfit_values: str
) -> Mapping[str, str]:
    """Return the values that existing rows get in new columns: GoogleSQL by name in the target, of values that are not NULL.

    Raises:
        UnsupportedTypeError: See `rewrite.rewrite`, which does the same to values of a batch.
    """
    values = {}
    for column in after.columns:
        name = column.column.name
        if name in todo.added and name in fill.schema.names:
            array = fitted(fill.column(name).cast(column.column.type), column.column, wanted, unfit_values)
            if array.null_count == 0:
                values[column.name] = literal(array[0].as_py(), column.column, column.type)
    return values
