"""What is refused at the start is refused while running too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from replicator.capture import Capture
from replicator.model.errors import ConfigError, FatalError, Problem, Severity, SourceUnavailableError
from replicator.model.schema import TableId, TableSchema
from replicator.state.records import Lease, RequestKind, Stage
from replicator_testbed.present import present
from replicator_testing.memory import MemorySource

if TYPE_CHECKING:
    from tests.unit.capture.conftest import Bench

STREAMING = (Stage.STREAMING,)


def two(bench: Bench) -> list[TableId]:
    bench.settings = replace(bench.settings, check_every_s=0.05)
    tables = [bench.create(bench.schema(name)) for name in ("t1", "t2")]
    for table in tables:
        bench.fill(table, 3)
    return tables


def finding(about: TableId | str, **more: Any) -> Problem:
    """Of a table, or of a setting."""
    return Problem(
        code="row_level_security",
        message="row-level security hides rows",
        table=str(about) if isinstance(about, TableId) else None,
        location=str(about),
        action="ALTER ROLE r BYPASSRLS;",
        **more,
    )


def is_refused(bench: Bench, table: TableId) -> bool:
    record = bench.record(table)
    return (
        record is not None
        and record.stage is Stage.FAILED
        and (present(record.error).code, present(record.error).is_finding) == ("row_level_security", True)
    )


def with_target(bench: Bench, assess: Callable[[Sequence[TableSchema]], Sequence[Problem]]) -> None:
    """Have the target find what `assess` returns."""
    make = bench.make_with

    def made(lease: Lease) -> tuple[Capture, MemorySource]:
        capture, source = make(lease)
        capture._parts.checks.assess = capture._parts.target_checks.assess = assess
        return capture, source

    bench.make_with = made  # type: ignore[method-assign]


def test_a_finding_that_comes_while_running_fails_its_table_with_the_cure(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.problems.append(finding(bad))
        capture.until(lambda: is_refused(bench, bad))
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(bad)]})
        capture.until(lambda: not bench.store.requests.open("test"))
        assert is_refused(bench, bad), "what is not fixed is not copied"
        bench.database.problems.clear()
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(bad)]})
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
    assert bench.known(bad).error is None


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.NOTICE])
def test_a_finding_that_forbids_nothing_changes_nothing(bench: Bench, severity: Severity) -> None:
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.problems.append(finding(bad, severity=severity))
        checks = capture.source.faults.counts["check"]
        capture.until(lambda: capture.source.faults.counts["check"] > checks + 2)
        assert bench.is_at(*STREAMING)()


def test_a_table_that_a_later_start_refuses_fails_alone_and_comes_back_when_it_is_cured(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.database.problems.append(finding(bad))
    bench.write(bad, {"id": 70, "a": "new", "b": None})
    bench.write(good, {"id": 70, "a": "new", "b": None})
    with bench.running() as capture:
        capture.until(lambda: is_refused(bench, bad) and bench.holds(good)())
    assert present(bench.error_of(bad).action).startswith(
        "ALTER ROLE r BYPASSRLS; Then a new snapshot begins by itself within a minute"
    )
    bench.database.problems.clear()
    with bench.running() as capture:
        capture.until(lambda: bench.is_at(*STREAMING)() and bench.holds(bad)())
    assert present(bench.known(bad).snapshot).start_number is not None, "in place"


@pytest.mark.parametrize("changed_only", [False, True])
@pytest.mark.parametrize("is_named", [False, True], ids=["unnamed", "named"])
def test_a_table_that_cannot_be_prepared_for_a_new_position_fails_alone(
    bench: Bench, changed_only: bool, is_named: bool
) -> None:
    """Nobody saw what became of it while the log was lost; the others are not to wait for that."""
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
    bench.store.requests.add("test", RequestKind.RESTART, {"changed_only": changed_only})

    def refused() -> Exception:
        if not is_named:
            return OverflowError("it has no usable identity")
        return ConfigError("it has no usable identity", code="no_primary_key", problems=(finding(bad),))

    begun = Stage.COMPARING if changed_only else Stage.STREAMING
    with bench.running(lambda source: source.faults.fail("prepare", bad, refused)) as capture:
        capture.until(lambda: bench.known(good).stage is begun and not bench.store.requests.open("test"))
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
    assert bench.known(bad).stage is Stage.FAILED
    assert bench.error_of(bad).code == ("row_level_security" if is_named else "internal_error")
    assert not bench.known(bad).is_changed_only


def with_selection(bench: Bench, selected: list[TableId]) -> Any:
    """A capture that selects more tables later."""
    bench.settings = replace(bench.settings, compare_every_s=0.05)
    make = bench.make_with

    def made(lease: Lease) -> tuple[Capture, MemorySource]:
        capture, source = make(lease)
        capture._parts = replace(capture._parts, select=lambda: tuple(selected))
        return capture, source

    bench.make_with = made  # type: ignore[method-assign]


def test_a_new_table_that_is_refused_is_recorded_as_failed(bench: Bench) -> None:
    first, second = two(bench)
    selected = [first, second]
    with_selection(bench, selected)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bad, good = (TableId("public", name) for name in ("bad", "good"))
        bench.database.problems.append(finding(bad))
        for table in (bad, good):
            bench.database.create_table(bench.schema(table.name))
            bench.fill(table, 3)
        selected += [bad, good]
        capture.until(lambda: bench.record(good) is not None and bench.known(good).stage is Stage.STREAMING)
        assert is_refused(bench, bad)
        bench.database.problems.clear()
        bench.store.requests.add("test", RequestKind.SNAPSHOT, {"tables": [str(bad)]})
        capture.until(lambda: bench.known(bad).stage is Stage.STREAMING and bench.holds(bad)())
    assert bench.holds(good)()


def test_a_new_table_whose_name_clashes_is_recorded_as_failed(bench: Bench) -> None:
    first, second = two(bench)
    selected = [first, second]
    with_selection(bench, selected)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        clash = TableId("public", "T1")
        bench.database.create_table(bench.schema("T1"))
        selected.append(clash)
        capture.until(lambda: bench.record(clash) is not None and bench.known(clash).stage is Stage.FAILED)
        assert bench.error_of(clash).code == "table_names_clash"
        bench.write(first, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(first))


def test_a_new_table_that_the_target_cannot_hold_is_recorded_as_failed(bench: Bench) -> None:
    first, second = two(bench)
    selected = [first, second]
    with_selection(bench, selected)

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        return [replace(finding(s.table), location=f"{s.table}.a") for s in shapes if s.table.name == "bad"]

    with_target(bench, assess)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bad = TableId("public", "bad")
        bench.database.create_table(bench.schema("bad"))
        selected.append(bad)
        capture.until(lambda: is_refused(bench, bad))


def test_a_finding_of_the_target_that_comes_while_running_fails_its_table_once_it_is_confirmed(bench: Bench) -> None:
    bad, good = two(bench)
    bench.settings = replace(bench.settings, check_target_every_s=0.05)
    problems: list[Problem] = []
    asked: list[set[TableId]] = []

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        asked.append({s.table for s in shapes})
        return list(problems)

    with_target(bench, assess)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        asked.clear()
        capture.until(lambda: {bad, good} in asked)
        problems.append(finding(bad, severity=Severity.WARNING))
        problems.append(finding(bad))
        capture.until(lambda: is_refused(bench, bad))
        assert {bad} in asked
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
        assert present(bench.record(good)).stage is Stage.STREAMING


def test_a_finding_of_the_target_that_passes_fails_nothing(bench: Bench) -> None:
    bad, _ = two(bench)
    bench.settings = replace(bench.settings, check_target_every_s=0.02)
    found: list[int] = []

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        found.append(len(shapes))
        return [finding(bad)] if len(found) > 5 and len(shapes) == 2 else []

    with_target(bench, assess)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        capture.until(lambda: found.count(1) > 3)
        assert not is_refused(bench, bad)


def test_a_target_that_cannot_be_asked_fails_nothing(bench: Bench) -> None:
    _, good = two(bench)
    bench.settings = replace(bench.settings, check_target_every_s=0.02)
    count = [0]

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        count[0] += 1
        if count[0] > 3 and not (len(shapes) == 1 and shapes[0].table == good and count[0] % 2):
            raise RuntimeError("a bug")
        return []

    with_target(bench, assess)
    with bench.running() as capture, capture_logs() as logs:
        capture.until(bench.is_at(*STREAMING))
        capture.until(lambda: count[0] > 30)
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
        assert bench.is_at(*STREAMING)()
    assert any(line["event"] == "target_not_checked" for line in logs)


def test_the_target_is_asked_every_ten_minutes(bench: Bench) -> None:
    bad, _ = two(bench)
    count = [0]

    def assess(shapes: Sequence[TableSchema]) -> Sequence[Problem]:
        count[0] += 1
        return []

    with_target(bench, assess)
    assert bench.settings.check_target_every_s == 600.0
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        before = count[0], capture.source.faults.counts["check"]
        bench.fill(bad, 20, first=100)
        capture.until(bench.holds(bad))
        capture.until(lambda: capture.source.faults.counts["check"] > before[1] + 3)
        assert count[0] == before[0]


def test_a_server_that_cannot_be_trusted_any_more_stops_the_capture(bench: Bench) -> None:
    two(bench)
    with pytest.raises(FatalError) as stopped, bench.running() as capture:  # noqa: PT012 (raised when it is joined)
        capture.until(bench.is_at(*STREAMING))
        bench.database.problems.append(finding("binlog_row_image", applies="always"))
        capture.join()
    assert (stopped.value.code, stopped.value.table) == ("row_level_security", None)
    assert stopped.value.action is not None
    assert stopped.value.action.startswith("ALTER ROLE")


def test_other_findings_about_the_server_are_told_once_and_stop_nothing(bench: Bench) -> None:
    two(bench)
    with capture_logs() as lines, bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.problems.append(finding("source"))
        checks = capture.source.faults.counts["check"]
        capture.until(lambda: capture.source.faults.counts["check"] > checks + 3)
        assert bench.is_at(*STREAMING)()
        capture.until(lambda: [found.location for found in capture.control.status.findings] == ["source"])
        bench.database.problems.clear()
        capture.until(lambda: not capture.control.status.findings)
    assert [line["event"] for line in lines].count("finding") == 1


def test_a_check_that_cannot_be_made_now_ends_the_capture_as_every_other_question(bench: Bench) -> None:
    two(bench)
    away = SourceUnavailableError("away", code="source_unavailable")
    with pytest.raises(SourceUnavailableError), bench.running() as capture:  # noqa: PT012 (raised when it is joined)
        capture.until(bench.is_at(*STREAMING))
        capture.source.faults.script("check", away)
        capture.join()


def test_a_check_that_fails_for_one_table_fails_that_table(bench: Bench) -> None:
    bad, good = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        capture.source.faults.fail("check", bad, lambda: OverflowError("x"))
        capture.until(lambda: bench.known(bad).stage is Stage.FAILED)
        bench.write(good, {"id": 70, "a": "new", "b": None})
        capture.until(bench.holds(good))
    assert bench.error_of(bad).code == "internal_error"


def test_a_dropped_table_is_the_catalogues_not_the_checks(bench: Bench) -> None:
    bench.settings = replace(bench.settings, compare_every_s=0.05)
    bad, _ = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        bench.database.drop_table(bad)
        capture.until(lambda: bench.known(bad).stage is Stage.FAILED)
    assert not bench.error_of(bad).is_finding


def test_a_check_waits_for_the_one_before_and_for_its_minute(bench: Bench) -> None:
    bad, _ = two(bench)
    bench.settings = replace(bench.settings, check_every_s=3600.0)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        before = capture.source.faults.counts["check"]
        bench.fill(bad, 20, first=100)
        capture.until(bench.holds(bad))
        assert capture.source.faults.counts["check"] == before


def test_a_privilege_that_all_tables_lack_fails_none_of_them_and_is_waited_for(bench: Bench) -> None:
    """A REVOKE and a GRANT every night: the log holds everything meanwhile."""
    first, second = two(bench)
    lacking = [finding(table, is_access=True) for table in (first, second)]
    for opening in (False, True):
        if opening:
            bench.write(first, {"id": 70, "a": "new", "b": None})
        with pytest.raises(SourceUnavailableError) as caught, bench.running() as capture:  # noqa: PT012 (raised when it is joined)
            if not opening:
                capture.until(bench.is_at(*STREAMING))
                bench.database.problems.extend(lacking)
            capture.join()
        assert (caught.value.code, caught.value.table) == ("row_level_security", None)
        assert str(first) in caught.value.message
        assert bench.is_at(*STREAMING)()
    bench.database.problems.clear()
    with bench.running() as capture:
        capture.until(bench.holds(first))
    assert present(bench.known(first).snapshot).start_number is None, "no new snapshot"


@pytest.mark.parametrize("other", [None, "first", "both"])
def test_a_privilege_that_some_tables_lack_fails_them(bench: Bench, other: str | None) -> None:
    """Also all of them, if something else is wrong with one: what was logged meanwhile may be of no use."""
    first, second = two(bench)
    with bench.running() as capture:
        capture.until(bench.is_at(*STREAMING))
        found = [finding(first, is_access=True)]
        if other is not None:
            found += [finding(second, is_access=True), finding(second if other == "both" else first)]
        bench.database.problems.extend(found)
        capture.until(lambda: is_refused(bench, first) and (other is None or is_refused(bench, second)))
