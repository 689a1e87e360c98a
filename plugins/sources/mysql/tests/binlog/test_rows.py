"""Rows events of real servers: inserts, updates and deletes of many rows, with NULLs, key changes, compressed, partial, malformed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from replicator.model.errors import (
    CorruptStreamError,
    FatalError,
    SchemaConflictError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.schema import Column, TableId, TableSchema
from replicator_source_mysql.binlog import (
    RowDecoder,
    TableMaps,
    logged_spec,
    parse_table_map,
    table_id,
    transaction_payload,
    uncompressed_body,
)
from replicator_source_mysql.binlog import rows as rows_module
from replicator_source_mysql.binlog.events import MARIADB_COMPRESSED, TABLE_MAP, TRANSACTION_PAYLOAD, RowsEvent
from replicator_source_mysql.flavors import MYSQL

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

WIDE = """
    id INT PRIMARY KEY, a TINYINT, b BIGINT UNSIGNED, c DECIMAL(20,4), d VARCHAR(300), e CHAR(20), f DATETIME(3), g TEXT, h BLOB,
    i ENUM('x','y'), j SET('p','q','r'), k BIT(12), l TIME(2), m DOUBLE, n VARCHAR(40) NOT NULL, o BINARY(5), p DATE, q INT NOT NULL,
    r YEAR, s TIMESTAMP(6) NULL, t SMALLINT UNSIGNED, u MEDIUMINT, v VARCHAR(10) CHARACTER SET latin1
