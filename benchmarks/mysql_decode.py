"""MariaDB's log into sealed Parquet, and its rows events into Arrow columns, compared with `mysql-replication` on the very same files.

Sealed Parquet is the capture pump itself, as a worker runs it: it asks the server for the log, proves checksums, decodes, numbers,
encodes, and seals in the state store. The other two are given the events of the server's binlog files and read no socket: the library
gives a dictionary per row; the decoder alone gives columns in the form of `change_schema`. The library's own TABLE_MAP parsing and event
objects count for it, our table map cache and the joining of bodies for us.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.captured import capturing_mysql_changes
from benchmarks.measure import Clock, Side, Work, in_turns, say
from benchmarks.report import Line, Report, spell
from benchmarks.scale import Scale
from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_mysql.binlog import RowDecoder, TableMap, TableMaps, declared_spec, logged_spec, table_id
from replicator_source_mysql.binlog.events import TABLE_MAP, RowsEvent
from replicator_source_mysql.flavors import MARIADB
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.present import present

GOAL_BATCH: Final = 30
GOAL_SINGLE: Final = 50
# What is measured is reading: the table lies in memory, and nothing asks what survives a crash.
SETTINGS: Final = {"innodb-buffer-pool-size": "1G", "sync-binlog": "0", "innodb-flush-log-at-trx-commit": "0"}
_HEADER: Final = struct.Struct("<IBIIIH")
_CHECKSUM_SIZE: Final = 4
_FORMAT_DESCRIPTION: Final = 15
# As a pull takes them: so many events at once.
_EVENTS_PER_PULL: Final = 4_000
_SEALED: Final = "captured to sealed Parquet"
_OURS: Final = "decoded to columns"
_THEIRS: Final = "mysql-replication"
TABLE: Final = """CREATE TABLE orders (
    id BIGINT PRIMARY KEY, customer INT NOT NULL, product INT NOT NULL, quantity INT, price DECIMAL(12,2), name VARCHAR(64),
    created DATETIME(6), note TEXT, details JSON, weight DOUBLE, is_paid BOOL, status VARCHAR(16))"""
_ROW: Final = """{id}, {id} % 9973, {id} % 317, {id} % 7, {id} / 100, CONCAT('customer name ', {id} % 10007),
    TIMESTAMP '2024-01-01 00:00:00' + INTERVAL {id} SECOND, IF({id} % 10 = 0, NULL, CONCAT('a note of some length about order ', {id})),
    CONCAT('{{"tags": ["a", "b"], "number": ', {id}, ', "nested": {{"flag": true}}}}'), {id} / 7e0, {id} % 2,
    ELT({id} % 3 + 1, 'new', 'paid', 'shipped')"""


@dataclass(frozen=True, slots=True)
class _Load:
    """A kind of change: raw events with their headers, and how many changes they hold."""

    name: str
    events: Sequence[bytes]
    changes: int
    goal: float
    start_at: str


def run(scale: Scale) -> Report:
    """Write each part of the log once; decode it in turns."""
    lines: list[Line] = []
    raw = {}
    with MysqlServer.mariadb(settings=SETTINGS) as server, server.database("bench") as database:
        database.execute(TABLE)
        for load in _write(database, scale.rows // 4):
            say(f"mysql_decode: {load.name}")
            sides = {
                _SEALED: _captured(database, load),
                _OURS: _side(_ours(database, load)),
                _THEIRS: _side(_theirs(load)),
            }
            taken = in_turns(sides, scale.repetitions)
            for side in (_SEALED, _OURS):
                ratio = taken[side].per_cpu_second / taken[_THEIRS].per_cpu_second
                lines.append(
                    Line(
                        what=f"{load.name}, {side}",
                        figure=spell(taken[side]),
                        against=f"{_THEIRS}: {spell(taken[_THEIRS])}",
                        ratio=ratio,
                        goal=f"≥ {load.goal:.2f}x",
                        is_met=ratio >= load.goal,
                    )
                )
            raw[load.name] = taken
    return Report(name="mysql_decode", lines=lines, raw={"rates": raw})


def _write(database: MysqlDatabase, rows: int) -> Iterator[_Load]:
    small = rows // 10
    loads: list[tuple[str, int, float, Callable[[], None]]] = [
        (f"{rows:,} inserts, 10,000 a transaction", rows, GOAL_BATCH, lambda: insert(database, rows)),
        (f"{rows // 2:,} updates, 500 a statement", rows // 2, GOAL_BATCH, lambda: _update(database, rows // 2)),
        (f"{rows // 10:,} deletes, 100 a statement", rows // 10, GOAL_BATCH, lambda: _delete(database, rows // 10)),
        (
            f"{small:,} transactions of one insert and three updates",
            4 * small,
            GOAL_SINGLE,
            lambda: _transact(database, rows, small),
        ),
    ]
    for name, changes, goal, write in loads:
        say(f"mysql_decode: writing {name}")
        (first,) = database.execute("FLUSH BINARY LOGS", "SHOW MASTER STATUS")
        ((start_at,),) = database.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        write()
        yield _Load(name, _events(Path(database.server.data_folder) / first[0]), changes, goal, start_at)


def insert(database: MysqlDatabase, rows: int) -> None:
    """Insert rows 1 … `rows`, 10,000 a transaction."""
    for begin in range(1, rows + 1, 10_000):
        row = _ROW.format(id="seq")
        database.execute(f"INSERT INTO orders SELECT {row} FROM seq_{begin}_to_{min(begin + 9_999, rows)}")


def _update(database: MysqlDatabase, rows: int) -> None:
    statements = (
        f"UPDATE orders SET quantity = quantity + 1, note = 'changed' WHERE id BETWEEN {b} AND {b + 499}"
        for b in range(1, rows, 500)
    )
    database.execute(*statements)


def _delete(database: MysqlDatabase, rows: int) -> None:
    database.execute(*(f"DELETE FROM orders WHERE id BETWEEN {b} AND {b + 99}" for b in range(1, rows, 100)))


def _transact(database: MysqlDatabase, rows: int, count: int) -> None:
    with database.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for number in range(rows + 1, rows + count + 1):
            cursor.execute(f"INSERT INTO orders SELECT {_ROW.format(id=number)}")
            for step in (1, 2, 3):
                cursor.execute(
                    f"UPDATE orders SET quantity = quantity + 1 WHERE id = {rows - (number * step) % (rows // 2)}"
                )
            connection.commit()


def _events(path: Path) -> list[bytes]:
    content = path.read_bytes()
    events = []
    offset = 4
    while offset < len(content):
        size = _HEADER.unpack_from(content, offset)[3]
        events.append(content[offset : offset + size])
        offset += size
    return events


def _captured(database: MysqlDatabase, load: _Load) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        with capturing_mysql_changes(database, "orders", load.start_at, load.changes) as capture:

            def checked(clock: Clock) -> int:
                count = capture(clock)
                assert count == load.changes, f"{count} changes were captured, {load.changes} were written"
                return count

            yield checked

    return side


def _side(work: Work) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        yield work

    return side


def _ours(database: MysqlDatabase, load: _Load) -> Work:
    columns = database.execute(
        "SELECT column_name, column_type, character_set_name FROM information_schema.columns "
        "WHERE table_schema = 'bench' ORDER BY ordinal_position"
    )
    declared = {name: declared_spec(column_type, charset, MARIADB) for name, column_type, charset in columns}

    def work(clock: Clock) -> int:
        maps, current, pending = TableMaps(MARIADB), {}, []
        decoders: dict[TableMap, RowDecoder] = {}
        changes = 0
        decoder = None
        clock.begin()
        for event in load.events:
            type_code = event[4]
            if type_code == TABLE_MAP:
                body = memoryview(event)[_HEADER.size : -_CHECKSUM_SIZE]
                table_map = maps.get(body)
                current[table_id(body)] = table_map
                decoder = decoders.get(table_map)
                if decoder is None:
                    decoder = decoders[table_map] = _decoder(table_map, declared)
            elif type_code in _ROWS:
                pending.append((type_code, memoryview(event)[_HEADER.size : -_CHECKSUM_SIZE]))
                if len(pending) >= _EVENTS_PER_PULL:
                    assert decoder is not None
                    changes += len(decoder.decode(pending).row)
                    pending = []
        changes += len(decoder.decode(pending).row) if decoder else 0
        assert changes == load.changes, f"{changes} changes were decoded, {load.changes} were written"
        return changes

    return work


_ROWS: Final = frozenset(int(code) for code in RowsEvent)


def _decoder(table_map: TableMap, declared: Mapping[str, Any]) -> RowDecoder:
    specs = [logged_spec(column, declared[present(column.name)], MARIADB) for column in table_map.columns]
    columns = tuple(
        Column(name=present(column.name), type=spec.arrow, source_type=str(spec.kind))
        for column, spec in zip(table_map.columns, specs, strict=True)
    )
    schema = TableSchema(table=TableId(table_map.schema, table_map.table), columns=columns, key=("id",))
    return RowDecoder(table_map, schema, specs, range(len(specs)), unrepresentable="fail", on_nulled=lambda *_: None)


def _theirs(load: _Load) -> Work:
    from pymysql.protocol import MysqlPacket
    from pymysqlreplication.packet import BinLogPacketWrapper
    from pymysqlreplication.row_event import (
        DeleteRowsEvent,
        TableMapEvent,
        UpdateRowsEvent,
        WriteRowsEvent,
    )
    from pymysqlreplication.row_event import (
        RowsEvent as LibraryRowsEvent,
    )

    # The library asks its connection for nothing but this.
    connection = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: "mariadb")
    allowed = frozenset({TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent})
    # The library is some thirty times slower: a part of the log is enough.
    part = load.events[: max(len(load.events) // 10, 2_000)]

    def work(clock: Clock) -> int:
        tables: dict[int, Any] = {}
        changes = 0
        gc.collect()
        clock.begin()
        for event in part:
            packet = MysqlPacket(b"\0" + event, "utf8mb4")
            wrapper = BinLogPacketWrapper(
                packet,
                tables,
                connection,
                (10, 11),
                True,
                allowed,
                None,
                None,
                None,
                None,
                False,
                False,
                False,
                True,
                False,
                False,
            )
            if wrapper.event is None:
                continue
            if isinstance(wrapper.event, TableMapEvent):
                tables[wrapper.event.table_id] = wrapper.event.get_table()
            elif isinstance(wrapper.event, LibraryRowsEvent):
                changes += len(wrapper.event.rows)
        return changes

    return work
