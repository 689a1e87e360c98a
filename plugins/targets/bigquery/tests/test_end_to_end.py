"""From PostgreSQL into the emulator with the command line: snapshot, streaming, crash, delete."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.api_core.exceptions import NotFound

from replicator.model.documents.status import TableState
from replicator_testbed.bigquery.emulator import PROJECT, WITHOUT_RESTS, BigQueryEmulator
from replicator_testbed.demo import shop
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, crashes, has_snapshots, with_crashes
from replicator_testbed.target_tables import BigQueryTables

from .service import Fault, Kind, Service, job, request

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

SIZE = shop.Size(customers=1_500, products=100, orders=2_000)
QUICK = """
snapshot: {chunk_rows: 1000}
apply: {max_wait: 0s}
retry: {backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 5m}
"""
CRASH_POINTS = (
    "apply.claimed",
    "target.claimed:2",
    "target.before_ddl",
    "target.table_made",
    "target.after_ddl",
    "apply.batch_planned:2",
    "target.before_merge",
    "target.uploaded",
    "target.loaded",
    "target.merged",
    "target.after_merge:2",
    "apply.after_unit:3",
)
ALTERED = ("target.alter_planned", "target.column_altered", "target.names_freed")
REBUILT = ("target.replaced", "target.building_dropped")


@pytest.fixture
def rig(tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator) -> Iterator[Rig]:
    """A replicator of the shop, stored nowhere yet; its datasets are its own."""
    shop.fill(database.dsn, SIZE)
    target = emulator.block(dataset=f"{database.name}_{{namespace}}", own_dataset=f"_{database.name}")
    rig = Rig(folder=tmp_path, database=database, tables=shop.TABLES, extra=QUICK, target=target)
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
def client(emulator: BigQueryEmulator) -> Iterator[Client]:
    client = emulator.client()
    yield client
    client.close()


@pytest.fixture
def target_tables(client: Client, database: ScratchDatabase) -> BigQueryTables:
    return BigQueryTables(client, prefix=f"{database.name}_")


def dataset(rig: Rig) -> str:
    return f"{PROJECT}.{rig.database.name}_public"


@pytest.mark.matrix
def test_a_shop_is_replicated_without_spark(
    rig: Rig, writer: shop.Writer, client: Client, target_tables: BigQueryTables
) -> None:
    process = rig.start()
    rig.wait_for_status(has_snapshots, process)
    target = writer.transactions + 50
    rig.wait_for_status(lambda _: writer.transactions >= target, process)
    status = rig.wait_for_status(lambda s: all(t.last_batch for t in s.tables), process)
    assert {"way", "bytes_billed", "slot_ms", "pause_s"} <= present(status.tables[0].last_batch).keys()
    writer.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert rig.differences(target_tables) == {}
    assert not (rig.home / "logs" / f"{rig.name}.spark.log").exists()
    own = [t.table_id for t in client.list_tables(f"{PROJECT}._{rig.database.name}")]
    assert len([t for t in own if t.startswith("ledger_")]) == len(shop.TABLES)
    assert [t for t in own if t.startswith("staging_")] == []

    rig.command("delete", rig.name, "--yes")
    assert [t.table_id for t in client.list_tables(f"{PROJECT}._{rig.database.name}") if "ledger" in t.table_id] == []
    assert rig.differences(target_tables) == {}, "the tables stay"


@pytest.mark.matrix
def test_a_worker_that_is_stopped_before_it_works_ends_at_a_clean_point(rig: Rig) -> None:
    """It is not to be missed that it was asked: a worker that starts does not listen yet."""
    assert rig.stop(rig.start()) == 0, rig.output()
    assert present(rig.status()).worker is None, "it gave its lease back"


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_crash_at_any_boundary_of_the_target_loses_and_doubles_nothing(
    rig: Rig, writer: shop.Writer, target_tables: BigQueryTables
) -> None:
    with_crashes(rig, CRASH_POINTS)
    process = rig.start()
    rig.wait_for_status(lambda _: len(crashes(rig)) == len(CRASH_POINTS), process, timeout_s=240)
    rig.wait_for_status(has_snapshots, process, timeout_s=200)
    writer.stop()
    assert rig.stop(process) == 0, rig.output()
    rig.catch_up()
    assert sorted(crashes(rig)) == sorted(CRASH_POINTS)
    assert rig.differences(target_tables) == {}


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_table_is_altered_and_rebuilt_once_although_that_is_killed(
    tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, target_tables: BigQueryTables
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v int, w int)",
        "INSERT INTO items SELECT n, n, -n FROM generate_series(1, 500) n",
    )
    target = emulator.block(dataset=f"{database.name}_{{namespace}}", own_dataset=f"_{database.name}")
    extra = f"{QUICK}ddl: {{change_type: apply}}\n"
    rig = Rig(folder=tmp_path, database=database, tables=["items"], extra=extra, target=target)
    try:
        rig.catch_up()
        with_crashes(rig, (*ALTERED, *REBUILT))
        process = rig.start()
        database.execute(
            "ALTER TABLE items RENAME v TO x",
            "ALTER TABLE items RENAME w TO v",
            "ALTER TABLE items RENAME x TO w",
            "ALTER TABLE items ADD c int DEFAULT 5",
            "UPDATE items SET w = -1 WHERE id < 100",
        )
        rig.wait_for_status(lambda _: set(crashes(rig)) == set(ALTERED), process, timeout_s=240)
        database.execute("ALTER TABLE items ALTER w TYPE text", "UPDATE items SET w = 'x' WHERE id < 50")
        rig.wait_for_status(lambda _: set(crashes(rig)) == {*ALTERED, *REBUILT}, process, timeout_s=240)
        assert rig.stop(process) == 0, rig.output()
        database.execute("DELETE FROM items WHERE id = 7")
        rig.catch_up()
        assert rig.differences(target_tables) == {}
        assert rig.table("items").incarnation == 2
    finally:
        rig.kill()


@pytest.mark.matrix
def test_a_killed_supervisor_leaves_no_writer_and_the_next_one_continues(
    rig: Rig, writer: shop.Writer, target_tables: BigQueryTables
) -> None:
    process = rig.start()
    rig.wait_for_status(lambda s: any(t.changes_applied for t in s.tables), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    writer.stop()
    rig.catch_up()
    assert rig.differences(target_tables) == {}


def test_a_table_is_replicated_and_dropped_with_its_ledger_on_demand(
    tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, client: Client, target_tables: BigQueryTables
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x'), (2, NULL)")
    target = emulator.block(dataset=f"{database.name}_{{namespace}}", own_dataset=f"_{database.name}")
    rig = Rig(folder=tmp_path, database=database, tables=["a"], extra=QUICK, target=target)
    try:
        rig.catch_up()
        assert rig.differences(target_tables) == {}
        rig.command("delete", rig.name, "--yes", "--drop-target")
    finally:
        rig.kill()
    assert list(client.list_tables(f"{PROJECT}._{database.name}")) == []
    with pytest.raises(NotFound):
        client.get_table(f"{dataset(rig)}.a")


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_a_service_that_breaks_and_loses_answers_all_the_time_gets_everything_once(
    tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, target_tables: BigQueryTables
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
        rig = Rig(folder=tmp_path, database=database, tables=shop.TABLES, extra=QUICK, target=block)
        writer = shop.Writer(database.dsn, SIZE)
        writer.start()
        try:
            process = rig.start()
            rig.wait_for_status(has_snapshots, process, timeout_s=300)
            rig.wait_for_status(lambda _: sum(f.times for f in service.faults) <= 10, process, timeout_s=250)
            writer.stop()
            assert rig.stop(process) == 0, rig.output()
            service.faults.clear()
            rig.catch_up()
        finally:
            writer.stop()
            rig.kill()
    assert rig.differences(target_tables) == {}


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_table_is_recreated_on_demand_with_its_new_settings(
    rig: Rig, client: Client, target_tables: BigQueryTables
) -> None:
    """The command that the error names: other settings, and a table that somebody dropped."""
    rig.catch_up()
    rig.write_yaml(settings={"public.products": {"deletes": "soft"}})
    rig.database.execute("UPDATE products SET title = 'new' WHERE sku = 'SKU-1'")
    rig.catch_up(check=1)
    products = rig.table("products")
    assert (products.state, present(products.error).code) == (TableState.FAILED, "schema_conflict")
    command = "replicator snapshot rig public.products --recreate"
    assert command in present(present(products.error).action)
    rig.command(*command.split()[1:])
    rig.database.execute("DELETE FROM products WHERE sku = 'SKU-7'")
    rig.catch_up()
    assert (rig.table("products").incarnation, rig.table("products").state) == (2, TableState.STREAMING)

    client.delete_table(f"{dataset(rig)}.orders")
    rig.database.execute("UPDATE orders SET state = 'changed' WHERE id = 1")
    rig.catch_up(check=1)
    assert present(rig.table("orders").error).code == "target_replaced"
    rig.command("snapshot", "rig", "public.orders", "--recreate")
    rig.catch_up()
    live = client.query(f"SELECT sku FROM `{dataset(rig)}.products` WHERE NOT _is_deleted").result()
    assert {row["sku"] for row in live} == {row[0] for row in rig.database.execute("SELECT sku FROM products")}
    assert set(rig.differences(target_tables)) <= {"products"}, "soft deletes leave rows there"
    assert rig.table("orders").incarnation == 2


@pytest.mark.matrix
def test_validate_names_what_is_missing_and_exits_with_2(rig: Rig, emulator: BigQueryEmulator) -> None:
    rig.target = emulator.block(staging=f"{{bucket: nowhere, folder: {emulator.storage}}}", create_datasets="false")
    rig.write_yaml()
    said = rig.command("validate", str(rig.file), check=2)
    assert "gcloud storage buckets create gs://nowhere" in said.stdout + said.stderr
    assert "There is no dataset demo-project.public" in said.stdout + said.stderr
    assert rig.command("run", str(rig.file), check=2).returncode == 2


@pytest.fixture
def service(emulator: BigQueryEmulator) -> Iterator[Service]:
    with Service(upstream=emulator.endpoint, storage=emulator.storage) as service:
        yield service


@pytest.fixture
def small(tmp_path: Path, database: ScratchDatabase, emulator: BigQueryEmulator, service: Service) -> Iterator[Rig]:
    """One small table, copied by way of the service's double, without any patience."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, day date)", "INSERT INTO a VALUES (1, '2024-02-29')")
    rig = Rig(folder=tmp_path, database=database, extra=f"{WITHOUT_RESTS}retry: {{give_up_after: 0s}}\n")
    rig.target = small_block(rig, emulator, service)
    rig.write_yaml()
    yield rig
    rig.kill()


