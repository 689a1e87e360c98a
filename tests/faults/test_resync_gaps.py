"""`snapshot --changed-only` after the log was lost, of tables that changed in the gap as such: each is equal in the end, or has failed.

All tables lose their log at once, in one replicator: what became of one table must not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from replicator.model.status import TableState, TableStatus
from replicator_testbed.databases import Database
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import DeltaLakeTables
from tests.faults.conftest import QUICK
from tests.faults.test_resync import lose_the_log

EQUAL: Final = "equal"
ROWS: Final = "(1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three'), (4, 40, NULL)"
OTHER_ROWS: Final = "(1, 11, 'one'), (3, 30, 'three'), (7, 70, 'seven')"
COLUMNS: Final = "id int NOT NULL, v int NOT NULL, note varchar(20)"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What became of a table, or two, while the log was lost. In statements `{t}` is its name.

    Attributes:
        has_key: Whether the table had one before.
        ddl: Its policies.
        ends: EQUAL, or the error that the table has failed with.
        twin: How another table, `{t}_b`, ends, which had other rows; none: there is none.
    """

    name: str
    statements: tuple[str, ...]
    has_key: bool = True
    ddl: tuple[str, str] | None = None
    ends: str = EQUAL
    twin: str = ""

    def before(self) -> Iterator[str]:
        """The tables as they were replicated."""
        key = ", PRIMARY KEY (id)" if self.has_key else ""
        for name, rows in (("{t}", ROWS), ("{t}_b", OTHER_ROWS))[: 2 if self.twin else 1]:
            yield f"CREATE TABLE {name} ({COLUMNS}{key})"
            yield f"INSERT INTO {name} VALUES {rows}"

    def of(self, statements: tuple[str, ...]) -> Iterator[str]:
        """The statements, with the table's name."""
        return (statement.replace("{t}", self.name) for statement in statements)

    @property
    def outcomes(self) -> dict[str, str]:
        """How each target table ends."""
        return {self.name: self.ends} | ({f"{self.name}_b": self.twin} if self.twin else {})


def _renamed(*names: tuple[str, str]) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE {{t}}{old} RENAME TO {{t}}{new}" for old, new in names)


def _altered(change: str, *then: str) -> tuple[str, ...]:
    return (f"ALTER TABLE {{t}} {change}", *then)


