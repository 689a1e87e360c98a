"""`replicator verify` finds every corruption of every type, names exactly those rows and columns, and no others.

Which corruptions there are, and which types carry them, `replicator_testbed.spoiled.corruptions` says. An independent comparison
guards the judge: it sees a difference in the same rows.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replicator.model.documents.status import ReplicatorStatus, TableState
from replicator_testbed.bigquery.emulator import PROJECT, WITHOUT_RESTS, BigQueryEmulator
from replicator_testbed.databases import Database
from replicator_testbed.delta import plain_rows, plain_rows_of
from replicator_testbed.mysql import tables as mysql_tables
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql import rows as postgresql_rows
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.postgresql.tables import OddTable
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.spark.java import short_lived_options
from replicator_testbed.spoiled.copies import BigQueryCopy, Copy, DeltaCopy, DuckDBCopy
from replicator_testbed.spoiled.corruptions import MATRIX, OF_VALUES, WHY_NOT, Corruption, Family
from replicator_testbed.spoiled.tables import Layout, Spoiled, SpoiledTable, should_carry, spoil
from replicator_testbed.spoiled.types import cannot_of, changes, statements, tables_of_all, tables_of_families
from replicator_testbed.sqlserver import tables as sqlserver_tables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

EXTRA = f"""
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A source and a target.

    Attributes:
        copy_of: The copy of a table.
        differing: By the independent comparison: the ids of a table's rows that differ.
    """

    rig: Rig
    copy_of: Callable[[str], Copy]
    differing: Callable[[SpoiledTable], set[int]]


@pytest.fixture
def rig(tmp_path: Path, origin: Database, target: str, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A replicator of all tables that the test makes."""
    rig = Rig(folder=tmp_path, database=origin, extra=EXTRA, may_alarm=True)
    if target == "bigquery":
        emulator: BigQueryEmulator = request.getfixturevalue("emulator")
        rig.target = emulator.block(dataset=f"{origin.name}_{{namespace}}", own_dataset=f"_{origin.name}")
        rig.extra += WITHOUT_RESTS
    else:
        rig.write_to(target)
    rig.write_yaml(source={"unrepresentable": "null"} if isinstance(origin, MysqlDatabase) else None)
    yield rig
    rig.kill()


@pytest.fixture
def pair(rig: Rig, origin: Database, target: str, request: pytest.FixtureRequest) -> Pair:
    if target == "delta":
        return Pair(
            rig=rig,
            copy_of=lambda name: DeltaCopy(rig.lake / origin.namespace / name),
            differing=lambda table: _differing(_source_rows(origin, table), _delta_rows(rig, table)),
        )
    if target == "duckdb":

        def in_file(name: str) -> DuckDBCopy:
            return DuckDBCopy(file=rig.duckdb, namespace=origin.namespace, name=name)

        return Pair(
            rig=rig,
            copy_of=in_file,
            differing=lambda table: _differing(
                _source_rows(origin, table, has_times=True), plain_rows_of(in_file(table.name).arrow(table.columns))
            ),
        )
    client: Client = request.getfixturevalue("client")
    copies: dict[str, BigQueryCopy] = {}

    def copy_of(name: str) -> BigQueryCopy:
        path = f"{PROJECT}.{origin.name}_{origin.namespace}.{name}"
        return copies.setdefault(name, BigQueryCopy(client, path))

    equal: dict[str, Counter[tuple[Any, ...]]] = {}

    def differing(table: SpoiledTable) -> set[int]:
        """From when it was compared first."""
        rows = Counter((row["id"], repr(row)) for row in copy_of(table.name).rows())
        return _differing(equal.setdefault(table.name, rows), rows)

    return Pair(rig=rig, copy_of=copy_of, differing=differing)


def _source_rows(origin: Database, table: SpoiledTable, *, has_times: bool = False) -> Counter[tuple[Any, ...]]:
    """The rows of the source. `has_times`: the target has a type for times of day; asked of PostgreSQL only."""
    if isinstance(origin, MysqlDatabase):
        return mysql_tables.source_rows(origin, table.name)
    if not isinstance(origin, ScratchDatabase):
        return sqlserver_tables.source_rows(origin, table.name)
    odd = OddTable(name=table.name, statements=(), columns={})
    return postgresql_rows.source_rows(origin, odd, has_times=has_times)


def _delta_rows(rig: Rig, table: SpoiledTable) -> Counter[tuple[Any, ...]]:
    return plain_rows(rig.lake / rig.database.namespace / table.name, table.columns)


def _differing(some: Counter[tuple[Any, ...]], others: Counter[tuple[Any, ...]]) -> set[int]:
    return {int(row[0]) for row in [*(some - others), *(others - some)]}


def verified(rig: Rig, *, check: int) -> Mapping[str, Any]:
    """The document of `verify --json`, by table."""
    done = rig.command("verify", rig.name, "--json", check=None, timeout=900)
    tables = json.loads(done.stdout)["tables"]
    unequal = [(one["table"], one["reason"], one["counts"]) for one in tables if one["result"] != "equal"]
    assert done.returncode == check, unequal
    return {table["table"].partition(".")[2]: table for table in tables}


