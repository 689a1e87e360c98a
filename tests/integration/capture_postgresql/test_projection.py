"""Columns that are left out and masked: nothing of them is written, whatever happens to the table."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from replicator.config import TablesConfig
from replicator.model.events import DDLEvent
from replicator.projection.rules import rules_for
from replicator.state.records import RequestKind, Stage
from replicator_testbed.canaries import Canaries
from replicator_testbed.journals.captured import Captured
from replicator_testbed.postgresql.captures import Make, table
from replicator_testbed.postgresql.servers import ScratchDatabase

CANARIES: Final = Canaries("SSN", "MAIL", "DEFAULT", "PAGE", "TOKEN")
SETTINGS: Final[Mapping[str, Any]] = {
    "columns": {"exclude": ["*ssn*"]},
    "mask": {"*mail*": "sha256", "page": "redact"},
    "rename": {"nick": "nickname"},
}
SSN: Final = CANARIES.core("SSN")
MAIL: Final = CANARIES.core("MAIL")
PAGE: Final = CANARIES.core("PAGE")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_settings(captured: Captured, settings: Mapping[str, Any]) -> None:
    found = TablesConfig(settings={"*.*": settings}).settings
    captured.settings = replace(captured.settings, columns=lambda table: rules_for(table, found))


@pytest.fixture
def captured(database: ScratchDatabase, make: Make) -> Captured:
    """A table with a key and one without, of which values must not leave the source."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, ssn text, mail text NOT NULL, nick text)",
        f"INSERT INTO t SELECT i, '{SSN}' || i, '{MAIL}' || i, 'n' || i FROM generate_series(1, 25) i",
        "CREATE TABLE visits (page text, ssn text, seconds int)",
        "ALTER TABLE visits REPLICA IDENTITY FULL",
        f"INSERT INTO visits SELECT '{PAGE}' || i % 3, '{SSN}', i % 2 FROM generate_series(1, 20) i",
    )
    found = make(database, "t", "visits")
    with_settings(found, SETTINGS)
    return found


def people(mails: Mapping[int, str]) -> Counter[tuple[Any, ...]]:
    return Counter({(number, sha(mail), f"n{number}"): 1 for number, mail in mails.items()})


def leaks(captured: Captured) -> set[tuple[str, str]]:
    return CANARIES.found_in(captured.folder)


def test_nothing_of_left_out_and_masked_columns_is_written(captured: Captured, database: ScratchDatabase) -> None:
    t, visits = table("t"), table("visits")
    mails = {number: f"{MAIL}{number}" for number in range(1, 26)}
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            f"UPDATE t SET mail = '{MAIL}new', ssn = '{SSN}x' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            f"UPDATE visits SET seconds = 9 WHERE page = '{PAGE}1' AND seconds = 1",
            f"ALTER TABLE t ADD ssn2 text DEFAULT '{CANARIES.core('DEFAULT')}'",
            f"UPDATE t SET ssn2 = '{SSN}' WHERE id = 3",
        )
        captured.catch_up(running)
        mails[1] = f"{MAIL}new"
        del mails[2]
        assert captured.rows(t) == people(mails)
        pages = [(i % 3, i % 2) for i in range(1, 21)]
        assert captured.rows(visits) == Counter(("***", 9 if (page, s) == (1, 1) else s) for page, s in pages)
        # A mask's pattern covers a column before its first value, and the value that older rows get.
        default = CANARIES.core("DEFAULT")
        database.execute(
            f"ALTER TABLE t ADD work_mail text DEFAULT '{default}'", f"UPDATE t SET work_mail = '{MAIL}w' WHERE id = 3"
        )
        captured.catch_up(running)
        (event,) = [
            e for e in captured.events(t) if isinstance(e, DDLEvent) and e.fill is not None and e.fill.num_columns
        ]
        assert event.fill is not None
        assert event.fill.to_pylist() == [{"work_mail": sha(default)}]
        assert (3, sha(f"{MAIL}3"), "n3", sha(f"{MAIL}w")) in captured.rows(t)
    assert leaks(captured) == set()


def test_other_settings_are_followed_where_the_log_is_opened_again(
    captured: Captured, database: ScratchDatabase
) -> None:
    t = table("t")
    mails = {number: f"{MAIL}{number}" for number in range(1, 26)}
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    with_settings(captured, {**SETTINGS, "mask": {"mail": "last(2)"}})
    with captured.running() as running:
        running.wait_until(
            lambda: any(one.mask == "last(2)" for one in captured.record(t).projected), "the settings are followed"
        )
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert captured.record(t).incarnation == 1
        assert captured.rows(t) == Counter(
            {(n, "*" * (len(mail) - 2) + mail[-2:], f"n{n}"): 1 for n, mail in mails.items()}
        )


