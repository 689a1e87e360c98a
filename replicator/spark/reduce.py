"""Folds a batch of changes to one change per key, in DataFrames: no UDF, nothing passes through the driver row by row.

A **touch** is the effect of a change on one key: it writes a row there, or it takes the row away. An UPDATE that changes
the key takes the row from the old key and then writes it at the new one; both touches share the change's number. A
**life** is the history of a row at one key from one beginning to the next: it begins with a write that carries the
whole row, with an arrival from another key, or with the first write of a batch. An arrival that lacks columns
continues the life it came from: lives joined that way are a **chain**, and a chain is one row of the source on its
way through keys. Columns are folded along the chain, the last value sent wins, and what is still missing at its end
stands in the target at the key where the chain began: its **origin**.

`_sequence_num` must be unique; the two touches of a change are ordered take before write. Keys are compared as exact
bytes.

The source's columns are inside structs wherever a frame has columns of ours, because they may be called like
them. What reads the target's own columns renames them before it joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it
from pyspark.sql import types as T  # noqa: N812

from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
    DMLOperation,
)
from replicator.plugins.target import Batch, TableOptions

KEY: Final = "key"
IS_REMOVED: Final = "is_removed"
SENT: Final = "sent"
ORIGIN: Final = "origin"
REMOVES: Final = "removes"
EXPECTS: Final = "expects"

_ORDER = "_order"
_FIRST = "_first"
_LIFE = "_life"
_ROOT = "_root"
_TOUCH = "_touch"


def net_changes(changes: DataFrame, batch: Batch, options: TableOptions) -> DataFrame:
    """Fold a batch of a table with a key to its net changes: Spark's executor of what `kit.folding.arrow.net_changes` does in Arrow.

    Args:
        changes: The batch's changes as `read_changes` returns them.
        batch: The batch.
        options: Options of the table.

    Returns:
        As `reduce_partial_rows`; without `sent` and `origin` if every row of the batch is whole (`Batch.has_absent`).
    """
    key, fields = batch.schema.key_fields, [batch.schema.fields[column.name] for column in batch.schema.columns]
    if batch.has_absent:
        return reduce_partial_rows(changes, key, fields, has_key_changes=batch.has_key_changes)
    is_soft = options.deletes == "soft"
    return reduce_whole_rows(changes, key, has_key_changes=batch.has_key_changes, keep_removed=is_soft)


def reduce_whole_rows(
    changes: DataFrame, key: Sequence[str], *, has_key_changes: bool, keep_removed: bool
) -> DataFrame:
    """Keep the last change of each key of a batch in which every row carries all its columns.

    Args:
        changes: Changes as `read_changes` returns them.
        key: Fields of the key, in key order.
        has_key_changes: Some UPDATE may change its key.
        keep_removed: Give the last row of keys that end without one, for soft deletes.

    Returns:
        One row per key: `key` (struct), `is_removed`, `_sequence_num`, `_source_timestamp`, `row` (null if the batch has
        none to give), `expects` (the key's first change tells that the target has a row there).

    Replay: same rows in, same rows out. Cost: one shuffle by key.
    """
    touches = _touches(changes, key, has_key_changes=has_key_changes)
    last_row = F.max_by(ROW, _ORDER)
    if keep_removed:
        # The order is null where nothing is written: max_by leaves those out.
        last_row = F.max_by(F.col(ROW), F.when(~F.col(IS_REMOVED), F.col(_ORDER)))
    return touches.groupBy(KEY).agg(
        F.max_by(IS_REMOVED, _ORDER).alias(IS_REMOVED),
        F.max(SEQUENCE_NUM).alias(SEQUENCE_NUM),
        F.max_by(SOURCE_TIMESTAMP, _ORDER).alias(SOURCE_TIMESTAMP),
        last_row.alias(ROW),
        F.min_by(EXPECTS, _ORDER).alias(EXPECTS),
    )


def reduce_partial_rows(
    changes: DataFrame, key: Sequence[str], fields: Sequence[str], *, has_key_changes: bool
) -> DataFrame:
    """Fold the changes of each key column by column, where some rows lack columns.

    A write that carries the whole row, and every INSERT that is not a partial snapshot row, starts again. A partial
    write adds to what the batch has so far at its key (a key-changing one: at its old key); if a row was taken away
    there before, to nothing; and if the batch did not touch the key before, to the target's row.

    Args:
        changes: Changes as `read_changes` returns them.
        key: Fields of the key, in key order.
        fields: All fields of `row`.
        has_key_changes: Some UPDATE may change its key.

    Returns:
        One row per key: `key`, `is_removed`, `_sequence_num`, `_source_timestamp`, `row` (null if the batch writes
        nothing there; of a removed key: the last row), `sent` (struct of booleans, one per field: the value
        stands in `row`), `origin` (struct like `key`: the row of the target, as it was before the batch, that has
        what was not sent; null: all of it stands in `row`), `expects` (as in `reduce_whole_rows`).

    Replay: same rows in, same rows out. Cost: one shuffle by key; runs one small job if keys may change, and a few
        more, with two more shuffles, if one of these changes lacks columns.
    """
    touches = _touches(changes, key, has_key_changes=has_key_changes, fields=fields)
    by_key = Window.partitionBy(KEY).orderBy(_ORDER)
    wrote_before = F.lag(~F.col(IS_REMOVED)).over(by_key)
    is_write = ~F.col(IS_REMOVED)
    begins = is_write & (F.col("_is_whole") | F.col("_is_arrival") | wrote_before.isNull() | ~wrote_before)
    lives = (
        touches.withColumn("_wrote_before", wrote_before)
        .withColumn("_begins", begins)
        .withColumn(_LIFE, F.last(F.when(F.col("_begins"), F.col(SEQUENCE_NUM)), ignorenulls=True).over(by_key))
    )
    folded = _fold_lives(lives, fields)
    is_partial_move = (F.col(OPERATION) == DMLOperation.UPDATE.value) & _changes_key(key) & (F.size(ABSENT) > 0)
    if has_key_changes and not changes.where(is_partial_move).isEmpty():
        folded = _join_chains(folded, _chains(lives), fields)
    last = folded.groupBy(KEY).agg(
        F.max_by(F.struct(*[c for c in folded.columns if c != KEY]), _ORDER).alias("_last"),
        F.min_by(EXPECTS, _FIRST).alias(EXPECTS),
    )
    # Without an origin there is nowhere to look further: what was not sent is NULL.
    sent = F.struct(
        *[(F.col(f"_last.{SENT}.{name}") | F.col(f"_last.{ORIGIN}").isNull()).alias(name) for name in fields]
    )
    names = [IS_REMOVED, SEQUENCE_NUM, SOURCE_TIMESTAMP, ROW, ORIGIN]
    return last.select(KEY, *[F.col(f"_last.{name}").alias(name) for name in names], sent.alias(SENT), EXPECTS)


def fill_from_origin(reduced: DataFrame, target: DataFrame, key: Sequence[str], fields: Sequence[str]) -> DataFrame:
    """Fill the columns that a moved row lacks from the target's row at its origin.

    Args:
        reduced: The result of `reduce_partial_rows`.
        target: The rows that the target holds before the batch: one column per field, under its name in `row`.
            Soft-deleted rows left out.
        key: Fields of the key, in key order.
        fields: All fields of `row`.

    Returns:
        `reduced` without `origin` and with `sent` true everywhere except where the value stands in the target under the
        row's own key.
    """
    moved = F.col(ORIGIN).isNotNull() & ~F.col(ORIGIN).eqNullSafe(F.col(KEY))
    origins = reduced.where(moved).select(F.col(ORIGIN).alias("_wanted")).distinct()
    # A column of the table may have the name of one of ours: here they go by their index.
    numbered = target.select(*[F.col(_quote(name)).alias(f"f{i}") for i, name in enumerate(fields)])
    held = {name: F.col(f"f{i}") for i, name in enumerate(fields)}
    wanted_key = F.struct(*[F.col(f"_wanted.{name}").alias(name) for name in key])
    same = [held[name] == F.col(f"_wanted.{name}") for name in key]
    found = numbered.join(F.broadcast(origins), _all(same)).select(
        wanted_key.alias("_found"), F.struct(*[held[name].alias(name) for name in fields]).alias("_there")
    )
    joined = reduced.join(found, moved & (F.col(ORIGIN) == F.col("_found")), "left")
    row = F.struct(
        *[
            F.when(F.col(f"{SENT}.{name}"), F.col(f"{ROW}.{name}")).when(moved, F.col(f"_there.{name}")).alias(name)
            for name in fields
        ]
    )
    sent = F.struct(*[(F.col(f"{SENT}.{name}") | moved).alias(name) for name in fields])
    return joined.select(
        KEY,
        IS_REMOVED,
        SEQUENCE_NUM,
        SOURCE_TIMESTAMP,
        F.when(F.col(ROW).isNotNull(), row).alias(ROW),
        sent.alias(SENT),
        EXPECTS,
    )


def reduce_multiset(changes: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Balance inserts and deletes of each distinct row, for tables without a key.

    Equal rows are a stack: a delete removes the row with the highest number, as a plain replay would if it took the
    last one in. That matters while an in-place snapshot runs, where only copies above its start number are to
    survive.

    Args:
        changes: Changes as `read_changes` returns them; `before` has every column.
        fields: All fields of `row`.

    Returns:
        `_sequence_num`, `_source_timestamp`, `row`, `removes`. Where `removes` is 0: a row to insert, under its own
        number. Otherwise: the number of copies of `row` that the target loses, those with the highest numbers.

    Replay: same rows in, same rows out. Cost: one shuffle by row.
    """
    absent = F.coalesce(F.col(ABSENT), F.array().cast(T.ArrayType(T.StringType())))
    # A column that was not sent is the same as before.
    row = F.struct(
        *[
            F.when(F.array_contains(absent, name), F.col(f"{BEFORE}.{name}"))
            .otherwise(F.col(f"{ROW}.{name}"))
            .alias(name)
            for name in fields
        ]
    )
    removed = F.struct(F.lit(0).alias("half"), F.lit(-1).alias("step"), F.col(BEFORE).alias(ROW))
    added = F.struct(F.lit(1).alias("half"), F.lit(1).alias("step"), row.alias(ROW))
    operation = F.col(OPERATION)
    touches = (
        F.when(operation == DMLOperation.INSERT.value, F.array(added))
        .when(operation == DMLOperation.DELETE.value, F.array(removed))
        .otherwise(F.array(removed, added))
    )
    steps = changes.select(SEQUENCE_NUM, SOURCE_TIMESTAMP, F.explode(touches).alias(_TOUCH)).select(
        SEQUENCE_NUM,
        SOURCE_TIMESTAMP,
        F.col(f"{_TOUCH}.step").alias("_step"),
        F.col(f"{_TOUCH}.{ROW}").alias(ROW),
        _order(f"{_TOUCH}.half"),
    )
    same_row = Window.partitionBy(*row_identity(steps, ROW, fields))
    in_order = same_row.orderBy(_ORDER)
    height = F.sum("_step").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    heights = steps.withColumn("_height", height)
    lowest_after = F.min("_height").over(in_order.rowsBetween(1, Window.unboundedFollowing))
    removes = -F.least(F.lit(0), F.min("_height").over(same_row))
    balanced = heights.select(
        "*",
        lowest_after.alias("_lowest_after"),
        removes.alias("_removes"),
        F.row_number().over(in_order).alias("_number"),
    )
    is_insert = (F.col("_step") == 1) & (F.col("_lowest_after").isNull() | (F.col("_lowest_after") >= F.col("_height")))
    is_removal = (F.col("_number") == 1) & (F.col("_removes") > 0)
    output = F.concat(
        F.when(is_insert, F.array(F.lit(0).cast("bigint"))).otherwise(F.array().cast("array<bigint>")),
        F.when(is_removal, F.array(F.col("_removes").cast("bigint"))).otherwise(F.array().cast("array<bigint>")),
    )
    return balanced.select(SEQUENCE_NUM, SOURCE_TIMESTAMP, ROW, F.explode(output).alias(REMOVES))


def row_identity(frame: DataFrame, prefix: str | None, fields: Sequence[str]) -> list[Column]:
    """Return expressions that are equal (null-safe) exactly for rows with the same bits.

    Floats are compared as text, because Spark takes -0.0 for 0.0, and they are two values to the source.

    Args:
        frame: The frame with the columns.
        prefix: The struct that holds them; None: they are columns of their own.
        fields: Names of the columns.
    """
    names = {name: f"{prefix}.{_quote(name)}" if prefix else _quote(name) for name in fields}
    types = {name: frame.select(names[name]).schema[0].dataType for name in fields}
    return [_exact(F.col(names[name]), types[name]) for name in fields]


def _touches(
    changes: DataFrame, key: Sequence[str], *, has_key_changes: bool, fields: Sequence[str] | None = None
) -> DataFrame:
    """Return the effect of each change on each key: `key`, `_order`, `is_removed`, number, time, `row`, `expects` (it expects a row there).

    With `fields` also `_is_whole`, `_is_arrival` and `_sent`.
    """
    is_delete = F.col(OPERATION) == DMLOperation.DELETE.value
    before_key = _key(BEFORE, key)
    # An unchanged key column may be absent, too long to be sent again: the old key then has it.
    row_key = F.struct(*[F.coalesce(F.col(f"{ROW}.{name}"), F.col(f"{BEFORE}.{name}")).alias(name) for name in key])
    columns: list[Column] = [F.col(SEQUENCE_NUM), F.col(SOURCE_TIMESTAMP), F.col(ROW)]
    if fields is not None:
        lacks = F.coalesce(F.size(ABSENT), F.lit(0)) > 0
        is_partial = lacks & ((F.col(OPERATION) == DMLOperation.UPDATE.value) | F.col(IS_SNAPSHOT))
        sent = F.struct(*[(~is_partial | ~F.array_contains(ABSENT, name)).alias(name) for name in fields])
        columns += [(~is_partial).alias("_is_whole"), sent.alias("_sent")]
    # A row that a snapshot read does not tell what was there.
    is_logged = ~F.coalesce(F.col(IS_SNAPSHOT), F.lit(False))
    is_update = F.col(OPERATION) == DMLOperation.UPDATE.value
    taken = F.struct(
        before_key.alias(KEY),
        F.lit(0).alias("half"),
        F.lit(True).alias("removed"),
        F.lit(False).alias("arrives"),
        is_logged.alias("expects"),
    )
    written = F.struct(
        row_key.alias(KEY),
        F.lit(1).alias("half"),
        F.lit(False).alias("removed"),
        F.lit(False).alias("arrives"),
        (is_logged & is_update).alias("expects"),
    )
    if has_key_changes:
        # Taken away by a move, not by a DELETE: told apart by `arrives`, on both halves.
        arrival = written.withField("arrives", F.lit(True)).withField("expects", F.lit(False))
        moved = F.array(taken.withField("arrives", F.lit(True)), arrival)
        touch = F.explode(
            F.when(is_delete, F.array(taken)).when(is_update & _changes_key(key), moved).otherwise(F.array(written))
        )
    else:
        touch = F.when(is_delete, taken).otherwise(written)
    touches = changes.select(*columns, touch.alias(_TOUCH))
    removed = F.col(f"{_TOUCH}.removed")
    return touches.select(
        F.col(f"{_TOUCH}.{KEY}").alias(KEY),
        removed.alias(IS_REMOVED),
        SEQUENCE_NUM,
        SOURCE_TIMESTAMP,
        F.when(~removed, F.col(ROW)).alias(ROW),
        _order(f"{_TOUCH}.half"),
        F.col(f"{_TOUCH}.expects").alias(EXPECTS),
        *(["_is_whole", "_sent"] if fields is not None else []),
        *([(F.col(f"{_TOUCH}.arrives") & ~F.col("_is_whole")).alias("_is_arrival")] if fields is not None else []),
    )


def _fold_lives(lives: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return one row per key and life: the last value sent of each field, and the key where the life began.

    Touches of a key before its first life form one without a row.
    """
    is_write = ~F.col(IS_REMOVED)

    def last_sent(name: str) -> Column:
        return F.max_by(F.col(f"{ROW}.{name}"), F.when(is_write & F.col(f"_sent.{name}"), F.col(_ORDER)))

    begins_in_target = F.col("_begins") & ~F.col("_is_whole") & ~F.col("_is_arrival") & F.col("_wrote_before").isNull()
    values = [last_sent(name).alias(name) for name in fields]
    was_sent = [F.max(is_write & F.col(f"_sent.{name}")).alias(name) for name in fields]
    folded = lives.groupBy(KEY, _LIFE).agg(
        F.max_by(IS_REMOVED, _ORDER).alias(IS_REMOVED),
        F.max(SEQUENCE_NUM).alias(SEQUENCE_NUM),
        F.max_by(SOURCE_TIMESTAMP, _ORDER).alias(SOURCE_TIMESTAMP),
        F.max(_ORDER).alias(_ORDER),
        F.min(_ORDER).alias(_FIRST),
        F.min_by(EXPECTS, _ORDER).alias(EXPECTS),
        F.struct(*values).alias(ROW),
        F.struct(*was_sent).alias(SENT),
        F.max(begins_in_target).alias("_begins_in_target"),
    )
    return folded.withColumn(ROW, F.when(F.col(_LIFE).isNotNull(), F.col(ROW))).withColumn(
        ORIGIN, F.when(F.col("_begins_in_target"), F.col(KEY))
    )


def _chains(lives: DataFrame) -> DataFrame:
    """Find, for each life that began with an arrival lacking columns, the life its chain began with.

    Returns:
        `_life`, `_root`, `_from` (the key in the target, if the chain began with this very life and came from there).
        Small: one row per such arrival.

    Runs one job per doubling of the longest chain: each round makes every pointer reach twice as far.
    """
    taken = lives.where(F.col(IS_REMOVED) & F.col("_is_arrival"))
    came_from = F.when(F.col("_wrote_before"), F.col(_LIFE))
    edges = taken.select(
        F.col(SEQUENCE_NUM).alias(_LIFE),
        F.coalesce(came_from, F.col(SEQUENCE_NUM)).alias(_ROOT),
        F.when(F.col("_wrote_before").isNull(), F.col(KEY)).alias("_from"),
    ).localCheckpoint()
    while True:
        further = edges.select(F.col(_LIFE).alias("_stop"), F.col(_ROOT).alias("_further"))
        longer = (
            edges.join(F.broadcast(further), F.col(_ROOT) == F.col("_stop"), "left")
            .select(
                _LIFE,
                F.coalesce("_further", _ROOT).alias(_ROOT),
                "_from",
                (F.coalesce("_further", _ROOT) != F.col(_ROOT)).alias("_moved"),
            )
            .localCheckpoint()
        )
        edges = longer.drop("_moved")
        if longer.where("_moved").isEmpty():
            return edges


def _join_chains(folded: DataFrame, chains: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Add to each life the values that earlier lives of its chain were sent, and the chain's origin."""
    names = chains.select(F.col(_LIFE).alias("_of"), F.col(_ROOT).alias("_root_of"), "_from")
    # Lives without a row belong to no chain; a number of their own keeps them apart.
    root = F.coalesce("_root_of", _LIFE, -F.col(_ORDER) - 1)
    joined = folded.join(F.broadcast(names), F.col(_LIFE) == F.col("_of"), "left").withColumn(_ROOT, root)
    along = Window.partitionBy(_ROOT).orderBy(_LIFE).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Wrapped in a struct, so that a NULL that was sent is not taken for nothing.
    carried = [
        F.last(F.when(F.col(f"{SENT}.{name}"), F.struct(F.col(f"{ROW}.{name}").alias("v"))), ignorenulls=True)
        .over(along)
        .alias(name)
        for name in fields
    ]
    began = F.first(
        F.struct(F.coalesce(F.when(F.col("_root_of") == F.col(_LIFE), F.col("_from")), F.col(ORIGIN)).alias("k"))
    ).over(along)
    whole = joined.withColumn("_carried", F.struct(*carried)).withColumn("_began", began)
    row = F.struct(*[F.col(f"_carried.{name}.v").alias(name) for name in fields])
    sent = F.struct(*[F.col(f"_carried.{name}").isNotNull().alias(name) for name in fields])
    return whole.select(
        KEY,
        _LIFE,
        IS_REMOVED,
        SEQUENCE_NUM,
        SOURCE_TIMESTAMP,
        _ORDER,
        _FIRST,
        EXPECTS,
        F.when(F.col(_LIFE).isNotNull(), row).alias(ROW),
        sent.alias(SENT),
        F.col("_began.k").alias(ORIGIN),
    )


def _changes_key(key: Sequence[str]) -> Column:
    return F.col(BEFORE).isNotNull() & ~_all(
        [
            F.col(f"{BEFORE}.{name}").eqNullSafe(F.coalesce(F.col(f"{ROW}.{name}"), F.col(f"{BEFORE}.{name}")))
            for name in key
        ]
    )


def _key(struct: str, key: Sequence[str]) -> Column:
    return F.struct(*[F.col(f"{struct}.{name}").alias(name) for name in key])


def _order(half: str) -> Column:
    return (F.col(SEQUENCE_NUM) * 2 + F.col(half)).alias(_ORDER)


def _all(conditions: Sequence[Column]) -> Column:
    result = conditions[0]
    for condition in conditions[1:]:
        result &= condition
    return result


def _exact(value: Column, type_: T.DataType) -> Column:
    if isinstance(type_, T.FloatType | T.DoubleType):
        return value.cast("string")
    if isinstance(type_, T.ArrayType):
        return F.transform(value, lambda element: _exact(element, type_.elementType))
    return value


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
