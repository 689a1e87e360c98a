"""Table versions: a table's columns as the log describes them, joined with the host's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from replicator.model.errors import SchemaConflictError, TableError, UnsupportedTypeError
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins import get_logger
from replicator_source_mysql import column_types as t
from replicator_source_mysql.binlog import (
    ColumnSpec,
    MapColumn,
    RowDecoder,
    TableMap,
    declared_spec,
    logged_spec,
)
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.catalogue.tables import system_versioned
from replicator_source_mysql.ddl.alterations import Alteration, alteration, numbered
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.rows.values import KEY_KINDS
from replicator_source_mysql.sql.clauses import ColumnChanges

_log = get_logger(__name__)

_VERSIONS_MAX: Final = 10_000


@dataclass(eq=False, slots=True)
class Version:
    """A replicated table as one TABLE_MAP has it.

    `bytes_per_row` is learned from what was decoded, to judge how many rows an event has before it is decoded.
    """

    schema: TableSchema
    decoder: RowDecoder
    bytes_per_row: float = 64.0


class KeyChange(NamedTuple):
    """A change of a table's key from here on: its shapes before and after; None where the difference is unknown."""

    table: TableId
    before: TableSchema | None
    schema: TableSchema | None


class Versions:
    """The versions of the replicated tables. Built for one open log.

    A table whose columns differ from those that the host knows gets the shape that the log has: the host decides.
    """

    def __init__(
        self, flavor: Flavor, schemas: Mapping[TableId, TableSchema], *, unrepresentable: Unrepresentable
    ) -> None:
        self._flavor = flavor
        self._replicated = dict(schemas)
        self._unrepresentable: Unrepresentable = unrepresentable
        self._versions: dict[TableMap, Version] = {}
        self._nulled: Counter[tuple[TableId, str]] = Counter()
        self._keys: dict[TableId, tuple[str, ...]] = {}
        # The highest numbers that columns ever had; those of dropped ones are given to no other.
        self._last_ids: dict[TableId, int] = {}
        # Tables whose columns may not be those that are known: a statement could not be applied, or a TABLE_MAP contradicts.
        self._unclear: set[TableId] = set()
        # Tables that get a new snapshot anyway: whatever key they have now is the one that they have.
        self._any_key: set[TableId] = set()

    @property
    def replicated(self) -> Mapping[TableId, TableSchema]:
        """The tables whose rows are delivered."""
        return self._replicated

    def drop(self, table: TableId) -> None:
        """Forget a table."""
        self._replicated.pop(table, None)

    def alter(self, table: TableId, changes: ColumnChanges) -> Alteration | None:
        """Give a table the shape that a statement makes of it; None if it cannot be told: then it stays as it is."""
        before = self._replicated[table]
        found = None
        if table not in self._unclear:
            found = alteration(before, changes, after=self._last_ids.get(table, 0), flavor=self._flavor)
        if found is None:
            self.doubt(table)
            return None
        self._replicated[table] = found.schema
        ids = [c.id for c in (*found.before.held, *found.schema.columns) if c.id is not None]
        self._last_ids[table] = max([*ids, self._last_ids.get(table, 0)])
        # Rows that a prepared XA transaction has of the shape before: there are none, ALTER waits for it (measured on both servers).
        self._versions = {m: v for m, v in self._versions.items() if v.schema.table != table}
        if self._keys.get(table, before.key) != before.key:
            del self._keys[table]
            self._any_key.add(table)
        else:
            self._keys[table] = found.schema.key
        return found

    def rename(self, table: TableId, new: TableId) -> None:
        """Take a table's new name. Facts that the catalogue gave of another table of that name are no longer true."""
        schema = self._replicated.pop(table, None)
        if schema is None:
            return
        self._replicated[new] = replace(schema, table=new)
        for names in (self._unclear, self._any_key):
            names.discard(new)
            if table in names:
                names.discard(table)
                names.add(new)
        self._keys.pop(new, None)
        if table in self._keys:
            self._keys[new] = self._keys.pop(table)
        self._versions = {m: v for m, v in self._versions.items() if v.schema.table not in (table, new)}
        self._last_ids[new] = self._last_ids.pop(table, 0)

    def doubt(self, table: TableId) -> None:
        """Apply no statement to a table until a TABLE_MAP has the known columns: it was altered in an unknown way."""
        self._unclear.add(table)

    def trust(self, table: TableId) -> None:
        """Apply statements to the table again: its columns are the known ones."""
        self._unclear.discard(table)

    def of(self, table_map: TableMap) -> Version | None:
        """The version of a TABLE_MAP; None for a table that is not replicated.

        Raises:
            TableError: Its rows cannot be decoded.
        """
        expected = self._replicated.get(TableId(table_map.schema, table_map.table))
        if expected is None:
            return None
        version = self._versions.get(table_map)
        if version is None:
            if len(self._versions) >= _VERSIONS_MAX:
                self._versions.clear()
            try:
                version = self._build(table_map, expected)
            except TableError:
                raise
            except Exception as error:
                raise TableError(
                    f"what the log says of its columns cannot be read ({type(error).__name__}: {error}).",
                    code="corrupt_rows",
                    table=str(expected.table),
                    action="Exclude the table, and report its CREATE TABLE.",
                ) from error
            self._versions[table_map] = version
        if version.schema is expected:
            self._unclear.discard(expected.table)
        else:
            self._unclear.add(expected.table)
        return version

    def take_key(self, table_map: TableMap) -> KeyChange | None:
        """Remember the key by which the table's rows are clustered now; return the change if it was another one.

        A unique key leaves no other trace where it is dropped or made, or becomes the key because a primary key was dropped.
        """
        table = TableId(table_map.schema, table_map.table)
        expected = self._replicated.get(table)
        key = _logged_key(table_map, expected, self._flavor) if expected is not None else None
        if expected is None or key is None:
            return None
        is_known = table in self._keys
        was = self._keys.get(table, expected.key)
        self._keys[table] = key
        if table in self._any_key:
            self._any_key.discard(table)
            return None
        if key == was:
            return None
        if not is_known or was != expected.key or table in self._unclear:
            # The host may have its key from a catalogue that was ahead of the log.
            return KeyChange(table, None, None)
        before = numbered(expected)
        self._replicated[table] = replace(before, key=key)
        self._versions = {m: v for m, v in self._versions.items() if v.schema.table != table}
        return KeyChange(table, before, self._replicated[table])

    def expect_any_key(self, table: TableId) -> None:
        """Report no change with the table's next key: the host knows that the table may be another one."""
        self._any_key.add(table)

    def _build(self, table_map: TableMap, expected: TableSchema) -> Version:
        if not table_map.has_names:
            raise TableError(
                "The log was written without the names of the columns.",
                code="row_metadata_missing",
                table=str(expected.table),
                action="SET GLOBAL binlog_row_metadata = 'FULL'; then run `replicator snapshot NAME TABLE`.",
            )
        columns: list[Column] = []
        specs: list[ColumnSpec] = []
        positions: list[int] = []
        known = {c.name: c for c in expected.columns}
        hidden = hidden_positions(table_map, known, self._flavor)
        if self._flavor.has_system_versioning and _is_system_versioned(table_map, known, hidden):
            raise system_versioned(expected.table)
        for logged in table_map.columns:
            assert logged.name is not None
            if logged.position in hidden:
                continue
            built = self._column(logged, known.get(logged.name), expected.table)
            if built is not None:
                columns.append(built[0])
                specs.append(built[1])
                positions.append(logged.position)
        schema = expected
        if [(c.name, c.type) for c in columns] != [(c.name, c.type) for c in expected.columns]:
            names = {c.name for c in columns}
            key = expected.key if names.issuperset(expected.key) else ()
            schema = TableSchema(table=expected.table, columns=tuple(columns), key=key, comment=expected.comment)
        decoder = RowDecoder(
            table_map,
            schema,
            specs,
            positions,
            unrepresentable=self._unrepresentable,
            on_nulled=self._note_nulled(expected.table),
        )
        return Version(schema, decoder)

    def _column(self, logged: MapColumn, known: Column | None, table: TableId) -> tuple[Column, ColumnSpec] | None:
        assert logged.name is not None
        if known is None:
            try:
                spec = logged_spec(logged, None, self._flavor)
            except UnsupportedTypeError:
                # A column that is not replicated, or a new one: the catalogue tells.
                return None
            return Column(name=logged.name, type=spec.arrow, source_type=str(spec.kind)), spec
        try:
            spec = logged_spec(logged, declared_spec(known.source_type, None, self._flavor), self._flavor)
        except SchemaConflictError:
            spec = logged_spec(logged, None, self._flavor)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(error.message, code=error.code, table=str(table), action=error.action) from error
        if spec.arrow == known.type:
            return known, spec
        return Column(name=logged.name, type=spec.arrow, source_type=str(spec.kind)), spec

    def _note_nulled(self, table: TableId) -> Callable[[str, int], None]:
        def note(column: str, count: int) -> None:
            if not self._nulled[table, column]:
                _log.warning("values_become_null", table=str(table), column=column, setting="unrepresentable: null")
            self._nulled[table, column] += count

        return note


