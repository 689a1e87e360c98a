"""Journal files where BigQuery can load them: in the journal itself, or copied to the staging bucket as they are."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import google_crc32c
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from google.api_core import exceptions as api

from replicator.model.crash import crash_point
from replicator.model.errors import CorruptStreamError, TableError
from replicator.model.schema import TableSchema
from replicator.plugins.kit.opening import open_seekable
from replicator.plugins.target import BatchFile
from replicator_target_bigquery.calls.clients import READ_RETRY, TIMEOUT_S
from replicator_target_bigquery.rewrite import is_loadable, rewrite

_GCS: Final = "gs://"
_UPLOAD_TIMEOUT_S: Final = 600.0
_COPY_BYTES: Final = 1 << 20
_FILES_MAX: Final = 50
_RIGHTS: Final = ("storage.objects.create", "storage.objects.get", "storage.objects.list", "storage.objects.delete")


class Readable(Protocol):
    """As much of a binary file as an upload needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes from here on."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Seek to an offset."""

    def tell(self) -> int:
        """Return the current offset."""


class StagingStore(ABC):
    """Objects under one prefix of one bucket."""

    bucket: str

    @abstractmethod
    def put(self, name: str, content: Readable) -> None:
        """Write an object unless it is there; one that is there must have the same bytes.

        Raises:
            TableError: `staging_conflict`.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object; does nothing if it is not there."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """List the names of objects that begin so."""

    @abstractmethod
    def missing_rights(self) -> list[str]:
        """Return rights on the bucket that the credentials need and lack."""

    @abstractmethod
    def location(self) -> str | None:
        """Return the location of the bucket; None if there is no such bucket."""

    def uri(self, name: str) -> str:
        """Return an object's URI."""
        return f"{_GCS}{self.bucket}/{name}"


class CloudStore(StagingStore):
    """Cloud Storage."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self.bucket = bucket

    def put(self, name: str, content: Readable) -> None:
        """Upload on the condition that no object of that name exists, and let the service compare the checksum."""
        checksum = _crc32c(content)
        blob = self._client.bucket(self.bucket).blob(name)
        blob.crc32c = checksum
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        try:
            # With this condition a repetition cannot overwrite, so it may repeat.
            blob.upload_from_file(
                content,
                size=size,
                if_generation_match=0,
                timeout=_UPLOAD_TIMEOUT_S,
                checksum="crc32c",
                retry=READ_RETRY,
            )
        except api.PreconditionFailed:
            there = self._client.bucket(self.bucket).get_blob(name, retry=READ_RETRY, timeout=TIMEOUT_S)
            if there is None or there.crc32c != checksum:
                raise _conflict(self.uri(name)) from None

    def delete(self, name: str) -> None:
        """Remove an object."""
        with suppress(api.NotFound):
            self._client.bucket(self.bucket).blob(name).delete(retry=READ_RETRY, timeout=TIMEOUT_S)

    def names(self, prefix: str) -> list[str]:
        """List the names of objects."""
        found = self._client.list_blobs(self.bucket, prefix=prefix, retry=READ_RETRY, timeout=TIMEOUT_S)
        return [blob.name for blob in found]

    def missing_rights(self) -> list[str]:
        """Return the rights that the service says are missing."""
        allowed = self._client.bucket(self.bucket).test_iam_permissions(
            list(_RIGHTS), retry=READ_RETRY, timeout=TIMEOUT_S
        )
        return [right for right in _RIGHTS if right not in allowed]

    def location(self) -> str | None:
        """Return the bucket's location; None if there is no such bucket."""
        try:
            return str(self._client.get_bucket(self.bucket, retry=READ_RETRY, timeout=TIMEOUT_S).location)
        except api.NotFound:
            return None


class FolderStore(StagingStore):
    """A local folder that an emulator takes for Cloud Storage."""

    def __init__(self, root: Path, bucket: str, location: str) -> None:
        self._root = root / bucket
        self._location = location
        self.bucket = bucket

    def put(self, name: str, content: Readable) -> None:
        """Write under another name, then link: never over an existing file."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.seek(0)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            shutil.copyfileobj(content, file, _COPY_BYTES)
        try:
            os.link(file.name, path)
        except FileExistsError:
            with path.open("rb") as there:
                if _crc32c(there) != _crc32c(content):
                    raise _conflict(self.uri(name)) from None
        finally:
            Path(file.name).unlink()

    def delete(self, name: str) -> None:
        """Remove a file."""
        (self._root / name).unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """List the names of files."""
        found = (path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())
        return sorted(name for name in found if name.startswith(prefix))

    def missing_rights(self) -> list[str]:
        """Return none: a process that may not write finds out at once."""
        return []

    def location(self) -> str | None:
        """Return the target's own location, if the folder exists."""
        return self._location if self._root.is_dir() else None


