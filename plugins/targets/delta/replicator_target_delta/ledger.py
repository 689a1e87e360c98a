"""The ledger: Delta's transaction identifiers, which also fence off older holders.

Each table's log holds, per ledger name (`<uuid>/<table>/<incarnation>`), one number: `epoch << 44 | last applied
sequence number + 1`. One is added because an empty ledger (-1) must
be recordable too. Delta skips a write whose number is not above the recorded one, and refuses the commit of one whose
ledger moved while it ran. So:

1. A new holder **claims**: it reads every commit of the table, and the next one, which is its own, records its
   epoch in its own ledger and in those of all older incarnations (`record_alone`).
2. From then on every data statement of an older epoch, of any incarnation, is skipped or refused, because each
   of them has an identifier that had to be claimed before.
3. A commit that cannot have an identifier compares epochs and incarnations at the version it commits on: moving the ledger
   alone likewise by `record_alone`; creating, replacing and dropping the table in an optimistic transaction.

A crash before the commit of any of them leaves nothing, after it everything. This module, `logstore` and `purge` use
Delta's private API (`OptimisticTransaction`, `DeltaLog`), by py4j.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from replicator.model.errors import TableError, TargetUnavailableError
from replicator.plugins.kit.ledger import Held, fenced, not_ours, set_back
from replicator.plugins.target import EMPTY_LEDGER, TargetTable
from replicator_target_delta.log.mapping import MAPPING_MODE, columns_property, fields_of
from replicator_target_delta.log.store import LogStore, commit, obstacle
from replicator_target_delta.log.table import COLUMNS, DROPPED, INCARNATION, STATE, UUID, DamagedLogError, read_log
from replicator_target_delta.scala import Scala
from replicator_target_delta.storage import Storage

_SEQUENCE_BITS: Final = 44
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
EPOCH_MAX: Final = (1 << 19) - 1

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_NOTE: Final = "spark.databricks.delta.commitInfo.userMetadata"
_AUTO_RESET: Final = "spark.databricks.delta.write.txnVersion.autoReset.enabled"
_ROW_NUMBERS: Final = "delta.rowTracking"
"""The domain that only Delta sets: the highest number of a row that a table has assigned."""
_DOLLAR: Final = "replicator.dollar"
_PUTS_MAX: Final = 10
"""Number of attempts. Each that fails means that another writer committed; Delta's transaction does not need to be the first."""


class Entry(NamedTuple):
    """An entry of a ledger: the epoch that wrote last, and the sequence number up to which the table has everything."""

    epoch: int
    last: int

    @property
    def version(self) -> int:
        """The entry as Delta keeps it."""
        assert 0 <= self.epoch <= EPOCH_MAX
        assert EMPTY_LEDGER <= self.last < _SEQUENCE_MASK
        return self.epoch << _SEQUENCE_BITS | (self.last + 1)

    @classmethod
    def of(cls, version: int | None) -> Entry | None:
        """Read an entry as Delta keeps it; None if there is none."""
        return None if version is None else cls(version >> _SEQUENCE_BITS, (version & _SEQUENCE_MASK) - 1)


