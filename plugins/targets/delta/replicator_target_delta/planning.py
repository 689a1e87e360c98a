"""Size and cost of tables as Delta tables, for `replicator plan`. Pure."""

from __future__ import annotations

from replicator.model.figures import product
from replicator.plugins.planning import TableCost, TableLoad


def table_cost(load: TableLoad) -> TableCost:
    """A table's size, and the bytes that its batches write.

    Data files are Parquet with the journal's compression. Other parts of a commit (its entry in the log, the marks of rows that are
    replaced) and the rewrites of upkeep are not counted.
    """
    return TableCost(
        bytes=product("rows times the size of a row of the sample as Parquet", load.rows, load.row_bytes),
        written_per_day=product(
            "changes times the size of a row of the sample as Parquet, without commits and upkeep",
            load.changes_per_day,
            load.row_bytes,
        ),
    )