"""
COLUMNS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v"]


def _values(rng: random.Random) -> list[str]:
    text = "".join(rng.choice("aé日 ") for _ in range(rng.choice([0, 1, 10, 60])))
    moment = f"'20{rng.randrange(10, 37)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)} 1{rng.randrange(10)}:00:00.{rng.randrange(1000):03}'"
    values = {
        "a": str(rng.randint(-128, 127)),
        "b": str(rng.getrandbits(64)),
        "c": f"{rng.randint(-(10**15), 10**15)}.{rng.randrange(10000):04}",
        "d": f"'{text}'",
        "e": f"'{text[:20]}'",
        "f": moment,
        "g": f"'{text * 5}'",
        "h": f"x'{rng.randbytes(rng.randrange(1, 50)).hex()}'",
        "i": rng.choice(["'x'", "'y'"]),
        "j": rng.choice(["''", "'p'", "'p,r'"]),
        "k": str(rng.getrandbits(12)),
        "l": f"'{rng.choice(['', '-'])}{rng.randrange(800)}:00:01.25'",
        "m": repr(rng.uniform(-1e9, 1e9)),
        "n": f"'{text[:40]}'",
        "o": f"x'{rng.randbytes(rng.randrange(1, 6)).hex()}'",
        "p": "'2024-02-29'",
        "q": str(rng.randrange(2**31)),
        "r": "2024",
        "s": moment,
        "t": str(rng.randrange(65536)),
        "u": str(rng.randint(-(2**23), 2**23 - 1)),
        "v": "'é'",
    }
    share = rng.choice([0, 0.3, 0.9])
    return ["NULL" if name not in {"n", "q"} and rng.random() < share else values[name] for name in COLUMNS]


def _change(binlog: Binlog, rng: random.Random, count: int) -> None:
    """Random transactions: inserts, updates of values and of keys, deletes, of one and of many rows."""
    for _ in range(count):
        kind = rng.randrange(6)
        if kind <= 1:
            rows = ",".join(
                f"({rng.randrange(10**6)},{','.join(_values(rng))})" for _ in range(rng.choice([1, 1, 5, 60]))
            )
            binlog.execute(f"INSERT IGNORE INTO t VALUES {rows}")
        elif kind == 2:
            sets = ",".join(f"{n} = {v}" for n, v in zip(COLUMNS, _values(rng), strict=True) if rng.random() < 0.4)
            binlog.execute(
                f"UPDATE t SET q = q - 1{',' if sets else ''}{sets} WHERE id % {rng.choice([1, 7, 50])} = 0 AND q > 0"
            )
        elif kind == 3:
            binlog.execute(
                f"UPDATE t SET id = id + {rng.randrange(10**6, 10**7)} WHERE id % 5 = 0 ORDER BY id DESC LIMIT {rng.randrange(1, 20)}"
            )
        else:
            binlog.execute(
                f"DELETE FROM t WHERE id % {rng.choice([11, 30])} = {rng.randrange(11)} LIMIT {rng.choice([1, 20])}"
            )


def _texts(binlog: Binlog) -> dict[int, tuple[Any, ...]]:
    hexed = ",".join(f"HEX({name})" if name in "ho" else f"{name} + 0" if name in "km" else name for name in COLUMNS)
    return {int(row[0]): row[1:] for row in binlog.execute(f"SELECT id, {hexed} FROM t")}


def _applied(changes: pa.StructArray, befores: pa.Array, operations: pa.Array) -> dict[int, dict[str, Any]]:
    table: dict[int, dict[str, Any]] = {}
    for operation, before, row in zip(operations.to_pylist(), befores.to_pylist(), changes.to_pylist(), strict=True):
        if before is not None:
            del table[before["id"]]
        if operation == "INSERT":
            assert row["id"] not in table
        if row is not None:
            table[row["id"]] = row
        assert (row is None) == (operation == "DELETE")
        assert before is not None or operation != "DELETE"
    return table


def _as_text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    match name:
        case "h" | "o":
            return value.hex().upper()
        case "f":
            return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03}"
        case "s":
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case _:
            return str(value)


def _assert_same(found: dict[int, dict[str, Any]], wanted: dict[int, tuple[Any, ...]]) -> None:
    assert found.keys() == wanted.keys()
    for number, row in wanted.items():
        for name, text in zip(COLUMNS, row, strict=True):
            plain = text.decode() if isinstance(text, bytes) else text
            if name == "m" and plain is not None:
                assert float(plain) == found[number][name]
            else:
                assert _as_text(name, found[number][name]) == plain, (name, number)


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_applied_give_the_table(binlog: Binlog, seed: int) -> None:
    binlog.execute(f"CREATE TABLE t ({WIDE})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    _change(binlog, random.Random(f"{binlog.flavor} {seed}"), 120)
    decoded = binlog.decode("t")
    assert {"INSERT", "UPDATE", "DELETE"} <= set(decoded.operation.to_pylist())
    _assert_same(_applied(decoded.row, decoded.before, decoded.operation), _texts(binlog))


def test_decoding_in_parts_gives_the_same(binlog: Binlog) -> None:
    binlog.execute(f"CREATE TABLE t ({WIDE})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    _change(binlog, random.Random(7), 80)
    (changes,) = binlog.changes("t")
    decoder = binlog.decoder("t", changes.table_map)
    whole = decoder.decode(changes.events)
    one_by_one = [decoder.decode([event]) for event in changes.events]
    assert pa.concat_arrays([part.row for part in one_by_one]) == whole.row
    assert pa.concat_arrays([part.before for part in one_by_one]) == whole.before
    assert pa.concat_arrays([part.operation for part in one_by_one]) == whole.operation
    counts = [len(part.row) for part in one_by_one]
    assert np.array_equal(np.repeat(np.arange(len(counts)), counts), whole.event)
    for part in (whole.row, whole.before, whole.operation):
        part.validate(full=True)


def test_more_than_fits_is_decoded_in_halves(binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    binlog.execute(f"CREATE TABLE t ({WIDE})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    _change(binlog, random.Random(8), 30)
    (changes,) = binlog.changes("t")
    decoder = binlog.decoder("t", changes.table_map)
    whole = decoder.decode(changes.events)
    monkeypatch.setattr(rows_module, "_BYTES_MAX", max(len(body) for _, body in changes.events))
    parts = decoder.decode(changes.events)
    assert (parts.row, parts.before, parts.operation) == (whole.row, whole.before, whole.operation)
    assert np.array_equal(parts.event, whole.event)
    monkeypatch.setattr(rows_module, "_BYTES_MAX", 10)
    with pytest.raises(TableError) as caught:
        decoder.decode(changes.events)
    assert caught.value.code == "row_event_too_large"


def test_before_holds_the_key_only_where_it_changed(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (a INT, b VARCHAR(10), c INT, PRIMARY KEY (b, a))")
    binlog.forget()
    for statement in (
        "INSERT INTO t VALUES (1,'x',1),(2,'y',2)",
        "UPDATE t SET c = 9",
        "UPDATE t SET b = 'X' WHERE a = 1",
        "DELETE FROM t WHERE a = 2",
    ):
        binlog.execute(statement)
    decoded = binlog.decode("t", key=("b", "a"))
    assert decoded.before.to_pylist() == [None, None, None, None, {"b": "x", "a": 1}, {"b": "y", "a": 2}]
    assert decoded.row.to_pylist()[4:] == [{"a": 1, "b": "X", "c": 9}, None]


def test_without_a_key_before_is_the_whole_row(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (a INT, b VARCHAR(10))")
    binlog.forget()
    for statement in (
        "INSERT INTO t VALUES (1,'x'),(1,'x'),(NULL,NULL)",
        "UPDATE t SET b = 'y' LIMIT 1",
        "DELETE FROM t WHERE a IS NULL",
    ):
        binlog.execute(statement)
    decoded = binlog.decode("t", key=())
    assert decoded.before.to_pylist() == [None, None, None, {"a": 1, "b": "x"}, {"a": None, "b": None}]


def test_columns_can_be_left_out_and_turned_round(binlog: Binlog) -> None:
    binlog.execute(f"CREATE TABLE t ({WIDE})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    _change(binlog, random.Random(9), 40)
    (changes,) = binlog.changes("t")
    whole = binlog.decoder("t", changes.table_map).decode(changes.events)
    by_name = {c.name: c for c in changes.table_map.columns}
    names = ["q", "d", "id", "c"]
    specs = [logged_spec(by_name[name], None, binlog.dialect) for name in names]
    schema = TableSchema(
        table=TableId("d", "t"),
        columns=tuple(Column(name=n, type=s.arrow, source_type="") for n, s in zip(names, specs, strict=True)),
        key=("id",),
    )
    some = RowDecoder(
        changes.table_map,
        schema,
        specs,
        [by_name[n].position for n in names],
        unrepresentable="fail",
        on_nulled=lambda *_: None,
    ).decode(changes.events)
    for name in names:
        assert some.row.field(name) == whole.row.field(name)
    assert some.before == whole.before


@pytest.mark.condition("D29")
def test_generated_and_invisible_columns(binlog: Binlog) -> None:
    binlog.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, v INT GENERATED ALWAYS AS (a + 1) VIRTUAL, "
        "s INT GENERATED ALWAYS AS (a * 2) STORED, i INT INVISIBLE)"
    )
    binlog.forget()
    binlog.execute("INSERT INTO t (id, a, i) VALUES (1, 5, 7)")
    assert binlog.decode("t").row.to_pylist() == [{"id": 1, "a": 5, "v": 6, "s": 10, "i": 7}]


def test_functional_indexes_add_no_columns(mysql_binlog: Binlog) -> None:
    mysql_binlog.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON, KEY ((id + 1)), KEY ((CAST(j->'$.a' AS UNSIGNED ARRAY))))"
    )
    mysql_binlog.forget()
    mysql_binlog.execute("""INSERT INTO t VALUES (1, '{"a": [1, 2]}')""")
    assert mysql_binlog.decode("t").row.to_pylist() == [{"id": 1, "j": '{"a": [1, 2]}'}]


def test_an_invisible_primary_key_is_a_column(mysql_binlog: Binlog) -> None:
    mysql_binlog.execute("SET sql_generate_invisible_primary_key = ON")
    mysql_binlog.execute("CREATE TABLE t (a INT)")
    mysql_binlog.forget()
    mysql_binlog.execute("INSERT INTO t VALUES (5)")
    (changes,) = mysql_binlog.changes("t")
    assert [c.name for c in changes.table_map.columns] == ["my_row_id", "a"]
    decoder = mysql_binlog.decoder("t", changes.table_map, key=("my_row_id",))
    assert decoder.decode(changes.events).row.field("a").to_pylist() == [5]


def test_many_columns(binlog: Binlog) -> None:
    names = [f"c{i}" for i in range(600)]
    binlog.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {','.join(f'{n} TINYINT' for n in names)})")
    binlog.forget()
    binlog.execute("INSERT INTO t (id, c0, c299, c599) VALUES (1, 10, 20, 30), (2, NULL, 1, NULL)")
    rows = binlog.decode("t").row.to_pylist()
    assert [(row["c0"], row["c299"], row["c598"], row["c599"]) for row in rows] == [
        (10, 20, None, 30),
        (None, 1, None, None),
    ]


def test_names_with_quotes_dots_and_64_characters(binlog: Binlog) -> None:
    name = ("a`b\"c'd.e é日" + "x" * 64)[:64]
    quoted = name.replace("`", "``")
    binlog.execute(f"CREATE TABLE `{quoted}` (`{quoted}` INT PRIMARY KEY)")
    binlog.forget()
    binlog.execute(f"INSERT INTO `{quoted}` VALUES (1)")
    (changes,) = binlog.changes(name)
    assert changes.table_map.columns[0].name == name
    assert changes.table_map.primary_key == (0,)
    binlog.execute(f"DROP TABLE `{quoted}`")


# ---- compressed ----


def _compress(binlog: Binlog) -> None:
    if binlog.database.server.lacks((8, 0, 20)):
        pytest.skip("compressed transactions came with MySQL 8.0.20")
    if binlog.flavor == "mysql":
        binlog.execute("SET SESSION binlog_transaction_compression = ON")
    else:
        binlog.execute("SET GLOBAL log_bin_compress = ON")
        binlog.execute("SET GLOBAL log_bin_compress_min_len = 10")


@pytest.fixture
def compressed(binlog: Binlog) -> Iterator[Binlog]:
    _compress(binlog)
    yield binlog
    if binlog.flavor == "mariadb":
        binlog.execute("SET GLOBAL log_bin_compress = OFF")


def test_compressed_changes_applied_give_the_table(compressed: Binlog) -> None:
    compressed.execute(f"CREATE TABLE t ({WIDE})")
    compressed.execute("SET sql_mode = ''")
    compressed.forget()
    _change(compressed, random.Random(3), 60)
    kinds = {event.type_code for event in compressed.raw_events()}
    assert kinds & ({TRANSACTION_PAYLOAD} if compressed.flavor == "mysql" else set(MARIADB_COMPRESSED))
    decoded = compressed.decode("t")
    _assert_same(_applied(decoded.row, decoded.before, decoded.operation), _texts(compressed))


def test_a_compressed_query_reads_back(mariadb_binlog: Binlog) -> None:
    _compress(mariadb_binlog)
    mariadb_binlog.forget()
    mariadb_binlog.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(10) COMMENT 'long enough to be compressed, long enough')"
    )
    mariadb_binlog.execute("SET GLOBAL log_bin_compress = OFF")
    (event,) = [e for e in mariadb_binlog.raw_events() if e.type_code == 165]
    type_code, body = uncompressed_body(165, event.body, size_max=10_000)
    assert type_code == 2
    assert body.endswith(
        b"CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(10) COMMENT 'long enough to be compressed, long enough')"
    )


def test_decompression_is_capped(compressed: Binlog) -> None:
    compressed.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    compressed.forget()
    compressed.execute("INSERT INTO t VALUES (1, REPEAT('x', 3000000))")
    (event,) = [e for e in compressed.raw_events() if e.type_code in {TRANSACTION_PAYLOAD, *MARIADB_COMPRESSED}]
    assert len(event.body) < 30_000
    size_max = 1_000_000

    if compressed.flavor == "mysql":
        whole = list(transaction_payload(event.body, size_max=10_000_000))
        inner = list(transaction_payload(event.body, size_max=size_max))
        assert [(e.type_code, e.cut) for e in inner] == [
            (e.type_code, len(e.body) if len(e.body) > size_max else 0) for e in whole
        ]
        (large,) = [e for e in inner if e.cut]
        assert large.cut > 3_000_000
        assert len(large.body) == 32
        return
    with pytest.raises(FatalError, match=r"more than source.transaction_bytes_max \(1000000\)") as found:
        uncompressed_body(event.type_code, event.body, size_max=size_max)
    assert found.value.code == "transaction_too_large"


def test_an_uncompressed_payload(mysql_binlog: Binlog) -> None:
    mysql_binlog.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    _compress(mysql_binlog)
    mysql_binlog.forget()
    mysql_binlog.execute("INSERT INTO t VALUES (1)")
    (event,) = [e for e in mysql_binlog.raw_events() if e.type_code == TRANSACTION_PAYLOAD]
    inner = list(transaction_payload(event.body, size_max=10_000))
    header = struct.Struct("<IBIIIH")
    framed = b"".join(
        header.pack(e.timestamp, e.type_code, e.server_id, header.size + len(e.body), 0, e.flags) + e.body
        for e in inner
    )
    body = b"\x02\x03\xfc\xff\x00\x01\x03\xfc" + len(framed).to_bytes(2, "little") + b"\x00" + framed
    assert list(transaction_payload(body, size_max=10_000)) == inner


# ---- refused ----


def test_a_partial_image_fails_the_table(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(10))")
    binlog.execute("INSERT INTO t VALUES (1, 1, 'x')")
    for image in ("MINIMAL", "NOBLOB"):
        binlog.execute("ALTER TABLE t MODIFY b TEXT") if image == "NOBLOB" else None
        binlog.execute(f"SET SESSION binlog_row_image = {image}")
        binlog.forget()
        binlog.execute("UPDATE t SET a = a + 1")
        with pytest.raises(TableError) as caught:
            binlog.decode("t")
        assert caught.value.code == "row_image_not_full"


@pytest.mark.condition("M22")
def test_differences_of_documents_fail_the_table(mysql_binlog: Binlog) -> None:
    mysql_binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    mysql_binlog.execute("""INSERT INTO t VALUES (1, '{"a": "a long text, a long text, a long text", "b": 1}')""")
    mysql_binlog.execute("SET SESSION binlog_row_value_options = PARTIAL_JSON")
    mysql_binlog.forget()
    mysql_binlog.execute("UPDATE t SET j = JSON_SET(j, '$.b', 2)")
    events = mysql_binlog.raw_events()
    (table_map,) = [parse_table_map(e.body, MYSQL) for e in events if e.type_code == TABLE_MAP]
    partial = [(e.type_code, e.body) for e in events if e.type_code == 39]
    assert partial
    with pytest.raises(TableError) as caught:
        mysql_binlog.decoder("t", table_map).decode(partial)
    assert caught.value.code == "unsupported_row_event"
    assert "SET SESSION binlog_row_value_options" in str(caught.value.action)


@pytest.mark.condition("M06")
def test_a_log_without_metadata_is_told_apart(binlog: Binlog) -> None:
    less = "NO_LOG" if binlog.flavor == "mariadb" else "MINIMAL"
    binlog.execute("CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, e ENUM('a'), v VARCHAR(10))")
    binlog.execute(f"SET GLOBAL binlog_row_metadata = {less}")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1, 'a', 'x')")
    binlog.execute("SET GLOBAL binlog_row_metadata = FULL")
    (changes,) = binlog.changes("t")
    assert not changes.table_map.has_names
    assert changes.table_map.primary_key is None
    with pytest.raises(UnsupportedTypeError):
        logged_spec(changes.table_map.columns[1], None, binlog.dialect)


def test_zero_dates_follow_the_policy(binlog: Binlog) -> None:
    binlog.execute("SET sql_mode = ''")
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, d DATE, k DATE NOT NULL)")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1, '0000-00-00', '0000-00-00'), (2, '2024-01-01', '2024-01-01')")
    with pytest.raises(UnsupportedTypeError) as caught:
        binlog.decode("t")
    assert caught.value.code == "unrepresentable_value"
    told: list[tuple[str, int]] = []
    decoded = binlog.decode("t", unrepresentable="null", on_nulled=lambda *args: told.append(args))
    assert told == [("d", 1), ("k", 1)]
    assert decoded.row.field("d").null_count == 1
    with pytest.raises(UnsupportedTypeError, match="Column k"):
        binlog.decode("t", unrepresentable="null", key=("k",))


def test_another_type_than_declared_is_a_conflict(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1)")
    (changes,) = binlog.changes("t")
    binlog.execute("ALTER TABLE t MODIFY id BIGINT")
    with pytest.raises(SchemaConflictError):
        logged_spec(changes.table_map.columns[0], binlog.declared("t")["id"], binlog.dialect)


def test_an_unknown_type_code_fails_the_table(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, a DATE)")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1, NULL)")
    (body,) = [e.body for e in binlog.events() if e.type_code == TABLE_MAP]
    offset = body.index(b"\x02\x03\x0a") + 2
    table_map = parse_table_map(body[:offset] + bytes([200]) + body[offset + 1 :], binlog.dialect)
    assert [c.name for c in table_map.columns] == ["id", "a"]
    with pytest.raises(UnsupportedTypeError, match="Column a has type code 200"):
        logged_spec(table_map.columns[1], None, binlog.dialect)
    spec = logged_spec(table_map.columns[0], None, binlog.dialect)
    schema = TableSchema(
        table=TableId("d", "t"), columns=(Column(name="id", type=spec.arrow, source_type="int"),), key=("id",)
    )
    with pytest.raises(UnsupportedTypeError, match="lengths of its values are unknown"):
        RowDecoder(table_map, schema, [spec], [0], unrepresentable="fail", on_nulled=lambda *_: None)


@pytest.mark.parametrize(
    ("bits", "unsigned"), [("8080", [1, 0, 0, 0, 0, 0, 0, 0, 1]), ("81", [None, 1, 0, 0, 0, 0, 0, 0, 1])]
)
def test_years_may_lack_a_bit_of_their_own(bits: str, unsigned: list[int | None]) -> None:
    """MySQL 8.0.15 counts them not; made by hand: a YEAR and eight INT."""
    head = bytes.fromhex("010000000000 0100 0164 00 0174 00 09 0d 0303030303030303 00 0000".replace(" ", ""))
    signs = bytes.fromhex(bits)
    table_map = parse_table_map(head + bytes([1, len(signs)]) + signs, MYSQL)
    assert [c.is_unsigned for c in table_map.columns] == unsigned
    with pytest.raises(CorruptStreamError):
        parse_table_map(head + bytes([1, 0]), MYSQL)


def test_each_version_of_a_table_is_parsed_once(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1)")
    binlog.execute("FLUSH TABLES")
    binlog.execute("INSERT INTO t VALUES (2)")
    binlog.execute("ALTER TABLE t ADD COLUMN a INT")
    binlog.execute("INSERT INTO t VALUES (3, 3)")
    bodies = [e.body for e in binlog.events() if e.type_code == TABLE_MAP]
    maps = TableMaps(binlog.dialect, versions_max=2)
    first, second, third = (maps.get(body) for body in bodies)
    assert first is second
    assert third is not first
    assert table_id(bodies[0]) != table_id(bodies[2])


def test_events_of_both_versions_of_the_format() -> None:
    """V1 has no extra data; MySQL writes V2, MariaDB V1: the other one is made by hand."""
    # id INT NOT NULL, one column, table t of database d.
    table_map = parse_table_map(
        bytes.fromhex("010000000000 0100 0164 00 0174 00 01 03 00 00 01 01 00 04 03 02 6964 08 01 00".replace(" ", "")),
        MYSQL,
    )
    assert table_map.primary_key == (0,)
    spec = logged_spec(table_map.columns[0], None, MYSQL)
    schema = TableSchema(
        table=TableId("d", "t"), columns=(Column(name="id", type=spec.arrow, source_type="int"),), key=("id",)
    )
    decoder = RowDecoder(table_map, schema, [spec], [0], unrepresentable="fail", on_nulled=lambda *_: None)
    head = bytes.fromhex("0100000000000100")
    v1 = head + b"\x01\xff" + b"\xfe\x05\0\0\0"
    v2 = head + b"\x05\x00abc" + b"\x01\x01" + b"\xfe\x06\0\0\0" + b"\x00\x07\0\0\0"
    update = head + b"\x02\x00" + b"\x01\x01\x01" + b"\x00\x07\0\0\0" + b"\x00\x08\0\0\0"
    decoded = decoder.decode(
        [(RowsEvent.WRITE_V1, v1), (RowsEvent.WRITE_V2, v2), (RowsEvent.UPDATE_V2, update), (RowsEvent.DELETE_V1, v1)]
    )
    assert decoded.row.to_pylist() == [{"id": 5}, {"id": 6}, {"id": 7}, {"id": 8}, None]
    assert decoded.before.to_pylist() == [None, None, None, {"id": 7}, {"id": 5}]
    assert decoded.event.tolist() == [0, 1, 1, 2, 3]
    for bad in (
        v1[:-1],
        v1 + b"\0",
        v1[:9],
        head,
        b"",
        v1.replace(b"\xfe", b"\xff"),
        head + b"\x02\xff\xfe\x05\0\0\0",
        update[:-5],
    ):
        kind = RowsEvent.UPDATE_V2 if bad == update[:-5] else RowsEvent.WRITE_V1
        with pytest.raises((CorruptStreamError, TableError)):
            decoder.decode([(kind, bad)])
    with pytest.raises(TableError):
        decoder.decode([(RowsEvent.WRITE_V1, v1.replace(b"\x01\xff", b"\x01\x00"))])
    with pytest.raises(CorruptStreamError):
        decoder.decode([(99, v1)])
    assert len(decoder.decode([]).row) == 0


# ---- odd values ----


def test_times_in_the_form_of_old(mariadb_binlog: Binlog) -> None:
    mariadb_binlog.execute("SET sql_mode = ''")
    mariadb_binlog.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        mariadb_binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, a TIME, b DATETIME, c TIMESTAMP NULL, d DATE)")
        mariadb_binlog.execute("CREATE TABLE with_fractions (id INT PRIMARY KEY, a TIME(3))")
    finally:
        mariadb_binlog.execute("SET GLOBAL mysql56_temporal_format = ON")
    mariadb_binlog.forget()
    times = [
        "'-838:59:59', '9999-12-31 23:59:59', '2038-01-19 03:14:07', '2024-02-29'",
        "'00:00:01', '0000-00-00', '0000-00-00', NULL",
    ]
    mariadb_binlog.execute(f"INSERT INTO t VALUES (1, {times[0]}), (2, {times[1]})")
    mariadb_binlog.execute("INSERT INTO with_fractions VALUES (1, '00:00:01.5')")
    (changes,) = mariadb_binlog.changes("t")
    assert [c.type_code for c in changes.table_map.columns] == [3, 11, 12, 7, 10]
    rows = mariadb_binlog.decode("t", unrepresentable="null").row
    assert rows.field("a").to_pylist() == ["-838:59:59", "00:00:01"]
    assert [str(v) for v in rows.field("b").to_pylist()] == ["9999-12-31 23:59:59", "None"]
    assert [str(v) for v in rows.field("c").to_pylist()] == ["2038-01-19 03:14:07+00:00", "None"]
    (changes,) = mariadb_binlog.changes("with_fractions")
    with pytest.raises(UnsupportedTypeError, match="mysql56_temporal_format"):
        mariadb_binlog.decoder("with_fractions", changes.table_map)


def test_text_that_is_none_follows_the_policy(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10))")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1, 'good'), (2, 'mark'), (3, NULL)")
    (changes,) = binlog.changes("t")
    events = [(code, body.replace(b"mark", b"m\xffrk")) for code, body in changes.events]
    with pytest.raises(UnsupportedTypeError) as caught:
        binlog.decoder("t", changes.table_map).decode(events)
    assert caught.value.code == "unrepresentable_value"
    decoded = binlog.decoder("t", changes.table_map, unrepresentable="null").decode(events)
    assert decoded.row.field("v").to_pylist() == ["good", None, None]


@pytest.mark.parametrize(
    ("column_type", "old", "new"),
    [
        ("DECIMAL(65,2)", "1.00", "2.00"),
        ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551614"),
        ("BIT(1)", "0", "1"),
        ("BINARY(3)", "'a'", "'A'"),
        ("VARCHAR(10)", "'a'", "'a '"),
        ("DATETIME(6)", "'2024-01-01 00:00:00.000001'", "'2024-01-01 00:00:00.000002'"),
        ("TIMESTAMP(3)", "'2024-01-01 00:00:00.001'", "'2024-01-01 00:00:00.002'"),
        ("TIME(1)", "'-00:00:00.1'", "'00:00:00.1'"),
        ("DATE", "'2024-01-01'", "'2024-01-02'"),
        ("ENUM('x','y')", "'x'", "'y'"),
    ],
)
@pytest.mark.condition("D07", "D08")
def test_a_change_of_a_key_of_any_type_is_one(binlog: Binlog, column_type: str, old: str, new: str) -> None:
    binlog.execute(f"CREATE TABLE t (k {column_type} PRIMARY KEY, a INT)")
    binlog.forget()
    binlog.execute(f"INSERT INTO t VALUES ({old}, 1)")
    binlog.execute("UPDATE t SET a = 2")
    binlog.execute(f"UPDATE t SET k = {new}")
    decoded = binlog.decode("t", key=("k",))
    keys = decoded.row.field("k").to_pylist()
    assert keys[0] == keys[1] != keys[2]
    assert decoded.before.to_pylist() == [None, None, {"k": keys[0]}]


def test_rows_of_partitions(binlog: Binlog) -> None:
    """MySQL writes the partition in front of the rows."""
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 4")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1), (2), (3), (4)")
    binlog.execute("UPDATE t SET id = id + 10")
    decoded = binlog.decode("t")
    assert sorted(decoded.row.field("id").to_pylist()[4:]) == [11, 12, 13, 14]
    assert sorted(decoded.before.field("id").to_pylist()[4:]) == [1, 2, 3, 4]


@pytest.mark.condition("M14")
def test_a_large_value(binlog: Binlog) -> None:
    binlog.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB, w LONGTEXT)")
    binlog.forget()
    binlog.execute("INSERT INTO t VALUES (1, REPEAT('x', 20000000), NULL), (2, NULL, REPEAT('é', 9000000))")
    rows = binlog.decode("t").row
    assert rows.field("v").to_pylist() == [b"x" * 20_000_000, None]
    assert rows.field("w").to_pylist() == [None, "é" * 9_000_000]
