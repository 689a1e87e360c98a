"""Marks: log positions that a mark's writer can recognise when the log is read."""

from __future__ import annotations

import threading

from replicator_source_postgresql.lsn import lsn_to_text


def mark_prefix(uuid: str) -> str:
    """Return the prefix of this replicator's marks, for `pg_logical_emit_message(true, prefix, text)`: `replicator:<uuid>`."""
    return f"replicator:{uuid}"


class LsnMarks:
    """Marks of servers before 14, whose pgoutput does not send messages: delivered once the log has been received up to there.

    Thread-safe; one per source, shared by `mark()`, which calls `expect`, and the open reader. Marks that were
    expected before a reader was opened are delivered by it too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, int] = {}
        self._count = 0

    def expect(self, lsn: int) -> str:
        """Register a log position and return its mark, `lsn:16/B374D848#1`.

        `lsn` is what `pg_logical_emit_message(true, …)` returned, asked after its transaction has ended: everything
        that was visible before committed below it, and the server soon sends something beyond it.
        """
        with self._lock:
            self._count += 1
            mark = f"lsn:{lsn_to_text(lsn)}#{self._count}"
            self._awaited[mark] = lsn
            return mark

    def lowest(self) -> int | None:
        """Return the first position that is awaited; None if there is none."""
        with self._lock:
            return min(self._awaited.values(), default=None)

    def reached(self, lsn: int) -> list[str]:
        """Return the marks up to `lsn`, in order; each is returned once."""
        with self._lock:
            marks = sorted((position, mark) for mark, position in self._awaited.items() if position <= lsn)
            for _, mark in marks:
                del self._awaited[mark]
        return [mark for _, mark in marks]
