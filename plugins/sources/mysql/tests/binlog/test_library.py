"""`mysql-replication` on the same events: the same values, wherever the library is right."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pymysql.protocol import MysqlPacket
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import DeleteRowsEvent, RowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

HEADER = struct.Struct("<IBIIIH")
# Without FLOAT, BINARY, TIME with fractions, BIT, SET, JSON, YEAR 0 and zero dates: there the library is wrong, or has another form.
TABLE = """
    id INT PRIMARY KEY, a TINYINT, b BIGINT UNSIGNED, c DECIMAL(30,4), d VARCHAR(300), e CHAR(20), f DATETIME(6), g TEXT, h BLOB,
    i ENUM('x','y'), j DOUBLE, k DATE, l SMALLINT UNSIGNED, m MEDIUMINT, n VARBINARY(9), o VARCHAR(10) CHARACTER SET latin2, p DATETIME(3)
"""


def _row(rng: random.Random, number: int) -> str:
    text = "".join(rng.choice("aé日 ") for _ in range(rng.randrange(18)))
    values = [
        rng.randint(-128, 127), rng.getrandbits(64), f"{rng.randint(-(10**20), 10**20)}.{rng.randrange(10**4):04}",
        f"'{text * 3}'", f"'x{text}x'",
        f"'2024-02-29 23:59:59.{rng.randrange(10**6):06}'", f"'{text * 9}'", f"x'{rng.randbytes(5).hex()}'", rng.choice(["'x'", "'y'"]),
        repr(rng.uniform(-1e9, 1e9)), "'1969-12-31'", rng.getrandbits(16), rng.randint(-(2**23), 2**23 - 1), "x'00ff'", "'ąć'",
        f"'1000-01-01 00:00:00.{rng.randrange(1000):03}'",
    ]  # fmt: skip
    return f"({number},{','.join('NULL' if rng.random() < 0.2 else str(value) for value in values)})"


def test_values_are_those_of_the_library(binlog: Binlog) -> None:
    rng = random.Random(11)
    binlog.execute(f"CREATE TABLE t ({TABLE})")
    binlog.forget()
    binlog.execute(f"INSERT INTO t VALUES {','.join(_row(rng, number) for number in range(300))}")
    binlog.execute("UPDATE t SET m = NULL, d = 'other' WHERE id % 3 = 0")
    binlog.execute("DELETE FROM t WHERE id % 7 = 0")
    theirs = _library_rows(binlog)
    ours = binlog.decode("t", key=())
    assert [kind for kind, _, _ in theirs] == ours.operation.to_pylist()
    assert [before for _, before, _ in theirs] == ours.before.to_pylist()
    assert [row for _, _, row in theirs] == ours.row.to_pylist()


def _library_rows(binlog: Binlog) -> list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]]:
    tables: dict[int, Any] = {}
    # The library asks its connection for nothing but this.
    connection = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: binlog.flavor)
    allowed = frozenset({TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent})
    rows: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = []
    for event in binlog.raw_events():
        size = HEADER.size + len(event.body) + 4
        packet = MysqlPacket(b"\0" + HEADER.pack(0, event.type_code, 1, size, 0, 0) + event.body + bytes(4), "utf8mb4")
        version = (10, 11) if binlog.flavor == "mariadb" else (9, 7)
        wrapper = BinLogPacketWrapper(
            packet, tables, connection, version, True, allowed, None, None, None, None, False, False, False, True, False, False
        )  # fmt: skip
        if isinstance(wrapper.event, RowsEvent) and not isinstance(wrapper.event, TableMapEvent):
            for row in wrapper.event.rows:
                if isinstance(wrapper.event, UpdateRowsEvent):
                    rows.append(("UPDATE", row["before_values"], row["after_values"]))
                elif isinstance(wrapper.event, DeleteRowsEvent):
                    rows.append(("DELETE", row["values"], None))
                else:
                    rows.append(("INSERT", None, row["values"]))
    return rows
