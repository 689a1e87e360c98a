"""Proof by a target's ledger that the state store was restored from an older backup. Pure.

Numbers are assigned again after such a restore: the target would take new changes for applied ones. In an unbroken history the store knows
every incarnation and epoch before they claim the table, and a worker that applies holds the lease after reading what it applies
(`docs/adr/0011-a-ledger-is-compared-before-it-is-claimed.md`).
"""

from __future__ import annotations

from replicator.plugins.target import Ledger
from replicator.state.records import AppliedRecord


def proof(found: Ledger, record: AppliedRecord, *, newest: int, sealed_by: int | None) -> str | None:
    """Return what the target knows that the state store should know and does not; None if nothing.

    Args:
        found: The target's ledger of the table.
        record: The table's record in the state store.
        newest: The journal's last number.
        sealed_by: The newest epoch that assigned numbers up to the ledger's; None if the journal has none of them any more.
    """
    number, epoch, claimed_by = found.last_applied, found.epoch, record.claimed_by
    if found.incarnation < record.incarnation:
        return None
    if found.incarnation > record.incarnation:
        return f"holds incarnation {found.incarnation} of the table, which is unknown to this state store"
    if number > newest:
        return f"has applied number {number}, and the journal ends at {newest}"
    if epoch > claimed_by:
        return f"was written by epoch {epoch}, which never claimed the table according to this state store"
    if sealed_by is not None and sealed_by > epoch:
        return f"has applied number {number} under epoch {epoch}, but epoch {sealed_by} assigned lower numbers"
    return None
