"""Text of every character set of the servers to UTF-8, as a SELECT over a utf8mb4 connection converts it.

Bytes that a set does not define become `?`, as on the servers (TIS-620: U+FFFD). Utf8mb3 and utf8mb4 are UTF-8 already and are only
checked. Single-byte sets are mapped all rows at once. Sets of several bytes use Python's codecs where these agree with the
servers, and `charset_tables` where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replicator.plugins.kit.arrow import Longs, binary_array
from replicator_source_mysql.binlog.buffer import spread
from replicator_source_mysql.binlog.charset_tables import DIFFERENCES, DUPLICATES, SINGLE_BYTES
from replicator_source_mysql.flavors import Flavor

BINARY: Final = "binary"
UTF8: Final = frozenset({"utf8mb4", "utf8mb3", "utf8"})

TextDecoder = Callable[[pa.Array], pa.Array]
"""Binary array → string array, nulls kept. ValueError if a value is no text in this character set at all."""

# Numbers of collations on MySQL 9.7 and MariaDB 10.11 to 11.8, which do not contradict each other. From 2048 on MariaDB's are made by rule.
_COLLATIONS: Final[Mapping[str, str]] = {
    "armscii8": "32 64 1056 1088",
    "ascii": "11 65 1035 1089",
    "big5": "1 84 1025 1108",
    "binary": "63",
    "cp1250": "26 34 44 66 99 1050 1090",
    "cp1251": "14 23 50-52 1074-1075",
    "cp1256": "57 67 1081 1091",
    "cp1257": "29 58-59 1082-1083",
    "cp850": "4 80 1028 1104",
    "cp852": "40 81 1064 1105",
    "cp866": "36 68 1060 1092",
    "cp932": "95-96 1119-1120",
    "dec8": "3 69 1027 1093",
    "eucjpms": "97-98 1121-1122",
    "euckr": "19 85 1043 1109",
    "gb18030": "248-250",
    "gb2312": "24 86 1048 1110",
    "gbk": "28 87 1052 1111",
    "geostd8": "92-93 1116-1117",
    "greek": "25 70 1049 1094",
    "hebrew": "16 71 1040 1095",
    "hp8": "6 72 1030 1096",
    "keybcs2": "37 73 1061 1097",
    "koi8r": "7 74 1031 1098",
    "koi8u": "22 75 1046 1099",
    "latin1": "5 8 15 31 47-49 94 1032 1071",
    "latin2": "2 9 21 27 77 1033 1101",
    "latin5": "30 78 1054 1102",
    "latin7": "20 41-42 79 1065 1103",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "sjis": "13 88 1037 1112",
    "swe7": "10 82 1034 1106",
    "tis620": "18 89 1042 1113",
    "ucs2": "35 90 128-151 159 640-642 1059 1114 1152 1174 2560-2815",
    "ujis": "12 91 1036 1115",
    "utf16": "54-55 101-124 672-674 1078-1079 1125 1147 2816-3071",
    "utf16le": "56 62 1080 1086",
    "utf32": "60-61 160-183 736-738 1084-1085 1184 1206 3072-3327",
    "utf8mb3": "33 76 83 192-215 223 576-579 1057 1107 1216 1238 2048-2303",
    "utf8mb4": "45-46 224-247 255-323 608-611 1069-1070 1248 1270 2304-2559",
}

_PYTHON: Final = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
_WIDE: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_OF_16_BITS: Final = frozenset({"ucs2", "utf8mb3", "utf8"})
_LAST_OF_16_BITS: Final = "\uffff"
_THREE_BYTES: Final = {"eucjpms": 0x8F, "ujis": 0x8F}
"""The first byte of characters of three bytes (JIS X 0212)."""
_FOUR_BYTES: Final = {"gb18030": "gb18030"}
"""Codecs of the sets that have characters of four bytes."""
_ASCII_END: Final = 0x80
_UNDEFINED: Final = "?"


@cache
def _by_number() -> Mapping[int, str]:
    numbers = {}
    for charset, ranges in _COLLATIONS.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            numbers.update(dict.fromkeys(range(int(first), int(last or first) + 1), charset))
    return numbers


def charset_of(collation: int, flavor: Flavor) -> str | None:
    """The character set of a collation by its number; None if it is not known."""
    if collation > flavor.collation_max:
        return None
    return _by_number().get(collation)


def label(raw: bytes, charset: str) -> str:
    """An ENUM's or SET's label as text; ValueError as `TextDecoder`."""
    if charset == BINARY:
        # The labels of a column of character set binary are bytes; SELECT gives them as such.
        return raw.decode("utf-8", "replace")
    text: str = text_decoder(charset)(pa.array([raw], pa.binary()))[0].as_py()
    return text


@cache
def text_decoder(charset: str) -> TextDecoder:
    """The decoder of this character set's values to UTF-8; KeyError if there is none."""
    if charset in UTF8:
        return _utf8
    if charset in SINGLE_BYTES:
        return _single_bytes(charset)
    if charset in _WIDE:
        return _wide(_WIDE[charset], is_ucs2=charset == "ucs2")
    return _several_bytes(charset)


