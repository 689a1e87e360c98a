"""A replica replaces the primary half-way, to the end: one that lags is waited for, one that continued without us is not joined."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.databases import Database
from replicator_testbed.demo.shop import ShopWriter, Size
from replicator_testbed.demo.sources import shop_of
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import Flavor, MysqlDatabase, MysqlServer
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, is_fresh, is_running
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

SIZE = Size(customers=3_000, products=200, orders=6_000)


@pytest.fixture
def origin(kind: Flavor) -> Iterator[Database]:
    """On a server of its own, whose log begins with it."""
    if kind == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(kind) as primary, primary.database() as database:
        yield database


@pytest.fixture
def replica(origin: MysqlDatabase, kind: Flavor) -> Iterator[MysqlDatabase]:
    """The same database on a replica."""
    with MysqlServer(kind) as server:
        server.follow(origin.server)
        yield MysqlDatabase(server=server, name=origin.name)


def streams(status: ReplicatorStatus) -> bool:
    return is_running(status) and is_fresh(status)


def let_it_continue(writer: ShopWriter) -> None:
    wanted = writer.transactions + 100
    wait_until(lambda: writer.transactions >= wanted, "the writer continues")


@pytest.mark.matrix  # its parts are in plugins/sources/mysql/tests/test_log.py and tests/integration/test_capture_mysql.py
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_replica_takes_over_and_the_old_primary_is_not_joined_any_more(
    rig: Rig, writer: ShopWriter, origin: MysqlDatabase, replica: MysqlDatabase, target_tables: TargetTables
) -> None:
    process = rig.start()
    rig.wait_for_status(streams, process)
    replica.server.catch_up_with(origin.server)
    replica.server.stop_following()
    let_it_continue(writer)
    writer.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert rig.differences(target_tables) == {}

    # The replica lacks what was captured: it is waited for.
    rig.database = replica
    rig.write_yaml()
    process = rig.start()
    lags = rig.wait_for_status(lambda s: s.retry is not None, process)
    assert (present(lags.retry).role, present(lags.retry).code) == ("capture", "source_lags")
    replica.server.resume_replication()
    replica.server.catch_up_with(origin.server)
    replica.server.stop_following()
    successor = shop_of(replica, SIZE).writer()
    successor.start()
    try:
        rig.wait_for_status(streams, process)
        rig.command("snapshot", rig.name, rig.full_name("customers"))
        rig.wait_for_status(lambda s: streams(s) and not present(rig.store).requests.open(rig.name), process)
        let_it_continue(successor)
    finally:
        successor.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert rig.differences(target_tables) == {}

    # The old primary never had that, and continues by itself.
    origin.execute("UPDATE customers SET balance = 0 WHERE id < 20")
    rig.database = origin
    rig.extra = rig.extra.replace("give_up_after: 30m", "give_up_after: 2s")
    rig.write_yaml()
    rig.command("run", str(rig.file), check=1)
    error = rig.error()
    assert error.code in {"source_lags", "other_history"}
    assert "--restart" in present(error.action)
    rig.database = replica
    assert rig.differences(target_tables) == {}, "nothing of it came"
