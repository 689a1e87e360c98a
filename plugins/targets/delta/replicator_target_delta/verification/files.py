"""Lets DuckDB read a target's files in any storage, as the target itself reads them: through pyarrow, with its credentials."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from fsspec import AbstractFileSystem

from replicator_target_delta.storage import Storage

_SCHEME: Final = "replicatorlake://"


class LakeFiles(AbstractFileSystem):  # type: ignore[misc]
    """Opens single files, which never change, for reading. A path is no pattern here."""

    protocol: ClassVar[str] = _SCHEME.removesuffix("://")
    cachable = False

    def __init__(self, storage: Storage) -> None:
        super().__init__(skip_instance_cache=True)
        self._storage = storage

    @classmethod
    def path_of(cls, path: str) -> str:
        """DuckDB's name of the file at a path of the storage."""
        return f"{_SCHEME}{path}"

    def glob(self, path: str, **_: Any) -> list[str]:
        """The file alone."""
        return [path]

    def size(self, path: str) -> int:
        """Size in bytes."""
        return self._storage.size(path.removeprefix(_SCHEME))

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - data files are never changed
        """The same time for all."""
        return datetime.fromtimestamp(0, UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        assert mode == "rb"
        return self._storage.open_input(path)