REFILLED: Final = f"INSERT INTO {{t}} VALUES {OTHER_ROWS}"
SWAPPED: Final = _renamed(("", "_x"), ("_b", ""), ("_x", "_b"))
GAPS: Final = (
    Gap(name="dropped", statements=("DROP TABLE {t}",), ends="table_missing"),
    Gap(name="dropped_stop", statements=("DROP TABLE {t}",), ddl=("drop_table", "stop"), ends="ddl_stop"),
    Gap(name="made_again", statements=("DROP TABLE {t}", f"CREATE TABLE {{t}} ({COLUMNS}, PRIMARY KEY (id))", REFILLED)),
    Gap(name="made_otherwise", statements=("DROP TABLE {t}", "CREATE TABLE {t} (w int PRIMARY KEY)", "INSERT INTO {t} VALUES (1)")),
    Gap(
        name="made_unfit",
        statements=("DROP TABLE {t}", f"CREATE TABLE {{t}} ({COLUMNS})", REFILLED),
        ends="no_primary_key",
    ),
    Gap(name="swapped", statements=SWAPPED, twin=EQUAL),
    Gap(name="swapped_keyless", statements=SWAPPED, has_key=False, twin=EQUAL),
    Gap(name="swapped_wider", statements=(*SWAPPED, *_altered("ADD extra int", "UPDATE {t} SET extra = id")), twin=EQUAL),
    Gap(name="took_its_name", statements=("DROP TABLE {t}", *_renamed(("_b", ""))), twin="table_renamed"),
    Gap(name="renamed", statements=(*_renamed(("", "_now")), "UPDATE {t}_now SET v = 0 WHERE id = 1")),
    Gap(name="emptied", statements=("TRUNCATE TABLE {t}",), has_key=False),
    Gap(name="refilled", statements=("TRUNCATE TABLE {t}", REFILLED)),
    Gap(name="added", statements=_altered("ADD extra int DEFAULT 5", "UPDATE {t} SET extra = 1 WHERE id = 2")),
    Gap(name="added_stop", statements=_altered("ADD extra int"), ddl=("add_column", "stop"), ends="ddl_stop"),
    Gap(name="lost_column", statements=_altered("DROP COLUMN note", "DELETE FROM {t} WHERE id = 2")),
    Gap(name="lost_column_keyless", statements=_altered("DROP COLUMN note", "DELETE FROM {t} WHERE id = 2"), has_key=False),
    Gap(name="column_again", statements=_altered("DROP COLUMN note", "ALTER TABLE {t} ADD note varchar(20)")),
    Gap(name="column_renamed", statements=_altered("RENAME COLUMN note TO remark", "UPDATE {t} SET remark = 'x' WHERE id = 3")),
    Gap(
        name="columns_swapped",
        statements=_altered("RENAME COLUMN v TO x", "ALTER TABLE {t} RENAME COLUMN id TO v", "ALTER TABLE {t} RENAME COLUMN x TO id"),
    ),
    Gap(
        name="wider_key",
        statements=_altered("ALTER id TYPE bigint", "INSERT INTO {t} VALUES (5000000000, 1, 'x')"),
    ),
    Gap(name="retyped", statements=_altered("ALTER v TYPE text"), ends="ddl_stop"),
    Gap(
        name="retyped_followed",
        statements=_altered("ALTER v TYPE text"),
        ddl=("change_type", "apply"),
    ),
    Gap(
        name="rewritten",
        statements=_altered("ALTER v TYPE int USING v + 1"),
    ),
    Gap(
        name="other_key",
        statements=_altered("DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)", "INSERT INTO {t} VALUES (1, 99, 'again')"),
        ends="ddl_stop",
    ),
    Gap(
        name="other_key_followed",
        statements=_altered("DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)", "INSERT INTO {t} VALUES (1, 99, 'again')"),
        ddl=("change_key", "apply"),
    ),
    Gap(
        name="key_gone_followed",
        statements=_altered("DROP CONSTRAINT {t}_pkey, REPLICA IDENTITY FULL", REFILLED),
        ddl=("change_key", "apply"),
    ),
    Gap(name="key_came", statements=_altered("ADD PRIMARY KEY (id)"), has_key=False, ends="ddl_stop"),
    Gap(
        name="key_came_followed",
        statements=_altered("ADD PRIMARY KEY (id)", "UPDATE {t} SET v = 0 WHERE id = 1"),
        has_key=False,
        ddl=("change_key", "apply"),
    ),
)  # fmt: skip
CREATED: Final = ("CREATE TABLE created (id int PRIMARY KEY, v int)", "INSERT INTO created VALUES (1, 2)")


@pytest.fixture
def rig(tmp_path: Path, origin: Database) -> Iterator[Rig]:
    """A replicator of all tables of the database, which are there."""
    for gap in GAPS:
        origin.execute(*gap.of(tuple(gap.before())))
        if not gap.has_key:
            origin.execute(*(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in gap.outcomes))
    rig = Rig(folder=tmp_path, database=origin, extra=QUICK)
    rig.write_yaml(settings={rig.full_name(gap.name): {"ddl": dict([gap.ddl])} for gap in GAPS if gap.ddl})
    yield rig
    rig.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_became_of_tables_in_the_gap_they_are_equal_or_have_failed(rig: Rig, origin: Database) -> None:
    rig.catch_up()
    for gap in GAPS:
        origin.execute(*gap.of(gap.statements))
    origin.execute(*CREATED)
    lose_the_log(origin)
    rig.catch_up(check=1)
    rig.command("snapshot", rig.name, "--changed-only")
    # It ends by itself once nothing is left to do, and says that tables have failed.
    rig.catch_up(check=1)

    wanted = {name: ends for gap in GAPS for name, ends in gap.outcomes.items()} | {"created": EQUAL}
    found = {table.table.partition(".")[2]: table for table in status_of(rig)}
    assert {name: outcome(rig, found[name]) if name in found else "" for name in wanted} == wanted


def status_of(rig: Rig) -> tuple[TableStatus, ...]:
    status = rig.status()
    assert status is not None, "the replicator is stored"
    return status.tables


def outcome(rig: Rig, table: TableStatus) -> str:
    """EQUAL by a comparison that has no part in the product; else what the table has failed with, or how it stands."""
    if table.error is not None:
        return table.error.code
    tables, name = DeltaLakeTables(rig.lake), table.table.partition(".")[2]
    source = (table.source_table or table.table).partition(".")[2]
    columns = rig.database.columns(source)
    if tables.wanted(rig.database.rows(source, columns)) != tables.found(rig.database.namespace, name, columns):
        return f"{table.state.value} and different"
    return EQUAL if table.state is TableState.STREAMING else f"{table.state.value} and equal"
