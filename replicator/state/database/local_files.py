"""Checks of a SQLite store's location, and the creation of its file."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from replicator.model.errors import ConfigError, ReplicatorError, StateUnavailableError

_MOUNTS: Final = Path("/proc/self/mounts")
_NETWORK_TYPES: Final = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "pvfs2", "smb3", "smbfs"}
)  # fmt: skip
_NETWORK_FUSE: Final = frozenset(
    {
        "blobfuse", "blobfuse2", "ceph", "davfs", "gcsfuse", "glusterfs", "goofys", "juicefs", "mount-s3", "rclone",
        "s3fs", "smbnetfs", "sshfs",
    }
)  # fmt: skip


def network_file_system(path: Path) -> str | None:
    """Return the type of the file system that `path` lies on (or will lie on), if it is one shared over a network."""
    if not _MOUNTS.exists():
        return None
    return network_mount(path.absolute().resolve(), _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))


def network_mount(path: Path, mounts: str) -> str | None:
    """As `network_file_system`, for a resolved path and the text of `/proc/self/mounts`."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, _, rest = line.partition(" ")
        escaped, _, rest = rest.partition(" ")
        # Later mounts hide earlier ones at the same path. Blanks are written in octal.
        mount = Path(escaped.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\"))
        if path.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), rest.partition(" ")[0]
    family, _, member = kind.partition(".")
    is_network = kind in _NETWORK_TYPES or (family in {"fuse", "fuseblk"} and member in _NETWORK_FUSE)
    return kind if is_network else None


@contextmanager
def prepared_file(path: Path) -> Iterator[None]:
    """Make the file (0600) and its folder (0700) where they are missing, and hold the folder's lock inside the block.

    The lock keeps two processes from turning one new file into a database at the same time.

    Raises:
        ConfigError: `network_file_system`, or `state_path` when the path cannot be used.
    """
    if kind := network_file_system(path):
        raise ConfigError(
            f"The state store {path} is on a network file system ({kind}), where SQLite loses data.",
            code="network_file_system",
            action="Put REPLICATOR_HOME on a local disk, or use PostgreSQL: REPLICATOR_STATE_URL=postgresql://…",
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _make_private(path)
        yield
    finally:
        os.close(folder)


def _make_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # Not opened: closing any descriptor of the file would drop the locks that SQLite holds in this process.
        _narrow(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _narrow(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"The state store {path} is not a file.", code="state_path", action="Correct REPLICATOR_STATE_URL."
        )
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        path.chmod(status.st_mode & 0o700)


def _unusable(path: Path, error: OSError) -> ReplicatorError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StateUnavailableError(
            f"The state store {path} cannot be opened: {error.strerror}.",
            code="state_disk_full",
            action="Free some space on its disk.",
        )
    return ConfigError(
        f"The state store {path} cannot be opened: {error.strerror}.",
        code="state_path",
        action="Set REPLICATOR_HOME to a folder that this user may write, or correct REPLICATOR_STATE_URL.",
    )
