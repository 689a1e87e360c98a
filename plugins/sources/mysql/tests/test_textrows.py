"""Rows of an answer, however the network cuts it."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from replicator_source_mysql.connecting import wire
from replicator_source_mysql.rows import text_rows as textrows
from replicator_source_mysql.rows.text_rows import Rows, text_rows

END = b"\xfe\0\0\2\0"
LARGE = (1 << 24) - 1


class Packets:
    """An answer as the server writes it: packets with ascending numbers, long ones cut into several."""

    def __init__(self, columns: int) -> None:
        self.data = bytearray()
        self.number = 1
        for content in (bytes([columns]), *[b"\x03def" + bytes(20)] * columns, END):
            self.add(content)

    def add(self, content: bytes) -> None:
        while True:
            piece, content = content[:LARGE], content[LARGE:]
            self.data += struct.pack("<I", len(piece) | self.number << 24) + piece
            self.number = (self.number + 1) & 0xFF
            if len(piece) < LARGE:
                return

    def row(self, *values: bytes | None) -> None:
        self.add(b"".join(map(written, values)))


def written(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value if size < 1 << 24 else b"\xfe" + struct.pack("<Q", size) + value


class Line:
    """What `text_rows` needs of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def _execute_command(self, command: int, query: str) -> None:
        pass


@contextmanager
def answering(data: bytes, cuts: list[int]) -> Iterator[Any]:
    """A connection on which the data comes in pieces."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                try:
                    theirs.sendall(data[begin:end])
                except OSError:
                    return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with closing(ours):
            yield Line(ours)
    finally:
        thread.join(timeout=60)


def read(
    data: bytes | bytearray, columns: int, *, cuts: list[int] | None = None, rows_max: int = 100
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    with answering(bytes(data), cuts or []) as connection:
        for rows in text_rows(connection, "SELECT", rows_max=rows_max, bytes_max=1 << 20, silence_s=60):
            found += zip(*(rows.next_column().to_pylist() for _ in range(columns)), strict=True)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_the_same_however_they_arrive(seed: int) -> None:
    chance = random.Random(seed)
    packets, expected = Packets(3), []
    for _ in range(600):
        row = tuple(
            None if chance.random() < 0.1 else chance.randbytes(chance.choice([0, 1, 5, 250, 251, 300, 1000]))
            for _ in range(3)
        )
        expected.append(row)
        packets.row(*row)
    packets.add(END)
    cuts = sorted(chance.sample(range(1, len(packets.data)), 300))
    assert read(packets.data, 3, cuts=cuts, rows_max=chance.choice([1, 7, 10_000])) == expected


def test_rows_longer_than_a_packet_are_joined_in_order() -> None:
    packets, expected = Packets(2), []
    for number, size in enumerate([3, LARGE - 9, LARGE - 6, 70_000, 2 * LARGE + 5, 1]):
        row = (str(number).encode(), bytes([65 + number]) * size)
        expected.append(row)
        packets.row(*row)
    packets.row(None, None)
    packets.add(END)
    assert read(packets.data, 2) == [*expected, (None, None)]


def test_a_row_larger_than_a_block_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To take what is here of it, again and again, copied all of it for each piece: a row of 30 MB took minutes."""
    taken, take = [], textrows._Answer.take

    def counted(answer: Any) -> Rows:
        taken.append(answer.size)
        return take(answer)

    monkeypatch.setattr(textrows._Answer, "take", counted)
    packets, value = Packets(1), b"x" * (4 << 20)
    packets.row(b"a")
    packets.row(value)
    packets.add(END)
    assert read(packets.data, 1, cuts=list(range(1000, len(packets.data), 10_000))) == [(b"a",), (value,)]
    assert len(taken) <= 2


def test_an_answer_without_rows_is_one() -> None:
    packets = Packets(40)
    packets.add(END)
    assert read(packets.data, 40) == []


def test_an_error_instead_of_a_row_or_of_everything_is_one() -> None:
    packets = Packets(1)
    packets.row(b"first")
    packets.add(b"\xff" + (1317).to_bytes(2, "little") + b"#70100interrupted")
    alone = b"\x11\0\0\1\xff" + (1146).to_bytes(2, "little") + b"#42S02no table"
    for data, number in ((packets.data, 1317), (alone, 1146)):
        with pytest.raises(pymysql.err.OperationalError) as found:
            read(data, 1)
        assert found.value.args[0] == number


def test_packets_out_of_order_and_a_farewell_are_told_apart() -> None:
    packets = Packets(1)
    packets.row(b"first")
    packets.number = 77
    packets.row(b"lost one")
    with pytest.raises(pymysql.err.InternalError):
        read(packets.data, 1)
    packets = Packets(1)
    packets.row(b"first")
    packets.number = 0
    packets.add(b"\xff" + (1053).to_bytes(2, "little") + b"#08S01shutdown")
    with pytest.raises(wire.LostError, match="shutdown"):
        read(packets.data, 1)
    with pytest.raises(wire.LostError, match="closed"):
        read(packets.data[:-40], 1)


@pytest.mark.parametrize("row", [b"\x05abc", b"", b"\xfc\x01", b"\xfe" + b"\xff" * 8, b"\x01a\x01"])
def test_a_row_that_is_shorter_than_its_columns_is_refused(row: bytes) -> None:
    packets = Packets(2)
    packets.row(b"a", b"b")
    packets.add(row)
    packets.add(END)
    with pytest.raises(ValueError, match="shorter"):
        read(packets.data, 2)


def test_the_last_row_s_value_is_given_alone() -> None:
    packets = Packets(2)
    packets.row(b"1", "é".encode())
    packets.row(b"2", "ü".encode())
    packets.add(END)
    with answering(bytes(packets.data), []) as connection:
        rows: list[Rows] = list(text_rows(connection, "SELECT", rows_max=10, bytes_max=1 << 20, silence_s=60))
    assert [rows[0].last_text(rows[0].next_values()) for _ in range(2)] == ["2", "ü"]


def test_a_row_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textrows, "_ROW_MAX", 20 << 20)
    packets = Packets(1)
    packets.row(b"x" * (2 * LARGE + 5))
    packets.add(END)
    with pytest.raises(wire.LostError, match="more than 20,971,520 bytes"):
        read(packets.data, 1)
