"""Access to segment files: in a local folder or any file system that pyarrow or fsspec knows by URI."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyarrow import fs
from typing_extensions import override

from replicator.model.errors import ConfigError, JournalUnavailableError

_GCS_RETRY_S: Final = 15
"""Google's client retries for a quarter of an hour by itself; the host's own policy decides how long."""
_GCS: Final = re.compile(r"gc?s://")
_DENIED: Final = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN"
    r"|PERMISSION_DENIED|UNAUTHENTICATED|OAuth2 access token"
)
"""Texts of Amazon's and Google's clients where credentials are missing or are not enough."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL: Final = "file://"
_CAUSES: Final = {
    errno.ENOSPC: ("journal_disk_full", "Free some space there, or lower `journal.bytes_max` and `journal.keep`."),
    errno.EDQUOT: ("journal_disk_full", "Raise the user's quota, or lower `journal.bytes_max` and `journal.keep`."),
    errno.EFBIG: (
        "journal_disk_full",
        "Raise the limit of a file's size (`ulimit -f`), or lower `journal.segment_bytes`.",
    ),
    errno.EROFS: ("journal_read_only", "Mount the file system for writing."),
    errno.EACCES: ("journal_access_denied", "Make the folder writable for the user who runs the Replicator."),
    errno.EPERM: ("journal_access_denied", "Make the folder writable for the user who runs the Replicator."),
}


@contextmanager
def journal_io(location: str) -> Iterator[None]:
    """Run a block that reads or writes `location`; an error of the file system becomes a JournalUnavailableError."""
    try:
        yield
    except OSError as error:
        fallback = ("journal_unavailable", "Check that the location exists and can be written.")
        if _DENIED.search(str(error)):
            fallback = (
                "journal_access_denied",
                "Give the worker credentials that may list, read, write and delete there.",
            )
        code, action = _CAUSES.get(error.errno or 0, fallback)
        fact = error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
        left = _left(location) if code == "journal_disk_full" else ""
        raise JournalUnavailableError(
            f"The journal cannot use {location}: {fact}{left}.", code=code, action=action
        ) from error


def _left(location: str) -> str:
    """Return the space left on the volume of a local folder, as text."""
    path = local_path(location)
    for folder in path.parents if path is not None else ():
        with suppress(OSError):
            return f"; {shutil.disk_usage(folder).free} bytes are free on the volume of {folder}"
    return ""


