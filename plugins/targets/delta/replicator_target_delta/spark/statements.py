"""The statements that apply a folded batch, as text, and the frames they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation has it

from replicator.model.events import IS_DELETED, ROW, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.schema import TableSchema
from replicator.plugins.target import TableOptions
from replicator.spark.reduce import EXPECTS, IS_REMOVED, KEY, REMOVES, SENT, row_identity
from replicator_target_delta.errors import ROW_MISSING
from replicator_target_delta.shape.tables import path_of, quoted

VIEW: Final = "replicator_batch"
"""The temporary view that a merge reads; sessions are per table, so it clashes with none."""


def merge_statement(
    path: str, schema: TableSchema, options: TableOptions, *, has_absent: bool, is_checked: bool = False
) -> str:
    """`MERGE` of a folded batch (`reduce_whole_rows`, `reduce_partial_rows`) into a table with a key.

    There is no guard on `_sequence_num`: the ledger alone decides what is applied, and a guard would hide mistakes.

    `is_checked`: it fails, and changes nothing, if the target lacks a row that the batch expects (`errors.is_missing`). Checked inside the
    merge it needs no job of its own; missing rows are counted only when there are any.
    """
    soft = options.deletes == "soft"
    on = " AND ".join(f"t.{quoted(name)} = s.{KEY}.{quoted(schema.fields[name])}" for name in schema.key)
    others = [c.name for c in schema.columns if c.name not in schema.key]
    values = {quoted(name): _value(schema, name, has_absent=has_absent, soft=soft) for name in others}
    inserted = {quoted(name): f"s.{KEY}.{quoted(schema.fields[name])}" for name in schema.key}
    inserted |= {quoted(name): f"s.{ROW}.{quoted(schema.fields[name])}" for name in others}
    marks = {quoted(SEQUENCE_NUM): f"s.{SEQUENCE_NUM}"}
    if options.source_timestamp:
        marks[quoted(SOURCE_TIMESTAMP)] = f"s.{SOURCE_TIMESTAMP}"
    if soft:
        marks[quoted(IS_DELETED)] = f"s.{IS_REMOVED}"
        is_new = f"s.{ROW} IS NOT NULL"
    else:
        is_new = f"NOT s.{IS_REMOVED}"
    added = marks
    if is_checked:
        added = marks | {quoted(SEQUENCE_NUM): _number_unless(f"s.{EXPECTS}")}
        is_new = f"({is_new} OR s.{EXPECTS})"
        if soft:
            marks = marks | {quoted(SEQUENCE_NUM): _number_unless(f"s.{EXPECTS} AND t.{quoted(IS_DELETED)}")}
    removal = f"s.{ROW} IS NULL THEN UPDATE SET {_assignments(marks)}" if soft else f"s.{IS_REMOVED} THEN DELETE"
    return " ".join(
        (
            f"MERGE INTO {path_of(path)} t USING {VIEW} s ON {on}",
            f"WHEN MATCHED AND {removal}",
            f"WHEN MATCHED THEN UPDATE SET {_assignments(values | marks)}",
            f"WHEN NOT MATCHED AND {is_new} THEN {_insert(inserted | added)}",
        )
    )


def count_missing(source: DataFrame, target: DataFrame, schema: TableSchema) -> int:
    """Count the rows that the batch expects and the target lacks; reads the target's key.

    Args:
        source: A folded batch of a table with a key.
        target: The table's rows, under their field names; those marked as deleted left out.
        schema: The table's shape.
    """
    fields = [schema.fields[name] for name in schema.key]
    expected = source.where(F.col(EXPECTS)).select(*[F.col(f"{KEY}.{f}").alias(f"k{i}") for i, f in enumerate(fields)])
    there = target.select(*[F.col(quoted(f)).alias(f"t{i}") for i, f in enumerate(fields)])
    same = [F.col(f"k{i}") == F.col(f"t{i}") for i in range(len(fields))]
    return expected.join(there, same, "left_anti").count()


def count_removals(balance: DataFrame) -> int:
    """Count the rows that have to be removed from a table without a key (`reduce_multiset`)."""
    return int(balance.agg(F.coalesce(F.sum(REMOVES), F.lit(0))).collect()[0][0])


def multiset_merge_statement(path: str, schema: TableSchema, options: TableOptions) -> str:
    """`MERGE` of the rows that a table without a key gains and loses, told apart by their numbers."""
    inserted = {quoted(c.name): f"s.{ROW}.{quoted(schema.fields[c.name])}" for c in schema.columns}
    inserted[quoted(SEQUENCE_NUM)] = f"s.{SEQUENCE_NUM}"
    if options.source_timestamp:
        inserted[quoted(SOURCE_TIMESTAMP)] = f"s.{SOURCE_TIMESTAMP}"
    return " ".join(
        (
            f"MERGE INTO {path_of(path)} t USING {VIEW} s ON t.{quoted(SEQUENCE_NUM)} = s.{SEQUENCE_NUM}",
            f"WHEN MATCHED AND s.{IS_REMOVED} THEN DELETE",
            f"WHEN NOT MATCHED AND NOT s.{IS_REMOVED} THEN {_insert(inserted)}",
        )
    )


def multiset_source(balance: DataFrame, target: DataFrame, schema: TableSchema) -> DataFrame:
    """The rows that a table without a key gains and loses.

    Args:
        balance: Result of `reduce_multiset`.
        target: The table's rows, under their field names, and `_sequence_num`.
        schema: The table's shape.

    Returns:
        `_sequence_num`, `_source_timestamp`, `row`, `is_removed`: rows to insert, and numbers of rows to delete, the
        highest of each distinct row.
    """
    fields = [schema.fields[c.name] for c in schema.columns]
    removals = balance.where(F.col(REMOVES) > 0)
    wanted = removals.select(F.col(REMOVES), _identity(removals, ROW, fields).alias("_wanted"))
    held = target.select(F.col(SEQUENCE_NUM), _identity(target, None, fields).alias("_held"))
    # Inside a struct Spark compares nulls as values.
    found = held.join(wanted, F.col("_held") == F.col("_wanted"))
    newest_first = Window.partitionBy("_held").orderBy(F.col(SEQUENCE_NUM).desc())
    lost = found.withColumn("_nth", F.row_number().over(newest_first)).where(F.col("_nth") <= F.col(REMOVES))
    nothing = F.lit(None)
    types = {field.name: field.dataType for field in balance.schema}
    return (
        balance.where(F.col(REMOVES) == 0)
        .select(SEQUENCE_NUM, SOURCE_TIMESTAMP, ROW, F.lit(False).alias(IS_REMOVED))
        .unionByName(
            lost.select(
                SEQUENCE_NUM,
                nothing.cast(types[SOURCE_TIMESTAMP]).alias(SOURCE_TIMESTAMP),
                nothing.cast(types[ROW]).alias(ROW),
                F.lit(True).alias(IS_REMOVED),
            )
        )
    )


def target_rows(session: Any, path: str, schema: TableSchema, options: TableOptions) -> DataFrame:
    """The rows that the table holds now, under their field names, with `_sequence_num`; those marked as deleted left out."""
    return living_rows(session.read.format("delta").load(path), schema, options)


def living_rows(rows: DataFrame, schema: TableSchema, options: TableOptions) -> DataFrame:
    """The same rows of a version of the table."""
    if options.deletes == "soft":
        rows = rows.where(f"NOT {quoted(IS_DELETED)}")
    columns = [F.col(quoted(c.name)).alias(schema.fields[c.name]) for c in schema.columns]
    return rows.select(*columns, F.col(SEQUENCE_NUM))


def append_rows(changes: DataFrame, schema: TableSchema, options: TableOptions) -> DataFrame:
    """Complete rows as the table holds them."""
    columns = [F.col(f"{ROW}.{quoted(schema.fields[c.name])}").alias(c.name) for c in schema.columns]
    columns.append(F.col(SEQUENCE_NUM))
    if options.deletes == "soft":
        columns.append(F.lit(False).alias(IS_DELETED))
    if options.source_timestamp:
        columns.append(F.col(SOURCE_TIMESTAMP))
    return changes.select(*columns)


def clear_statement(path: str, options: TableOptions, sequence_num: int, below: int | None = None) -> str:
    """Delete (soft: mark) every row, or every row that carries a number below `below`."""
    condition = f"{SEQUENCE_NUM} < {below}" if below is not None else "true"
    if options.deletes == "soft":
        marks = {quoted(IS_DELETED): "true", quoted(SEQUENCE_NUM): str(sequence_num)}
        settings = ", ".join(f"{column} = {value}" for column, value in marks.items())
        return f"UPDATE {path_of(path)} SET {settings} WHERE NOT {quoted(IS_DELETED)} AND {condition}"  # noqa: S608 - quoted
    return f"DELETE FROM {path_of(path)} WHERE {condition}"  # noqa: S608 - quoted


def _identity(frame: DataFrame, prefix: str | None, fields: Sequence[str]) -> Column:
    """A struct that is equal exactly for the same row; its fields are compared by position."""
    return F.struct(*[part.alias(f"f{i}") for i, part in enumerate(row_identity(frame, prefix, fields))])


def _value(schema: TableSchema, name: str, *, has_absent: bool, soft: bool) -> str:
    field = quoted(schema.fields[name])
    if not has_absent:
        return f"s.{ROW}.{field}"
    kept = f"t.{quoted(name)}"
    if soft:
        # A row that is marked as deleted is no row to take columns from.
        kept = f"CASE WHEN t.{quoted(IS_DELETED)} THEN NULL ELSE {kept} END"
    return f"CASE WHEN s.{SENT}.{field} THEN s.{ROW}.{field} ELSE {kept} END"


def _number_unless(condition: str) -> str:
    """The change's number; an error where the condition holds."""
    return f"CASE WHEN {condition} THEN raise_error('{ROW_MISSING}') ELSE s.{SEQUENCE_NUM} END"


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"t.{column} = {value}" for column, value in values.items())


def _insert(values: dict[str, str]) -> str:
    return f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608 - quoted