def _logged_key(table_map: TableMap, expected: TableSchema, flavor: Flavor) -> tuple[str, ...] | None:
    """The key as `CatalogTable.key` has it; None where its columns are unknown, or the log does not say."""
    if table_map.primary_key is None:
        return None
    known = {c.name: c for c in expected.columns}
    names = [table_map.columns[position].name for position in table_map.primary_key]
    columns = [known[name] for name in names if name in known]
    if len(columns) < len(names):
        return None
    specs = [declared_spec(c.source_type, None, flavor) for c in columns]
    if None in specs:
        return None
    can_serve = all(spec is not None and spec.kind in KEY_KINDS for spec in specs)
    return tuple(c.name for c in columns) if can_serve and table_map.is_key_whole else ()


def hidden_positions(table_map: TableMap, known: Collection[str], flavor: Flavor) -> frozenset[int]:
    """Positions of the columns that a server adds by itself and that only its log shows.

    A user may give a column such a name: `known` are the names of the table's own.
    """
    return frozenset(
        c.position
        for c in table_map.columns
        if c.name not in known and flavor.is_hidden_column(c.name or "", c.type_code, is_unsigned=c.is_unsigned)
    )


def _is_system_versioned(table_map: TableMap, known: Collection[str], hidden: Collection[int]) -> bool:
    """Return whether the log has the two columns of MariaDB's system versioning, which the catalogue hides unless a user named them.

    The second one is part of the primary key if there is one (measured on 10.11).
    """
    new = [c for c in table_map.columns if c.name not in known and c.position not in hidden]
    periods = [
        c for c in new if not c.is_nullable and (c.type_code == t.LONGLONG or (c.type_code, c.metadata) == _PERIOD)
    ]
    if len(periods) < 2:  # noqa: PLR2004  (a beginning and an end)
        return False
    end = periods[-1]
    return end.position in (table_map.primary_key or ()) or [c.name for c in periods[-2:]] == ["row_start", "row_end"]


_PERIOD: Final = (t.TIMESTAMP2, 6)


HeldRows = list[tuple[Version, int, bytes]]
"""Rows events: the table's version, the event's type, its body."""
