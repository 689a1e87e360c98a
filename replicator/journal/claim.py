"""Tells a state store from another one that was copied from it, by a small file in the journal's folder.

A copy of the state store names the same journal, and takes what the original has sealed since for orphans. So capture claims the folder
every few seconds: it records a random token and a count in the state store, then writes both into the folder. A folder whose claim the
state store does not know was claimed by a worker with another copy of it.

A crash between the two steps leaves an older claim in the folder, which the state store knows as well. So does a worker of an older epoch
that writes late: the state store keeps the last tokens, each with its highest count.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from replicator.journal.files import JournalFolder
from replicator.model.crash import crash_point
from replicator.model.errors import ConfigError, CorruptStreamError, FencedError, ReplicatorError, TransientError
from replicator.observability import get_logger
from replicator.state import holder_in_words
from replicator.state.records import Lease
from replicator.state.store import StateStore

CLAIM: Final = "claim.json"
RENEW_S: Final = 3.0
"""Renewals fit several times within the lease's 10 s: the original claims the folder again before a copied store's lease can be taken."""
_LOOKS: Final = 3
_LOOK_S: Final = 0.3
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The folder's claim."""

    token: str
    count: int
    holder: str
    at: str


def check_claim(store: StateStore, name: str, uri: str) -> None:
    """Check that the journal's folder was claimed last by a worker that used this state store, or never.

    Raises:
        ConfigError: `home_copied`.
        CorruptStreamError: `corrupt_journal`: the claim cannot be read.
        JournalUnavailableError: The file system refuses.
    """
    folder, found = JournalFolder(uri), None
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)  # not every file system shows a file that is being replaced as a whole
        content = folder.get(CLAIM)
        if content is None:
            return
        found = _read(content)
        # Asked after the folder: what is written there was recorded before.
        if found is not None and found.count <= store.leases.journal_claims(name).get(found.token, -1):
            return
    location = folder.uri_of(CLAIM)
    if found is None:
        raise CorruptStreamError(
            f"The file {location} is not the claim of a journal.",
            code="corrupt_journal",
            action="Delete this file if no other host runs the replicator, and start again.",
        )
    raise ConfigError(
        f"The journal {folder.uri} was last used with another copy of the state store, at {found.at} by {holder_in_words(found.holder)}: "
        f"the state store of {name} was copied, or restored from a backup.",
        code="home_copied",
        action="Use the state store of that worker. If it was lost and this one is its backup, make sure that no worker uses the other, "
        f"delete the file {location} and start again.",
    )


@dataclass(slots=True, kw_only=True)
class JournalClaim:
    """The claim of one capture process. Used from one thread at a time.

    Args:
        lease: The lease, whose holder is named in the folder.
        uri: URI of the folder, which exists.
    """

    store: StateStore
    lease: Lease
    uri: str
    _token: str = field(default_factory=lambda: secrets.token_hex(8))
    _count: int = 0

    def renew(self) -> None:
        """Claim the folder, for the first time or again.

        Raises:
            FencedError: The lease has a newer epoch.
            ConfigError: `home_copied`; further as `check_claim`.
        """
        check_claim(self.store, self.lease.replicator, self.uri)
        self._count += 1
        self.store.leases.claim_journal(self.lease.replicator, self.lease.epoch, self._token, self._count)
        crash_point("journal.claim_recorded")
        found = {
            "token": self._token,
            "count": self._count,
            "holder": self.lease.holder,
            "at": self.store.now().isoformat(timespec="seconds"),
        }
        JournalFolder(self.uri).put(CLAIM, json.dumps(found).encode())

    @contextmanager
    def renewed(self, lose: Callable[[ReplicatorError], object]) -> Iterator[None]:
        """Renew the claim in a thread of its own while the block runs, and once more at its end.

        `lose` is called once, from that thread, when another worker has claimed the folder.
        """
        done = threading.Event()
        renewer = threading.Thread(target=self._keep, args=(lose, done), name="journal-claim", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            done.set()
            renewer.join(RENEW_S)

    def _keep(self, lose: Callable[[ReplicatorError], object], done: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(RENEW_S)
            try:
                self.renew()
            except FencedError:
                return  # capture meets it, too
            except TransientError as error:
                _log.info("journal_not_claimed", code=error.code, reason=error.message)
            except ReplicatorError as error:
                lose(error)
                return
            except Exception:  # noqa: BLE001 - the end of this thread would go unnoticed, and the next attempt may succeed
                _log.exception("journal_not_claimed")


def _read(content: bytes) -> _Found | None:
    """Parse a claim; None if the content is not one."""
    try:
        found = json.loads(content)
        return _Found(
            token=str(found["token"]), count=int(found["count"]), holder=str(found["holder"]), at=str(found["at"])
        )
    except (ValueError, KeyError, TypeError):
        return None
