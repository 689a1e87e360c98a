"""Definitions of columns as ALTER TABLE writes them, and the types as the catalogue writes them. Pure.

Measured on MySQL 9.7 and MariaDB 10.11. Other forms are not understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replicator_source_mysql.sql.keys import is_open, references
from replicator_source_mysql.sql.lexer import NO_BACKSLASH_ESCAPES, Token, TokenKind
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

REAL_AS_FLOAT: Final = 1 << 0
STRICT: Final = 1 << 21 | 1 << 22
# POSTGRESQL, ORACLE, MSSQL, DB2, MAXDB, MYSQL323, MYSQL40, and what has no name here: types may have other names in them.
_KNOWN_MODES: Final = sum(1 << bit for bit in (*range(8), 13, 14, 15, *range(18, 35)))

_INTEGERS: Final = {
    "TINYINT": "tinyint", "INT1": "tinyint", "SMALLINT": "smallint", "INT2": "smallint", "MEDIUMINT": "mediumint",
    "INT3": "mediumint", "MIDDLEINT": "mediumint", "INT": "int", "INTEGER": "int", "INT4": "int", "BIGINT": "bigint",
    "INT8": "bigint",
}  # fmt: skip
# Where they are shown: of signed and of unsigned numbers.
_WIDTHS: Final = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
_DECIMALS: Final = frozenset({"DECIMAL", "DEC", "NUMERIC", "FIXED"})
_TIMES: Final = frozenset({"TIME", "DATETIME", "TIMESTAMP"})
_TEXTS: Final = frozenset({"TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"})
_BLOBS: Final = frozenset({"TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"})
_AS_WRITTEN: Final = frozenset(
    {"DATE", "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON"}
)
_BYTES: Final = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
                 "mediumtext": "mediumblob", "longtext": "longblob"}  # fmt: skip
_FLOAT_DIGITS: Final = 24
_DOUBLE_DIGITS: Final = 53
_CHAR_MAX: Final = 255
# By whether the SQL mode is strict: longer ones are refused, or may become another type.
_VARCHAR_MAX: Final = {True: 65_535, False: 16_383}
_BLOB_SIZES: Final = ((1 << 8, "tinyblob"), (1 << 16, "blob"), (1 << 24, "mediumblob"), (1 << 32, "longblob"))
_MOMENTS: Final = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_LITERAL_TYPES: Final = frozenset({"DATE", "TIME", "TIMESTAMP"})
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_PLAIN_LABEL: Final = re.compile(r"[^\x00-\x1f\\\ufffd]*")


class Form(Enum):
    """The form of a DEFAULT."""

    NULL = "null"
    NUMBER = "number"
    """`text`: as written, with its sign; TRUE and FALSE are 1 and 0."""
    STRING = "string"
    """`text`: its meaning."""
    COMPUTED = "computed"


@dataclass(frozen=True, slots=True)
class Default:
    """A DEFAULT."""

    form: Form
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """The definition after a column's name.

    Attributes:
        type: The type as `column_type` of the catalogue.
        charset: The character set; None if none is named.
        is_nullable: None: nothing is said of NULL.
        default: None: there is none.
        is_computed: The server gives the column its values: it is generated, or AUTO_INCREMENT.
        is_counted: AUTO_INCREMENT.
        is_unique: It gets a unique key of its own.
        is_primary: It is the primary key.
        has_cascade: It refers to another table, whose changes change it.
    """

    type: str
    charset: str | None = None
    is_nullable: bool | None = None
    default: Default | None = None
    comment: str | None = None
    is_computed: bool = False
    is_counted: bool = False
    is_unique: bool = False
    is_primary: bool = False
    has_cascade: bool = False


def definition(reader: Reader) -> ColumnDefinition:
    """Read a definition, up to FIRST, AFTER, a comma, a closing parenthesis or the end.

    Raises:
        NotUnderstoodError: It has another form, or a type that is not known.
    """
    if reader.sql_mode is None or reader.sql_mode & ~_KNOWN_MODES:
        raise NotUnderstoodError
    is_serial = reader.skip("SERIAL")
    found = _Attributes(reader, *(_serial(reader) if is_serial else _type(reader)))
    if is_serial:
        found.make_serial()
    while not _is_at_end(reader):
        found.take()
    return found.definition()


def text_of(token: Token, sql_mode: int | None) -> str:
    """The meaning of a string in quotes."""
    quote, inner = token.text[0], token.text[1:-1].replace(token.text[0] * 2, token.text[0])
    if "\\" not in inner:
        return inner
    if sql_mode is None:
        raise NotUnderstoodError
    if sql_mode & NO_BACKSLASH_ESCAPES:
        return inner
    parts: list[str] = []
    raw, index = token.text[1:-1], 0
    while index < len(raw):
        if raw[index] == "\\" and index + 1 < len(raw):
            parts.append(_ESCAPES.get(raw[index + 1], raw[index + 1]))
            index += 2
        elif raw.startswith(quote * 2, index):
            parts.append(quote)
            index += 2
        else:
            parts.append(raw[index])
            index += 1
    return "".join(parts)


def _is_at_end(reader: Reader) -> bool:
    token = reader.peek()
    is_symbol = token.kind is TokenKind.SYMBOL and token.text in {",", ")"}
    return reader.is_at_end or is_symbol or token.word in {"FIRST", "AFTER"}


def _string(reader: Reader) -> str:
    token = reader.take()
    if token.kind is not TokenKind.STRING:
        raise NotUnderstoodError
    text = text_of(token, reader.sql_mode)
    while reader.peek().kind is TokenKind.STRING:
        text += text_of(reader.take(), reader.sql_mode)
    return text


# ---- what follows the type ----


class _Attributes:
    def __init__(self, reader: Reader, type_: str, charset: str | None) -> None:
        self._reader = reader
        self._type = type_
        self._charset = charset
        self._is_nullable: bool | None = None
        self._default: Default | None = None
        self._comment: str | None = None
        self._is_generated = self._is_counted = self._is_unique = False
        self._is_primary = self._has_cascade = False

    def definition(self) -> ColumnDefinition:
        return ColumnDefinition(
            type=self._type,
            charset=self._charset,
            is_nullable=False if self._is_primary else self._is_nullable,
            default=self._default,
            comment=self._comment,
            is_computed=self._is_generated or self._is_counted,
            is_counted=self._is_counted,
            is_unique=self._is_unique,
            is_primary=self._is_primary,
            has_cascade=self._has_cascade,
        )

    def make_serial(self) -> None:
        """Apply SERIAL."""
        self._is_nullable, self._is_counted, self._is_unique = False, True, True

    def take(self) -> None:  # noqa: C901, PLR0912 - one branch for each attribute
        reader = self._reader
        if reader.skip("NOT", "NULL"):
            self._is_nullable = False
        elif reader.skip("NULL"):
            self._is_nullable = True
        elif reader.skip("DEFAULT"):
            self._default = _default(reader)
        elif reader.skip("COMMENT"):
            self._comment = _string(reader) or None
        elif reader.skip("ON", "UPDATE"):
            _moment(reader)
        elif reader.skip("COLLATE"):
            if _charset_name(reader) == "binary":
                raise NotUnderstoodError
        elif reader.skip_any({"VISIBLE", "INVISIBLE"}):
            pass
        elif reader.skip("COLUMN_FORMAT"):
            reader.expect_any({"FIXED", "DYNAMIC", "DEFAULT"})
        elif reader.skip("STORAGE"):
            reader.expect_any({"DISK", "MEMORY", "DEFAULT"})
        elif reader.skip("SRID"):
            reader.number()
        elif reader.skip("AUTO_INCREMENT"):
            self._is_counted = True
        elif reader.skip("SERIAL", "DEFAULT", "VALUE"):
            self.make_serial()
        elif reader.skip("UNIQUE"):
            reader.skip("KEY")
            self._is_unique = True
        elif reader.skip("PRIMARY", "KEY") or reader.skip("KEY"):
            self._is_primary = True
        elif reader.peek().word == "REFERENCES":
            self._has_cascade |= references(reader)
        elif reader.skip_any({"ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"}):
            reader.skip_symbol("=")
            reader.string()
        else:
            self._take_expression()

    def _take_expression(self) -> None:
        reader = self._reader
        if reader.skip("GENERATED", "ALWAYS", "AS") or reader.skip("AS"):
            reader.parentheses()
            reader.skip_any({"VIRTUAL", "STORED", "PERSISTENT"})
            self._is_generated = True
            return
        if reader.skip("CONSTRAINT") and reader.peek().word != "CHECK":
            reader.name()
        reader.expect("CHECK")
        reader.parentheses()
        if not reader.skip("NOT", "ENFORCED"):
            reader.skip("ENFORCED")


def _moment(reader: Reader) -> None:
    reader.expect_any(_MOMENTS)
    if is_open(reader):
        reader.parentheses()


def _default(reader: Reader) -> Default:
    if is_open(reader):
        return _parenthesised(reader)
    found = _literal(reader)
    if found is not None:
        return found
    if reader.peek().word in _LITERAL_TYPES and reader.peek(1).kind is TokenKind.STRING:
        reader.take()
        reader.string()
    elif reader.peek().kind is TokenKind.WORD and reader.peek().text.startswith("_"):
        reader.literal()
    elif reader.peek().word in _MOMENTS:
        _moment(reader)
    else:
        # MariaDB: a function, without parentheses around it.
        reader.name()
        reader.parentheses()
    return Default(Form.COMPUTED)


def _parenthesised(reader: Reader) -> Default:
    """Read an expression in parentheses. It is as good as a literal if it is nothing else."""
    inner = reader.parenthesised()
    try:
        found = _literal(inner)
    except NotUnderstoodError:
        found = None
    return found if found is not None and inner.is_at_end else Default(Form.COMPUTED)


def _literal(reader: Reader) -> Default | None:
    if reader.skip("NULL"):
        return Default(Form.NULL)
    if word := reader.skip_any({"TRUE", "FALSE"}):
        return Default(Form.NUMBER, "1" if word == "TRUE" else "0")
    if reader.peek().kind is TokenKind.STRING:
        return Default(Form.STRING, _string(reader))
    sign = "-" if reader.skip_symbol("-") else ""
    if not sign:
        reader.skip_symbol("+")
    if reader.peek().kind is TokenKind.NUMBER:
        return Default(Form.NUMBER, sign + reader.take().text)
    return None


# ---- types ----


def _type(reader: Reader) -> tuple[str, str | None]:  # noqa: C901, PLR0911, PLR0912 - one branch for each family
    """The type as the catalogue has it, and the character set if one is named."""
    word = reader.take().word
    flavor = reader.flavor
    if word in _INTEGERS:
        return _integer(reader, _INTEGERS[word], shows_width=flavor.shows_widths), None
    if word in {"BOOL", "BOOLEAN"}:
        return "tinyint(1)", None
    if word in _DECIMALS:
        numbers = _numbers(reader) or [10]
        if not numbers[0] or len(numbers) > 2:  # noqa: PLR2004 - precision and scale
            raise NotUnderstoodError
        return f"decimal({numbers[0]},{numbers[1] if len(numbers) > 1 else 0})" + _sign(reader), None
    if word in {"FLOAT", "FLOAT4", "FLOAT8", "DOUBLE", "REAL"}:
        return _real(reader, word), None
    if word == "BIT":
        return f"bit({_size(reader) or 1})", None
    if word in _TIMES:
        digits = _size(reader)
        return word.lower() + (f"({digits})" if digits else ""), None
    if word == "YEAR":
        if (_size(reader) or 4) != 4:  # noqa: PLR2004 - digits; two were allowed once
            raise NotUnderstoodError
        return "year(4)" if flavor.shows_widths else "year", None
    if word == "JSON":
        return ("longtext" if flavor.json_is_text else "json"), None
    if word in {"ENUM", "SET"}:
        return _labelled(reader, word)
    if word in _AS_WRITTEN or word in flavor.own_types:
        return flavor.own_types.get(word, word.lower()), None
    if word == "VECTOR":
        if not (size := _size(reader)):
            raise NotUnderstoodError
        return f"vector({size})", None
    if word == "BINARY":
        return f"binary({_bounded(_size(reader) or 1, _CHAR_MAX)})", None
    if word == "VARBINARY":
        return f"varbinary({_varying(reader)})", None
    if word in _BLOBS:
        return _blob(reader, word), None
    return _text(reader, word)


def _serial(reader: Reader) -> tuple[str, None]:
    return ("bigint(20) unsigned" if reader.flavor.shows_widths else "bigint unsigned"), None


def _integer(reader: Reader, name: str, *, shows_width: bool) -> str:
    width = _size(reader)
    sign = _sign(reader)
    if width == 0:
        raise NotUnderstoodError
    if shows_width:
        return f"{name}({width or _WIDTHS[name][bool(sign)]}){sign}"
    if "zerofill" in sign:
        return f"{name}({width or _WIDTHS[name][1]}){sign}"
    return f"{name}(1)" if (name, width, sign) == ("tinyint", 1, "") else name + sign


def _sign(reader: Reader) -> str:
    words = set()
    while word := reader.skip_any({"SIGNED", "UNSIGNED", "ZEROFILL"}):
        words.add(word)
    if "SIGNED" in words and len(words) > 1:
        raise NotUnderstoodError
    if "ZEROFILL" in words:
        return " unsigned zerofill"
    return " unsigned" if "UNSIGNED" in words else ""


def _real(reader: Reader, word: str) -> str:
    name = "float" if word in {"FLOAT", "FLOAT4"} else "double"
    if word == "DOUBLE":
        reader.skip("PRECISION")
    if word == "REAL" and reader.sql_mode is not None and reader.sql_mode & REAL_AS_FLOAT:
        name = "float"
    numbers = _numbers(reader)
    if len(numbers) == 1:
        if word != "FLOAT" or numbers[0] > _DOUBLE_DIGITS:
            raise NotUnderstoodError
        name = "float" if numbers[0] <= _FLOAT_DIGITS else "double"
    digits = f"({numbers[0]},{numbers[1]})" if len(numbers) == 2 else ""  # noqa: PLR2004 - digits, and those of the fraction
    return name + digits + _sign(reader)


def _blob(reader: Reader, word: str) -> str:
    size = _size(reader) if word == "BLOB" else None
    if not size:
        return word.lower()
    return next(name for limit, name in _BLOB_SIZES if size < limit)


def _long_text(size: int) -> str:
    """The TEXT type for `size` characters, of one to four bytes each: the character set may be the table's."""
    if not size:
        return "text"
    narrow, wide = (next((name for limit, name in _BLOB_SIZES if bytes_ < limit), None) for bytes_ in (size, 4 * size))
    if narrow is None or narrow != wide:
        raise NotUnderstoodError
    return narrow.replace("blob", "text")