def small_block(rig: Rig, emulator: BigQueryEmulator, service: Service, **settings: str) -> str:
    name = rig.database.name
    values = {
        "dataset": f"{name}_{{namespace}}",
        "own_dataset": f"_{name}",
        "endpoint": service.endpoint,
        "staging": f"{{bucket: staging, prefix: {name}, endpoint: '{service.endpoint}'}}",
    }
    return emulator.block(**{**values, **settings})


def blocking(rig: Rig) -> dict[str, str]:
    """What `validate` finds, by code, each with its location and its remedy; it exits with 2."""
    said = rig.command("validate", str(rig.file), check=2).stderr.splitlines()
    found: dict[str, str] = {}
    for line, remedy in zip(said, [*said[1:], ""], strict=True):
        if line.startswith("blocking ["):
            assert remedy.startswith("    → "), line
            code = line.split("[")[1].split("]")[0]
            assert code not in found, f"one message for {code}"
            found[code] = f"{line.split('] ', 1)[1]} {remedy.strip()}"
    return found


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_each_bad_input_is_one_finding_with_its_location_and_remedy(
    small: Rig, service: Service, emulator: BigQueryEmulator, client: Client
) -> None:
    name, database = small.database.name, small.database
    database.execute(
        'CREATE TABLE "x-y" (id int PRIMARY KEY)',
        "CREATE TABLE x_y (id int PRIMARY KEY)",
        "CREATE TABLE measured (at double precision PRIMARY KEY)",
    )
    service.bucket_location = "US-EAST1"
    found = blocking(small)
    assert found.keys() == {"table_names_clash", "unusable_key_column", "bucket_elsewhere"}
    assert "public.x-y and public.x_y" in found["table_names_clash"]
    assert "public.measured" in found["unusable_key_column"]
    assert "→ Use a bucket in EU." in found["bucket_elsewhere"]
    database.execute('DROP TABLE "x-y", x_y, measured')
    service.bucket_location = "EU"

    service.missing_rights.add("storage.objects.create")
    client.create_dataset(f"_{name}")
    client.create_dataset(f"{name}_public")
    refusal: dict[str, Any] = {
        "status": 403,
        "reason": "accessDenied",
        "message": "Access Denied: bigquery.tables.create",
    }
    service.faults += [Fault("refuse", request("POST", f"/datasets/{name}_public/tables$"), **refusal)]
    said = small.command("validate", str(small.file), check=2).stderr
    for location, role in (
        ("target.staging.bucket", "Storage Object Admin"),
        ("target.dataset", "BigQuery Data Editor"),
    ):
        assert f"[rights_missing] {location}: " in said
        assert f"→ Grant the role {role} " in said
    service.missing_rights.clear()

    # Google's types lack that None means no retry.
    made = client.query(f"CREATE TABLE `{PROJECT}.{name}_public.a` (x INT64)", retry=None, job_retry=None)  # type: ignore[arg-type]
    made.result(retry=None)
    found = blocking(small)
    assert (set(found), found["not_ours"].startswith("public.a: ")) == ({"not_ours"}, True)
    client.delete_table(f"{PROJECT}.{name}_public.a")

    service.faults += [Fault("refuse", job("dryRun"), status=401, reason="authError", message="Invalid credentials")]
    found = blocking(small)
    assert (set(found), found["credentials_refused"].startswith("target: ")) == ({"credentials_refused"}, True)

    small.target = small_block(small, emulator, service, location="asia-east1")
    small.write_yaml()
    codes = {
        code
        for line in small.command("validate", str(small.file), check=2).stderr.splitlines()
        if line.startswith("blocking")
        for code in [line.split("[")[1].split("]")[0]]
    }
    assert codes == {"dataset_elsewhere", "bucket_elsewhere"}
    assert small.command("run", str(small.file), check=2).returncode == 2


