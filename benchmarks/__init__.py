"""What the Replicator must show, measured side by side with the least that anybody could do: `python -m benchmarks`."""

from __future__ import annotations

__all__: list[str] = []
