"""`python -m replicator_testbed.sqlserver.conformance`: a server's answers about its change data capture, as JSON."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyodbc

from replicator_source_sqlserver.connecting.errors import facts_of
from replicator_testbed.sqlserver.conformance.asking import SCHEMA, ConformanceError, Scratch, ask, remove, to_json
from replicator_testbed.sqlserver.conformance.probes import PROBES

_ABOUT: Final = f"""
Ask a SQL Server how its change data capture behaves, and print its answers as JSON. The Replicator's own tests run on a model of a SQL
Server: where a real one answers differently, the model is wrong. Please report the file.

The authors never ran this on a real SQL Server: they have none. They ran it on their model only. Use a database for tests.

It makes the schema {SCHEMA} with about a hundred small tables, captures most, changes rows, and removes all. If change data capture is
off for the database, it is switched on, and off again at the end; that needs sysadmin, everything else db_owner. SQL Server Agent has to
run. It takes some minutes. Nothing outside of the schema is changed, except that the database's log and change tables grow a little.
"""
_SEPARATE: Final = frozenset({"server"})
"""What describes the server, and is no answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if answers differ from those of `--compare`, or 2 if they could not be had."""
    options = _parser().parse_args(arguments)

    def connect() -> pyodbc.Connection:
        # A pool would keep what the first connection was in.
        pyodbc.pooling = False
        return pyodbc.connect(options.dsn, autocommit=True)

    timeout = timedelta(seconds=options.timeout)
    try:
        if options.remove:
            connection = connect()
            remove(Scratch(connection, connection, timeout=timeout))
            connection.close()
            return 0
        text = to_json(ask(connect, PROBES, timeout=timeout, say=_say))
    except ConformanceError as error:
        _say(str(error))
        return 2
    except pyodbc.Error as error:
        _say(f"the server refused: {facts_of(error)}")
        return 2
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0 if options.compare is None else _compare(options.compare, text)


def _compare(path: Path, text: str) -> int:
    before, after = (_answers(one) for one in (path.read_text(encoding="utf-8"), text))
    differences = list(difflib.unified_diff(before, after, str(path), "this server", n=5, lineterm=""))
    for line in differences:
        _say(line)
    _say(f"{'no' if not differences else 'some'} answers differ from {path}")
    return int(bool(differences))


def _answers(text: str) -> list[str]:
    document = json.loads(text)
    return to_json({key: value for key, value in document.items() if key not in _SEPARATE}).splitlines()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m replicator_testbed.sqlserver.conformance",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "dsn",
        help='ODBC connection string, such as "DRIVER={ODBC Driver 18 for SQL Server};SERVER=…;DATABASE=…;UID=…;PWD=…"',
    )
    parser.add_argument("--output", type=Path, help="file for the answers; default: the standard output")
    parser.add_argument(
        "--compare", type=Path, help="answers of another server; what differs is shown, and the exit code is 1"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds that the capture job may take each time (600)"
    )
    parser.add_argument("--remove", action="store_true", help="only remove what an interrupted run left")
    return parser


if __name__ == "__main__":
    sys.exit(main())
