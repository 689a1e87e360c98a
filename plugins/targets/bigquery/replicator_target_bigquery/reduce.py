"""Fold a batch to one change per key, inside BigQuery: the text of common table expressions.

The words are those of `replicator.spark.reduce`, whose fold this is. A **touch** is the effect of a change on one key: it
writes a row there, or takes the row away; a key-changing UPDATE takes the row from the old key, then writes it at the
new one. A **life** is what happens to a row at one key from one beginning to the next. An arrival that lacks columns
continues the life it came from: lives joined that way are a **chain**. Columns are folded along the chain, the last
value sent wins, and what is still missing at its end stands in the target at the key where the chain began, its
**origin**.

Names inside the statements: `n` the change's sequence number, `o` the ordinal of the touch (2n for the taking half, 2n+1 for
the writing), `moment` the source's time, `k<i>` the key, `f<i>` the columns, `s<i>` whether column i was sent, `removed`
whether the row was taken away, `expected` whether the key's first change tells that the target has a row there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from replicator.model.events import (
    ABSENT,
    BEFORE,
    IS_DELETED,
    IS_SNAPSHOT,
    OPERATION,
    ROW,
    SEQUENCE_NUM,
    SOURCE_TIMESTAMP,
)
from replicator_target_bigquery.names import quoted, text
from replicator_target_bigquery.shape import ColumnShape, Shape

_UP_TO_HERE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_ALL: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def whole_rows(shape: Shape, staging: str, skip_to: int, *, has_key_changes: bool) -> str:
    """Return the last change of each key of a batch in which every row has all its columns.

    Returns:
        A query that gives, once per key, `k<i>`, `removed`, `n`, `moment`, `expected`, `f<i>` and `has_row`: true if the
        batch wrote a row there, whose last values `f<i>` are.
    """
    key, columns = _list("k", shape.key), shape.columns
    written = f"LAST_VALUE(IF(removed, NULL, STRUCT({_fields(columns)})) IGNORE NULLS) OVER (PARTITION BY {key} ORDER BY o {_ALL})"
    values = _join(f"written.f{c.index} AS f{c.index}" for c in columns)
    return f"""
WITH {_touches(shape, staging, skip_to, has_absent=False, has_key_changes=has_key_changes)},
last_touches AS (
  SELECT {key}, removed, n, moment, {_expected(key)}, {written} AS written
  FROM touches WHERE TRUE
  QUALIFY ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY o DESC) = 1
)
SELECT {key}, removed, n, moment, expected, written IS NOT NULL AS has_row, {values} FROM last_touches"""


def partial_rows(
    shape: Shape, staging: str, skip_to: int, target: str, *, has_key_changes: bool, within: str | None = None
) -> str:
    """Return the changes of each key folded column by column, where some rows lack columns.

    Where keys may have changed, the temporary table of `chains` must have been made, and what a moved row lacks is
    taken from the target's row at its origin: a key that a change of the batch names, so `within`, a condition on the
    target's row `t` that holds for all of these, spares the rest of the target.

    Returns:
        A query as that of `whole_rows`, and `s<i>`: true if `f<i>` holds the value; otherwise it stands in the target
        under the row's own key.
    """
    fold = _moved_fold(shape, target, chains_table(staging), within) if has_key_changes else _still_fold(shape)
    return f"WITH {_lives(shape, staging, skip_to, has_key_changes=has_key_changes)},{_folded(shape)},{fold}"


def chains_table(staging: str) -> str:
    """Return the name of the temporary table that joins lives to chains; made where rows that lack columns changed keys."""
    return f"replicator_chains_{hashlib.sha256(staging.encode()).hexdigest()[:16]}"


def chains(shape: Shape, staging: str, skip_to: int) -> str:
    """Return a `CREATE TEMP TABLE` of the lives that continue another one.

    One row for each life that began with an arrival lacking columns: `life`, `root` (the life its chain began with)
    and `from_k<i>` (where the chain began with this very life: the key in the target that it came from, if any).
    A chain may be 500 lives long, which is BigQuery's limit of recursion.
    """
    keys = _join(f"IF(wrote_before IS NULL, k{i}, NULL) AS from_k{i}" for i, _ in enumerate(shape.key))
    carried = _join(f"from_k{i}" for i, _ in enumerate(shape.key))
    return f"""
