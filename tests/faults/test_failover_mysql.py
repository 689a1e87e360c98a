"""A replica takes over under load, in the middle of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replicator.model.documents.status import ReplicatorStatus
from replicator_testbed.amid import amid, is_amid
from replicator_testbed.databases import Database
from replicator_testbed.demo.shop import ShopWriter, Size
from replicator_testbed.demo.sources import shop_of
from replicator_testbed.mysql.programs import has_mysql
from replicator_testbed.mysql.servers import Flavor, MysqlDatabase, MysqlServer
from replicator_testbed.network.proxy import FaultProxy
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, is_fresh, is_running
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

SIZE = Size(customers=3_000, products=200, orders=6_000)
TABLE = "customers"
USER = ("CREATE USER moving@'%' IDENTIFIED BY 'secret'", "GRANT ALL PRIVILEGES ON *.* TO moving@'%'")


@pytest.fixture
def origin(kind: Flavor) -> Iterator[Database]:
    """On a server of its own, whose log begins with it."""
    if kind == "mysql" and not has_mysql():
        pytest.skip("NO MYSQL: tools/install_mysql.sh could not unpack one; only MariaDB is tested")
    with MysqlServer(kind) as primary, primary.database() as database:
        primary.execute(*USER)
        yield database


@pytest.fixture
def replica(origin: MysqlDatabase, kind: Flavor) -> Iterator[MysqlDatabase]:
    """The same database on a replica."""
    with MysqlServer(kind) as server:
        server.follow(origin.server)
        yield MysqlDatabase(server=server, name=origin.name)


def streams(status: ReplicatorStatus) -> bool:
    return is_running(status) and status.retry is None and is_fresh(status)


def let_it_continue(writer: ShopWriter) -> None:
    wanted = writer.transactions + 100
    wait_until(lambda: writer.transactions >= wanted, "the writer continues")


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["bigquery"])
@pytest.mark.parametrize("in_place", [False, True], ids=["first", "in_place"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_replica_takes_over_amid_a_snapshot_under_load(
    rig: Rig,
    writer: ShopWriter,
    origin: MysqlDatabase,
    replica: MysqlDatabase,
    target_tables: TargetTables,
    in_place: bool,
) -> None:
    with FaultProxy(origin.server.host, origin.server.port) as address:
        rig.extra = rig.extra.replace("chunk_rows: 1000", "chunk_rows: 10")
        rig.environ["RIG_PASSWORD"] = "secret"
        rig.write_yaml(source={"host": address.host, "port": address.port, "user": "moving"})
        process = rig.start()
        if in_place:
            rig.wait_for_status(streams, process)
        with amid(rig, process, TABLE, in_place=in_place):
            address.cut()
        let_it_continue(writer)
        writer.stop()
        replica.server.catch_up_with(origin.server)
        replica.server.stop_following()
        rig.database = replica
        successor = shop_of(replica, SIZE).writer()
        successor.start()
        try:
            assert is_amid(rig, present(rig.status()), TABLE, in_place=in_place)
            address.lead_to(replica.server.host, replica.server.port)
            address.restore()
            rig.wait_for_status(streams, process)
            let_it_continue(successor)
        finally:
            successor.stop()
        rig.settle(process)
        assert rig.stop(process) == 0, rig.output()
        assert rig.differences(target_tables) == {}
