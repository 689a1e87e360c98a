"""Random kills under load with projections on: the target is what an oracle makes of the source's rows by itself."""

from __future__ import annotations

import hashlib
import hmac
import random
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pytest

from replicator_testbed.compare import Sum, sum_rows
from replicator_testbed.demo.shop import ShopWriter
from replicator_testbed.processes import kill_one
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables
from replicator_testing.waiting import wait_until

KEY: Final = "a key of more than sixteen bytes"
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "*.customers": {
        "columns": {"exclude": ["profile"]},
        "mask": {"email": "hmac(${env:MASK_KEY})", "name": "last(3)"},
        "rename": {"balance": "account_balance"},
    },
    "*.orders": {"mask": {"state": "sha256"}},
    "*.page_views": {"columns": {"exclude": ["took"]}, "mask": {"path": "sha256"}},
}


def _sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def _hmac(value: str) -> str:
    return hmac.new(KEY.encode(), value.encode(), "sha256").hexdigest()


def _last(value: str) -> str:
    return "*" * len(value) if len(value) <= 3 else "*" * (len(value) - 3) + value[-3:]


MASKS: Final[Mapping[tuple[str, str], Callable[[str], str]]] = {
    ("customers", "email"): _hmac,
    ("customers", "name"): _last,
    ("orders", "state"): _sha256,
    ("page_views", "path"): _sha256,
}
LEFT_OUT: Final = {("customers", "profile"), ("page_views", "took")}
NAMES: Final = {("customers", "balance"): "account_balance"}


def _has_written(writer: ShopWriter, transactions: int) -> bool:
    return writer.transactions >= transactions


def differences(rig: Rig, target_tables: TargetTables) -> dict[str, tuple[Sum, Sum]]:
    """Tables whose rows in the target are not what the oracle makes of the source's."""
    found = {}
    for table in rig.tables:
        names = [name for name in rig.database.columns(table) if (table, name) not in LEFT_OUT]
        masks = [MASKS.get((table, name), lambda value: value) for name in names]

        def projected(row: Any, masks: Any = masks) -> list[Any]:
            return [None if value is None else mask(value) for mask, value in zip(masks, row, strict=True)]

        wanted = sum_rows(projected(row) for row in rig.database.rows(table, names))
        there = target_tables.found(rig.database.namespace, table, [NAMES.get((table, name), name) for name in names])
        if wanted != there:
            found[table] = (wanted, there)
    return found


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "target"),
    [(kind, target) for kind in ("postgresql", "mariadb", "mysql", "sqlserver") for target in ("duckdb", "delta")],
)
def test_random_kills_under_load_with_projections(
    rig: Rig, writer: ShopWriter, target_tables: TargetTables, target: str
) -> None:
    rig.environ |= {"MASK_KEY": KEY}
    rig.write_yaml(settings=SETTINGS)
    draw = random.Random(39)
    process = rig.start()
    for _ in range(4):
        goal = writer.transactions + draw.randint(5, 120)
        wait_until(partial(_has_written, writer, goal), "the writer continues", timeout_s=120)
        if process.poll() is None:
            kill_one(process, draw)
        if process.poll() is not None:
            assert process.returncode == -signal.SIGKILL, rig.output()
            process = rig.start()
    writer.stop()
    if process.poll() is not None:
        process = rig.start()
    rig.settle(process)
    assert rig.stop(process) == 0, rig.output()
    assert differences(rig, target_tables) == {}
