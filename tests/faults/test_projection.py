"""Columns that are left out, masked and renamed: through snapshot, log, schema changes, other settings and repair, judged from outside."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from replicator.model.documents.status import ProjectionState
from replicator_testbed.canaries import Canaries
from replicator_testbed.databases import Database
from replicator_testbed.rig import Rig

CANARIES: Final = Canaries("SSN", "MAIL", "NOTE", "DEFAULT", "PAGE", "KEY")
KEY: Final = f"a key, with (brackets), {CANARIES.core('KEY')}"
SETTINGS: Final[Mapping[str, Any]] = {
    "*.people": {
        "columns": {"exclude": ["SSN", "*_secret"]},
        "mask": {
            "*mail*": "hmac(${env:MASK_KEY}, id=k1)",
            "phone": "last(2)",
            "born": "date(year)",
            "salary": "bucket(1000)",
            "note": "redact",
            "rating": None,
        },
        "rename": {"nick": "nickname"},
    },
    "*.visits": {"columns": {"exclude": ["ssn"]}, "mask": {"page": "sha256"}},
}
People = dict[int, dict[str, Any]]


@pytest.fixture
def rig(tmp_path: Path, kind: str, origin: Database) -> Iterator[Rig]:
    """A replicator of two tables with what must not leave the source: one has a key, the other has none."""
    origin.execute(
        "CREATE TABLE people (id int PRIMARY KEY, ssn varchar(60), email varchar(60) NOT NULL, phone varchar(20), born date,"
        " salary int, note varchar(60), rating int, nick varchar(20))",
        "CREATE TABLE visits (page varchar(60), ssn varchar(60), seconds int)",
    )
    if kind == "postgresql":
        origin.execute("ALTER TABLE visits REPLICA IDENTITY FULL")
    rig = Rig(folder=tmp_path, database=origin, tables=["people", "visits"], environ={"MASK_KEY": KEY})
    rig.write_to("duckdb")
    rig.write_yaml(settings=SETTINGS)
    yield rig
    rig.kill()


def person(number: int, **other: Any) -> dict[str, Any]:
    core = CANARIES.core
    return {
        "id": number,
        "ssn": f"{core('SSN')} {number}",
        "email": f"{core('MAIL')}{number}@x",
        "phone": f"070 {number:04}",
        "born": date(1950 + number % 50, 1 + number % 12, 1 + number % 28),
        "salary": number * 777 - 5000,
        "note": None if number % 3 == 0 else f"{core('NOTE')} {number}",
        "rating": number % 5,
        "nick": f"n{number}",
        **other,
    }


def projected(row: Mapping[str, Any]) -> dict[str, Any]:
    """A person as the target must have it, without the product's code."""
    digest = hmac.new(KEY.encode(), row["email"].encode(), hashlib.sha256).hexdigest()
    return {
        "id": row["id"],
        "email": f"k1:{digest}",
        "phone": "*" * len(row["phone"])
        if len(row["phone"]) <= 2
        else "*" * (len(row["phone"]) - 2) + row["phone"][-2:],
        "born": row["born"].replace(month=1, day=1),
        "salary": row["salary"] // 1000 * 1000,
        "note": None if row["note"] is None else "***",
        "rating": None,
        "nickname": row["nick"],
    }


