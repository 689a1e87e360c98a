"""The lane against a dictionary: random batches on tables that no Spark has touched, read back by others."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from replicator.model.alteration import steps
from replicator.model.errors import FencedError, ReplicatorError, TargetUnavailableError
from replicator.model.events import DDLEvent
from replicator.model.merged import Merged
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.kit.folding import keys
from replicator.plugins.kit.folding.needed import EngineNeededError, TooLargeError
from replicator.plugins.kit.lake import index, joining
from replicator.plugins.kit.lake.index import IndexCache
from replicator.plugins.kit.lake.joining import FILES_PER_TIER
from replicator.plugins.target import Batch, BatchFile, TableOptions, TargetTable
from replicator_target_delta.config import DeltaLakeConfig, MaintenanceConfig
from replicator_target_delta.definition.metadata import altered
from replicator_target_delta.engine import BYTES_PER_S, SPARK_WANTED, DirectTable, Lanes, Pace, merged_by_spark
from replicator_target_delta.lane import lane, parquet, rewrite, vectors
from replicator_target_delta.lane.known import TargetColumn, columns_as_found, known_columns
from replicator_target_delta.lane.lane import Lane
from replicator_target_delta.lane.log import DeltaLakeLogReader
from replicator_target_delta.lane.parquet import write_rows
from replicator_target_delta.ledger import Entry
from replicator_target_delta.log import history
from replicator_target_delta.log.mapping import columns_property
from replicator_target_delta.log.table import COLUMNS, DamagedLogError, read_log
from replicator_target_delta.shape import tables as ddl
from replicator_target_delta.storage import Storage
from replicator_testbed.delta import read_delta, rows_of
from replicator_testbed.present import present
from replicator_testbed.workloads import changes as workloads
from replicator_testbed.workloads.alterations import AlteredWorkloads
from replicator_testing.batches import RowChange, delete, insert, update, write_batch

NAME = TableId("shop", "items")
PLAIN = TableOptions()


class LinkedCommits:
    """Versions of a table on a local disk, moved to its name by link(2), which never replaces a file.

    Not for a table that Spark commits to at the same time: on a local disk Delta's LogStore looks first and renames
    then, which replaces a file, and is safe only against writers in the same JVM. So the target commits through that.

    Args:
        folder: The table's `_delta_log`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """As `Commits.put`."""
        temporary = self._folder / f".{uuid4().hex}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, self._folder / f"{version:020}.json")
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True


def schema_of(key: Sequence[str], **types: pa.DataType) -> TableSchema:
    columns = tuple(Column(name=n, type=t, source_type="?", nullable=n not in key) for n, t in types.items())
    return TableSchema(table=NAME, columns=columns, key=tuple(key))


ITEMS = schema_of(["id"], id=pa.int64(), name=pa.string(), price=pa.decimal128(12, 2))


class Bare:
    """A table made by hand as the product makes it, and a lane to it."""

    def __init__(self, folder: Path, schema: TableSchema, options: TableOptions = PLAIN, **properties: str) -> None:
        self.folder = folder
        self.schema = schema
        self.storage = Storage(str(folder / "lake"))
        self.table = TargetTable(table=schema.table, uuid="u", incarnation=0, epoch=1, options=options)
        self.path = Path(self.storage.table_path(schema.table))
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        self.commits: Any = LinkedCommits(self.log)
        self.indexes = IndexCache(1 << 30, folder)
        self.next = 1
        new = ddl.new_table(self.table, schema, clustering=True)
        fields = [
            {
                **field,
                "metadata": {
                    **field["metadata"],
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": f"col-{uuid4()}",
                },
            }
            for number, field in enumerate(new.fields, 1)
        ]
        features = ["columnMapping", "deletionVectors", "timestampNtz"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
        protocol["writerFeatures"] = [*features, "domainMetadata", "clustering", "appendOnly", "invariants"]
        metadata = {
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {
                **new.properties,
                COLUMNS: columns_property(fields),
                "delta.columnMapping.maxColumnId": str(len(fields)),
                **properties,
            },
            "createdTime": 0,
        }
        transaction = {"appId": self.table.ledger_name, "version": Entry(1, 0).version}
        self.commit({"protocol": protocol}, {"metaData": metadata}, {"txn": transaction})
        self.lane = self.new_lane()

    def new_lane(self) -> Lane:
        """As another process has one."""
        return Lane(self.storage, str(self.path), self.commits, self.indexes)

    def version(self) -> int:
        return len(list(self.log.glob("*.json"))) - 1

    def commit(self, *actions: Mapping[str, Any]) -> None:
        """Whatever somebody else commits."""
        info = {"commitInfo": {"operation": "SOMETHING", "txnId": str(uuid4())}}
        assert LinkedCommits(self.log).put(self.version() + 1, [json.dumps(a) for a in (info, *actions)])

    def batch(self, changes: Sequence[RowChange], **parts: Any) -> Batch:
        return write_batch(self.folder / "journal", self.schema, changes, **parts)

    def apply(self, *changes: RowChange, **parts: Any) -> lane.Applied | None:
        """Changes under the next numbers."""
        return self.lane.apply(self.table, self.batch(self.numbered(changes), **parts))

    def clear(self, below: int | None = None) -> int | None:
        """Delete rows under the next number."""
        self.next += 1
        return self.lane.clear(self.table, self.next - 1, below)

    def numbered(self, changes: Sequence[RowChange]) -> Sequence[RowChange]:
        numbered = [replace(change, sequence_num=self.next + i) for i, change in enumerate(changes)]
        self.next += len(changes)
        return numbered

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """What delta-rs reads."""
        return list(rows_of(read_delta(self.path, names or tuple(c.name for c in self.schema.columns))))

    def files(self) -> dict[str, Any]:
        return DeltaLakeLogReader(self.storage, str(self.path)).refresh().files

    def alter(self, event: DDLEvent, number: int) -> None:
        """What the target commits for ALTER_TABLE where no rows are to be filled."""
        log, wanted = present(read_log(self.storage, str(self.path))), present(event.schema)
        before, after = (ddl.new_table(self.table, schema, clustering=True) for schema in (self.schema, wanted))
        actions = altered(log, before, after, steps(self.schema, wanted), keeps_files=True).actions
        self.commit(*actions, {"txn": {"appId": self.table.ledger_name, "version": Entry(1, number).version}})
        self.schema = wanted

    def columns(self) -> Sequence[TargetColumn]:
        """Those that the table has now."""
        return columns_as_found(DeltaLakeLogReader(self.storage, str(self.path)).refresh())

    def live(self) -> pa.Table:
        """What the log says, read by hand."""
        state = DeltaLakeLogReader(self.storage, str(self.path)).refresh()
        fields = json.loads(state.metadata["schemaString"])["fields"]
        names = {f["metadata"]["delta.columnMapping.physicalName"]: f["name"] for f in fields}
        parts = []
        for file in state.files.values():
            rows = pq.ParquetFile(self.path / file.path).read()
            gone = set(vectors.read(file.vector, self.storage, str(self.path))) if file.vector else set()
            assert rows.num_rows == file.rows
            rows = rows.take(pa.array([i for i in range(file.rows) if i not in gone], pa.int64()))
            parts.append(rows.rename_columns([names[name] for name in rows.column_names]))
        return pa.concat_tables(parts) if parts else pa.table({})

    def compact(self) -> None:
        """What an OPTIMIZE of somebody else does: all rows into one file, and no row changed."""
        state = DeltaLakeLogReader(self.storage, str(self.path)).refresh()
        rows = self.live()
        if not rows.num_rows:
            return
        columns = known_columns(state, ddl.new_table(self.table, self.schema, clustering=True).fields)
        add = write_rows(rows, self.storage, str(self.path), columns, state.properties)
        removed = [
            {
                "remove": {"path": f.path, "dataChange": False}
                | ({"deletionVector": f.vector.to_json()} if f.vector else {})
            }
            for f in state.files.values()
        ]
        self.commit(*removed, {"add": {**add, "dataChange": False}})


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path, ITEMS)


