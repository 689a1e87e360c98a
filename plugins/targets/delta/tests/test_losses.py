"""Files that a table needs and that are missing, or cut off, fail the table: at the latest an audit finds them. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from plugins.targets.delta.tests.test_lane import ITEMS, Bare, item
from replicator.model.errors import TargetDamagedError
from replicator.plugins.kit.lake import joining
from replicator.plugins.verification import SupportsTargetVerification
from replicator_target_delta.config import DeltaLakeConfig, MaintenanceConfig
from replicator_target_delta.engine import DirectTable
from replicator_target_delta.lane import losses
from replicator_target_delta.lane.losses import LOOK_EVERY_S, FileChecks, check_files
from replicator_target_delta.log.table import LostFilesError
from replicator_target_delta.target import DeltaLakeTarget
from replicator_testbed.delta import read_by_duckdb, read_delta, rows_of
from replicator_testbed.present import present
from replicator_testing.batches import delete, insert
from replicator_testing.defaults import target_context

DATA, VECTORS = "*.parquet", "deletion_vector_*.bin"
Lose = Callable[[Path], object]


def removed(file: Path) -> None:
    file.unlink()


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    """A table of two files, of one of which a row is deleted."""
    bare = Bare(tmp_path, ITEMS)
    bare.apply(*[insert(0, item(i)) for i in range(4)], is_append=True)
    bare.apply(*[insert(0, item(i)) for i in range(4, 8)], is_append=True)
    bare.apply(delete(0, item(1)))
    return bare


@pytest.fixture
def direct(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectTable]:
    """The table's lane, which has all keys in memory, and joins files as soon as there are three."""
    monkeypatch.setattr(joining, "FILES_PER_TIER", 3)
    with ThreadPoolExecutor(1) as background:
        yield DirectTable(bare.lane, bare.commits, background, background, MaintenanceConfig(deleted_rows_share_max=1))


def lose(bare: Bare, pattern: str, how: Lose) -> str:
    """Do it to the first such file; its name."""
    file = min(bare.path.glob(pattern))
    how(file)
    return file.name


def apply(bare: Bare, direct: DirectTable, number: int) -> None:
    batch = bare.batch(bare.numbered([insert(0, item(number))]))
    direct.apply(bare.table, batch, batch.last - 1)
    if direct._rewriting is not None:
        wait([direct._rewriting])


