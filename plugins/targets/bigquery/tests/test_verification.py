"""States of tables, by checksums: of each type and value, as they were at one moment, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from replicator.model.errors import TableError, TransientError
from replicator.model.events import DDLOperation
from replicator.model.schema import Column, TableSchema
from replicator.plugins.kit import canonical
from replicator.plugins.target import TableOptions, TargetTable
from replicator.plugins.verification import IDS_MAX, Ids, order_of
from replicator_target_bigquery.verification import canonical_sql
from replicator_testing.batches import delete, insert, update
from replicator_testing.table_states import assert_rows, assert_state, checksums_of, expected
from replicator_testing.target_harness import STRANGER, UUID, Copy

from .service import Fault, Service, job
from .states import (
    D65,
    UTC_US,
    VALUES,
    batch_of,
    boundary_rows,
    differing,
    everything,
    floats,
    put,
    schema_of,
    state_of,
)

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse
    from replicator_testbed.bigquery.emulator import BigQueryEmulator

Making = Callable[..., Copy]


@pytest.fixture
def making(warehouse: Warehouse, tmp_path: Path) -> Making:
    """Makes a table."""

    def make(schema: TableSchema, options: TableOptions | None = None, *, harness: Warehouse | None = None) -> Copy:
        found = harness or warehouse
        table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1, options=options or TableOptions())
        copy = Copy(harness=found, folder=tmp_path, schema=schema, table=table, target=found.target())
        copy.create()
        return copy

    return make


TYPES: list[str] = list(VALUES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(8))
def test_every_type_and_boundary_value(making: Making, part: int) -> None:
    values = {name: VALUES[name] for name in TYPES[part::8]}
    schema = everything(values)
    copy = making(schema)
    rows = put(copy, boundary_rows(values))
    with state_of(copy) as state:
        assert differing(state, rows, schema) == []
        # More questions of so many columns take the emulator's translator a while.
        assert state.checksums(3) == checksums_of(expected(rows, schema), 3)


KEYS: dict[str, tuple[pa.DataType, tuple[Any, Any]]] = {
    "flag": (pa.bool_(), (True, False)),
    "number": (pa.int32(), (-(2**31), 7)),
    "amount": (pa.decimal128(9, 2), (Decimal("-0.50"), Decimal(120))),
    "wide": (pa.decimal256(65, 10), (Decimal(0), Decimal("-" + "9" * 55 + ".5"))),
    "label": (pa.string(), ("", "x" * 400 + "é,")),
    "content": (pa.binary(), (b"", b"\0\xff" * 200)),
    "day": (pa.date32(), (date(1, 1, 1), date(9999, 12, 31))),
    "hour": (pa.time64("us"), (time(0), time(23, 59, 59, 999999))),
    "ntz": (pa.timestamp("us"), (datetime.fromisoformat("0001-01-01T00:00:00"), datetime.fromisoformat("2024-02-29T12:00:00.5"))),
    "tz": (UTC_US, (datetime.fromisoformat("1969-12-31T23:59:59.999999Z"), datetime.fromisoformat("2024-03-31T01:30:00Z"))),
}  # fmt: skip


@pytest.mark.matrix
def test_a_key_of_each_type(making: Making) -> None:
    """Its columns are not in the order of the table's."""
    columns = {"more": pa.string(), **{name: type_ for name, (type_, _) in KEYS.items()}}
    schema = schema_of(columns, key=tuple(reversed(KEYS)))
    copy = making(schema)
    values = [{name: pair[n] for name, (_, pair) in KEYS.items()} for n in (0, 1)]
    swapped = [{**values[0], name: values[1][name]} for name in KEYS]
    rows = put(copy, [{"more": "x", **row} for row in [*values, *swapped]])
    with state_of(copy) as state:
        assert state.range_key == (), "each range would be billed as the whole table"
        assert differing(state, rows, schema) == []
        assert_state(state, rows, schema)


@pytest.mark.matrix
@pytest.mark.parametrize("count", [300, 20_000])
def test_floats_have_their_shortest_digits(making: Making, count: int) -> None:
    numbers = floats(count)
    schema = schema_of({"id": pa.int64(), "f64": pa.float64()})
    copy = making(schema)
    rows = put(copy, [{"id": n, "f64": number} for n, number in enumerate(numbers)])
    with state_of(copy) as state:
        assert_rows(state, rows, schema)