def local_path(uri: str) -> Path | None:
    """Return the local path that a URI or plain path names; None if it is elsewhere.

    After `file://` comes a path as it is, without percent-encoding: the form that Hadoop's `Path`, and so Spark, understands.
    """
    if uri.startswith(_LOCAL):
        return Path(uri.removeprefix(_LOCAL))
    return None if _SCHEME.match(uri) else Path(uri)


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path in it.

    Raises:
        ConfigError: `journal_uri`: no file system knows the scheme, or the URI has credentials or options.
    """
    path = local_path(uri)
    if path is not None:
        return fs.LocalFileSystem(), str(path.absolute())
    _refuse_parts(uri)
    try:
        file_system, inside = fs.FileSystem.from_uri(
            f"{uri}?retry_limit_seconds={_GCS_RETRY_S}" if _GCS.match(uri) else uri
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _resolve_fsspec(uri)
    return file_system, str(inside)


class SegmentSink(io.RawIOBase):
    """A new file that is hashed while it is written.

    `finish` makes it durable; `abandon` drops it, after which writes go nowhere, so that a Parquet writer can be closed.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._hash = hashlib.sha256()
        self._is_abandoned = False
        self.size = 0

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data)
        if not self._is_abandoned:
            self._hash.update(view)
            self._stream.write(view)
            self.size += view.nbytes
        return view.nbytes

    def finish(self) -> str:
        """Make the content durable, close the file and return the SHA-256 of what was written, in hex."""
        self._stream.flush()
        if isinstance(self._stream, io.BufferedWriter):
            os.fsync(self._stream.fileno())
        self._stream.close()
        self.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Write no more. Errors of closing do not matter any more: the file is not read again."""
        self._is_abandoned = True
        with suppress(OSError):
            self._stream.close()


class JournalFolder:
    """The folder of one journal. Names inside are flat.

    Raises (all methods): JournalUnavailableError.
    """

    def __init__(self, uri: str) -> None:
        self._fs, base = resolve(uri)
        self._base = base.rstrip("/") or "/"
        self._local = Path(self._base) if local_path(uri) is not None else None
        self.uri = f"{_LOCAL}{self._base}" if self._local is not None else uri.rstrip("/")

    def make(self) -> None:
        """Make the folder where it is missing, readable by its owner only."""
        with journal_io(self.uri):
            if self._local is not None:
                self._local.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                self._fs.create_dir(self._base, recursive=True)

    def uri_of(self, name: str) -> str:
        """Return the absolute URI of a file, as the index keeps it."""
        return f"{self.uri}/{name}"

    def create(self, name: str) -> SegmentSink:
        """Begin a file that does not exist yet."""
        with journal_io(self.uri_of(name)):
            if self._local is None:
                return SegmentSink(self._fs.open_output_stream(f"{self._base}/{name}"))
            return SegmentSink(_create_private(self._local / name))

    def put(self, name: str, content: bytes) -> None:
        """Write a small file whole, durably, in place of an older one. Several may do so at once; the last one wins.

        A crash may leave a temporary file whose name begins with `name`.
        """
        with journal_io(self.uri_of(name)):
            if self._local is None:
                with self._fs.open_output_stream(f"{self._base}/{name}") as stream:
                    stream.write(content)
                return
            temporary = self._local / f"{name}.{secrets.token_hex(4)}.new"
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._local / name)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        self.sync()

    def get(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        with journal_io(self.uri_of(name)):
            try:
                with self._fs.open_input_stream(f"{self._base}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def sync(self) -> None:
        """Make names durable. Object stores have confirmed each upload already."""
        if self._local is None:
            return
        with journal_io(self.uri):
            descriptor = os.open(self._local, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sizes(self) -> Mapping[str, int]:
        """Return every file's name and size; empty if the folder does not exist."""
        with journal_io(self.uri):
            selector = fs.FileSelector(self._base, allow_not_found=True)
            return {i.base_name: i.size or 0 for i in self._fs.get_file_info(selector) if i.type == fs.FileType.File}

    def delete(self, name: str) -> None:
        """Delete a file. Replay: does nothing."""
        delete_file(self.uri_of(name))

    def delete_if_empty(self) -> None:
        """Delete the folder itself unless something is left in it."""
        if self._local is not None:
            with suppress(OSError):
                self._local.rmdir()


def delete_file(uri: str) -> None:
    """Delete a file by its URI. Replay: does nothing."""
    file_system, path = resolve(uri)
    with journal_io(uri), suppress(FileNotFoundError):
        file_system.delete_file(path)


def _create_private(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR), "wb")


def _refuse_parts(uri: str) -> None:
    """Refuse a password or options in the URI: names of files are appended to it, and it is shown and logged."""
    scheme, _, rest = uri.partition("://")
    if "?" in rest or ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise ConfigError(
            f"The journal's URI {scheme}://… has a password or options.",
            code="journal_uri",
            action="Write only bucket and path. Credentials, region and endpoint come from the environment of the worker "
            "(docs/several-hosts.md).",
        )


def _resolve_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec.core

    try:
        file_system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        scheme, _, _ = uri.partition("://")
        raise ConfigError(
            f"No file system is known for the journal's URI {scheme}://…: {error}.",
            code="journal_uri",
            action="Set `journal.uri` to a folder, or install the fsspec package for its scheme.",
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(file_system)), str(path)