def _text(reader: Reader, word: str) -> tuple[str, str | None]:  # noqa: C901 - one branch for each family
    is_national = word in {"NATIONAL", "NCHAR", "NVARCHAR"}
    if word == "NATIONAL":
        word = reader.expect_any({"CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER"})
    if word == "TEXT":
        name = _long_text(_size(reader) or 0)
    elif word in _TEXTS:
        name = word.lower()
    elif word == "LONG":
        if reader.skip("VARBINARY"):
            return "mediumblob", None
        reader.skip_any({"VARCHAR", "VARCHARACTER"})
        name = "mediumtext"
    elif word in {"CHAR", "CHARACTER", "NCHAR", "VARCHAR", "VARCHARACTER", "NVARCHAR"}:
        name = "varchar" if "VAR" in word or reader.skip_any({"VARYING", "VARCHAR"}) else "char"
    else:
        raise NotUnderstoodError
    size = ""
    if name == "char":
        found = _size(reader)
        size = f"({_bounded(1 if found is None else found, _CHAR_MAX)})"
    elif name == "varchar":
        size = f"({_varying(reader)})"
    charset = _charset(reader)
    if charset == "binary":
        if is_national:
            raise NotUnderstoodError
        return _BYTES[name] + size, None
    return name + size, "utf8mb3" if is_national else charset


