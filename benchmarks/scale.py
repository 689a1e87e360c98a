"""How large a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of one run.

    Attributes:
        rows: Rows of the table; everything else follows from it.
        repetitions: How often each side is run.
        is_quick: A run that only shows that everything works.
        minutes: How long a long run measures.
    """

    rows: int = 1_000_000
    repetitions: int = 3
    is_quick: bool = False
    minutes: float = 60.0
