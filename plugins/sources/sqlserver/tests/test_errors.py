"""Messages as both drivers wrote them; texts in other languages have the same numbers."""

from __future__ import annotations

import pyodbc
import pytest

from replicator.model.errors import (
    AccessDeniedError,
    CurableError,
    FatalError,
    ReplicatorError,
    SchemaConflictError,
    SourceUnavailableError,
    TableError,
    UnsupportedTypeError,
)
from replicator.model.schema import TableId
from replicator_source_sqlserver.connecting.errors import facts_of, number_of, translate
from replicator_source_sqlserver.tracking.log import _tables_kept


class DriverError(Exception):
    """As pyodbc's: state and text."""


MISSING = "[42S02] [FreeTDS][SQL Server]Invalid object name 'dbo.t(5)'. (208) (SQLExecDirectW)"
TWO = (
    "[42000] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]Ungültiger Objektname 'dbo.t'. (208) (SQLExecDirectW);"
    " [42000] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]Statement(s) could not be prepared. (8180)"
)
NET = (
    '[42000] A .NET Framework error occurred during execution of user-defined routine or aggregate "hierarchyid": 24001:'
    " SqlHierarchyId.Parse failed because the input string '/secret/' is not a valid string representation. (6522) (SQLFetch)"
)
DOWN = "[08001] [FreeTDS][SQL Server]Unable to connect to data source (0) (SQLDriverConnect)"


@pytest.mark.parametrize(
    ("text", "number"), [(MISSING, 208), (TWO, 208), (DOWN, None), ("of varchar(10) to int", None)]
)
def test_the_servers_number_is_the_first_that_a_function_answered_with(text: str, number: int | None) -> None:
    assert number_of(DriverError("42S02", text)) == number


@pytest.mark.parametrize(
    ("state", "text", "table", "kind", "code"),
    [
        ("42S02", MISSING, "dbo.t", SchemaConflictError, "table_changed"),
        ("42S02", MISSING, None, FatalError, "source_error"),
        ("08001", DOWN, None, SourceUnavailableError, "source_unavailable"),
        ("40001", "[40001] … was deadlocked … (1205) (SQLFetch)", "dbo.t", SourceUnavailableError, "deadlock"),
        ("42000", "[42000] Lock request time out period exceeded. (1222) (SQLFetch)", "dbo.t", SourceUnavailableError, "lock_timeout"),
        ("HYT00", "[HYT00] [FreeTDS]Timeout expired (0) (SQLExecDirectW)", "dbo.t", SourceUnavailableError, "statement_timeout"),
        ("28000", "[28000] Login failed for user 'sa'. (18456) (SQLDriverConnect)", None, AccessDeniedError, "access_denied"),
        ("42000", "[42000] The SELECT permission was denied … (229) (SQLExecDirectW)", "dbo.t", AccessDeniedError, "access_denied"),
        ("01000", "[01000] [unixODBC]Can't open lib 'x' : file not found (0) (SQLDriverConnect)", None, FatalError, "driver_missing"),
        ("42000", "[42000] Divide by zero error encountered. (8134) (SQLFetch)", "dbo.t", TableError, "source_error"),
    ],
)  # fmt: skip
def test_who_acts_is_told_by_number_or_state(
    state: str, text: str, table: str | None, kind: type[ReplicatorError], code: str
) -> None:
    error = translate(DriverError(state, text), doing="reading a chunk", table=table)
    assert (type(error), error.code) == (kind, code)
    assert error.message.startswith("reading a chunk: ")


@pytest.mark.parametrize(
    "text",
    [
        "[22018] Conversion failed when converting the nvarchar value 'secret' to data type int. (245) (SQLFetch)",
        "[22018] Conversion failed when converting the nvarchar value 'it's secret' to data type int. (245) (SQLFetch)",
        NET,
    ],
)
def test_no_value_of_a_row_is_shown(text: str) -> None:
    shown = facts_of(DriverError("22018", text))
    assert "secret" not in shown
    assert number_of(DriverError("22018", text)) is not None
    assert "(SQLFetch)" in shown


@pytest.mark.parametrize(("table", "kind"), [("dbo.t", UnsupportedTypeError), (None, FatalError)])
def test_a_text_that_is_none_concerns_its_table(table: str | None, kind: type[ReplicatorError]) -> None:
    with pytest.raises(UnicodeDecodeError) as failed:
        "secret\ud800".encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    error = translate(failed.value, doing="reading a chunk", table=table)
    assert type(error) is kind
    assert "UTF-16" in error.message
    assert "secret" not in str(error)
    assert "s\\x00e" not in str(error)


@pytest.mark.parametrize("number", [207, 208, 22105])
def test_a_tracked_table_that_changed_under_its_read_is_read_by_a_new_reader(number: int) -> None:
    """Altered, dropped, or tracked no longer: an error that was let pass would be a round without its changes."""
    with pytest.raises(SourceUnavailableError) as told, _tables_kept(TableId("dbo", "t")):
        raise pyodbc.ProgrammingError("42S02", f"[42S02] [FreeTDS][SQL Server]It changed. ({number}) (SQLExecDirectW)")
    assert told.value.code == "table_changed_under_snapshot"


def test_a_tracked_table_that_may_not_be_read_fails_alone_and_continues_once_it_may() -> None:
    denied = "[42000] [FreeTDS][SQL Server]The SELECT permission was denied on the object 't'. (229) (SQLExecDirectW)"
    with pytest.raises(CurableError) as told, _tables_kept(TableId("dbo", "t")):
        raise pyodbc.ProgrammingError("42000", denied)
    assert told.value.table == "dbo.t"


def test_any_other_error_of_the_driver_is_raised_as_it_is() -> None:
    with pytest.raises(pyodbc.ProgrammingError), _tables_kept(TableId("dbo", "t")):
        raise pyodbc.ProgrammingError("42000", "[42000] [FreeTDS][SQL Server]Deadlocked. (1205) (SQLExecDirectW)")
