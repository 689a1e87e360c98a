"""Times of the server's clock: what is right whatever becomes of it, and what is only as right as the clock is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from replicator.config import Secret
from replicator.model.errors import OffsetExpiredError
from replicator.model.guarantee import Guarantee
from replicator.plugins.source import SourceContext
from replicator_source_sqlserver import log_end as logend
from replicator_source_sqlserver.cdc import queries as capturelog
from replicator_source_sqlserver.cdc.capture import ChangeDataCapture
from replicator_source_sqlserver.cdc.marks import server_moment
from replicator_source_sqlserver.cdc.position import Position
from replicator_source_sqlserver.cdc.visibility import LsnVisibility, NotedHeads, read_visibility
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.lsn import ZERO, previous_lsn
from replicator_source_sqlserver.source import SqlServerSource
from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, library
from replicator_testbed.sqlserver.engine.permissions import EVERYWHERE
from replicator_testbed.sqlserver.world import WIDE, World, drained, shown, world_of_two

HOUR = timedelta(hours=1)
STATE = ("VIEW SERVER STATE", "VIEW SERVER PERFORMANCE STATE")


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[World]:
    with world_of_two(postgres) as two:
        yield two


def end_of_log(world: World) -> bytes | None:
    session = world.session()
    with session.use("asking") as connection:
        end = logend.log_end(connection)
    session.close()
    return end


def mark_by_time(world: World) -> str:
    session = world.session()
    with session.use("asking") as connection:
        text = world.board.add(moment=server_moment(connection))
    session.close()
    return text


def hide_server_state(world: World) -> None:
    world.model.database.permissions.change(world.model.address.user, STATE, EVERYWHERE, to=False)


@pytest.mark.matrix
def test_where_durability_is_delayed_the_end_of_the_log_is_no_mark(two: World) -> None:
    """A commit is seen there before it is in the log [DOC: control transaction durability]."""
    assert end_of_log(two) is not None
    two.execute("ALTER DATABASE CURRENT SET DELAYED_DURABILITY = ALLOWED")
    assert end_of_log(two) is None


# -- marks -------------------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_mark_is_reached_behind_everything_that_was_visible_when_it_was_made(two: World) -> None:
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    end = end_of_log(two)
    assert end is not None
    mark = two.board.add(lsn=end)
    two.model.capture.scan()
    first = drained(reader)
    assert (shown(first), first.marks) == ([("t", "INSERT", 1)], [])
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    assert drained(reader).marks == [mark]
    reader.close()


@pytest.mark.matrix
def test_a_clock_that_was_set_back_reaches_no_mark_too_early(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed before has later times than what was committed, and seen, afterwards; a page ends there."""
    monkeypatch.setattr("replicator_source_sqlserver.cdc.log._COMMITS_MAX", 1)
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.model.set_clock(-HOUR)
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    end = end_of_log(two)
    marks = [two.board.add(lsn=end), mark_by_time(two)]
    two.capture()
    seen = drained(reader)
    assert (shown(seen), seen.marks) == ([("t", "INSERT", 1), ("t", "INSERT", 2)], [])
    two.model.set_clock(timedelta(seconds=5) - HOUR)
    two.execute("INSERT INTO dbo.t (id) VALUES (3)")
    two.capture()
    assert drained(reader).marks == marks
    reader.close()


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("00000028:000001a8:0003", "00000028000001A80003"),
        ("0x00000028:000001A8:0003", "00000028000001A80003"),
        (None, None),
        ("40:424:3", None),
    ],
)
def test_an_end_of_the_log_that_is_spelled_otherwise_is_none(text: str | None, position: str | None) -> None:
    assert logend.parsed(text) == (position and bytes.fromhex(position))


# -- what is lost ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_no_clock_hides_a_loss(two: World, ahead: timedelta) -> None:
    """Whether an instance had begun at a position is told by times: of all that had, the latest is noted."""
    two.model.set_clock(ahead)
    two.enable(two.tables[0], capture_instance="dbo_t_2")
    two.model.set_clock(-2 * ahead)
    two.execute("INSERT INTO dbo.u (id) VALUES (0)")
    two.capture()
    start = two.position()
    for n in (1, 2):
        two.execute(f"INSERT INTO dbo.t (id) VALUES ({n})")
        two.capture()
    two.model.capture.raise_low_watermark(two.position().lsn)
    two.model.capture.delete_below()
    reader = two.open(start)
    with pytest.raises(OffsetExpiredError):
        drained(reader)
    reader.close()


