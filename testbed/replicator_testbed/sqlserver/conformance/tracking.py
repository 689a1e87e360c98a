"""The questions of the conformance script about change tracking.

Where the database is not tracked, it is for as long as one of them is asked. Versions are counted from the one at which a question begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from replicator_testbed.sqlserver.conformance.asking import Answer, Probe, Scratch

Answers = Mapping[str, Answer]
_CURRENT: Final = "SELECT CHANGE_TRACKING_CURRENT_VERSION()"
_IS_ON: Final = "SELECT COUNT(*) FROM sys.change_tracking_databases WHERE database_id = DB_ID()"
_CHANGES: Final = (
    "SELECT c.SYS_CHANGE_VERSION - {base}, c.SYS_CHANGE_CREATION_VERSION - {base}, c.SYS_CHANGE_OPERATION, c.{key}"
    " FROM CHANGETABLE(CHANGES {{s}}.{table}, {since}) AS c ORDER BY c.SYS_CHANGE_VERSION, c.{key}"
)
_ENABLE: Final = "ALTER TABLE {{s}}.{} ENABLE CHANGE_TRACKING"


class _Tracked:
    """A tracked table, asked from a version on."""

    def __init__(self, s: Scratch, name: str, columns: str, key: str = "id") -> None:
        self._s, self._name, self._key = s, name, key
        s.table(name, columns, captured=None)
        s.run(_ENABLE.format(name))
        self.base = self.now()

    def now(self) -> int:
        return int(self._s.value(_CURRENT))

    def version(self) -> int:
        return self.now() - self.base

    def changes(self, since: int = 0) -> list[list[Answer]]:
        query = _CHANGES.format(base=self.base, key=self._key, table=self._name, since=self.base + since)
        return self._s.rows(query)

    def noted_in(self) -> list[list[Answer]]:
        """The number of the internal table that has the keys of changed rows."""
        of = f"parent_id = OBJECT_ID(N'{{s}}.{self._name}') AND internal_type = 209"
        return self._s.rows(f"SELECT object_id FROM sys.internal_tables WHERE {of}")

    def valid(self) -> Answer:
        """The lowest valid version and the one at which tracking began."""
        of = f"OBJECT_ID(N'{{s}}.{self._name}')"
        low = self._s.value(f"SELECT CHANGE_TRACKING_MIN_VALID_VERSION({of})")
        begun = self._s.rows(f"SELECT begin_version FROM sys.change_tracking_tables WHERE object_id = {of}")
        return [None if value is None else int(value) - self.base for value in (low, begun[0][0] if begun else None)]


@contextmanager
def _tracking(s: Scratch, *names: str) -> Iterator[None]:
    """The database tracks changes; afterwards the tables are dropped, and it does what it did before."""
    was_on = bool(s.value(_IS_ON))
    if not was_on:
        s.run("ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 2 DAYS, AUTO_CLEANUP = ON)")
    yield
    for name in names:
        s.run(f"DROP TABLE IF EXISTS {{s}}.{name}")
    if not was_on:
        s.run("ALTER DATABASE CURRENT SET CHANGE_TRACKING = OFF")


def _net_changes(s: Scratch) -> Answers:
    with _tracking(s, "net"):
        t = _Tracked(s, "net", "id int NOT NULL PRIMARY KEY, n int")
        s.run("INSERT INTO {s}.net VALUES (1, 1), (2, 2), (3, 3)", "UPDATE {s}.net SET n = 9 WHERE id = 1")
        s.run("DELETE FROM {s}.net WHERE id = 2", "UPDATE {s}.net SET id = 4 WHERE id = 3")
        first = t.changes()
        later = t.version()
        s.run("INSERT INTO {s}.net VALUES (7, 7)", "DELETE FROM {s}.net WHERE id = 7")
        with s.transaction():
            s.run("DELETE FROM {s}.net WHERE id = 1", "INSERT INTO {s}.net VALUES (1, 2)")
        s.run("UPDATE {s}.net SET n = n")
        with s.transaction(on=s.second):
            s.run("INSERT INTO {s}.net VALUES (8, 8)", on=s.second)
            s.run("INSERT INTO {s}.net VALUES (9, 9)")
        return {"changes": first, "changes of later": t.changes(later), "versions": t.version()}


def _spelling(s: Scratch) -> Answers:
    with _tracking(s, "spelled"):
        t = _Tracked(s, "spelled", "id nvarchar(20) COLLATE Latin1_General_CI_AS NOT NULL PRIMARY KEY, n int")
        s.run("INSERT INTO {s}.spelled VALUES (N'a', 1)")
        later = t.version()
        s.run("UPDATE {s}.spelled SET id = N'A'")
        return {"changes": t.changes(later), "row": s.rows("SELECT id FROM {s}.spelled")}


def _invalid(s: Scratch) -> Answers:
    with _tracking(s, "lost"):
        t = _Tracked(s, "lost", "id int NOT NULL PRIMARY KEY")
        found: dict[str, Answer] = {"enabled": t.valid()}
        s.run("INSERT INTO {s}.lost VALUES (1)")
        found["changed"] = t.valid()
        noted_in = t.noted_in()
        s.run("TRUNCATE TABLE {s}.lost")
        found["noted in the same table behind TRUNCATE"] = int(t.noted_in() == noted_in)
        found["truncated"] = [t.version(), *t.valid()]
        s.run("INSERT INTO {s}.lost VALUES (2)")
        found["changes behind it"] = t.changes()
        noted_in = t.noted_in()
        s.run("ALTER TABLE {s}.lost DISABLE CHANGE_TRACKING")
        found["disabled"] = t.valid()
        found["asked all the same"] = s.outcome("SELECT * FROM CHANGETABLE(CHANGES {s}.lost, 0) AS c")
        s.run("DELETE FROM {s}.lost", _ENABLE.format("lost"))
        found["enabled again"] = [t.version(), *t.valid()]
        found["noted in the same table, out of as many"] = [int(t.noted_in() == noted_in), len(noted_in)]
        return found


def _definitions(s: Scratch) -> Answers:
    with _tracking(s, "shaped", "spare", "heap"):
        t = _Tracked(s, "shaped", "id int NOT NULL, n int, CONSTRAINT replicator_shaped PRIMARY KEY (id)")
        s.run("CREATE TABLE {s}.spare (id int NOT NULL PRIMARY KEY, n int)", "CREATE TABLE {s}.heap (id int)")
        asked = {
            "a table without a key": _ENABLE.format("heap"),
            "drop the key": "ALTER TABLE {s}.shaped DROP CONSTRAINT replicator_shaped",
            "alter the key": "ALTER TABLE {s}.shaped ALTER COLUMN id bigint NOT NULL",
            "switch": "ALTER TABLE {s}.shaped SWITCH TO {s}.spare",
            "add a column": "ALTER TABLE {s}.shaped ADD more int",
            "drop a column": "ALTER TABLE {s}.shaped DROP COLUMN n",
        }
        outcomes = {name: s.outcome(statement) for name, statement in asked.items()}
        return {**outcomes, "versions": t.version(), "changes": t.changes()}


def _snapshot(s: Scratch) -> Answers:
    if s.value("SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()") != 1:
        return {"allowed": 0}
    with _tracking(s, "still"):
        t = _Tracked(s, "still", "id int NOT NULL PRIMARY KEY")
        s.run("INSERT INTO {s}.still VALUES (1)")
        count = "SELECT COUNT(*) FROM {s}.still"
        asked = f"SELECT COUNT(*) FROM CHANGETABLE(CHANGES {{s}}.still, {t.base}) AS c"
        s.run("SET TRANSACTION ISOLATION LEVEL SNAPSHOT", on=s.second)
        with s.transaction(on=s.second):
            seen = [s.rows(_CURRENT, on=s.second)[0][0] - t.base]
            s.run("INSERT INTO {s}.still VALUES (2)")
            seen += [s.rows(query, on=s.second)[0][0] for query in (asked, count)]
            seen.append(s.rows(_CURRENT, on=s.second)[0][0] - t.base)
        s.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", on=s.second)
        return {"allowed": 1, "version, changes, rows, and version again": seen}


PROBES: Final = (
    Probe("tracking: net changes", 21, _net_changes),
    Probe("tracking: spelling of keys", 21, _spelling),
    Probe("tracking: what makes changes invalid", 22, _invalid),
    Probe("tracking: definitions", 23, _definitions),
    Probe("tracking: snapshots", 20, _snapshot),
)
