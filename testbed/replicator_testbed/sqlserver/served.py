"""A model in a process of its own, which is told nothing but T-SQL: `python -m replicator_testbed.sqlserver.served`.

It prints a connection string, and ends when its input does. It shows that tests which run on any server run on one that is not theirs.
"""

from __future__ import annotations

import sys

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.model import SqlServerModel


def main() -> None:
    """Serve one."""
    with PostgresServer.distribution() as postgres, SqlServerModel(postgres) as model:
        model.capture.start()
        at = model.address
        sys.stdout.write(f"SERVER={at.host},{at.port};UID={at.user};PWD={at.password};DATABASE={at.database}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
