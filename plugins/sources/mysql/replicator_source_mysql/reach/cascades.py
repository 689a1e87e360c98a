"""Cascades of foreign keys that the server does not log, and the tables that they may have changed.

InnoDB of MariaDB, and of MySQL before 9.6, deletes and updates the rows of a child by itself: the log has the parent's
row only. Possible cascades are found from the parents' rows events and from the server's foreign keys as they are
now. The log may be older than they are, so a statement in the log that may have changed a foreign key counts as a
cascade into everything that it could concern, and the keys are read again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_mysql.binlog import RowDecoder, TableMap, logged_spec, uncompressed_body
from replicator_source_mysql.binlog.events import MARIADB_COMPRESSED, RowsEvent
from replicator_source_mysql.connecting.connection import Connection, flavor_of, rows_of
from replicator_source_mysql.flavors import Flavor

# InnoDB's own bits of what a foreign key does.
_DELETE_CASCADES: Final = 1
_DELETE_SETS: Final = 2
_UPDATE_ACTS: Final = 4 | 8
_ACTS: Final = _DELETE_CASCADES | _DELETE_SETS | _UPDATE_ACTS
_DELETE_RULES: Final = {"CASCADE": _DELETE_CASCADES, "SET NULL": _DELETE_SETS, "SET DEFAULT": _DELETE_SETS}
_UPDATE_RULES: Final = {"CASCADE": 4, "SET NULL": 8, "SET DEFAULT": 8}

_DELETES: Final = frozenset({RowsEvent.DELETE_V1, RowsEvent.DELETE_V2})
_INSERTS: Final = frozenset({RowsEvent.WRITE_V1, RowsEvent.WRITE_V2})
# Statements that make, drop or move foreign keys have one of these.
_MAY_CHANGE_KEYS: Final = re.compile(r"foreign|constraint|references|rename", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A foreign key that acts. `columns`: the parent's, which the child refers to."""

    child: TableId
    parent: TableId
    acts: int
    columns: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeReach:
    """The tables that changes of a parent may change without a trace.

    Attributes:
        by_delete: Replicated tables that a DELETE reaches.
        by_update: Replicated tables that an UPDATE of one of `columns` reaches.
    """

    by_delete: frozenset[TableId] = frozenset()
    by_update: frozenset[TableId] = frozenset()
    columns: frozenset[str] = frozenset()

    @property
    def tables(self) -> frozenset[TableId]:
        """All tables that are reached."""
        return self.by_delete | self.by_update


def reaches(edges: Iterable[Edge], replicated: Collection[TableId]) -> dict[TableId, CascadeReach]:
    """Return the replicated tables that each parent reaches, through any number of tables in between. Pure."""
    out: dict[TableId, list[Edge]] = defaultdict(list)
    for edge in edges:
        out[edge.parent].append(edge)
    found: dict[TableId, CascadeReach] = {}
    for parent, edges_of in out.items():
        reach = CascadeReach(
            by_delete=frozenset(_reached(out, parent, is_delete=True).intersection(replicated)),
            by_update=frozenset(_reached(out, parent, is_delete=False).intersection(replicated)),
            columns=frozenset(c for e in edges_of if e.acts & _UPDATE_ACTS for c in e.columns),
        )
        if reach.tables:
            found[parent] = reach
    return found


def _reached(out: Mapping[TableId, Sequence[Edge]], start: TableId, *, is_delete: bool) -> set[TableId]:
    """The tables whose rows may change; a cascade into a table may cascade further."""
    waiting, done = [(start, is_delete)], set[tuple[TableId, bool]]()
    changed: set[TableId] = set()
    while waiting:
        step = waiting.pop()
        if step in done:
            continue
        done.add(step)
        table, is_deleted = step
        for edge in out.get(table, ()):
            if edge.acts & (_DELETE_CASCADES | _DELETE_SETS if is_deleted else _UPDATE_ACTS):
                changed.add(edge.child)
                waiting.append((edge.child, bool(is_deleted and edge.acts & _DELETE_CASCADES)))
    return changed


@dataclass(eq=False, slots=True)
class Parent:
    """A parent as one TABLE_MAP has it. `decoder` tells whether an UPDATE changed what children refer to; None: it cannot be told."""

    reach: CascadeReach
    decoder: RowDecoder | None


