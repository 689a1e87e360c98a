"""Workers on several hosts: whatever happens to one, another continues, and no row is lost or doubled."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import pytest

from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.hosts import Failure, Hosts, TakeOver, hosts_of
from replicator_testbed.network.object_stores import Protocol, object_store
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

_log = logging.getLogger(__name__)

TAKE_OVERS = int(os.environ.get("REPLICATOR_TAKE_OVERS", "200"))
MINUTES = float(os.environ.get("REPLICATOR_TAKE_OVER_MINUTES", "inf"))
"""After these a run compares the rows and ends, whether it has done all or not."""
EVERY = (Failure.KILLED, Failure.STOPPED, Failure.HANGING, Failure.FROZEN)
RECORD = os.environ.get("REPLICATOR_TAKE_OVERS_RECORD", "")
"""A file of the take-overs of earlier runs whose rows were compared: the next run continues them."""


@pytest.fixture
def hosts(rig: Rig, postgres: PostgresServer) -> Iterator[Hosts]:
    """Two hosts that can run the replicator."""
    with postgres.database() as state, hosts_of(rig, state, ("north", "south")) as hosts:
        yield hosts


def let_it_write(writer: ShopWriter, transactions: int) -> None:
    wanted = writer.transactions + transactions
    wait_until(lambda: writer.transactions >= wanted, "the writer continues")


def assert_equal(hosts: Hosts, writer: ShopWriter, target_tables: TargetTables) -> None:
    """No row was lost or doubled."""
    writer.stop()
    host = hosts.runs()
    host.rig.settle(present(host.worker))
    host.rig.verify()
    for one in hosts.hosts:
        one.stop()
    assert host.rig.differences(target_tables) == {}


@pytest.mark.parametrize(
    ("target", "failures"),
    [
        pytest.param("duckdb", (Failure.KILLED,), marks=pytest.mark.matrix),
        *(pytest.param(target, EVERY, marks=pytest.mark.matrix) for target in ("duckdb", "bigquery", "delta")),
    ],
    ids=["killed", "duckdb", "bigquery", "delta"],
)
@pytest.mark.timeout(900)
def test_another_host_takes_over_whatever_happens_to_the_first(
    hosts: Hosts, writer: ShopWriter, target_tables: TargetTables, failures: Sequence[Failure]
) -> None:
    """Both hosts are this machine: they can share a file of DuckDB, whose lock is of the machine."""
    hosts.begin()
    for failure in failures:
        hosts.take_over(failure)
    assert_equal(hosts, writer, target_tables)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("target", "protocol"),
    # Files on Google Cloud Storage BigQuery reads itself, and its emulator cannot.
    [
        ("bigquery", Protocol.S3),
        ("delta", Protocol.GCS),
        ("spark", Protocol.GCS),
        ("spark", Protocol.S3),
    ],
)
@pytest.mark.timeout(900)
def test_another_host_takes_over_with_a_journal_in_an_object_store(
    rig: Rig, postgres: PostgresServer, writer: ShopWriter, target_tables: TargetTables, protocol: Protocol
) -> None:
    with object_store(protocol) as server, postgres.database() as state:
        mine = replace(rig, environ={**rig.environ, **server.environ})
        with hosts_of(mine, state, ("north", "south"), journal=server.uri("journal")) as hosts:
            hosts.begin()
            for failure in (Failure.KILLED, Failure.FROZEN):
                hosts.take_over(failure)
            uris = hosts.store.journal.uris(hosts.name)
            assert uris
            assert all(uri.startswith(server.uri("journal")) for uri in uris)
            assert_equal(hosts, writer, target_tables)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("target", ["delta", "bigquery"])
def test_many_take_overs_lose_and_double_nothing(
    hosts: Hosts, writer: ShopWriter, target_tables: TargetTables, target: str
) -> None:
    earlier = recorded(target)
    draw = random.Random(20261127 + len(earlier))
    hosts.begin()
    done: list[TakeOver] = []
    began = time.monotonic()
    while len(earlier) + len(done) < TAKE_OVERS and time.monotonic() - began < 60 * MINUTES:
        let_it_write(writer, draw.randint(0, 300))
        done.append(hosts.take_over(draw.choice(list(Failure))))
        _log.info("%s: %s", target, figures([*earlier, *done]))
    assert_equal(hosts, writer, target_tables)
    if RECORD:
        with Path(RECORD).open("a", encoding="utf-8") as record:
            record.writelines(json.dumps({"target": target, **asdict(one)}) + "\n" for one in done)


def recorded(target: str) -> list[TakeOver]:
    """The take-overs of earlier runs."""
    if not RECORD or not Path(RECORD).exists():
        return []
    lines = map(json.loads, Path(RECORD).read_text(encoding="utf-8").splitlines())
    return [
        TakeOver(failure=Failure(line["failure"]), lease_s=line["lease_s"], applied_s=line["applied_s"])
        for line in lines
        if line["target"] == target
    ]


def figures(done: list[TakeOver]) -> str:
    """Per kind: how many, and the median and worst time to the lease and to the first batch."""
    rows = []
    for kind in (*Failure, None):
        of_kind = [one for one in done if kind in (None, one.failure)]
        if of_kind:
            lease, applied = [one.lease_s for one in of_kind], [one.applied_s for one in of_kind]
            rows.append(
                f"{kind or 'all'}: {len(of_kind)}, lease {median(lease):.1f} / {max(lease):.1f} s,"
                f" applied {median(applied):.1f} / {max(applied):.1f} s"
            )
    return "; ".join(rows)
