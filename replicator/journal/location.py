"""Checks of a journal's folder: its owner, its format, and whether its location fits the state store."""

from __future__ import annotations

import json
import re
from typing import Final

from replicator.journal.claim import CLAIM
from replicator.journal.files import JournalFolder, journal_io, local_path, resolve
from replicator.model.errors import ConfigError, CorruptStreamError, FatalError, Problem
from replicator.state.database.address import is_shared, parse_state_url
from replicator.state.database.local_files import network_file_system
from replicator.state.records import RequestKind
from replicator.state.store import StateStore

FORMAT_VERSION: Final = 1
MARKER: Final = "journal.json"
_FORMAT: Final = "replicator-journal"
_READABLE_LENGTH: Final = 80
_SEGMENT_NAME: Final = re.compile(r"(\d{8,})-[0-9a-f]{16}-\d{6,}-[A-Za-z0-9_-]*\.parquet")


def check_location(state_url: str, journal_uri: str) -> Problem | None:
    """Return the problem of a journal that not every host which shares the state store can reach, if there is one.

    Raises:
        ConfigError: `journal_uri`: no file system knows the scheme.
        JournalUnavailableError: The file system cannot be used, or not now.
    """
    with journal_io(journal_uri):
        resolve(journal_uri)
    path = local_path(journal_uri)
    if path is None or not is_shared(parse_state_url(state_url)) or network_file_system(path):
        return None
    return Problem(
        code="journal_not_shared",
        message=f"The state store may be shared by several hosts, but the journal {journal_uri} is on this host's disk.",
        location="journal.uri",
        action="Set `journal.uri` to a location that all of them can reach, such as gs://…, s3://…, hdfs://… or a network mount.",
    )


def check_present(store: StateStore, name: str, uri: str) -> None:
    """Check that the folder of a journal that was used exists.

    Another host may not have mounted it. There an empty folder would be a new journal, without the changes of the real one.
    A start at a new position of the log (`RequestKind.RESTART`) needs no old journal.

    Raises:
        ConfigError: `journal_missing`.
        FatalError, CorruptStreamError, JournalUnavailableError: As `open_folder`.
    """
    if _owner(JournalFolder(uri)) is not None or not store.leases.journal_claims(name):
        return
    if any(request.kind is RequestKind.RESTART for request in store.requests.open(name)):
        return
    raise ConfigError(
        f"The journal of {name} is not at {uri} on this host: there is no {MARKER}.",
        code="journal_missing",
        action="Mount the file system that holds it. If it was lost, run "
        f"`replicator snapshot {name} --restart`, which needs no old journal, then start again.",
    )


def open_folder(uri: str, uuid: str) -> JournalFolder:
    """Open the journal's folder; a new one is made and marked.

    Args:
        uri: URI of the folder.
        uuid: Identifier of the replicator; a folder belongs to one.

    Raises:
        ConfigError: `journal_in_use`: it belongs to another replicator.
        FatalError: `newer_journal`.
        CorruptStreamError: `corrupt_journal`: its marker cannot be read.
        JournalUnavailableError: The file system refuses.
    """
    folder = JournalFolder(uri)
    owner = _owner(folder)
    if owner is None:
        folder.make()
        marker = {"format": _FORMAT, "version": FORMAT_VERSION, "replicator": uuid}
        folder.put(MARKER, json.dumps(marker).encode())
    elif owner != uuid:
        raise ConfigError(
            f"The journal {folder.uri} belongs to another replicator (uuid {owner}).",
            code="journal_in_use",
            action="Set `journal.uri` to a folder of its own; or, if that replicator no longer exists, delete the folder.",
        )
    return folder


def remove_journal(uri: str, uuid: str) -> None:
    """Delete every file of a replicator's journal, its marker last, and the folder if nothing else is in it.

    A folder of another replicator, or without a marker, is not changed. Replay: continues where it was interrupted, or does nothing.
    Errors as `open_folder`, except `journal_in_use`.
    """
    folder = JournalFolder(uri)
    if _owner(folder) != uuid:
        return
    for name in folder.sizes():
        if epoch_of(name) is not None or (name.startswith((CLAIM, MARKER)) and name != MARKER):
            folder.delete(name)
    folder.delete(MARKER)
    folder.delete_if_empty()


def segment_name(epoch: int, token: str, count: int, table: str) -> str:
    """Return a file's name: epoch, the writer's random part, its count, and the table for people to see."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", table)[:_READABLE_LENGTH]
    return f"{epoch:08d}-{token}-{count:06d}-{readable}.parquet"


def epoch_of(name: str) -> int | None:
    """Return the epoch in a segment file's name; None for other files."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _owner(folder: JournalFolder) -> str | None:
    """Return the uuid of the replicator in the folder's marker; None if it has no marker."""
    content = folder.get(MARKER)
    if content is None:
        return None
    try:
        marker = json.loads(content)
        known, version, owner = marker["format"] == _FORMAT, int(marker["version"]), str(marker["replicator"])
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(folder) from error
    if not known or version < 1:
        raise _corrupt(folder)
    if version > FORMAT_VERSION:
        raise FatalError(
            f"The journal {folder.uri} has format {version}; this version supports formats up to {FORMAT_VERSION}.",
            code="newer_journal",
            action="Use the version of the Replicator that wrote it, or a newer one.",
        )
    return owner


def _corrupt(folder: JournalFolder) -> CorruptStreamError:
    return CorruptStreamError(
        f"The file {folder.uri_of(MARKER)} is not the marker of a journal.",
        code="corrupt_journal",
        action="Restore it from a backup; or delete the folder and run `replicator snapshot NAME --restart`.",
    )
