"""Journal files that Spark reads as they are, and those that it gets copies of."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from replicator.model.schema import Column, TableId, TableSchema
from replicator_target_delta.journal_files import readable_files, spark_uri
from replicator_target_delta.storage import Storage
from replicator_testbed.network.object_stores import Protocol, object_store

SCHEMA = TableSchema(
    table=TableId("public", "a"), columns=(Column(name="id", type=pa.int64(), source_type="bigint"),), key=("id",)
)


@pytest.mark.parametrize(
    ("uri", "root", "expected"),
    [
        ("file:///j/1.parquet", "/lake", "file:///j/1.parquet"),
        ("/j/1.parquet", "/lake", "/j/1.parquet"),
        ("hdfs://host/j/1.parquet", "s3a://b/lake", "hdfs://host/j/1.parquet"),
        ("s3://b/j/1.parquet", "s3a://b/lake", "s3a://b/j/1.parquet"),
        ("s3://b/j/1.parquet", "s3://b/lake", "s3://b/j/1.parquet"),
        ("gs://b/j/1.parquet", "gs://b/lake", "gs://b/j/1.parquet"),
        ("s3://b/j/1.parquet", "/lake", None),
        ("s3://b/j/1.parquet", "gs://b/lake", None),
        ("gs://b/j/1.parquet", "s3a://b/lake", None),
    ],
)
def test_spark_reads_an_object_store_of_the_targets_protocol(uri: str, root: str, expected: str | None) -> None:
    assert spark_uri(uri, root) == expected


@pytest.mark.parametrize("protocol", list(Protocol))
def test_what_spark_cannot_reach_is_copied_for_as_long_as_it_reads(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store(protocol) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        uri = server.uri("1.parquet")
        system, path = fs.FileSystem.from_uri(uri)
        with system.open_output_stream(path) as stream:
            stream.write(b"changes")
        with readable_files([uri], SCHEMA, Storage(str(tmp_path))) as copies:
            (copy,) = map(Path, copies)
            assert copy.is_relative_to(tmp_path)
            assert copy.read_bytes() == b"changes"
    assert not copy.exists()
