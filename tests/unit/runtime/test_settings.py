"""What bounds the two pumps comes from the configuration; its defaults stand there alone."""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path

import pytest

from replicator.apply import ApplySettings, BatchLimits
from replicator.capture import CaptureSettings
from replicator.config import (
    ApplyConfig,
    DDLConfig,
    JournalConfig,
    ReplicatorConfig,
    RetryConfig,
    SnapshotConfig,
    TableOptions,
    TablePattern,
    TablesConfig,
)
from replicator.journal import WriterLimits
from replicator.model.schema import TableId
from replicator.plugins.registry import Registry
from replicator.plugins.source import PullLimits
from replicator.runtime import assembly
from replicator.runtime.policy import RetryBudget, RetryLimits

CONFIG = ReplicatorConfig(
    name="shop",
    tables=TablesConfig(
        include=(TablePattern("public.*"),), settings={TablePattern("public.soft"): TableOptions(deletes="soft")}
    ),
    snapshot=SnapshotConfig(mode="never", chunk_rows=7, unexplained_change="stop"),
    apply=ApplyConfig(batch_rows_max=8, batch_bytes_max=9 << 20, tables_parallel=10),
    journal=JournalConfig(
        bytes_max=11 << 20, segment_rows=12, segment_bytes=13 << 20, seal_every=timedelta(milliseconds=14)
    ),
    ddl=DDLConfig(drop_table="stop", truncate_table="ignore"),
    retry=RetryConfig(
        give_up_after=timedelta(seconds=15), backoff_initial=timedelta(seconds=2), backoff_max=timedelta(seconds=3)
    ),
)


@pytest.mark.parametrize("kind", [ApplySettings, BatchLimits, CaptureSettings, PullLimits, RetryLimits, WriterLimits])
def test_inner_settings_have_no_defaults(kind: type) -> None:
    assert [f.name for f in fields(kind) if (f.default, f.default_factory) != (MISSING, MISSING)] == []


def test_capture_follows_the_configuration(tmp_path: Path) -> None:
    made = CaptureSettings.of(CONFIG, spool=tmp_path)
    assert (made.snapshot_mode, made.chunk_rows, made.unexplained_change) == ("never", 7, "stop")
    assert (made.seal_every_s, made.seal_gap_s, made.give_up_after_s) == (0.014, 0.014, 15)
    policies = made.ddl(TableId("public", "orders"))
    assert (policies.drop_table, policies.truncate_table, made.spool) == ("stop", "ignore", tmp_path)


def test_the_writer_follows_the_configuration() -> None:
    made = WriterLimits.of(CONFIG.journal)
    assert (made.segment_rows, made.segment_bytes, made.bytes_max) == (12, 13 << 20, 11 << 20)


def test_max_wait_is_the_target_s_unless_the_configuration_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "secret")
    registry = Registry.discover()
    source = 'name: shop\nsource: {type: postgresql, host: h, database: d, user: u, password: "${env:P}"}\n'

    def made(target: str, apply: str = "{}") -> float:
        text = f"{source}target: {{{target}}}\napply: {apply}\n"
        return assembly.max_wait_s(registry.load(text, origin="test"), registry)

    assert made("type: delta, path: /lake") == 1
    assert made("type: delta, path: /lake, engine: spark") == 5
    assert made("type: delta, path: /lake", "{max_wait: 7s}") == 7


def test_apply_follows_the_configuration() -> None:
    limits = RetryLimits.of(CONFIG.retry)
    made = ApplySettings.of(CONFIG, max_wait_s=16, patience=lambda: RetryBudget(limits=limits))
    assert (made.tables_parallel, made.batch, made.max_wait_s) == (10, BatchLimits(rows=8, bytes=9 << 20), 16)
    assert made.options(TableId("public", "soft")) == TableOptions(deletes="soft")
    assert (made.selects(TableId("public", "a")), made.selects(TableId("other", "a"))) == (True, False)
    assert limits == RetryLimits(first_s=2, longest_s=3, give_up_after_s=15)
