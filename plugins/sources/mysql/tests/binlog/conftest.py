"""Servers for the decoder's tests, and their binlog files read without any connection."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_mysql.binlog import (
    ColumnSpec,
    DecodedRows,
    RowDecoder,
    TableMap,
    TableMaps,
    declared_spec,
    logged_spec,
    table_id,
    transaction_payload,
    uncompressed_body,
)
from replicator_source_mysql.binlog.events import (
    MARIADB_COMPRESSED,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    RowsEvent,
)
from replicator_source_mysql.binlog.types import Unrepresentable
from replicator_source_mysql.flavors import flavor_of_server
from replicator_source_mysql.rows.text_rows import text_rows
from replicator_source_mysql.rows.values import decoded, selected
from replicator_testbed.mysql.programs import has_mariadb, has_mysql
from replicator_testbed.mysql.servers import MysqlDatabase, MysqlServer
from replicator_testbed.present import present

SIZE_MAX = 1 << 30
# Nothing here asks what survives a crash.
SETTINGS = {"default-time-zone": "-05:00", "sync-binlog": "0", "innodb-flush-log-at-trx-commit": "0"}
_HEADER = struct.Struct("<IBIIIH")
_CHECKSUM_SIZE = 4


@dataclass(frozen=True)
class Event:
    type_code: int
    body: bytes


@dataclass
class Changes:
    """The rows events of one table, with its table map."""

    table_map: TableMap
    events: list[tuple[int, bytes]]


class Binlog:
    """A database of its own, and what the log says about it from now on."""

    def __init__(self, database: MysqlDatabase) -> None:
        self.database = database
        self.flavor = database.server.flavor
        self.dialect = flavor_of_server(self.flavor)

    def connect(self) -> None:
        # Values as the server writes them, and one connection: a handshake costs more than most statements.
        self._connection = self.database.connect(conv={})
        self.execute("SET time_zone = '+00:00'")
        self.forget()

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement; values come as the server writes them (texts, and bytes where they are no text)."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def forget(self) -> None:
        """Begin at the log's end."""
        self._file, self._position = self._end()

    def chunk(self, table: str, column: str, *, unrepresentable: Unrepresentable = "fail") -> pa.Array:
        """A column as a chunk reads it, in the order of `id`."""
        spec = self.declared(table)[column]
        query = f"SELECT {selected(column, spec)} FROM {table} ORDER BY id"
        blocks = text_rows(self._connection, query, rows_max=10_000, bytes_max=SIZE_MAX, silence_s=60)
        arrays = [decoded(b.next_column(), spec, name=column, unrepresentable=unrepresentable) for b in blocks]
        return pa.concat_arrays(arrays)

    def _end(self) -> tuple[str, int]:
        ((file, position, *_),) = self.execute(self.database.server.end_of_log)
        return file, int(position)

    def raw_events(self) -> list[Event]:
        """Everything since the beginning."""
        file, end = self._end()
        assert file == self._file
        content = (Path(self.database.server.data_folder) / file).read_bytes()
        return list(_framed(content, self._position, end))

    def events(self) -> list[Event]:
        """Everything since the beginning, inner events instead of what holds them."""
        return list(_plain(self.raw_events()))

    def changes(self, table: str) -> list[Changes]:
        """The rows events of a table, per version of its table map."""
        maps = TableMaps(self.dialect)
        current: dict[int, TableMap] = {}
        found: list[Changes] = []
        for event in self.events():
            if event.type_code == TABLE_MAP:
                current[table_id(event.body)] = maps.get(event.body)
            elif event.type_code in set(RowsEvent):
                table_map = current[table_id(event.body)]
                if (table_map.schema, table_map.table) != (self.database.name, table):
                    continue
                if not found or found[-1].table_map is not table_map:
                    found.append(Changes(table_map, []))
                found[-1].events.append((event.type_code, event.body))
        return found

    def declared(self, table: str) -> dict[str, ColumnSpec]:
        rows = self.execute(
            "SELECT column_name, column_type, character_set_name FROM information_schema.columns "
            f"WHERE table_schema = '{self.database.name}' AND table_name = '{table}' ORDER BY ordinal_position"
        )
        specs = {name: declared_spec(column_type, charset, self.dialect) for name, column_type, charset in rows}
        return {name: present(spec) for name, spec in specs.items()}

    def decoder(self, table: str, table_map: TableMap, *, key: Sequence[str] = ("id",), **options: Any) -> RowDecoder:
        declared = self.declared(table)
        specs = [logged_spec(c, declared[present(c.name)], self.dialect) for c in table_map.columns]
        columns = tuple(
            Column(name=present(c.name), type=s.arrow, source_type=str(s.kind))
            for c, s in zip(table_map.columns, specs, strict=True)
        )
        schema = TableSchema(table=TableId(table_map.schema, table_map.table), columns=columns, key=tuple(key))
        return RowDecoder(
            table_map,
            schema,
            specs,
            range(len(specs)),
            **{"unrepresentable": "fail", "on_nulled": lambda *_: None, **options},
        )

    def decode(self, table: str, **options: Any) -> DecodedRows:
        """Decode all rows of a table whose version has not changed."""
        (changes,) = self.changes(table)
        return self.decoder(table, changes.table_map, **options).decode(changes.events)


def _framed(content: bytes, position: int, end: int) -> Iterator[Event]:
    while position < end:
        _, type_code, _, size, _, _ = _HEADER.unpack_from(content, position)
        yield Event(type_code, content[position + _HEADER.size : position + size - _CHECKSUM_SIZE])
        position += size


def _plain(events: Sequence[Event]) -> Iterator[Event]:
    for event in events:
        if event.type_code == TRANSACTION_PAYLOAD:
            for inner in transaction_payload(event.body, size_max=SIZE_MAX):
                yield Event(inner.type_code, inner.body)
        elif event.type_code in MARIADB_COMPRESSED:
            yield Event(*uncompressed_body(event.type_code, event.body, size_max=SIZE_MAX))
        else:
            yield event


@pytest.fixture(scope="session")
def _mariadb() -> Iterator[Binlog]:
    if not has_mariadb():
        pytest.skip("no MariaDB server programs are installed")
    with MysqlServer.mariadb(settings=SETTINGS) as server, server.database() as database:
        yield Binlog(database)


@pytest.fixture(scope="session")
def _mysql() -> Iterator[Binlog]:
    if not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh unpacks one; the decoder is tested on MariaDB only")
    with MysqlServer.mysql(settings=SETTINGS) as server, server.database() as database:
        yield Binlog(database)


def _clean(binlog: Binlog) -> Iterator[Binlog]:
    binlog.connect()
    yield binlog
    for (table,) in binlog.execute("SHOW TABLES"):
        binlog.execute(f"DROP TABLE `{table}`")
    binlog.close()


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def binlog(request: pytest.FixtureRequest) -> Iterator[Binlog]:
    """An empty database on MariaDB; on MySQL in the matrix."""
    yield from _clean(request.getfixturevalue(f"_{request.param}"))


@pytest.fixture(params=["mariadb", "mysql"])
def each_binlog(request: pytest.FixtureRequest) -> Iterator[Binlog]:
    """An empty database on each server."""
    yield from _clean(request.getfixturevalue(f"_{request.param}"))


@pytest.fixture
def mysql_binlog(_mysql: Binlog) -> Iterator[Binlog]:
    yield from _clean(_mysql)


@pytest.fixture
def mariadb_binlog(_mariadb: Binlog) -> Iterator[Binlog]:
    yield from _clean(_mariadb)
