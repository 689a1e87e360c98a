"""A state store, a watcher of it, and where its events go: a file, and a real HTTP server."""

from __future__ import annotations

import importlib
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import attr
import pyarrow as pa
import pytest

from replicator.model.counts import CounterName
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.projection.columns import IgnoredColumn
from replicator.service.lineage.watcher import LineageWatcher
from replicator.state import holder_id
from replicator.state.records import ErrorRecord, Lease, Stage, TableRecord
from replicator.state.store import StateStore
from replicator_testbed.network.receiver import Receiver, receiving
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

CONFIG = """\
name: shop
source: {{type: {source}, host: db.internal, user: u, password: "${{env:TEST_PASSWORD}}"{database}}}
target: {{type: {target}}}
tables: {{settings: {{"*.*": {{deletes: soft}}}}}}
lineage: {{{lineage}}}
"""
ORDERS = TableId("public", "orders")
ID = Column(name="id", type=pa.int64(), source_type="bigint", nullable=False)
NAME = Column(name="full name", type=pa.string(), source_type="text", comment="Of the customer.")
FAX = Column(name="fax", type=pa.string(), source_type="text")
SCHEMA = TableSchema(table=ORDERS, columns=(ID, NAME), key=("id",), kept=(FAX,))
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def config(lineage: str, *, source: str = "postgresql", target: str = "delta, path: /lake") -> str:
    database = ", database: shop" if source != "mysql" else ""
    return CONFIG.format(source=source, target=target, lineage=lineage, database=database)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    monkeypatch.setenv("TEST_PASSWORD", "hunter2hunter2")
    monkeypatch.setenv("TEST_KEY", "k3y-of-the-server")
    store = StateStore(f"sqlite:///{tmp_path}/state.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lineage.ndjson"


Looking = Callable[[], None]


@pytest.fixture
def look(store: StateStore) -> Iterator[Looking]:
    watcher = LineageWatcher(store, holder_id(), Registry.discover())
    yield watcher.look
    watcher.close()


def begin(store: StateStore, text: str, schema: TableSchema = SCHEMA) -> tuple[Lease, int]:
    """A replicator that a worker runs, with one table."""
    store.create_replicator("shop", text, "/j")
    lease = present(store.leases.acquire("shop", holder_id(), 600))
    put(store, lease, schema)
    return lease, store.runs.start(lease)


def put(store: StateStore, lease: Lease, schema: TableSchema, **changes: Any) -> None:
    record = TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING, schema=schema)
    changed = TableRecord(**{name: getattr(record, name) for name in record.__slots__} | changes)
    store.put_tables("shop", lease.epoch, [changed])


def events(file: Path, number: int) -> list[dict[str, Any]]:
    """So many events, once they are there."""

    def read() -> list[str] | None:
        lines = file.read_text().splitlines() if file.exists() else []
        return lines if len(lines) >= number else None

    lines = wait_until(read, f"{number} events are in the file", every_s=0.01)
    assert len(lines) == number
    found = [json.loads(line) for line in lines]
    for event in found:
        check_event(event)
    return found


def check_event(event: Mapping[str, Any]) -> None:
    """Whether an event, and each facet, has what OpenLineage's definition of it has: the client's classes are made from that."""
    base = importlib.import_module("openlineage.client.generated.base")
    check(event, base.RunEvent, "event")
    for part in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for name, facet in part["facets"].items():
            check(facet, facet_class(facet["_schemaURL"]), name)


def facet_class(url: str) -> type:
    name = url.rpartition("/")[2]
    package = importlib.import_module("openlineage.client.generated")
    folder = Path(next(iter(package.__path__)))
    for path in folder.glob("*.py"):
        module = importlib.import_module(f"openlineage.client.generated.{path.stem}")
        found = getattr(module, name, None)
        if isinstance(found, type) and found.__module__ == module.__name__:
            return found
    raise AssertionError(f"there is no facet {name}")