@pytest.mark.matrix
@pytest.mark.timeout(800)
def test_what_goes_wrong_while_it_runs_is_told_once_and_loses_nothing(
    small: Rig, service: Service, client: Client
) -> None:
    """A quota that is used up, jobs that fail, credentials that expire, a value that BigQuery does not have."""
    quota: dict[str, Any] = {"status": 403, "reason": "quotaExceeded", "message": "Quota exceeded: imports per project"}
    service.faults[:] = [Fault("refuse", job("_load_"), times=1000, **quota)]
    process = small.start()
    status = small.wait_for_status(lambda s: s.tables and s.tables[0].waiting, process)
    waiting = status.tables[0].waiting
    assert waiting is not None
    assert (waiting.code, status.tables[0].state, status.error) == ("quota_exceeded", TableState.SNAPSHOT, None)
    assert "come back within 24 hours" in present(waiting.message)
    left = waiting.until - datetime.now(UTC)
    assert timedelta(minutes=5) < left < timedelta(minutes=11)
    said = " ".join(small.command("status", small.name).stdout.split())
    assert "waits until 20" in said
    assert small.stop(process) == 0, small.output()

    service.faults[:] = [Fault("fail_job", job("_load_"), times=1000, reason="jobInternalError", message="no")]
    small.catch_up(check=1)
    failed = small.table("a")
    assert (failed.state, present(failed.error).code) == (TableState.FAILED, "job_failed")
    assert f"replicator pause {small.name}, then replicator resume {small.name}" in present(
        present(failed.error).action
    )

    expired: dict[str, Any] = {
        "status": 401,
        "reason": "authError",
        "message": "Request had invalid authentication credentials",
    }
    service.faults[:] = [Fault("refuse", job("_load_"), times=1000, **expired)]
    small.catch_up(check=1)
    error = small.error()
    assert (error.code, "Renew the credentials" in present(error.action)) == ("credentials_refused", True)
    service.faults.clear()
    small.database.execute("CREATE TABLE old (id int PRIMARY KEY, day date)")
    small.database.execute("INSERT INTO old VALUES (1, '0044-03-15 BC')", "INSERT INTO a VALUES (2, NULL)")
    small.catch_up(check=1)
    old = small.table("old")
    assert (old.state, present(old.error).code) == (TableState.FAILED, "value_out_of_range")
    assert "target.unfit_values" in present(present(old.error).action)
    rows = client.query(f"SELECT id, day FROM `{dataset(small)}.a` ORDER BY id").result()
    assert [(row["id"], str(row["day"])) for row in rows] == [(1, "2024-02-29"), (2, "None")]
