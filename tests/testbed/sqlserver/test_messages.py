"""Packets, the handshake, requests and tokens, as bytes."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator_testbed.sqlserver import procedure_calls, sqltypes
from replicator_testbed.sqlserver.datatypes import datatype_info
from replicator_testbed.sqlserver.outcomes import SqlError
from replicator_testbed.sqlserver.sqltypes import TypeName, of
from replicator_testbed.sqlserver.tds import tokens
from replicator_testbed.sqlserver.tds.handshake import Encryption, hidden, prelogin_reply, read_login, wanted_encryption
from replicator_testbed.sqlserver.tds.packets import (
    MESSAGE_BYTES_MAX,
    PACKET_BYTES,
    Assembler,
    PacketType,
    ProtocolError,
    split,
    to_wide,
)
from replicator_testbed.sqlserver.tds.requests import (
    Parameter,
    TransactionRequest,
    read_batch,
    read_call,
    read_transaction,
)
from replicator_testbed.sqlserver.tds.tokens import Column
from replicator_testbed.sqlserver.tds.values import encoder, type_info

pytestmark = pytest.mark.matrix

HEADERS = struct.pack("<I", 4)


@given(
    st.lists(st.tuples(st.sampled_from(PacketType), st.binary(max_size=3 * PACKET_BYTES)), max_size=3),
    st.integers(1, 9999),
)
def test_messages_come_together_again_however_they_arrive(messages: list[tuple[PacketType, bytes]], step: int) -> None:
    stream = b"".join(packet for kind, content in messages for packet in split(content, kind))
    assembler = Assembler()
    found = [m for start in range(0, len(stream), step) for m in assembler.feed(stream[start : start + step])]
    assert found == messages


def test_no_packet_is_larger_than_agreed() -> None:
    assert max(len(packet) for packet in split(bytes(20_000), PacketType.REPLY)) == PACKET_BYTES


def test_a_message_without_end_is_refused() -> None:
    part = struct.pack(">BBHHBB", PacketType.SQL_BATCH, 0, 0xFFFF, 0, 0, 0) + bytes(0xFFFF - 8)
    assembler = Assembler()
    count = MESSAGE_BYTES_MAX // len(part) + 2
    with pytest.raises(ProtocolError, match="more than"):
        list(assembler.feed(part * count))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_handshake(content: bytes) -> None:
    for read in (wanted_encryption, read_login):
        with contextlib.suppress(ProtocolError):
            read(content)


@pytest.mark.parametrize("encryption", Encryption)
def test_prelogin_says_what_is_wanted_of_encryption(encryption: Encryption) -> None:
    assert wanted_encryption(prelogin_reply(encryption)) is encryption


@given(st.text(max_size=20))
def test_a_password_is_read_as_it_was_typed(password: str) -> None:
    password = password.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    fields = [b"host", *(to_wide(t) for t in ("sa", "", "app", "server", "", "lib", "", "shop"))]
    fields[2] = hidden(to_wide(password))
    fields[0] = to_wide("host")
    offset, table, body = 94, b"", b""
    for content in fields:
        table += struct.pack("<HH", offset + len(body), len(content) // 2)
        body += content
    head = struct.pack("<II", 94 + len(body), 0x74000004).ljust(27, b"\0") + b"\x10" + bytes(8)
    login = read_login((head + table).ljust(94, b"\0") + body)
    assert (login.user, login.password, login.database, login.has_features) == ("sa", password, "shop", True)


def parameter(name: str, content: bytes, flags: int = 0) -> bytes:
    return bytes([len(name)]) + to_wide(name) + bytes([flags]) + content


def test_a_call_has_its_name_and_parameters() -> None:
    integer, text = of(TypeName.INT), of(TypeName.NVARCHAR, 10)
    content = HEADERS + struct.pack("<H", 5) + to_wide("sp_ab") + bytes(2)
    content += parameter("@a", type_info(integer) + encoder(integer)(7), flags=1)
    content += parameter("", type_info(text) + encoder(text)("ż"))
    call = read_call(content)
    assert call.procedure == "sp_ab"
    assert call.parameters == (Parameter("@a", 7, is_output=True), Parameter("", "ż"))


def test_a_call_may_name_its_procedure_by_number() -> None:
    assert read_call(HEADERS + struct.pack("<HHH", 0xFFFF, 13, 0)).procedure == "sp_prepexec"


def test_a_batch_stands_behind_its_headers() -> None:
    assert read_batch(struct.pack("<I", 22) + bytes(18) + to_wide("SELECT 1")) == "SELECT 1"


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<I", 3), struct.pack("<I", 99)])
def test_a_request_without_headers_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="headers"):
        read_batch(content)


def test_transactions_are_asked_for_by_number() -> None:
    begun = read_transaction(HEADERS + struct.pack("<HBB", 5, 5, 0))
    assert (begun.request, begun.isolation) == (TransactionRequest.BEGIN, 5)
    ended = read_transaction(HEADERS + struct.pack("<HBB", 7, 0, 1))
    assert (ended.request, ended.begins_another) == (TransactionRequest.COMMIT, True)
    with pytest.raises(ProtocolError, match="no transaction manager request 1"):
        read_transaction(HEADERS + struct.pack("<H", 1))


def test_an_error_has_number_state_and_class() -> None:
    sent = tokens.error(18456, "Login failed.", state=7, severity=14)
    assert struct.unpack_from("<BHIBB", sent) == (0xAA, len(sent) - 3, 18456, 7, 14)


@given(st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=1, max_size=20))
def test_nulls_are_a_bitmap_where_that_is_shorter(row: list[int | None]) -> None:
    columns = [Column(f"c{i}", sqltypes.INT) for i in range(len(row))]
    sent = tokens.rows(columns, [row])
    present = [value for value in row if value is not None]
    bitmap_bytes = (len(row) + 7) // 8
    if sent[0] == 0xD2:
        bits = int.from_bytes(sent[1 : 1 + bitmap_bytes], "little")
        assert [bool(bits >> i & 1) for i in range(len(row))] == [value is None for value in row]
        assert len(sent) == 1 + bitmap_bytes + 5 * len(present)
    else:
        assert len(sent) == 1 + 5 * len(present) + (len(row) - len(present))
    assert len(sent) <= 1 + 5 * len(present) + len(row) - len(present)


def test_declarations_are_read() -> None:
    assert procedure_calls.declarations("@P1 int,@P2 nvarchar(40), @d decimal(10,2) output") == [
        ("@P1", sqltypes.INT),
        ("@P2", of(TypeName.NVARCHAR, 40)),
        ("@d", of(TypeName.DECIMAL, precision=10, scale=2)),
    ]


def test_values_find_their_declarations_by_name_or_by_position() -> None:
    bound = procedure_calls.bind("@a int, @b int", [Parameter("@b", 2), Parameter("@a", 1)])
    assert [(b.name, b.value) for b in bound] == [("@a", 1), ("@b", 2)]
    assert [b.value for b in procedure_calls.bind("@a int, @b int", [Parameter("", 1), Parameter("", 2)])] == [1, 2]


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(SqlError, match="@b") as refused:
        procedure_calls.bind("@a int, @b int", [Parameter("@a", 1)])
    assert refused.value.number == 8178


def test_the_types_are_told_as_odbc_asks() -> None:
    everything = datatype_info(0)
    assert len({row[0] for row in everything.rows}) == len(everything.rows)
    assert [row[0] for row in datatype_info(-9).rows] == ["nvarchar"]
    assert all(len(row) == len(everything.columns) for row in everything.rows)
