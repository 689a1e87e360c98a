"""What a worker keeps in its environment reaches nothing that others read, whatever the source's names and comments say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicator_testbed import hostile
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testbed.spark.java import short_lived_options

CANARIES = {
    hostile.CANARY_VARIABLE: "canary-of-the-environment-7d1e",
    "RIG_PASSWORD": "canary-of-the-password-93ab",
    "LAKE_KEY": "canary-of-the-lake-key-55c0",
}
EXTRA = """
retry: {{backoff_initial: 20ms, backoff_max: 500ms}}
spark:
  settings: {settings}
"""


def ansi(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.matrix
def test_no_secret_of_the_worker_reaches_lake_log_status_or_store(tmp_path: Path, postgres: PostgresServer) -> None:
    with postgres.database() as database:
        copy_and_search(tmp_path, database)


def copy_and_search(tmp_path: Path, database: ScratchDatabase) -> None:
    tables = [f"${{env:{hostile.CANARY_VARIABLE}}}", f"${{env.{hostile.CANARY_VARIABLE}}} ${{fs.s3a.secret.key}}"]
    reference = " ".join(f"${{env:{name}}} ${{env.{name}}}" for name in CANARIES)
    reference += " ${spark.hadoop.fs.s3a.secret.key} ${fs.s3a.secret.key}"
    with database.connect() as connection:
        for name in tables:
            table = f"public.{ansi(name)}"
            # No key to cluster by, and one.
            key = " PRIMARY KEY" if name == tables[0] else ""
            connection.execute(f"CREATE TABLE {table} ({ansi(tables[0])} int{key}, {ansi(tables[1])} text)".encode())
            if not key:
                connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
            for column in tables:
                connection.execute(f"COMMENT ON COLUMN {table}.{ansi(column)} IS '{reference}'".encode())
            connection.execute(f"COMMENT ON TABLE {table} IS '{reference}'".encode())
            connection.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')".encode())
    settings = {
        "spark.driver.memory": "1g",
        **short_lived_options(),
        "spark.hadoop.fs.s3a.secret.key": "${env:LAKE_KEY}",
    }
    rig = Rig(
        folder=tmp_path, database=database, extra=EXTRA.format(settings=json.dumps(settings)), environ=dict(CANARIES)
    )
    rig.catch_up()
    with database.connect() as connection:
        for name in tables:
            connection.execute(f"UPDATE public.{ansi(name)} SET {ansi(tables[1])} = 'c'".encode())
    rig.catch_up()
    # An error of Spark, in the log and in the status.
    logs = sorted(rig.lake.glob("public/*/_delta_log"))
    assert len(logs) == len(tables)
    newest = max(logs[0].glob("*.json"))
    newest.write_bytes(newest.read_bytes().replace(b'"operation":"', b'"operatioN":"'))
    with database.connect() as connection:
        for name in tables:
            connection.execute(f"INSERT INTO public.{ansi(name)} VALUES (3, 'd')".encode())
    rig.catch_up(check=1)
    told = rig.command("status", rig.name, "--json").stdout
    assert "target_unreadable" in told
    told += rig.command("logs", rig.name).stdout + rig.command("status", rig.name).stdout + rig.output()
    files = [f for folder in (rig.home, rig.lake) for f in folder.rglob("*") if f.is_file()]
    assert {f.suffix for f in files} >= {".parquet", ".json", ".db"}
    found = [(str(f), n) for f in files for n, value in CANARIES.items() if value.encode() in f.read_bytes()]
    assert found == []
    assert [n for n, value in CANARIES.items() if value in told] == []
