"""Which transactions a read saw.

MySQL: of the GTIDs executed before the read began it saw all, of those that were neither executed nor being committed
once it had begun it saw none, and of the rest nobody can say. (A commit becomes visible before its GTID counts as
executed; in between it stands in `gtid_owned`.) No write is needed, and the order of commits does not matter.

MySQL without GTIDs: what stood in the log before a watermark of ours (see `watermark`) is visible once that has
committed; what comes behind the end of the log as it was once the read had begun was not; in between nobody can say. A
transaction's id is the file and the byte behind its first event: `binlog.000003:1234`.

MariaDB: a consistent snapshot names the exact place in the binary log up to which it saw everything. A transaction's id
therefore has its place behind its GTID: `0-1-55@3:1234`, file and byte. On a server that took over, whose files are
others, ids are compared by their GTIDs.

XA COMMIT is the exception: MariaDB writes it to the log first and commits in the engine some time later, so that a
snapshot may lie behind it and not see its rows (19 of 1,000 snapshots under four writers). Until the engine has done
so XA RECOVER lists the transaction. Its id therefore ends with its XA name, `0-1-55@3:1234;X'61',X'',1`, and it is
seen if it stood in the log before XA RECOVER was asked, before the snapshot, and is not listed; else, up to the
snapshot's place, nobody can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from replicator.plugins.source import Seen, Visibility
from replicator_source_mysql.connection import Connection, rows_of
from replicator_source_mysql.events import xid_text
from replicator_source_mysql.filepos import Place, file_number
from replicator_source_mysql.gtid import GtidPosition, GtidSet

_NAME_PART: Final = re.compile(r"X'([0-9A-Fa-f]+)'|'([^']*)'")
_EXECUTED: Final = "SELECT @@GLOBAL.gtid_owned, @@GLOBAL.gtid_executed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlVisibility(Visibility):
    """See the module.

    Attributes:
        before: Executed before the read.
        after: Executed, or being committed, once it had begun.
        delivered: What the log had handed out then; for `is_beyond` only.
    """

    before: GtidSet
    after: GtidSet
    delivered: GtidSet

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """See `Visibility`."""
        answers: dict[str, Seen] = {}
        for gtid in transaction_ids.unique().to_pylist():
            source, _, number = gtid.rpartition(":")
            if self.before.has(source, int(number)):
                answers[gtid] = Seen.SEEN
            else:
                answers[gtid] = Seen.UNKNOWN if self.after.has(source, int(number)) else Seen.UNSEEN
        return pa.array([int(answers[gtid]) for gtid in transaction_ids.to_pylist()], pa.int8())

    def is_beyond(self, earlier: Visibility) -> bool:
        """See `Visibility`. Who has not reached the log by then is in the log later."""
        assert isinstance(earlier, MysqlVisibility)
        return not self.unfinished(earlier)

    def unfinished(self, earlier: MysqlVisibility) -> GtidSet:
        """The GTIDs of then that are owned and not executed yet. One that is neither any more was rolled back."""
        of_then = earlier.after.union(earlier.delivered)
        return of_then.intersection(self.after).without(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVisibility(Visibility):
    """See the module. Ids are of the very server that was read: without GTIDs no other takes over.

    Attributes:
        before: Everything up to here was seen.
        after: Nothing behind here was seen.
    """

    before: Place
    after: Place

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """See `Visibility`."""
        answers = {text: int(self._judge(text)) for text in transaction_ids.unique().to_pylist()}
        return pa.array([answers[text] for text in transaction_ids.to_pylist()], pa.int8())

    def is_beyond(self, earlier: Visibility) -> bool:
        """See `Visibility`. Who has not reached the log by then is in the log later."""
        assert isinstance(earlier, FileVisibility)
        return self.before >= earlier.after

    def _judge(self, text: str) -> Seen:
        file, _, pos = text.rpartition(":")
        place = file_number(file), int(pos)
        if place <= self.before:
            return Seen.SEEN
        return Seen.UNKNOWN if place <= self.after else Seen.UNSEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbVisibility(Visibility):
    """See the module.

    Attributes:
        place: Everything up to here was seen, nothing behind it.
        end: The end of the log then; for `is_beyond` only.
        settled: The end of the log before the snapshot: which XA COMMIT stood there, `prepared` tells of.
        prepared: XA transactions that were prepared, or not yet committed by the engine, behind `settled` and before the snapshot.
        gtids: `place` by GTIDs; set where ids of another server's files have to be judged.
        settled_gtids: `settled` by GTIDs.
    """

    place: Place
    end: Place
    settled: Place
    prepared: frozenset[str] = frozenset()
    gtids: GtidPosition | None = None
    settled_gtids: GtidPosition | None = None

    def classify(self, transaction_ids: pa.StringArray) -> pa.Int8Array:
        """See `Visibility`."""
        answers = {text: int(self._judge(text)) for text in transaction_ids.unique().to_pylist()}
        return pa.array([answers[text] for text in transaction_ids.to_pylist()], pa.int8())

    def is_beyond(self, earlier: Visibility) -> bool:
        """See `Visibility`."""
        assert isinstance(earlier, MariadbVisibility)
        return min(self.place, self.settled) >= earlier.end

    def _judge(self, text: str) -> Seen:
        plain, _, xid = text.partition(";")
        if not self._is_within(plain, self.place, self.gtids):
            return Seen.UNSEEN
        if not xid or (xid not in self.prepared and self._is_within(plain, self.settled, self.settled_gtids)):
            return Seen.SEEN
        return Seen.UNKNOWN

    @staticmethod
    def _is_within(text: str, place: Place, gtids: GtidPosition | None) -> bool:
        gtid, _, where = text.partition("@")
        if gtids is not None:
            return gtid in gtids
        file, _, pos = where.partition(":")
        return (int(file), int(pos)) <= place


def file_id(file: str, pos: int) -> str:
    """The id of a transaction without a GTID: where its first event ended."""
    return f"{file}:{pos}"


def mariadb_id(gtid: str, place: Place) -> str:
    """A transaction's id: its GTID, and where its first event ended."""
    return f"{gtid}@{place[0]}:{place[1]}"