CREATE TEMP TABLE IF NOT EXISTS {chains_table(staging)} AS
WITH RECURSIVE {_lives(shape, staging, skip_to, has_key_changes=True)},
edges AS (
  SELECT n AS life, IF(wrote_before, life, NULL) AS came_from, {keys} FROM lives WHERE departs
),
chain AS (
  SELECT e.life, COALESCE(e.came_from, e.life) AS root, {_join(f"e.from_k{i}" for i, _ in enumerate(shape.key))}
  FROM edges AS e LEFT JOIN edges AS earlier ON e.came_from = earlier.life
  WHERE earlier.life IS NULL
  UNION ALL
  SELECT e.life, chain.root, {_join(f"e.from_k{i}" for i, _ in enumerate(shape.key))}
  FROM edges AS e JOIN chain ON e.came_from = chain.life
)
SELECT life, root, {carried} FROM chain"""


def multiset(shape: Shape, staging: str, skip_to: int, target: str) -> str:
    """Return the gains and losses of a table without a key, inserts and deletes of each distinct row balanced.

    Equal rows are a stack: a delete removes the one with the highest number, as a plain replay would.

    Returns:
        A query that gives `n`, `moment`, `f<i>`, `removed`, `missing`: rows to insert under their own number, and numbers of
        rows to delete; one row per distinct row says how many of these are not there, with no number if none is.
    """
    columns = shape.columns
    values = _join(
        f"IF(half = 0 OR {_is_absent(c)}, {c.of(BEFORE)}, {c.of(quoted(ROW))}) AS f{c.index}" for c in columns
    )
    nothing = _join(f"CAST(NULL AS {c.type}) AS f{c.index}" for c in columns)
    same, in_order = "PARTITION BY id", "PARTITION BY id ORDER BY o"
    return f"""
