"""Folds batches in Arrow, for targets that hold a table as immutable data files: `docs/plugins.md`, "If your target is a lake"."""

__all__: list[str] = []
