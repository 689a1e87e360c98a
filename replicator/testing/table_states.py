"""What the state of a target's table has to answer when it is verified, computed by Python."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from replicator.model.schema import TableSchema
from replicator.plugins.kit import canonical
from replicator.plugins.verification import Below, Checksum, Ids, TableState


def expected(rows: pa.RecordBatch, schema: TableSchema) -> list[tuple[str, str]]:
    """Id and hash of every row, by Python."""
    texts = canonical.row_texts(rows)
    ids = canonical.key_texts(rows.select(list(schema.key))) if schema.key else texts
    return sorted((canonical.digest_of(id_), canonical.digest_of(text)) for id_, text in zip(ids, texts, strict=True))


def checksums_of(pairs: Sequence[tuple[str, str]], digits: int) -> dict[str, Checksum]:
    """The checksums of rows, by Python."""
    sums: dict[str, list[int]] = {}
    for id_, hash_ in pairs:
        found = sums.setdefault(id_[:digits], [0, 0, 0])
        found[0] += 1
        found[1] += int(hash_[:16], 16)
        found[2] += int(hash_[16:], 16)
    return {group: Checksum(n, high % 2**64, low % 2**64) for group, (n, high, low) in sums.items()}


def assert_rows(state: TableState, rows: pa.RecordBatch, schema: TableSchema) -> None:
    """Check by one question that the state has these rows and no others."""
    found = state.rows([""]).to_pylist()
    assert sorted((row["id"], row["hash"]) for row in found) == expected(rows, schema)


def assert_state(state: TableState, rows: pa.RecordBatch, schema: TableSchema) -> None:
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
