"""The scripts that change a table and its ledger together, as text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from replicator.model.events import IS_DELETED, ROW, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.merged import Merged
from replicator.plugins.target import Batch
from replicator_target_bigquery import reduce
from replicator_target_bigquery.names import quoted, text
from replicator_target_bigquery.shape import Shape


def transaction(guard: str, body: Sequence[str], move: str) -> str:
    """Return one transaction: the guard first, so that a writer who was replaced changes nothing, and the ledger last.

    There is no handler: an error rolls everything back and is the script's outcome.
    """
    parts = ["BEGIN TRANSACTION", guard, *body, move, "COMMIT TRANSACTION"]
    return ";\n".join(part.strip() for part in parts) + ";"


def batch_statements(
    shape: Shape, target: str, staging: str, batch: Batch, count: Callable[[str], str], within: str | None = None
) -> Sequence[str]:
    """Return statements that apply a staged batch to the target, and count what it finds there.

    The fold is kept in a temporary table, so that it is made once for both.

    Args:
        shape: The table's shape.
        target: Its path.
        staging: Path of the staging table.
        batch: The batch that is staged there.
        count: Makes the statement that notes the counts of a query (`ledger.count`).
        within: A condition on the target's row `t` that holds for every row that the batch can touch; literals in it
            spare the MERGE, and its join for origin keys, the other partitions.
    """
    if batch.is_append:
        return [count(appended(staging, batch.skip_to)), append(shape, target, staging, batch.skip_to)]
    folded = folded_table(staging)
    first: list[str] = []
    if not shape.key:
        fold = reduce.multiset(shape, staging, batch.skip_to, target)
        found, merged = multiset_found(folded), multiset_merge(shape, target, f"SELECT * FROM {folded}")
    else:
        if not batch.has_absent:
            fold = reduce.whole_rows(shape, staging, batch.skip_to, has_key_changes=batch.has_key_changes)
        else:
            fold = reduce.partial_rows(
                shape, staging, batch.skip_to, target, has_key_changes=batch.has_key_changes, within=within
            )
            first = [reduce.chains(shape, staging, batch.skip_to)] if batch.has_key_changes else []
        source = f"SELECT * FROM {folded}"
        found = keyed_found(shape, target, folded, within)
        merged = merge(shape, target, source, has_absent=batch.has_absent, within=within)
    if not batch.expects_rows:
        found = f"SELECT * REPLACE (0 AS not_found) FROM ({found})"
    return [*first, f"CREATE TEMP TABLE IF NOT EXISTS {folded} AS\n{fold.strip()}", count(found), merged]


def folded_table(staging: str) -> str:
    """Return the name of the temporary table that holds a folded batch."""
    return f"replicator_folded_{hashlib.sha256(staging.encode()).hexdigest()[:16]}"


def keyed_found(shape: Shape, target: str, folded: str, within: str | None = None) -> str:
    """Return a query of one row: what a folded batch finds in a table with a key. Reads the target's key."""
    own = [c.in_target("t") for c in shape.key] + [f"t.{quoted(SEQUENCE_NUM)}"]
    own += [f"t.{quoted(IS_DELETED)}"] if shape.is_soft else []
    rows = f"SELECT {', '.join(own)} FROM {quoted(target)} AS t" + (f" WHERE {within}" if within is not None else "")
    on = " AND ".join(f"{c.in_target('t')} = s.k{i}" for i, c in enumerate(shape.key))
    there = f"t.{quoted(SEQUENCE_NUM)} IS NOT NULL"
    if shape.is_soft:
        counts = [f"COUNTIF({there})", f"COUNTIF(NOT {there} AND s.has_row)", "0"]
        there = f"{there} AND NOT t.{quoted(IS_DELETED)}"
    else:
        counts = [f"COUNTIF({there} AND {n} s.removed)" for n in ("NOT", "")]
        counts.insert(1, f"COUNTIF(NOT {there} AND NOT s.removed)")
    counts.append(f"COUNTIF(s.expected AND NOT COALESCE({there}, FALSE))")
    return f"SELECT {_counted(counts)} FROM {folded} AS s LEFT JOIN ({rows}) AS t ON {on}"


def multiset_found(folded: str) -> str:
    """Return the same for a table without a key."""
    counts = ["0", "COUNTIF(NOT removed)", "COUNTIF(removed AND n IS NOT NULL)", "COALESCE(SUM(missing), 0)"]
    return f"SELECT {_counted(counts)} FROM {folded}"


def appended(staging: str, skip_to: int) -> str:
    """Return the same for rows that are appended."""
    return f"SELECT {_counted(['0', 'COUNT(*)', '0', '0'])} FROM {quoted(staging)} WHERE {SEQUENCE_NUM} > {skip_to}"


