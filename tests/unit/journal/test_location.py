"""Folders and file systems: whose journal it is, in which format, and whether it can be used."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replicator.journal import JournalWriter, check_location, open_folder, remove_journal
from replicator.journal.files import JournalFolder, journal_io, local_path
from replicator.journal.location import MARKER, epoch_of, segment_name
from replicator.model.errors import ConfigError, CorruptStreamError, FatalError, JournalUnavailableError
from replicator.model.events import SEQUENCE_NUM
from replicator.state import holder_id
from replicator_testbed.journals.sealed import SealedReader
from replicator_testbed.present import present
from replicator_testing.defaults import writer_limits

if TYPE_CHECKING:
    from tests.unit.journal.conftest import Journal


def test_a_folder_belongs_to_one_replicator(tmp_path: Path) -> None:
    open_folder(str(tmp_path / "j"), "one")
    open_folder(f"file://{tmp_path}/j/", "one")
    with pytest.raises(ConfigError) as caught:
        open_folder(str(tmp_path / "j"), "two")
    assert caught.value.code == "journal_in_use"
    assert str(tmp_path / "j") in str(caught.value)


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "j"), "one")
    marker = json.loads(present(folder.get(MARKER)))
    folder.put(MARKER, json.dumps(marker | {"version": 2}).encode())
    for use in (open_folder, remove_journal):
        with pytest.raises(FatalError) as caught:
            use(str(tmp_path / "j"), "one")
        assert caught.value.code == "newer_journal"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": "x", "version": 1, "replicator": "one"}', b"\xff"]
)
def test_a_damaged_marker_is_corruption(tmp_path: Path, content: bytes) -> None:
    folder = open_folder(str(tmp_path / "j"), "one")
    folder.put(MARKER, content)
    with pytest.raises(CorruptStreamError) as caught:
        open_folder(str(tmp_path / "j"), "one")
    assert caught.value.code == "corrupt_journal"
    assert MARKER in str(caught.value)


def test_removing_takes_our_files_only_and_can_be_repeated(journal: Journal) -> None:
    journal.insert(journal.schema_of("a"), 1)
    journal.commit()
    (journal.folder / "notes.txt").write_text("mine")
    remove_journal(str(journal.folder), "another replicator")
    assert len(journal.files()) == 1
    for _ in range(2):
        remove_journal(str(journal.folder), journal.uuid)
        assert [p.name for p in journal.folder.iterdir()] == ["notes.txt"]
    (journal.folder / "notes.txt").unlink()
    open_folder(str(journal.folder), journal.uuid)
    remove_journal(str(journal.folder), journal.uuid)
    assert not journal.folder.exists()


@pytest.mark.parametrize(
    ("state_url", "journal_uri", "code"),
    [
        ("sqlite:////x/state.db", "/x/journal", None),
        ("postgresql://db.internal/x", "/x/journal", "journal_not_shared"),
        ("postgresql://db.internal/x", "file:///x/journal", "journal_not_shared"),
        ("postgresql+psycopg://db.internal/x", "gs://bucket/journal", None),
        ("postgresql://localhost/x", "/x/journal", None),
    ],
)
def test_a_shared_store_needs_a_shared_journal(state_url: str, journal_uri: str, code: str | None) -> None:
    problem = check_location(state_url, journal_uri)
    assert (problem.code if problem else None) == code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "journal_disk_full"),
        (errno.EDQUOT, "journal_disk_full"),
        (errno.EROFS, "journal_read_only"),
        (errno.EACCES, "journal_access_denied"),
        (errno.EIO, "journal_unavailable"),
    ],
)
def test_what_the_file_system_refuses_has_location_and_remedy(number: int, code: str) -> None:
    with pytest.raises(JournalUnavailableError) as caught, journal_io("file:///j/x"):
        raise OSError(number, "refused", "x")
    assert caught.value.code == code
    assert "file:///j/x" in str(caught.value)
    assert caught.value.action


def test_a_location_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("")
    with pytest.raises(JournalUnavailableError):
        open_folder(str(tmp_path / "j"), "one")


def test_an_unknown_scheme_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError) as caught:
        JournalFolder("carrier-pigeon://user:canary@loft/j")
    assert caught.value.code == "journal_uri"
    assert "canary" not in str(caught.value)


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    location = tmp_path / "a b%20c#d"
    folder = open_folder(str(location), "one")
    assert folder.uri == f"file://{location}"
    assert local_path(folder.uri_of("x")) == location / "x"
    assert open_folder(folder.uri, "one").get(MARKER)


def test_names_tell_their_epoch() -> None:
    assert epoch_of(segment_name(7, "0123456789abcdef", 3, "public.\x00é/..")) == 7
    assert epoch_of(segment_name(123_456_789, "0123456789abcdef", 3, "x" * 500)) == 123_456_789
    assert len(segment_name(1, "0123456789abcdef", 1, "x" * 500)) < 200
    assert epoch_of("journal.json") is None


def test_any_fsspec_file_system_holds_a_journal(journal: Journal) -> None:
    """`memory://` stands for an object store: no fsync, no permissions, upload on close."""
    record = journal.store.create_replicator("cloud", "", "memory://bucket/journal")
    epoch = present(journal.store.leases.acquire("cloud", holder_id(), 60)).epoch
    limits = writer_limits(row_group_rows=2)
    writer = JournalWriter(journal.store, name="cloud", epoch=epoch, uri=record.journal_uri, limits=limits)
    a = journal.schema_of("a")
    writer.take(5)
    writer.append(a, 1, journal.inserts(a, range(5)))
    (segment,) = writer.commit(offset=None, source_time=None)
    assert segment.files[0].uri.startswith("memory://bucket/journal/")
    reader = SealedReader(journal.store, "cloud")
    assert [n for batch in reader.rows(segment.files[0]) for n in batch.column(SEQUENCE_NUM).to_pylist()] == list(
        range(5)
    )
    writer.take(5)
    writer.append(a, 1, journal.inserts(a, range(5, 10)))
    writer.discard()
    assert set(JournalFolder(record.journal_uri).sizes()) == {MARKER, segment.files[0].uri.rpartition("/")[2]}
    writer.close()
    remove_journal(record.journal_uri, record.uuid)
    assert JournalFolder(record.journal_uri).sizes() == {}