def xa_commit_id(id_: str, xid: str) -> str:
    """The id of a group that commits a prepared XA transaction, out of the group's own and the XA name (`xid_text`)."""
    return f"{id_};{xid}"


def prepared_xids(connection: Connection) -> frozenset[str]:
    """MariaDB: what XA RECOVER lists, as `xid_text` writes names; transactions being committed are among them."""
    return frozenset(
        xid_of_sql(int(format_id), int(gtrid_size), text)
        for format_id, gtrid_size, _, text in rows_of(connection, "XA RECOVER FORMAT='SQL'")
    )


def xid_of_sql(format_id: int, gtrid_size: int, text: str) -> str:
    """One spelling of a name that the server writes as one or two strings, plain or (`X'…'`) in hexadecimal digits."""
    raw = b"".join(bytes.fromhex(digits) if digits else plain.encode() for digits, plain in _NAME_PART.findall(text))
    return xid_text(raw[:gtrid_size], raw[gtrid_size:], format_id)


def executed_or_committing(connection: Connection) -> tuple[GtidSet, GtidSet]:
    """MySQL: the GTIDs that are executed, and those that are executed or being committed."""
    ((owned, executed),) = rows_of(connection, _EXECUTED)
    done = GtidSet.of(executed)
    return done, done.union(owned_gtids(owned))


def owned_gtids(text: str) -> GtidSet:
    """Read `gtid_owned`: GTIDs that are being committed, each with the threads behind a hash sign."""
    found = GtidSet()
    for gtid, _ in _owned(text):
        found = found.with_gtid(gtid)
    return found


def _owned(text: str) -> Iterator[tuple[str, str]]:
    """Each GTID with the threads that own it."""
    for part in filter(None, (p.strip() for p in text.replace("\n", "").split(","))):
        uuid, *rest = part.lower().split(":")
        source = uuid
        for piece in rest:
            number, hash_sign, thread = piece.partition("#")
            if hash_sign or number.isdigit():
                yield f"{source}:{int(number)}", thread
            else:
                source = f"{uuid}:{piece}"


def snapshot_gtids(connection: Connection, file: str, pos: int) -> GtidPosition:
    """MariaDB: a place in the log as GTIDs."""
    ((text,),) = rows_of(connection, "SELECT BINLOG_GTID_POS(%s, %s)", [file, pos])
    return GtidPosition.of(text or "")


def owners(connection: Connection, gtids: GtidSet) -> list[str]:
    """MySQL: which sessions own these GTIDs, for people."""
    if not gtids:
        return []
    ((owned,),) = rows_of(connection, "SELECT @@GLOBAL.gtid_owned")
    return [
        f"the transaction {gtid} of the session {thread}, which owns its GTID and has not committed it"
        for gtid, thread in _owned(owned)
        if gtid in gtids
    ]
