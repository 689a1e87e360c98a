"""The columns of a table that are ours, as the ledger has them: `kit.columns` compares them with those that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence

from replicator.model.naming import folded
from replicator.plugins.kit.columns import OWN, Made
from replicator_target_bigquery.shape import ColumnShape


def recorded(found: Made, held: Sequence[ColumnShape]) -> str:
    """The columns of a table that are ours, as the ledger has them.

    Args:
        found: All of them.
        held: Those that are the source's, or were.
    """
    names = {folded(column.name) for column in held} | {*OWN}
    return json.dumps([list(column) for column in found if folded(column[0]) in names])
