"""Every character set of the servers: text as a SELECT over a utf8mb4 connection gives it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from replicator_source_mysql.binlog.charsets import charset_of, encoded, telling_decoder, tells_all, text_decoder

if TYPE_CHECKING:
    from plugins.sources.mysql.tests.binlog.conftest import Binlog

SINGLE_BYTES = [
    "armscii8", "ascii", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "dec8", "geostd8", "greek", "hebrew",
    "hp8", "keybcs2", "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7", "macce", "macroman", "swe7", "tis620",
]  # fmt: skip
SEVERAL_BYTES = ["big5", "cp932", "eucjpms", "euckr", "gb2312", "gb18030", "gbk", "sjis", "ujis"]
UNICODE = ["ucs2", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("charset", SINGLE_BYTES)
def test_every_byte_of_a_single_byte_set(binlog: Binlog, charset: str) -> None:
    (row,) = binlog.execute(
        "SELECT " + ",".join(f"HEX(CONVERT(_{charset} x'{byte:02x}' USING utf8mb4))" for byte in range(256))
    )
    wanted = [bytes.fromhex(text or "3f").decode() for text in row]
    values = pa.array([bytes([byte]) for byte in range(256)], pa.binary())
    assert text_decoder(charset)(values).to_pylist() == wanted
    joined = pa.array([bytes(range(256)), None, b"", b"ascii only"], pa.binary())
    assert text_decoder(charset)(joined).to_pylist()[:3] == ["".join(wanted), None, ""]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("charset", SEVERAL_BYTES)
def test_sequences_of_a_set_of_several_bytes(binlog: Binlog, charset: str) -> None:
    if charset == "gb18030" and binlog.flavor == "mariadb":
        pytest.skip("MariaDB has no gb18030")
    sequences = _sequences(charset)
    binlog.execute(f"CREATE TABLE c (id INT PRIMARY KEY, k VARBINARY(4), v VARCHAR(4) CHARACTER SET {charset})")
    binlog.execute("SET sql_mode = ''")
    for begin in range(0, len(sequences), 4000):
        part = enumerate(sequences[begin : begin + 4000], begin)
        values = ",".join(f"({n}, x'{raw.hex()}', CONVERT(x'{raw.hex()}' USING {charset}))" for n, raw in part)
        binlog.execute(f"INSERT INTO c VALUES {values}")
    # The server keeps what is well-formed in the set, defined or not.
    rows = binlog.execute("SELECT HEX(k), HEX(CONVERT(v USING utf8mb4)) FROM c WHERE CAST(v AS BINARY) = k ORDER BY id")
    kept = pa.array([bytes.fromhex(raw) for raw, _ in rows], pa.binary())
    wanted = [bytes.fromhex(text).decode() for _, text in rows]
    found = text_decoder(charset)(kept).to_pylist()
    assert [case for case in zip(kept.to_pylist(), found, wanted, strict=True) if case[1] != case[2]] == []
    assert len(rows) > 2000
    # And in one text, where a character's length decides where the next one begins.
    text = pa.array([b"".join(kept.to_pylist()[::7])], pa.binary())
    assert text_decoder(charset)(text).to_pylist() == ["".join(wanted[::7])]


def _sequences(charset: str) -> list[bytes]:
    rng = random.Random(charset)
    two = [bytes([first, second]) for first in range(0x80, 256) for second in range(0x30, 256)]
    sequences = [bytes([byte]) for byte in range(128)] + [*two[::3], *two[1::3]]
    if charset in {"ujis", "eucjpms"}:
        three = [bytes([0x8F, first, second]) for first in range(0xA1, 255) for second in range(0xA1, 255)]
        sequences += three[::2]
    if charset == "gb18030":
        for _ in range(8000):
            first, third = rng.choice([0x81, 0x82, 0x83, 0x84, 0x90, 0x94, 0xE3]), rng.randrange(0x81, 0xFF)
            sequences.append(bytes([first, rng.randrange(0x30, 0x3A), third, rng.randrange(0x30, 0x3A)]))
    return sequences


@pytest.mark.sampled(6)
@pytest.mark.parametrize("charset", [*SINGLE_BYTES, *SEVERAL_BYTES])
def test_what_tells_keys_apart_is_what_the_server_spells_back(binlog: Binlog, charset: str) -> None:
    if charset == "gb18030" and binlog.flavor == "mariadb":
        pytest.skip("MariaDB has no gb18030")
    sequences = sorted(
        {*(bytes([byte]) for byte in range(256)), *(_sequences(charset) if charset in SEVERAL_BYTES else [])}
    )
    binlog.execute("SET sql_mode = ''")
    binlog.execute(f"CREATE TABLE c (id INT PRIMARY KEY, k VARBINARY(4), v VARCHAR(4) CHARACTER SET {charset})")
    for begin in range(0, len(sequences), 10_000):
        part = enumerate(sequences[begin : begin + 10_000], begin)
        binlog.execute("INSERT INTO c (id, k) VALUES " + ",".join(f"({n}, x'{raw.hex()}')" for n, raw in part))
    binlog.execute(f"UPDATE c SET v = CONVERT(k USING {charset})")
    rows = binlog.execute(
        f"SELECT HEX(k), HEX(CONVERT(v USING utf8mb4)), HEX(CONVERT(CONVERT(v USING utf8mb4) USING {charset})) = HEX(k)"
        " FROM c WHERE CAST(v AS BINARY) = k ORDER BY id"
    )
    values = pa.array([bytes.fromhex(raw) for raw, _, _ in rows], pa.binary())
    wanted = [bytes.fromhex(text).decode() if int(is_same) else None for _, text, is_same in rows]
    found = telling_decoder(charset)(values).to_pylist()
    assert [case for case in zip(values.to_pylist(), found, wanted, strict=True) if case[1] != case[2]] == []
    texts = [text for text in found if text is not None]
    assert len(set(texts)) == len(texts), "no two become one"
    assert not tells_all(charset) or None not in found
    # Also in the middle of a text, in slices, and next to NULL.
    around = pa.array([b"zz", None, *(b"a" + v.as_py() + b"z" for v in values)], pa.binary())[1:]
    is_null = [text is None for text in telling_decoder(charset)(around).to_pylist()]
    assert is_null[0]
    assert [n for n, (a, b) in enumerate(zip(is_null[1:], wanted, strict=True)) if a != (b is None)] == []


_DIGITS = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(16))


def _code_points(planes: int) -> str:
    """A query for all characters of the first planes, of 65,536 code points each, with their numbers."""
    number = " + ".join(f"{16**digit} * d{digit}.d" for digit in range(4)) + f" + {1 << 16} * planes.d"
    every = ", ".join(f"({_DIGITS}) AS d{digit}" for digit in range(4))
    some = " UNION ALL ".join(f"SELECT {plane} AS d" for plane in range(planes))
    char = "CONVERT(CONVERT(UNHEX(LPAD(HEX(n), 8, '0')) USING utf32) USING utf8mb4)"
    return (
        f"SELECT n, {char} AS c FROM (SELECT {number} AS n FROM {every}, ({some}) AS planes) AS numbers"
        " WHERE n NOT BETWEEN 0xD800 AND 0xDFFF"
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("charset", [*SINGLE_BYTES, *SEVERAL_BYTES, *UNICODE])
@pytest.mark.parametrize("planes", [2, pytest.param(17, marks=pytest.mark.matrix)])
def test_every_code_point_has_the_bytes_by_which_the_server_spells_it_or_none(
    binlog: Binlog, charset: str, planes: int
) -> None:
    """So of a text with a character that has none it is known, without a question, that no key of the source is decoded to it."""
    if charset == "gb18030" and binlog.flavor == "mariadb":
        pytest.skip("MariaDB has no gb18030")
    rows = binlog.execute(
        f"SELECT n, HEX(CONVERT(c USING {charset})) FROM ({_code_points(planes)}) AS points"
        f" WHERE HEX(CONVERT(CONVERT(c USING {charset}) USING utf8mb4)) = HEX(c)"
    )
    wanted = {chr(int(number)): bytes.fromhex(raw) for number, raw in rows}
    found = {}
    for char in map(chr, [*range(0xD800), *range(0xE000, planes << 16)]):
        with suppress(ValueError):
            found[char] = encoded(char, charset)
    assert {char: raw for char, raw in found.items() if wanted.get(char) != raw} == {}, "no key of the server is it"
    assert {char: raw for char, raw in wanted.items() if char not in found} == {}, "a key of the server is it"
    some = "".join(list(found)[:: max(1, len(found) // 500)])
    assert text_decoder(charset)(pa.array([encoded(some, charset)], pa.binary())).to_pylist() == [some]


TEXTS = ["", "a", "Grüße", "日本語", "ελληνικά", "кириллица", "a\0b", "line\nline", "x" * 300, "é" * 100]


@pytest.mark.parametrize(
    "charsets", [SINGLE_BYTES, SEVERAL_BYTES, UNICODE], ids=["one byte", "several bytes", "Unicode"]
)
def test_texts_of_every_set_through_the_log(each_binlog: Binlog, charsets: Sequence[str]) -> None:
    """In one row."""
    known = [c for c in charsets if c != "gb18030" or each_binlog.flavor == "mysql"]  # MariaDB has no gb18030
    columns = ", ".join(f"v_{charset} TEXT CHARACTER SET {charset}" for charset in known)
    each_binlog.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    each_binlog.execute("SET sql_mode = ''")
    each_binlog.forget()
    rows = ",".join("(" + ", ".join([str(n), *[f"'{text}'"] * len(known)]) + ")" for n, text in enumerate(TEXTS))
    each_binlog.execute(f"INSERT INTO t VALUES {rows}")
    found = each_binlog.decode("t").row
    for charset in known:
        wanted = [text for (text,) in each_binlog.execute(f"SELECT v_{charset} FROM t ORDER BY id")]
        assert (charset, found.field(f"v_{charset}").to_pylist()) == (charset, wanted)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("charset", [*SINGLE_BYTES, *SEVERAL_BYTES, *UNICODE])
@pytest.mark.parametrize("column_type", ["CHAR(100)", "VARCHAR(400)", "TEXT"])
def test_texts_through_the_log(binlog: Binlog, charset: str, column_type: str) -> None:
    if charset == "gb18030" and binlog.flavor == "mariadb":
        pytest.skip("MariaDB has no gb18030")
    texts = [*TEXTS, "😀 𝄞" if charset != "ucs2" else "no emoji"]
    binlog.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {column_type} CHARACTER SET {charset})")
    binlog.execute("SET sql_mode = ''")
    binlog.forget()
    rows = ",".join(f"({n}, '{text}')" for n, text in enumerate(texts))
    binlog.execute(f"INSERT INTO t VALUES {rows}")
    wanted = [text for (text,) in binlog.execute("SELECT v FROM t ORDER BY id")]
    assert binlog.decode("t").row.field("v").to_pylist() == wanted


def test_every_collation_of_the_server_is_known(each_binlog: Binlog) -> None:
    table = "collation_character_set_applicability" if each_binlog.flavor == "mariadb" else "collations"
    rows = each_binlog.execute(f"SELECT id, character_set_name FROM information_schema.{table} WHERE id IS NOT NULL")
    assert len(rows) > 200
    rows = [(i, "utf8mb3" if charset == "utf8" else charset) for i, charset in rows]  # as older servers call it
    assert {int(i): charset for i, charset in rows} == {
        int(i): charset_of(int(i), each_binlog.dialect) for i, _ in rows
    }


@pytest.mark.parametrize("charset", ["utf8mb4", "ucs2", "utf16", "utf32"])
def test_what_is_no_text_is_refused(charset: str) -> None:
    with pytest.raises(ValueError):
        text_decoder(charset)(pa.array([b"\xff\xfe\xfd"], pa.binary()))