@pytest.mark.matrix
def test_of_two_instances_that_a_clock_has_turned_round_all_changes_come(two: World) -> None:
    """The second one is older by its time."""
    reader = two.open(two.position())
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.model.set_clock(-HOUR)
    two.enable(two.tables[0], capture_instance="dbo_t_2")
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    assert shown(drained(reader)) == [("t", "INSERT", 1), ("t", "INSERT", 2)]
    reader.close()


@pytest.mark.matrix
def test_how_far_capture_has_come_is_what_the_servers_function_says(two: World) -> None:
    """[ISS: estuary/connectors #3475] It is asked four times a second, and the function is not called for it."""
    session = two.session()
    with session.use("asking") as connection:
        assert capturelog.head(connection) is None
        two.execute("INSERT INTO dbo.t (id) VALUES (1)")
        two.capture()
        ((given,),) = connection.rows("SELECT sys.fn_cdc_get_max_lsn()")
        assert capturelog.head(connection) == bytes(given)
    session.close()


# -- what a chunk saw --------------------------------------------------------------------------------------------------


def test_a_minute_is_one_of_our_own_clock(two: World) -> None:
    """The server's local clock jumps by an hour: what was committed just now is not an hour old."""
    now = [0.0]
    heads, session = NotedHeads(clock=lambda: now[0]), two.session()

    def seen() -> LsnVisibility:
        with session.use("asking") as connection:
            return read_visibility(connection, heads, has_versions=True)

    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    old = seen().captured
    now[0] = 61.0
    two.execute("INSERT INTO dbo.t (id) VALUES (2)")
    two.capture()
    two.model.set_clock(HOUR)
    assert seen().settled == old
    now[0] = 122.0
    assert seen().settled == seen().captured
    session.close()


def test_of_what_was_noted_the_last_that_is_a_minute_old_is_kept() -> None:
    now = [0.0]
    heads = NotedHeads(clock=lambda: now[0])
    assert heads.settled() is None
    for second in range(200):
        now[0] = float(second)
        heads.note(second.to_bytes(10, "big"))
        heads.note(b"\xff" * 10)
        settled = heads.settled()
        assert settled == (None if second < 60 else (second - 60).to_bytes(10, "big"))
    assert len(heads._noted) == 61


# -- what the source says ----------------------------------------------------------------------------------------------


def source(two: World, **changed: Any) -> SqlServerSource:
    address = two.model.address
    config = SqlServerConfig(
        **{
            "host": address.host, "port": address.port, "user": address.user, "password": Secret(address.password),
            "database": address.database, "driver": str(library(Driver.FREETDS)), "tls": "disable", **changed,
        }
    )  # fmt: skip
    return SqlServerSource(config, SourceContext(replicator="shop", uuid="u1", epoch=1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("knows", [True, False])
def test_without_a_mark_table_the_guarantee_rests_on_the_end_of_the_log(two: World, *, knows: bool) -> None:
    if not knows:
        hide_server_state(two)
    found = source(two, chunk_isolation="locking")
    assert found.status().guarantee is (Guarantee.FULL if knows else Guarantee.BOUNDED_WAIT)
    assert found.mark()
    assert isinstance(found._capture, ChangeDataCapture)
    assert found._capture._board.has_times is not knows
    found.close()


@pytest.mark.matrix
def test_commits_that_have_settled_are_not_waited_for(two: World) -> None:
    found = source(two, chunk_isolation="locking")
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    since = found.visibility()
    assert isinstance(since, LsnVisibility)
    assert found.status(since).waiting_for == ()
    later = LsnVisibility(settled=ZERO, captured=b"\xff" * 10)
    assert len(found.status(later).waiting_for) == 1
    assert found.status(LsnVisibility(settled=ZERO, captured=previous_lsn(since.captured))).waiting_for == ()
    found.close()


@pytest.mark.matrix
def test_the_log_begins_where_it_ends_whatever_the_clock_says(two: World) -> None:
    """Without row versions nothing has to settle."""
    two.execute("INSERT INTO dbo.t (id) VALUES (1)")
    two.capture()
    two.model.set_clock(-HOUR)
    found = source(two, chunk_isolation="locking")
    offset = found.prepare(list(two.tables), is_first=True)
    assert Position.of(offset) == two.position()
    reader = found.open_log(offset, {t: d.schema for t, d in found.describe(list(two.tables)).items()})
    assert reader.pull(WIDE).events == 0
    reader.close()
    found.close()
