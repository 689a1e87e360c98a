"""A journal in an object store, against servers of the protocols of S3 and Google Cloud Storage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from replicator.journal import JournalClaim, JournalWriter, Retention, check_claim, remove_journal
from replicator.journal.files import JournalFolder
from replicator.journal.location import MARKER
from replicator.model.errors import ConfigError, CorruptStreamError, FencedError, JournalUnavailableError
from replicator.model.events import change_schema
from replicator.model.offset import Offset
from replicator.model.schema import Column, TableId, TableSchema
from replicator.state import AppliedRecord, SegmentFile, StateStore, holder_id
from replicator.state.records import Lease
from replicator_testbed.journals.sealed import SealedReader
from replicator_testbed.network.object_stores import ObjectStore, Protocol, object_store, refusing_store, root_of
from replicator_testbed.present import present
from replicator_testing.defaults import writer_limits

A = TableSchema(
    table=TableId("public", "a"),
    columns=(
        Column(name="id", type=pa.int64(), source_type="bigint"),
        Column(name="text of", type=pa.string(), source_type="text"),
    ),
    key=("id",),
)
NAME = "shop"
WRITE_AND_CRASH = Path(__file__).parents[1] / "unit" / "journal" / "write_and_crash.py"
UPLOAD = """
import sys
from replicator.journal.files import JournalFolder
sink = JournalFolder(sys.argv[1]).create("half.parquet")
for _ in range(24):
    sink.write(b"x" * (1 << 20))