@pytest.mark.parametrize(
    ("scale", "text", "wanted"),
    [
        (2, "1.5", "1.50"),
        (2, "-0.5", "-0.50"),
        (2, "0", "0.00"),
        (2, "120", "120.00"),
        (2, "120.000000000", "120.00"),
        (2, "1.505", "1.505"),
        (0, "120", "120"),
        (0, "-7.000000000", "-7"),
        (0, "7.5", "7.5"),
        (38, "0." + "9" * 38, "0." + "9" * 38),
        (38, "-" + "9" * 38, "-" + "9" * 38 + "." + "0" * 38),
    ],
)
def test_decimals_as_the_service_writes_them(warehouse: Warehouse, scale: int, text: str, wanted: str) -> None:
    """It leaves out zeros at the end, and the emulator writes nine digits. What has more digits than its scale is another value."""
    written = canonical_sql._decimal("written", scale)
    [row] = warehouse.query(f"SELECT {written} AS found FROM (SELECT '{text}' AS written)")
    assert row["found"] == wanted


PLAIN = schema_of({"id": pa.int64(), "name": pa.string(), "amount": pa.decimal128(9, 2)})


def plain(id_: int, name: str | None, amount: str | None = None) -> dict[str, Any]:
    return {"id": id_, "name": name, "amount": None if amount is None else Decimal(amount)}


def rows_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return batch_of(PLAIN, rows)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_are_deleted_are_not_there(making: Making, deletes: str) -> None:
    copy = making(PLAIN, TableOptions(deletes=deletes))
    put(copy, [plain(n, f"n{n}", "1.5") for n in range(50)])
    changes = [delete(100 + n, {"id": n}) for n in range(0, 50, 7)]
    changes += [update(200 + n, plain(n, None, "-0.01")) for n in range(1, 50, 7)]
    copy.apply(*changes)
    left = [plain(n, None, "-0.01") if n % 7 == 1 else plain(n, f"n{n}", "1.5") for n in range(50) if n % 7]
    with state_of(copy) as state:
        assert_rows(state, rows_of(*left), PLAIN)


@pytest.mark.matrix
def test_a_table_without_a_key_is_a_multiset(making: Making) -> None:
    schema = replace(PLAIN, key=())
    copy = making(schema)
    rows = put(copy, [plain(1, "a"), plain(1, "a"), plain(1, "a"), plain(2, None, "1")])
    with state_of(copy) as state:
        assert_state(state, rows, schema)


@pytest.mark.matrix
def test_a_state_stays_what_it_was_while_batches_continue(making: Making, warehouse: Warehouse) -> None:
    copy = making(PLAIN)
    put(copy, [plain(1, "a"), plain(2, "b")])
    other = PLAIN.columns[1]
    with state_of(copy) as state:
        assert_state(state, rows_of(plain(1, "a"), plain(2, "b")), PLAIN)
        copy.apply(update(11, plain(1, "z")), delete(12, {"id": 2}), insert(13, plain(3, "c")))
        warehouse.query(f"DELETE FROM `{warehouse.names.path(PLAIN.table)}` WHERE id = 3")
        copy.alter(replace(PLAIN, columns=tuple(c for c in PLAIN.columns if c is not other)))
        assert_state(state, rows_of(plain(1, "a"), plain(2, "b")), PLAIN)
    with state_of(copy) as state:
        assert_state(state, batch_of(copy.schema, [plain(1, "")]), copy.schema)


@pytest.mark.matrix
def test_what_others_changed_is_in_the_state(making: Making, warehouse: Warehouse) -> None:
    copy = making(PLAIN)
    put(copy, [plain(1, "a"), plain(2, "b")])
    path = warehouse.names.path(PLAIN.table)
    warehouse.query(f"UPDATE `{path}` SET name = 'z' WHERE id = 2")
    warehouse.query(f"INSERT INTO `{path}` (id, name, _sequence_num) VALUES (9, 'i', 0)")
    with state_of(copy) as state:
        assert_rows(state, rows_of(plain(1, "a"), plain(2, "z"), plain(9, "i")), PLAIN)


def refused(copy: Copy, **how: Any) -> str:
    """Why a state cannot be opened."""
    with pytest.raises(TableError) as caught, state_of(copy, **how):
        pass
    assert (caught.value.code, caught.value.table) == ("state_not_readable", str(copy.table.table))
    return caught.value.message


def advance(copy: Copy, sequence_num: int) -> None:
    """Move the ledger alone."""
    copy.target.advance(copy.table, sequence_num)
    copy.ledger = sequence_num


