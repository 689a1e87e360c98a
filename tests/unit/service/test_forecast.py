"""What replicating tables will take, from given statistics and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator.config import JournalConfig
from replicator.model.errors import TableError
from replicator.model.figures import Basis, Figure, product, total, unknown
from replicator.model.schema import Column, TableId, TableSchema
from replicator.plugins.planning import RowSample, SourceStatistics, SupportsPlanning, TableStatistics
from replicator.service.plan.forecast import DAY_S, Forecast, Given, TableForecast, forecast, merges_per_day
from replicator.service.plan.sampling import Sampled, SampleLimits, TableSample, sample
from replicator_testbed.present import present

NOW: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
GIB: Final = 1 << 30


def schema(name: str) -> TableSchema:
    return TableSchema(
        table=TableId("public", name),
        columns=(Column(name="id", type=pa.int64(), source_type="bigint", nullable=False),),
        key=("id",),
    )


T, U = schema("t"), schema("u")


def rows(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(range(number))}, schema=pa.schema(list(T.row_type)))


def counted(number: float, how: str = "counter") -> Figure:
    return Figure(number, Basis.COUNTED, how)


def estimated(number: float) -> Figure:
    return Figure(number, Basis.ESTIMATED, "catalogue")


def statistics(
    tables: Mapping[TableSchema, tuple[float, float, float]], *, at: datetime = NOW, **more: Any
) -> SourceStatistics:
    """By table: rows, bytes and changes so far."""
    return SourceStatistics(
        at=at,
        tables={
            one.table: TableStatistics(rows=estimated(count), bytes=estimated(size), changes=counted(changes))
            for one, (count, size, changes) in tables.items()
        },
        log_kept_how="setting",
        **more,
    )


def given(**more: Any) -> Given:
    return Given(
        **{
            "journal": JournalConfig(),
            "max_wait_s": 1.0,
            "target": None,
            "free_bytes": Figure(100.0 * GIB, Basis.MEASURED, "the disk of /"),
            **more,
        }
    )


def sampled_rows(
    number: int, *, seconds: float = 1.0, journal_bytes: int = 1000, is_whole: bool = False
) -> TableSample:
    return TableSample(rows=rows(number), seconds=seconds, journal_bytes=journal_bytes, is_whole=is_whole)


def only(found: Forecast) -> TableForecast:
    (table,) = found.tables
    return table


def test_a_snapshot_takes_as_long_as_its_rows_at_the_speed_of_the_sample() -> None:
    known = statistics({T: (10_000, 1e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(100)})
    found = only(forecast([T], sampled, given()))
    assert found.snapshot_s == Figure(100.0, Basis.ESTIMATED, "the first 100 rows, read and encoded in 1.00 s")
    assert found.journal_snapshot_bytes.value == pytest.approx(100_000)


def test_a_table_that_the_sample_reads_to_its_end_is_known() -> None:
    known = statistics({T: (10_000, 1e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(70, is_whole=True)})
    found = only(forecast([T], sampled, given()))
    assert (found.rows.value, found.rows.basis) == (70, Basis.MEASURED)
    assert (found.snapshot_s.value, found.snapshot_s.basis) == (1.0, Basis.MEASURED)


def test_an_estimate_below_what_was_read_is_raised() -> None:
    known = statistics({T: (10, 1e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(70)})
    assert only(forecast([T], sampled, given())).rows.value == 70


def test_a_table_without_a_sample_is_as_fast_by_its_size_as_the_others() -> None:
    known = statistics({T: (1000, 1e6, 0), U: (50, 3e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(500)})
    found = {one.table: one for one in forecast([T, U], sampled, given()).tables}
    assert found[str(T.table)].snapshot_s.value == pytest.approx(2.0)
    assert found[str(U.table)].snapshot_s.value == pytest.approx(6.0)
    assert found[str(U.table)].sampled_rows == 0
    assert found[str(U.table)].journal_snapshot_bytes == unknown("the table was not sampled")


def test_a_table_that_could_not_be_read_is_unknown_with_the_reason_and_so_is_the_sum() -> None:
    known = statistics({T: (1000, 1e6, 0), U: (50, 3e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(500)}, failed={U.table: "[access] no"})
    found = forecast([T, U], sampled, given())
    assert found.tables[1].snapshot_s == unknown("[access] no")
    assert found.totals.snapshot_s == unknown("[access] no")


def test_an_old_counter_tells_the_average_and_a_young_one_needs_two_readings() -> None:
    before, after = statistics({T: (10, 1, 100)}), statistics({T: (10, 1, 130)}, at=NOW + timedelta(seconds=10))
    found = Sampled(before=before, after=after)
    assert only(forecast([T], found, given())).changes_per_day.value == pytest.approx(3 * DAY_S)
    old = replace(found, before=replace(before, changes_since=NOW - timedelta(days=2)))
    changes = only(forecast([T], old, given())).changes_per_day
    assert changes.value == pytest.approx(130 / 2, rel=1e-3)
    assert "since 2026-01-29 12:00 UTC" in changes.how
    young = replace(found, before=replace(before, changes_since=NOW - timedelta(minutes=1)))
    assert only(forecast([T], young, given())).changes_per_day.basis is Basis.MEASURED


def test_a_counter_that_was_reset_meanwhile_tells_nothing() -> None:
    before, after = statistics({T: (10, 1, 100)}), statistics({T: (10, 1, 5)}, at=NOW + timedelta(seconds=10))
    found = only(forecast([T], Sampled(before=before, after=after), given())).changes_per_day
    assert found == unknown("counter was reset meanwhile")


@pytest.mark.parametrize(
    ("changes", "merges"), [(0.0, 0.0), (1.0, 1.0), (864.0, 859.7), (86_400.0, 54_616.0), (1e9, 86_400.0)]
)
def test_merges_follow_from_changes_and_the_pause_between_batches(changes: float, merges: float) -> None:
    assert merges_per_day(counted(changes), 1.0).value == pytest.approx(merges, rel=1e-3)


def test_unknown_changes_bound_the_merges_from_above() -> None:
    found = merges_per_day(unknown("no counter"), 300.0)
    assert (found.value, found.basis) == (288.0, Basis.ESTIMATED)
    assert "at most" in found.how


def test_the_journal_takes_the_snapshot_and_the_changes_of_the_time_that_it_keeps() -> None:
    known = statistics({T: (1000, 1e6, 0)}, changes_since=NOW - timedelta(days=1))
    after = statistics({T: (1000, 1e6, 500)})
    sampled = Sampled(before=known, after=after, samples={T.table: sampled_rows(100)})
    found = forecast([T], sampled, given(journal=JournalConfig(keep=timedelta(days=2))))
    assert found.totals.journal_bytes.value == pytest.approx(1000 * 10 + 2 * 500 * 10)


def test_changes_that_are_unknown_leave_the_snapshot_as_what_the_journal_takes_at_least() -> None:
    known = statistics({T: (1000, 1e6, 0)})
    nothing = replace(known.tables[T.table], changes=unknown("no counter"))
    known = replace(known, tables={T.table: nothing})
    found = forecast([T], Sampled(before=known, after=known, samples={T.table: sampled_rows(100)}), given())
    assert found.totals.journal_bytes.value == pytest.approx(10_000)
    assert "at least" in found.totals.journal_bytes.how


def codes(found: Forecast) -> list[str]:
    return [problem.code for problem in found.problems]


def test_a_journal_that_does_not_fit_is_found() -> None:
    known = statistics({T: (1e9, 1e6, 0)})
    sampled = Sampled(before=known, after=known, samples={T.table: sampled_rows(10, journal_bytes=10 * 100)})
    assert codes(forecast([T], sampled, given())) == ["plan_journal_limit"]
    small = given(
        journal=JournalConfig(bytes_max=200 * GIB), free_bytes=Figure(10.0 * GIB, Basis.MEASURED, "the disk of /")
    )
    assert codes(forecast([T], sampled, small)) == ["plan_disk_small"]
    fits = given(journal=JournalConfig(bytes_max=200 * GIB))
    assert codes(forecast([T], sampled, fits)) == []


def test_a_log_that_is_kept_for_too_short_a_time_is_found() -> None:
    after = statistics({T: (10, 1, 0)}, log_kept_for=timedelta(hours=2))
    found = forecast([T], Sampled(before=after, after=after), given())
    assert codes(found) == ["plan_log_short"]
    assert present(found.totals.log_pause_s).value == 7200
    longer = statistics({T: (10, 1, 0)}, log_kept_for=timedelta(days=2))
    assert codes(forecast([T], Sampled(before=longer, after=longer), given())) == []


def test_a_log_that_is_kept_by_size_lasts_as_long_as_it_grows() -> None:
    day = timedelta(days=1)
    after = statistics({T: (10, 1, 0)}, log_bytes=counted(4.0 * GIB), log_since=NOW - 4 * day, log_kept_bytes=GIB // 2)
    found = forecast([T], Sampled(before=after, after=after), given())
    assert found.totals.log_bytes_per_day.value == pytest.approx(GIB)
    assert present(found.totals.log_pause_s).value == pytest.approx(DAY_S / 2)
    assert codes(found) == ["plan_log_short"]
    unbounded = replace(after, log_kept_bytes=None)
    assert forecast([T], Sampled(before=unbounded, after=unbounded), given()).totals.log_pause_s is None


def test_a_figure_is_as_uncertain_as_what_it_was_made_of() -> None:
    exact, rough = Figure(2, Basis.MEASURED, "a"), Figure(3, Basis.ESTIMATED, "b")
    assert product("a b", exact, rough) == Figure(6, Basis.ESTIMATED, "a b")
    assert product("a b", exact, unknown("why")) == unknown("why")
    assert total([exact, rough], "sum") == Figure(5, Basis.ESTIMATED, "sum")
    assert total([exact, unknown("why")], "sum") == unknown("why")


@dataclass
class Counting(SupportsPlanning):
    """A source that has what the test says; each read takes a second of its clock."""

    sizes: Mapping[TableSchema, int]
    failing: frozenset[TableId] = frozenset()
    since: datetime | None = None
    now: float = 0.0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def statistics(self, tables: Sequence[TableId]) -> SourceStatistics:
        del tables
        at = NOW + timedelta(seconds=self.now)
        known = {one: (count, count * 8.0, 0.0) for one, count in self.sizes.items()}
        return statistics(known, at=at, changes_since=self.since, log_since=self.since)

    def sample(self, schema: TableSchema, rows_max: int) -> RowSample:
        self.now += 1.0
        self.asked.append((schema.table.name, rows_max))
        if schema.table in self.failing:
            raise TableError("it cannot be read", code="access_denied", table=str(schema.table))
        number = min(rows_max, self.sizes[schema])
        return RowSample(rows=rows(number), is_whole=number < rows_max)

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def source() -> Counting:
    return Counting(sizes={T: 50, U: 1000}, since=NOW - timedelta(days=1))


def test_the_largest_tables_are_sampled_first_within_the_limits(source: Counting) -> None:
    found = sample(source, [T, U], SampleLimits(rows=100, seconds=2.0), clock=source.clock, wait=source.wait)
    assert source.asked == [("u", 1), ("u", 100)]
    assert set(found.samples) == {U.table}
    assert found.samples[U.table].rows.num_rows == 100
    assert found.samples[U.table].journal_bytes > 0
    assert source.now == 2.0, "old counters are not waited for"


def test_a_table_that_cannot_be_read_does_not_keep_others_from_being_read(source: Counting) -> None:
    source.failing = frozenset({U.table})
    found = sample(source, [T, U], SampleLimits(rows=100, seconds=60.0), clock=source.clock, wait=source.wait)
    assert found.failed == {U.table: "[access_denied] it cannot be read"}
    assert found.samples[T.table].is_whole


def test_young_counters_are_read_twice_with_time_between(source: Counting) -> None:
    source.since = None
    limits = SampleLimits(rows=10, seconds=60.0, count_seconds=30.0)
    found = sample(source, [T], limits, clock=source.clock, wait=source.wait)
    assert (found.after.at - found.before.at).total_seconds() == 30.0
