"""`snapshot --changed-only` after the log was lost, of tables that changed in the gap as such: each is equal in the end, or has failed.

All tables lose their log at once, in one replicator: what became of one table must not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from replicator.model.documents.status import TableState, TableStatus
from replicator_testbed.databases import Database
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testbed.target_tables import TargetTables
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
        mysql: The statements of MySQL and MariaDB, where theirs are others.
        mysql_ends, mysql_twin: How the tables end there, where that is another way.
    """

    name: str
    statements: tuple[str, ...]
    has_key: bool = True
    ddl: tuple[str, str] | None = None
    ends: str = EQUAL
    twin: str = ""
    mysql: tuple[str, ...] = ()
    mysql_ends: str = ""
    mysql_twin: str = ""

    def before(self) -> Iterator[str]:
        """The tables as they were replicated."""
        key = ", PRIMARY KEY (id)" if self.has_key else ""
        for name, rows in (("{t}", ROWS), ("{t}_b", OTHER_ROWS))[: 2 if self.twin else 1]:
            yield f"CREATE TABLE {name} ({COLUMNS}{key})"
            yield f"INSERT INTO {name} VALUES {rows}"

    def of(self, statements: tuple[str, ...]) -> Iterator[str]:
        """The statements, with the table's name."""
        return (statement.replace("{t}", self.name) for statement in statements)

    def outcomes(self, database: Database) -> dict[str, str]:
        """How each target table ends."""
        found = {self.name: self.ends} | ({f"{self.name}_b": self.twin} if self.twin else {})
        if not isinstance(database, ScratchDatabase):
            found |= {self.name: self.mysql_ends} if self.mysql_ends else {}
            found |= {f"{self.name}_b": self.mysql_twin} if self.mysql_twin else {}
        return found


def _renamed(*names: tuple[str, str]) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE {{t}}{old} RENAME TO {{t}}{new}" for old, new in names)


def _altered(change: str, *then: str) -> tuple[str, ...]:
    return (f"ALTER TABLE {{t}} {change}", *then)