@cache
def telling_decoder(charset: str) -> TextDecoder:
    """A decoder like `text_decoder`, but null for a text that another one is decoded to, too: for keys, of which two must never become one.

    Such are texts with bytes that the set does not define, and with bytes for a character that has others as well, by
    which the server spells it.
    """
    if charset in SINGLE_BYTES:
        return _telling_single_bytes(charset)
    if charset in _PYTHON:
        return _telling_several_bytes(charset)
    return text_decoder(charset)


@cache
def tells_all(charset: str) -> bool:
    """Return whether no two texts of the set are decoded to one."""
    if charset in SINGLE_BYTES:
        return not _untelling_bytes(charset).any()
    return charset not in _PYTHON


def encoded(text: str, charset: str) -> bytes:
    """The bytes of the key that is decoded to this text (`telling_decoder`): no two are.

    Raises:
        ValueError: No key of the set is decoded to it. A set may lack a character, or decode bytes to it that it does not tell apart.
    """
    if charset in UTF8 or charset in _WIDE:
        if charset in _OF_16_BITS and any(char > _LAST_OF_16_BITS for char in text):
            raise ValueError("a character has more than 16 bits")
        return text.encode(_WIDE.get(charset, "utf-8"))
    known = _spellings(charset)
    try:
        return b"".join(known[char] if char in known else char.encode(_FOUR_BYTES[charset]) for char in text)
    except KeyError:
        raise ValueError("the character set lacks a character") from None


@cache
def _spellings(charset: str) -> Mapping[str, bytes]:
    """The bytes of each character that are decoded to it and to nothing else. Four bytes: only what differs from Python's codec."""
    parts = [bytes([byte]) for byte in range(256)]
    if charset in _PYTHON:
        upper = range(_ASCII_END, 256)
        parts += [bytes([first, second]) for first in upper for second in range(256)]
        parts += [bytes([_THREE_BYTES[charset], *rest]) for rest in product(upper, upper) if charset in _THREE_BYTES]
        parts += [part for part in DIFFERENCES[charset] if charset in _FOUR_BYTES]
    chars = telling_decoder(charset)(pa.array(parts, pa.binary())).to_pylist()
    # Two bytes may also be two characters.
    return {char: part for char, part in zip(chars, parts, strict=True) if char is not None and len(char) == 1}


def _table(charset: str) -> str:
    """The characters of all bytes of a single-byte set."""
    found = SINGLE_BYTES[charset]
    return found if len(found) > _ASCII_END else "".join(map(chr, range(_ASCII_END))) + found


@cache
def _untelling_bytes(charset: str) -> npt.NDArray[np.bool_]:
    table, others = _table(charset), DUPLICATES.get(charset, frozenset())
    is_undefined = [char == _UNDEFINED and byte != ord(_UNDEFINED) for byte, char in enumerate(table)]
    return np.array([is_undefined[byte] or bytes([byte]) in others for byte in range(256)])


def _telling_single_bytes(charset: str) -> TextDecoder:
    decode, untelling = text_decoder(charset), _untelling_bytes(charset)

    def telling(values: pa.Array) -> pa.Array:
        texts = decode(values)
        filled = values.fill_null(b"") if values.null_count else values
        lengths, data = _contents(filled)
        found = untelling[data]
        if not found.any():
            return texts
        counts = np.concatenate([[0], np.cumsum(found)])
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        return pc.if_else(pa.array(np.diff(counts[bounds]) > 0), pa.scalar(None, pa.string()), texts)

    return telling