@pytest.mark.matrix
def test_each_state_between_two_movements_of_the_ledger(making: Making) -> None:
    copy = making(PLAIN)
    advance(copy, 9)
    put(copy, [plain(1, "a")])
    put(copy, [plain(2, "b")])
    copy.restart(epoch=2)
    advance(copy, 19)
    put(copy, [plain(3, "c")])
    advance(copy, 30)
    copy.alter(replace(PLAIN, columns=(PLAIN.columns[0], replace(PLAIN.columns[1], name="called"), PLAIN.columns[2])))
    put(copy, [{"id": 4, "called": "d"}])
    rows = [plain(1, "a"), plain(2, "b"), plain(3, "c")]
    for at, count in {0: 0, 9: 0, 10: 1, 11: 2, 19: 2, 20: 3, 29: 3, 30: 3}.items():
        with state_of(copy, at=at, schema=PLAIN) as state:
            assert_rows(state, rows_of(*rows[:count]), PLAIN)
    renamed = [{"id": row["id"], "called": row["name"], "amount": None} for row in rows]
    with state_of(copy, at=31) as state:
        assert_rows(state, batch_of(copy.schema, renamed), copy.schema)
    with state_of(copy, at=32) as state:
        assert_rows(state, batch_of(copy.schema, [*renamed, {"id": 4, "called": "d"}]), copy.schema)
    assert "did not exist then" in refused(copy, at=-1, schema=PLAIN)


@pytest.mark.matrix
def test_numbers_behind_the_ledger_change_nothing(making: Making) -> None:
    copy = making(PLAIN)
    put(copy, [plain(1, "a")])
    # Numbers up to there are not the table's, or change nothing.
    with state_of(copy, at=copy.ledger + 100) as state:
        assert_rows(state, rows_of(plain(1, "a")), PLAIN)
    advance(copy, 50)
    with state_of(copy) as state:
        assert_rows(state, rows_of(plain(1, "a")), PLAIN)


@pytest.mark.matrix
def test_a_table_that_is_not_there_cannot_be_read(making: Making, warehouse: Warehouse) -> None:
    copy = making(PLAIN)
    put(copy, [plain(1, "a")])
    ours = copy.table
    copy.table = replace(ours, uuid=STRANGER)
    assert "no ledger" in refused(copy)
    copy.table = replace(ours, incarnation=2)
    assert "did not exist then" in refused(copy)
    copy.table = ours
    with state_of(copy) as state:
        warehouse.query(f"DROP TABLE `{warehouse.names.path(PLAIN.table)}`")
        with pytest.raises(TableError) as caught:
            state.checksums(0)
    assert caught.value.code == "state_not_readable"
    refused(copy)
    copy.ddl(DDLOperation.DROP_TABLE, 30)
    assert "did not exist then" in refused(copy)


def test_a_column_that_is_not_what_it_should_be_cannot_be_read(making: Making) -> None:
    copy = making(PLAIN)
    wider = schema_of({"id": pa.int64(), "amount": pa.float64()})
    assert "amount had another type then (NUMERIC)" in refused(copy, schema=wider)
    assert "no column colour" in refused(copy, names={"id": "id", "name": "colour"})


@pytest.mark.matrix
def test_renamed_new_and_kept_columns(making: Making) -> None:
    people = schema_of({"id": pa.int64(), "name": pa.string(), "note": pa.string()})
    copy = making(people)
    put(copy, [{"id": 1, "name": "a", "note": "x"}, {"id": 2, "name": "b", "note": "y"}])
    id_, name, note = people.columns
    age = Column(name="age", type=pa.int32(), source_type="?", id=4)
    copy.alter(replace(people, columns=(id_, replace(name, name="called so"), age), kept=(note,)))
    copy.apply(insert(20, {"id": 3, "called so": "c", "age": -1}), update(21, {"id": 2, "called so": "bb", "age": 7}))
    rows = [{"id": 1, "called so": "a"}, {"id": 2, "called so": "bb", "age": 7}, {"id": 3, "called so": "c", "age": -1}]
    with state_of(copy) as state:
        assert_state(state, batch_of(copy.schema, rows), copy.schema)
    # The source calls it otherwise than the target; neither other columns nor the order in the mapping count.
    other = replace(
        copy.schema, columns=tuple(replace(c, name=c.name.upper()) for c in copy.schema.columns), key=("ID",)
    )
    names = {"CALLED SO": "called so", "ID": "id"}
    with state_of(copy, schema=other, names=names) as state:
        found = state.texts([canonical.digest_of("3,")])
        assert found == {canonical.digest_of("3,"): {"ID": "3", "CALLED SO": "1:c"}}
        assert list(next(iter(found.values()))) == order_of(list(names), other)