class Look(Protocol):
    """The log of a table at one version, read here or by Spark."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def transactions(self) -> Mapping[str, int]:
        """The transaction identifiers, which are the ledgers, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The result of a claim: the ledgers to write, and the last sequence number of our own before."""

    records: Mapping[str, int]
    last: int


def plan_claim(
    table: TargetTable, transactions: Mapping[str, int], properties: Mapping[str, str], *, may_adopt: bool
) -> Claimed:
    """Decide what claiming a table records, from its log.

    Raises:
        FencedError: The table has a newer epoch, or a newer incarnation.
        TableError: `not_ours`.
    """
    owner = properties.get(UUID)
    if owner != table.uuid and not may_adopt:
        raise not_ours(table.table, owner, "target.path")
    records: dict[str, int] = {}
    if owner not in {None, table.uuid}:
        # The former holder of the table can no longer write here.
        for name, version in transactions.items():
            if name.startswith(f"{owner}/") and (before := Entry.of(version)):
                records[name] = Entry(EPOCH_MAX, before.last).version
    entries = entries_of(table, transactions)
    for incarnation, entry in entries.items():
        if entry.epoch == EPOCH_MAX:
            raise adopted(table)
        if entry.epoch > table.epoch or incarnation > table.incarnation:
            raise fenced(table, entry.epoch, incarnation)
        records[replace(table, incarnation=incarnation).ledger_name] = Entry(table.epoch, entry.last).version
    own = entries.get(table.incarnation)
    last = own.last if own else EMPTY_LEDGER
    records[table.ledger_name] = Entry(table.epoch, last).version
    changed = {name: version for name, version in records.items() if transactions.get(name) != version}
    return Claimed(records=changed, last=last)


def entries_of(table: TargetTable, transactions: Mapping[str, int]) -> Mapping[int, Entry]:
    """Entries of the table's ledgers of its uuid, by incarnation."""
    prefix = table.ledger_name.rpartition("/")[0] + "/"
    numbered = (
        (name.removeprefix(prefix), version) for name, version in transactions.items() if name.startswith(prefix)
    )
    return {int(number): entry for number, version in numbered if number.isdigit() and (entry := Entry.of(version))}


def exists(table: TargetTable, properties: Mapping[str, str]) -> bool:
    """Return whether the properties are those of the table in this incarnation."""
    return (
        properties.get(UUID) == table.uuid
        and properties.get(INCARNATION) == str(table.incarnation)
        and properties.get(STATE) != DROPPED
    )


def claim_lost(table: TargetTable) -> TargetUnavailableError:
    """The error where the table's log is not the one that we claimed: it is claimed again."""
    return TargetUnavailableError(
        "The table was recreated since this process claimed it.",
        code="target_busy",
        table=str(table.table),
        action="It is retried automatically.",
    )


def check_last(table: TargetTable, own: Entry | None, last: int | None) -> None:
    """Check that the table's ledger, if it is this epoch's, is at `last`, where this process left it; None: it does not know.

    Raises:
        TargetUnavailableError: It was set back: changes that were applied since are no longer there.
        FencedError: It is ahead. Only a second process with our lease could do that.
    """
    if last is None or own is None or own.epoch != table.epoch:
        return
    if own.last > last:
        raise fenced(table, own.epoch, table.incarnation)
    if own.last < last:
        raise set_back(table, own.last, last)


