"""A machine that changes rows and definitions of real tables at random, and what both sides must agree on at each pause.

A real source, the real capture and the real apply, in this process; the target is the one in memory. Reproducible by its seed, except for
how the threads interleave.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pytest

from replicator.apply import Apply
from replicator.journal import JournalReader
from replicator.model.processes.reports import ApplyReport, Report
from replicator.model.schema import TableId
from replicator.plugins.target import DeltaTarget
from replicator.state import table_life
from replicator.state.records import RequestKind, Stage
from replicator_testbed.databases import Database
from replicator_testbed.journals.captured import Captured, RunningCapture
from replicator_testbed.workloads.schema_dialects import LITERALS, NAMES, OTHER, WIDER, Dialect, Shape
from replicator_testing.defaults import AT_ONCE, apply_settings
from replicator_testing.waiting import wait_until

TABLES: Final = ("t1", "t2", "t3", "t4")
"""Those that the patterns match."""

KINDS: Final = (
    "add", "add", "add", "drop", "rename", "swap", "again", "widen", "widen", "retype", "default", "key", "truncate",
    "remake", "create", "drop_table", "rename_table", "swap_tables", "replace", "identity", "type_again",
)  # fmt: skip
"""What is done to definitions, each as often as it is listed."""
AND_BACK: Final = ("rename_and_back", "retype_and_back", "table_and_back", "add_and_drop")
"""What leaves the name that was there, or nothing: who reads only the end sees no change, or another one."""

Rows = Mapping[TableId, tuple[Sequence[str], Counter[tuple[Any, ...]]]]


class _KilledError(BaseException):
    """The process of the capture is killed here."""


class _UntilApplied:
    """Stops apply as soon as it has nothing left to do."""

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done, self._has_reported = is_done, False

    def should_stop(self) -> bool:
        return self._has_reported and self._is_done()

    def wait(self, timeout_s: float) -> None:
        del timeout_s

    def announce(self, event: str, **_: Any) -> None:
        del event

    def report(self, report: Report) -> None:
        self._has_reported = isinstance(report, ApplyReport)


@dataclass(eq=False, slots=True, kw_only=True)
class SchemaMachine:
    """One run.

    Attributes:
        found: The rows of the target's tables, and their columns, by the names of the tables in the target.
        make_target: A target for a uuid and an epoch, as every new process would make it.
        plain: A value of the source as `found` has it.
    """

    database: Database
    dialect: Dialect
    captured: Captured
    draw: random.Random
    make_target: Callable[[str, int], DeltaTarget[Any]]
    found: Callable[[TableId, Sequence[str]], Counter[tuple[Any, ...]]]
    plain: Callable[[Any], Any] = lambda value: value
    kinds: Sequence[str] = KINDS
    shapes: dict[str, Shape] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    # --- what it does -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the first tables: one with a key, one without."""
        for name, key in (("t1", ("id",)), ("t2", ())):
            self._create(name, key)
            self._run(*(self._insert(name) for _ in range(15)))

    def run(self, steps: int) -> None:
        """So many steps, in several lives of the capture, which is told to stop or killed between them; then both sides are equal."""
        left, is_equal = steps, False
        while left or not is_equal:
            is_equal = False
            with self._living() as running:
                life = min(left, self.draw.randint(5, 20))
                for _ in range(life):
                    self._step(running)
                left -= life
                if not left or self.draw.random() < 0.6:
                    is_equal = self.check(running)
            # While it is down.
            down = min(left, self.draw.randint(0, 4))
            for _ in range(down):
                self._step(None)
            left -= down

    def run_stopped(self, rounds: int) -> None:
        """So many rounds of every kind of change, with rows between, while no capture runs; both sides are equal after each."""
        kinds = [*dict.fromkeys(self.kinds), *AND_BACK]
        with self._living(may_kill=False) as running:
            assert self.check(running)
        for _ in range(rounds):
            for kind in self.draw.sample(kinds, len(kinds)):
                self._change_rows()
                name = self.draw.choice(list(self.shapes))
                is_one = kind not in AND_BACK
                for statements in [self._definition(name, kind)] if is_one else self._and_back(kind, name):
                    self._run(*statements, in_one=True)
            self._change_rows()
            with self._living(may_kill=False) as running:
                assert self.check(running)

    def check(self, running: RunningCapture) -> bool:
        """Wait until both sides are equal; false if the capture is killed meanwhile."""
        seen: list[str] = []

        def is_decided() -> bool:
            if not running.thread.is_alive():
                return True
            running.check_tables()
            self._accept()
            if not self._is_settled():
                return False
            self._apply(running)
            seen[:] = self._differences()
            return not seen

        wait_until(is_decided, lambda: f"both sides are equal: {seen}; {self._told()}", timeout_s=60)
        return running.thread.is_alive()

    def _accept(self) -> None:
        """Accept the changes at which tables have stopped."""
        store, name = self.captured.store, self.captured.name
        asked = [request for request in store.requests.open(name) if request.kind is RequestKind.ACCEPT]
        stopped = [str(r.table) for r in store.tables(name) if table_life.waits_for_acceptance(r)]
        if stopped and not asked:
            self.captured.request(RequestKind.ACCEPT, tables=stopped)
            self.done.append(f"accept {stopped}")

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, running: RunningCapture | None) -> None:
        chance = self.draw.random()
        if chance < 0.68:
            self._change_rows()
        elif chance < 0.93:
            self._change_definition()
        elif running is not None:
            names = [str(record.table) for record in self.captured.store.tables(self.captured.name)]
            self.captured.request(RequestKind.SNAPSHOT, tables=[self.draw.choice(names)] if names else [])
            self.done.append("snapshot")

    def _change_rows(self) -> None:
        statements = []
        for _ in range(self.draw.randint(1, 4)):
            table = self.draw.choice(list(self.shapes))
            statements.append(self._change(table))
        self._run(*statements)

    def _change(self, table: str) -> str:
        draw, shape = self.draw, self.shapes[table]
        some = draw.randint(1, max(2, shape.next_id))
        names = [name for name in shape.kinds if draw.random() < 0.7]
        match draw.choice(["insert", "update", "update", "move", "delete"]):
            case "update" if names:
                sets = ", ".join(f"{self.dialect.quoted(n)} = {draw.choice(LITERALS[shape.kinds[n]])}" for n in names)
                return f"UPDATE {table} SET {sets} WHERE id = {some}"
            case "move":
                shape.next_id += 1
                return f"UPDATE {table} SET id = {shape.next_id} WHERE id = {some}"
            case "delete":
                return f"DELETE FROM {table} WHERE id = {some}"
            case _:
                return self._insert(table)

    def _insert(self, table: str) -> str:
        shape = self.shapes[table]
        shape.next_id += 1
        names = [name for name in shape.kinds if self.draw.random() < 0.8]
        columns = ", ".join(["id", "k", *map(self.dialect.quoted, names)])
        values = [str(shape.next_id), str(shape.next_id % 7)]
        values += [self.draw.choice(LITERALS[shape.kinds[name]]) for name in names]
        return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(values)})"

    def _and_back(self, kind: str, name: str) -> Iterator[Sequence[str]]:
        """Return what is run, one transaction after the other."""
        draw, dialect, shape = self.draw, self.dialect, self.shapes[name]
        free = draw.choice([column for column in NAMES if column not in shape.kinds] or ["extra"])
        some = draw.choice([column for column, type_ in shape.kinds.items() if type_ in OTHER] or [""])
        match kind:
            case "rename_and_back" if shape.kinds:
                some = draw.choice(list(shape.kinds))
                one, other = dialect.quoted(some), dialect.quoted(free)
                shape.kinds[free] = shape.kinds.pop(some)
                yield [f"ALTER TABLE {name} RENAME COLUMN {one} TO {other}"]
                yield [self._insert(name), self._change(name)]
                shape.kinds[some] = shape.kinds.pop(free)
                yield [f"ALTER TABLE {name} RENAME COLUMN {other} TO {one}"]
            case "retype_and_back" if some:
                before = shape.kinds.pop(some)
                yield dialect.retyped(name, some, draw.choice(OTHER[before]))
                yield [self._insert(name), self._change(name)]
                shape.kinds[some] = before
                yield dialect.retyped(name, some, before)
            case "table_and_back":
                yield [f"ALTER TABLE {name} RENAME TO elsewhere"]
                yield [self._insert(name).replace(f"INTO {name} ", "INTO elsewhere ")]
                yield [f"ALTER TABLE elsewhere RENAME TO {name}"]
            case _:
                yield [f"ALTER TABLE {name} {dialect.added(draw, shape, free)}"]
                yield [self._insert(name), self._change(name)]
                del shape.kinds[free]
                yield [f"ALTER TABLE {name} DROP COLUMN {dialect.quoted(free)}"]

    def _change_definition(self) -> None:
        name = self.draw.choice(list(self.shapes))
        statements = list(self._definition(name))
        if self.dialect.is_transactional and self.draw.random() < 0.5:
            statements = self._transaction(statements)
        self._run(*statements, in_one=True)
        self._select()

    def _transaction(self, statements: Sequence[str]) -> list[str]:
        """The same among changes of rows and other definitions, some of which are rolled back. No rows precede them: tables may be new."""
        found = list(statements)
        for _ in range(self.draw.randint(1, 3)):
            before = deepcopy(self.shapes)
            more = [self._change(self.draw.choice(list(self.shapes))) for _ in range(self.draw.randint(0, 2))]
            if self.draw.random() < 0.5:
                name = self.draw.choice(list(self.shapes))
                more += self._definition(name)
                more += [self._change(self.draw.choice(list(self.shapes))) for _ in range(self.draw.randint(0, 2))]
            if self.draw.random() < 0.3:
                more = ["SAVEPOINT s", *more, "ROLLBACK TO SAVEPOINT s"]
                self.shapes = before
            found += more
        return found

    def _definition(self, name: str, kind: str = "") -> Sequence[str]:  # noqa: C901, PLR0911, PLR0912 - one branch for each kind
        draw, dialect, shape = self.draw, self.dialect, self.shapes[name]
        free = [column for column in NAMES if column not in shape.kinds]
        some = draw.choice(list(shape.kinds)) if shape.kinds else None
        spare = [table for table in TABLES if table not in self.shapes]
        match kind or draw.choice(self.kinds):
            case "drop" if some:
                del shape.kinds[some]
                return [f"ALTER TABLE {name} DROP COLUMN {dialect.quoted(some)}"]
            case "rename" if some and free:
                new = draw.choice(free)
                kind = shape.kinds.pop(some)
                shape.kinds[new] = kind
                return [f"ALTER TABLE {name} RENAME COLUMN {dialect.quoted(some)} TO {dialect.quoted(new)}"]
            case "swap" if len(shape.kinds) > 1:
                a, b = draw.sample(list(shape.kinds), 2)
                statements = dialect.swapped(name, a, b, shape)
                shape.kinds[a], shape.kinds[b] = shape.kinds[b], shape.kinds[a]
                return statements
            case "again" if some:
                del shape.kinds[some]
                return [
                    f"ALTER TABLE {name} DROP COLUMN {dialect.quoted(some)}, {dialect.added(draw, shape, some)}",
                ]
            case "widen" if some and shape.kinds[some] in WIDER:
                shape.kinds[some] = draw.choice(WIDER[shape.kinds[some]])
                return dialect.retyped(name, some, shape.kinds[some])
            case "retype" if some and shape.kinds[some] in OTHER:
                shape.kinds[some] = draw.choice(OTHER[shape.kinds[some]])
                return dialect.retyped(name, some, shape.kinds[some])
            case "default" if some and shape.kinds[some] != "text":
                value = draw.choice(LITERALS[shape.kinds[some]])
                return [f"ALTER TABLE {name} ALTER COLUMN {dialect.quoted(some)} SET DEFAULT {value}"]
            case "key":
                before = shape.key
                shape.key = draw.choice([key for key in ((), ("id",), ("id", "k"), ("k", "id")) if key != before])
                return dialect.rekeyed(name, before, shape.key)
            case "identity":
                return dialect.identified(draw, name, shape)
            case "type_again" if some:
                return dialect.retyped(name, some, shape.kinds[some])
            case "truncate":
                return [f"TRUNCATE TABLE {name}"]
            case "remake":
                other = Shape(key=draw.choice(((), ("id",))), kinds={"a": draw.choice(list(dialect.types))})
                other.next_id = shape.next_id
                self.shapes[name] = other
                return [f"DROP TABLE {name}", *dialect.created(name, other), self._insert(name)]
            case "create" if spare:
                key = draw.choice(((), ("id",)))
                self.shapes[spare[0]] = Shape(key=key, kinds={"a": "vc40", "b": "int"})
                return [*dialect.created(spare[0], self.shapes[spare[0]]), self._insert(spare[0])]
            case "drop_table" if len(self.shapes) > 2:
                del self.shapes[name]
                return [f"DROP TABLE {name}"]
            case "rename_table" if spare:
                new_name = draw.choice(spare)
                self.shapes[new_name] = self.shapes.pop(name)
                return [f"ALTER TABLE {name} RENAME TO {new_name}"]
            case "swap_tables" if len(self.shapes) > 1:
                a, b = draw.sample(list(self.shapes), 2)
                self.shapes[a], self.shapes[b] = self.shapes[b], self.shapes[a]
                return dialect.tables_swapped(a, b)
            case "replace" if free:
                return dialect.replaced(name, dialect.added(draw, shape, draw.choice(free)))
            case _ if free:
                return [f"ALTER TABLE {name} {dialect.added(draw, shape, draw.choice(free))}"]
            case _:
                return []

    def _create(self, name: str, key: tuple[str, ...]) -> None:
        shape = Shape(key=key, kinds={"a": "vc40", "b": "int"})
        self._run(*self.dialect.created(name, shape))
        self.shapes[name] = shape

    def _run(self, *statements: str, in_one: bool = False) -> None:
        """Run them; `in_one`: in one transaction, where the source knows such of definitions."""
        self.done.extend(statements)
        with self.database.connect(autocommit=not in_one) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            if in_one:
                connection.commit()

    # --- lives --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _living(self, *, may_kill: bool = True) -> Iterator[RunningCapture]:
        """A life of the capture, from what the configuration selects by now; its patterns match `TABLES`."""
        self._select()
        kill = self.draw.randint(1, 30) if may_kill and self.draw.random() < 0.3 else 0
        # Killed while it runs, or where it seals once more at its end.
        with suppress(_KilledError), pytest.MonkeyPatch.context() as patch, self.captured.running() as running:
            self.done.append("start")
            if kill:
                patch.setattr(self.captured.store, "seal", self._killing(kill, is_sealed=self.draw.random() < 0.5))
            yield running
        self.done.append("stop")

    def _select(self) -> None:
        self.captured.tables[:] = [TableId(self.database.namespace, name) for name in sorted(self.shapes)]

    def _killing(self, number: int, *, is_sealed: bool) -> Callable[..., None]:
        """What seals in place of the store's, and ends the capture at the seal of this number: before it, or behind it."""
        seal, left = self.captured.store.seal, [number]

        def killing(*arguments: Any, **named: Any) -> None:
            left[0] -= 1
            if not left[0] and not is_sealed:
                raise _KilledError
            seal(*arguments, **named)
            if not left[0]:
                self.done.append("kill")
                raise _KilledError

        return killing

    def _apply(self, running: RunningCapture) -> None:
        """Apply what there is. A table may stop meanwhile, and capture may be killed: then there is nothing to wait for."""
        captured, epoch = self.captured, running.lease.epoch
        record = captured.store.replicator(captured.name)
        assert record is not None
        with closing(self.make_target(record.uuid, epoch)) as target:
            apply = Apply(
                target,
                captured.store,
                JournalReader(captured.store, captured.name),
                name=captured.name,
                uuid=record.uuid,
                epoch=epoch,
                settings=apply_settings(AT_ONCE),
            )
            apply.run(
                _UntilApplied(lambda: self._is_applied() or not (running.thread.is_alive() and self._is_settled()))
            )

    def _is_applied(self) -> bool:
        store, name = self.captured.store, self.captured.name
        applied = store.applied(name)
        tracked = {record.table for record in store.tables(name) if table_life.is_replicated(record)}
        return all(
            table in applied and (applied[table].has_failed or applied[table].last_applied >= number)
            for table, number in store.journal.feed_tables(name).items()
            if table in tracked
        )

    # --- comparing ----------------------------------------------------------------------------------------------------

    def _tracked(self) -> Mapping[str, TableId]:
        """By the name in the source: the name in the target, of tables that stream."""
        records = self.captured.store.tables(self.captured.name)
        names = {}
        for record in records:
            if record.stage is Stage.STREAMING:
                source = getattr(record, "source_table", None) or record.table
                names[source.name] = record.table
        return names

    def _in_target(self, table: TableId, columns: Sequence[str]) -> Mapping[str, str]:
        """By the columns of the source that the target has: their names there."""
        ignored = {entry.column: entry.name for entry in self.captured.record(table).ignored}
        names = {name: ignored.get(name, name) for name in columns}
        return {name: in_target for name, in_target in names.items() if in_target is not None}

    def _is_settled(self) -> bool:
        return set(self.shapes) <= set(self._tracked())

    def _differences(self) -> list[str]:
        tracked, found = self._tracked(), list[str]()
        for name in self.shapes:
            if name not in tracked:
                found.append(f"{name}: it has a snapshot again")
                continue
            names = self._in_target(tracked[name], self.database.columns(name))
            ignored = {entry.column for entry in self.captured.record(tracked[name]).ignored if entry.type is not None}
            plains = [_in_any_type if column in ignored else _plain for column in names]
            wanted = Counter(
                tuple(plain(self.plain(value)) for plain, value in zip(plains, row, strict=True))
                for row in self.database.rows(name, list(names))
            )
            try:
                rows = Counter[tuple[Any, ...]]()
                for row, count in self.found(tracked[name], list(names.values())).items():
                    rows[tuple(plain(value) for plain, value in zip(plains, row, strict=True))] += count
            except KeyError as error:
                found.append(f"{name}: no column {error}")
                continue
            if rows != wanted:
                more, less = list((rows - wanted).items())[:3], list((wanted - rows).items())[:3]
                found.append(f"{name} ({tracked[name]}): too many {more}, missing {less}")
        return found

    def _told(self) -> str:
        store, name = self.captured.store, self.captured.name
        records = [
            (str(r.table), r.incarnation, r.stage.value, r.error and r.error.message) for r in store.tables(name)
        ]
        applied = [(str(t), a.state.value, a.error and a.error.message) for t, a in store.applied(name).items()]
        return f"{records}; {applied}; did {self.done}"


def _plain(value: Any) -> Any:
    """A day that the target keeps as such is the same as its first moment."""
    is_day = isinstance(value, datetime) and (value.hour, value.minute, value.second, value.microsecond) == (0, 0, 0, 0)
    return value.date() if is_day else value


def _in_any_type(value: Any) -> Any:
    """A value of a column whose change of type is ignored: the target has the same value in the type before."""
    value = _plain(value)
    if value is None or isinstance(value, datetime):
        return value
    text = value.isoformat() if isinstance(value, date) else str(value)
    try:
        return Decimal(text).normalize()
    except InvalidOperation:
        return text