def merge(shape: Shape, target: str, source: str, *, has_absent: bool, within: str | None = None) -> str:
    """Return a `MERGE` of a folded batch into a table with a key; `within` as in `batch_statements`.

    There is no guard on `_sequence_num`: the ledger alone decides what is applied, and a guard would hide mistakes.
    """
    same = [f"{c.in_target('t')} = s.k{i}" for i, c in enumerate(shape.key)]
    on = " AND ".join([*same, within] if within is not None else same)
    values = {quoted(c.name): f"s.f{c.index}" for c in shape.others}
    inserted = {quoted(c.name): f"s.k{i}" for i, c in enumerate(shape.key)} | values
    if has_absent:
        # A row that is marked as deleted is no row to take columns from.
        kept = "IF(t.{d}, NULL, {c})" if shape.is_soft else "{c}"
        values = {
            quoted(c.name): f"IF(s.s{c.index}, s.f{c.index}, {kept.format(d=quoted(IS_DELETED), c=c.in_target('t'))})"
            for c in shape.others
        }
    marks = _marks(shape, removed="s.removed")
    if shape.is_soft:
        removal = f"WHEN MATCHED AND NOT s.has_row THEN UPDATE SET {_assignments(marks)}"
        missing = "WHEN NOT MATCHED AND s.has_row"
    else:
        removal = "WHEN MATCHED AND s.removed THEN DELETE"
        missing = "WHEN NOT MATCHED AND NOT s.removed"
    return f"""
MERGE INTO {quoted(target)} AS t USING ({source}
) AS s ON {on}
{removal}
WHEN MATCHED THEN UPDATE SET {_assignments(values | marks)}
{missing} THEN {_insert(inserted | marks)}"""


def multiset_merge(shape: Shape, target: str, source: str) -> str:
    """Return a `MERGE` of the rows that a table without a key gains and loses, told apart by their numbers."""
    inserted = {quoted(c.name): f"s.f{c.index}" for c in shape.columns} | _marks(shape, removed="FALSE")
    return f"""
MERGE INTO {quoted(target)} AS t USING ({source}
) AS s ON t.{quoted(SEQUENCE_NUM)} = s.n
WHEN MATCHED AND s.removed THEN DELETE
WHEN NOT MATCHED AND NOT s.removed THEN {_insert(inserted)}"""


def append(shape: Shape, target: str, staging: str, skip_to: int) -> str:
    """Return an `INSERT` of complete rows that the target does not have."""
    columns = [quoted(c.name) for c in shape.columns] + [quoted(SEQUENCE_NUM)]
    values = [c.of(quoted(ROW)) for c in shape.columns] + [SEQUENCE_NUM]
    if shape.is_soft:
        columns.append(quoted(IS_DELETED))
        values.append("FALSE")
    if shape.options.source_timestamp:
        columns.append(quoted(SOURCE_TIMESTAMP))
        values.append(SOURCE_TIMESTAMP)
    return (
        f"INSERT INTO {quoted(target)} ({', '.join(columns)})"
        f" SELECT {', '.join(values)} FROM {quoted(staging)} WHERE {SEQUENCE_NUM} > {skip_to}"
    )


def replaced_by(
    target: str,
    source: str,
    *,
    labels: Mapping[str, str],
    description: str | None,
    kms_key: str | None,
    is_replaceable: bool,
) -> str:
    """Return a script that replaces a table by another one, columns, layout and rows; BigQuery charges nothing for it.

    Properties that might not be copied are set again. A table that is not replaceable is dropped first.
    """
    options = {"labels": f"[{', '.join(f'({text(k)}, {text(v)})' for k, v in sorted(labels.items()))}]"}
    if description:
        options["description"] = text(description)
    if kms_key is not None:
        options["kms_key_name"] = text(kms_key)
    listed = ", ".join(f"{name} = {value}" for name, value in options.items())
    first = "" if is_replaceable else f"DROP TABLE IF EXISTS {quoted(target)};\n"
    return f"{first}CREATE OR REPLACE TABLE {quoted(target)} COPY {quoted(source)} OPTIONS({listed})"


def add_primary_key(target: str, columns: Sequence[str]) -> str:
    """Return the statement that tells BigQuery of the key."""
    return f"ALTER TABLE {quoted(target)} ADD PRIMARY KEY ({', '.join(quoted(c) for c in columns)}) NOT ENFORCED"


def everything(target: str, at: str | None = None) -> str:
    """Return a query of all columns and rows, now or at a moment of the table's history, in GoogleSQL."""
    return f"SELECT * FROM {quoted(target)}" + ("" if at is None else f" FOR SYSTEM_TIME AS OF {at}")


def fill(target: str, values: Mapping[str, str]) -> str:
    """Return the statement that gives every row the same values, GoogleSQL by column."""
    return f"UPDATE {quoted(target)} SET {_assignments({quoted(n): value for n, value in values.items()})} WHERE TRUE"


def clear(shape_is_soft: bool, target: str, sequence_num: int, below: int | None = None) -> str:
    """Return the statement that deletes (soft: marks) every row, or every row with a number below `below`."""
    condition = "TRUE" if below is None else f"{quoted(SEQUENCE_NUM)} < {below}"
    if shape_is_soft:
        return (
            f"UPDATE {quoted(target)} SET {quoted(IS_DELETED)} = TRUE, {quoted(SEQUENCE_NUM)} = {sequence_num}"
            f" WHERE NOT {quoted(IS_DELETED)} AND {condition}"
        )
    if below is None:
        # Costs nothing, unlike DELETE.
        return f"TRUNCATE TABLE {quoted(target)}"
    return f"DELETE FROM {quoted(target)} WHERE {condition}"


def _counted(values: Sequence[str]) -> str:
    names = [f.name for f in fields(Merged)]
    return ", ".join(f"{value} AS {name}" for value, name in zip(values, names, strict=True))


def _marks(shape: Shape, *, removed: str) -> dict[str, str]:
    marks = {quoted(SEQUENCE_NUM): "s.n"}
    if shape.options.source_timestamp:
        marks[quoted(SOURCE_TIMESTAMP)] = "s.moment"
    if shape.is_soft:
        marks[quoted(IS_DELETED)] = removed
    return marks


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in values.items())


def _insert(values: dict[str, str]) -> str:
    return f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
