"""Rows of a change table become changes: by examples measured on real servers (A.4 of the facts), and by a model."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator_source_sqlserver.cdc.changes import NONE, UnpairedImageError, absent, paired


@dataclass(frozen=True)
class Logged:
    """A row of a change table."""

    start: int
    command: int
    seqval: int
    image: int


def changes_of(rows: list[Logged]) -> list[tuple[str, int, int]]:
    found = paired([lsn(r.start) for r in rows], [lsn(r.seqval) for r in rows], [r.image for r in rows])
    return list(zip(found.operations.to_pylist(), found.before.tolist(), found.after.tolist(), strict=True))


def lsn(number: int) -> bytes:
    return number.to_bytes(10, "big")


def test_nothing_becomes_nothing() -> None:
    assert changes_of([]) == []


def test_statements_of_one_transaction() -> None:
    # INSERT, UPDATE, UPDATE, DELETE: measured as [2, 3, 4, 3, 4, 1].
    rows = [
        Logged(1, 1, 1, 2), Logged(1, 2, 2, 3), Logged(1, 2, 2, 4), Logged(1, 3, 3, 3), Logged(1, 3, 3, 4), Logged(1, 4, 4, 1),
    ]  # fmt: skip
    assert changes_of(rows) == [("INSERT", NONE, 0), ("UPDATE", 1, 2), ("UPDATE", 3, 4), ("DELETE", 5, NONE)]


def test_a_key_that_changes_is_one_change() -> None:
    assert changes_of([Logged(1, 1, 7, 1), Logged(1, 2, 7, 2)]) == [("UPDATE", 0, 1)]


def test_keys_that_move_in_bulk_stay_apart() -> None:
    rows = [Logged(1, 1, 5, 1), Logged(1, 1, 6, 1), Logged(1, 2, 7, 2), Logged(1, 2, 8, 2)]
    assert [name for name, *_ in changes_of(rows)] == ["DELETE", "DELETE", "INSERT", "INSERT"]


def test_a_row_that_is_deleted_and_inserted_again_is_two_changes() -> None:
    assert [name for name, *_ in changes_of([Logged(1, 1, 7, 1), Logged(1, 2, 8, 2)])] == ["DELETE", "INSERT"]
    assert [name for name, *_ in changes_of([Logged(1, 1, 7, 1), Logged(2, 1, 7, 2)])] == ["DELETE", "INSERT"]


@pytest.mark.parametrize("images", [[3], [4], [3, 3, 4], [2, 4], [4, 3], [3, 2], [3, 4, 4]])
def test_half_an_update_is_noticed(images: list[int]) -> None:
    with pytest.raises(UnpairedImageError):
        changes_of([Logged(1, 1, 1, image) for image in images])


@pytest.mark.parametrize("other", [Logged(2, 1, 1, 4), Logged(1, 1, 2, 4)])
def test_images_of_two_rows_are_no_pair(other: Logged) -> None:
    with pytest.raises(UnpairedImageError) as caught:
        changes_of([Logged(1, 1, 1, 3), other])
    assert caught.value.position == 0


def test_an_unknown_image_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        changes_of([Logged(1, 1, 1, 5)])


@given(st.lists(st.sampled_from(["insert", "update", "delete", "move", "bulk"]), max_size=40), st.randoms())
def test_every_change_is_found_once_and_in_order(statements: list[str], draw: random.Random) -> None:
    """Rows in any order, sorted as the plugin asks the server to, give back the statements."""
    rows: list[Logged] = []
    expected: list[str] = []
    seqval = command = start = 0
    for statement in statements:
        if draw.random() < 0.3:
            start, command = start + 1, 0
        command, seqval = command + 1, seqval + 1
        if statement == "bulk":
            rows += [Logged(start, command, seqval + n, 1) for n in range(2)]
            rows += [Logged(start, command + 1, seqval + 2 + n, 2) for n in range(2)]
            command, seqval = command + 1, seqval + 3
            expected += ["DELETE", "DELETE", "INSERT", "INSERT"]
        elif statement == "move":
            rows += [Logged(start, command, seqval, 1), Logged(start, command + 1, seqval, 2)]
            command += 1
            expected.append("UPDATE")
        elif statement == "update":
            rows += [Logged(start, command, seqval, 3), Logged(start, command, seqval, 4)]
            expected.append("UPDATE")
        else:
            rows.append(Logged(start, command, seqval, 2 if statement == "insert" else 1))
            expected.append(statement.upper())
    draw.shuffle(rows)
    rows.sort(key=lambda r: (r.start, r.command, r.seqval, r.image))
    found = changes_of(rows)
    assert [name for name, *_ in found] == expected
    assert sorted(i for _, *both in found for i in both if i != NONE) == list(range(len(rows)))


def mask(*ordinals: int, columns: int) -> bytes:
    return sum(1 << ordinal - 1 for ordinal in ordinals).to_bytes((columns + 7) // 8, "big")


def test_the_first_column_is_the_lowest_bit_of_the_last_byte() -> None:
    assert mask(1, columns=3) == b"\x01"
    assert mask(9, columns=12) == b"\x01\x00"


def test_what_an_update_did_not_touch_is_absent() -> None:
    masks = [mask(1, 2, 10, columns=12), mask(2, columns=12), mask(2, 3, columns=12), mask(2, columns=12)]
    found = absent(masks, [2, 4, 4, 3], {"note": 3, "photo": 10})
    assert found.to_pylist() == [None, ["note", "photo"], ["photo"], None]


def test_a_table_without_such_columns_has_nothing_absent() -> None:
    assert absent([b"\x01"], [4], {}).to_pylist() == [None]
    assert absent([], [], {"note": 1}).to_pylist() == []


@pytest.mark.parametrize(("masks", "ordinal"), [([b"\x01"], 9), ([b"\x01", b"\x00\x01"], 1)])
def test_a_mask_that_does_not_fit_is_refused(masks: list[bytes], ordinal: int) -> None:
    with pytest.raises(ValueError, match="one bit for each column"):
        absent(masks, [4] * len(masks), {"note": ordinal})