def adopted(table: TargetTable) -> TableError:
    """The error for a table that another replicator has taken over, and has not recreated yet."""
    return TableError(
        "Another replicator has taken the table over (its target.adopt: replace).",
        code="not_ours",
        table=str(table.table),
        action=(
            "Delete this replicator, or choose another target.path. Or delete the other one, move the table's folder away, and recreate "
            "the table: replicator snapshot NAME TABLE --recreate."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans of the ledger entries that commits of a table record. `may_adopt`: another replicator's table may be taken over."""

    may_adopt: bool

    def claim(self, table: TargetTable, log: Look) -> Claimed:
        """Plan a claim (`plan_claim`)."""
        return plan_claim(table, log.transactions, log.properties, may_adopt=self.may_adopt)

    def next(self, held: Held, log: Look) -> Claimed:
        """Plan the next commit of a table, which must still be ours to change."""
        table, claimed = held.table, self.claim(held.table, log)
        if claimed.last > held.last:
            own = Entry.of(log.transactions.get(table.ledger_name))
            if own is not None and own.epoch < table.epoch:
                # Created by an older epoch after we had claimed a path without a table.
                raise claim_lost(table)
            # A process of our own epoch applied something: only a second process with our lease could.
            raise fenced(table, table.epoch, table.incarnation)
        return claimed

    def move(self, held: Held, log: Look, sequence_num: int) -> Claimed:
        """Plan the next commit, with our own ledger at a number."""
        claimed = self.next(held, log)
        own = Entry(held.table.epoch, sequence_num).version
        return replace(claimed, records={**claimed.records, held.table.ledger_name: own})


def record_alone(
    session: Any, storage: Storage, path: str, plan: Callable[[Look], Claimed]
) -> tuple[Look, Claimed] | None:
    """Commit only the ledger entries that `plan` asks for; return the log they were planned from, None if there is no table.

    `plan` decides again after each commit of others that came first: what it has seen is all that the commit follows. Where the
    table is not one that `logstore` knows, or others are faster again and again, Delta's optimistic transaction commits.

    Raises:
        DamagedLogError: A commit is unreadable.
        Exception: Errors of `plan`; py4j's, if the commit failed.
    """
    for _ in range(_PUTS_MAX):
        try:
            log = read_log(storage, path)
        except (DamagedLogError, FileNotFoundError) as error:
            if isinstance(error, DamagedLogError) and error.version is not None:
                raise  # nobody can read it
            # Not understood here, or cleaned up between two looks: Spark reads it, or says why it cannot.
            break
        if log is None:
            return None
        claimed = plan(log)
        if not claimed.records:
            return log, claimed
        if obstacle(log) is not None:
            break
        now = int(time.time() * 1000)
        entries = [
            {"txn": {"appId": name, "version": version, "lastUpdated": now}}
            for name, version in claimed.records.items()
        ]
        if commit(LogStore(session, path), storage, path, log, entries, "Manual Update"):
            return log, claimed
    transaction = Transaction(session, path)
    if not transaction.exists:
        return None
    claimed = plan(transaction)
    if claimed.records:
        transaction.record(claimed.records)
    return transaction, claimed


@contextmanager
def identified(session: Any, table: TargetTable, last: int, note: str | None = None) -> Iterator[None]:
    """Give the one data statement inside the table's transaction identifier, so that data and ledger share a commit.

    `note` is written into the same commit.

    Should a second statement follow by mistake, Delta refuses it, because the version is taken away after the first.
    """
    session.conf.set(_AUTO_RESET, "true")
    # Spark resolves ${env:…} in the values of settings, and a table may be called so: its dollar is a reference, too.
    session.conf.set(_DOLLAR, "$")
    session.conf.set(_APP_ID, table.ledger_name.replace("${", f"${{{_DOLLAR}}}{{"))
    session.conf.set(_VERSION, str(Entry(table.epoch, last).version))
    if note is not None:
        session.conf.set(_NOTE, note)
    try:
        yield
    finally:
        session.conf.unset(_NOTE)
        session.conf.unset(_APP_ID)
        session.conf.unset(_VERSION)


class Transaction:
    """One optimistic transaction on a table's log: its commit depends on everything that it reads.

    Args:
        session: A SparkSession.
        path: The table's path; a table need not exist.
    """

    def __init__(self, session: Any, path: str) -> None:
        self._scala = Scala(session)
        self._delta = self._scala.delta
        self._path = path
        # There is no public way to an optimistic transaction.
        self._log = self._delta.DeltaLog.forTable(session._jsparkSession, path)  # noqa: SLF001
        self._txn = self._log.startTransaction()
        self.exists: bool = self._txn.readVersion() >= 0
        self.properties: dict[str, str] = self._scala.map(self._txn.metadata().configuration()) if self.exists else {}
        self.transactions: dict[str, int] = self._scala.map(self._txn.snapshot().transactions()) if self.exists else {}

    def record(self, ledgers: Mapping[str, int]) -> None:
        """Commit nothing but ledger entries.

        Raises:
            Exception: py4j's, if one of the ledgers or the table's properties changed meanwhile.
        """
        self._commit([], ledgers)

    def replace(
        self,
        template: str,
        session: Any,
        ledgers: Mapping[str, int],
        files: Sequence[Mapping[str, Any]] = (),
        note: str | None = None,
    ) -> None:
        """Replace the table, or create it, with the shape of the one at `template`; its rows are those of `files`.

        Its old rows are removed by the same commit: readers see the old table or the new one.

        Args:
            template: The path of a table.
            session: A SparkSession.
            ledgers: The entries to record.
            files: Actions of the log that add data files.
            note: Additional text of the commit (`userMetadata`).
        """
        if self.exists and self.properties.get(MAPPING_MODE, "none") == "none":
            self._map_columns(session)
        java_session = session._jsparkSession  # noqa: SLF001
        shape = self._delta.DeltaLog.forTable(java_session, template).update(
            False, self._scala.none(), self._scala.none()
        )
        new = shape.metadata()
        actions = [file.remove() for file in self._scala.list(self._txn.filterFiles())] if self.exists else []
        found = {domain.domain(): domain for domain in self._scala.list(shape.domainMetadata())}
        domains = {name: domain for name, domain in found.items() if name != _ROW_NUMBERS}
        if self.exists:
            old = self._txn.metadata()
            self._txn.updateProtocol(self._txn.protocol().merge(self._scala.seq([shape.protocol()])))
            self._txn.updateMetadataForTableOverwrite(self._changed(new, old.id(), self._with_columns(new)))
            actions += [
                self._delta.actions.DomainMetadata(domain.domain(), domain.configuration(), True)
                for domain in self._scala.list(self._txn.snapshot().domainMetadata())
                if domain.domain() not in {*domains, _ROW_NUMBERS} and not domain.removed()
            ]
        else:
            # In this order: the metadata of a new table would set the protocol to the least that it needs itself.
            self._txn.updateMetadataForNewTable(self._changed(new, new.id(), self._with_columns(new)))
            self._txn.updateProtocol(shape.protocol())
        actions += [self._scala.action(file) for file in files]
        if note is not None:
            session.conf.set(_NOTE, note)
        try:
            self._commit([*actions, *domains.values()], ledgers)
        finally:
            session.conf.unset(_NOTE)

    def _map_columns(self, session: Any) -> None:
        """Map the columns that are there by name, in a commit before: Delta does not do it in the one that replaces them."""
        session.sql(
            f"ALTER TABLE delta.`{self._path.replace('`', '``')}` SET TBLPROPERTIES ('{MAPPING_MODE}' = 'name')"
        )
        self._txn = self._log.startTransaction()
        if self._scala.map(self._txn.snapshot().transactions()) != self.transactions:
            raise TargetUnavailableError(
                "Another process wrote to the table at the same moment.",
                code="target_busy",
                action="It is retried automatically.",
            )

    def empty(self, properties: Mapping[str, str], ledgers: Mapping[str, int]) -> None:
        """Remove every row and change properties."""
        old = self._txn.metadata()
        immutable = self._scala.immutable_map({**self.properties, **properties})
        self._txn.updateMetadata(self._changed(old, old.id(), immutable), False)
        self._commit([file.remove() for file in self._scala.list(self._txn.filterFiles())], ledgers)

    def _commit(self, actions: Sequence[Any], ledgers: Mapping[str, int]) -> None:
        now = self._scala.some(self._scala.jvm.System.currentTimeMillis())
        for name in {*self.transactions, *ledgers}:
            # Reading a ledger is what makes a concurrent change of it a conflict.
            self._txn.txnVersion(name)
        entries = [self._delta.actions.SetTransaction(name, version, now) for name, version in ledgers.items()]
        operation = self._scala.object(self._delta.DeltaOperations, "ManualUpdate")
        self._txn.commit(self._scala.seq([*actions, *entries]), operation)

    def _with_columns(self, new: Any) -> Any:
        """The properties of a table that was made for this, with those that mark all its columns as ours."""
        fields = fields_of({"schemaString": new.schemaString()})
        return self._scala.immutable_map({COLUMNS: columns_property(fields), **self._scala.map(new.configuration())})

    def _changed(self, metadata: Any, table_id: str, configuration: Any) -> Any:
        return metadata.copy(
            table_id,
            metadata.name(),
            metadata.description(),
            metadata.format(),
            metadata.schemaString(),
            metadata.partitionColumns(),
            configuration,
            metadata.createdTime(),
        )