def _labelled(reader: Reader, word: str) -> tuple[str, str | None]:
    reader.expect_symbol("(")
    labels = []
    while True:
        label = _string(reader).rstrip(" ")
        if not _PLAIN_LABEL.fullmatch(label):
            raise NotUnderstoodError
        labels.append("'" + label.replace("'", "''") + "'")
        if not reader.skip_symbol(","):
            break
    reader.expect_symbol(")")
    charset = _charset(reader)
    if charset == "binary":
        raise NotUnderstoodError
    return f"{word.lower()}({','.join(labels)})", charset


def _charset(reader: Reader) -> str | None:
    found: str | None = None
    while True:
        if reader.skip("CHARACTER", "SET") or reader.skip("CHAR", "SET") or reader.skip("CHARSET"):
            found = _charset_name(reader)
        elif reader.skip("BYTE"):
            found = "binary"
        elif reader.skip("ASCII"):
            found = "latin1"
        elif reader.skip("UNICODE"):
            found = "ucs2"
        elif not reader.skip("BINARY"):
            return found


def _charset_name(reader: Reader) -> str:
    token = reader.take()
    if token.kind is TokenKind.STRING:
        return text_of(token, reader.sql_mode).lower()
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED} or token.word == "DEFAULT":
        raise NotUnderstoodError
    return token.text.lower()


def _size(reader: Reader) -> int | None:
    numbers = _numbers(reader)
    if len(numbers) > 1:
        raise NotUnderstoodError
    return numbers[0] if numbers else None


def _numbers(reader: Reader) -> list[int]:
    if not reader.skip_symbol("("):
        return []
    numbers = []
    while True:
        token = reader.take()
        if token.kind is not TokenKind.NUMBER or not token.text.isdecimal():
            raise NotUnderstoodError
        numbers.append(int(token.text))
        if not reader.skip_symbol(","):
            break
    reader.expect_symbol(")")
    return numbers


def _varying(reader: Reader) -> int:
    return _bounded(_size(reader), _VARCHAR_MAX[bool((reader.sql_mode or 0) & STRICT)])


def _bounded(size: int | None, limit: int) -> int:
    if size is None or size > limit:
        raise NotUnderstoodError
    return size
