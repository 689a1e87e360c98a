"""Names and texts in T-SQL, quoted."""

from __future__ import annotations

from replicator.model.schema import TableId


def quoted(name: str) -> str:
    """Return an identifier in brackets."""
    if "\0" in name:
        raise ValueError("an identifier has a NUL")
    return "[" + name.replace("]", "]]") + "]"


def quoted_table(table: TableId) -> str:
    """Return a table's name in brackets."""
    return f"{quoted(table.namespace)}.{quoted(table.name)}"


def literal(text: str) -> str:
    """Return an expression of Unicode text.

    A backslash before a line's end would join the two lines: the text is cut between them. A character of code 0 would end the
    statement in a driver.
    """
    pieces = text.replace("'", "''").replace("\\\n", "\\'+N'\n").replace("\\\r", "\\'+N'\r")
    return "N'" + pieces.replace("\0", "'+NCHAR(0)+N'") + "'"