@pytest.mark.matrix
def test_wider_columns(making: Making) -> None:
    copy = making(schema_of({"id": pa.int64(), "n": pa.int32(), "f": pa.int32(), "d": pa.decimal128(9, 2)}))
    put(copy, [{"id": 1, "n": 2**31 - 1, "f": 7, "d": Decimal("0.50")}])
    copy.alter(schema_of({"id": pa.int64(), "n": pa.decimal128(12, 0), "f": pa.float64(), "d": pa.decimal128(12, 3)}))
    put(copy, [{"id": 2, "n": 10**11, "f": 0.1, "d": Decimal("0.505")}])
    rows = [
        {"id": 1, "n": 2**31 - 1, "f": 7, "d": Decimal("0.50")},
        {"id": 2, "n": 10**11, "f": 0.1, "d": Decimal("0.505")},
    ]
    with state_of(copy) as state:
        assert_rows(state, batch_of(copy.schema, rows), copy.schema)


@pytest.mark.matrix
def test_an_incarnation_that_readers_do_not_have_yet(making: Making) -> None:
    copy = making(PLAIN)
    put(copy, [plain(1, "old")])
    copy.publish()
    copy.table = replace(copy.table, incarnation=2)
    copy.create(10)
    put(copy, [plain(1, "new")])
    with state_of(copy) as state:
        assert_rows(state, rows_of(plain(1, "new")), PLAIN)
        copy.publish()
        # What was built was dropped then.
        with pytest.raises(TableError) as caught:
            state.checksums(3)
    assert caught.value.code == "state_not_readable"
    with state_of(copy) as state:
        assert_rows(state, rows_of(plain(1, "new")), PLAIN)


def test_columns_whose_text_is_not_kept_are_not_compared(
    making: Making, new_warehouse: Callable[..., Warehouse]
) -> None:
    source_types = {"doc": "jsonb", "path": "json"}
    columns = {"path": pa.string(), "doc": pa.string(), "grid": pa.list_(pa.list_(pa.int32())), "name": pa.string()}
    schema = schema_of(columns, key=("path",), source_types=source_types)
    as_text, as_json = new_warehouse().target(), new_warehouse(json_as="json")
    assert list(as_text.not_compared(schema)) == ["grid"]
    assert list(as_json.target().not_compared(schema)) == ["doc", "grid"]
    kept = replace(schema, columns=tuple(c for c in schema.columns if c.name != "grid"))
    copy = making(kept, harness=as_json)
    put(copy, [{"path": '{"a": 1.10}', "doc": '{"b": 1.10}', "name": "x"}])
    with state_of(copy, names={"path": "path", "name": "name"}) as state:
        assert_rows(
            state,
            batch_of(
                schema_of({"path": pa.string(), "name": pa.string()}, key=("path",)),
                [{"path": '{"a": 1.10}', "name": "x"}],
            ),
            replace(kept, columns=(kept.columns[0], kept.columns[2])),
        )


def test_decimals_in_text_and_numbers_in_lists_that_somebody_wrote(making: Making, warehouse: Warehouse) -> None:
    """What is no number is equal to nothing, also if it is empty: NULL has no text."""
    schema = schema_of({"id": pa.int64(), "wide": D65, "numbers": pa.list_(pa.int32())})
    copy = making(schema)
    path = warehouse.names.path(schema.table)
    warehouse.query(
        f"""INSERT INTO `{path}` (id, wide, numbers, _sequence_num) VALUES
        (1, '', '[,1]', 0), (2, '1.5', '[1,x]', 0), (3, NULL, NULL, 0), (4, '-1.5000000000', '[null,-1]', 0)"""
    )
    with state_of(copy) as state:
        texts = state.texts([canonical.digest_of(f"{n},") for n in (1, 2, 3, 4)])
    wanted = {1: ("?", "[?,1,]"), 2: ("?1.5", "[1,?x,]"), 3: (None, None), 4: ("-1.5000000000", "[,-1,]")}
    for n, (wide, numbers) in wanted.items():
        assert texts[canonical.digest_of(f"{n},")] == {"id": str(n), "wide": wide, "numbers": numbers}