def check(value: Any, kind: Any, where: str) -> None:
    """Whether a JSON value is one of an attrs class, a list, a mapping, or a scalar."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
        origin = get_origin(kind)
    if origin is list:
        for one in value:
            check(one, get_args(kind)[0], where)
    elif origin is dict:
        if where.endswith("acets"):
            return  # each of them names its own definition
        for one in value.values():
            check(one, get_args(kind)[1], where)
    elif attr.has(kind):
        fields = {one.name: one for one in attr.fields(kind)}
        hints = get_type_hints(kind, {**vars(typing), **vars(importlib.import_module(kind.__module__))})
        assert set(value) <= set(fields), (where, set(value) - set(fields))
        missing = {name for name, one in fields.items() if one.default is attr.NOTHING and name not in value}
        assert missing == set(), (where, missing)
        for name, one in value.items():
            check(one, hints[name], name)


def test_an_event_says_which_column_is_made_from_which(store: StateStore, look: Looking, file: Path) -> None:
    begin(store, config(f"file: {file}"))
    look()
    look()
    [event] = events(file, 1)
    assert event["eventType"] == "START"
    assert (event["job"]["namespace"], event["job"]["name"]) == ("replicator", "shop.public.orders")
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    [read], [written] = event["inputs"], event["outputs"]
    assert (read["namespace"], read["name"]) == ("postgres://db.internal:5432", "shop.public.orders")
    assert (written["namespace"], written["name"]) == ("file", "/lake/public/orders")
    assert [(one["name"], one["type"]) for one in read["facets"]["schema"]["fields"]] == [
        ("id", "bigint"),
        ("full name", "text"),
    ]
    columns = [one["name"] for one in written["facets"]["schema"]["fields"]]
    assert columns == ["id", "full name", "fax", "_sequence_num", "_is_deleted"]
    lineage = written["facets"]["columnLineage"]["fields"]
    assert set(lineage) == {"id", "full name"}, "the source has no column fax any more"
    [of_name] = lineage["full name"]["inputFields"]
    assert (of_name["namespace"], of_name["name"], of_name["field"]) == (read["namespace"], read["name"], "full name")
    [transformation] = of_name["transformations"]
    assert (transformation["type"], transformation["subtype"], transformation["masking"]) == (
        "DIRECT",
        "IDENTITY",
        False,
    )


IN_MYSQL = ("mysql://db.internal:3306", "public.orders")
IN_POSTGRESQL = ("postgres://db.internal:5432", "shop.public.orders")
IN_SQL_SERVER = ("mssql://db.internal:1433", "shop.public.orders")
BIGQUERY = "bigquery, project: my-project, location: EU, dataset: '{namespace}', staging: {bucket: staging}"


@pytest.mark.parametrize(
    ("source", "target", "read", "written", "column"),
    [
        ("mysql", "delta, path: 's3a://lake/raw'", IN_MYSQL, ("s3://lake", "raw/public/orders"), "full name"),
        ("sqlserver", "delta, path: 's3a://lake/raw'", IN_SQL_SERVER, ("s3://lake", "raw/public/orders"), "full name"),
        ("postgresql", "delta, path: 'gs://lake'", IN_POSTGRESQL, ("gs://lake", "public/orders"), "full name"),
        ("postgresql", BIGQUERY, IN_POSTGRESQL, ("bigquery", "my-project.public.orders"), "full_name"),
    ],
)
def test_tables_are_called_as_openlineage_calls_them(
    store: StateStore,
    look: Looking,
    file: Path,
    source: str,
    target: str,
    read: tuple[str, str],
    written: tuple[str, str],
    column: str,
) -> None:
    begin(store, config(f"file: {file}", source=source, target=target))
    look()
    [event] = events(file, 1)
    assert (event["inputs"][0]["namespace"], event["inputs"][0]["name"]) == read
    assert (event["outputs"][0]["namespace"], event["outputs"][0]["name"]) == written
    assert column in event["outputs"][0]["facets"]["columnLineage"]["fields"]


def test_a_run_is_told_from_its_start_over_a_change_to_its_end(
    store: StateStore, look: Looking, file: Path, clock: Clock
) -> None:
    lease, run = begin(store, config(f"file: {file}"))
    look()
    put(
        store,
        lease,
        TableSchema(table=ORDERS, columns=(ID, NAME, FAX), key=("id",)),
        ignored=(IgnoredColumn(column="fax"),),
    )
    look()
    clock.now += timedelta(minutes=10)
    look()
    store.runs.end(lease, run, "failed", ErrorRecord(code="log_gap", message="The slot is lost.", action=None, at=NOW))
    look()
    found = events(file, 4)
    assert [event["eventType"] for event in found] == ["START", "RUNNING", "RUNNING", "FAIL"]
    assert len({event["run"]["runId"] for event in found}) == 1
    assert found[1]["outputs"][0]["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "ALTER"
    assert "lifecycleStateChange" not in found[2]["outputs"][0]["facets"]
    assert set(found[1]["outputs"][0]["facets"]["columnLineage"]["fields"]) == {"id", "full name"}, "fax is ignored"
    assert found[3]["run"]["facets"]["errorMessage"]["message"] == "The slot is lost."


def test_another_process_continues_and_says_nothing_twice(store: StateStore, file: Path) -> None:
    begin(store, config(f"file: {file}"))
    for holder in ("host-a:1:boot/1/2", "host-b:1:boot/1/2"):
        watcher = LineageWatcher(store, holder, Registry.discover())
        watcher.look()
        watcher.close()
    events(file, 1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_a_server_gets_events_with_its_key(store: StateStore, look: Looking, receiver: Receiver) -> None:
    begin(store, config(f"url: '{receiver.url.removesuffix('/hook')}', api_key: '${{env:TEST_KEY}}'"))
    look()
    received = receiver.next()
    assert (received.path, received.headers["authorization"]) == ("/api/v1/lineage", "Bearer k3y-of-the-server")
    check_event(received.document)
    wait_until(lambda: look() or store.counters("shop")[CounterName.LINEAGE_EVENTS, ("sent",)] == 1, "it is counted")


def test_a_server_that_hangs_holds_nobody_up_and_what_is_dropped_is_counted(
    store: StateStore, look: Looking, receiver: Receiver, clock: Clock
) -> None:
    receiver.answer = receiver.hang
    begin(store, config(f"url: '{receiver.url.removesuffix('/hook')}', queue_max: 2, timeout: 1m"))
    look()
    receiver.next()
    for _ in range(6):
        clock.now += timedelta(minutes=10)
        look()
    clock.now += timedelta(seconds=1)
    look()
    assert store.counters("shop")[CounterName.LINEAGE_EVENTS, ("dropped",)] == 4
