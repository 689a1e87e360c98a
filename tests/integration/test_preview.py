"""`preview`: rows as they would arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replicator.cli.entry import main
from replicator_testbed.postgresql.servers import ScratchDatabase
from replicator_testbed.rig import Rig

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls `preview` of a table, with settings of it."""
    database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, amount numeric(8,2), born date, photo bytea)",
        "INSERT INTO people SELECT i, 'p' || i || '@x', i, '2000-02-03', '\\x00ff' FROM generate_series(1, 50) i",
        "CREATE TABLE visits (page text, at timestamptz)",
        "INSERT INTO visits VALUES ('a', '2024-01-31 10:00Z'), ('b', NULL)",
        "CREATE TABLE empty (id int PRIMARY KEY)",
    )

    def called(*arguments: str, settings: Mapping[str, Any] | None = None) -> Result:
        rig = Rig(folder=tmp_path, database=database, tables=["people", "visits", "empty"])
        rig.write_yaml(settings={"public.*": settings or {}})
        for name, value in rig._environ().items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(main, ["preview", str(rig.file), *arguments])

    return called


def test_rows_arrive_as_the_settings_say(call: Call) -> None:
    settings = {
        "columns": {"exclude": ["photo"]},
        "mask": {"email": "last(2)", "born": "date(year)"},
        "rename": {"amount": "sum"},
    }
    done = call("public.people", "--rows", "2", "--json", settings=settings)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [(column["name"], column["type"]) for column in document["columns"]] == [
        ("id", "int32"), ("email", "string"), ("sum", "decimal128(8,2)"), ("born", "date32[day]")
    ]  # fmt: skip
    assert document["rows"] == [
        {"id": 1, "email": "**@x", "sum": "1.00", "born": "2000-01-01"},
        {"id": 2, "email": "**@x", "sum": "2.00", "born": "2000-01-01"},
    ]


def test_people_read_a_table(call: Call) -> None:
    done = call("public.visits")
    assert done.stdout.splitlines() == [
        "page  at",
        "----  -------------------------",
        "a     2024-01-31T10:00:00+00:00",
        "b     NULL",
        "public.visits: 2 rows.",
    ]
    assert call("public.people", "--json").stdout.count('"photo": "00ff"') == 20
    assert call("public.empty").stdout.splitlines()[-1] == "public.empty: 0 rows."


@pytest.mark.parametrize(
    ("table", "settings", "code"),
    [
        ("public.peple", {}, "unknown_table"),
        ("public.people", {"mask": {"id": "sha256"}}, "key_masked"),
        ("public.people", {"mask": {"amount": "last(2)"}}, "mask_does_not_fit"),
    ],
)
def test_what_cannot_arrive_is_refused(call: Call, table: str, settings: Mapping[str, Any], code: str) -> None:
    done = call(table, settings=settings)
    assert (done.exit_code, code in done.output) == (2, True), done.output
