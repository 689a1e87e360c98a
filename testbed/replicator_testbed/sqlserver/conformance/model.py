"""The model as the conformance script of the source asks it. As a program it prints the model's answers.

Values of which reports disagree whether they are missing (`Hazards`) are there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.capture.rows import Hazards
from replicator_testbed.sqlserver.conformance.asking import ask, to_json
from replicator_testbed.sqlserver.conformance.probes import PROBES
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import DATABASE, SqlServerModel


@contextmanager
def answering_model(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    """A model that captures, and allows snapshots."""
    with SqlServerModel(postgres) as model:
        model.capture.hazards = Hazards(large_null_after=False, bits_null_in_deletes=False)
        connection = connect(Driver.FREETDS, model.address)
        connection.execute(f"ALTER DATABASE {DATABASE} SET ALLOW_SNAPSHOT_ISOLATION ON")
        connection.close()
        model.capture.start()
        yield model


def main() -> None:
    """Print the answers."""
    with PostgresServer.distribution() as postgres, answering_model(postgres) as model:
        answers = ask(lambda: connect(Driver.FREETDS, model.address), PROBES, timeout=timedelta(minutes=2))
    sys.stdout.write(to_json(answers))


if __name__ == "__main__":
    main()
