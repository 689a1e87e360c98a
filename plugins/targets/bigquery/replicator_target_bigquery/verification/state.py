"""One state of a table that is verified, read by BigQuery's own SQL.

All statements read `FOR SYSTEM_TIME AS OF` one moment, which BigQuery answers from the table's history. The ledger, read at the same
moment, says which state that is: a batch commits table and ledger together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import pyarrow as pa

from replicator.model.errors import TableError, ThrottledError
from replicator.model.events import IS_DELETED
from replicator.model.schema import TableSchema
from replicator.plugins.kit.columns import conflict
from replicator.plugins.target import TargetTable
from replicator.plugins.verification import ROWS_SCHEMA, Among, Below, Checksum, KeyRange, VerifiedState, order_of
from replicator_target_bigquery import ledger
from replicator_target_bigquery.alteration import Plan
from replicator_target_bigquery.calls.jobs import Jobs
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.errors import TOO_DEAR, not_readable, translated
from replicator_target_bigquery.names import Names, quoted, text
from replicator_target_bigquery.services import Services
from replicator_target_bigquery.types import JsonAs, target_type
from replicator_target_bigquery.verification import canonical_sql as sql

_NO_RANGES: Final = "ranges are asked of columns of `range_key`"
_STEPS_MAX: Final = 100
"""Upper bound of the commits of the ledger that are followed back."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A column: its alias in the statements, its name in the table, its type in the source and in BigQuery."""

    alias: str
    name: str
    kind: pa.DataType
    type: str

    def value(self, *, is_key: bool) -> str:
        """Return its canonical form."""
        return sql.value(self.alias, self.kind, self.type, is_key=is_key)


def not_compared(schema: TableSchema, json_as: JsonAs) -> Sequence[str]:
    """See `SupportsTargetVerification.not_compared`."""
    return [
        column.name
        for column in schema.columns
        if target_type(column, json_as, is_key=column.name in schema.key) == "JSON"
        or not sql.is_comparable(column.type)
    ]


@contextmanager
def open_state(
    services: Services,
    config: BigQueryConfig,
    names: Names,
    table: TargetTable,
    schema: TableSchema,
    columns: Mapping[str, str],
    at: int,
) -> Iterator[VerifiedState]:
    """See `SupportsTargetVerification.open_state`."""
    json_as = config.table(table.table).json_as or "string"
    reads = {}
    for number, name in enumerate(order_of(list(columns), schema)):
        column = schema.column(name)
        type_ = target_type(column, json_as, is_key=name in schema.key)
        reads[name] = _Read(f"c{number}", names.column(columns[name]), column.type, type_)
    with _readable(table):
        entry, then = _moment(services, names, table, at)
        path = services.incarnations.path(table, entry)
        found = services.tables.columns(path, then)
    if (changed := conflict(entry.columns, [(name, type_, "") for name, type_ in found.items()])) is not None:
        why = f"Somebody else changed its columns. {changed.removesuffix('.')}"
        raise not_readable(table, why, action="Recreate the table: replicator snapshot NAME TABLE --recreate.")
    for read in reads.values():
        if read.name not in found:
            raise not_readable(table, f"The table had no column {read.name} then")
        if found[read.name] != read.type:
            raise not_readable(table, f"The column {read.name} had another type then ({found[read.name]})")
    condition = f" WHERE {quoted(IS_DELETED)} IS NOT TRUE" if table.options.deletes == "soft" else ""
    source = f"{quoted(path)} FOR SYSTEM_TIME AS OF {then}{condition}"
    yield BigQueryState(services.jobs, config.budget.maximum_bytes_billed, source, reads, schema.key, table)


