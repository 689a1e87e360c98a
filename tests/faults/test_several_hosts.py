"""Workers on several hosts: whatever happens to one, another continues, and no row is lost or doubled."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest

from replicator.testing.waiting import wait_until
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.hosts import Failure, Hosts, TakeOver, hosts_of
from replicator_testbed.object_stores import Protocol, object_store
from replicator_testbed.present import present
from replicator_testbed.rig import Rig
from replicator_testbed.servers import PostgresServer
from replicator_testbed.target_tables import TargetTables

_log = logging.getLogger(__name__)

TAKE_OVERS = int(os.environ.get("REPLICATOR_TAKE_OVERS", "200"))


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


@pytest.mark.parametrize("target", ["bigquery", pytest.param("delta", marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_another_host_takes_over_whatever_happens_to_the_first(
    hosts: Hosts, writer: ShopWriter, target_tables: TargetTables
) -> None:
    hosts.begin()
    for failure in (Failure.KILLED, Failure.STOPPED, Failure.HANGING, Failure.FROZEN):
        hosts.take_over(failure)
    assert_equal(hosts, writer, target_tables)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["bigquery"])
@pytest.mark.timeout(900)
def test_another_host_takes_over_with_a_journal_in_an_object_store(
    rig: Rig, postgres: PostgresServer, writer: ShopWriter, target_tables: TargetTables
) -> None:
    """On S3: files on Google Cloud Storage BigQuery reads itself, and its emulator cannot."""
    with object_store(Protocol.S3) as server, postgres.database() as state:
        mine = replace(rig, environ={**rig.environ, **server.environ})
        with hosts_of(mine, state, ("north", "south"), journal=server.uri("journal")) as hosts:
            hosts.begin()
            for failure in (Failure.KILLED, Failure.FROZEN):
                hosts.take_over(failure)
            assert_equal(hosts, writer, target_tables)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("target", ["delta", "bigquery"])
def test_many_take_overs_lose_and_double_nothing(
    hosts: Hosts, writer: ShopWriter, target_tables: TargetTables, target: str
) -> None:
    draw = random.Random(20261127)
    hosts.begin()
    done: list[TakeOver] = []
    for _ in range(TAKE_OVERS):
        let_it_write(writer, draw.randint(0, 300))
        done.append(hosts.take_over(draw.choice(list(Failure))))
        _log.info("%s: %s", target, figures(done))
    assert_equal(hosts, writer, target_tables)


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
