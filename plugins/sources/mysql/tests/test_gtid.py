"""GTID sets and positions: their algebra holds, whatever they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator_source_mysql.coordinates.gtid import owned_gtids
from replicator_source_mysql.positions.gtid_sets import GtidPosition, GtidSet
from replicator_source_mysql.positions.position import Position

A, B = "aaaaaaaa-0000-0000-0000-000000000001", "bbbbbbbb-0000-0000-0000-000000000002"
SOURCES = [A, B, f"{A}:tag", f"{B}:other_tag"]

members = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 40)), max_size=60)


def set_of(numbers: set[tuple[str, int]]) -> GtidSet:
    made = GtidSet()
    for source, number in numbers:
        made = made.with_number(source, number)
    return made


def numbers_of(gtids: GtidSet) -> set[tuple[str, int]]:
    return {(source, n) for source, intervals in gtids.sources.items() for a, b in intervals for n in range(a, b + 1)}


@given(members, members)
def test_gtid_sets_are_sets(a: set[tuple[str, int]], b: set[tuple[str, int]]) -> None:
    left, right = set_of(a), set_of(b)
    assert numbers_of(left) == a
    assert numbers_of(left.union(right)) == a | b
    assert numbers_of(left.without(right)) == a - b
    assert left.covers(right) == (a >= b)
    assert bool(left) == bool(a)
    assert (left == right) == (a == b)
    for source in SOURCES:
        assert [n for n in range(1, 45) if left.has(source, n)] == sorted(n for s, n in a if s == source)
        assert all((f"{source}:{n}" in left) == ((source, n) in a) for n in range(1, 45))


@given(members, st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 40)), max_size=60))
def test_many_gtids_at_once_are_as_one_after_the_other(a: set[tuple[str, int]], more: list[tuple[str, int]]) -> None:
    texts = [f"{source}:{number}" for source, number in more]
    one_by_one = set_of(a)
    for text in texts:
        one_by_one = one_by_one.with_gtid(text)
    assert set_of(a).with_gtids(texts) == one_by_one
    position = GtidPosition.of("3-1-5")
    of_mariadb = [f"{SOURCES.index(source)}-1-{number}" for source, number in more]
    stepwise = position
    for text in of_mariadb:
        stepwise = stepwise.with_gtid(text)
    assert position.with_gtids(of_mariadb) == stepwise


@given(members)
def test_gtid_sets_are_read_back_as_they_were_written(a: set[tuple[str, int]]) -> None:
    assert GtidSet.of(str(set_of(a))) == set_of(a)


def test_gtid_sets_are_read_as_servers_write_them() -> None:
    text = f"{A.upper()}:1-3:5:Tag:1-2:7,\n {B}:9"
    assert str(GtidSet.of(text)) == f"{A}:1-3:5:tag:1-2:7,{B}:9"
    assert str(GtidSet.of(f"{A}:3-5:1-2:4-8")) == f"{A}:1-8"
    assert GtidSet.of("") == GtidSet()


@pytest.mark.parametrize("text", ["x", A, f"{A}:0", f"{A}:5-3", f"{A}:1-2-3", f"{A}:-1", f"{A}:TAG!:1", "0-1-5"])
def test_what_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        GtidSet.of(text)


def test_gtid_sets_are_encoded_as_the_protocol_has_them() -> None:
    plain = GtidSet.of(f"{A}:1-3:7")
    assert plain.encoded() == (
        (1).to_bytes(8, "little")
        + bytes.fromhex(A.replace("-", ""))
        + b"".join(n.to_bytes(8, "little") for n in (2, 1, 4, 7, 8))
    )
    tagged = GtidSet.of(f"{A}:tag:1").encoded()
    assert tagged[:8] == bytes([1, 1, 0, 0, 0, 0, 0, 1])
    assert tagged[24:28] == b"\x06tag"


def test_gtids_that_are_being_committed_are_read_with_their_threads() -> None:
    text = f"{A}:5#12:6#13,\n{B}:tag:1#9"
    assert owned_gtids(text) == GtidSet.of(f"{A}:5-6,{B}:tag:1")
    assert owned_gtids("") == GtidSet()


positions = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(1, 3), st.integers(1, 50)))


@given(positions, positions)
def test_mariadb_positions_are_ordered_domain_by_domain(
    a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]]
) -> None:
    left, right = GtidPosition(a), GtidPosition(b)
    assert left.covers(left)
    assert left.covers(right) == all(d in a and a[d][1] >= n for d, (_, n) in b.items())
    if left.covers(right) and right.covers(left):
        assert {d: n for d, (_, n) in a.items()} == {d: n for d, (_, n) in b.items()}
    assert GtidPosition.of(str(left)) == GtidPosition(dict(sorted(a.items())))
    grown = left.with_gtid("7-1-60")
    assert grown.covers(left)
    assert "7-1-60" in grown
    assert "7-1-61" not in grown
    assert not left.covers(grown)


@pytest.mark.parametrize("text", ["0-1", "0-1-2,0-1-3", "a-b-c", f"{A}:1"])
def test_what_is_no_mariadb_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        GtidPosition.of(text)


def test_offsets_are_read_back_as_they_were_written() -> None:
    plain = Position(executed=GtidSet.of(f"{A}:1-3"), server=A, file="binlog.000003", pos=17)
    held = Position(
        executed=GtidPosition.of("0-1-9"),
        server="1",
        prepared=("0-1-5",),
        restart=GtidPosition.of("0-1-4"),
    )
    for position in (plain, held):
        assert Position.of(position.offset) == position
    assert not plain.covers(held)
    assert not held.covers(plain)
