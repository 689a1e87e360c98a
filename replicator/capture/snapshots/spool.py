"""Record batches that wait on local disk, so that memory stays bounded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from replicator.model.errors import JournalUnavailableError


class Spool:
    """An Arrow stream in a file without a name.

    The operating system removes it with the process. Written by one thread, then read by one.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._schema = schema
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise _unavailable(folder, error) from error
        self._folder = folder
        self._writer: pa.RecordBatchStreamWriter | None = pa.ipc.new_stream(self._file, schema)
        self.rows = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch of the spool's schema."""
        assert self._writer is not None, "the spool is being read"
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        self.rows += batch.num_rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that were added, in order; may be called again, but nothing can be added any more."""
        if self._writer is not None:
            try:
                self._writer.close()
                self._file.flush()
            except OSError as error:
                raise _unavailable(self._folder, error) from error
            self._writer = None
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as stream:
            yield from stream

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._writer = None
        self._file.close()


def _unavailable(folder: Path, error: OSError) -> JournalUnavailableError:
    left = ""
    with suppress(OSError):
        left = f"; {shutil.disk_usage(folder).free} bytes are free on its volume"
    return JournalUnavailableError(
        f"the spool folder {folder} cannot be written: {error.strerror or error}{left}.",
        code="spool_unavailable",
        action="Free space there, or make it writable.",
    )