class BigQueryState(VerifiedState):
    """Answers by queries, which read only the columns that they need.

    It has no `range_key`: BigQuery bills the bytes of all columns that a query names, for each range again, unless the table happens to be
    clustered by its key.

    Args:
        jobs: Runs the queries.
        bytes_max: The most bytes that a query may be billed; a more expensive one is refused.
        source: The table, as the statements read it.
        columns: The compared columns, by the source's names, in the order of the row text.
        key: The names of the key's columns.
        table: The table, for errors.
    """

    def __init__(
        self,
        jobs: Jobs,
        bytes_max: int | None,
        source: str,
        columns: Mapping[str, _Read],
        key: Sequence[str],
        table: TargetTable,
    ) -> None:
        self._jobs = jobs
        self._bytes_max = bytes_max
        self._columns = columns
        self._key = key
        self._table = table
        values = [f"{quoted(c.name)} AS {c.alias}" for c in columns.values()]
        self._values = f"SELECT {', '.join(values)} FROM {source}"

    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        """See `VerifiedState.checksums`; one query."""
        assert within is None, _NO_RANGES
        group = f"SUBSTR(id, 1, {digits})" if digits else "''"
        hashes = f"SELECT {group} AS g, {self._hash} AS h FROM ({self._texts()})"
        parameters: dict[str, Sequence[str]] = {}
        match among:
            case None:
                pass
            case Below():
                hashes += f" WHERE id < {text(among.id)}"
            case _:
                hashes += f" WHERE {_is_in('id', 'ids')}"
                parameters["ids"] = sorted(among.ids)
        sums = {}
        for found, rows, *parts in self._run(sql.sums(hashes), **parameters):
            sums[found] = Checksum(int(rows), *sql.halves([int(part) for part in parts]))
        return sums

    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        """See `VerifiedState.rows`; one query."""
        assert within is None, _NO_RANGES
        if not groups:
            return ROWS_SCHEMA.empty_table()
        digits = len(next(iter(groups)))
        statement = f"SELECT id, {self._hash} AS h FROM ({self._texts()})"
        if digits:
            statement += f" WHERE {_is_in(f'SUBSTR(id, 1, {digits})', 'found')}"
        ids, hashes = list[str](), list[str]()
        for id_, hash_ in self._run(statement, **({"found": sorted(groups)} if digits else {})):
            ids.append(id_)
            hashes.append(hash_)
        return pa.table([ids, hashes], schema=ROWS_SCHEMA)

    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        """See `VerifiedState.texts`; one query."""
        assert within is None, _NO_RANGES
        values = [self._of_key(name) if name in self._key else _of_row(c) for name, c in self._columns.items()]
        statement = f"SELECT id, {', '.join(values)} FROM ({self._texts()}) WHERE {_is_in('id', 'ids')}"
        found = self._run(statement, ids=sorted(ids))
        return {id_: dict(zip(self._columns, of_row, strict=True)) for id_, *of_row in found}

    @property
    def _hash(self) -> str:
        return sql.digest(sql.joined([_of_row(c) for c in self._columns.values()])) if self._key else "id"

    def _texts(self) -> str:
        """Return a query for each row's id, and its values in canonical form (`v…`); the key's values also as in the key text (`k…`)."""
        values = [f"{c.value(is_key=False)} AS {_of_row(c)}" for c in self._columns.values()]
        values += [
            f"{self._columns[name].value(is_key=True)} AS {self._of_key(name)}"
            for name in self._key
            if self._of_key(name) != _of_row(self._columns[name])
        ]
        text_of_key = [self._of_key(name) for name in self._key] or [_of_row(c) for c in self._columns.values()]
        return f"SELECT *, {sql.digest(sql.joined(text_of_key))} AS id FROM (SELECT {', '.join(values)} FROM ({self._values}))"

    def _of_key(self, name: str) -> str:
        column = self._columns[name]
        return f"k{column.alias}" if sql.is_key_text_another(column.kind) else _of_row(column)

    def _run(self, statement: str, **parameters: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        with _readable(self._table):
            joined = {name: ",".join(values) for name, values in parameters.items()}
            yield from self._jobs.read(statement, joined, bytes_max=self._bytes_max)


def _of_row(column: _Read) -> str:
    return f"v{column.alias}"


def _is_in(value: str, parameter: str) -> str:
    """Return the condition that a value is in a list. As one text a list of a hundred thousand is no more than one parameter."""
    return f"{value} IN (SELECT one FROM UNNEST(SPLIT(@{parameter}, ',')) AS one)"


def _moment(services: Services, names: Names, table: TargetTable, at: int) -> tuple[ledger.Entry, str]:
    """Return the last ledger of a table at `at` or below, and a moment at which it was in force, in GoogleSQL.

    If the table has reached that and nothing beyond, the moment is now. Otherwise the ledger's history is followed back: when the
    statement began that wrote a row, the row before was in force.

    Raises:
        TableError: `state_not_readable`.
    """
    path, then = names.ledger(table.table), ""
    entry = services.commits.read(path, table.table)
    for _ in range(_STEPS_MAX):
        if entry is None or (entry.uuid, entry.table) != (table.uuid, str(table.table)):
            raise not_readable(table, "The target has no ledger of this table")
        # While a table is altered, its columns are neither the former nor the later ones.
        is_reached = entry.last <= at and Plan.of(entry.shape) is None
        if is_reached and then:
            if not entry.is_of(table):
                break
            return entry, then
        if is_reached:
            ((moment,),) = services.jobs.read("SELECT CURRENT_TIMESTAMP() AS moment")
        else:
            moment = entry.updated_at
        then = f"TIMESTAMP '{moment.astimezone(UTC).isoformat(sep=' ', timespec='microseconds')}'"
        before, entry = entry, services.commits.read(path, table.table, then)
        if entry is not None and (entry.updated_at < before.updated_at) is is_reached:
            raise not_readable(table, "BigQuery's history of the ledger is not in order")
    raise not_readable(table, "The table did not exist then, or too much has been written since")


@contextmanager
def _readable(table: TargetTable) -> Iterator[None]:
    """Translate errors that BigQuery repeats on every attempt to those of a state that cannot be read."""
    try:
        with translated(str(table.table)):
            yield
    except TableError as error:
        if error.code in {"state_not_readable", "ledger_damaged"}:
            raise
        raise not_readable(table, error.message.rstrip(".")) from error
    except ThrottledError as error:
        if error.code == TOO_DEAR:
            raise not_readable(table, error.message.rstrip(".")) from error
        raise
