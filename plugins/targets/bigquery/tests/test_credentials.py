"""Who asks Google: key file, what the environment offers, a machine in the cloud, and acting as somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.auth.compute_engine import _metadata

from replicator.model.errors import Severity
from replicator.plugins.target import TargetTable
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.target import BigQueryTarget
from replicator_testbed.bigquery.emulator import BUCKET, LOCATION, PROJECT, WITHOUT_RESTS, BigQueryEmulator
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.present import present
from replicator_testbed.rig import Rig, has_snapshots
from replicator_testing.batches import insert
from replicator_testing.defaults import target_context
from replicator_testing.target_harness import UUID, Copy, as_tuples, item, items_schema
from replicator_testing.waiting import PATIENCE

from .cloud import MACHINE, Cloud

if TYPE_CHECKING:
    from plugins.targets.bigquery.tests.conftest import Warehouse

WRITER = "writer@demo-project.iam.gserviceaccount.com"
OTHER = "other@demo-project.iam.gserviceaccount.com"


@pytest.fixture
def cloud(emulator: BigQueryEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with Cloud(upstream=emulator.endpoint, storage=emulator.storage, folder=tmp_path) as cloud:
        for name, value in cloud.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)
        yield cloud


def on_a_machine(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were a machine in Google's cloud: its metadata server is read from the environment when the library is imported."""
    host = cloud.machine()["GCE_METADATA_HOST"]
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", host)
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
    monkeypatch.setenv("GCE_METADATA_IP", host)


@pytest.fixture
def target_of(warehouse: Warehouse) -> Iterator[Callable[..., BigQueryTarget]]:
    """Makes targets of Google's own hosts, with the datasets of one test."""
    made: list[BigQueryTarget] = []

    def make(**credentials: str) -> BigQueryTarget:
        values = {name: warehouse.values[name] for name in ("project", "location", "dataset", "own_dataset")}
        staging = {"bucket": BUCKET, "prefix": warehouse.values["staging"]["prefix"]}
        config = BigQueryConfig.model_validate({**values, "staging": staging, "credentials": credentials})
        made.append(BigQueryTarget(config, target_context(replicator="contract", uuid=UUID, epoch=1, max_wait_s=0.0)))
        return made[-1]

    yield make
    for target in made:
        target.close()


def blocking(target: BigQueryTarget) -> list[tuple[str, str | None]]:
    return [(p.code, p.location) for p in target.check([items_schema()]) if p.severity is Severity.BLOCKING]


def test_a_key_file_is_used_for_everything_that_is_asked(
    cloud: Cloud, warehouse: Warehouse, target_of: Callable[..., BigQueryTarget], tmp_path: Path
) -> None:
    schema, target = items_schema(), target_of(file=str(cloud.key_file("writer")))
    assert blocking(target) == []
    table = TargetTable(table=schema.table, uuid=UUID, incarnation=1, epoch=1)
    copy = Copy(harness=warehouse, folder=tmp_path, schema=schema, table=table, target=target)
    copy.create()
    copy.apply(insert(1, item(1, "a")))
    assert copy.live() == as_tuples(schema, [item(1, "a")])
    assert cloud.served == {WRITER}
    # The library asks iamcredentials for regions that an account is confined to.
    hosts = {"oauth2.googleapis.com", "bigquery.googleapis.com", "storage.googleapis.com"}
    assert cloud.hosts - {"iamcredentials.googleapis.com"} == hosts


def test_a_key_file_goes_before_what_the_environment_offers(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud.key_file("other")))
    assert blocking(target_of(file=str(cloud.key_file("writer")))) == []
    assert cloud.served == {WRITER}


def test_application_default_credentials_are_those_of_the_environment(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud.key_file("other")))
    assert blocking(target_of()) == []
    assert cloud.served == {OTHER}


def test_application_default_credentials_are_those_of_the_machine(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_machine(cloud, monkeypatch)
    assert blocking(target_of()) == []
    assert cloud.served == {MACHINE}


@pytest.mark.parametrize("source", ["file", "machine"])
def test_another_account_is_acted_as(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "file":
        settings, own = {"file": str(cloud.key_file("other"))}, OTHER
    else:
        on_a_machine(cloud, monkeypatch)
        settings, own = {}, MACHINE
    cloud.may_act_as.add((own, WRITER))
    assert blocking(target_of(**settings, impersonate=WRITER)) == []
    assert cloud.served == {WRITER}


def test_without_the_right_to_act_as_another_account_there_is_one_finding(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget]
) -> None:
    target = target_of(file=str(cloud.key_file("other")), impersonate=WRITER)
    assert blocking(target) == [("credentials_refused", "target")]
    assert cloud.served == set()


def test_without_any_credentials_there_is_one_finding(cloud: Cloud, target_of: Callable[..., BigQueryTarget]) -> None:
    assert blocking(target_of()) == [("credentials_refused", "target")]
    assert cloud.hosts == set()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"type": "authorized_user"}', '{"type": "service_account", "client_email": "x"}'],
)
def test_a_file_that_is_no_key_is_one_finding_without_its_content(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], tmp_path: Path, content: str
) -> None:
    file = tmp_path / "key.json"
    file.write_text(content)
    (found,) = [p for p in target_of(file=str(file)).check([items_schema()]) if p.severity is Severity.BLOCKING]
    assert (found.code, str(file) in found.message, found.action is not None) == ("credentials_refused", True, True)


def test_a_key_that_is_not_that_of_its_account_is_one_finding(
    cloud: Cloud, target_of: Callable[..., BigQueryTarget], tmp_path: Path
) -> None:
    key = json.loads(cloud.key_file("writer").read_text())
    cloud.revoked.add(WRITER)
    file = tmp_path / "old.json"
    file.write_text(json.dumps(key))
    (found,) = [p for p in target_of(file=str(file)).check([items_schema()]) if p.severity is Severity.BLOCKING]
    assert (found.code, "invalid_grant" in found.message) == ("credentials_refused", True)
    assert "PRIVATE KEY" not in str(found)


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_credentials_that_expire_while_it_runs_are_one_message_and_lose_nothing(
    cloud: Cloud, emulator: BigQueryEmulator, tmp_path: Path, database: ScratchDatabase
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    rig = Rig(folder=tmp_path, database=database, extra=WITHOUT_RESTS, environ=cloud.environ())
    rig.target = f"""  type: bigquery
  project: {PROJECT}
  location: {LOCATION}
  dataset: {database.name}_{{namespace}}
  own_dataset: _{database.name}
  staging: {{bucket: {BUCKET}, prefix: {database.name}}}
  credentials: {{file: {cloud.key_file("writer")}}}"""
    rig.write_yaml()
    try:
        process = rig.start()
        rig.wait_for_status(has_snapshots, process)
        rig.wait_for_status(lambda s: s.tables[0].changes_applied == 1, process)
        cloud.revoked.add(WRITER)
        cloud.expired.add(WRITER)
        database.execute("INSERT INTO a VALUES (2)")
        assert process.wait(timeout=120 * PATIENCE) == 1
        error = rig.error()
        assert (error.code, "Renew the credentials" in present(error.action)) == ("credentials_refused", True)
        cloud.revoked.clear()
        cloud.expired.clear()
        rig.catch_up()
    finally:
        rig.kill()
    client = emulator.client()
    rows = client.query(f"SELECT id FROM `{PROJECT}.{database.name}_public.a` ORDER BY id").result()
    assert [row["id"] for row in rows] == [1, 2]
    client.close()