def audit_now(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit the table as another process of the target does, after it has run for a while."""
    now = [0.0]
    monkeypatch.setattr(losses, "FileChecks", lambda: FileChecks(lambda: now[0]))
    config = DeltaLakeConfig(path=str(bare.folder / "lake"))
    target = DeltaLakeTarget(config, target_context(replicator="test", uuid="u", epoch=1, spark=None))
    position = target.audit(bare.table, None).position
    now[0] += LOOK_EVERY_S
    target.audit(bare.table, position)


@pytest.mark.parametrize("how", [removed, emptied, cut_off])
@pytest.mark.parametrize("pattern", [DATA, VECTORS])
def test_an_audit_finds_that_a_file_is_not_what_the_log_says(
    bare: Bare, monkeypatch: pytest.MonkeyPatch, pattern: str, how: Lose
) -> None:
    audit_now(bare, monkeypatch)
    name = lose(bare, pattern, how)
    with pytest.raises(TargetDamagedError, match=name) as caught:
        audit_now(bare, monkeypatch)
    assert caught.value.code == "target_file_unreadable"
    assert "--recreate" in present(caught.value.action)
    assert ("is missing" in caught.value.message) == (how is removed)
    with pytest.raises(LostFilesError, match=name):
        bare.lane.check_files()


def test_an_audit_counts_what_is_gone(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in bare.path.glob(DATA):
        file.unlink()
    with pytest.raises(TargetDamagedError, match="and 1 more are missing or cut off"):
        audit_now(bare, monkeypatch)


def test_a_file_that_no_version_needs_any_more_is_not_missed(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    old = list(bare.path.glob(DATA)) + list(bare.path.glob(VECTORS))
    bare.compact()
    for file in old:
        file.unlink()
    audit_now(bare, monkeypatch)
    bare.lane.check_files()


def test_files_that_somebody_rewrites_and_removes_meanwhile_are_not_missed(
    bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, sizes = list(bare.path.glob(DATA)), bare.storage.sizes

    def after_a_rewrite(path: str) -> dict[str, int]:
        bare.compact()
        for file in old:
            file.unlink()
        return sizes(path)

    monkeypatch.setattr(bare.storage, "sizes", after_a_rewrite)
    check_files(bare.storage, str(bare.path))


def test_an_audit_lists_files_now_and_then_only(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    now, listed = [0.0], list[str]()
    monkeypatch.setattr(bare.storage, "sizes", lambda path: listed.append(path) or {})
    checks = FileChecks(lambda: now[0])
    for moment in (0.0, LOOK_EVERY_S - 1, LOOK_EVERY_S, LOOK_EVERY_S + 1, 2 * LOOK_EVERY_S):
        now[0] = moment
        try:
            checks.check(bare.storage, str(bare.path), bare.table, None)
        except LostFilesError:
            continue
    assert len(listed) == 2


@pytest.mark.parametrize("how", [removed, emptied, cut_off])
def test_an_idle_table_fails_by_the_rewrite_that_it_waits_for(bare: Bare, direct: DirectTable, how: Lose) -> None:
    name = lose(bare, DATA, how)
    bare.apply(insert(0, item(30)))
    apply(bare, direct, 31)
    with pytest.raises(LostFilesError, match=name):
        direct.finish(bare.table)


def test_deleted_rows_that_cannot_be_read_fail_the_table(bare: Bare, direct: DirectTable) -> None:
    name = lose(bare, VECTORS, removed)
    bare.lane = direct._lane = bare.new_lane()
    apply(bare, direct, 30)
    with pytest.raises(LostFilesError, match=name):
        direct.finish(bare.table)


@pytest.mark.parametrize(("pattern", "how"), [(DATA, removed), (DATA, emptied), (VECTORS, removed), (VECTORS, cut_off)])
def test_a_verification_says_which_file_it_misses(bare: Bare, pattern: str, how: Lose) -> None:
    name = lose(bare, pattern, how)
    config = DeltaLakeConfig(path=str(bare.folder / "lake"))
    target = DeltaLakeTarget(config, target_context(replicator="test", uuid="u", epoch=1, spark=None))
    assert isinstance(target, SupportsTargetVerification)
    columns = {column.name: column.name for column in ITEMS.columns}
    with (
        pytest.raises(TargetDamagedError, match=name) as caught,
        target.open_state(bare.table, ITEMS, columns=columns, at=bare.next),
    ):
        pass
    assert caught.value.code == "target_file_unreadable"


def checkpointed(bare: Bare, *, keeps_versions: bool = False) -> Path:
    """Make a checkpoint, by delta-rs, and remove the versions that it replaces, unless they are kept; its file."""
    DeltaTable(bare.path).create_checkpoint()
    newest = max(bare.log.glob("*.json"))
    for file in bare.log.glob("*.json"):
        if file != newest and not keeps_versions:
            file.unlink()
    checkpoint = max(bare.log.glob("*.checkpoint.parquet"))
    assert pq.read_metadata(checkpoint).num_rows
    return checkpoint


@pytest.mark.parametrize("how", [removed, emptied, cut_off])
def test_an_audit_finds_that_a_checkpoint_is_gone_that_readers_need(
    bare: Bare, monkeypatch: pytest.MonkeyPatch, how: Lose
) -> None:
    checkpoint = checkpointed(bare)
    audit_now(bare, monkeypatch)
    how(checkpoint)
    with pytest.raises(TargetDamagedError) as caught:
        audit_now(bare, monkeypatch)
    assert caught.value.code == "target_unreadable"


@pytest.mark.parametrize("how", [emptied, cut_off])
def test_an_audit_names_a_checkpoint_that_readers_do_not_understand(
    bare: Bare, monkeypatch: pytest.MonkeyPatch, how: Lose
) -> None:
    checkpoint = checkpointed(bare, keeps_versions=True)
    how(checkpoint)
    with pytest.raises(TargetDamagedError, match=checkpoint.name) as caught:
        audit_now(bare, monkeypatch)
    assert caught.value.code == "target_unreadable"


@pytest.mark.parametrize("has_older", [False, True])
def test_readers_find_the_table_again_after_a_checkpoint_was_removed(
    bare: Bare, monkeypatch: pytest.MonkeyPatch, *, has_older: bool
) -> None:
    checkpointed(bare, keeps_versions=not has_older)
    bare.apply(insert(0, item(9)))
    if has_older:
        checkpointed(bare, keeps_versions=True)
    newest = max(bare.log.glob("*.checkpoint.parquet"))
    newest.unlink()
    with pytest.raises(DeltaError, match="_last_checkpoint"):
        read_delta(bare.path, ["id"])
    audit_now(bare, monkeypatch)
    assert not (bare.log / "_last_checkpoint").exists()
    for read in (read_delta, read_by_duckdb):
        assert sorted(rows_of(read(bare.path, ["id"]))) == [(i,) for i in (0, *range(2, 8), 9)]


def test_a_hint_at_an_older_checkpoint_stays_as_it_is(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointed(bare, keeps_versions=True)
    hint = bare.log / "_last_checkpoint"
    text = hint.read_text()
    bare.apply(insert(0, item(9)))
    older = min(bare.log.glob("*.checkpoint.parquet"))
    checkpointed(bare, keeps_versions=True)
    older.unlink()
    hint.write_text(text)
    audit_now(bare, monkeypatch)
    assert hint.read_text() == text
    assert len(list(rows_of(read_delta(bare.path, ["id"])))) == 8


@pytest.mark.parametrize("text", ["", "{", '{"version":99,"size":3}'])
def test_a_hint_at_no_checkpoint_is_no_matter(bare: Bare, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    checkpointed(bare)
    (bare.log / "_last_checkpoint").write_text(text)
    audit_now(bare, monkeypatch)
    assert bare.new_lane().files()


def test_a_checkpoint_in_parts_that_lacks_one_is_none(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpointed(bare)
    shutil.move(
        checkpoint, checkpoint.with_name(f"{checkpoint.name.split('.')[0]}.checkpoint.0000000001.0000000002.parquet")
    )
    with pytest.raises(TargetDamagedError):
        audit_now(bare, monkeypatch)