REFILLED: Final = f"INSERT INTO {{t}} VALUES {OTHER_ROWS}"
SWAPPED: Final = _renamed(("", "_x"), ("_b", ""), ("_x", "_b"))
OTHER_KEY: Final = _altered("DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "INSERT INTO {t} VALUES (1, 99, 'again')")
GAPS: Final = (
    Gap(name="dropped", statements=("DROP TABLE {t}",), ends="table_missing"),
    Gap(name="dropped_stop", statements=("DROP TABLE {t}",), ddl=("drop_table", "stop"), ends="ddl_stop"),
    Gap(name="made_again", statements=("DROP TABLE {t}", f"CREATE TABLE {{t}} ({COLUMNS}, PRIMARY KEY (id))", REFILLED)),
    Gap(
        name="made_otherwise",
        statements=("DROP TABLE {t}", "CREATE TABLE {t} (w int PRIMARY KEY)", "INSERT INTO {t} VALUES (1)"),
        mysql_ends="ddl_stop",
    ),
    Gap(
        name="made_unfit",
        statements=("DROP TABLE {t}", f"CREATE TABLE {{t}} ({COLUMNS})", REFILLED),
        ends="no_primary_key",
        mysql_ends="ddl_stop",
    ),
    Gap(name="swapped", statements=SWAPPED, twin=EQUAL),
    Gap(name="swapped_keyless", statements=SWAPPED, has_key=False, twin=EQUAL),
    Gap(name="swapped_wider", statements=(*SWAPPED, *_altered("ADD extra int", "UPDATE {t} SET extra = id")), twin=EQUAL),
    Gap(name="took_its_name", statements=("DROP TABLE {t}", *_renamed(("_b", ""))), twin="table_renamed", mysql_twin="table_missing"),
    Gap(
        name="renamed",
        statements=(*_renamed(("", "_now")), "UPDATE {t}_now SET v = 0 WHERE id = 1"),
        mysql_ends="table_missing",
    ),
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
        mysql_ends="ddl_stop",
    ),
    Gap(
        name="wider_key",
        statements=_altered("ALTER id TYPE bigint", "INSERT INTO {t} VALUES (5000000000, 1, 'x')"),
        mysql=_altered("MODIFY id bigint NOT NULL", "INSERT INTO {t} VALUES (5000000000, 1, 'x')"),
    ),
    Gap(name="retyped", statements=_altered("ALTER v TYPE text"), mysql=_altered("MODIFY v text"), ends="ddl_stop"),
    Gap(
        name="retyped_followed",
        statements=_altered("ALTER v TYPE text"),
        mysql=_altered("MODIFY v text"),
        ddl=("change_type", "apply"),
    ),
    Gap(
        name="rewritten",
        statements=_altered("ALTER v TYPE int USING v + 1"),
        mysql=("UPDATE {t} SET v = v + 1", *_altered("FORCE")),
    ),
    Gap(
        name="other_key",
        statements=_altered("DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)", "INSERT INTO {t} VALUES (1, 99, 'again')"),
        mysql=OTHER_KEY,
        ends="ddl_stop",
    ),
    Gap(
        name="other_key_followed",
        statements=_altered("DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)", "INSERT INTO {t} VALUES (1, 99, 'again')"),
        mysql=OTHER_KEY,
        ddl=("change_key", "apply"),
    ),
    Gap(
        name="key_gone_followed",
        statements=_altered("DROP CONSTRAINT {t}_pkey, REPLICA IDENTITY FULL", REFILLED),
        mysql=_altered("DROP PRIMARY KEY", REFILLED),
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
FEW: Final = tuple(gap for gap in GAPS if gap.name in {"dropped", "refilled", "added"})
ENGINES: Final = ("postgresql", "mariadb", "mysql")
CREATED: Final = ("CREATE TABLE created (id int PRIMARY KEY, v int)", "INSERT INTO created VALUES (1, 2)")


@pytest.fixture
def gaps() -> tuple[Gap, ...]:
    """What becomes of tables; a test that is parametrised by it has others."""
    return GAPS


@pytest.fixture
def rig(tmp_path: Path, origin: Database, target: str, gaps: tuple[Gap, ...]) -> Iterator[Rig]:
    """A replicator of all tables of the database, which are there."""
    for gap in gaps:
        origin.execute(*gap.of(tuple(gap.before())))
        if not gap.has_key and isinstance(origin, ScratchDatabase):
            origin.execute(*(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in gap.outcomes(origin)))
    rig = Rig(folder=tmp_path, database=origin, extra=QUICK)
    rig.write_to(target)
    rig.write_yaml(settings={rig.full_name(gap.name): {"ddl": dict([gap.ddl])} for gap in gaps if gap.ddl})
    yield rig
    rig.kill()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "target", "gaps"),
    [
        pytest.param("mariadb", "duckdb", FEW, marks=pytest.mark.matrix, id="mariadb-duckdb-few"),
        *(pytest.param(kind, "delta", FEW, marks=pytest.mark.matrix, id=f"{kind}-few") for kind in ENGINES),
        *(pytest.param(kind, "delta", GAPS, marks=pytest.mark.matrix, id=f"{kind}-all") for kind in ENGINES),
    ],
)
def test_whatever_became_of_tables_in_the_gap_they_are_equal_or_have_failed(
    rig: Rig, origin: Database, target_tables: TargetTables, gaps: tuple[Gap, ...]
) -> None:
    is_mysql = not isinstance(origin, ScratchDatabase)
    rig.catch_up()
    for gap in gaps:
        origin.execute(*gap.of(gap.mysql if is_mysql and gap.mysql else gap.statements))
    origin.execute(*CREATED)
    lose_the_log(origin)
    rig.catch_up(check=1)
    rig.command("snapshot", rig.name, "--changed-only")
    # It ends by itself once nothing is left to do, and says that tables have failed.
    rig.catch_up(check=1)

    wanted = {name: ends for gap in gaps for name, ends in gap.outcomes(origin).items()} | {"created": EQUAL}
    found = {table.table.partition(".")[2]: table for table in status_of(rig)}
    assert {name: outcome(rig, found[name], target_tables) if name in found else "" for name in wanted} == wanted


def status_of(rig: Rig) -> tuple[TableStatus, ...]:
    status = rig.status()
    assert status is not None, "the replicator is stored"
    return status.tables


def outcome(rig: Rig, table: TableStatus, target_tables: TargetTables) -> str:
    """EQUAL by a comparison that has no part in the product; else what the table has failed with, or how it stands."""
    if table.error is not None:
        return table.error.code
    name = table.table.partition(".")[2]
    source = (table.source_table or table.table).partition(".")[2]
    columns = rig.database.columns(source)
    wanted = target_tables.wanted(rig.database.rows(source, columns))
    if wanted != target_tables.found(rig.database.namespace, name, columns):
        return f"{table.state.value} and different"
    return EQUAL if table.state is TableState.STREAMING else f"{table.state.value} and equal"
