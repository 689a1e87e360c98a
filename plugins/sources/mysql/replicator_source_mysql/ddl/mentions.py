"""Search for a table's name in a text that cannot be parsed. Pure."""

from __future__ import annotations

import re
from typing import Final

from replicator.model.schema import TableId
from replicator_source_mysql.events import Query

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


def skeleton(table: TableId) -> tuple[str, ...]:
    """The parts of a name without the letters that are not ASCII."""
    return tuple(_NOT_ASCII.sub("?", name.lower()) for name in (table.namespace, table.name))


def is_mentioned(query: Query, table: TableId) -> bool:
    """Return whether the text may name the table, however it is to be read."""
    text = query.text.casefold()
    is_near = query.database.casefold() == table.namespace.casefold()
    if _is_in(table.namespace, text):
        return _is_in(table.name, text) or "database" in text or "schema" in text
    return is_near and _is_in(table.name, text)


def _is_in(name: str, text: str) -> bool:
    # A client's character set may have spelled it in bytes that are no text.
    if "\ufffd" in text and not name.isascii():
        return True
    folded = name.casefold()
    spellings = {folded, folded.replace("`", "``"), folded.replace('"', '""')}
    # Digits may stand before it: `/*!50000t`.
    return any(re.search(rf"(?<![a-z$_]){re.escape(spelling)}(?![0-9a-z$_])", text) for spelling in spellings)