print("uploading", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module", params=list(Protocol))
def server(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with object_store(request.param) as server:
        yield server


@pytest.fixture
def uri(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Of a journal of the test's own."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server.uri(f"journals/{request.node.originalname}")


@pytest.fixture
def store(tmp_path: Path, uri: str) -> Iterator[StateStore]:
    store = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    store.create_replicator(NAME, "", uri)
    yield store
    store.close()


def leased(store: StateStore, holder: str | None = None) -> Lease:
    return present(store.leases.acquire(NAME, holder or holder_id(), 60))


def opened(store: StateStore, lease: Lease) -> JournalWriter:
    uri = present(store.replicator(NAME)).journal_uri
    return JournalWriter(store, name=NAME, epoch=lease.epoch, uri=uri, limits=writer_limits())


def write(writer: JournalWriter, count: int) -> None:
    first = writer.take(count)
    rows = [
        {"_sequence_num": n, "_operation": "INSERT", "_is_snapshot": False, "row": {"id": n, "c2": "x"}}
        for n in range(first, first + count)
    ]
    writer.append(A, 1, pa.RecordBatch.from_pylist(rows, schema=change_schema(A)))


def commit(writer: JournalWriter) -> None:
    writer.commit(offset=Offset.of({"lsn": 1}), source_time=None)


def numbers(store: StateStore) -> list[int]:
    """What the journal holds, each file compared with its checksum."""
    reader, found = SealedReader(store, NAME), []
    for item in reader.feed(A.table, -1, 10_000):
        assert isinstance(item, SegmentFile)
        reader.check(item)
        for batch in reader.rows(item):
            found += batch.column("_sequence_num").to_pylist()
    return found


def test_what_is_committed_comes_back_and_is_deleted_when_it_was_applied(store: StateStore, uri: str) -> None:
    lease = leased(store)
    writer = opened(store, lease)
    for _ in range(3):
        write(writer, 5)
        commit(writer)
    assert numbers(store) == list(range(15))
    store.put_applied(NAME, lease.epoch, [AppliedRecord(table=A.table, incarnation=1, last_applied=9)])
    assert Retention(store, NAME, epoch=lease.epoch, keep_s=0, bytes_max=1 << 30).sweep().segments == 2
    assert len(JournalFolder(uri).sizes()) == 2, "the last segment, and the marker"
    writer.close()
    remove_journal(uri, present(store.replicator(NAME)).uuid)
    assert JournalFolder(uri).sizes() == {}


def test_a_folder_that_does_not_exist_is_empty_and_a_file_that_does_not_is_none(uri: str) -> None:
    folder = JournalFolder(f"{uri}/nothing")
    assert (folder.sizes(), folder.get(MARKER)) == ({}, None)
    folder.delete("nothing")


def test_an_upload_that_is_killed_half_way_is_not_there(uri: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert present(child.stdout).readline() == "uploading\n"
    child.kill()
    child.communicate()
    assert JournalFolder(uri).sizes() == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("point", "is_sealed"),
    [
        ("journal.segment_closed", False),
        ("journal.files_written", False),
        ("journal.before_index", False),
        ("journal.after_index", True),
    ],
)
def test_a_crash_leaves_orphans_that_the_next_holder_removes(
    store: StateStore, tmp_path: Path, uri: str, point: str, is_sealed: bool
) -> None:
    lease = leased(store)
    child = subprocess.run(
        [sys.executable, WRITE_AND_CRASH, f"sqlite:///{tmp_path / 'state.db'}", uri, str(lease.epoch)],
        env=os.environ | {"REPLICATOR_CRASH_AT": point},
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    files = set(JournalFolder(uri).sizes()) - {MARKER}
    assert files
    writer = opened(store, leased(store))
    assert writer.sweep() == (0 if is_sealed else len(files))
    assert numbers(store) == list(range(20 if is_sealed else 0))
    writer.close()
    remove_journal(uri, present(store.replicator(NAME)).uuid)


def test_a_worker_that_lost_its_lease_leaves_the_journal_as_it_is(store: StateStore, uri: str) -> None:
    """It was in the midst of a file when another one took over, and ends that file afterwards."""
    late = opened(store, leased(store, "north:1:boot"))
    write(late, 3)
    commit(late)
    write(late, 5)
    store.leases.release(present(store.leases.current(NAME)))
    successor = opened(store, leased(store, "south:1:boot"))
    successor.sweep()
    write(successor, 4)
    commit(successor)
    with pytest.raises(FencedError):
        commit(late)
    assert numbers(store) == list(range(7))
    assert len(JournalFolder(uri).sizes()) == 3, "two files and the marker: the late one took its own away"
    for writer in (late, successor):
        writer.close()


def test_a_claim_tells_the_state_store_from_another_one(store: StateStore, uri: str, tmp_path: Path) -> None:
    opened(store, leased(store)).close()
    JournalClaim(store=store, lease=leased(store), uri=uri).renew()
    check_claim(store, NAME, uri)
    other = StateStore(f"sqlite:///{tmp_path / 'other.db'}")
    other.create_replicator(NAME, "", uri)
    with pytest.raises(ConfigError) as caught:
        check_claim(other, NAME, uri)
    other.close()
    assert caught.value.code == "home_copied"


def test_a_store_that_is_away_is_unavailable_and_is_used_again_when_it_is_back(
    store: StateStore, server: ObjectStore, uri: str
) -> None:
    writer = opened(store, leased(store))
    write(writer, 3)
    server.network.cut()
    try:
        with pytest.raises(JournalUnavailableError) as caught:
            commit(writer)
    finally:
        server.network.restore()
    assert caught.value.code == "journal_unavailable"
    writer = opened(store, leased(store))
    write(writer, 3)
    commit(writer)
    assert numbers(store) == [0, 1, 2]
    writer.close()


def test_a_bucket_that_does_not_exist_is_named(uri: str) -> None:
    with pytest.raises(JournalUnavailableError, match="no-such-bucket") as caught:
        JournalFolder(uri.replace("bucket", "no-such-bucket", 1)).put("x", b"x")
    assert caught.value.code == "journal_unavailable"


@pytest.mark.parametrize(("status", "reason"), [(500, "InternalError"), (503, "SlowDown")])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_store_that_fails_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, status: int, reason: str
) -> None:
    with refusing_store(protocol, status, reason) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(JournalUnavailableError) as caught:
            JournalFolder(f"{root_of(protocol)}/journal").get("x")
    assert caught.value.code == "journal_unavailable"


@pytest.mark.parametrize(("status", "reason"), [(401, "InvalidAccessKeyId"), (403, "AccessDenied")])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_credentials_that_are_refused_are_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch, protocol: Protocol, status: int, reason: str
) -> None:
    with refusing_store(protocol, status, reason) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        folder = JournalFolder(f"{root_of(protocol)}/journal")
        for use in (lambda: folder.put("x", b"x"), lambda: folder.get("x"), folder.sizes):
            with pytest.raises(JournalUnavailableError, match=f"{folder.uri}.*") as caught:
                use()
            assert caught.value.code == "journal_access_denied"


@pytest.mark.parametrize("uri", ["s3://key:secret@bucket/journal", "s3://bucket/journal?region=here"])
def test_a_location_with_secrets_or_options_is_refused_without_saying_them(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JournalFolder(uri)
    assert (caught.value.code, "secret" in str(caught.value)) == ("journal_uri", False)


def test_slow_answers_are_waited_for(store: StateStore, server: ObjectStore, uri: str) -> None:
    writer = opened(store, leased(store))
    write(writer, 3)
    server.network.blackhole()
    thread = threading.Thread(target=commit, args=(writer,))
    thread.start()
    thread.join(1)
    assert thread.is_alive(), "nothing was answered"
    server.network.restore()
    thread.join()
    assert numbers(store) == [0, 1, 2]
    writer.close()


def test_a_file_that_was_cut_short_is_corrupt(store: StateStore, uri: str) -> None:
    writer = opened(store, leased(store))
    write(writer, 5)
    commit(writer)
    (name,) = set(JournalFolder(uri).sizes()) - {MARKER}
    JournalFolder(uri).put(name, present(JournalFolder(uri).get(name))[:-1])
    with pytest.raises(CorruptStreamError):
        numbers(store)
    writer.close()