def test_a_table_whose_column_would_lose_its_mask_stays_stopped(captured: Captured, database: ScratchDatabase) -> None:
    t = table("t")
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute("ALTER TABLE t RENAME mail TO contact", f"UPDATE t SET contact = '{MAIL}' WHERE id = 1")
        for kind in (None, RequestKind.ACCEPT, RequestKind.SNAPSHOT, RequestKind.RECREATE):
            if kind is not None:
                request = captured.request(kind, tables=[str(t)])
                running.wait_until(partial(captured.is_done, request), f"{kind} is answered")
            running.wait_until(lambda: captured.stage(t) is Stage.FAILED, f"it stops after {kind}")
            error = captured.record(t).error
            assert error is not None
            assert error.code == "projection_lost"
        assert captured.rows(t) == people({number: f"{MAIL}{number}" for number in range(1, 26)})
    with_settings(captured, {**SETTINGS, "mask": {**SETTINGS["mask"], "contact": "null"}})
    request = captured.request(RequestKind.SNAPSHOT, tables=[str(t)])
    with captured.running() as running:
        running.wait_until(lambda: captured.is_done(request), "a snapshot has begun")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert set(captured.rows(t)) == {(number, None, f"n{number}") for number in range(1, 26)}
    assert leaks(captured) == set()


def test_a_comparison_does_not_stand_for_what_it_cannot_compare(captured: Captured, database: ScratchDatabase) -> None:
    """Of masked columns a comparison finds neither changes that were lost, nor values from before the mask."""
    t, visits = table("t"), table("visits")
    with_settings(captured, {})
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    database.execute(f"UPDATE t SET mail = '{MAIL}lost' WHERE id = 1")
    with_settings(captured, {"mask": {"mail": "sha256"}})
    captured.request(RequestKind.RESTART, changed_only=True)
    with captured.running() as running:
        running.wait_until(lambda: captured.stage(visits) is Stage.COMPARING, "it is compared")
        captured.wait_for_streaming(running, t)
        mails = {number: sha(f"{MAIL}{number}") for number in range(2, 26)} | {1: sha(f"{MAIL}lost")}
        assert {row[0]: row[2] for row in captured.rows(t)} == mails


def test_a_table_of_the_same_name_has_its_own_columns(captured: Captured, database: ScratchDatabase) -> None:
    """Neither the order of its columns, nor their numbers, make another table's column one that was known."""
    t = table("t")
    with_settings(captured, {**SETTINGS, "new_columns": "exclude"})
    with captured.running() as running:
        captured.wait_for_streaming(running)
        database.execute(
            "DROP TABLE t",
            "CREATE TABLE t (id int PRIMARY KEY, token text, nick text, ssn text, mail text)",
            f"INSERT INTO t VALUES (1, '{CANARIES.core('TOKEN')}', 'n1', '{SSN}', '{MAIL}1')",
        )
        request = captured.request(RequestKind.RECREATE, tables=[str(t)])
        running.wait_until(lambda: captured.is_done(request), "a snapshot has begun")
        captured.wait_for_streaming(running)
        captured.catch_up(running)
        assert captured.rows(t) == Counter({(1, "n1", sha(f"{MAIL}1")): 1})
    assert leaks(captured) == set()


def test_comments_and_defaults_of_protected_columns_are_not_kept(captured: Captured, database: ScratchDatabase) -> None:
    t, text = table("t"), CANARIES.core("DEFAULT")
    database.execute(
        f"COMMENT ON COLUMN t.ssn IS '{text}'",
        f"COMMENT ON COLUMN t.mail IS '{text}'",
        f"ALTER TABLE t ALTER ssn SET DEFAULT '{text}', ALTER nick SET DEFAULT 'a word'",
        "COMMENT ON COLUMN t.nick IS 'a word'",
    )
    with captured.running() as running:
        captured.wait_for_streaming(running)
        captured.catch_up(running)
    assert leaks(captured) == set()
    record = captured.record(t)
    assert record.schema is not None
    assert record.schema.column("nick").comment == "a word"
    # Those of columns that are protected from now on are forgotten, also where no row is read again.
    with_settings(captured, {"columns": {"exclude": ["*ssn*", "nick"]}, "mask": SETTINGS["mask"]})
    with captured.running() as running:
        running.wait_until(lambda: "nick" in captured.record(t).projection.left_out, "the settings are followed")
        captured.catch_up(running)
        assert "a word" not in repr(captured.record(t))
