"""The table that every benchmark reads, and the changes made to it: twelve columns of about 200 bytes a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replicator_testbed.postgresql.programs import find_distribution
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.scratch_servers import ServerProgramsNotFoundError

TABLE: Final = "items"
PUBLICATION: Final = "bench"

COLUMNS: Final = """
    id bigint PRIMARY KEY, customer int NOT NULL, product int NOT NULL, quantity int NOT NULL, amount numeric(12,2) NOT NULL,
    name varchar(64) NOT NULL, changed_at timestamp(6) NOT NULL, note text, document json NOT NULL, score double precision NOT NULL,
    is_active boolean NOT NULL, status varchar(16) NOT NULL
"""

# The columns of COLUMNS for row `i`; the note is NULL in every tenth.
_VALUES: Final = """
    i, (i * 7919 % 100003)::int, (i * 104729 % 5003)::int, (i % 97)::int, ((i * 31) % 1000000) / 100.0, 'name ' || md5(i::text),
    timestamp '2024-01-01' + i * interval '1.000001 second',
    CASE WHEN i % 10 = 0 THEN NULL ELSE 'note ' || md5((i + 1)::text) || ' of some length' END,
    json_build_object('kind', i % 7, 'tag', 'tag' || i % 1000), i * 0.37, i % 3 = 0, (ARRAY['new', 'paid', 'sent', 'returned'])[1 + i % 4]
"""

_SETTINGS: Final = {
    "shared_buffers": "1GB",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "wal_sender_timeout": "0",
}


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for one benchmark: the machine's own, or the embedded one."""
    try:
        find_distribution()
    except ServerProgramsNotFoundError:
        described = PostgresServer.embedded(settings=_SETTINGS)
    else:
        described = PostgresServer.distribution(settings=_SETTINGS)
    with described as running:
        yield running


def create_table(database: ScratchDatabase, *, identity: str = "DEFAULT") -> None:
    """Make the empty table and its publication."""
    database.execute(
        f"CREATE TABLE {TABLE} ({COLUMNS})",
        f"ALTER TABLE {TABLE} REPLICA IDENTITY {identity}",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}",
    )


def insert(database: ScratchDatabase, first: int, count: int, *, rows_per_transaction: int | None = None) -> None:
    """Insert rows `first` … `first + count - 1`, by default in one transaction."""
    step = rows_per_transaction or count
    with database.connect() as connection:
        for low in range(first, first + count, step):
            high = min(low + step, first + count) - 1
            connection.execute(f"INSERT INTO {TABLE} SELECT {_VALUES} FROM generate_series({low}::bigint, {high}) AS i")


def update(database: ScratchDatabase, first: int, count: int, *, rows_per_statement: int) -> None:
    """Update rows, each statement a transaction."""
    with database.connect() as connection:
        for low in range(first, first + count, rows_per_statement):
            high = min(low + rows_per_statement, first + count) - 1
            connection.execute(
                f"UPDATE {TABLE} SET amount = amount + 1, quantity = quantity + 1, changed_at = changed_at + interval '1 day',"
                f" status = 'updated' WHERE id BETWEEN {low} AND {high}"
            )


def delete(database: ScratchDatabase, first: int, count: int, *, rows_per_statement: int) -> None:
    """Delete rows, each statement a transaction."""
    with database.connect() as connection:
        for low in range(first, first + count, rows_per_statement):
            high = min(low + rows_per_statement, first + count) - 1
            connection.execute(f"DELETE FROM {TABLE} WHERE id BETWEEN {low} AND {high}")


def transact(database: ScratchDatabase, first: int, count: int, *, old_rows: int) -> None:
    """Run `count` small transactions: one insert and three updates of single rows each; the server itself loops, which costs no client."""
    body = f"""
        DECLARE i bigint := {first};
        BEGIN
          WHILE i < {first + count} LOOP
            INSERT INTO {TABLE} VALUES ({_VALUES});
            UPDATE {TABLE} SET quantity = quantity + 1 WHERE id = 1 + i * 7919 % {old_rows};
            UPDATE {TABLE} SET amount = amount + 1 WHERE id = 1 + i * 104729 % {old_rows};
            UPDATE {TABLE} SET status = 'paid' WHERE id = i;
            COMMIT;
            i := i + 1;
          END LOOP;
        END
    """
    database.execute(f"DO $$ {body} $$")