def _telling_several_bytes(charset: str) -> TextDecoder:
    codec, different, others = _PYTHON[charset], DIFFERENCES[charset], DUPLICATES.get(charset, frozenset())
    length = _lengths(charset)

    def one(raw: bytes) -> str | None:
        if raw.isascii() and (charset != "sjis" or b"\\" not in raw):
            return raw.decode()
        chars = []
        offset = 0
        while offset < len(raw):
            end = offset + length(raw, offset)
            part = raw[offset:end]
            char = _character(part, codec, different)
            if part in others or (char == _UNDEFINED and part != b"?"):
                return None
            chars.append(char)
            offset = end
        return "".join(chars)

    return _each(one)


def _utf8(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _contents(values: pa.Array) -> tuple[Longs, npt.NDArray[np.uint8]]:
    """Lengths and joined bytes of a binary array without nulls."""
    _, offset_buffer, data_buffer = values.buffers()
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return np.diff(offsets), data[offsets[0] : offsets[-1]]


def _single_bytes(charset: str) -> TextDecoder:
    is_ascii_below = len(SINGLE_BYTES[charset]) == _ASCII_END
    table = _table(charset)
    encoded = [char.encode() for char in table]
    sizes = np.array([len(part) for part in encoded])
    letters = np.array([list(part.ljust(4, b"\0")) for part in encoded], np.uint8)
    is_part = np.arange(4) < sizes[:, None]

    def decode(values: pa.Array) -> pa.Array:
        dense = values.drop_null() if values.null_count else values
        lengths, data = _contents(dense)
        if is_ascii_below and not (data >= _ASCII_END).any():
            return values.cast(pa.string())
        ends = np.concatenate([[0], np.cumsum(sizes[data])])
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        content = letters[data][is_part[data]]
        texts = binary_array(np.diff(ends[bounds]), content).cast(pa.string())
        return spread(texts, _valid(values)) if values.null_count else texts

    return decode


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _wide(codec: str, *, is_ucs2: bool) -> TextDecoder:
    def one(raw: bytes) -> str:
        if is_ucs2 and any(0xD8 <= high <= 0xDF for high in raw[::2]):  # noqa: PLR2004  (surrogates)
            # A SELECT gives bytes that are no UTF-8 (measured on both servers).
            raise ValueError("a surrogate is not a character")
        return raw.decode(codec)

    return _each(one)


def _several_bytes(charset: str) -> TextDecoder:
    codec, different = _PYTHON[charset], DIFFERENCES[charset]
    suspects = frozenset(char for raw in different for char in raw.decode(codec, "ignore"))

    def one(raw: bytes) -> str:
        try:
            text = raw.decode(codec)
        except UnicodeDecodeError:
            return _piecewise(raw, codec, different, _lengths(charset))
        if suspects.isdisjoint(text):
            return text
        return _piecewise(raw, codec, different, _lengths(charset))

    return _each(one)


def _lengths(charset: str) -> Callable[[bytes, int], int]:
    """A function that returns the number of bytes of the character at an offset."""

    def several(raw: bytes, offset: int) -> int:
        first = raw[offset]
        if first < _ASCII_END:
            return 1
        if charset in {"cp932", "sjis"} and 0xA1 <= first <= 0xDF:  # noqa: PLR2004  (half-width katakana)
            return 1
        if first == _THREE_BYTES.get(charset):
            return 3
        if charset in {"ujis", "eucjpms"} and first == 0x8E:  # noqa: PLR2004  (half-width katakana)
            return 2 if b"\xa1" <= raw[offset + 1 : offset + 2] <= b"\xdf" else 1
        if charset == "gb18030" and raw[offset + 1 : offset + 2].isdigit():
            return 4
        return 2

    return several


def _piecewise(raw: bytes, codec: str, different: Mapping[bytes, str], length: Callable[[bytes, int], int]) -> str:
    parts = []
    offset = 0
    while offset < len(raw):
        end = offset + length(raw, offset)
        parts.append(_character(raw[offset:end], codec, different))
        offset = end
    return "".join(parts)


def _character(part: bytes, codec: str, different: Mapping[bytes, str]) -> str:
    char = different.get(part)
    if char is not None:
        return char
    try:
        return part.decode(codec)
    except UnicodeDecodeError:
        return _UNDEFINED


def _each(one: Callable[[bytes], str | None]) -> TextDecoder:
    def decode(values: pa.Array) -> pa.Array:
        return pa.array([None if raw is None else one(raw) for raw in values.to_pylist()], pa.string())

    return decode