WITH steps AS (
  SELECT {SEQUENCE_NUM} AS n, {SOURCE_TIMESTAMP} AS moment, 2 * {SEQUENCE_NUM} + half AS o, 2 * half - 1 AS step, {values}
  FROM {quoted(staging)} CROSS JOIN UNNEST([0, 1]) AS half
  WHERE {SEQUENCE_NUM} > {skip_to} AND ({OPERATION} = 'UPDATE' OR half = IF({OPERATION} = 'DELETE', 0, 1))
),
named AS (SELECT *, {_identity(columns, lambda c: f"f{c.index}")} AS id FROM steps),
heights AS (SELECT *, SUM(step) OVER ({in_order} {_UP_TO_HERE}) AS height FROM named),
balanced AS (
  SELECT *,
    MIN(height) OVER ({in_order} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS lowest_after,
    -LEAST(0, MIN(height) OVER ({same})) AS removes,
    ROW_NUMBER() OVER ({in_order}) AS ordinal
  FROM heights
),
held AS (
  SELECT id, n, ROW_NUMBER() OVER (PARTITION BY id ORDER BY n DESC) AS ordinal
  FROM (SELECT t.{SEQUENCE_NUM} AS n, {_identity(columns, lambda c: c.in_target("t"))} AS id FROM {quoted(target)} AS t)
),
wanted AS (SELECT id, removes FROM balanced WHERE ordinal = 1 AND removes > 0),
lost AS (
  SELECT held.n, wanted.removes - COUNT(held.n) OVER (PARTITION BY wanted.id) AS missing,
    ROW_NUMBER() OVER (PARTITION BY wanted.id ORDER BY held.n) AS ordinal
  FROM wanted LEFT JOIN held ON held.id = wanted.id AND held.ordinal <= wanted.removes
)
SELECT n, moment, FALSE AS removed, 0 AS missing, {_list("f", columns)} FROM balanced
WHERE step = 1 AND (lowest_after IS NULL OR lowest_after >= height)
UNION ALL
SELECT n, CAST(NULL AS TIMESTAMP) AS moment, TRUE AS removed, IF(ordinal = 1, missing, 0) AS missing, {nothing} FROM lost"""


def _touches(shape: Shape, staging: str, skip_to: int, *, has_absent: bool, has_key_changes: bool) -> str:
    """Return the effect of each change on each key: `changes`, `touches`."""
    key = shape.key
    columns = [f"{c.of(quoted(ROW))} AS f{c.index}" for c in shape.columns]
    columns += [f"{c.of(BEFORE)} AS b{i}" for i, c in enumerate(key)]
    # A row that a snapshot read says nothing of the row before it.
    columns.append(f"NOT COALESCE({IS_SNAPSHOT}, FALSE) AS is_logged")
    # An unchanged key column may be absent, too long to be sent again: the old key then has it.
    now = [f"COALESCE(f{c.index}, b{i})" for i, c in enumerate(key)]
    moves = "FALSE"
    if has_key_changes:
        same = " AND ".join(f"b{i} = {value}" for i, value in enumerate(now))
        moves = f"op = 'UPDATE' AND b0 IS NOT NULL AND NOT ({same})"
    touched = [f"IF(half = 0, b{i}, {value}) AS k{i}" for i, value in enumerate(now)]
    touched += [f"f{c.index}" for c in shape.columns]
    touched.append("is_logged AND (half = 0 OR (op = 'UPDATE' AND NOT moves)) AS expects")
    if has_absent:
        partial = f"COALESCE(ARRAY_LENGTH({ABSENT}), 0) > 0 AND ({OPERATION} = 'UPDATE' OR {IS_SNAPSHOT})"
        columns.append(f"{partial} AS is_partial")
        columns += [f"NOT ({partial} AND {_is_absent(c)}) AS s{c.index}" for c in shape.columns]
        touched += [f"s{c.index}" for c in shape.columns]
        touched += [
            "is_partial",
            "moves AND is_partial AND half = 1 AS arrives",
            "moves AND is_partial AND half = 0 AS departs",
        ]
    return f"""changes AS (
  SELECT {SEQUENCE_NUM} AS n, {OPERATION} AS op, {SOURCE_TIMESTAMP} AS moment, {_join(columns)}
  FROM {quoted(staging)} WHERE {SEQUENCE_NUM} > {skip_to}
),
moving AS (SELECT *, {moves} AS moves FROM changes),
touches AS (
  SELECT n, moment, 2 * n + half AS o, half = 0 AS removed, {_join(touched)}
  FROM moving CROSS JOIN UNNEST([0, 1]) AS half
  WHERE half = IF(op = 'DELETE', 0, 1) OR moves
)"""


def _lives(shape: Shape, staging: str, skip_to: int, *, has_key_changes: bool) -> str:
    """Return touches, each with the life that it belongs to."""
    by_key = f"PARTITION BY {_list('k', shape.key)} ORDER BY o"
    begins = "NOT removed AND (NOT is_partial OR arrives OR wrote_before IS NULL OR NOT wrote_before)"
    return f"""{_touches(shape, staging, skip_to, has_absent=True, has_key_changes=has_key_changes)},
preceded AS (
  SELECT *, LAG(NOT removed) OVER ({by_key}) AS wrote_before, {_expected(_list("k", shape.key))} FROM touches
),
beginning AS (SELECT *, {begins} AS begins FROM preceded),
lives AS (
  SELECT *, LAST_VALUE(IF(begins, n, NULL) IGNORE NULLS) OVER ({by_key} {_UP_TO_HERE}) AS life FROM beginning
)"""


def _folded(shape: Shape) -> str:
    """Return one row per key and life: `v<i>` wraps the last value sent of a column, NULL if none was, so that a sent NULL counts."""
    key = _list("k", shape.key)
    within = f"PARTITION BY {key}, life ORDER BY o"
    values = _join(
        f"LAST_VALUE(IF(NOT removed AND s{c.index}, STRUCT(f{c.index} AS v), NULL) IGNORE NULLS)"
        f" OVER ({within} {_UP_TO_HERE}) AS v{c.index}"
        for c in shape.columns
    )
    in_target = "begins AND is_partial AND NOT arrives AND wrote_before IS NULL"
    return f"""
folded AS (
  SELECT {key}, life, removed, n, moment, o, expected, {values},
    MAX(IF({in_target}, 1, 0)) OVER (PARTITION BY {key}, life) = 1 AS begins_in_target
  FROM lives WHERE TRUE
  QUALIFY ROW_NUMBER() OVER ({within} DESC) = 1
)"""


def _still_fold(shape: Shape) -> str:
    """Return the last life of each key, where no row that lacks columns came from another key."""
    key, columns = _list("k", shape.key), shape.columns
    values = _join(f"v{c.index}.v AS f{c.index}" for c in columns)
    # A life that did not begin in the target has nowhere to look further: what was not sent is NULL.
    sent = _join(f"(v{c.index} IS NOT NULL OR NOT begins_in_target) AS s{c.index}" for c in columns)
    return f"""
last_lives AS (
  SELECT * FROM folded WHERE TRUE QUALIFY ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY o DESC) = 1
)
SELECT {key}, removed, n, moment, expected, life IS NOT NULL AS has_row, {values}, {sent} FROM last_lives"""


def _moved_fold(shape: Shape, target: str, joined: str, within: str | None) -> str:
    """Return the last life of each key with the values that earlier lives of its chain were sent, and those at its origin."""
    key, columns = shape.key, shape.columns
    names = _list("k", key)
    along = f"PARTITION BY root ORDER BY life {_UP_TO_HERE}"
    carried = _join(f"LAST_VALUE(v{c.index} IGNORE NULLS) OVER ({along}) AS v{c.index}" for c in columns)
    began = _join(
        f"FIRST_VALUE(IF(is_root, from_k{i}, IF(begins_in_target, k{i}, NULL))) OVER ({along}) AS origin{i}"
        for i, _ in enumerate(key)
    )
    # Lives without a row belong to no chain; a number of their own keeps them apart.
    root = f"COALESCE({joined}.root, folded.life, -folded.o - 1)"
    same = " AND ".join(f"origin{i} = k{i}" for i, _ in enumerate(key))
    on = " AND ".join(f"{c.in_target('t')} = last_lives.origin{i}" for i, c in enumerate(key))
    alive = f" AND NOT t.{quoted(IS_DELETED)}" if shape.is_soft else ""
    # A column of the table may have any name that we use.
    own = _join(
        f"last_lives.{name}" for name in [f"k{i}" for i, _ in enumerate(key)] + ["removed", "n", "moment", "expected"]
    )
    values = _join(
        f"IF(last_lives.v{c.index} IS NOT NULL, last_lives.v{c.index}.v, {c.in_target('t')}) AS f{c.index}"
        for c in columns
    )
    sent = _join(
        f"(last_lives.v{c.index} IS NOT NULL OR last_lives.origin0 IS NULL OR last_lives.is_moved) AS s{c.index}"
        for c in columns
    )
    from_keys = _join(f"{joined}.from_k{i}" for i, _ in enumerate(key))
    origins = quoted(target) if within is None else f"(SELECT * FROM {quoted(target)} AS t WHERE {within})"
    return f"""