def insert(database: Database, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    def literal(value: Any) -> str:
        return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"

    names = ", ".join(rows[0])
    values = ", ".join(f"({', '.join(map(literal, row.values()))})" for row in rows)
    database.execute(f"INSERT INTO {table} ({names}) VALUES {values}")


def rows_of(rig: Rig, table: str) -> list[dict[str, Any]]:
    """The rows of a target's table, without the columns that are ours."""
    with duckdb.connect(str(rig.duckdb), read_only=True) as connection:
        found = connection.execute(f'SELECT * FROM "{rig.database.namespace}"."{table}"').to_arrow_table().to_pylist()
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


def people_of(rig: Rig) -> People:
    return {row["id"]: row for row in rows_of(rig, "people")}


def wanted(source: Mapping[int, Mapping[str, Any]]) -> People:
    return {number: projected(row) for number, row in source.items()}


def leaks(rig: Rig) -> set[tuple[str, str]]:
    """What must not be there: in any file but the target's own, and in what commands say."""
    if rig.store is not None:
        # Who reads the files of an open SQLite database takes its locks away.
        rig.store.close()
        rig.store = None
    said = [
        rig.command("status", rig.name, "--json").stdout,
        rig.command("history", rig.name, "--json").stdout,
        rig.command("verify", rig.name, "--show-values", check=None).stdout,
        rig.command("validate", str(rig.file), check=None).stdout,
        rig.command("preview", str(rig.file), rig.full_name("people"), "--json").stdout,
        rig.command("preview", str(rig.file), rig.full_name("visits")).stdout,
        rig.output(),
    ]
    found = {("what commands say", name) for text in said for name in CANARIES.found(text)}
    found |= {
        ("the target", name) for table in ("people", "visits") for name in CANARIES.found(repr(rows_of(rig, table)))
    }
    return found | CANARIES.found_in(rig.home)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_nothing_that_is_left_out_or_masked_leaves_the_source(rig: Rig, origin: Database) -> None:
    source = {number: person(number) for number in range(1, 40)}
    pages = [{"page": f"{CANARIES.core('PAGE')}{n % 3}", "ssn": CANARIES.core("SSN"), "seconds": n} for n in range(9)]
    insert(origin, "people", list(source.values()))
    insert(origin, "visits", pages)
    rig.catch_up()
    assert people_of(rig) == wanted(source)
    hashed = [{"page": hashlib.sha256(str(p["page"]).encode()).hexdigest(), "seconds": p["seconds"]} for p in pages]
    assert sorted(rows_of(rig, "visits"), key=repr) == sorted(hashed, key=repr)

    # Changes of the log, of rows and of the table: a column of an excluded name, and one that a mask's pattern covers.
    core = CANARIES.core
    origin.execute(
        f"UPDATE people SET email = '{core('MAIL')}new@x', note = NULL WHERE id = 1",
        "UPDATE people SET phone = '1', salary = -1 WHERE id = 2",
        "DELETE FROM people WHERE id = 3",
        f"DELETE FROM visits WHERE page = '{core('PAGE')}0' AND seconds = 0",
        f"ALTER TABLE people ADD COLUMN new_secret varchar(60) DEFAULT '{core('DEFAULT')}1'",
        f"ALTER TABLE people ADD COLUMN work_mail varchar(60) DEFAULT '{core('DEFAULT')}2'",
        f"UPDATE people SET new_secret = '{core('SSN')}', work_mail = '{core('MAIL')}w' WHERE id = 4",
    )
    source[1] |= {"email": f"{core('MAIL')}new@x", "note": None}
    source[2] |= {"phone": "1", "salary": -1}
    del source[3]
    rig.catch_up()

    def work_mail(number: int) -> str:
        text = f"{core('MAIL')}w" if number == 4 else f"{core('DEFAULT')}2"
        return f"k1:{hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()}"

    assert people_of(rig) == {n: {**row, "work_mail": work_mail(n)} for n, row in wanted(source).items()}
    assert len(rows_of(rig, "visits")) == len(pages) - 1
    assert leaks(rig) == set()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_other_settings_reach_rows_that_are_there_already(rig: Rig, origin: Database) -> None:
    source = {number: person(number) for number in range(1, 20)}
    insert(origin, "people", list(source.values()))
    rig.write_yaml(settings={"*.people": {"mask": {"phone": "last(2)"}}})
    rig.catch_up()
    assert people_of(rig)[1]["ssn"] == source[1]["ssn"]

    rig.write_yaml(settings=SETTINGS)
    rig.command("reload", str(rig.file))
    rig.catch_up()
    assert people_of(rig) == wanted(source)

    process = rig.start()
    rig.wait_for_status(lambda status: all(t.projection is not ProjectionState.PENDING for t in status.tables), process)
    assert rig.stop(process) == 0
    assert leaks(rig) == set()

    # A column that was left out comes back with its values.
    rig.write_yaml(
        settings={"*.people": {key: value for key, value in SETTINGS["*.people"].items() if key != "columns"}}
    )
    rig.command("reload", str(rig.file))
    rig.catch_up()
    assert people_of(rig) == {n: {**row, "ssn": source[n]["ssn"]} for n, row in wanted(source).items()}


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_rename_that_takes_a_column_out_of_its_mask_stops_the_table(rig: Rig, origin: Database) -> None:
    insert(origin, "people", [person(1)])
    rig.catch_up()
    rename = "ALTER TABLE people RENAME COLUMN note TO remark"
    origin.execute(rename, f"UPDATE people SET remark = '{CANARIES.core('NOTE')}' WHERE id = 1")
    rig.catch_up(check=1)
    table = rig.table("people")
    assert table.error is not None
    assert table.error.code == "projection_lost"
    assert people_of(rig) == wanted({1: person(1)})

    # Asking for the table as it is does not take its protection away either.
    rig.command("snapshot", rig.name, rig.full_name("people"))
    rig.catch_up(check=1)
    assert "remark" not in people_of(rig)[1]

    settings = {
        **SETTINGS,
        "*.people": {**SETTINGS["*.people"], "mask": {**SETTINGS["*.people"]["mask"], "remark": "redact"}},
    }
    rig.write_yaml(settings=settings)
    rig.command("reload", str(rig.file))
    rig.command("snapshot", rig.name, rig.full_name("people"))
    rig.catch_up()
    assert people_of(rig)[1]["remark"] == "***"
    assert leaks(rig) == set()
