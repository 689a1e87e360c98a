"""What drivers make of bytes that PostgreSQL cannot hold, from a server of canned answers: the seventh digit, NUL, halves of pairs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyodbc
import pytest

from replicator.config import Secret
from replicator.model.errors import UnsupportedTypeError
from replicator.model.schema import TableId
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.connecting.connection import Connector, Session
from replicator_source_sqlserver.rows import columns_of, decoded
from replicator_source_sqlserver.types import DeclaredType, spec_of
from replicator_testbed.sqlserver.drivers import Driver, library
from replicator_testbed.sqlserver.outcomes import Bound, Count, Outcome, Rows
from replicator_testbed.sqlserver.server import TdsServer
from replicator_testbed.sqlserver.sqltypes import parse
from replicator_testbed.sqlserver.tds.requests import TransactionCall
from replicator_testbed.sqlserver.tds.temporal import DAYS_MAX, TICKS_PER_DAY, Moment
from replicator_testbed.sqlserver.tds.tokens import Column

TURTLE = "\N{TURTLE}"
ANSWERS: dict[str, tuple[str, Sequence[Any]]] = {
    "times": ("time(7)", [Moment(0, TICKS_PER_DAY - 1), Moment(0, 19), Moment(0, 9), None]),
    "moments": ("datetime2(7)", [Moment(DAYS_MAX, TICKS_PER_DAY - 1), Moment(0, 19), Moment(0, 9), None]),
    "texts": ("nvarchar(20)", ["a\0b", "\0", "", " ", TURTLE]),
    "long texts": ("nvarchar(max)", ["a\0b", "\0", "", *("x" * n + TURTLE + "ż" for n in range(2000, 4200))]),
    "bytes": ("varbinary(max)", [b"", b"\0", bytes(range(256)) * 100]),
    "half": ("nvarchar(20)", ["secret\ud800"]),
    "long half": ("nvarchar(max)", ["secret\udc00"]),
    "amounts": ("decimal(18,4)", [Decimal("1234.5678"), Decimal("-0.0001")]),
}


class Canned:
    """A session that has an answer for each of the statements above, and does nothing else."""

    database = "shop"
    is_in_transaction = False

    def run(self, batch: str, parameters: Sequence[Bound] = ()) -> list[Outcome]:
        if batch not in ANSWERS:
            return [Count()]
        kind, values = ANSWERS[batch]
        return [Rows([Column("c", parse(kind))], [(value,) for value in values])]

    def transaction(self, call: TransactionCall) -> list[Outcome]:
        raise NotImplementedError

    def undeclared(self, batch: str) -> Rows:
        raise NotImplementedError

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[TdsServer]:
    with TdsServer(lambda _: Canned()) as server:
        yield server


@pytest.fixture(params=Driver)
def session(server: TdsServer, request: pytest.FixtureRequest) -> Iterator[Session]:
    """As the source opens it."""
    account: dict[str, Any] = {"user": "u", "password": Secret("p"), "database": "shop"}
    config = SqlServerConfig(
        host=server.host, port=server.port, driver=str(library(request.param)), tls="disable", **account
    )
    connector = Connector(config)
    session = Session(connector)
    yield session
    session.close()
    connector.close()


def read(session: Session, query: str, declared: DeclaredType) -> list[Any]:
    spec = spec_of(declared)
    assert spec is not None
    (values,) = columns_of(session.rows("reading", query))
    read: list[Any] = decoded(values, spec, name="c").to_pylist()
    return read


def test_a_seventh_digit_is_cut_and_never_rounded(session: Session) -> None:
    kept = [dt.time.max, dt.time(0, 0, 0, 1), dt.time(0), None]
    assert read(session, "times", DeclaredType(name="time", scale=7)) == kept
    days = [dt.date.max, dt.date.min, dt.date.min]
    moments = [*(dt.datetime.combine(day, time) for day, time in zip(days, kept, strict=False) if time), None]
    assert read(session, "moments", DeclaredType(name="datetime2", scale=7)) == moments


def test_texts_and_bytes_are_whole(session: Session) -> None:
    """A character of two units stands at every position where a driver's buffer may end."""
    assert read(session, "texts", DeclaredType(name="nvarchar", max_length=40)) == ANSWERS["texts"][1]
    assert read(session, "long texts", DeclaredType(name="nvarchar", max_length=-1)) == ANSWERS["long texts"][1]
    assert read(session, "bytes", DeclaredType(name="varbinary", max_length=-1)) == ANSWERS["bytes"][1]


@pytest.mark.parametrize("query", ["half", "long half"])
def test_half_of_a_pair_fails_its_table(session: Session, query: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught, session.use("reading", table=TableId("dbo", "t")) as connection:
        connection.rows(query)
    assert (caught.value.code, caught.value.table) == ("unrepresentable_value", "dbo.t")
    assert "secret" not in str(caught.value)
    assert session.rows("reading", "texts")


def test_amounts_are_those_of_the_server_in_any_locale(session: Session) -> None:
    """The driver's module leaves out what is no digit and not the decimal separator of the process's locale."""
    before = pyodbc.getDecimalSeparator()
    pyodbc.setDecimalSeparator(",")
    try:
        amounts = read(session, "amounts", DeclaredType(name="decimal", precision=18, scale=4))
    finally:
        pyodbc.setDecimalSeparator(before)
    assert amounts == ANSWERS["amounts"][1]
