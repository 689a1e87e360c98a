"""What the server's code and words become, where the server itself takes long or much memory to say them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import DiagnosticField

from replicator.model.errors import ConfigError, FatalError, ReplicatorError, SourceUnavailableError, TableError
from replicator_source_postgresql.connecting.errors import ROW_TOO_LARGE, translate, translate_connect, translate_log

# The first as servers sent it in `test_a_row_too_large_to_be_sent_is_told_with_its_transaction_and_table`.
TOO_LARGE = [
    ("XX000", "invalid memory alloc request size 1100000003"),
    ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)"),
    ("54000", "out of memory"),
    ("XX000", "cannot enlarge string buffer containing 1073741000 bytes by 1000 more bytes"),
]


def answer(state: str, text: str) -> psycopg.Error:
    """An error as libpq hands it on."""
    fields: dict[int, bytes | None] = dict.fromkeys(DiagnosticField)
    fields |= {DiagnosticField.SQLSTATE: state.encode(), DiagnosticField.MESSAGE_PRIMARY: text.encode()}
    return psycopg.errors.lookup(state)(text, info=fields)


@pytest.mark.parametrize(("state", "text"), TOO_LARGE)
def test_a_row_that_is_too_large_to_be_sent_fails_its_table_or_stops_the_log(state: str, text: str) -> None:
    found: ReplicatorError = translate(answer(state, text), doing="reading a chunk", table="public.t")
    assert isinstance(found, TableError)
    assert (found.code, found.table) == (ROW_TOO_LARGE, "public.t")
    assert f"reading a chunk: {text} (SQLSTATE {state}). A row of the table has 1 GB or more" in found.message
    assert "replicator snapshot NAME TABLE" in (found.action or "")
    found = translate_log(answer(state, text), doing="reading the log", slot="s")
    assert isinstance(found, FatalError)
    assert (found.code, found.table) == (ROW_TOO_LARGE, None)
    assert f"reading the log: {text} (SQLSTATE {state}). A changed row has 1 GB or more" in found.message
    assert "--restart" in (found.action or "")


@pytest.mark.parametrize(
    ("state", "text", "kind", "code"),
    [
        ("XX000", "could not open relation with OID 1", TableError, "source_error"),
        ("53200", "out of memory", SourceUnavailableError, "source_unavailable"),
        ("XX000", "cache lookup failed for function 16400", SourceUnavailableError, "source_unavailable"),
    ],
)
def test_what_only_looks_like_it_is_no_row_that_is_too_large(
    state: str, text: str, kind: type[ReplicatorError], code: str
) -> None:
    found = translate(answer(state, text), doing="reading a chunk", table="public.t")
    assert isinstance(found, kind)
    assert found.code == code


@pytest.mark.parametrize("parameter", ["options", "replication"])
def test_a_connection_pooler_is_known_by_its_words(parameter: str) -> None:
    """As PgBouncer 1.18 says them."""
    words = f'connection to server at "127.0.0.1", port 6432 failed: FATAL:  unsupported startup parameter: {parameter}'
    found = translate_connect(psycopg.OperationalError(words), doing="reading the catalogue")
    assert isinstance(found, ConfigError)
    assert found.code == "connection_pooler"
    assert parameter in found.message
    assert "PostgreSQL server itself" in (found.action or "")
