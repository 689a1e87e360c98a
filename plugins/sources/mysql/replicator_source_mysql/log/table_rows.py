"""TABLE_MAP and rows events: the table that a rows event is about, and the pull that it goes into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from replicator.model.errors import FatalError, TableError
from replicator.model.events import DDLEvent, DDLOperation, no_fill
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import PullLimits
from replicator_source_mysql.binlog import TableMaps, named_table, table_id, uncompressed_body
from replicator_source_mysql.binlog.events import MARIADB_COMPRESSED, RowsEvent, corrupt, too_large
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.ddl.alterations import Alteration
from replicator_source_mysql.events import FLAG_ARTIFICIAL, Event, EventKind
from replicator_source_mysql.flavors import Flavor
from replicator_source_mysql.log.dump import HEADER, HEADER_SIZE
from replicator_source_mysql.log.groups import Group
from replicator_source_mysql.log.pulls import Pull, Transaction, error_of_table
from replicator_source_mysql.log.stream import EventStream
from replicator_source_mysql.reach.cascades import Cascades, Parent
from replicator_source_mysql.sql.clauses import ColumnChanges
from replicator_source_mysql.versions import HeldRows, KeyChange, Version, Versions

_END_OF_STATEMENT: Final = 1
_EMPTY_SIZE: Final = 10
_PLAIN_ROWS: Final = frozenset(int(kind) for kind in RowsEvent)
_TABLE_MAP: Final = int(EventKind.TABLE_MAP)
_NUMBER: Final = slice(HEADER_SIZE, HEADER_SIZE + 6)
# Tables that are remembered with their numbers; new numbers come with every statement that changes a table.
_KNOWN_MAX: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TableRows:
    """Takes the TABLE_MAP and rows events of one open log.

    Args:
        flavor: The server's flavor.
        schemas: The replicated tables, in their last known shapes.
        unrepresentable: `source.unrepresentable`.
        cascades: Tells which tables foreign keys may have changed; None where the server logs what they do, or it is not asked for.
        size_max: Bytes that a compressed event may have.
    """

    def __init__(
        self,
        *,
        flavor: Flavor,
        schemas: Mapping[TableId, TableSchema],
        unrepresentable: Unrepresentable,
        cascades: Cascades | None,
        size_max: int,
    ) -> None:
        self._versions = Versions(flavor, schemas, unrepresentable=unrepresentable)
        self._cascades = cascades
        self._size_max = size_max
        self._table_maps = TableMaps(flavor)
        # Table number → version; None for tables that are not replicated. Numbers are the server's, and change.
        self._numbers: dict[int, Version | None] = {}
        # TABLE_MAP events of tables that no foreign key makes a matter of others → number and version.
        self._known: dict[bytes, tuple[int, Version | None]] = {}
        self._parents: dict[int, Parent] = {}
        # TABLE_MAP events of the statement that is being read, and how many of them stood before its last rows event.
        self._announced: list[bytes] = []
        self._begun = 0

    @property
    def announced(self) -> Sequence[TableId]:
        """The tables of which the statement that is being read may have rows: its next rows event, if it has one, is of one of them."""
        return [TableId(*named) for named in dict.fromkeys(map(named_table, self._announced))]

    @property
    def tables(self) -> Mapping[TableId, TableSchema]:
        """The tables whose rows are delivered."""
        return self._versions.replicated

    def forget_numbers(self) -> None:
        """Forget table numbers: they mean nothing beyond a transaction or a file."""
        self._numbers.clear()
        self._parents.clear()
        self._announced.clear()
        self._begun = 0

    def drop(self, table: TableId) -> None:
        """Deliver no more rows of a table."""
        self._versions.drop(table)
        self._known.clear()

    def fail(self, table: TableId, error: Exception, pull: Pull) -> None:
        """Fail a table of which something cannot be read; does nothing if it is not replicated."""
        if table in self._versions.replicated:
            pull.fail(table, error_of_table(table, error))
            self.drop(table)

    def alter(self, table: TableId, changes: ColumnChanges | None) -> Alteration | None:
        """Give a table the shape that a statement makes of it; None if it cannot be told, as where the statement was not understood."""
        # Each table's next TABLE_MAP is compared with its shape again.
        self._known.clear()
        if changes is None:
            self._versions.doubt(table)
            return None
        return self._versions.alter(table, changes)

    def accept(self, table: TableId) -> None:
        """See `BinlogReader.accept`."""
        self._versions.trust(table)

    def rename(self, table: TableId, new: TableId) -> None:
        """Deliver a table's rows under its new name, unless another one has that."""
        self._versions.rename(table, new)
        self._known.clear()

    def expect_any_key(self, table: TableId) -> None:
        """Report no change with the table's next key: the host knows that the table may be another one."""
        self._versions.expect_any_key(table)

    # ---- events ----

    def take_queued(self, stream: EventStream, group: Group, pull: Pull, limits: PullLimits) -> None:
        """Take most events of a log, those that name a known table and bring rows of it, in as few steps as possible.

        All others stay in the queue, for `table_map` and `rows`. This is a second way for a rows event because the
        other one costs two to six times as much CPU time: 8.9 instead of 1.8 µs an event in transactions of 50 statements with a
        row each, 7.9 instead of 3.6 in transactions of one row, 3.3 instead of 0.5 for tables that are not replicated (measured
        on events made by hand, the best of five). `test_plain_rows.py` shows that both ways give the same.
        """
        if not group.is_plain or not stream.is_at_queue:
            return
        queue, cursor = stream.queue, stream.cursor
        known, numbers, parents, header_at = self._known, self._numbers, self._parents, HEADER.unpack_from
        announced, begun = self._announced, self._begun
        rows = pull.rows_of(group.transaction) if group.transaction is not None else None
        pos = cursor.pos
        is_full = pull.is_full(limits)
        while queue and not is_full:
            raw = queue[0]
            _, kind, _, size, end, flags = header_at(raw)
            if kind == _TABLE_MAP:
                body = raw[HEADER_SIZE:]
                found = known.get(body)
                if found is None or (found[1] is not None and not pull.admit(found[1])):
                    break
                numbers[found[0]] = found[1]
                del announced[:begun]
                begun = 0
                announced.append(body)
            elif kind in _PLAIN_ROWS:
                number = int.from_bytes(raw[_NUMBER], "little")
                if number not in numbers or number in parents:
                    break
                begun = len(announced)
                version = numbers[number]
                if version is not None:
                    if rows is None:
                        rows = pull.rows_of(group.ensure_transaction())
                    rows(version, kind, raw[HEADER_SIZE:])
                    is_full = pull.is_full(limits)
            else:
                break
            queue.popleft()
            if end > pos and not flags & FLAG_ARTIFICIAL:
                # As `move`, below 4 GiB.
                pos = end
            else:
                cursor.pos = pos
                cursor.move(kind, size, end, flags, in_transaction=True)
                pos = cursor.pos
        cursor.pos = pos
        self._begun = begun

    def table_map(self, event: Event, group: Group, pull: Pull) -> bool:
        """Take a TABLE_MAP event; False if it must come again in the next pull."""
        del self._announced[: self._begun]
        self._begun = 0
        self._announced.append(bytes(event.body))
        if group.is_skipped:
            return True
        number = table_id(event.body)
        version: Version | None = None
        parent: Parent | None = None
        try:
            table_map = self._table_maps.get(event.body)
            change = self._versions.take_key(table_map)
            if change is not None:
                # The rows' key is another one now: they come after this event.
                self._known.clear()
                _other_key(group, change, pull)
                return False
            parent = self._cascades.parent(table_map) if self._cascades is not None else None
            version = self._versions.of(table_map)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (it becomes the table's)
            # Without a name it is about the log.
            table = TableId(*named_table(event.body))
            self.fail(table, error, pull)
            if parent is None and self._cascades is not None:
                parent = self._cascades.unread_parent(table)
        if version is not None and not pull.admit(version):
            return False
        self._numbers[number] = version
        if parent is not None:
            self._parents[number] = parent
        elif self._cascades is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[bytes(event.body)] = (number, version)
        return True

    def rows(self, event: Event, group: Group, offset: int, pull: Pull) -> None:
        """Take a rows event that ends at this offset of its group; those of an XA transaction are held by the group."""
        self._begun = len(self._announced)
        if group.is_skipped:
            return
        number = table_id(event.body)
        if number not in self._numbers:
            if int.from_bytes(event.body[6:8], "little") & _END_OF_STATEMENT and len(event.body) <= _EMPTY_SIZE:
                return  # an empty one, which only ends a statement
            raise corrupt(
                f"A rows event in the log names the table number {number}, which no TABLE_MAP event announced."
            )
        if group.is_undone(offset):
            return
        if number in self._parents:
            self._cascade(group, self._parents[number], event, pull)
        version = self._numbers[number]
        if version is None:
            return
        kind, body = event.kind, event.body
        if event.cut or kind in MARIADB_COMPRESSED:
            try:
                kind, body = self._uncompressed(event)
            except FatalError as error:
                self.fail(version.schema.table, error, pull)
                self._numbers[number] = None
                return
        if group.is_xa:
            group.hold(version, kind, body)
        else:
            pull.rows(group.ensure_transaction(), version, kind, body)

    def release(self, group: Group, held: HeldRows, unlogged: frozenset[TableId], pull: Pull) -> None:
        """Put the held rows of an XA transaction into the pull, as changes of this group."""
        if unlogged:
            pull.unlogged(group.ensure_transaction(), unlogged)
        for version, kind, body in held:
            if pull.admit(version):
                pull.rows(group.ensure_transaction(), version, kind, memoryview(body))
            else:
                self.fail(version.schema.table, _two_shapes(version.schema.table), pull)

    def _uncompressed(self, event: Event) -> tuple[int, memoryview]:
        if event.cut:
            raise too_large("A rows event", event.cut, self._size_max)
        kind, body = uncompressed_body(event.kind, event.body, size_max=self._size_max)
        return kind, memoryview(body)

    def _cascade(self, group: Group, parent: Parent, event: Event, pull: Pull) -> None:
        """Record the tables that foreign keys may have changed: the log has nothing of them."""
        assert self._cascades is not None
        if event.cut:
            parent = Parent(parent.reach, None)
        tables = self._cascades.of_rows(parent, event.kind, event.body)
        if not tables:
            return
        if group.is_xa:
            group.unlogged |= tables
        else:
            pull.unlogged(group.ensure_transaction(), tables)


def committed_at(transaction: Transaction) -> datetime:
    """Time of a transaction's commit, by the source's clock."""
    return _EPOCH + timedelta(microseconds=transaction.committed_us)


def _other_key(group: Group, change: KeyChange, pull: Pull) -> None:
    transaction = group.ensure_transaction()
    is_known = change.schema is not None
    pull.event(
        transaction,
        DDLEvent(
            operation=DDLOperation.ALTER_TABLE if is_known else DDLOperation.CREATE_TABLE,
            table=change.table,
            before=change.before,
            schema=change.schema,
            fill=no_fill() if is_known else None,
            transaction_id=transaction.id,
            source_timestamp=committed_at(transaction),
        ),
    )


def _two_shapes(table: TableId) -> TableError:
    return TableError(
        "its columns changed between XA PREPARE and XA COMMIT of a transaction with rows of it.",
        code="schema_changed",
        table=str(table),
        action="Run `replicator ddl accept NAME TABLE`: the target follows to the columns that the table has now.",
    )
