"""Savepoints as the server keeps them, and which parts of a group count for nothing. Pure."""

from __future__ import annotations

import random

import pytest

from replicator_source_mysql.log import undoing
from replicator_source_mysql.log.undoing import END, Savepoints, Undone, released_name, set_name, target_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SAVEPOINT `a`", "a"),
        ('savepoint  `a``b "c" -- # /* `', 'a`b "c" -- # /* '),
        ('SAVEPOINT "b "" c"', 'b " c'),
        ("SAVEPOINT abc", "abc"),
        ("SAVEPOINT `not closed", "`not closed"),
        ("SAVEPOINTS", None),
        ("ROLLBACK TO `a`", None),
    ],
)
def test_the_name_of_a_savepoint_is_read_in_every_spelling(text: str, name: str | None) -> None:
    assert set_name(text) == name


@pytest.mark.parametrize(
    "verb", ["ROLLBACK TO", "ROLLBACK TO SAVEPOINT", "ROLLBACK WORK TO", "rollback  work to savepoint"]
)
@pytest.mark.parametrize(
    ("spelled", "name"), [("`to`", "to"), ("`savepoint`", "savepoint"), ("x", "x"), ('"a b"', "a b")]
)
def test_the_name_to_go_back_to_is_read_in_every_spelling(verb: str, spelled: str, name: str) -> None:
    assert target_name(f"{verb} {spelled}") == name


def test_statements_of_other_kinds_are_none() -> None:
    assert target_name("ROLLBACK") is None
    assert released_name("SAVEPOINT a") is None
    assert released_name("RELEASE SAVEPOINT `a`") == "a"


class Model:
    """A list of rows and savepoints, as a server keeps them: each row with its position in the log."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.live: list[tuple[str, int]] = []

    def set(self, name: str) -> None:
        self.live = [s for s in self.live if s[0] != name]
        self.live.append((name, len(self.rows)))

    def back(self, name: str) -> None:
        at = [s[0] for s in self.live].index(name)
        del self.rows[self.live[at][1] :], self.live[at + 1 :]

    def release(self, name: str) -> None:
        del self.live[[s[0] for s in self.live].index(name) :]


@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", range(200))
def test_what_is_left_of_random_transactions_is_what_a_server_leaves(seed: int) -> None:
    chance = random.Random(seed)
    model, savepoints, positions = Model(), Savepoints(), list[int]()
    taken: list[int] = []  # as a pull: rows are cut where a savepoint's slot says so
    for position in range(1, chance.randint(2, 80)):
        names = [s[0] for s in model.live]
        match chance.choice(["row", "row", "row", "set", "back", "back", "release"]):
            case "row":
                model.rows.append(position)
                positions.append(position)
                taken.append(position)
            case "set":
                name = chance.choice("abc")
                model.set(name)
                savepoints.set(name, len(taken), position)
            case "back" if names:
                name = chance.choice(names)
                model.back(name)
                slot = savepoints.roll_back_to(name, position)
                assert slot is not None
                del taken[slot:]
            case "release" if names:
                name = chance.choice(names)
                model.release(name)
                savepoints.release(name)
            case _:
                pass
    assert taken == model.rows
    assert [p for p in positions if not savepoints.undone.has(p)] == model.rows, "and so does the second reading"
    assert [p for p in positions if not savepoints.undone.has(p)] == model.rows


def test_a_group_that_is_rolled_back_wholly_has_nothing_left() -> None:
    undone = Undone()
    undone.add(5, 9)
    undone.add(0, END)
    assert len(undone) == 1
    assert all(undone.has(position) for position in (1, 7, 1 << 40))


def test_savepoints_beyond_the_bound_are_forgotten_and_then_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undoing, "_SAVEPOINTS_MAX", 3)
    savepoints = Savepoints()
    for position, name in enumerate("abcd"):
        savepoints.set(name, position, position)
    assert savepoints.roll_back_to("a", 9) is None
    assert savepoints.roll_back_to("c", 9) == 2
    savepoints.release("a")  # older than all
    assert savepoints.roll_back_to("b", 9) is None