@contextmanager
def staged(
    store: StagingStore, folder: str, files: Sequence[BatchFile], schema: TableSchema, unfit_values: str
) -> Iterator[Sequence[str]]:
    """Yield URIs in Cloud Storage of files with the same changes, for the time of the block.

    A file that already is in Cloud Storage and can be loaded as it is stays where it is. Copies are removed after the
    block, whether it fails or not; a copy that a crash leaves has a name that a repetition finds.

    Args:
        store: The store of copies.
        folder: The copies' common prefix, with a slash at the end.
        files: The files of one batch.
        schema: The schema of their rows.
        unfit_values: The policy for values that BigQuery cannot hold.
    """
    made: list[str] = []
    try:
        uris = []
        # Small files come by the thousand, and each upload takes its time; a load job takes 10,000 at most.
        whole = [files] if len(files) > _FILES_MAX else [[file] for file in files]
        for group in whole:
            name = _stage(store, folder, [file.uri for file in group], schema, unfit_values)
            if name is None:
                uris.append(group[0].uri)
            else:
                made.append(name)
                uris.append(store.uri(name))
        crash_point("target.uploaded")
        yield uris
    finally:
        for name in made:
            store.delete(name)


def _stage(store: StagingStore, folder: str, uris: Sequence[str], schema: TableSchema, unfit_values: str) -> str | None:
    """Copy files, joined if they are several, rewritten if need be; return the name, or None if one can be loaded from its own location."""
    try:
        if len(uris) > 1:
            return _stage_rewritten(store, folder, uris, schema, unfit_values)
        with _opened(uris[0]) as source:
            if not is_loadable(pq.ParquetFile(source), schema):
                return _stage_rewritten(store, folder, uris, schema, unfit_values)
            if uris[0].startswith(_GCS):
                return None
            source.seek(0)
            name = f"{folder}{uris[0].rsplit('/', 1)[-1]}"
            store.put(name, _ArrowFile(source))
            return name
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise CorruptStreamError(
            "A journal file cannot be read.",
            code="journal_file_unreadable",
            table=str(schema.table),
            action="Restore the file, or run `replicator snapshot NAME TABLE`.",
        ) from error


def _stage_rewritten(
    store: StagingStore, folder: str, uris: Sequence[str], schema: TableSchema, unfit_values: str
) -> str:
    # Rewriting is no function of the files alone, so such a copy has a name of its own every time.
    name = f"{folder}{uuid4().hex}.parquet"
    with tempfile.TemporaryFile() as file, pa.PythonFile(file, mode="w") as sink:
        rewrite(_parquet(uris), sink, schema, unfit_values)
        sink.flush()
        store.put(name, file)
    return name


def parquet_files(files: Sequence[BatchFile]) -> Iterator[pq.ParquetFile]:
    """Open journal files, each until the next one is asked for."""
    return _parquet([file.uri for file in files])


def _parquet(uris: Sequence[str]) -> Iterator[pq.ParquetFile]:
    for uri in uris:
        with _opened(uri) as source:
            yield pq.ParquetFile(source)


def _opened(uri: str) -> Any:
    file_system, path = pafs.FileSystem.from_uri(uri)
    return open_seekable(file_system, path)


class _ArrowFile:
    """An Arrow file as the clients want to read one."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Read bytes from here on."""
        return bytes(self._file.read(None if size is None or size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek to an offset."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the current offset."""
        return int(self._file.tell())


def _crc32c(content: Readable) -> str:
    """Return the checksum as Cloud Storage spells it."""
    checksum = google_crc32c.Checksum()
    content.seek(0)
    while block := content.read(_COPY_BYTES):
        checksum.update(block)
    content.seek(0)
    return base64.b64encode(checksum.digest()).decode()


def _conflict(uri: str) -> TableError:
    return TableError(
        f"{uri} exists and differs from the journal's file of that name.",
        code="staging_conflict",
        action="Choose another target.staging.prefix, or delete the object.",
    )