@dataclass(slots=True, kw_only=True)
class Cascades:
    """Judges the events of one open log.

    Attributes:
        flavor: The server's flavor.
        replicated: The tables whose changes matter.
        read: Asks the server for its foreign keys.
        size_max: Bytes that a compressed event may have.
    """

    flavor: Flavor
    replicated: frozenset[TableId]
    read: Callable[[], Sequence[Edge]]
    size_max: int
    _reaches: Mapping[TableId, CascadeReach] = field(default_factory=dict)
    _parents: dict[TableMap, Parent] = field(default_factory=dict)

    def look(self) -> None:
        """Read the foreign keys. Called before the log is opened, and again when they may have changed."""
        self._reaches = reaches(self.read(), self.replicated)
        self._parents.clear()

    def rename(self, table: TableId, new: TableId) -> None:
        """Take the new name of a replicated table."""
        if table in self.replicated:
            self.replicated = self.replicated - {table} | {new}
            self.look()

    def parent(self, table_map: TableMap) -> Parent | None:
        """The parent with the tables that its changes reach; None where it reaches none."""
        reach = self._reaches.get(TableId(table_map.schema, table_map.table))
        if reach is None:
            return None
        parent = self._parents.get(table_map)
        if parent is None:
            parent = self._parents[table_map] = Parent(reach, self._decoder(table_map, reach))
        return parent

    def unread_parent(self, table: TableId) -> Parent | None:
        """A parent whose columns in the log cannot be read: any UPDATE may have changed what children refer to."""
        reach = self._reaches.get(table)
        return Parent(reach, None) if reach is not None else None

    def of_rows(self, parent: Parent, kind: int, body: memoryview) -> frozenset[TableId]:
        """The replicated tables that a rows event of a parent may have changed."""
        plain_kind = MARIADB_COMPRESSED.get(kind, kind)
        if plain_kind in _INSERTS:
            return frozenset()
        if plain_kind in _DELETES:
            return parent.reach.by_delete
        if not parent.reach.by_update or not self._may_have_changed(parent, kind, body):
            return frozenset()
        return parent.reach.by_update

    def of_statement(self, text: str) -> frozenset[TableId]:
        """The replicated tables that cascades may have changed unseen before a statement that may change foreign keys."""
        if not _MAY_CHANGE_KEYS.search(text):
            return frozenset()
        before = self._reaches
        self.look()
        folded = text.casefold()
        found = {table for table in self.replicated if _is_named(table, folded)}
        for known in (before, self._reaches):
            for parent, reach in known.items():
                if _is_named(parent, folded):
                    found |= reach.tables
        # A table that no foreign key changes now, and none did when the log was opened, may have lost its last one here.
        return frozenset(found)

    def _may_have_changed(self, parent: Parent, kind: int, body: memoryview) -> bool:
        """Return whether an UPDATE changed a column that children refer to; one that cannot be decoded may have."""
        if parent.decoder is None:
            return True
        plain: memoryview | bytes = body
        try:
            if kind in MARIADB_COMPRESSED:
                kind, plain = uncompressed_body(kind, body, size_max=self.size_max)
            rows = parent.decoder.decode([(kind, plain)])
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - half an image, a value that Arrow cannot hold: whatever cannot be read may have
            return True
        return bool(rows.before.null_count < len(rows.before))

    def _decoder(self, table_map: TableMap, reach: CascadeReach) -> RowDecoder | None:
        """A decoder of the columns that children refer to, as a key: then an UPDATE has a before image if one of them changed."""
        wanted = [column for column in table_map.columns if column.name in reach.columns]
        if not reach.by_update or len(wanted) < len(reach.columns):
            return None
        try:
            specs = [logged_spec(column, None, self.flavor) for column in wanted]
            columns = tuple(
                Column(name=c.name or "", type=s.arrow, source_type=str(s.kind))
                for c, s in zip(wanted, specs, strict=True)
            )
            schema = TableSchema(
                table=TableId(table_map.schema, table_map.table), columns=columns, key=tuple(c.name for c in columns)
            )
            return RowDecoder(
                table_map,
                schema,
                specs,
                [c.position for c in wanted],
                unrepresentable="fail",
                on_nulled=lambda *_: None,
            )
        except Exception:  # noqa: BLE001 - it cannot be told
            return None


def _is_named(table: TableId, folded: str) -> bool:
    # A name that a client's character set spelled otherwise is taken for named.
    return not table.name.isascii() or table.name.casefold() in folded or "`" in table.name


def read_edges(connection: Connection) -> list[Edge]:
    """Every foreign key of the server that acts, from InnoDB itself: with PROCESS nothing is hidden, and no table is opened."""
    flavor = flavor_of(connection)
    name = f"{flavor.innodb_prefix}foreign"
    child, parent = (_name_parts(f"f.{c}", is_encoded=flavor.encodes_foreign_names) for c in ("for_name", "ref_name"))
    rows = rows_of(
        connection,
        f"SELECT f.id, {child}, {parent}, f.type, c.ref_col_name FROM information_schema.{name} f"  # noqa: S608 - our own names
        f" JOIN information_schema.{name}_cols c ON c.id = f.id",
    )
    columns: dict[tuple[str, str, str, str, str, int], set[str]] = defaultdict(set)
    for id_, child_schema, child_name, parent_schema, parent_name, type_, column in rows:
        columns[id_, child_schema, child_name, parent_schema, parent_name, int(type_) & _ACTS].add(column)
    is_told = flavor.tells_foreign_actions or any(acts for *_, acts in columns)
    rules = {} if is_told or not columns else _read_rules(connection)
    found = []
    for (id_, cs, cn, ps, pn, acts), names in columns.items():
        if not is_told:
            # What this user may not see may do anything.
            acts = rules.get(id_.casefold(), _ACTS)  # noqa: PLW2901
        if acts:
            found.append(Edge(child=TableId(cs, cn), parent=TableId(ps, pn), acts=acts, columns=frozenset(names)))
    return found


def _read_rules(connection: Connection) -> dict[str, int]:
    """Actions of foreign keys, by `database/name` in lower case, of the tables that this user may see."""
    rows = rows_of(
        connection,
        "SELECT constraint_schema, constraint_name, delete_rule, update_rule FROM information_schema.referential_constraints",
    )
    return {
        f"{schema}/{name}".casefold(): _DELETE_RULES.get(on_delete, 0) | _UPDATE_RULES.get(on_update, 0)
        for schema, name, on_delete, on_update in rows
    }


def _name_parts(column: str, *, is_encoded: bool) -> str:
    """SQL of a table's database and name, out of InnoDB's `database/table`; MariaDB has both spelled as names of files."""
    database, name = f"SUBSTRING_INDEX({column}, '/', 1)", f"SUBSTRING({column}, LOCATE('/', {column}) + 1)"
    if not is_encoded:
        return f"{database}, {name}"
    return ", ".join(
        f"CONVERT(CONVERT(CONVERT({p} USING binary) USING filename) USING utf8mb4)" for p in (database, name)
    )
