"""Conditions over a table's rows: a user's text comes in, a vectorised predicate with SQL's three-valued logic goes out.

`docs/conditions.md` is the grammar for users. Everything that takes a condition takes this one: `where`, snapshots of some rows and
subscriptions.
"""

from __future__ import annotations

from replicator.projection.condition.binding import BoundCondition
from replicator.projection.condition.syntax import Condition, ConditionError, Fault, conjunction, parse

__all__ = ["BoundCondition", "Condition", "ConditionError", "Fault", "conjunction", "parse"]