@pytest.mark.matrix
def test_lists_that_somebody_wrote(making: Making, warehouse: Warehouse) -> None:
    """What is no list of the column's type is equal to nothing."""
    types = {"days": pa.date32(), "names": pa.string(), "singles": pa.float32(), "parts": pa.binary()}
    schema = schema_of({"id": pa.int64(), **{name: pa.list_(type_) for name, type_ in types.items()}})
    copy = making(schema)
    path = warehouse.names.path(schema.table)
    warehouse.query(
        f"""INSERT INTO `{path}` (id, days, names, singles, parts, _sequence_num) VALUES
        (1, '["later",null]', '["a", null]', '[1e308,"x"]', '["AP9=","A",null]', 0),
        (2, 'soon', '{{"a": 1}}', '', '', 0),
        (3, '["2024-01-01 ","2024-01-01"]', NULL, '["nan ","NaN"," 1",1,"nan","-inf",-0,2]', '["AP8=","AP8= ",""]', 0)"""
    )
    with state_of(copy) as state:
        texts = state.texts([canonical.digest_of(f"{n},") for n in (1, 2, 3)])
    part, nothing = (canonical.value_text(held, pa.binary(), is_key=False) for held in (b"\x00\xff", b""))
    assert texts[canonical.digest_of("3,")] == {
        "id": "3",
        "days": '[?"2024-01-01 ",19723,]',
        "names": None,
        "singles": '[?"nan ",?"NaN",?" 1",1e0,nan,-inf,0,2e0,]',
        "parts": f'[{part},?"AP8= ",{nothing},]',
    }
    assert texts[canonical.digest_of("1,")] == {
        "id": "1",
        "days": '[?"later",,]',
        "names": "[1:a,,]",
        "singles": '[1e308,?"x",]',
        # A reader of base64 takes the first for the bytes 00 and FF, which are written as AP8=.
        "parts": '[?"AP9=",?"A",,]',
    }
    names = {"days": "?soon", "names": '?{"a": 1}', "singles": "?", "parts": "?"}
    assert texts[canonical.digest_of("2,")] == {"id": "2", **names}


@pytest.mark.matrix
def test_many_ids_are_asked_for_at_once(making: Making) -> None:
    copy = making(PLAIN)
    rows = put(copy, [plain(n, "a") for n in range(20)])
    ids = [canonical.digest_of(text) for text in canonical.key_texts(rows.select(["id"]))]
    others = [f"{n:032x}" for n in range(IDS_MAX - 10)]
    with state_of(copy) as state:
        assert sum(c.rows for c in state.checksums(4, Ids(frozenset([*ids[:10], *others]))).values()) == 10


@pytest.fixture
def service(emulator: BigQueryEmulator) -> Iterator[Service]:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        yield service


REFUSALS = {
    ("bytesBilledLimitExceeded", "Query exceeded limit for bytes billed: 1."): "maximum_bytes_billed",
    ("resourcesExceeded", "Resources exceeded during query execution."): "resources",
    ("stopped", "Job execution was cancelled: Job timed out"): "target.job_timeout",
    (
        "invalidQuery",
        "Cannot query over table without a filter that can be used for partition elimination",
    ): "Cannot query",
}
"""What the service says, and what has to be told of it."""


def test_what_the_service_refuses_for_good_cannot_be_read_and_the_rest_passes(
    making: Making, new_warehouse: Callable[..., Warehouse], service: Service
) -> None:
    copy = making(PLAIN, harness=new_warehouse(endpoint=service.endpoint))
    put(copy, [plain(1, "a")])
    with state_of(copy) as state:
        for (reason, message), told in REFUSALS.items():
            service.faults.append(Fault("fail_job", job("SHA256"), reason=reason, message=message))
            with pytest.raises(TableError, match=told) as caught:
                state.checksums(3)
            assert caught.value.code == "state_not_readable"
        service.faults.append(Fault("fail_job", job("SHA256"), reason="backendError"))
        with pytest.raises(TransientError):
            state.checksums(3)
        assert_rows(state, rows_of(plain(1, "a")), PLAIN)


def test_the_limit_of_what_a_query_may_cost_is_sent_along(
    making: Making, new_warehouse: Callable[..., Warehouse], service: Service
) -> None:
    warehouse = new_warehouse(endpoint=service.endpoint, budget={"maximum_bytes_billed": "10GiB"})
    copy = making(PLAIN, harness=warehouse)
    with state_of(copy) as state:
        limited = job(r'"maximumBytesBilled": *"10737418240"')
        service.faults.append(Fault("fail_job", limited, reason="bytesBilledLimitExceeded"))
        with pytest.raises(TableError, match="maximum_bytes_billed"):
            state.rows([""])
