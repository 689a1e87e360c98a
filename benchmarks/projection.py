"""What settings of columns cost: each function alone, and the path of the log with them next to the same log without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from benchmarks import data
from benchmarks.captured import capturing_changes, copied_slot, make_slot
from benchmarks.measure import Clock, Rate, Side, Work, in_turns, say
from benchmarks.report import Line, Report, compared, spell
from benchmarks.scale import Scale
from replicator.config import Mask, MaskFunction, Secret, TablesConfig
from replicator.config.secrets import Resolved
from replicator.projection.masking import masked
from replicator_testbed.postgresql.servers import ScratchDatabase

GOAL_HMAC: Final = 0.6
_KEY: Final = "a key of more than sixteen bytes"
_PLAIN: Final = "as it is"
_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a text column left out": {"columns": {"exclude": ["note"]}},
    "a text column masked by hmac": {"mask": {"name": Resolved("", "hmac(${env:KEY})", [_KEY])}},
    "a text column masked by sha256": {"mask": {"name": "sha256"}},
}
_NUMBERS: Final = itertools.count()


def run(scale: Scale) -> Report:
    """Mask columns in memory; then write a log once, and capture it from copies of the same slot, in turns."""
    rates = {name: in_turns({name: side}, scale.repetitions)[name] for name, side in _functions(scale.rows)}
    lines = [Line(what=name, figure=spell(rate)) for name, rate in rates.items()]
    paths = _log_path(scale)
    for name in _SETTINGS:
        goal = GOAL_HMAC if "hmac" in name else None
        lines.append(compared(f"log path, {name}", paths[name], paths[_PLAIN], _PLAIN, goal=goal))
    return Report(name="projection", lines=lines, raw={"functions": rates, "log": paths})


def _functions(rows: int) -> Iterator[tuple[str, Side]]:
    texts = pa.array([f"name {number:032}" for number in range(rows)])
    numbers = pa.array(range(rows), pa.int64())
    moments = pa.array(range(0, rows * 10**9, 10**9), pa.timestamp("us", tz="UTC"))
    prices = pa.array([Decimal(number).scaleb(-2) for number in range(rows)], pa.decimal128(12, 2))
    assert moments[0].as_py() == datetime(1970, 1, 1, tzinfo=UTC)
    for name, values, mask in (
        ("sha256 of text", texts, Mask(function=MaskFunction.SHA256)),
        ("sha256 of integers", numbers, Mask(function=MaskFunction.SHA256)),
        ("hmac of text", texts, Mask(function=MaskFunction.HMAC, key=Secret(_KEY))),
        ("hmac of text with an id", texts, Mask(function=MaskFunction.HMAC, key=Secret(_KEY), key_id="a")),
        ("redact", texts, Mask(function=MaskFunction.REDACT)),
        ("last(4)", texts, Mask(function=MaskFunction.LAST, number=4)),
        ("date(month)", moments, Mask(function=MaskFunction.DATE, unit="month")),
        ("bucket(1000) of integers", numbers, Mask(function=MaskFunction.BUCKET, number=1000)),
        ("bucket(1000) of decimals", prices, Mask(function=MaskFunction.BUCKET, number=1000)),
        ("null", texts, Mask(function=MaskFunction.NULL)),
    ):
        yield name, _masking(values, mask)


def _masking(values: pa.Array, mask: Mask) -> Side:
    @contextmanager
    def side() -> Iterator[Work]:
        def work(_: Clock) -> int:
            return len(masked(values, mask))

        yield work

    return side


def _log_path(scale: Scale) -> Mapping[str, Rate]:
    with data.server() as server, server.database("bench") as database:
        data.create_table(database)
        make_slot(database, "start")
        say("projection: writing the log")
        data.insert(database, 1, scale.rows, rows_per_transaction=10_000)
        sides = {_PLAIN: _capturing(database, scale.rows, {})}
        sides |= {name: _capturing(database, scale.rows, settings) for name, settings in _SETTINGS.items()}
        return in_turns(sides, scale.repetitions)


def _capturing(database: ScratchDatabase, rows: int, settings: Mapping[str, Any]) -> Side:
    found = TablesConfig(settings={"*.*": settings} if settings else {}).settings

    @contextmanager
    def side() -> Iterator[Work]:
        with (
            copied_slot(database, "start", f"copy_{next(_NUMBERS)}") as slot,
            capturing_changes(database, slot, rows, settings=found) as capture,
        ):
            yield capture

    return side
