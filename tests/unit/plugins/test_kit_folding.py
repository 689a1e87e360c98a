"""Folding a batch and applying what it leaves gives the same as applying its changes one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from replicator.model.errors import KeyMissingError
from replicator.model.merged import Merged
from replicator.plugins.kit.folding import (
    FoldedRow,
    Key,
    RowFate,
    StoredRow,
    fold,
    fold_multiset,
    merge_rows,
    read_changes,
)
from replicator.plugins.target import Batch, TableOptions
from replicator_testing.batches import RowChange, delete, insert, update, write_batch
from replicator_testing.histories import HISTORIES, History, random_batches
from replicator_testing.oracle import Oracle
from replicator_testing.target_harness import as_tuples, item, items_schema


def apply(rows: dict[Key, StoredRow], batch: Batch, deletes: Literal["hard", "soft"] = "hard") -> Merged:
    """As a target does."""
    folded = fold(batch.schema, read_changes(batch))
    merge = merge_rows(batch, folded, rows, TableOptions(deletes=deletes))
    for row in folded:
        rows.pop(row.key, None)
    rows.update({tuple(row.values[name] for name in batch.schema.key): row for row in merge.rows})
    return merge.merged


def live(rows: dict[Key, StoredRow]) -> list[Mapping[str, Any]]:
    return [row.values for row in rows.values() if not row.is_deleted]


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("seed", range(5))
def test_random_batches_equal_a_plain_replay(tmp_path: Path, seed: int, deletes: Literal["hard", "soft"]) -> None:
    schema = items_schema(with_world=True)
    rows: dict[Key, StoredRow] = {}
    reference = Oracle(schema)
    for changes in random_batches(seed, worlds=60, length=14, batches=3):
        reference.apply(changes)
        batch = write_batch(tmp_path, schema, changes, files=2, expects_rows=True)
        assert apply(rows, batch, deletes).not_found == 0
        assert as_tuples(schema, live(rows)) == as_tuples(schema, reference.live)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
def test_a_history_in_one_batch_equals_a_plain_replay(tmp_path: Path, history: History) -> None:
    schema, reference = items_schema(), Oracle(items_schema())
    rows: dict[Key, StoredRow] = {}
    reference.apply(history())
    apply(rows, write_batch(tmp_path, schema, history()))
    assert as_tuples(schema, live(rows)) == as_tuples(schema, reference.live)


def test_a_deleted_row_that_is_kept_has_its_last_values(tmp_path: Path) -> None:
    rows: dict[Key, StoredRow] = {}
    schema = items_schema()
    apply(rows, write_batch(tmp_path, schema, [insert(1, item(1, "a")), insert(2, item(2, "b"))]), "soft")
    changes = [update(3, item(1, "a2"), absent=["note"]), delete(4, item(1)), delete(5, item(2)), delete(6, item(3))]
    assert apply(rows, write_batch(tmp_path, schema, changes), "soft") == Merged(matched=2)
    kept = {key[0]: (row.is_deleted, row.values["name"], row.sequence_num) for key, row in rows.items()}
    assert kept == {1: (True, "a2", 4), 2: (True, "b", 5)}
    back = [insert(7, item(2, "c"), absent=["note"], is_snapshot=True)]
    assert apply(rows, write_batch(tmp_path, schema, back), "soft") == Merged(matched=1)
    assert live(rows) == [item(2, "c")]


def folded(folder: Path, *changes: RowChange, skip_to: int = -1) -> dict[int, FoldedRow]:
    schema = items_schema()
    rows = fold(schema, read_changes(write_batch(folder, schema, changes, skip_to=skip_to)))
    return {row.key[0]: row for row in rows}


def test_the_first_change_of_a_key_says_whether_a_row_is_expected(tmp_path: Path) -> None:
    rows = folded(
        tmp_path,
        insert(1, item(1)),
        delete(2, item(1)),
        update(3, item(3), before=item(2)),
        delete(4, item(3)),
        insert(5, item(4), is_snapshot=True),
        update(6, item(4)),
        delete(7, item(5)),
        insert(8, item(5)),
    )
    assert {key: row.expects_row for key, row in rows.items()} == {1: False, 2: True, 3: False, 4: False, 5: True}
    assert {key: row.outcome for key, row in rows.items()} == {
        1: RowFate.DELETED,
        2: RowFate.MOVED,
        3: RowFate.DELETED,
        4: RowFate.WRITTEN,
        5: RowFate.WRITTEN,
    }
    assert rows[5].sequence_num == 8


def test_a_row_that_comes_back_takes_nothing_from_the_one_before(tmp_path: Path) -> None:
    rows = folded(tmp_path, delete(1, item(1)), insert(2, item(1, "b"), absent=["note"], is_snapshot=True))
    assert rows[1].origin is None
    assert "note" not in rows[1].values


def test_a_moved_row_is_completed_from_its_old_key(tmp_path: Path) -> None:
    rows = folded(
        tmp_path, update(1, item(2, "b"), before=item(1), absent=["note"]), update(2, item(2, "c"), absent=["note"])
    )
    assert (rows[2].origin, rows[2].values["name"]) == ((1,), "c")


def test_what_was_applied_before_is_left_out(tmp_path: Path) -> None:
    assert list(folded(tmp_path, insert(1, item(1)), insert(2, item(2)), skip_to=1)) == [2]


def test_a_delete_without_a_key_fails_the_table(tmp_path: Path) -> None:
    schema = items_schema()
    bare = RowChange(sequence_num=1, operation=delete(1, item(1)).operation)
    with pytest.raises(KeyMissingError):
        fold(schema, read_changes(write_batch(tmp_path, schema, [bare])))


def test_rows_without_a_key_are_counted_and_the_newest_goes_first(tmp_path: Path) -> None:
    schema = items_schema(key=())
    changes = [
        insert(1, item(1)),
        insert(2, item(1)),
        delete(3, item(1)),
        delete(4, item(2)),
        delete(5, item(2)),
        update(6, item(3), before=item(1)),
        delete(7, item(1)),
    ]
    added, removed = fold_multiset(schema, read_changes(write_batch(tmp_path, schema, changes)))
    assert [(row.sequence_num, row.values["id"]) for row in added] == [(6, 3)]
    assert Counter({row["id"]: count for row, count in removed}) == {1: 1, 2: 2}
