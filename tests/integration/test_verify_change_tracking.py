"""Tables under change tracking are verified while things happen to them: what is equal is never called different, what is not is found.

The model of a SQL Server, the capture and the judge are real; the target is in memory.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from typing_extensions import override

from replicator.config import Secret
from replicator.model.identity import TableIdentity
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.source import SourceContext, Visibility
from replicator.plugins.verification import Among, Bound, Checksum, KeyRange, SourceState
from replicator.verify import Counts, Judge, Repair, Result
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.background import in_background
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.sqlserver.databases import SqlServerDatabase, SqlServers
from replicator_testing.defaults import target_context
from replicator_testing.memory import MemoryTarget, MemoryTargetConfig
from replicator_testing.memory.faults import Faults
from replicator_testing.memory.target import MemoryWarehouse, StoredTable
from tests.simulation.test_verify import Copied, settled

NAME: Final = "tracked"
T, OTHER = TABLES = TableId("dbo", "t"), TableId("dbo", "other")
ROWS: Final = 60
FILL: Final = f"INSERT INTO {{}} VALUES {', '.join(f'({id_}, {id_}, NULL)' for id_ in range(ROWS))}"
STEPS: Final = ("source.open_state", "source.open_state.after", "target.open_state", "target.open_state.after")
"""Where a comparison is: behind the barrier, then with the source's state open, then before the target's is, and behind that."""


class ScriptedSource(SqlServerSource):
    """Lets a test act when a state is opened."""

    def __init__(self, config: SqlServerConfig, context: SourceContext) -> None:
        super().__init__(config, context)
        self.faults = Faults()

    @override
    @contextmanager
    def open_state(self, schema: TableSchema, columns: Collection[str]) -> Iterator[SourceState]:
        self.faults.hit("open_state", schema.table)
        with super().open_state(schema, columns) as state:
            self.faults.hit("open_state.after", schema.table)
            yield _ScriptedState(state, self.faults, schema.table)


class _ScriptedState(SourceState):
    """The same state; `identity` is reached when the rows were compared."""

    def __init__(self, state: SourceState, faults: Faults, table: TableId) -> None:
        self._state, self._faults, self._table = state, faults, table

    @property
    @override
    def visibility(self) -> Visibility:
        return self._state.visibility

    @property
    @override
    def range_key(self) -> Sequence[str]:
        return self._state.range_key

    @override
    def identity(self) -> TableIdentity | None:
        self._faults.hit("identity", self._table)
        return self._state.identity()

    @override
    def bound(self, columns: Sequence[str], after: Bound | None, rows: int) -> Bound | None:
        return self._state.bound(columns, after, rows)

    @override
    def checksums(
        self, digits: int, among: Among | None = None, within: KeyRange | None = None
    ) -> Mapping[str, Checksum]:
        return self._state.checksums(digits, among, within)

    @override
    def rows(self, groups: Collection[str], within: KeyRange | None = None) -> pa.Table:
        return self._state.rows(groups, within)

    @override
    def texts(self, ids: Collection[str], within: KeyRange | None = None) -> Mapping[str, Mapping[str, str | None]]:
        return self._state.texts(ids, within)


@dataclass
class Tracked(Copied):
    """A tracked database, and its tables in the target."""

    database: SqlServerDatabase

    def __call__(self, *statements: str) -> None:
        self.database.execute(*statements)

    def wait_for_target(self, capture: RunningCapture, judge: Judge) -> None:
        """Wait until the target has the whole table, also where that is read again."""
        self.captured.catch_up(capture)

        def is_whole() -> bool:
            return judge.can_compare(self.captured.record(T), self.captured.store.applied(NAME).get(T))

        capture.wait_until(is_whole, "the target has the table")


@pytest.fixture
def tracked(tmp_path: Path, sqlserver_tracking: SqlServers) -> Iterator[Tracked]:
    with sqlserver_tracking.database() as database:
        for table in TABLES:
            database.execute(f"CREATE TABLE {table} (id int NOT NULL PRIMARY KEY, n int NULL, note nvarchar(40) NULL)")
            database.execute(FILL.format(table))
        database.capture(*(table.name for table in TABLES))
        block = {name: value for name, value in database.source.items() if name != "type"}
        config = SqlServerConfig(**block, password=Secret(database.server.password), yield_after="100ms")
        captured = Captured(
            folder=tmp_path,
            name=NAME,
            make_source=lambda context: ScriptedSource(config, context),
            tables=list(TABLES),
        )
        record = captured.store.replicator(NAME)
        assert record is not None
        name = str(tmp_path)

        def make_target(epoch: int) -> MemoryTarget:
            return MemoryTarget(
                MemoryTargetConfig(database=name), target_context(replicator=NAME, uuid=record.uuid, epoch=epoch)
            )

        yield Tracked(captured, MemoryWarehouse.open(name), make_target, database)
        captured.close()


def script(judge: Judge, step: str, happen: Callable[[], object]) -> None:
    side, _, operation = step.partition(".")
    of_side = judge.source if side == "source" else judge.target
    assert isinstance(of_side, ScriptedSource | MemoryTarget)
    of_side.faults.script(operation, happen)


# -- what happens amid a verification ------------------------------------------------------------------------------------

Act = Callable[[Tracked, RunningCapture], None]


def change_rows(tracked: Tracked, _: RunningCapture) -> None:
    tracked(
        f"UPDATE {T} SET n = n + 1 WHERE id < 10",
        f"DELETE FROM {T} WHERE id = 11",
        f"INSERT INTO {T} (id) VALUES (900)",
    )


def move_keys(tracked: Tracked, _: RunningCapture) -> None:
    """Also to keys that others had."""
    tracked(f"UPDATE {T} SET id = id + 1 WHERE id >= 50", f"UPDATE {T} SET id = -id WHERE id BETWEEN 1 AND 5")


def replace_rows(tracked: Tracked, _: RunningCapture) -> None:
    """The same keys, in one transaction; and a row that comes and goes."""
    with closing(tracked.database.connect(autocommit=False)) as connection:
        connection.execute(f"DELETE FROM {T} WHERE id BETWEEN 20 AND 25")
        connection.execute(
            f"INSERT INTO {T} (id, n, note) VALUES (20, 1, N'again'), (23, NULL, N'again'), (901, 1, N'brief')"
        )
        connection.commit()
        connection.execute(f"DELETE FROM {T} WHERE id = 901")
        connection.commit()


def clean_up(tracked: Tracked, capture: RunningCapture) -> None:
    """Changes that no round has read, the last of which cleanup has removed before one did."""
    tracking = tracked.database.server.database.tracking
    tracked(f"UPDATE {T} SET n = -7 WHERE id < 10")
    ((version,),) = tracked.database.execute("SELECT CHANGE_TRACKING_CURRENT_VERSION()")
    tracking.raise_min_valid(int(version), "t")
    tracking.delete_below()


def truncate(tracked: Tracked, _: RunningCapture) -> None:
    tracked(f"TRUNCATE TABLE {T}")


def refill(tracked: Tracked, _: RunningCapture) -> None:
    tracked(f"TRUNCATE TABLE {T}", f"INSERT INTO {T} (id, n) VALUES (1, 5), (2, 6), (700, 7)")


def track_again(tracked: Tracked, capture: RunningCapture) -> None:
    """Changes that nothing tells."""
    tracked(f"UPDATE {OTHER} SET n = n + 1")
    tracked.captured.catch_up(capture)
    tracked(f"ALTER TABLE {T} DISABLE CHANGE_TRACKING", f"UPDATE {T} SET n = 55 WHERE id = 30")
    tracked(f"ALTER TABLE {T} ENABLE CHANGE_TRACKING")


def track_again_at_once(tracked: Tracked, _: RunningCapture) -> None:
    """The same, and no version passes."""
    tracked(f"ALTER TABLE {T} DISABLE CHANGE_TRACKING", f"UPDATE {T} SET n = 55 WHERE id = 30")
    tracked(f"ALTER TABLE {T} ENABLE CHANGE_TRACKING")


def add_column(tracked: Tracked, _: RunningCapture) -> None:
    tracked(f"ALTER TABLE {T} ADD more int NULL")


ACTS: Final[Sequence[Act]] = (
    change_rows, move_keys, replace_rows, clean_up, truncate, refill, track_again, track_again_at_once, add_column,
)  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("step", STEPS)
def test_what_happens_amid_a_verification_is_no_difference(tracked: Tracked, step: str) -> None:
    with tracked.running() as (capture, judge):
        for act in ACTS:
            for waits in (True, False):
                assert settled(judge, T, capture).result is Result.EQUAL

                def happen(act: Act = act, waits: bool = waits) -> None:
                    act(tracked, capture)
                    if waits:
                        tracked.wait_for_target(capture, judge)

                script(judge, step, happen)
                verdict = judge.verify(T)
                assert verdict.result is not Result.DIFFERENT, (act.__name__, waits, verdict)
                assert "unexpected" not in (verdict.reason or ""), (act.__name__, waits, verdict)
                assert settled(judge, T, capture).result is Result.EQUAL, act.__name__
                if act is add_column:
                    break
                tracked(f"DELETE FROM {T}", FILL.format(T))
    assert tracked.captured.store.requests.barriers(NAME) == []


@pytest.mark.matrix
def test_a_snapshot_that_begins_and_ends_amid_a_comparison_is_no_difference(tracked: Tracked) -> None:
    """What the log had lost comes by the snapshot, behind the barrier that tells which rows had moved."""
    with tracked.running() as (capture, judge):
        assert settled(judge, T, capture).result is Result.EQUAL
        script(judge, "source.open_state", lambda: clean_up(tracked, capture))
        script(judge, "source.identity", lambda: tracked.wait_for_target(capture, judge))
        verdict = judge.verify(T)
        assert verdict.result is not Result.DIFFERENT, verdict
        assert settled(judge, T, capture).result is Result.EQUAL


@pytest.mark.matrix
def test_snapshots_that_are_not_allowed_any_more_are_told(tracked: Tracked) -> None:
    """And once they are allowed again, the table is verified."""
    allow = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION {}"
    with tracked.running() as (capture, judge):
        assert settled(judge, T, capture).result is Result.EQUAL
        script(judge, "source.open_state", lambda: tracked(allow.format("OFF")))
        verdict = judge.verify(T)
        assert (verdict.result, verdict.reason) == (
            Result.NOT_VERIFIED,
            "a table is verified in a SNAPSHOT transaction, which the database does not allow.",
        )
        assert "ALLOW_SNAPSHOT_ISOLATION ON" in (verdict.action or "")
        tracked(allow.format("ON"))
        assert judge.verify(T).result is Result.EQUAL


# -- what is wrong is found ----------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_row_that_somebody_changed_in_the_target_is_found_and_repaired_while_others_change(tracked: Tracked) -> None:
    """And no other is called different."""
    draw = random.Random(5)

    def write(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            id_ = draw.randrange(1, ROWS)
            tracked(
                draw.choice(
                    (
                        f"UPDATE {T} SET n = n + 1 WHERE id = {id_}",
                        f"UPDATE {T} SET id = -id WHERE id IN ({id_}, -{id_})",
                        f"DELETE FROM {T} WHERE id = {id_}; INSERT INTO {T} VALUES ({id_}, 1, N'again')",
                        f"IF NOT EXISTS (SELECT 1 FROM {T} WHERE id = {id_}) INSERT INTO {T} (id) VALUES ({id_})",
                    )
                )
            )

    def spoil(stored: StoredTable) -> None:
        [row] = [row for row in stored.rows if row.values["id"] == 0]
        row.values = {**row.values, "note": "spoiled"}

    with tracked.running() as (capture, judge):
        assert settled(judge, T, capture).result is Result.EQUAL
        with in_background(write):
            for _ in range(2):
                tracked.warehouse.tamper(T, "an UPDATE", spoil)
                found = settled(judge, T, capture)
                assert (found.counts, [one.key for one in found.differences]) == (Counts(different=1), [{"id": "0"}])
                repaired = Repair(judge=judge, rows_max=100).repair(found)
                assert repaired.counts == Counts(), repaired
        assert settled(judge, T, capture).result is Result.EQUAL
