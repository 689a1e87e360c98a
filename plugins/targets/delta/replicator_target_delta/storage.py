"""Paths of tables, and file access that needs no Spark."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow.fs as pafs

from replicator.model.naming import path_part
from replicator.model.schema import TableId

OWN_FOLDER: Final = "_replicator.tmp"
"""Folder under the target's path of shapes of tables being made and rewritten journal files. The dot sets it apart from namespaces."""

BUILDINGS: Final = "_replicator/building"
"""Folder under the target's path of new incarnations of tables, until readers may see them."""

DROP_MARK: Final = "_replicator_drop.json"
"""File in a table's folder while it is being deleted, so that a second attempt still knows its owner."""

_PIECE: Final = 8 << 20
"""Bytes of a file that are copied at once."""

_GCS_RETRY_S: Final = 15
"""Seconds of retries by Google's client, which by default tries for a quarter of an hour; the host decides on longer ones."""

NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Errors of file systems without link(2), such as FAT and some network and FUSE mounts, or with no more links."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def absolute(path: str) -> str:
    """The target's path as an absolute path or a URI, without a slash at the end."""
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if _URI.match(path):
        return path.rstrip("/")
    return str(Path(path).expanduser().resolve())


class Storage:
    """The file system under the target's path, through pyarrow: local, S3, GCS, HDFS."""

    def __init__(self, root: str) -> None:
        self.root = root
        # Hadoop's names of the S3 protocol; pyarrow knows one.
        uri = re.sub(r"^s3[an]://", "s3://", root)
        if re.match(r"gc?s://[^?]*$", uri):
            uri += f"?retry_limit_seconds={_GCS_RETRY_S}"
        self._fs: Any
        self._base: str
        self._fs, self._base = pafs.FileSystem.from_uri(uri) if _URI.match(uri) else (pafs.LocalFileSystem(), uri)

    @property
    def is_local(self) -> bool:
        """Return whether it is this host's file system: other programs find the files under the same paths."""
        return isinstance(self._fs, pafs.LocalFileSystem)

    def table_path(self, table: TableId) -> str:
        """The table's path, in the form for Spark."""
        return f"{self.root}/{path_part(table.namespace)}/{path_part(table.name)}"

    def own_path(self, *parts: str) -> str:
        """A path in the folder for short-lived files, in the form for Spark."""
        return "/".join((self.root, OWN_FOLDER, *parts))

    @property
    def all_buildings(self) -> str:
        """The folder of all incarnations that readers do not see yet."""
        return f"{self.root}/{BUILDINGS}"

    def buildings(self, uuid: str, table: TableId) -> str:
        """The folder of a table's incarnations that readers do not see yet."""
        return "/".join((self.all_buildings, *map(path_part, (uuid, table.namespace, table.name))))

    def building_path(self, uuid: str, table: TableId, incarnation: int) -> str:
        """The path of one of these incarnations, in the form for Spark."""
        return f"{self.buildings(uuid, table)}/{incarnation}"

    def names(self, path: str) -> list[str]:
        """Names of the entries directly inside; empty if there is no such folder."""
        selector = pafs.FileSelector(self._inner(path), allow_not_found=True)
        return [info.base_name for info in self._fs.get_file_info(selector)]

    def files(self, path: str, *, besides: str) -> list[str]:
        """Paths of the files below a folder, except those in the folder `besides` directly in it."""
        found: list[str] = []
        for info in self._fs.get_file_info(pafs.FileSelector(self._inner(path), allow_not_found=True)):
            inner = f"{path}/{info.base_name}"
            if info.base_name == besides:
                continue
            if info.type is pafs.FileType.Directory:
                found += self.files(inner, besides="")
            else:
                found.append(inner)
        return found

    def sizes(self, path: str) -> dict[str, int]:
        """Bytes of every file below a folder, by its path from there: one listing."""
        inner = self._inner(path)
        found = self._fs.get_file_info(pafs.FileSelector(inner, allow_not_found=True, recursive=True))
        return {info.path[len(inner) :].lstrip("/"): info.size for info in found if info.type is pafs.FileType.File}

    def kind(self, path: str) -> pafs.FileType:
        """The type of a path: a file, a folder, or nothing."""
        return self._fs.get_file_info(self._inner(path)).type

    def size(self, path: str) -> int:
        """A file's size in bytes."""
        return int(self._fs.get_file_info(self._inner(path)).size)

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        with self._fs.open_input_stream(self._inner(path), compression=None) as stream:
            return bytes(stream.read())

    def open_input(self, path: str) -> Any:
        """A file that can be read at any offset."""
        return self._fs.open_input_file(self._inner(path))

    def open_output(self, path: str) -> Any:
        """A new file; its folders are made."""
        inner = self._inner(path)
        self._fs.create_dir(inner.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(inner, compression=None)

    def write_json(self, path: str, value: Any) -> None:
        """Write a small JSON file."""
        with self.open_output(path) as stream:
            stream.write(json.dumps(value).encode())

    def share(self, source: str, path: str) -> None:
        """Give a file another name, too: on this host's disks by a link, elsewhere by a copy. It is then as young as a new one.

        Replaces what an earlier attempt has left there.
        """
        old, new = self._inner(source), self._inner(path)
        if isinstance(self._fs, pafs.LocalFileSystem):
            _link(Path(old), Path(new))
            return
        try:
            self._fs.copy_file(old, new)
        except NotImplementedError:
            with self._fs.open_input_stream(old, compression=None) as stream, self.open_output(path) as output:
                while piece := stream.read(_PIECE):
                    output.write(piece)

    def rename(self, path: str, new: str) -> None:
        """Give a file another path."""
        self._fs.move(self._inner(path), self._inner(new))

    def remove(self, path: str) -> None:
        """Remove a file or a folder with everything inside; nothing if it is not there."""
        inner = self._inner(path)
        match self._fs.get_file_info(inner).type:
            case pafs.FileType.Directory:
                self._fs.delete_dir(inner)
            case pafs.FileType.NotFound:
                pass
            case _:
                self._fs.delete_file(inner)

    def remove_empty(self, path: str) -> bool:
        """Remove a folder of this host, unless something is inside; return whether it does not exist any more.

        Elsewhere it stays: the removal of a folder there also removes files that were written into it meanwhile.
        """
        if isinstance(self._fs, pafs.LocalFileSystem):
            try:
                Path(self._inner(path)).rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
        return self.kind(path) is pafs.FileType.NotFound

    def prune(self, path: str, *, below: str) -> None:
        """Remove a folder of this host and those above it as far as they are empty, but not `below`. Elsewhere they stay."""
        while isinstance(self._fs, pafs.LocalFileSystem) and path != below and self.remove_empty(path):
            path = path.rpartition("/")[0]

    def _inner(self, path: str) -> str:
        assert path == self.root or path.startswith(f"{self.root}/")
        return self._base + path.removeprefix(self.root)


def _link(old: Path, new: Path) -> None:
    """See `Storage.share`. A file system without links gets a copy, which has its name when it is whole."""
    new.parent.mkdir(parents=True, exist_ok=True)
    temporary = new.with_name(f".{new.name}.{uuid4().hex}.tmp")
    try:
        try:
            os.link(old, temporary)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(old, temporary)
        # VACUUM goes by it, and no version names the file yet.
        os.utime(temporary)
        temporary.replace(new)
    finally:
        # Where both names were one file's already, nothing was renamed.
        temporary.unlink(missing_ok=True)