rooted AS (
  SELECT folded.*, {root} AS root, {joined}.root = folded.life AS is_root, {from_keys}
  FROM folded LEFT JOIN {joined} ON folded.life = {joined}.life
),
carried AS (SELECT {names}, life, removed, n, moment, o, expected, {carried}, {began} FROM rooted),
last_lives AS (
  SELECT *, origin0 IS NOT NULL AND NOT ({same}) AS is_moved FROM carried WHERE TRUE
  QUALIFY ROW_NUMBER() OVER (PARTITION BY {names} ORDER BY o DESC) = 1
)
SELECT {own}, last_lives.life IS NOT NULL AS has_row, {values}, {sent}
FROM last_lives LEFT JOIN {origins} AS t ON last_lives.is_moved AND {on}{alive}"""


def _expected(key: str) -> str:
    """Return what the first touch of a key says of the target."""
    return f"FIRST_VALUE(expects) OVER (PARTITION BY {key} ORDER BY o {_ALL}) AS expected"


def _is_absent(column: ColumnShape) -> str:
    return f"COALESCE({text(column.field)} IN UNNEST({ABSENT}), FALSE)"


def _identity(columns: Iterable[ColumnShape], value: Callable[[ColumnShape], str]) -> str:
    parts = _join(f"{c.identity(value(c))} AS i{c.index}" for c in columns)
    return f"TO_JSON_STRING(STRUCT({parts}))"


def _fields(columns: Iterable[ColumnShape]) -> str:
    return _join(f"f{c.index} AS f{c.index}" for c in columns)


def _list(letter: str, columns: Iterable[ColumnShape]) -> str:
    if letter == "k":
        return _join(f"k{i}" for i, _ in enumerate(columns))
    return _join(f"{letter}{c.index}" for c in columns)


def _join(parts: Iterable[str]) -> str:
    return ", ".join(parts)
