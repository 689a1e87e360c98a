"""Which columns a Relation message means: proven where only one reading is possible, and never guessed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from replicator_source_postgresql.log.attributes import READINGS_MAX, Found, Known, Shown, kind_of, read


def shown(names: str) -> list[Shown]:
    """`a b:text`: columns with their kinds, `integer` if left out."""
    return [Shown(name, kind or "integer") for name, _, kind in (part.partition(":") for part in names.split())]


def numbered(names: str) -> dict[int, Shown]:
    """`1=a 2=b:text`."""
    parts = [part.split("=") for part in names.split()]
    return {int(number): shown(name)[0] for number, name in parts}


def reading(
    known: str,
    message: str,
    found: str,
    *,
    dropped: Sequence[int] = (),
    highest: int = 0,
    hidden: Sequence[int] = (),
    is_same_storage: bool = True,
) -> tuple[int, ...] | None:
    columns = numbered(known)
    return read(
        shown(message),
        Known(columns=columns, highest=max([highest, *columns]), hidden=frozenset(hidden)),
        Found(published=numbered(found), dropped=frozenset(dropped)),
        is_same_storage=is_same_storage,
    )


@pytest.mark.parametrize(
    ("known", "message", "found", "ids"),
    [
        ("1=id 2=a", "id b", "1=id 2=b", (1, 2)),
        ("1=id 2=a 3=b", "id b a", "1=id 2=b 3=a", (1, 2, 3)),
        ("1=id 2=a 3=b", "id b a", "1=id 2=x 3=y", (1, 2, 3)),
        ("1=id", "id a", "1=id 2=a", (1, 2)),
        ("1=id", "id a b", "1=id 2=a 3=b 4=c", (1, 2, 3)),
        ("1=id 2=a", "id b a", "1=id 2=b 3=c 4=a", (1, 2, 3)),
        ("1=id 2=a", "id a", "1=id 2=a 3=b", (1, 2)),
    ],
    ids=["renamed", "swapped", "renamed again since", "added", "more since", "renamed and added", "not yet"],
)
def test_while_nothing_is_dropped_the_order_of_numbers_proves_everything(
    known: str, message: str, found: str, ids: tuple[int, ...]
) -> None:
    assert reading(known, message, found) == ids
    assert reading(known, message, found, is_same_storage=False) == ids


def test_another_type_proves_nothing_against_the_only_reading() -> None:
    assert reading("1=id 2=a", "id a:text", "1=id 2=a:text") == (1, 2)


def test_a_dropped_column_is_gone_if_the_message_has_no_room_for_it() -> None:
    assert reading("1=id 2=a 3=b", "id b", "1=id 3=b", dropped=[2]) == (1, 3)


def test_a_column_that_is_dropped_later_is_there_if_the_message_needs_it() -> None:
    assert reading("1=id 2=a", "id x", "1=id", dropped=[2]) == (1, 2)
    assert reading("1=id 2=a", "id a b", "1=id 2=a", dropped=[3]) == (1, 2, 3)


def test_dropped_and_added_again_is_two_readings_even_under_the_same_name() -> None:
    assert reading("1=id 2=a", "id a", "1=id 3=a", dropped=[2]) is None
    assert reading("1=id 2=a", "id b", "1=id 3=b", dropped=[2]) is None


def test_names_prove_no_reading() -> None:
    known, message = "1=id 2=a 3=b", "id b c"
    assert reading(known, message, "1=id 3=b 4=c", dropped=[2]) is None
    assert reading(known, message, "1=id 3=b 4=z", dropped=[2]) is None


def test_types_prove_a_reading_while_the_table_is_not_rewritten() -> None:
    known, message, found = "1=id 2=a:text 3=b", "id b n:float", "1=id 3=b 4=n:float"
    assert reading(known, message, found, dropped=[2]) == (1, 3, 4)
    assert reading(known, message, found, dropped=[2], is_same_storage=False) is None


def test_what_was_dropped_before_is_no_reading() -> None:
    assert reading("1=id 2=a", "id a b", "1=id 2=a 5=b", dropped=[3, 4], highest=4) == (1, 2, 5)
    assert reading("1=id 2=a", "id a b", "1=id 2=a 5=b", dropped=[3, 4]) is None


def test_a_column_that_was_hidden_may_be_meant() -> None:
    found = "1=id 2=a 3=g 4=b"
    assert reading("1=id 2=a", "id a b", found, highest=3, hidden=[3]) is None


def test_a_new_column_comes_after_those_that_were_added_before_it() -> None:
    """3 lives still and was added before 4: a message with 4 has 3."""
    assert reading("1=id", "id x", "1=id 3=x", dropped=[2, 4]) is None
    assert reading("1=id", "id x", "1=id 2=x", dropped=[3]) == (1, 2)


def test_an_impossible_message_has_no_reading() -> None:
    assert reading("1=id 2=a", "id", "1=id 2=a") is None
    assert reading("1=id", "id a", "1=id") is None


def test_very_many_readings_are_not_looked_at() -> None:
    known = " ".join(f"{n}=c{n}" for n in range(1, 41))
    message = " ".join(f"c{n}" for n in range(1, 21))
    assert READINGS_MAX < 1 << 20
    assert reading(known, message, "", dropped=range(1, 41)) is None


def test_types_of_one_kind_become_each_other_without_a_rewrite() -> None:
    assert kind_of(pa.int32()) == kind_of(pa.int64())
    assert kind_of(pa.decimal128(6, 2)) == kind_of(pa.string())
    assert kind_of(pa.timestamp("us")) == kind_of(pa.timestamp("us", tz="UTC"))
    assert len({kind_of(t) for t in (pa.int32(), pa.string(), pa.float64(), pa.date32(), pa.bool_(), pa.binary())}) == 6


@pytest.mark.sampled(40)
@pytest.mark.parametrize("seed", range(300))
def test_a_proven_reading_is_what_happened(seed: int) -> None:
    """Random histories: what is known at one moment, a message at a later one, the catalogue at the last."""
    chance = random.Random(seed)
    live = {number: chance.choice("abc") for number in range(1, chance.randint(2, 5))}
    moments: list[tuple[Mapping[int, str], int]] = []
    made = max(live, default=0)
    for _ in range(3):
        for _ in range(chance.randint(0, 3)):
            match chance.choice(("add", "drop", "rename")):
                case "add":
                    made += 1
                    live[made] = chance.choice("abcd")
                case "drop" if live:
                    del live[chance.choice(list(live))]
                case "rename" if live:
                    live[chance.choice(list(live))] = chance.choice("abcd")
                case _:
                    pass
        moments.append((dict(live), made))
    (before, highest), (at, _), (after, last) = moments
    found = read(
        [Shown(name, "integer") for name in at.values()],
        Known(columns={n: Shown(name, "integer") for n, name in before.items()}, highest=highest),
        Found(
            published={n: Shown(name, "integer") for n, name in after.items()},
            dropped=frozenset(range(1, last + 1)) - after.keys(),
        ),
        is_same_storage=True,
    )
    assert found in (None, tuple(at))
