"""Malformed events: every mutant of a real one is decoded or refused with one error, at once, and none is dropped.

The seeds are events of the servers. A mutant whose change hits a value only is a valid event with another value, and decodes; nothing can
tell it apart but the checksum, which is checked before a body comes here.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from replicator.model.errors import CorruptStreamError, FatalError, TableError
from replicator_source_mysql.binlog import (
    DecodedRows,
    RowDecoder,
    parse_table_map,
    transaction_payload,
    uncompressed_body,
)
from replicator_source_mysql.binlog.events import MARIADB_COMPRESSED, TABLE_MAP, TRANSACTION_PAYLOAD
from replicator_source_mysql.flavors import Flavor

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

HANG_S = 1.0
SIZE_MAX = 1 << 20
# No process that others stop for a moment fails for it: an input that was slow is tried again.
TRIES = 3

TABLE = """
    id INT PRIMARY KEY, a TINYINT, b BIGINT UNSIGNED, c DECIMAL(30,4), d VARCHAR(300), e CHAR(20), f DATETIME(3), g TEXT, h BLOB,
    i ENUM('x','y'), j SET('p','q','r'), k BIT(12), l TIME(2), m DOUBLE, n BINARY(5), o DATE, p JSON, q YEAR, r TIMESTAMP(6) NULL,
    s VARCHAR(10) CHARACTER SET latin1, t VARCHAR(10) CHARACTER SET sjis, u POINT
"""
ROW = """
    -5, 18446744073709551615, -12345678901234.5678, 'text é', 'char', '2024-02-29 23:59:59.999', 'a longer text', x'00ff00', 'y',
    'p,r', 2049, '-10:11:12.5', 1.5e10, x'6100', '2024-02-29',
    '{"a": [1, 2.5, "x", null, {"b": 70000}], "d": 12345678901234}', 2024, '2024-02-29 01:02:03.000004',
    'é', '日本', ST_GeomFromText('POINT(1 2)')
