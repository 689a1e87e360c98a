"""Decoding of the log's messages without a server: shapes, kinds of tuples, positions where a pull ends, and bytes that are wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from replicator.model.errors import CorruptStreamError, FatalError, KeyMissingError, TableError, UnsupportedTypeError
from replicator.model.events import DDLOperation, change_schema
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.source import LogBatch, PullLimits
from replicator_source_postgresql.log.lookups import Described, LiveColumns
from replicator_source_postgresql.log.reader import LsnMarks, PgLogReader, mark_prefix
from replicator_source_postgresql.lsn import lsn_from_text, lsn_to_text, widen_xid
from replicator_source_postgresql.snapshot.reader import PgVisibility
from replicator_source_postgresql.types import TypeInfo
from replicator_source_postgresql.wire import Block

INT4, TEXT, NUMERIC = 23, 25, 1700
INFOS = {
    INT4: TypeInfo(oid=INT4, name="int4", namespace="pg_catalog", kind="b", output="pg_catalog.int4out"),
    TEXT: TypeInfo(oid=TEXT, name="text", namespace="pg_catalog", kind="b", output="pg_catalog.textout"),
    NUMERIC: TypeInfo(oid=NUMERIC, name="numeric", namespace="pg_catalog", kind="b", output="pg_catalog.numeric_out"),
}
NUMERIC_6_2 = (6 << 16 | 2) + 4
SHOP = TableId("public", "shop")
SCHEMA = TableSchema(
    table=SHOP,
    columns=(
        Column(name="id", type=pa.int32(), source_type="int4", nullable=False),
        Column(name="note", type=pa.string(), source_type="text"),
        Column(name="price", type=pa.decimal128(6, 2), source_type="numeric(6,2)"),
    ),
    key=("id",),
)
KEYLESS = TableSchema(table=SHOP, columns=SCHEMA.columns)
COLUMNS = (("id", INT4, -1, 1), ("note", TEXT, -1, 0), ("price", NUMERIC, NUMERIC_6_2, 0))
COMMITTED = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
MANY = PullLimits(rows=1000, bytes=1 << 20, wait_s=0)
UNCHANGED = object()


class RecordedFeed:
    """Hands out prepared messages."""

    sends_messages = True

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = list(messages)
        self.is_answer_wanted = False
        self.confirmed: list[int | None] = []

    def receive(self, *, count_max: int, bytes_max: int, wait_s: float) -> list[Block]:
        taken, self.messages = self.messages[:count_max], self.messages[count_max:]
        return [Block(b"".join(taken), np.array([len(m) for m in taken], np.int64))] if taken else []

    def confirm(self, durable_lsn: int | None = None) -> None:
        self.confirmed.append(durable_lsn)

    def close(self) -> None:
        pass


def data(content: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", 0, 0, 0) + content


def keepalive(end: int, *, wants_answer: bool = False) -> bytes:
    return b"k" + struct.pack(">QqB", end, _us(COMMITTED + timedelta(minutes=1)), wants_answer)


def _us(moment: datetime) -> int:
    return (moment - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def begin(xid: int, lsn: int) -> bytes:
    return data(b"B" + struct.pack(">QqI", lsn, _us(COMMITTED), xid))


def commit(lsn: int) -> bytes:
    return data(b"C" + struct.pack(">BQQq", 0, lsn, lsn + 8, _us(COMMITTED)))


def relation(
    columns: Sequence[tuple[str, int, int, int]] = COLUMNS, *, oid: int = 7, name: str = "shop", identity: str = "d"
) -> bytes:
    body = b"".join(
        struct.pack(">B", flags) + column.encode() + b"\0" + struct.pack(">Ii", type_oid, typmod)
        for column, type_oid, typmod, flags in columns
    )
    return data(
        b"R"
        + struct.pack(">I", oid)
        + b"public\0"
        + name.encode()
        + b"\0"
        + identity.encode()
        + struct.pack(">H", len(columns))
        + body
    )


def row(*values: Any) -> bytes:
    parts = []
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            text = str(value).encode()
            parts.append(b"t" + struct.pack(">i", len(text)) + text)
    return struct.pack(">H", len(values)) + b"".join(parts)


def insert(*values: Any, oid: int = 7) -> bytes:
    return data(b"I" + struct.pack(">I", oid) + b"N" + row(*values))


def update(*values: Any, key: Sequence[Any] | None = None, old: Sequence[Any] | None = None, oid: int = 7) -> bytes:
    before = b"K" + row(*key) if key is not None else b"O" + row(*old) if old is not None else b""
    return data(b"U" + struct.pack(">I", oid) + before + b"N" + row(*values))


def delete(*values: Any, kind: bytes = b"K", oid: int = 7) -> bytes:
    return data(b"D" + struct.pack(">I", oid) + kind + row(*values))


def truncate(*oids: int) -> bytes:
    return data(b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids))


def message(text: str, *, prefix: str = mark_prefix("u"), is_transactional: bool = True) -> bytes:
    content = text.encode()
    return data(
        b"M"
        + struct.pack(">BQ", is_transactional, 0)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )


def transaction(*content: bytes, xid: int = 100, lsn: int = 1000) -> list[bytes]:
    return [begin(xid, lsn), *content, commit(lsn)]


class NoTables:
    """A catalogue that has types, and no tables any more."""

    def types(self, oids: Collection[int]) -> Mapping[int, TypeInfo]:
        return {oid: INFOS[oid] for oid in oids if oid in INFOS}

    def live_columns(self, oids: Collection[int], since: Described) -> LiveColumns:
        return LiveColumns(PgVisibility(1, 1 << 62), {}, {})

    def table(self, table: TableId, since: Described) -> None:
        return None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def reader_of(messages: Sequence[bytes], schema: TableSchema = SCHEMA, **settings: Any) -> PgLogReader:
    feed: Any = RecordedFeed(messages)
    return PgLogReader(
        feed,
        **{
            "schemas": {schema.table: schema},
            "lookups": NoTables(),
            "start_lsn": 0,
            "xid_near": 100,
            "marks": mark_prefix("u"),
            "lsn_marks": LsnMarks(),
            "offset_fields": {"timeline": 1},
            "objects": {},
            "accepted": {},
            "unrepresentable": "fail",
            "log_end": None,
            "has_early_keepalives": False,
            "idle_move_s": 10.0,
            "clock": Clock(),
            **settings,
        },
    )


def pulled(*messages: bytes, schema: TableSchema = SCHEMA, limits: PullLimits = MANY, **settings: Any) -> LogBatch:
    return reader_of([*messages], schema, **settings).pull(limits)


def rows_of(batch: LogBatch) -> list[dict[str, Any]]:
    (changes,) = batch.changes
    changes.rows.validate(full=True)
    assert changes.rows.schema == change_schema(changes.schema)
    return changes.rows.to_pylist()


def test_insert_update_and_delete_become_rows_in_log_order() -> None:
    batch = pulled(*transaction(relation(), insert(1, "a", "1.50"), update(1, None, "2.00"), delete(1, None, None)))
    rows = rows_of(batch)
    assert [(r["_sequence_num"], r["_operation"], r["before"], r["row"]) for r in rows] == [
        (0, "INSERT", None, {"id": 1, "note": "a", "price": pytest.approx(1.5)}),
        (1, "UPDATE", None, {"id": 1, "note": None, "price": 2}),
        (2, "DELETE", {"id": 1}, None),
    ]
    assert {(r["_transaction_id"], r["_source_timestamp"], r["_is_snapshot"]) for r in rows} == {
        ("100", COMMITTED, False)
    }
    assert batch.events == 3
    assert batch.open_transaction is None
    assert batch.offset is not None
    assert batch.offset.value == {"lsn": lsn_to_text(1008), "timeline": 1}
    assert batch.source_time == COMMITTED
    assert batch.transactions.to_pylist() == [{"id": "100", "end_ordinal": 3, "committed_at": COMMITTED}]


def test_a_changed_key_brings_the_old_one() -> None:
    batch = pulled(
        *transaction(
            relation(),
            update(2, "a", None, key=(1, None, None)),
            update(3, "b", None),
            update(3, "c", None, key=(3, None, None)),
        )
    )
    assert [r["before"] for r in rows_of(batch)] == [{"id": 1}, None, None]


def test_unchanged_values_are_absent_and_not_null() -> None:
    batch = pulled(
        *transaction(
            relation(),
            update(1, UNCHANGED, None),
            update(2, UNCHANGED, "1", key=(1, None, None)),
            insert(3, None, None),
            delete(3, None, None),
        )
    )
    rows = rows_of(batch)
    assert [r["_absent"] for r in rows] == [["note"], ["note"], [], []]
    assert rows[0]["row"] == {"id": 1, "note": None, "price": None}


def test_unchanged_values_are_taken_from_a_whole_old_row() -> None:
    batch = pulled(
        *transaction(
            relation(identity="f"),
            update(1, UNCHANGED, "2", old=(1, "old", "1")),
            update(2, UNCHANGED, "2", old=(1, "older", "1")),
            update(3, "x", "1", old=(3, "y", "1")),
        )
    )
    rows = rows_of(batch)
    assert [r["row"]["note"] for r in rows] == ["old", "older", "x"]
    assert [r["_absent"] for r in rows] == [None, None, None]
    assert [r["before"] for r in rows] == [None, {"id": 1}, None]


def test_an_unchanged_key_value_is_taken_from_the_old_key() -> None:
    batch = pulled(*transaction(relation(), update(UNCHANGED, "a", None, key=(5, None, None))))
    assert rows_of(batch)[0]["row"]["id"] == 5
    assert rows_of(batch)[0]["before"] is None


def test_a_table_without_a_key_gets_whole_old_rows() -> None:
    batch = pulled(
        *transaction(
            relation(identity="f"),
            insert(1, "a", "1"),
            update(1, "b", "1", old=(1, "a", "1")),
            delete(1, "b", "1.00", kind=b"O"),
        ),
        schema=KEYLESS,
    )
    assert [r["before"] and r["before"]["note"] for r in rows_of(batch)] == [None, "a", "b"]


@pytest.mark.parametrize(
    "change", [update(1, "b", "1"), update(2, "b", "1", key=(1, None, None)), delete(1, None, None)]
)
def test_a_table_without_a_key_and_without_old_rows_fails(change: bytes) -> None:
    batch = pulled(*transaction(relation(identity="f"), change), schema=KEYLESS)
    assert batch.changes == []
    assert isinstance(batch.table_errors[SHOP], KeyMissingError)


def test_a_change_without_its_key_fails_the_table_and_the_others_continue() -> None:
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns, key=("id",))
    reader = reader_of(
        [
            *transaction(
                relation(),
                relation(oid=8, name="other"),
                insert(1, "a", "1", oid=8),
                update(UNCHANGED, "a", "1"),
                insert(2, "b", "1", oid=8),
            ),
            *transaction(insert(9, "x", "1"), insert(3, "c", "1", oid=8), lsn=2000, xid=101),
        ],
        schemas={SHOP: SCHEMA, other.table: other},
    )
    batch = reader.pull(MANY)
    assert isinstance(batch.table_errors[SHOP], KeyMissingError)
    assert [(c.schema.table, c.rows.num_rows) for c in batch.changes] == [(other.table, 3)]
    assert [r["row"]["id"] for r in rows_of(batch)] == [1, 2, 3]


def test_rows_of_other_tables_take_no_ordinals() -> None:
    batch = pulled(
        *transaction(
            relation(),
            relation(oid=8, name="audit"),
            insert(1, "a", "1", oid=8),
            insert(1, "a", "1"),
            insert(2, "a", "1", oid=8),
        )
    )
    assert [r["_sequence_num"] for r in rows_of(batch)] == [0]
    assert batch.events == 1


def test_rows_of_several_tables_share_one_order() -> None:
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns, key=("id",))
    batch = pulled(
        *transaction(
            relation(),
            relation(oid=8, name="other"),
            insert(1, "a", "1"),
            insert(2, "b", "1", oid=8),
            insert(3, "c", "1"),
        ),
        *transaction(insert(4, "d", "1", oid=8), xid=101, lsn=2000),
        schemas={SHOP: SCHEMA, other.table: other},
    )
    by_table = {c.schema.table: c.rows.column("_sequence_num").to_pylist() for c in batch.changes}
    assert by_table == {SHOP: [0, 2], other.table: [1, 3]}
    assert batch.transactions.to_pydict()["end_ordinal"] == [3, 4]


def test_a_big_transaction_is_pulled_in_bounded_parts() -> None:
    reader = reader_of(
        [
            *transaction(relation(), *(insert(n, "x", "1") for n in range(10))),
            *transaction(insert(10, "y", "1"), xid=101, lsn=2000),
        ]
    )
    seen: list[int] = []
    batches = []
    while len(seen) < 11:
        batch = reader.pull(PullLimits(rows=4, bytes=1 << 20, wait_s=0))
        batches.append(batch)
        seen += [r["row"]["id"] for r in rows_of(batch)]
    assert seen == list(range(11))
    assert all(b.events <= 4 for b in batches)
    assert [(b.open_transaction, b.offset is not None, b.transactions.num_rows) for b in batches] == [
        ("100", False, 0),
        ("100", False, 0),
        (None, True, 2),
    ]
    assert batches[2].transactions.to_pydict()["end_ordinal"] == [2, 3]


def test_bytes_bound_a_pull_up_to_one_message() -> None:
    reader = reader_of([*transaction(relation(), *(insert(n, "x" * 1000, "1") for n in range(10)))])
    counts: list[int] = []
    while sum(counts) < 10:
        batch = reader.pull(PullLimits(rows=1000, bytes=2500, wait_s=0))
        counts.append(sum(c.rows.num_rows for c in batch.changes))
    assert max(counts) <= 3
    assert len(counts) >= 4


def test_a_pull_that_brings_nothing_leaves_an_open_transaction_open() -> None:
    reader = reader_of([begin(101, 900)])
    first, silent = reader.pull(MANY), reader.pull(MANY)
    assert first.open_transaction == silent.open_transaction is not None
    assert silent.offset is None


def test_a_transaction_that_only_ends_in_a_pull_is_listed() -> None:
    reader = reader_of([*transaction(relation(), insert(1, "a", "1"))[:-1]])
    assert reader.pull(MANY).open_transaction == "100"
    feed: Any = reader._feed
    feed.messages = [commit(1000)]
    batch = reader.pull(MANY)
    assert batch.transactions.to_pylist() == [{"id": "100", "end_ordinal": 0, "committed_at": COMMITTED}]
    assert batch.open_transaction is None


def test_an_added_column_is_a_ddl_event_at_its_position() -> None:
    wider = (*COLUMNS, ("extra", TEXT, -1, 0))
    reader = reader_of(
        [
            *transaction(relation(), insert(1, "a", "1"), relation(wider), insert(2, "b", "2", "new")),
            *transaction(relation(wider), insert(3, "c", "3", "n"), xid=101, lsn=2000),
        ]
    )
    before, at, after, again, rest = (reader.pull(MANY) for _ in range(5))
    assert [r["row"]["id"] for r in rows_of(before)] == [1]
    assert before.ddl == []
    (event,) = at.ddl
    assert at.events == 1
    assert event.operation is DDLOperation.ALTER_TABLE
    assert event.transaction_id == "100"
    assert event.source_timestamp == COMMITTED
    # The catalogue does not know the table: nobody says which columns these are.
    assert (event.schema, event.fill) == (event.before, None)
    assert after.ddl == []
    assert again.ddl == [replace(event, transaction_id="101")]
    assert [r["row"].get("extra") for batch in (after, rest) for r in rows_of(batch)] == ["new", "n"]
    assert [i for batch in (after, rest) for i in batch.transactions.to_pydict()["id"]] == ["100", "101"]


@pytest.mark.parametrize(
    "columns",
    [
        COLUMNS[:2],
        (COLUMNS[0], ("memo", TEXT, -1, 0), COLUMNS[2]),
        (COLUMNS[0], ("note", INT4, -1, 0), COLUMNS[2]),
        (COLUMNS[0], COLUMNS[1], ("price", NUMERIC, (8 << 16 | 2) + 4, 0)),
        (COLUMNS[1], COLUMNS[0], COLUMNS[2]),
        (COLUMNS[0], ("note", TEXT, -1, 1), COLUMNS[2]),
        (("id", INT4, -1, 0), COLUMNS[1], COLUMNS[2]),
    ],
    ids=["dropped", "renamed", "retyped", "wider decimal", "reordered", "key grown", "key gone"],
)
def test_another_shape_is_a_ddl_event(columns: Sequence[tuple[str, int, int, int]]) -> None:
    batch = pulled(*transaction(relation(columns)))
    assert [e.operation for e in batch.ddl] == [DDLOperation.ALTER_TABLE]
    assert batch.events == 1


def test_full_identity_names_every_column_and_changes_no_key() -> None:
    flagged = tuple((name, oid, typmod, 1) for name, oid, typmod, _ in COLUMNS)
    assert pulled(*transaction(relation(flagged, identity="f"))).ddl == []


def test_a_longer_varchar_is_no_event() -> None:
    assert pulled(*transaction(relation((COLUMNS[0], ("note", TEXT, 24, 0), COLUMNS[2])))).ddl == []


def test_a_renamed_table_is_an_event_and_its_rows_have_the_new_name() -> None:
    reader = reader_of([*transaction(relation(), insert(1, "a", "1"), relation(name="elsewhere"), insert(2, "b", "1"))])
    assert len(rows_of(reader.pull(MANY))) == 1
    (event,) = reader.pull(MANY).ddl
    assert (event.operation, event.new_table) == (DDLOperation.RENAME_TABLE, TableId("public", "elsewhere"))
    batch = reader.pull(MANY)
    assert [changes.schema.table for changes in batch.changes] == [TableId("public", "elsewhere")]
    assert [row["row"]["id"] for row in rows_of(batch)] == [2]


def test_truncating_several_tables_is_one_event_each() -> None:
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns, key=("id",))
    reader = reader_of(
        transaction(
            relation(),
            relation(oid=8, name="other"),
            relation(oid=9, name="audit"),
            insert(1, "a", "1"),
            truncate(7, 8, 9),
            insert(2, "b", "1"),
        ),
        schemas={SHOP: SCHEMA, other.table: other},
    )
    batch = reader.pull(MANY)
    assert [(e.operation, e.table) for e in batch.ddl] == [
        (DDLOperation.TRUNCATE_TABLE, SHOP),
        (DDLOperation.TRUNCATE_TABLE, other.table),
    ]
    assert batch.events == 3
    assert batch.open_transaction == "100"
    rest = reader.pull(MANY)
    assert [r["row"]["id"] for r in rows_of(rest)] == [2]
    assert rest.transactions.to_pydict() == {"id": ["100"], "end_ordinal": [1], "committed_at": [COMMITTED]}


def test_a_transaction_of_a_truncate_alone_is_listed() -> None:
    reader = reader_of(transaction(relation(), truncate(7)))
    assert len(reader.pull(MANY).ddl) == 1
    assert reader.pull(MANY).transactions.num_rows == 1


def test_a_mark_ends_the_pull_when_its_transaction_ends() -> None:
    reader = reader_of(
        [
            *transaction(relation(), insert(1, "a", "1")),
            *transaction(message("m1"), xid=101, lsn=2000),
            *transaction(insert(2, "b", "1"), xid=102, lsn=3000),
        ]
    )
    batch = reader.pull(MANY)
    assert batch.marks == ["m1"]
    assert [r["row"]["id"] for r in rows_of(batch)] == [1]
    assert batch.open_transaction is None
    assert batch.offset is not None
    assert lsn_from_text(batch.offset.value["lsn"]) == 2008
    rest = reader.pull(MANY)
    assert rest.marks == []
    assert [r["row"]["id"] for r in rows_of(rest)] == [2]


def test_a_mark_whose_commit_comes_later_waits_for_it() -> None:
    reader = reader_of([begin(100, 1000), message("m1")])
    assert reader.pull(MANY).marks == []
    feed: Any = reader._feed
    feed.messages = [commit(1000), *transaction(relation(), insert(1, "a", "1"), lsn=2000, xid=101)]
    batch = reader.pull(MANY)
    assert batch.marks == ["m1"]
    assert batch.changes == []


def test_marks_of_others_are_ignored() -> None:
    assert pulled(*transaction(message("m", prefix="replicator:other"), message("x", prefix="app"))).marks == []


def test_a_mark_outside_transactions_counts_at_once() -> None:
    reader = reader_of([message("m1", is_transactional=False), *transaction(relation(), insert(1, "a", "1"))])
    assert reader.pull(MANY).marks == ["m1"]
    assert len(rows_of(reader.pull(MANY))) == 1


def test_a_mark_that_is_a_position_ends_the_pull_there() -> None:
    marks = LsnMarks()
    mark = marks.expect(1500)
    reader = reader_of(
        [
            *transaction(relation(), insert(1, "a", "1")),
            *transaction(insert(2, "b", "1"), xid=101, lsn=2000),
            *transaction(insert(3, "c", "1"), xid=102, lsn=3000),
        ],
        lsn_marks=marks,
    )
    batch = reader.pull(MANY)
    assert batch.marks == [mark]
    assert [r["row"]["id"] for r in rows_of(batch)] == [1, 2]
    late = marks.expect(5000)
    assert reader.pull(MANY).marks == []
    feed: Any = reader._feed
    feed.messages = [keepalive(6000)]
    assert reader.pull(MANY).marks == [late]


def test_an_idle_log_moves_the_offset_once_in_a_while() -> None:
    clock = Clock()
    reader = reader_of([*transaction(relation(), insert(1, "a", "1")), keepalive(5000)], clock=clock, idle_move_s=10)
    busy = reader.pull(MANY)
    assert busy.offset is not None
    assert lsn_from_text(busy.offset.value["lsn"]) == 1008
    assert busy.source_time == COMMITTED + timedelta(minutes=1)
    assert reader.pull(MANY).offset is None
    clock.now = 10
    idle = reader.pull(MANY)
    assert idle.offset is not None
    assert lsn_from_text(idle.offset.value["lsn"]) == 5000
    assert reader.pull(MANY).offset is None


def test_an_idle_log_is_complete_up_to_now_where_it_ends_behind_nothing_new() -> None:
    """A server whose whole log is confirmed sends no more keepalives unless it wants an answer."""
    clock, moment, end = Clock(), datetime(2026, 1, 1, tzinfo=UTC), [1008]
    reader = reader_of(
        transaction(relation(), insert(1, "a", "1")), clock=clock, idle_move_s=10, log_end=lambda: (end[0], moment)
    )
    assert reader.pull(MANY).source_time == COMMITTED
    assert reader.pull(MANY).source_time is None
    clock.now = 10
    assert reader.pull(MANY).source_time == moment
    assert reader.pull(MANY).source_time is None
    end[0] = 1009  # which may be a commit that is on its way
    clock.now = 20
    assert reader.pull(MANY).source_time is None


def test_a_server_that_wants_an_answer_gets_the_idle_position_at_once() -> None:
    reader = reader_of([keepalive(5000, wants_answer=True)])
    feed: Any = reader._feed
    feed.is_answer_wanted = True
    batch = reader.pull(MANY)
    assert batch.offset is not None
    assert lsn_from_text(batch.offset.value["lsn"]) == 5000
    assert batch.source_time is None


def test_a_keepalive_inside_a_transaction_moves_nothing() -> None:
    clock = Clock()
    reader = reader_of(
        [begin(100, 9000), relation(), keepalive(5000), insert(1, "a", "1"), keepalive(6000)], clock=clock
    )
    clock.now = 1000
    assert reader.pull(MANY).offset is None
    assert reader.pull(MANY).offset is None


def test_ids_of_transactions_have_their_epoch() -> None:
    near = (3 << 32) + 5
    batch = pulled(
        *transaction(relation(), insert(1, "a", "1"), xid=2**32 - 2, lsn=1000),
        *transaction(insert(2, "b", "1"), xid=4, lsn=2000),
        xid_near=near,
    )
    assert batch.transactions.to_pydict()["id"] == [str((3 << 32) - 2), str((3 << 32) + 4)]
    assert [widen_xid(xid, near) for xid in (5, 2**32 - 1, 2**31)] == [near, (3 << 32) - 1, (3 << 32) + 2**31]
    assert widen_xid(2**32 - 1, 10) == 2**32 - 1


def test_a_value_that_cannot_be_held_fails_its_table_or_becomes_null(caplog: pytest.LogCaptureFixture) -> None:
    stream = transaction(relation(), insert(1, "a", "NaN"), insert(2, "b", "1"))
    error = pulled(*stream).table_errors[SHOP]
    assert isinstance(error, UnsupportedTypeError)
    assert "Column price" in str(error)
    assert "'a'" not in str(error)  # of the row nothing is told; the statement that finds it names what does not fit
    assert "NaN" not in error.message
    batch = pulled(*stream, unrepresentable="null")
    assert [r["row"]["price"] for r in rows_of(batch)] == [None, 1]
    assert "price" in caplog.text


def test_an_unforeseen_error_in_decoding_one_table_fails_that_table(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns, key=("id",))
    decoded = PgLogReader._changes

    def broken(self: PgLogReader, *arguments: Any) -> Any:
        if arguments[-1].schema.table == SHOP:
            raise OverflowError("a value: 42")
        return decoded(self, *arguments)

    monkeypatch.setattr(PgLogReader, "_changes", broken)
    stream = transaction(
        relation(),
        relation(oid=8, name="other"),
        insert(1, "a", "1", oid=8),
        insert(1, "a", "1"),
        insert(2, "b", "1", oid=8),
    )
    batch = reader_of(stream, schemas={SHOP: SCHEMA, other.table: other}).pull(MANY)
    assert (batch.table_errors[SHOP].code, "42" in str(batch.table_errors[SHOP])) == ("internal_error", False)
    assert [r["row"]["id"] for r in rows_of(batch)] == [1, 2]


ENDED = FatalError("the log ended.", code="source_error")
SHOP_AND_OTHER = (relation(), relation(oid=8, name="audit"))


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ([begin(100, 1), relation()], "a row of public.shop"),
        ([begin(100, 1), *SHOP_AND_OTHER, insert(1, "a", "1")], "after a change of public.shop"),
        # Of a table that is not replicated, too.
        ([begin(100, 1), *SHOP_AND_OTHER, insert(1, "a", "1"), insert(1, "a", "1", oid=8)], "after a change of public.audit"),
        ([begin(100, 1), *SHOP_AND_OTHER, insert(1, "a", "1"), message("m", prefix="x")], "after a change of public.shop"),
        ([begin(100, 1), *SHOP_AND_OTHER, truncate(7, 8)], "in transaction 100"),
        # What came before the transaction says nothing about it.
        ([*transaction(*SHOP_AND_OTHER, insert(1, "a", "1")), begin(101, 2)], "in transaction 101"),
        ([*transaction(*SHOP_AND_OTHER), begin(101, 2), insert(1, "a", "1"), keepalive(5)], "after a change of public.shop"),
    ],
    ids=["described", "changed", "not_replicated", "message", "truncated", "begun", "keepalive"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 1000], ids=["row_by_row", "at_once"])
def test_an_error_of_the_server_names_the_last_table_of_its_transaction(
    stream: list[bytes], said: str, rows: int
) -> None:
    reader = reader_of(stream)
    limits = replace(MANY, rows=rows)
    feed: Any = reader._feed
    while feed.messages or reader._queue:
        reader.pull(limits)

    def ending(**_: Any) -> Any:
        raise ENDED

    feed.receive = ending
    with pytest.raises(FatalError) as caught:
        reader.pull(limits)
    assert caught.value.message.endswith(f"{said})")


def test_acknowledging_confirms_the_offsets_position() -> None:
    reader = reader_of(transaction(relation(), insert(1, "a", "1")))
    offset = reader.pull(MANY).offset
    assert offset is not None
    reader.acknowledge(offset)
    feed: Any = reader._feed
    assert feed.confirmed == [1008]


WRONG: Mapping[str, Callable[[], list[bytes]]] = {
    "row before its relation": lambda: transaction(insert(1, "a", "1")),
    "truncate before its relation": lambda: transaction(truncate(7)),
    "row outside a transaction": lambda: [*transaction(relation()), insert(1, "a", "1")],
    "commit without begin": lambda: [commit(1)],
    "begin inside a transaction": lambda: [begin(1, 1), begin(2, 2)],
    "commit of another": lambda: [begin(1, 1), commit(2)],
    "unknown kind": lambda: transaction(data(b"Z")),
    "streamed transaction": lambda: [data(b"S" + bytes(5))],
    "unknown envelope": lambda: [b"x" + bytes(30)],
    "empty data": lambda: [data(b"")],
    "long keepalive": lambda: [keepalive(1) + b"x"],
    "short begin": lambda: [begin(1, 1)[:-1]],
    "row too long": lambda: transaction(relation(), insert(1, "a", "1") + b"x"),
    "row cut": lambda: transaction(relation(), insert(1, "a", "1")[:-1]),
    "row cut to its kind": lambda: transaction(relation(), insert(1, "a", "1")[:31]),
    "row cut to its head": lambda: transaction(relation(), insert(1, "a", "1")[:30]),
    "length negative": lambda: transaction(
        relation(),
        data(b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3) + b"t" + struct.pack(">i", -5) + b"nn"),
    ),
    "length beyond everything": lambda: transaction(
        relation(),
        data(b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3) + b"t" + struct.pack(">i", 2**31 - 1)),
    ),
    "binary value": lambda: transaction(
        relation(),
        data(
            b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 3) + b"b" + struct.pack(">i", 4) + bytes(4) + b"nn"
        ),
    ),
    "delete with a new row": lambda: transaction(relation(), delete(1, "a", "1", kind=b"N")),
    "insert with an old row": lambda: transaction(
        relation(), data(b"I" + struct.pack(">I", 7) + b"O" + row(1, "a", "1"))
    ),
    "relation cut": lambda: transaction(relation()[:-3]),
    "relation too long": lambda: transaction(relation() + b"x"),
    "truncate cut": lambda: transaction(relation(), truncate(7)[:-1]),
    "message cut": lambda: transaction(message("m1")[:-1]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_bytes_stop_the_stream_with_their_position(case: str) -> None:
    with pytest.raises(CorruptStreamError, match="The log after 0/0") as caught:
        pulled(*WRONG[case]())
    assert caught.value.table is None


WRONG_ROWS: Mapping[str, bytes] = {
    "no integer": insert("secret", "a", "1"),
    "no integer in an old key": update(1, "a", "1", key=("secret", None, None)),
    "no number": insert(1, "a", "secret"),
    "too many columns": insert(1, "a", "1", "secret"),
    "too few columns": insert(1, "a"),
    "too few columns in an old key": delete(1),
    "no columns": insert(),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_wrong_rows_of_a_table_fail_it_and_the_others_continue(case: str, caplog: pytest.LogCaptureFixture) -> None:
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns, key=("id",))
    stream = [
        *transaction(relation(), relation(oid=8, name="other"), insert(1, "a", "1", oid=8), WRONG_ROWS[case]),
        *transaction(insert(2, "b", "1", oid=8), insert(2, "b", "1"), xid=101, lsn=2000),
    ]
    batch = reader_of(stream, schemas={SHOP: SCHEMA, other.table: other}).pull(MANY)
    assert [(changes.schema.table, changes.rows.num_rows) for changes in batch.changes] == [(other.table, 2)]
    (error,) = batch.table_errors.values()
    assert (error.code, error.table) == ("corrupt_rows", str(SHOP))
    assert "secret" not in "".join(map(str, (error, error.__cause__, caplog.text)))
    assert "Traceback" in caplog.text


@pytest.mark.matrix
def test_no_mutant_of_a_stream_gets_through_as_another_error() -> None:
    """One byte changed, cut, doubled or a message lost: it decodes, or a table or the stream is corrupt. Never a crash or a loop."""
    other = TableSchema(table=TableId("public", "other"), columns=SCHEMA.columns)
    stream = [
        *transaction(
            relation(),
            relation(oid=8, name="other", identity="f"),
            insert(1, "grün", "1.5"),
            update(2, UNCHANGED, None, key=(1, None, None)),
        ),
        *transaction(
            insert(5, "b", "1", oid=8),
            update(5, UNCHANGED, "2", old=(5, "b", "1"), oid=8),
            delete(5, "b", "2.00", kind=b"O", oid=8),
            xid=101,
            lsn=2000,
        ),
        *transaction(delete(2, None, None), message("m1"), xid=102, lsn=3000),
        *transaction(
            relation((*COLUMNS, ("extra", INT4, -1, 0))), insert(3, "x", "1", "4"), truncate(7, 8), xid=103, lsn=4000
        ),
        keepalive(5000),
    ]
    rng = random.Random(3)
    outcomes = {"decoded": 0, "corrupt": 0, "one table": 0}
    for _ in range(1500):
        mutant = [bytearray(m) for m in stream]
        index = rng.randrange(len(mutant))
        victim = mutant[index]
        match rng.randrange(5):
            case 0 | 1:
                victim[rng.randrange(len(victim))] = rng.randrange(256)
            case 2:
                del victim[rng.randrange(1, len(victim)) :]
            case 3:
                victim.insert(rng.randrange(len(victim)), rng.randrange(256))
            case _:
                del mutant[index]
        reader = reader_of(
            [bytes(m) for m in mutant], schemas={SHOP: SCHEMA, other.table: other}, unrepresentable="null"
        )
        try:
            errors = dict[TableId, TableError]()
            for _ in range(6):
                batch = reader.pull(MANY)
                errors |= batch.table_errors
                for changes in batch.changes:
                    changes.rows.validate(full=True)
            assert not reader._queue
            assert "internal_error" not in {error.code for error in errors.values()}
            outcomes["one table" if errors else "decoded"] += 1
        except CorruptStreamError:
            outcomes["corrupt"] += 1
    assert outcomes["corrupt"] > 400
    assert outcomes["decoded"] > 200
    assert outcomes["one table"] > 20
