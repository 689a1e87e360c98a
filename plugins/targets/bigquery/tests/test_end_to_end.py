"""From PostgreSQL into the emulator with the command line: copy, follow, crash, delete."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import NotFound

from replicator.demo import shop
from replicator.testing.bigquery import PROJECT, BigQueryEmulator, source_sum, target_sum
from replicator.testing.compare import Sum, columns
from replicator.testing.rig import Rig, crashes, with_crashes
from replicator.testing.servers import ScratchDatabase

sys.path.insert(0, str(Path(__file__).parent))
from service import Fault, Kind, Service

SIZE = shop.Size(customers=1_500, products=100, orders=2_000)
QUICK = """
snapshot: {chunk_rows: 1000}
retry: {backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 5m}
"""
PLACES = (
    "apply.claimed",
    "target.claimed:2",
    "target.before_ddl",
    "target.table_made",
    "target.after_ddl",
    "target.before_merge",
    "target.uploaded",
    "target.loaded",
    "target.merged",
    "target.after_merge:2",
    "apply.after_unit:3",
)


@pytest.fixture
def rig(tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator) -> Iterator[Rig]:
    """A replicator of the shop, stored nowhere yet; its datasets are its own."""
    shop.fill(database.dsn, SIZE)
    target = emulator.block(dataset=f"{database.name}_{{namespace}}", own_dataset=f"_{database.name}")
    rig = Rig(folder=tmp_path, database=database, extra=QUICK, target=target)
    yield rig
    rig.kill()


@pytest.fixture
def writer(database: ScratchDatabase, rig: Rig) -> Iterator[shop.Writer]:
    """Changes the shop from the start of the test until it is stopped."""
    assert rig.database is database
    busy = shop.Writer(database.dsn, SIZE)
    busy.start()
    yield busy
    busy.stop()


@pytest.fixture
def client(emulator: BigQueryEmulator) -> Iterator[Any]:
    client = emulator.client()
    yield client
    client.close()


def dataset(rig: Rig) -> str:
    return f"{PROJECT}.{rig.database.name}_public"


def differences(rig: Rig, client: Any) -> dict[str, tuple[Sum, Sum]]:
    """Tables whose rows are not the same on both sides."""
    found = {}
    for table in shop.TABLES:
        names = columns(rig.database.dsn, table)
        source = source_sum(rig.database.dsn, table, names)
        target = target_sum(client, f"{dataset(rig)}.{table}", names)
        if source != target:
            found[table] = (source, target)
    return found


def is_streaming(status: Any) -> bool:
    return bool(status["tables"]) and all(t["state"] == "streaming" for t in status["tables"])


def test_a_shop_is_copied_and_followed_without_spark(rig: Rig, writer: shop.Writer, client: Any) -> None:
    process = rig.start()
    rig.wait_for_status(is_streaming, process)
    target = writer.transactions + 50
    rig.wait_for_status(lambda _: writer.transactions >= target, process)
    status = rig.wait_for_status(lambda s: all(t["last_batch"] for t in s["tables"]), process)
    assert {"way", "bytes_billed", "slot_ms", "pause_s"} <= status["tables"][0]["last_batch"].keys()
    writer.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert differences(rig, client) == {}
    assert not (rig.home / "logs" / f"{rig.name}.spark.log").exists()
    own = [t.table_id for t in client.list_tables(f"{PROJECT}._{rig.database.name}")]
    assert len([t for t in own if t.startswith("ledger_")]) == len(shop.TABLES)
    assert [t for t in own if t.startswith("staging_")] == []

    rig.command("delete", rig.name, "--yes")
    assert [t.table_id for t in client.list_tables(f"{PROJECT}._{rig.database.name}") if "ledger" in t.table_id] == []
    assert differences(rig, client) == {}, "the tables stay"


@pytest.mark.timeout(400)
def test_a_crash_at_any_boundary_of_the_target_loses_and_doubles_nothing(
    rig: Rig, writer: shop.Writer, client: Any
) -> None:
    with_crashes(rig, PLACES)
    process = rig.start()
    rig.wait_for_status(lambda _: len(crashes(rig)) == len(PLACES), process, timeout_s=240)
    rig.wait_for_status(is_streaming, process, timeout_s=200)
    writer.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert sorted(crashes(rig)) == sorted(PLACES)
    assert differences(rig, client) == {}


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_writer_and_the_next_one_goes_on(
    rig: Rig, writer: shop.Writer, client: Any
) -> None:
    process = rig.start()
    rig.wait_for_status(lambda s: any(t["changes_applied"] for t in s["tables"]), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    writer.stop()
    rig.catch_up()
    assert differences(rig, client) == {}


def test_tables_and_ledgers_are_dropped_on_demand(rig: Rig, client: Any) -> None:
    rig.catch_up()
    rig.command("delete", rig.name, "--yes", "--drop-target")
    assert list(client.list_tables(f"{PROJECT}._{rig.database.name}")) == []
    for table in shop.TABLES:
        with pytest.raises(NotFound):
            client.get_table(f"{dataset(rig)}.{table}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_that_breaks_and_loses_answers_all_the_time_gets_everything_once(
    tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, client: Any
) -> None:
    """Requests are refused, lost before and lost after they were carried out; jobs fail after they were accepted."""
    shop.fill(database.dsn, SIZE)
    rng = random.Random(5)
    kinds: list[Kind] = ["refuse", "break_before", "break_after", "fail_job"]
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        service.faults += [Fault(kind, lambda *_: rng.random() < 0.02, times=12) for kind in kinds]
        block = emulator.block(
            dataset=f"{database.name}_{{namespace}}", own_dataset=f"_{database.name}", endpoint=service.endpoint,
            staging=f"{{bucket: staging, prefix: {database.name}, endpoint: '{service.endpoint}'}}",
        )  # fmt: skip
        rig = Rig(folder=tmp_path, database=database, extra=QUICK, target=block)
        writer = shop.Writer(database.dsn, SIZE)
        writer.start()
        try:
            process = rig.start()
            rig.wait_for_status(is_streaming, process, timeout_s=300)
            rig.wait_for_status(lambda _: sum(f.times for f in service.faults) <= 10, process, timeout_s=250)
            writer.stop()
            assert rig.stop(process) == 0, rig.output()
            service.faults.clear()
            rig.catch_up()
        finally:
            writer.stop()
            rig.kill()
    assert differences(rig, client) == {}


def state_of(rig: Rig, table: str) -> Any:
    return next(t for t in rig.status()["tables"] if t["table"] == f"public.{table}")


@pytest.mark.timeout(400)
def test_a_table_is_made_anew_on_demand_with_its_new_settings(rig: Rig, client: Any) -> None:
    """The cure that the errors name, by the command line: other settings, and a table that somebody dropped."""
    rig.catch_up()
    rig.write_yaml(extra=rig.extra + "tables: {settings: {public.products: {deletes: soft}}}\n")
    rig.database.execute("UPDATE products SET title = 'new' WHERE sku = 'SKU-1'")
    rig.catch_up(check=1)
    products = state_of(rig, "products")
    assert (products["state"], products["error"]["code"]) == ("failing", "schema_conflict")
    cure = "replicator snapshot rig public.products --recreate"
    assert cure in products["error"]["action"].replace("NAME TABLE", "rig public.products")
    rig.command(*cure.split()[1:])
    rig.database.execute("DELETE FROM products WHERE sku = 'SKU-7'")
    rig.catch_up()
    assert (state_of(rig, "products")["incarnation"], state_of(rig, "products")["state"]) == (2, "streaming")

    client.delete_table(f"{dataset(rig)}.orders")
    rig.database.execute("UPDATE orders SET state = 'changed' WHERE id = 1")
    rig.catch_up(check=1)
    assert state_of(rig, "orders")["error"]["code"] == "target_replaced"
    rig.command("snapshot", "rig", "public.orders", "--recreate")
    rig.catch_up()
    live = client.query(f"SELECT sku FROM `{dataset(rig)}.products` WHERE NOT _is_deleted").result()
    assert {row["sku"] for row in live} == {row[0] for row in rig.database.execute("SELECT sku FROM products")}
    assert set(differences(rig, client)) <= {"products"}, "soft deletes leave rows there"
    assert state_of(rig, "orders")["incarnation"] == 2


def test_validate_names_what_is_missing_and_exits_with_2(rig: Rig, emulator: BigQueryEmulator) -> None:
    rig.target = emulator.block(staging=f"{{bucket: nowhere, folder: {emulator.storage}}}", create_datasets="false")
    rig.write_yaml()
    said = rig.command("validate", str(rig.file), check=2)
    assert "gcloud storage buckets create gs://nowhere" in said.stdout + said.stderr
    assert "There is no dataset demo-project.public" in said.stdout + said.stderr
    assert rig.command("run", str(rig.file), check=2).returncode == 2
