"""What lies between two versions of a table, and what makes one of the other."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from replicator.model.alteration import alteration, steps
from replicator.model.events import DDLEvent, DDLOperation, event_from_json, no_fill
from replicator.model.schema import Column, TableId, TableSchema

TABLE = TableId("public", "t")


def shape(
    *columns: tuple[int | None, str], key: tuple[str, ...] = ("id",), kept: tuple[Column, ...] = ()
) -> TableSchema:
    """The columns by number and name, behind `id`."""
    named = ((1 if columns and columns[0][0] is not None else None, "id"), *columns)
    made = tuple(Column(name=name, type=pa.string(), source_type="text", id=id_) for id_, name in named)
    return TableSchema(table=TABLE, columns=made, key=key, kept=kept)


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def test_columns_with_numbers_are_told_apart_by_them() -> None:
    found = alteration(shape((2, "a"), (3, "b")), shape((2, "b"), (3, "a"), (4, "c")))
    assert [(old.name, new.name) for old, new in found.renamed] == [("a", "b"), ("b", "a")]
    assert (names(found.added), found.dropped, found.has_other_key) == (["c"], (), False)


def test_columns_without_numbers_are_told_apart_by_their_names() -> None:
    found = alteration(shape((None, "a"), (None, "b")), shape((None, "b"), (None, "c")))
    assert (names(found.added), names(found.dropped), found.renamed) == (["c"], ["a"], ())


def test_a_name_with_another_number_is_another_column() -> None:
    before, after = shape((2, "a")), shape((3, "a"))
    found = alteration(before, after)
    assert (names(found.added), names(found.dropped)) == (["a"], ["a"])
    assert steps(before, after).origin == {"id": "id", "a": None}
    assert steps(before, after).dropped == ("a",)


def test_a_key_whose_column_is_renamed_is_the_same_key() -> None:
    before = shape((2, "a"))
    renamed = replace(before, columns=(replace(before.columns[0], name="no"), before.columns[1]), key=("no",))
    assert not alteration(before, renamed).has_other_key
    assert alteration(before, shape((2, "a"), key=("id", "a"))).has_other_key


def test_order_and_types_are_told() -> None:
    before, after = shape((2, "a"), (3, "b")), shape((3, "b"), (2, "a"))
    assert alteration(before, after).is_reordered
    assert not alteration(before, shape((3, "b"))).is_reordered
    other = replace(before.columns[1], type=pa.int64())
    found = alteration(before, replace(before, columns=(before.columns[0], other, before.columns[2])))
    assert [(old.name, str(new.type)) for old, new in found.retyped] == [("a", "int64")]


def test_steps_follow_kept_columns_by_their_numbers() -> None:
    kept = Column(name="a", type=pa.string(), source_type="text", id=-1)
    before = shape((2, "b"), kept=(kept,))
    after = shape((2, "b"), (3, "a"), kept=(replace(kept, name="a__dropped_1"),))
    made = steps(before, after)
    assert made.renamed == {"a": "a__dropped_1"}
    assert (made.added, made.dropped) == (("a",), ())


def test_kept_columns_change_the_fingerprint_and_numbers_do_not() -> None:
    plain = shape((2, "a"))
    assert plain.fingerprint == shape((7, "a")).fingerprint
    assert plain.fingerprint != replace(plain, kept=(plain.columns[1],)).fingerprint


def test_an_alteration_is_read_back_as_it_was_written() -> None:
    kept = (Column(name="old", type=pa.string(), source_type="text", id=-1),)
    fill = pa.RecordBatch.from_arrays([pa.array(["7"])], names=["a"])
    event = DDLEvent(
        operation=DDLOperation.ALTER_TABLE,
        table=TABLE,
        before=shape(kept=kept),
        schema=shape((2, "a"), kept=kept),
        fill=fill,
    )
    assert event_from_json(event.to_json()) == event
    assert event_from_json(replace(event, fill=no_fill()).to_json()) == replace(event, fill=no_fill())
    assert event_from_json(replace(event, fill=None, before=None).to_json()) == replace(event, fill=None, before=None)
