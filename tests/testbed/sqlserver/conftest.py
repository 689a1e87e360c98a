"""A model for each file, and connections to it through either driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyodbc
import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel

Rows = list[tuple[Any, ...]]


class Client:
    """A connection that a test asks."""

    def __init__(self, connection: pyodbc.Connection) -> None:
        self.connection = connection

    def __call__(self, statement: str, *parameters: Any) -> Rows:
        """Run a statement; the rows of its last result, or none."""
        rows: Rows = []
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement, *parameters)
            while True:
                if cursor.description:
                    rows = [tuple(row) for row in cursor.fetchall()]
                if not cursor.nextset():
                    return rows
        finally:
            cursor.close()

    def value(self, statement: str, *parameters: Any) -> Any:
        """The one value of a query."""
        ((value,),) = self(statement, *parameters)
        return value

    def error(self, statement: str, *parameters: Any) -> int:
        """The number of the error that a statement ends with: it stands in parentheses at the end of the text."""
        with pytest.raises(pyodbc.Error) as failed:
            self(statement, *parameters)
        text = str(failed.value.args[1])
        return int(text[: text.rindex(") (")].rpartition("(")[2])


@pytest.fixture(scope="module")
def model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres) as model:
        yield model


@pytest.fixture
def client(model: SqlServerModel) -> Iterator[Client]:
    connection = connect(Driver.FREETDS, model.address)
    yield Client(connection)
    connection.close()


@pytest.fixture(params=Driver)
def any_client(model: SqlServerModel, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Through each of the two drivers."""
    connection = connect(request.param, model.address)
    yield Client(connection)
    connection.close()


@pytest.fixture
def other(model: SqlServerModel) -> Iterator[Client]:
    """A second session."""
    connection = connect(Driver.FREETDS, model.address)
    yield Client(connection)
    connection.close()
