"""What a configuration file may change of a replicator that is stored, and what keeps it from being stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from replicator.journal import JournalWriter, location
from replicator.model.errors import ConfigError, Problem, Severity, SourceUnavailableError
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.registry import Registry
from replicator.plugins.source import TableSummary
from replicator.runtime.home import Home
from replicator.service import lifecycle
from replicator.service.configuring.assess import Assessment
from replicator.state.store import StateStore
from replicator_testing.defaults import writer_limits
from replicator_testing.memory import MemoryDatabase, MemorySource, MemoryTarget
from replicator_testing.target_harness import items_schema


@dataclass(slots=True, kw_only=True)
class Service:
    """A host with the in-memory plugins, and what a user does with a file."""

    folder: Path
    store: StateStore

    def put(self, *, database: str = "one", warehouse: str = "one", journal: str = "") -> Assessment:
        """Store a file."""
        for name in (database, warehouse):
            if not MemoryDatabase.open(self.named(name)).tables:
                MemoryDatabase.open(self.named(name)).create_table(items_schema())
        text = (
            f"name: shop\nsource: {{type: memory, database: {self.named(database)}}}\n"
            f"target: {{type: memory, database: {self.named(warehouse)}}}\n{journal}"
        )
        registry = Registry.of(sources=[MemorySource], targets=[MemoryTarget])
        home = Home(folder=self.folder, state_url=f"sqlite:///{self.folder}/state.db")
        return lifecycle.put(self.store, home, registry, registry.load(text, origin="shop.yaml"))[1]

    def seal(self) -> None:
        """Let capture begin."""
        lease = self.store.leases.acquire("shop", "host:1:boot", 60)
        assert lease is not None
        uri = str(self.folder / "journal")
        writer = JournalWriter(self.store, name="shop", epoch=lease.epoch, uri=uri, limits=writer_limits())
        writer.commit(offset=None, source_time=None, tables=[])
        assert self.store.journal.last_segment("shop") is not None

    def named(self, name: str) -> str:
        """The name of a database of this test alone."""
        return f"{self.folder.name}-{name}"

    def refused(self, **file: str) -> ConfigError:
        """Store a file that may not be; what was stored stays."""
        before = self.store.replicators()
        with pytest.raises(ConfigError) as refused:
            self.put(**file)
        assert self.store.replicators() == before
        return refused.value


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    store = StateStore(f"sqlite:///{tmp_path}/state.db")
    yield Service(folder=tmp_path, store=store)
    store.close()


@pytest.mark.parametrize(("side", "changed"), [("source", {"database": "two"}), ("target", {"warehouse": "two"})])
def test_another_source_or_target_under_the_same_name_is_refused(
    service: Service, side: str, changed: dict[str, str]
) -> None:
    service.put()
    service.put()
    refused = service.refused(**changed)
    assert refused.code == "identity_changed"
    assert side in refused.message
    assert service.named("one") in refused.message
    assert service.named("two") in refused.message
    assert "replicator delete shop" in (refused.action or "")


def test_another_journal_is_refused(service: Service) -> None:
    service.put(journal=f"journal: {{uri: {service.folder}/here}}")
    service.put(journal=f"journal: {{uri: {service.folder}/here}}")
    refused = service.refused(journal=f"journal: {{uri: {service.folder}/there}}")
    assert refused.code == "identity_changed"
    assert "/there" in refused.message


def test_a_journal_that_nothing_can_write_is_a_finding(service: Service) -> None:
    refused = service.refused(journal="journal: {uri: 'nowhere://h/p'}")
    assert [(problem.code, problem.location) for problem in refused.problems] == [("journal_uri", "journal.uri")]


def test_a_journal_in_the_folder_where_one_happens_to_be_is_refused(service: Service) -> None:
    refused = service.refused(journal="journal: {uri: journal}")
    assert [(problem.code, problem.location) for problem in refused.problems] == [("path_not_absolute", "journal.uri")]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_journal_that_is_away_is_a_finding_that_a_worker_at_work_waits_out(
    service: Service, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    def away(uri: str) -> None:
        raise OSError(113, "No route to host")

    service.put()
    if has_begun:
        service.seal()
    monkeypatch.setattr(location, "resolve", away)
    found = service.put().problems if has_begun else service.refused().problems
    severity = Severity.WARNING if has_begun else Severity.BLOCKING
    assert [(problem.code, problem.location, problem.severity) for problem in found] == [
        ("journal_unavailable", "journal.uri", severity)
    ]


def test_a_source_that_is_away_is_refused_until_something_is_sealed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: MemorySource) -> Sequence[TableSummary]:
        raise SourceUnavailableError("The source is away.", code="source_unreachable")

    service.put()
    with monkeypatch.context() as patched:
        patched.setattr(MemorySource, "list_tables", away)
        refused = service.refused()
    assert [problem.code for problem in refused.problems] == ["source_unreachable"]

    service.seal()
    with monkeypatch.context() as patched:
        patched.setattr(MemorySource, "list_tables", away)
        found = service.put()
    assert [(problem.code, problem.severity) for problem in found.problems] == [
        ("source_unreachable", Severity.WARNING)
    ]


def test_a_finding_about_one_table_forbids_the_first_start_and_fails_the_table_at_a_later_one(service: Service) -> None:
    service.put()
    (table,) = MemoryDatabase.open(service.named("one")).tables
    problems = MemoryDatabase.open(service.named("one")).problems
    problems.append(Problem(code="select_missing", message="the role may not read it", table=str(table)))
    assert [problem.code for problem in service.refused().problems] == ["select_missing"]
    service.seal()
    found = service.put()
    assert found.is_blocked, "`validate` exits 2"
    assert [(problem.code, problem.severity) for problem in found.problems] == [("select_missing", Severity.BLOCKING)]
    column = Problem(code="unsupported_type", message="of its column", table=str(table), location=f"{table}.a")
    problems[:] = [column]
    assert [problem.location for problem in service.put().problems] == [f"{table}.a"], "it is one table's as well"
    problems.append(Problem(code="wal_level_not_logical", message="wal_level is replica", location="source"))
    assert len(service.refused().problems) == 2


@pytest.mark.parametrize("asked", ["source.check", "source.describe", "target.check"])
def test_an_error_about_one_of_two_tables_is_a_finding_about_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    service.put()
    service.seal()
    database = MemoryDatabase.open(service.named("one"))
    good = next(iter(database.tables))
    bad = TableId(good.namespace, "bad")
    database.create_table(replace(database.tables[good].schema, table=bad))
    part, name = asked.split(".")
    plugin = MemorySource if part == "source" else MemoryTarget
    call = getattr(plugin, name)

    def fails(self: object, tables: Sequence[TableId | TableSchema]) -> Any:
        if bad in [t.table if isinstance(t, TableSchema) else t for t in tables]:
            raise RuntimeError("a case that nobody thought of")
        return call(self, tables)

    monkeypatch.setattr(plugin, name, fails)
    found = service.put()
    blocking = [p for p in found.problems if p.severity is Severity.BLOCKING]
    assert [(p.code, p.table) for p in blocking] == [("internal_error", str(bad))]
    assert str(good) in [str(schema.table) for schema in found.tables]
