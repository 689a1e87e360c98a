"""The options of tables and of indexes, each in its complete form. Pure."""

from __future__ import annotations

from typing import Final

from replicator_source_mysql.sql.lexer import TokenKind
from replicator_source_mysql.sql.reader import NotUnderstoodError, Reader

VISIBLE: Final = frozenset({"VISIBLE", "INVISIBLE", "IGNORED"})
_ON_OFF: Final = frozenset({"DEFAULT", "YES", "NO", "ON", "OFF"})
_NUMBERS: Final = frozenset(
    {"AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "DELAY_KEY_WRITE", "ENCRYPTION_KEY_ID", "KEY_BLOCK_SIZE", "MAX_ROWS",
     "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "STATS_AUTO_RECALC",
     "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TABLE_CHECKSUM", "TRANSACTIONAL", "AUTOEXTEND_SIZE", "ENCRYPTED"}
)  # fmt: skip
_STRINGS: Final = frozenset({"COMMENT", "COMPRESSION", "ENCRYPTION", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"})
_ROW_FORMATS: Final = frozenset({"DEFAULT", "DYNAMIC", "FIXED", "COMPRESSED", "REDUNDANT", "COMPACT", "PAGE"})
_INDEX_STRINGS: Final = frozenset({"COMMENT", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"})
_CHARSET: Final = frozenset({"CHARSET", "COLLATE", "CHARACTER"})


def index_option(reader: Reader) -> bool:
    """Pass an option of an index, if one comes; return whether one came."""
    word = reader.peek().word
    if word in VISIBLE:
        reader.take()
    elif word == "NOT" and reader.peek(1).word == "IGNORED":
        reader.expect("NOT", "IGNORED")
    elif word in {"USING", "TYPE"}:
        reader.take()
        reader.expect_any({"BTREE", "HASH", "RTREE"})
    elif word == "WITH" and reader.peek(1).word == "PARSER":
        reader.expect("WITH", "PARSER")
        reader.name()
    elif word == "KEY_BLOCK_SIZE":
        _value(reader)
        reader.number()
    elif word in _INDEX_STRINGS:
        _value(reader)
        reader.string()
    elif word in {"M", "DISTANCE", "CLUSTERING"}:
        _value(reader)
        _word_or_number(reader)
    else:
        return False
    return True


def table_option(reader: Reader) -> bool:  # noqa: C901 - one branch for each kind of option
    """Pass an option of a table; return whether the table's rows may be different."""
    word = reader.peek().word
    if word in {"ENGINE", "TYPE"}:
        _value(reader)
        reader.take()
        return True
    if word in _NUMBERS:
        _value(reader)
        _word_or_number(reader)
    elif word in _STRINGS:
        _value(reader)
        reader.string()
    elif word == "SECONDARY_ENGINE":
        _value(reader)
        reader.take()
    elif word == "ROW_FORMAT":
        _value(reader)
        reader.expect_any(_ROW_FORMATS)
    elif word == "INSERT_METHOD":
        _value(reader)
        reader.expect_any({"NO", "FIRST", "LAST"})
    elif word == "TABLESPACE":
        _value(reader)
        reader.name()
        if reader.skip("STORAGE"):
            reader.expect_any({"DISK", "MEMORY"})
    elif word in {"DATA", "INDEX"}:
        reader.take()
        if reader.peek().word != "DIRECTORY":
            raise NotUnderstoodError
        _value(reader)
        reader.string()
    elif word == "DEFAULT" or word in _CHARSET:
        _charset(reader)
    else:
        raise NotUnderstoodError
    return False


def _charset(reader: Reader) -> None:
    """Pass the character set of future columns."""
    reader.skip("DEFAULT")
    if reader.skip("CHARACTER"):
        reader.expect("SET")
    else:
        reader.expect_any({"CHARSET", "COLLATE"})
    reader.skip_symbol("=")
    if reader.peek().kind is TokenKind.STRING:
        reader.string()
    else:
        reader.name()


def _value(reader: Reader) -> None:
    reader.take()
    reader.skip_symbol("=")


def _word_or_number(reader: Reader) -> None:
    # `4M` is a word.
    if reader.peek().kind is TokenKind.NUMBER:
        reader.number()
    elif reader.peek().kind is TokenKind.STRING:
        reader.string()
    elif not reader.skip_any(_ON_OFF):
        if not reader.peek().word[:1].isdigit() and reader.peek().word not in {"EUCLIDEAN", "COSINE"}:
            raise NotUnderstoodError
        reader.take()
