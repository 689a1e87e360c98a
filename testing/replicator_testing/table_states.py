"""Expected answers of the state of a target's table when it is verified, computed by Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from replicator.model.schema import TableSchema
from replicator.plugins.kit import canonical
from replicator.plugins.kit.keyranges import holds, sort_key
from replicator.plugins.verification import Below, Checksum, Ids, KeyRange, SourceState, VerifiedState

_BOUNDS_MAX: Final = 6


def expected(rows: pa.RecordBatch, schema: TableSchema) -> list[tuple[str, str]]:
    """Return id and hash of every row, by Python."""
    return sorted(_identified(rows, schema))


def _identified(rows: pa.RecordBatch, schema: TableSchema) -> list[tuple[str, str]]:
    texts = canonical.row_texts(rows)
    ids = canonical.key_texts(rows.select(list(schema.key))) if schema.key else texts
    return [(canonical.digest_of(id_), canonical.digest_of(text)) for id_, text in zip(ids, texts, strict=True)]


def checksums_of(pairs: Sequence[tuple[str, str]], digits: int) -> dict[str, Checksum]:
    """Return the checksums of rows, by Python."""
    sums: dict[str, list[int]] = {}
    for id_, hash_ in pairs:
        found = sums.setdefault(id_[:digits], [0, 0, 0])
        found[0] += 1
        found[1] += int(hash_[:16], 16)
        found[2] += int(hash_[16:], 16)
    return {group: Checksum(n, high % 2**64, low % 2**64) for group, (n, high, low) in sums.items()}


def assert_rows(state: VerifiedState, rows: pa.RecordBatch, schema: TableSchema) -> None:
    """Check by one question that the state has these rows and no others."""
    found = state.rows([""]).to_pylist()
    assert sorted((row["id"], row["hash"]) for row in found) == expected(rows, schema)


def assert_state(state: VerifiedState, rows: pa.RecordBatch, schema: TableSchema) -> None:
    """Check every question that a state can be asked."""
    assert_rows(state, rows, schema)
    pairs = expected(rows, schema)
    for digits in range(5):
        assert {g: c for g, c in state.checksums(digits).items() if c.rows} == checksums_of(pairs, digits)
    ids = sorted({id_ for id_, _ in pairs})
    for among in (Below("5" + "0" * 31), Ids(frozenset({*ids[:1000:2], "0" * 32})), Ids(frozenset())):
        some = [pair for pair in pairs if pair[0] in among]
        for digits in (0, 4):
            assert {g: c for g, c in state.checksums(digits, among).items() if c.rows} == checksums_of(some, digits)
    for groups in [["0", "7", "f"], sorted({id_[:4] for id_, _ in pairs})[:20], ids[:7]]:
        found = state.rows(groups).to_pylist()
        wanted = [pair for pair in pairs if pair[0][: len(groups[0])] in groups]
        assert sorted((row["id"], row["hash"]) for row in found) == wanted
    assert state.rows([]).num_rows == 0


def assert_ranges(state: VerifiedState, rows: pa.RecordBatch, schema: TableSchema, *, columns: int) -> None:
    """Check that a state has these rows in ranges of this many columns of the key: those that Python has there, and no row twice."""
    assert tuple(state.range_key) == tuple(schema.key[:columns])
    keys = _keys(rows, schema)
    pairs = _identified(rows, schema)
    for count in range(1, columns + 1):
        found_keys = sorted({tuple(map(str, key[:count])) for key in keys if None not in key}, key=sort_key)
        bounds = found_keys[:: max(1, len(found_keys) // _BOUNDS_MAX)] + found_keys[-1:]
        ranges = [KeyRange(schema.key[:count], after, upto) for after, upto in pairwise([None, *bounds, None])]
        found = [assert_range(state, within, keys, pairs) for within in ranges]
        assert sum(found) == len(keys)
        if isinstance(state, SourceState):
            for after in (None, *bounds):
                assert_bounds(state, KeyRange(schema.key[:count], after), keys)


def assert_range(
    state: VerifiedState, within: KeyRange, keys: Sequence[Sequence[str | None]], pairs: Sequence[tuple[str, str]]
) -> int:
    """Check a state's answers about a range; return its number of rows."""
    inside = [pair for pair, key in zip(pairs, keys, strict=True) if holds(within, key)]
    for digits in (0, 2):
        found = {g: c for g, c in state.checksums(digits, None, within).items() if c.rows}
        assert found == checksums_of(inside, digits), within
    some = Ids(frozenset(id_ for id_, _ in pairs[::2]))
    few = checksums_of([pair for pair in inside if pair[0] in some], 0)
    assert {g: c for g, c in state.checksums(0, some, within).items() if c.rows} == few
    assert sorted((row["id"], row["hash"]) for row in state.rows([""], within).to_pylist()) == sorted(inside)
    assert state.texts([id_ for id_, _ in pairs[:1000]], within).keys() == {
        id_ for id_, _ in pairs[:1000] if id_ in {one for one, _ in inside}
    }
    return len(inside)


def assert_bounds(state: SourceState, behind: KeyRange, keys: Sequence[Sequence[str | None]]) -> None:
    """Check the ends of ranges that a source returns."""
    count = len(behind.columns)
    left = sorted((tuple(map(str, key[:count])) for key in keys if holds(behind, key)), key=sort_key)
    for rows in {1, 2, len(left) // 2 or 1, len(left) or 1, len(left) + 1}:
        wanted = left[rows - 1] if rows <= len(left) else None
        assert state.bound(behind.columns, behind.after, rows) == wanted, (behind, rows)


def _keys(rows: pa.RecordBatch, schema: TableSchema) -> list[tuple[str | None, ...]]:
    return list(zip(*(canonical.column_texts(rows.column(name), is_key=True) for name in schema.key), strict=True))