def told(found: Mapping[str, Any]) -> set[tuple[int, str, tuple[str, ...]]]:
    """The differences of a table: id, kind, columns."""
    assert not found["truncated"]
    return {(int(one["key"]["id"]), one["kind"], tuple(one["columns"])) for one in found["differences"]}


def described(table: SpoiledTable, rows: set[tuple[int, str, tuple[str, ...]]]) -> list[Any]:
    """Rows with what was done to them, for a person."""
    cases = {id_: case for case in table.cases for id_ in (case.id, case.partner)}
    return [(row, table.types[cases[row[0]].column], cases[row[0]].corruption) for row in sorted(rows)[:20]]


def have_begun(status: ReplicatorStatus) -> bool:
    """Whether all tables stream, or one has failed."""
    return is_streaming(status) or any(table.state is TableState.FAILED for table in status.tables)


def spoiled(pair: Pair, tables: Sequence[SpoiledTable]) -> Mapping[str, Spoiled]:
    """The tables replicated and equal, by both comparisons, then the target tables corrupted."""
    rig = pair.rig
    for table in tables:
        rig.database.execute(*statements(rig.database, table))
    worker = rig.start()
    begun = rig.wait_for_status(have_begun, worker, timeout_s=900)
    assert {table.table: table.error for table in begun.tables if table.error} == {}, "the target can hold all values"
    before = {table.name: pair.copy_of(table.name).rows() for table in tables}
    for table in tables:
        rig.database.execute(*changes(rig.database, table))
    rig.settle(worker)
    verified(rig, check=0)
    assert {table.name: ids for table in tables if (ids := pair.differing(table))} == {}
    found = {}
    for table in tables:
        copy = pair.copy_of(table.name)
        found[table.name] = spoil(table, before[table.name], copy.rows(), copy.how(table))
        copy.replace(found[table.name].rows)
    return found


def check_matrix(pair: Pair, tables: Sequence[SpoiledTable]) -> None:
    """Everything is found, by both comparisons; and everything that the matrix has was tried."""
    expected = spoiled(pair, tables)
    assert {table.name: pair.differing(table) ^ expected[table.name].ids for table in tables} == {
        table.name: set() for table in tables
    }, "the independent comparison sees the same rows"
    found = verified(pair.rig, check=3)
    undecided = {name: (one["result"], one["reason"]) for name, one in found.items() if one["result"] != "different"}
    assert undecided == {}, "each was compared"
    for table in tables:
        wanted, got = expected[table.name], told(found[table.name])
        assert described(table, set(wanted.expected) - got) == [], f"{table.name}: not found"
        assert described(table, got - set(wanted.expected)) == [], f"{table.name}: nothing is wrong with these"
        assert found[table.name]["counts"] == wanted.counts, table.name
    _log.info(
        "%d tables, %d types, %d cases; rows that are wrong, and found: %d",
        len(tables),
        len({type_.name for table in tables for type_ in table.types.values()}),
        sum(len(table.cases) for table in tables),
        sum(len(expected[table.name].expected) for table in tables),
    )

    by_id = [table for table in tables if table.layout is Layout.BY_ID]
    how = {t.types[c].name: held for t in by_id for c, held in pair.copy_of(t.name).how(t).items()}
    carried = {pair_ for table in by_id for pair_ in expected[table.name].carried}
    wanted_of_types = should_carry(how, Layout.BY_ID)
    known = wanted_of_types & set(cannot_of(pair.rig.database))
    assert sorted(wanted_of_types - carried - known) == [], "what no value of a type can have is written down"
    assert sorted(known & carried) == [], "some value of these types can"
    for corruption in (Corruption.TRUNCATED, Corruption.NUL, Corruption.TRAILING_SPACE):
        assert max(one.sizes[corruption] for one in expected.values()) > 256, "digests stand for long values"


def test_each_corruption_has_families_that_carry_it_and_a_reason_for_the_others() -> None:
    assert set(MATRIX) == set(OF_VALUES)
    partly = {one for one, families in MATRIX.items() if set(families) != set(Family)}
    assert set(WHY_NOT) == partly


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("postgresql", "duckdb"),
        *(
            pytest.param(kind, "delta", marks=pytest.mark.matrix)
            for kind in ("postgresql", "mariadb", "mysql", "sqlserver", "sqlserver_tracking")
        ),
        *(pytest.param(kind, "bigquery", marks=pytest.mark.matrix) for kind in ("postgresql", "mysql", "sqlserver")),
    ],
)
def test_every_corruption_of_every_family_is_found(pair: Pair, target: str) -> None:
    check_matrix(pair, tables_of_families(pair.rig.database, target))


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("postgresql", "delta"),
        ("mariadb", "delta"),
        ("mysql", "delta"),
        ("sqlserver", "delta"),
        ("sqlserver_tracking", "delta"),
        ("postgresql", "bigquery"),
        ("mysql", "bigquery"),
    ],
)
def test_every_corruption_of_every_type_is_found(pair: Pair, target: str) -> None:
    check_matrix(pair, tables_of_all(pair.rig.database, target))
