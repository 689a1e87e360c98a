"""The questions of the conformance script about `replicator verify`: how a server writes values, what it hashes, and whom it waits for.

The statements are those of the source itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyodbc

from replicator.model.schema import TableId
from replicator.plugins.verification import KeyRange
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.cdc.change_table import change_table
from replicator_source_sqlserver.cdc.settling import locking_query
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.connecting.errors import number_of
from replicator_source_sqlserver.snapshot.reader import read_plan
from replicator_source_sqlserver.verification.canonical import UTF8, column_text, is_float, text_bytes
from replicator_source_sqlserver.verification.state_statements import StateQueries
from replicator_testbed.sqlserver.conformance.asking import SCHEMA, Answer, Probe, Scratch
from replicator_testbed.sqlserver.conformance.types import TYPES

Answers = Mapping[str, Answer]

MORE: Final[Sequence[tuple[str, str, str]]] = (
    ("decimal(5,5)", "0.5", "-0.00001"),
    ("varchar(20) COLLATE Latin1_General_100_CI_AS_SC_UTF8", "N'żółw 🐢'", "N'a '"),
    ("varchar(20) COLLATE Polish_CI_AS", "N'żółw'", "N'Ż'"),
    ("varchar(300)", "REPLICATE('x', 256)", "REPLICATE('x', 257)"),
    ("nvarchar(200)", "REPLICATE(N'ż', 128)", "REPLICATE(N'ż', 129)"),
    ("datetime2(7)", "'1969-12-31 23:59:59.9999995'", "'1970-01-01 00:00:00.0000019'"),
    ("datetimeoffset(7)", "'1969-12-31 23:59:59.9999995 -02:00'", "'0001-01-01 14:00:00 +14:00'"),
    ("datetime", "'1969-12-31T23:59:59.997'", "'2024-02-29T01:02:03.123'"),
    ("date", "'1969-12-31'", "'2024-02-29'"),
)
"""Besides those of `types`: values that are written in an odd way."""


def _forms(s: Scratch) -> Answers:
    answers: dict[str, Answer] = {
        "collation": s.value(f"SELECT CAST(COLLATIONPROPERTY(N'{UTF8}', N'CodePage') AS int)")
    }
    for number, (kind, *values) in enumerate((*TYPES, *MORE), start=1):
        name = f"form_{number}"
        made = s.outcome(f"CREATE TABLE {{s}}.{name} (id int NOT NULL PRIMARY KEY, v {kind} NULL)")
        if made != "done":
            answers[f"{kind} {number}"] = made
            continue
        for row, value in enumerate([*values, "NULL"]):
            s.run(f"INSERT INTO {{s}}.{name} VALUES ({row}, {value})")
        spec = _table(s, name).specs.get("v")
        if spec is None or is_float(spec):
            answers[f"{kind} {number}"] = "not written by the server"
            continue
        forms = {
            form: [
                _text(value)
                for (value,) in s.rows(
                    f"SELECT {text_bytes(column_text('v', spec, is_key=is_key))} FROM {{s}}.{name} ORDER BY id"
                )
            ]
            for form, is_key in (("in a row", False), ("in a key", True))
            if not is_key or spec.key_value is not None
        }
        answers[f"{kind} {number}"] = forms
    return answers


def _sums(s: Scratch) -> Answers:
    s.table(
        "sums",
        "a int NOT NULL, at datetime2(3) NOT NULL, note nvarchar(max) NULL, n decimal(9,2) NULL, PRIMARY KEY (a, at)",
    )
    for a, at, note in (
        (1, "2024-01-01", "żółw"),
        (1, "2024-02-29", "ab "),
        (2, "1969-12-31", ""),
        (3, "0001-01-01", "x" * 300),
    ):
        s.run(f"INSERT INTO {{s}}.sums VALUES ({a}, '{at}', N'{note}', {a} / 4.0)")
    queries = StateQueries.of(read_plan(_table(s, "sums"), _table(s, "sums").schema), ["a", "at", "note", "n"])
    rows, _ = queries.rows([""])
    found = s.rows(rows)
    ids = sorted(bytes(id_).hex() for id_, _ in found)
    bound = tuple(_text(value) or "" for value in s.rows(queries.bound(["a", "at"], None, 2))[0])
    within = KeyRange(("a", "at"), bound, ("3", "0"))
    return {
        "rows": sorted([bytes(id_).hex(), bytes(hash_).hex()] for id_, hash_ in found),
        "groups": {
            str(digits): sorted(
                [int(row[0]), int(row[1]), str(int(row[2])), str(int(row[3]))]
                for row in s.rows(queries.checksums(digits))
            )
            for digits in (0, 1, 3, 4)
        },
        "of two ids": sorted(bytes(id_).hex() for id_, _ in s.rows(queries.rows(ids[1:3])[0])),
        "of two groups": sorted(bytes(id_).hex() for id_, _ in s.rows(queries.rows([ids[0][:3], ids[-1][:3]])[0])),
        "a bound": list(bound),
        "in a range": sorted(bytes(id_).hex() for id_, _ in s.rows(queries.rows([""], None, within)[0])),
        "texts": [[_text(value) for value in row[1:]] for row in s.rows(queries.texts(ids[:1]))],
    }


def _locks(s: Scratch) -> Answers:
    kinds = {"locks": "", "locks_heap": "NONCLUSTERED"}
    for name, kind in kinds.items():
        s.table(name, f"id int NOT NULL PRIMARY KEY {kind}, a int")
        s.run(*(f"INSERT INTO {{s}}.{name} VALUES ({number}, {number})" for number in (1, 2, 3)))
    s.wait_for_capture()
    s.run("SET LOCK_TIMEOUT 0", on=s.second)
    answers: dict[str, Answer] = {kind or "CLUSTERED": _locks_of(s, name) for name, kind in kinds.items()}
    s.run("SET LOCK_TIMEOUT -1", on=s.second)
    return answers


def _locks_of(s: Scratch, name: str) -> dict[str, Answer]:
    """Whether the second connection waits for who writes a row, by what is done to it; the key's index may be another than the table."""
    of_table = f"SELECT [__$start_lsn] FROM cdc.{{s}}_{name}_CT ORDER BY [__$start_lsn]"
    low, _, high = (row[0] for row in s.rows(of_table))
    table = _table(s, name)
    query = locking_query(table, change_table(table.instances[-1].name), table.specs)
    answers: dict[str, Answer] = {"nobody writes": _outcome(s, query, low, high)}
    for doing, statement in (
        ("a row that was captured is changed", f"UPDATE {{s}}.{name} SET a = 9 WHERE id = 2"),
        ("a row that was captured is deleted", f"DELETE FROM {{s}}.{name} WHERE id = 3"),
        ("another row is changed", f"UPDATE {{s}}.{name} SET a = 9 WHERE id = 1"),
    ):
        s.run("BEGIN TRANSACTION", statement)
        answers[doing] = _outcome(s, query, low, high)
        s.run("ROLLBACK TRANSACTION")
    return answers


def _outcome(s: Scratch, query: str, *parameters: Any) -> str:
    """How many rows the second connection gets, or the number of the error."""
    try:
        return f"{len(s.rows(query, *parameters, on=s.second))} rows"
    except pyodbc.Error as error:
        number = number_of(error)
        if number is None:
            raise
        return f"error {number}"


def _table(s: Scratch, name: str) -> CatalogTable:
    (table,) = read_tables(Connection(s.first), [TableId(SCHEMA, name)]).values()
    return table


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()


VERIFYING: Final = (
    Probe("canonical forms", 26, _forms),
    Probe("checksums", 26, _sums),
    Probe("locks of captured rows", 27, _locks),
)
