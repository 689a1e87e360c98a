from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator_source_sqlserver.lsn import SIZE, ZERO, lsn_from_text, lsn_to_text, next_lsn, previous_lsn

lsns = st.binary(min_size=SIZE, max_size=SIZE)


@given(lsns)
def test_a_position_is_spelled_and_read_back(lsn: bytes) -> None:
    assert lsn_from_text(lsn_to_text(lsn)) == lsn
    assert lsn_from_text(lsn_to_text(lsn).lower()) == lsn


def test_it_is_spelled_as_the_server_does() -> None:
    assert lsn_to_text(bytes.fromhex("0000002c000001a80003")) == "0x0000002C000001A80003"


@pytest.mark.parametrize(
    "text", ["", "0x", "0000002C000001A80003", "0x0000002C000001A8000", "0x0000002C000001A80003 ", "0xg"]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        lsn_from_text(text)


def test_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="10 bytes"):
        lsn_to_text(b"\0" * 9)


@given(lsns, lsns)
def test_neighbours_have_nothing_in_between(one: bytes, other: bytes) -> None:
    if one < other:
        assert next_lsn(one) <= other
        assert one <= previous_lsn(other)
        assert previous_lsn(next_lsn(one)) == one


def test_the_ends_have_no_neighbours() -> None:
    with pytest.raises(OverflowError):
        previous_lsn(ZERO)
    with pytest.raises(OverflowError):
        next_lsn(b"\xff" * SIZE)
