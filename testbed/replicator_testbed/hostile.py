"""Names and comments that break what is careless with text: for every statement of every plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from replicator.model.events import RESERVED_COLUMNS
from replicator.model.naming import folded

CANARY_VARIABLE: Final = "SPARK_TEST_CANARY"
"""An environment variable, one of those that Spark's JVM inherits, that the texts refer to, in every spelling that something resolves."""

CANARY: Final = "canary-of-the-tests-4b7d"
"""Its value in the Spark that tests share."""

_TEXTS: Final = (
    "'", '"', "`", "``", "a`b", "it's", "''", '""', "\\", "\\\\", "\\'", "\\n", "\\u0041", "a\\", "--", "/*", "*/",
    "#", ";", "; DROP TABLE t", f"${{env:{CANARY_VARIABLE}}}", f"${{env.{CANARY_VARIABLE}}}",
    f"${{{CANARY_VARIABLE}}}", f"${CANARY_VARIABLE}", f"$${{env:{CANARY_VARIABLE}}}", "${system:user.name}",
    "${user.name}", "${spark.master}", "${", "$", "$$", "}", "{}", "{0}", "{name}", "#{}", "%s", "%(name)s", "%",
    "%%", "%d", "%41", ":name", "?", "@x", "[red]", "[/red]", "<b>", "&amp;", "*", "a.b", ".", "..", "a,b", "(", ")",
    "[", "]", "=", "a b", " a", "/", "a/b", "~", "!", "|", "\n", "a\nb", "\r", "\r\n", "\t", "\x01", "\x7f", "\x85",
    "\u2028", "😀", "a😀b", "👩‍👩‍👧", "é", "e\u0301", "Å", "\u202eabc", "مرحبا", "字", "\ufeffa", "\u200b", "\u00a0",
    "ß", "\u0131", "i", "\u0130x", "\u017ft", "\ufffd", "\uffff", "NULL", "\\N", "null", "true", "select", "from",
    "1", "1a", "-1", "0x1", "c1", "c2", "col1", "f0", "__index_level_0__", "_delta_log", "_metadata", "_rowid",
    "_commit_version", "_PARTITIONTIME", "_PARTITIONDATE", "_TABLE_SUFFIX", "_FILE_NAME", "_ROW_TIMESTAMP",
    "__ROOT__", "_colidentifier_x", "_WANTED", "Key", "s", "t", "k", "v", "n", "o", "op", "key", "row", "before",
    "moment", "half", "life", "root", "within", "sent", "origin", "is_removed", "removed", "moves", "position", "oid", "ctid",
    "xmin", "tableoid", "rowid", "_wanted", "_found", "_there", "_held", "_last", "_touch", "_life", "_operation",
    "_absent", "_is_snapshot", "_transaction_id", "replicator_batch", "x" * 255, "é" * 127, "字" * 85,
)  # fmt: skip

COMMENTS: Final[Sequence[str]] = (
    *_TEXTS,
    "costs ${amount}",
    "💰 in cents",
    " " + " ".join(["${user.name}"] * 25),
    f"x ${{env:{CANARY_VARIABLE}}} y ${{env.{CANARY_VARIABLE}}} z ${{spark.hadoop.fs.s3a.secret.key}} ${{fs.s3a.secret.key}}",
    "${line.separator}",
    "line 1\nline 2\r\nline 3\ttab",
    "x" * 20_000,
)


def names(*, bytes_max: int = 255, chars_max: int = 255, is_bmp: bool = False, unfit: Iterable[str] = ()) -> list[str]:
    """Hostile names that a database takes, no two of which differ only in case.

    Args:
        bytes_max: Longest name in UTF-8.
        chars_max: Longest name in characters.
        is_bmp: Names have no character beyond U+FFFF, none that is no character, and end in no space.
        unfit: Names that it refuses.
    """
    taken: dict[str, str] = {}
    for text in _TEXTS:
        name = text.encode()[:bytes_max].decode(errors="ignore")[:chars_max]
        if is_bmp and (max(name) > "\uffef" or name != name.rstrip()):
            continue
        if name not in unfit and folded(name) not in RESERVED_COLUMNS:
            taken.setdefault(folded(name), name)
    return list(taken.values())