"""
# Types that only one of the servers has.
MORE = {
    "mysql": ("v VECTOR(3)", "STRING_TO_VECTOR('[1,2,3]')"),
    "mariadb": (
        "v TEXT COMPRESSED, w VARCHAR(300) COMPRESSED, x UUID, y INET6",
        "REPEAT('abc', 100), REPEAT('def', 90), '123e4567-e89b-12d3-a456-426655440000', '2001:db8::1'",
    ),
}


@dataclass
class Seeds:
    """Events of one server, and what decodes each kind."""

    bodies: list[tuple[int, bytes]]
    decoder: RowDecoder
    flavor: Flavor

    def decode(self, type_code: int, body: bytes) -> int:
        """How much came out: rows, columns, inner events."""
        if type_code == TABLE_MAP:
            return len(parse_table_map(body, self.flavor).columns)
        if type_code == TRANSACTION_PAYLOAD:
            return sum(1 for _ in transaction_payload(body, size_max=SIZE_MAX))
        if type_code in MARIADB_COMPRESSED:
            type_code, body = uncompressed_body(type_code, body, size_max=SIZE_MAX)
        return len(_checked(self.decoder.decode([(type_code, body)])).row)


def _checked(decoded: DecodedRows) -> DecodedRows:
    assert len(decoded.row) == len(decoded.before) == len(decoded.operation) == len(decoded.event)
    decoded.row.validate(full=True)
    decoded.before.validate(full=True)
    return decoded


def _seeds(binlog: Binlog) -> Seeds:
    declarations, values = MORE[binlog.flavor]
    binlog.execute(f"CREATE TABLE t ({TABLE}, {declarations})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    row = f"{ROW}, {values}"
    statements = [
        f"INSERT INTO t VALUES (1, {row}), (2, {row})",
        "INSERT INTO t (id) VALUES (3)",
        f"INSERT INTO t VALUES (4, {row})",
        "UPDATE t SET a = 7, d = 'other'",
        "DELETE FROM t WHERE id = 2",
    ]
    for statement in statements:
        binlog.execute(statement)
    (changes,) = binlog.changes("t")
    bodies = [(TABLE_MAP, e.body) for e in binlog.events() if e.type_code == TABLE_MAP][:1] + changes.events
    decoder = binlog.decoder("t", changes.table_map, unrepresentable="null")
    binlog.forget()
    if binlog.database.server.lacks((8, 0, 20)):
        pytest.skip("compressed transactions came with MySQL 8.0.20")
    if binlog.flavor == "mysql":
        binlog.execute("SET SESSION binlog_transaction_compression = ON")
    else:
        binlog.execute("SET GLOBAL log_bin_compress_min_len = 10")
        binlog.execute("SET GLOBAL log_bin_compress = ON")
    binlog.execute(f"INSERT INTO t VALUES (11, {row}), (12, {row})")
    if binlog.flavor == "mariadb":
        binlog.execute("SET GLOBAL log_bin_compress = OFF")
    compressed = [
        (e.type_code, e.body) for e in binlog.raw_events() if e.type_code in {TRANSACTION_PAYLOAD, *MARIADB_COMPRESSED}
    ]
    assert compressed
    return Seeds([*bodies, *compressed], decoder, binlog.dialect)


def _mutants(rng: random.Random, bodies: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    while True:
        type_code, body = rng.choice(bodies)
        yield type_code, _CHANGES[rng.randrange(len(_CHANGES))](rng, body, rng.choice(bodies)[1])


def _flip(rng: random.Random, body: bytes, other: bytes) -> bytes:
    raw = bytearray(body)
    for _ in range(rng.choice([1, 1, 2, 8])):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _overwrite(rng: random.Random, body: bytes, _: bytes) -> bytes:
    offset, size = rng.randrange(len(body)), rng.choice([1, 1, 2, 4, 8])
    return (body[:offset] + rng.choice([b"\xff" * size, bytes(size), rng.randbytes(size)]) + body[offset + size :])[
        : max(len(body), 1)
    ]


def _truncate(rng: random.Random, body: bytes, _: bytes) -> bytes:
    return body[: rng.randrange(len(body))]


def _insert(rng: random.Random, body: bytes, _: bytes) -> bytes:
    offset = rng.randrange(len(body))
    return body[:offset] + rng.randbytes(rng.choice([1, 2, 100])) + body[offset:]


def _remove(rng: random.Random, body: bytes, _: bytes) -> bytes:
    offset = rng.randrange(len(body))
    return body[:offset] + body[offset + rng.choice([1, 2, 20]) :]


def _splice(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return body[: rng.randrange(len(body))] + other[rng.randrange(len(other)) :]


_CHANGES: list[Callable[[random.Random, bytes, bytes], bytes]] = [
    _flip,
    _flip,
    _overwrite,
    _truncate,
    _insert,
    _remove,
    _splice,
]


def _fuzz(seeds: Seeds, seed: int, count: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    whole = {body: seeds.decode(type_code, body) for type_code, body in seeds.bodies}
    assert all(whole.values())
    mutants = _mutants(random.Random(seed), seeds.bodies)
    for _ in range(count):
        type_code, body = next(mutants)
        for attempt in range(TRIES):
            began = time.perf_counter()
            try:
                amount = seeds.decode(type_code, body)
            except FatalError as error:
                outcomes[error.code] += 1
            except TableError as error:
                assert error.__cause__ is None, "an exception that is unexpected"  # noqa: PT017
                outcomes[error.code] += 1
            else:
                # Nothing is dropped without a word: an event that has room for a row has one.
                assert amount or len(body) < 64, (type_code, body.hex())
                outcomes["decoded"] += 1
            if time.perf_counter() - began < HANG_S:
                break
            assert attempt < TRIES - 1, (type_code, body.hex())
    return outcomes


@pytest.mark.matrix
def test_mutants_are_decoded_or_refused(binlog: Binlog) -> None:
    outcomes = _fuzz(_seeds(binlog), 1, 2_000)
    assert outcomes.keys() <= {"corrupt_binlog_event", "corrupt_rows", "decoded", "row_image_not_full"}
    assert outcomes["corrupt_binlog_event"] + outcomes["corrupt_rows"] > 500
    assert outcomes["decoded"] > 100


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_many_mutants_are_decoded_or_refused(binlog: Binlog) -> None:
    outcomes = _fuzz(_seeds(binlog), 2, 120_000)
    # The length that a compressed event says it would have is a byte like others.
    refusals = {"corrupt_binlog_event", "corrupt_rows", "row_image_not_full", "transaction_too_large"}
    assert outcomes.keys() <= {"decoded", *refusals}


def test_a_truncated_event_is_always_refused(binlog: Binlog) -> None:
    seeds = _seeds(binlog)
    for type_code, body in seeds.bodies:
        for size in range(len(body)):
            try:
                amount = seeds.decode(type_code, body[:size])
            except (CorruptStreamError, TableError):
                continue
            # A body cut between two images, or between two optional fields of a TABLE_MAP, is a shorter event.
            whole = seeds.decode(type_code, body)
            assert amount == whole if type_code == TABLE_MAP else amount < whole


def test_random_bytes_are_refused(binlog: Binlog) -> None:
    seeds = _seeds(binlog)
    rng = random.Random(4)
    for _ in range(500):
        type_code = rng.choice([code for code, _ in seeds.bodies])
        with pytest.raises((CorruptStreamError, TableError)):
            seeds.decode(type_code, rng.randbytes(rng.randrange(200)))