def item(id_: int, name: str | None = "n", price: str | None = "1.50") -> dict[str, Any]:
    return {"id": id_, "name": name, "price": None if price is None else Decimal(price)}


# -- random batches ---------------------------------------------------------------------------------------------------


def epoch_us(number: int) -> datetime:
    return datetime.fromisoformat("1970-01-01") + timedelta(microseconds=number * 86_399_999_999)


TEXTS = ["", "a", "A", "a ", "\u00e4", "a\0", "\u00e9", "e\u0301", "x" * 300]
SHAPES: Mapping[str, tuple[TableSchema, Callable[[int], dict[str, Any]]]] = {
    "bigint": (schema_of(["id"], id=pa.int64(), v=pa.string()), lambda n: {"id": (n - 12) * (2**59 - 1)}),
    "smallint": (schema_of(["id"], v=pa.string(), id=pa.int16()), lambda n: {"id": n - 5}),
    "date": (schema_of(["id"], id=pa.date32(), v=pa.string()), lambda n: {"id": date(1, 1, 1) + timedelta(n * 100_000)}),
    "moment": (schema_of(["id"], id=pa.timestamp("us"), v=pa.string()), lambda n: {"id": epoch_us(n - 5)}),
    "text": (schema_of(["id"], id=pa.string(), v=pa.string()), lambda n: {"id": TEXTS[n % 9] + "y" * (n // 9)}),
    "binary": (schema_of(["id"], id=pa.binary(), v=pa.string()), lambda n: {"id": bytes(n)}),
    "decimal": (schema_of(["id"], id=pa.decimal128(38, 10), v=pa.string()), lambda n: {"id": Decimal(n - 5) / 10}),
    "huge": (schema_of(["id"], id=pa.decimal256(60, 3), v=pa.string()), lambda n: {"id": Decimal((n - 5) * 10**50)}),
    "time": (schema_of(["id"], id=pa.time64("us"), v=pa.string()), lambda n: {"id": time(n % 24, 0, 0, n)}),
    "mixed": (
        schema_of(["b", "a", "c"], a=pa.string(), b=pa.int32(), v=pa.string(), c=pa.bool_()),
        lambda n: {"a": "x" * (n % 3), "b": n // 6, "c": n % 6 < 3},
    ),
    "texts": (schema_of(["a", "b"], a=pa.string(), b=pa.binary(), v=pa.string()), lambda n: {"a": "x" * (n % 4), "b": b"x" * (n // 4)}),
}  # fmt: skip
KEYS = 24


class World:
    """A dictionary, and changes to it: `valid` ones that a database could make, or any."""

    def __init__(self, seed: int, shape: str) -> None:
        self.random = random.Random(seed)
        self.schema, self.key_of = SHAPES[shape]
        self.rows: dict[int, str | None] = {}

    def changes(self, *, valid: bool) -> tuple[list[RowChange], Merged]:
        """Random changes, applied to the dictionary, and what they do to a table."""
        before, first = dict(self.rows), dict[int, bool]()
        made = [self._change(valid, first) for _ in range(self.random.choice([1, 1, 2, 5, 20, 60]))]
        touched = first.keys()
        return made, Merged(
            matched=sum(k in before and k in self.rows for k in touched),
            inserted=sum(k not in before and k in self.rows for k in touched),
            deleted=sum(k in before and k not in self.rows for k in touched),
            not_found=sum(expects and k not in before for k, expects in first.items()),
        )

    def _change(self, valid: bool, first: dict[int, bool]) -> RowChange:
        live = sorted(self.rows) if valid else list(range(KEYS))
        free = [k for k in range(KEYS) if k not in self.rows or not valid]
        kinds = ["insert", "snapshot"] * bool(free) + ["update", "update", "delete"] * bool(live)
        kind = self.random.choice(kinds + ["move"] * bool(free and live))
        value = self.random.choice([None, f"v{self.random.randrange(1000)}"])
        old, new = self.random.choice(live or [0]), self.random.choice(free or [0])
        match kind:
            case "delete":
                first.setdefault(old, True)
                self.rows.pop(old, None)
                return delete(0, self.row(old, None))
            case "move":
                first.setdefault(old, True)
                first.setdefault(new, False)
                self.rows.pop(old, None)
                self.rows[new] = value
                return update(0, self.row(new, value), before=self.row(old, None))
            case "update":
                first.setdefault(old, True)
                self.rows[old] = value
                before = self.row(old, None) if self.random.random() < 0.3 else None
                return update(0, self.row(old, value), before=before)
        first.setdefault(new, False)
        self.rows[new] = value
        return insert(0, self.row(new, value), is_snapshot=kind == "snapshot")

    def row(self, key: int, value: str | None) -> dict[str, Any]:
        return {**self.key_of(key), "v": value}

    def wanted(self) -> set[tuple[Any, ...]]:
        names = [column.name for column in self.schema.columns]
        rows = (self.row(k, v) for k, v in self.rows.items())
        return {tuple(stored(row[name], self.schema.column(name).type) for name in names) for row in rows}


def stored(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, time):
        return value.isoformat("microseconds")
    return format(value, ".3f") if pa.types.is_decimal256(type_) else value


def check(bare: Bare, world: World) -> None:
    """The table, as delta-rs reads it, is the dictionary."""
    names = [column.name for column in bare.schema.columns]
    found = [tuple(plain(v) for v in row) for row in bare.rows(*names)]
    wanted = {tuple(plain(v) for v in row) for row in world.wanted()}
    assert len(found) == len(world.rows)
    # Their difference alone: pytest would spell both.
    assert set(found) ^ wanted == set()


def plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value.normalize())
    return value


def run(bare: Bare, world: World, batches: int, every: int) -> None:
    rng = world.random
    for number in range(batches):
        changes, counts = world.changes(valid=rng.random() < 0.5)
        applied = bare.apply(*changes, expects_rows=True, files=rng.randint(1, 3))
        assert applied is not None
        found = applied.counts
        assert (found.matched, found.inserted, found.deleted, found.not_found) == (
            counts.matched, counts.inserted, counts.deleted, counts.not_found,
        )  # fmt: skip
        if rng.random() < 0.1:
            bare.lane = bare.new_lane()
        if rng.random() < 0.05:
            bare.compact()
        if rng.random() < 0.05:
            assert bare.clear() is not None
            world.rows.clear()
        if number % every == every - 1:
            check(bare, world)
    check(bare, world)


def rewriting(bare: Bare, world: World, batches: int) -> int:
    """Random batches, with rewrites that begin before some of them and are committed after others. How many were."""
    rng, done, under_way = world.random, 0, None
    for _ in range(batches):
        changes, _ = world.changes(valid=True)
        assert bare.apply(*changes, expects_rows=True) is not None
        plan = None
        if under_way is None:
            share = rng.choice([0.01, 0.5])
            plan = bare.lane.plan_rewrite(bare.table, bare.schema, small_file_size=1 << 20, deleted_share_max=share)
        if plan is not None:
            under_way = bare.lane.rewrite(plan)
        elif under_way is not None and rng.random() < 0.4:
            version = bare.version()
            if rng.random() < 0.2:
                bare.compact()  # and what was under way is given up
            is_done = bare.lane.commit_rewrite(bare.table, under_way)
            assert bare.version() >= version
            done, under_way = done + is_done, None
            check(bare, world)
        if rng.random() < 0.05 and under_way is None:
            bare.lane = bare.new_lane()
    check(bare, world)
    return done


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", ["bigint", "texts", "moment"])
def test_rewrites_beside_batches_change_no_row(tmp_path: Path, shape: str) -> None:
    world = World(7, shape)
    bare = Bare(tmp_path, world.schema)
    begin = history.audit(bare.storage, str(bare.path), bare.table, None).position
    assert rewriting(bare, world, 60) > 3
    assert not history.audit(bare.storage, str(bare.path), bare.table, begin).changed_by_others


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", SHAPES)
def test_many_rewrites_beside_batches_change_no_row(tmp_path: Path, shape: str, seed: int) -> None:
    world = World(5000 + seed, shape)
    rewriting(Bare(tmp_path, world.schema), world, 100)


def planned(bare: Bare, **limits: Any) -> rewrite.Rewrite | None:
    return bare.lane.plan_rewrite(
        bare.table, bare.schema, **{"small_file_size": 1 << 20, "deleted_share_max": 0.5, **limits}
    )


def test_small_files_are_joined_by_tiers(bare: Bare) -> None:
    for number in range(FILES_PER_TIER):
        assert planned(bare) is None
        bare.apply(insert(0, item(number)))
    assert planned(bare, small_file_size=100) is None
    plan = planned(bare)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    bare.apply(delete(0, item(3)), update(0, item(4, "x")))
    assert bare.lane.commit_rewrite(bare.table, done)
    assert sorted(file.rows for file in bare.files().values()) == [1, FILES_PER_TIER]
    assert sorted(f.vector.cardinality for f in bare.files().values() if f.vector) == [2]
    assert sorted(bare.rows("id", "name")) == [(i, "x" if i == 4 else "n") for i in range(FILES_PER_TIER) if i != 3]
    assert planned(bare) is None


def test_emptied_files_are_remembered_for_a_rewrite_only(bare: Bare) -> None:
    for number in range(3):
        bare.apply(insert(0, item(number)))
        bare.apply(delete(0, item(number)))
    assert not bare.lane._emptied


def test_rows_that_are_deleted_are_left_out(bare: Bare) -> None:
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(*[delete(0, item(i)) for i in range(5)])
    assert planned(bare, deleted_share_max=0.5) is None
    plan = planned(bare, deleted_share_max=0.4)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    bare.apply(*[delete(0, item(i)) for i in range(5, 10)])
    assert bare.lane.commit_rewrite(bare.table, done)
    assert (bare.rows(), bare.files()) == ([], {})
    assert len(list(bare.path.glob("*.parquet"))) == 1  # the old one, for older versions


def test_a_new_file_all_of_whose_rows_were_deleted_meanwhile_is_not_added(bare: Bare) -> None:
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(*[delete(0, item(i)) for i in range(5)])
    plan = planned(bare, deleted_share_max=0.4)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    bare.apply(*[delete(0, item(i)) for i in range(5, 9)])
    assert bare.lane.commit_rewrite(bare.table, done)
    assert [(f.rows, f.vector and f.vector.cardinality) for f in bare.files().values()] == [(5, 4)]
    assert bare.rows("id") == [(9,)]


@pytest.mark.parametrize("what", ["epoch", "column", "feature"])
def test_a_rewrite_is_given_up_if_the_table_is_another(bare: Bare, what: str) -> None:
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(*[delete(0, item(i)) for i in range(5)])
    plan = planned(bare, deleted_share_max=0.4)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    metadata, protocol = (json.loads(line) for line in (bare.log / f"{0:020}.json").read_text().splitlines()[2:0:-1])
    match what:
        case "epoch":
            bare.commit({"txn": {"appId": bare.table.ledger_name, "version": Entry(2, bare.next - 1).version}})
            assert not bare.lane.commit_rewrite(bare.table, done)
        case "column":
            metadata["metaData"]["schemaString"] = metadata["metaData"]["schemaString"].replace("string", "binary")
            bare.commit(metadata)
            with pytest.raises(EngineNeededError):
                bare.lane.commit_rewrite(bare.table, done)
        case "feature":
            protocol["protocol"]["writerFeatures"].append("rowTracking")
            bare.commit(protocol)
            with pytest.raises(EngineNeededError):
                bare.lane.commit_rewrite(bare.table, done)
    assert {row[0] for row in bare.rows("id")} == set(range(5, 10))
    assert len(list(bare.path.glob("*.parquet"))) == 1


def test_many_rows_are_joined_in_several_portions(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "_BYTES_PER_GROUP", 200_000)
    for first in range(0, 12_000, 1_000):
        bare.apply(*[insert(0, item(i, "x" * 50)) for i in range(first, first + 1_000)])
    bare.apply(*[delete(0, item(i)) for i in range(0, 12_000, 5)])
    plan = planned(bare, deleted_share_max=0.1)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    assert done.add is not None
    assert pq.ParquetFile(bare.path / done.add["path"]).num_row_groups > 2
    bare.apply(*[delete(0, item(i)) for i in range(1, 12_000, 5)])
    assert bare.lane.commit_rewrite(bare.table, done)
    assert sorted(bare.rows("id")) == [(i,) for i in range(12_000) if i % 5 > 1]
    bare.apply(update(0, item(11_999, "new")), expects_rows=True)
    assert (11_999, "new") in bare.rows("id", "name")


def test_a_file_that_is_too_large_to_be_rewritten_does_not_keep_small_ones_from_being_joined(
    bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [insert(0, item(i, f"{i:x}" * 20)) for i in range(2_000)]
    bare.apply(*rows)
    bare.apply(delete(0, item(0)))
    for i in range(FILES_PER_TIER):
        bare.apply(insert(0, item(3_000 + i)))
    monkeypatch.setattr(joining, "_BYTES_MAX", 20_000)
    plan = planned(bare, deleted_share_max=0.0)
    assert plan is not None
    assert [file.rows for file in plan.files] == [1] * FILES_PER_TIER


def test_a_new_file_that_a_vacuum_removed_meanwhile_is_not_committed(bare: Bare) -> None:
    """While a table is idle what was rewritten waits for the next batch: longer than files without a commit are kept."""
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(*[delete(0, item(i)) for i in range(5)])
    plan = planned(bare, deleted_share_max=0.4)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    assert done.add is not None
    (bare.path / done.add["path"]).unlink()
    assert not bare.lane.commit_rewrite(bare.table, done)
    assert {row[0] for row in bare.rows("id")} == set(range(5, 10))


def test_rows_that_are_much_larger_than_their_files_are_not_read(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that stands in every row stands in a file once."""
    bare.apply(*[insert(0, item(i, "x" * 1_000)) for i in range(1_000)])
    bare.apply(*[delete(0, item(i)) for i in range(600)])
    assert sum(file.size for file in bare.files().values()) < 20_000
    monkeypatch.setattr(parquet, "BYTES_MAX", 100_000)
    plan = planned(bare)
    assert plan is not None
    with pytest.raises(EngineNeededError, match="too large"):
        bare.lane.rewrite(plan)
    changes = [update(0, item(i, price="2.00"), absent=["name"]) for i in range(600, 1_000)]
    refused(bare, "too large", *changes)
    bare.apply(*changes[:50])
    assert {row[0] for row in bare.rows("name")} == {"x" * 1_000}


def test_files_that_could_not_be_rewritten_are_not_read_again_behind_each_batch(
    bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BYTES_MAX", 1)
    begun = list[Future[Any]]()
    with ThreadPoolExecutor(1) as background:
        direct = DirectTable(bare.lane, bare.commits, background, background, MaintenanceConfig())
        for number in range(FILES_PER_TIER + 3):
            batch = bare.batch(bare.numbered([insert(0, item(number))]))
            details, written = direct.apply(bare.table, batch, batch.last - 1)
            assert details is not None
            assert written > 0
            if direct._rewriting is not None:
                wait([direct._rewriting])
                begun.append(direct._rewriting)
    assert len(begun) == 1
    assert len(bare.rows()) == FILES_PER_TIER + 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_batches_equal_a_dictionary(tmp_path: Path, shape: str) -> None:
    world = World(3, shape)
    run(Bare(tmp_path, world.schema), world, 40, 20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))  # 22,000 batches
@pytest.mark.parametrize("shape", SHAPES)
def test_many_random_batches_equal_a_dictionary(tmp_path: Path, shape: str, seed: int) -> None:
    world = World(1000 + seed, shape)
    run(Bare(tmp_path, world.schema), world, 50, 25)


def run_workloads(
    tmp_path: Path, seed: int, rounds: int, options: TableOptions = PLAIN, *, absent: bool = True
) -> None:
    """Rows that lack columns, moves, chains and swaps, in many small workloads that share a batch."""
    bare = Bare(tmp_path, workloads.SCHEMA, options)
    is_soft, names = options.deletes == "soft", [column.name for column in workloads.SCHEMA.columns]
    numbers, truth, last = itertools.count(1), workloads.Replay(), dict[workloads.Key, int]()
    possible = workloads.Workloads(seed, range(30), numbers, valid=True, absent=absent)
    arbitrary = workloads.Workloads(seed + 1, range(30, 60), numbers, valid=False, absent=absent)
    for number in range(rounds):
        changes = possible.round(3) + arbitrary.round(3)
        touched = {key: c.sequence_num for c in changes for key in (c.before, c.key) if key is not None}
        last.update(touched)
        for change in changes:
            truth.apply(change)
        rows = workloads.change_table(changes)
        file = bare.folder / f"{number}.parquet"
        pq.write_table(rows, file)
        end = changes[-1].sequence_num
        part = BatchFile(uri=file.as_uri(), rows=len(changes), bytes=1, first=changes[0].sequence_num, last=end)
        if number % 5 == 4:
            interrupted(bare, bare.compact)
        batch = Batch(schema=workloads.SCHEMA, files=[part], last=end, skip_to=0, rows=len(changes))
        assert bare.lane.apply(bare.table, batch) is not None
        if number % 3 == 2 or number == rounds - 1:
            found = bare.rows(*names, *(["_is_deleted", "_sequence_num"] if is_soft else []))
            wanted = {(*key, *values, *([False, last[key]] if is_soft else [])) for key, values in truth.rows.items()}
            if is_soft:
                wanted |= {(*key, *values, True, last[key]) for key, values in truth.graves.items()}
            assert len(found) == len(wanted)
            assert set(found) ^ wanted == set()


def test_rows_that_lack_columns_equal_a_plain_replay(tmp_path: Path) -> None:
    run_workloads(tmp_path, 11, 12)


@pytest.mark.parametrize("absent", [False, True])
def test_rows_that_are_kept_when_they_are_deleted_equal_a_plain_replay(tmp_path: Path, absent: bool) -> None:
    run_workloads(tmp_path, 12, 12, TableOptions(deletes="soft"), absent=absent)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200, 2))  # of 60 workloads and 40 rounds each
def test_many_rows_that_lack_columns_equal_a_plain_replay(tmp_path: Path, seed: int) -> None:
    run_workloads(tmp_path, seed, 40, TableOptions(deletes="soft" if seed % 4 else "hard"), absent=seed % 3 > 0)


def altered_beside_batches(
    tmp_path: Path, seed: int, rounds: int, options: TableOptions = PLAIN, *, absent: bool = True
) -> None:
    """Batches, alterations between them, and rewrites that are planned before and committed after these."""
    world = AlteredWorkloads(seed, 15, 1, deletes=options.deletes, absent=absent)
    bare, rng = Bare(tmp_path, world.schema, options), random.Random(seed)
    done = dict.fromkeys([False, True], 0)
    for number in range(rounds):
        batch = world.batch(tmp_path / "journal", 3)
        assert bare.lane.apply(bare.table, batch) is not None
        share = rng.choice([0.01, 0.5])
        plan = bare.lane.plan_rewrite(bare.table, bare.schema, small_file_size=1 << 20, deleted_share_max=share)
        rewritten = None if plan is None else bare.lane.rewrite(plan)
        is_altered = rng.random() < 0.5
        if is_altered:
            bare.alter(world.alter(may_fill=False), next(world.numbers))
        if rewritten is not None:
            try:
                is_done = bare.lane.commit_rewrite(bare.table, rewritten)
            except EngineNeededError:
                is_done = False
            assert is_done or is_altered
            assert not is_done or rewritten.plan.columns == bare.columns()
            done[is_done] += 1
        if rng.random() < 0.2:
            bare.lane = bare.new_lane()
        if number % 4 == 3 or number == rounds - 1:
            found = bare.rows(*world.names, *(["_is_deleted"] if options.deletes == "soft" else []))
            wanted = world.wanted()
            assert len(found) == len(wanted)
            assert set(found) ^ wanted == set()
    assert all(done.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("deletes", "absent"), [("hard", False), ("hard", True), ("soft", False), ("soft", True)])
def test_batches_on_a_table_that_is_altered_equal_a_plain_replay(
    tmp_path: Path, deletes: Literal["hard", "soft"], absent: bool
) -> None:
    altered_beside_batches(tmp_path, 31, 24, TableOptions(deletes=deletes), absent=absent)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300, 400))
def test_many_batches_on_a_table_that_is_altered_equal_a_plain_replay(tmp_path: Path, seed: int) -> None:
    options = TableOptions(deletes="soft" if seed % 2 else "hard")
    altered_beside_batches(tmp_path, seed, 80, options, absent=seed % 4 < 2)


# -- what it says -----------------------------------------------------------------------------------------------------


def test_counts_and_ledger_stand_in_the_commit(bare: Bare) -> None:
    bare.apply(insert(0, item(1)), insert(0, item(2)))
    before = history.audit(bare.storage, str(bare.path), bare.table, None).position
    bare.apply(update(0, item(1, "x")), delete(0, item(2)), delete(0, item(9)), insert(0, item(3)), expects_rows=True)
    audit = history.audit(bare.storage, str(bare.path), bare.table, before)
    assert audit.merged == Merged(matched=1, deleted=1, inserted=1, not_found=1)
    assert not audit.changed_by_others
    state = DeltaLakeLogReader(bare.storage, str(bare.path)).refresh()
    assert Entry.of(state.transactions[bare.table.ledger_name]) == Entry(1, bare.next - 1)


def test_a_batch_that_the_ledger_has_changes_nothing(bare: Bare) -> None:
    batch = bare.batch(bare.numbered([insert(0, item(1))]))
    assert bare.lane.apply(bare.table, batch) is not None
    version = bare.version()
    assert bare.lane.apply(bare.table, batch) is None
    assert bare.new_lane().apply(bare.table, batch) is None
    assert bare.version() == version


def test_changes_at_or_below_the_ledger_are_left_out(bare: Bare) -> None:
    first = bare.numbered([insert(0, item(1))])
    bare.lane.apply(bare.table, bare.batch(first))
    second = bare.numbered([insert(0, item(2))])
    bare.lane.apply(bare.table, bare.batch([*first, *second], skip_to=first[-1].sequence_num))
    assert {row[0] for row in bare.rows()} == {1, 2}


def test_rows_of_a_snapshot_are_appended(bare: Bare) -> None:
    applied = bare.apply(*[insert(0, item(i), is_snapshot=True) for i in range(5)], is_append=True)
    assert applied is not None
    assert applied.is_append
    bare.apply(update(0, item(3, "x")))
    assert sorted(bare.rows("id", "name")) == [(0, "n"), (1, "n"), (2, "n"), (3, "x"), (4, "n")]


def test_a_file_without_a_row_left_is_removed(bare: Bare) -> None:
    bare.apply(insert(0, item(1)), insert(0, item(2)))
    bare.apply(delete(0, item(1)))
    assert [file.vector is not None for file in bare.files().values()] == [True]
    bare.apply(delete(0, item(2)))
    assert bare.files() == {}
    assert bare.rows() == []


def test_rows_below_a_number_are_deleted(bare: Bare) -> None:
    for first in range(0, 100, 20):
        bare.apply(*[insert(0, item(i)) for i in range(first, first + 20)])
    bare.apply(*[update(0, item(i, "new")) for i in range(0, 100, 7)], *[delete(0, item(i)) for i in range(1, 100, 9)])
    for below in (1, 15, 30, 61, 95, 103, 1000):
        left = {row for row in bare.rows("id", "name", "_sequence_num") if row[2] >= below}
        before = len(bare.rows())
        files = bare.files()
        assert bare.clear(below) == bare.version()
        assert set(bare.rows("id", "name", "_sequence_num")) == left
        last = json.loads((bare.log / f"{bare.version():020}.json").read_text().splitlines()[0])["commitInfo"]
        assert last["operationMetrics"] == {"numDeletedRows": str(before - len(left))}
        if before == len(left):
            assert bare.files() == files
        bare.apply(update(0, item(99, "again")), delete(0, item(98)))
    assert {row[0] for row in bare.rows("id")} == {99}


def test_numbers_without_statistics_are_read(tmp_path: Path) -> None:
    bare = Bare(tmp_path, ITEMS, PLAIN, **{"delta.dataSkippingStatsColumns": "id"})
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.clear(below=6)
    assert sorted(bare.rows("id")) == [(i,) for i in range(5, 10)]


def test_times_in_the_log_are_those_of_the_commits(bare: Bare) -> None:
    first, began = bare.version() + 1, int(datetime.now(UTC).timestamp() * 1000)
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(update(0, item(1, "new")), delete(0, item(2)))
    bare.clear(below=6)
    bare.clear()
    ended = datetime.now(UTC).timestamp() * 1000
    told = set()
    for version in range(first, bare.version() + 1):
        for line in (bare.log / f"{version:020}.json").read_text().splitlines():
            for body in json.loads(line).values():
                for name in {"timestamp", "modificationTime", "deletionTimestamp", "lastUpdated"} & body.keys():
                    told.add(name)
                    assert began <= body[name] <= ended, (version, name)
    assert len(told) == 4


def test_clearing_is_done_once(bare: Bare) -> None:
    bare.apply(insert(0, item(1)))
    assert bare.lane.clear(bare.table, 5, None, 1) == 2
    assert bare.new_lane().clear(bare.table, 5, None) is None
    assert bare.version() == 2
    with pytest.raises(EngineNeededError, match="marked as deleted"):
        bare.lane.clear(replace(bare.table, options=TableOptions(deletes="soft")), 6, None)
    with pytest.raises(FencedError):
        bare.new_lane().clear(bare.table, 6, None, 4)


def test_a_commit_in_between_is_cleared_too(bare: Bare) -> None:
    bare.apply(insert(0, item(1)))
    other = bare.new_lane()
    ours = bare.next
    puts = bare.lane._commits

    class Late:
        def put(self, version: int, lines: Sequence[str]) -> bool:
            bare.lane._commits = puts
            changes = bare.batch(bare.numbered([insert(0, item(2)), update(0, item(1, "new"))]))
            assert other.apply(bare.table, changes) is not None
            return puts.put(version, lines)

    bare.lane._commits = Late()
    assert bare.lane.clear(bare.table, ours + 10, None) == 3
    assert bare.rows() == []
    assert not [file for file in bare.path.glob("deletion_vector*") if file.stat().st_size == 0]


def test_what_is_cleared_while_files_are_rewritten_stays_cleared(bare: Bare) -> None:
    for i in range(FILES_PER_TIER):
        bare.apply(insert(0, item(i)))
    plan = bare.lane.plan_rewrite(bare.table, bare.schema, small_file_size=1 << 20, deleted_share_max=0.5)
    assert plan is not None
    done = bare.lane.rewrite(plan)
    bare.clear(below=6)
    assert bare.lane.commit_rewrite(bare.table, done)
    assert sorted(bare.rows("id")) == [(i,) for i in range(5, FILES_PER_TIER)]


def test_a_source_s_time_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    bare = Bare(tmp_path, ITEMS, TableOptions(source_timestamp=True))
    bare.apply(insert(0, item(1)))
    assert bare.rows("_source_timestamp")[0][0].year == 2024


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["text", "decimal", "mixed", "texts"])
def test_keys_with_one_hash_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setattr(index, "hashes", lambda array: keys.hashes(array) % 3)
    world = World(5, shape)
    run(Bare(tmp_path, world.schema), world, 20, 20)


def test_small_memory_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every index stands in a file, and few fit at once."""
    monkeypatch.setattr(index, "_SPILLED_FROM", 1)
    world = World(6, "texts")
    bare = Bare(tmp_path, world.schema)
    bare.indexes = IndexCache(2_000, tmp_path)
    bare.lane = bare.new_lane()
    run(bare, world, 20, 20)
    assert bare.indexes.bytes <= 2_000


def test_keys_that_do_not_fit_into_memory_are_refused_before_a_row_is_written(bare: Bare) -> None:
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.indexes.bytes_max = 10
    before = bare.path.stat().st_mtime_ns  # of the folder: also when a file in it came and went
    with pytest.raises(TooLargeError, match="index_memory") as refusal:
        bare.apply(update(0, item(1, "x")), insert(0, item(99)))
    assert refusal.value.is_of_table
    assert bare.path.stat().st_mtime_ns == before
    # Files that cannot have the keys do not count.
    bare.apply(insert(0, item(100)))
    assert len(bare.rows()) == 11


def test_a_key_that_stands_in_the_table_twice_is_not_for_the_lane(bare: Bare) -> None:
    bare.apply(insert(0, item(1)))
    bare.apply(insert(0, item(1)), is_append=True)
    version = bare.version()
    with pytest.raises(EngineNeededError, match="twice"):
        bare.apply(update(0, item(1, "x")))
    assert bare.version() == version
    assert len(list(bare.path.glob("*.parquet"))) == 2


# -- others ------------------------------------------------------------------------------------------------------------


class Interrupted:
    """Lets something happen just before the next version is put."""

    def __init__(self, bare: Bare, happens: Callable[[], None], *, after: bool = False) -> None:
        self._commits = LinkedCommits(bare.log)
        self._happens: Callable[[], None] | None = happens
        self._after = after

    def put(self, version: int, lines: Sequence[str]) -> bool:
        happens, self._happens = self._happens, None
        if happens is not None and not self._after:
            happens()
        done = self._commits.put(version, lines)
        if happens is not None and self._after:
            happens()
        return done


def interrupted(bare: Bare, happens: Callable[[], None], *, after: bool = False) -> None:
    bare.commits = Interrupted(bare, happens, after=after)
    bare.lane = bare.new_lane()


def test_a_commit_in_between_is_read_and_the_batch_made_ready_again(bare: Bare) -> None:
    bare.apply(*[insert(0, item(i)) for i in range(10)])
    bare.apply(delete(0, item(4)))
    interrupted(bare, bare.compact)
    applied = bare.apply(update(0, item(3, "x")), delete(0, item(5)))
    assert applied is not None
    assert applied.version == 4
    wanted = {(i, "x" if i == 3 else "n") for i in range(10) if i not in {4, 5}}
    assert set(bare.rows("id", "name")) == wanted
    assert len(list(bare.path.glob("deletion_vector_*"))) == 2  # that of the lost attempt was removed


@pytest.mark.parametrize("is_append", [False, True])
def test_a_second_process_of_the_same_epoch_is_fenced(bare: Bare, is_append: bool) -> None:
    first, second = bare.numbered([insert(0, item(1))]), bare.numbered([insert(0, item(2))])
    bare.lane.apply(bare.table, bare.batch(first, is_append=is_append), 0)
    with pytest.raises(FencedError):
        bare.new_lane().apply(bare.table, bare.batch([*first, *second], is_append=is_append), 0)
    assert bare.rows("id") == [(1,)]


def test_a_table_that_was_set_back_is_claimed_again(bare: Bare) -> None:
    """Otherwise the ledger would say that the changes in between are there."""
    for number in range(5):
        bare.apply(insert(0, item(number)))
    for version in (4, 5):
        (bare.log / f"{version:020}.json").unlink()
    batch = bare.batch(bare.numbered([insert(0, item(9))]), skip_to=5)
    with pytest.raises(TargetUnavailableError, match="set back"):
        bare.lane.apply(bare.table, batch, 5)
    assert bare.version() == 3
    assert len(bare.rows()) == 3


def test_another_epoch_in_between_ends_the_batch(bare: Bare) -> None:
    bare.apply(insert(0, item(1)))
    claim = {"txn": {"appId": bare.table.ledger_name, "version": Entry(2, bare.next - 1).version}}
    interrupted(bare, lambda: bare.commit(claim))
    assert bare.apply(update(0, item(1, "x"))) is None
    assert bare.rows("name") == [("n",)]
    assert len(list(bare.path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("what", ["owner", "ledger", "columns", "feature"])
def test_another_table_in_between_ends_the_batch(bare: Bare, what: str) -> None:
    metadata, protocol = (json.loads(line) for line in (bare.log / f"{0:020}.json").read_text().splitlines()[2:0:-1])
    match what:
        case "owner":
            metadata["metaData"]["configuration"]["replicator.uuid"] = "other"
        case "columns":
            metadata["metaData"]["schemaString"] = metadata["metaData"]["schemaString"].replace("string", "binary")
        case "feature":
            protocol["protocol"]["writerFeatures"].append("rowTracking")
    bare.apply(insert(0, item(1)))

    def replaced() -> None:
        for file in bare.log.glob("*.json"):
            file.unlink()
        bare.commit(metadata, protocol)

    if what == "ledger":
        replaced()  # another table at the same path
    else:
        interrupted(bare, lambda: bare.commit(metadata, protocol))
    with pytest.raises(EngineNeededError if what == "feature" else ReplicatorError):
        bare.apply(update(0, item(1, "x")))
    assert len(list(bare.path.glob("*.parquet"))) == 1


def test_a_log_that_was_replaced_is_read_from_its_beginning(bare: Bare) -> None:
    bare.apply(insert(0, item(1)))
    bare.apply(insert(0, item(2)))
    first = (bare.log / f"{1:020}.json").read_text()
    second = json.loads((bare.log / f"{2:020}.json").read_text().splitlines()[1])
    (bare.log / f"{2:020}.json").unlink()
    bare.commit(second)
    assert first
    bare.apply(update(0, item(1, "x")), update(0, item(2, "y")))
    assert sorted(bare.rows("id", "name")) == [(1, "x"), (2, "y")]
    assert bare.lane._log.state.version == 3


def test_rows_of_a_log_that_was_replaced_are_those_of_its_new_commits(bare: Bare) -> None:
    """As after a folder was restored from a backup, and written to by others since: the version is the same, the rows are not."""
    bare.apply(insert(0, item(1)))
    bare.apply(insert(0, item(2)))
    (bare.log / f"{2:020}.json").unlink()
    assert bare.new_lane().apply(bare.table, bare.batch(bare.numbered([insert(0, item(3))]))) is not None
    assert bare.version() == 2
    bare.apply(update(0, item(1, "x")), update(0, item(3, "z")))
    assert sorted(bare.rows("id", "name")) == [(1, "x"), (3, "z")]


def test_a_checkpoint_is_read_as_the_commits_before_it(bare: Bare) -> None:
    for number in range(6):
        bare.apply(*[insert(0, item(10 * number + i)) for i in range(10)], delete(0, item(10 * number - 5)))
    before = DeltaLakeLogReader(bare.storage, str(bare.path)).refresh()
    DeltaTable(bare.path).create_checkpoint()
    for version in range(before.version):
        (bare.log / f"{version:020}.json").unlink()
    after = DeltaLakeLogReader(bare.storage, str(bare.path)).refresh()
    assert (after.version, after.transactions, after.unknown) == (before.version, before.transactions, None)
    assert {f.path: f.vector for f in after.files.values()} == {f.path: f.vector for f in before.files.values()}
    bare.lane = bare.new_lane()
    bare.apply(update(0, item(7, "x")), delete(0, item(1)))
    assert len(bare.rows()) == 54
    assert (7, "x") in bare.rows("id", "name")


@pytest.mark.parametrize("damage", [b"{", b'{"add":{}}', b'{"add":5}', b"[]", b'{"txn":{"appId":"x"}}'])
def test_a_commit_that_cannot_be_understood_is_refused(bare: Bare, damage: bytes) -> None:
    bare.apply(insert(0, item(1)))
    (bare.log / f"{2:020}.json").write_bytes(damage + b"\n")
    for _ in range(2):
        with pytest.raises((EngineNeededError, DamagedLogError), match=r"cannot be read|has no statistics"):
            bare.apply(update(0, item(1, "x")))
        assert bare.version() == 2


def test_an_error_after_the_version_was_written_is_no_error(bare: Bare) -> None:
    def fails() -> None:
        raise OSError("the connection broke")

    bare.apply(insert(0, item(1)))
    interrupted(bare, fails, after=True)
    assert bare.apply(update(0, item(1, "x"))) is not None
    assert bare.rows("name") == [("x",)]


def test_an_error_before_the_version_was_written_is_raised(bare: Bare) -> None:
    def fails() -> None:
        raise OSError("no space left")

    bare.apply(insert(0, item(1)))
    interrupted(bare, fails)
    with pytest.raises(OSError, match="no space left"):
        bare.apply(update(0, item(1, "x")))
    assert bare.rows("name") == [("n",)]


# -- what it refuses ---------------------------------------------------------------------------------------------------


def refused(bare: Bare, match: str, *changes: RowChange) -> None:
    version, files = bare.version(), len(list(bare.path.iterdir()))
    with pytest.raises(EngineNeededError, match=match):
        bare.apply(*(changes or [update(0, item(1, "x"))]))
    assert (bare.version(), len(list(bare.path.iterdir()))) == (version, files)


@pytest.mark.parametrize(
    ("match", "action"),
    [
        ("kind cdc", {"cdc": {"path": "x"}}),
        ("baseRowId", {"add": {"path": "x", "size": 1, "stats": '{"numRecords":1}', "baseRowId": 1}}),
        ("no statistics", {"add": {"path": "x", "size": 1}}),
        ("outside", {"add": {"path": "s3://x/y", "size": 1, "stats": '{"numRecords":1}'}}),
        ("partitioned", {"add": {"path": "x", "size": 1, "partitionValues": {"a": "1"}, "stats": '{"numRecords":1}'}}),
        ("domain", {"domainMetadata": {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}}),
        ("missing", {"add": {"path": "x", "size": 1, "stats": '{"numRecords":1}'}}),
        (
            "protocol 1, 2",
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        ),
    ],
)
def test_what_is_not_known_is_refused(bare: Bare, match: str, action: Mapping[str, Any]) -> None:
    bare.apply(insert(0, item(1)))
    bare.commit(action)
    refused(bare, match)


@pytest.mark.parametrize(
    "name", ["delta.enableChangeDataFeed", "delta.appendOnly", "delta.enableRowTracking", "delta.constraints.a"]
)
def test_a_property_that_is_not_known_is_refused(tmp_path: Path, name: str) -> None:
    refused(Bare(tmp_path, ITEMS, PLAIN, **{name: "true"}), name)


def test_tables_and_batches_that_are_not_the_lane_s_are_refused(tmp_path: Path, bare: Bare) -> None:
    refused(bare, "key has a null", insert(0, {"id": None, "name": "x", "price": None}))
    keyless = Bare(tmp_path / "keyless", replace(ITEMS, key=()))
    refused(keyless, "no key", insert(0, item(1)))
    floats = Bare(tmp_path / "float", schema_of(["id"], id=pa.float64(), v=pa.string()))
    refused(floats, "double", insert(0, {"id": 1.5, "v": "x"}))


def test_where_spark_is_wanted_nothing_is_made_or_opened_directly(tmp_path: Path) -> None:
    lanes = Lanes(DeltaLakeConfig(path=str(tmp_path), engine="spark"))
    path, storage = str(tmp_path / "items"), Storage(str(tmp_path))
    new: Any = None
    with pytest.raises(EngineNeededError, match=SPARK_WANTED):
        lanes.create(None, storage, path, new, {})
    with pytest.raises(EngineNeededError, match=SPARK_WANTED):
        lanes.open(None, storage, path)


def test_why_spark_merged_is_told_unless_it_was_wanted() -> None:
    assert merged_by_spark("the table has a feature").reason == "the table has a feature"
    assert merged_by_spark(SPARK_WANTED).reason is None


def test_a_table_that_is_committed_directly_rests_longer_after_much() -> None:
    now, table, other = [100.0], TableId("s", "t"), TableId("s", "u")
    pace = Pace(1.0, clock=lambda: now[0])
    assert pace.rest_s(table) == 0
    began, now[0] = pace.now(), 100.25
    pace.committed(table, began, 1000)
    assert (pace.rest_s(table), pace.rest_s(other)) == (0.75, 0), "what the commit took is part of the rest"
    now[0] = 100.75
    assert pace.rest_s(table) == 0.25
    pace.committed(table, pace.now(), 3 * BYTES_PER_S)
    assert pace.rest_s(table) == 3
    now[0] = 200.0
    assert pace.rest_s(table) == 0


def test_without_a_wait_nothing_rests() -> None:
    pace = Pace(0.0, clock=lambda: 100.0)
    pace.committed(TableId("s", "t"), pace.now(), 3 * BYTES_PER_S)
    assert pace.rest_s(TableId("s", "t")) == 0


def test_an_index_for_which_the_disk_has_no_room_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made for a batch that is committed already, too."""

    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    bare = Bare(tmp_path, schema_of(["id"], id=pa.string(), v=pa.string()))
    monkeypatch.setattr(index, "_SPILLED_FROM", 1 << 10)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    bare.apply(*[insert(0, {"id": f"k{i}", "v": "a"}) for i in range(300)])
    bare.lane = bare.new_lane()
    bare.apply(*[insert(0, {"id": f"k{i}", "v": "b"}) for i in range(100, 400)])
    assert sorted(bare.rows("id", "v")) == sorted((f"k{i}", "a" if i < 100 else "b") for i in range(400))
