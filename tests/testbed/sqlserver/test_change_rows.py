"""Change rows from the changes of a transaction: the rules of order, images and masks, without a server."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replicator_testbed.sqlserver import sqltypes
from replicator_testbed.sqlserver.capture.decoding import Change, Row
from replicator_testbed.sqlserver.capture.rows import (
    CapturedColumn,
    ChangeRow,
    Hazards,
    Instance,
    Operation,
    change_rows,
    to_lsn,
    update_mask,
)
from replicator_testbed.sqlserver.sqltypes import MAX, TypeName, of

TYPES = {
    "id": sqltypes.INT,
    "name": of(TypeName.NVARCHAR, 20),
    "flag": of(TypeName.BIT),
    "large": of(TypeName.NVARCHAR, MAX),
    "old": of(TypeName.TEXT),
    "made": sqltypes.INT,
}
INSTANCE = Instance(
    name="dbo_t",
    columns=tuple(
        CapturedColumn(name=n, type=t, is_computed=n == "made", is_required=n == "flag") for n, t in TYPES.items()
    ),
    key=frozenset({"id"}),
)
BASE: Row = {"id": "1", "name": "a", "flag": "1", "large": "L", "old": "O", "made": "2"}


def change(old: Row | None, new: Row | None, statement: int = 1, serial: int = 0) -> Change:
    return Change(source=7, statement=statement, lsn=1000 + 10 * serial, serial=serial, old=old, new=new)


def rows(*changes: Change, hazards: Hazards | None = None) -> list[ChangeRow]:
    return change_rows(changes, INSTANCE, hazards or Hazards())


def ordered(made: list[ChangeRow]) -> list[ChangeRow]:
    """As a reader has to order them [LAB t3, DOC: rule 3]."""
    return sorted(made, key=lambda row: (row.command_id, row.seqval, row.operation))


def test_the_mask_has_the_lowest_ordinals_in_its_last_byte() -> None:
    # [ISS: debezium/dbz#2650]
    assert update_mask([1], 9).hex() == "0001"
    assert update_mask([9], 9).hex() == "0100"
    assert update_mask(range(1, 10), 9).hex() == "01ff"


def test_inserts_and_deletes_have_every_bit() -> None:
    inserted, deleted = rows(change(None, BASE), change(BASE, None, statement=2))
    assert (inserted.operation, inserted.mask.hex()) == (Operation.INSERT, "3f")
    assert (deleted.operation, deleted.mask.hex()) == (Operation.DELETE, "3f")


def test_an_update_is_two_rows_of_one_seqval() -> None:
    before, after = rows(change(BASE, {**BASE, "name": "b"}))
    assert (before.operation, after.operation) == (Operation.UPDATE_BEFORE, Operation.UPDATE_AFTER)
    assert before.seqval == after.seqval
    assert before.command_id == after.command_id
    assert before.mask == after.mask == b"\x02"
    assert (before.values[1], after.values[1]) == ("a", "b")


def test_an_update_of_nothing_that_is_captured_writes_nothing() -> None:
    # [LAB: rule 7]
    assert rows(change({**BASE, "added": "1"}, {**BASE, "added": "2"})) == []


def test_one_statement_is_one_command() -> None:
    # [ISS: Redpanda #4831]
    made = rows(*(change(None, {**BASE, "id": str(n)}, serial=n) for n in range(5)))
    assert {row.command_id for row in made} == {1}
    assert len({row.seqval for row in made}) == 5


def test_a_transaction_of_several_statements() -> None:
    # [LAB t3: operations measured as 2, 3, 4, 3, 4, 1]
    one, two = {**BASE, "name": "b"}, {**BASE, "name": "c"}
    made = rows(change(None, BASE), change(BASE, one, 2, 1), change(one, two, 3, 2), change(two, None, 4, 3))
    assert [row.operation for row in ordered(made)] == [2, 3, 4, 3, 4, 1]
    assert [row.command_id for row in made] == [1, 2, 2, 3, 3, 4]


def test_a_key_that_changes_is_a_delete_and_an_insert_of_one_seqval() -> None:
    # [ISS: debezium PR 7728: same seqval, different command_id]
    deleted, inserted = rows(change(BASE, {**BASE, "id": "2"}))
    assert (deleted.operation, inserted.operation) == (Operation.DELETE, Operation.INSERT)
    assert deleted.seqval == inserted.seqval
    assert deleted.command_id < inserted.command_id
    assert (deleted.values[0], inserted.values[0]) == ("1", "2")


def test_keys_that_are_shifted_are_deleted_before_any_is_inserted() -> None:
    # [ISS: PowerSync #742, a wrong order loses rows; debezium PR 7728, in bulk the seqvals differ]
    shifted = [change({**BASE, "id": str(n)}, {**BASE, "id": str(n + 1)}, serial=n) for n in (1, 2, 3)]
    made = ordered(rows(*shifted))
    assert [(row.operation, row.values[0]) for row in made] == [
        (1, "1"),
        (1, "2"),
        (1, "3"),
        (2, "2"),
        (2, "3"),
        (2, "4"),
    ]
    assert len({row.seqval for row in made}) == 6


def test_changes_of_a_very_large_transaction_are_in_order() -> None:
    serials = (0, 32_767, 32_768, 10_000_000)
    made = rows(*(change(None, {**BASE, "id": str(n)}, serial=n) for n in serials))
    assert [row.values[0] for row in ordered(made)] == [str(n) for n in serials]
    moved = rows(*(change({**BASE, "id": str(n)}, {**BASE, "id": str(-n)}, serial=n) for n in serials[1:]))
    assert len({row.seqval for row in moved}) == 6


def test_commands_are_numbered_for_each_instance_alone() -> None:
    # [rule 3: never compare across instances]
    narrow = Instance(name="v2", columns=(INSTANCE.columns[0],), key=INSTANCE.key)
    changes = [change(BASE, {**BASE, "name": "b"}), change(BASE, None, 2, 1)]
    assert [row.command_id for row in change_rows(changes, INSTANCE, Hazards())] == [1, 1, 2]
    assert [row.command_id for row in change_rows(changes, narrow, Hazards())] == [1]


def test_old_large_types_are_null_in_deletes_and_before_updates() -> None:
    # [DOC: rule 8]
    assert rows(change(BASE, None))[0].values[4] is None
    before, after = rows(change(BASE, {**BASE, "old": "P"}))
    assert (before.values[4], after.values[4]) == (None, "P")


def test_max_values_are_null_before_an_update_unless_they_changed() -> None:
    # [DOC: rule 8]
    before, _ = rows(change(BASE, {**BASE, "name": "b"}))
    assert before.values[3] is None
    before, after = rows(change(BASE, {**BASE, "large": "M"}))
    assert (before.values[3], after.values[3]) == ("L", "M")


def test_an_unchanged_max_value_may_be_null_after_an_update_too() -> None:
    # [ISS: DBZ-6884]
    updated = change(BASE, {**BASE, "name": "b"})
    assert rows(updated)[1].values[3] is None
    assert rows(updated, hazards=Hazards(large_null_after=False))[1].values[3] == "L"


def test_a_bit_may_be_null_in_a_delete() -> None:
    # [ISS: Estuary, BitNotNullDeletion: of a BIT that is NOT NULL]
    assert rows(change(BASE, None))[0].values[2] is None
    nullable = replace(INSTANCE, columns=tuple(replace(column, is_required=False) for column in INSTANCE.columns))
    assert change_rows([change(BASE, None)], nullable, Hazards())[0].values[2] == "1"
    assert rows(change(BASE, None), hazards=Hazards(bits_null_in_deletes=False))[0].values[2] == "1"


def test_computed_columns_are_always_null() -> None:
    # [DOC: rule 8]
    assert rows(change(None, BASE))[0].values[5] is None


def test_a_dropped_column_is_null() -> None:
    # [LAB: rule 7]
    assert rows(change(None, {k: v for k, v in BASE.items() if k != "name"}))[0].values[1] is None


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**16 - 1)), min_size=2, max_size=10))
def test_an_lsn_keeps_the_order_of_the_log(positions: list[tuple[int, int]]) -> None:
    assert sorted(positions) == [
        position for _, position in sorted((to_lsn(*position), position) for position in positions)
    ]
    assert {len(to_lsn(*position)) for position in positions} == {10}


KEYS = st.integers(1, 4)
STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), KEYS, KEYS),
        st.tuples(st.just("delete"), KEYS, KEYS),
        st.tuples(st.just("set"), KEYS, KEYS),
        st.tuples(st.just("move"), KEYS, KEYS),
        st.tuples(st.just("shift"), KEYS, KEYS),
    ),
    max_size=8,
)


@given(STATEMENTS)
def test_a_replay_in_the_readers_order_is_the_table(statements: list[tuple[str, int, int]]) -> None:
    table: dict[int, Row] = {}
    changes: list[Change] = []
    for number, (kind, key, other) in enumerate(statements):
        after: dict[int, Row] = dict(table)
        if kind == "insert" and key not in table:
            after[key] = {**BASE, "id": str(key), "name": str(number)}
        elif kind == "delete":
            after.pop(key, None)
        elif kind == "set" and key in table:
            after[key] = {**table[key], "name": f"s{number}"}
        elif kind == "move" and key in table and other not in table:
            after[other] = {**after.pop(key), "id": str(other)}
        elif kind == "shift":
            after = {k + 1: {**row, "id": str(k + 1)} for k, row in table.items()}
        changes += logged(table, after, kind, key, other, number, len(changes))
        table = after
    replayed: dict[str, str | None] = {}
    for row in ordered(rows(*changes)):
        key_value = row.values[0] or ""
        if row.operation is Operation.DELETE:
            del replayed[key_value]
        elif row.operation is Operation.INSERT:
            assert key_value not in replayed
            replayed[key_value] = row.values[1]
        elif row.operation is Operation.UPDATE_AFTER:
            replayed[key_value] = row.values[1]
    assert replayed == {str(key): row["name"] for key, row in table.items()}


def logged(
    before: dict[int, Row], after: dict[int, Row], kind: str, key: int, other: int, number: int, serial: int
) -> list[Change]:
    """The changes of a statement as PostgreSQL logs them: an update is one, with the old row."""
    pairs: list[tuple[Row | None, Row | None]]
    if kind == "shift":
        pairs = [(row, after[k + 1]) for k, row in before.items()]
    elif kind == "move" and key in before and key not in after:
        pairs = [(before[key], after[other])]
    else:
        pairs = [(before.get(k), after.get(k)) for k in (key,) if before.get(k) != after.get(k)]
    return [change(old, new, number, serial + index) for index, (old, new) in enumerate(pairs)]
