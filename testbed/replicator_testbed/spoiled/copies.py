"""Reads the rows of a target table, and replaces them by others, as somebody could: without the product and without Spark."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from replicator_testbed.delta import read_delta, without_views
from replicator_testbed.spoiled.corruptions import Held, held, whole_numbers
from replicator_testbed.spoiled.tables import Row, SpoiledTable
from replicator_testbed.target_tables import with_duckdb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PHYSICAL: Final = "delta.columnMapping.physicalName"


class Copy(Protocol):
    """One target table."""

    def how(self, table: SpoiledTable) -> Mapping[str, Held]:
        """How it holds the columns of the source's table."""

    def rows(self) -> Sequence[Row]:
        """All of it."""

    def replace(self, rows: Sequence[Row]) -> None:
        """Make it have these rows and no others."""


@dataclass(slots=True)
class DeltaCopy:
    """A Delta table on this machine, without checkpoints."""

    path: Path

    def how(self, table: SpoiledTable) -> Mapping[str, Held]:
        """By the types in which delta-rs reads it."""
        schema = self.schema()
        return {name: held(type_.name, schema.field(name).type) for name, type_ in table.types.items()}

    def schema(self) -> pa.Schema:
        """Of the newest version, as delta-rs reads it."""
        return self._read().schema

    def rows(self) -> Sequence[Row]:
        """The newest version."""
        found = self._read()
        whole = [column.cast(whole_numbers(column.type)).to_pylist() for column in found.columns]
        return [dict(zip(found.column_names, row, strict=True)) for row in zip(*whole, strict=True)]

    def replace(self, rows: Sequence[Row]) -> None:
        """One commit, which removes all files and adds one."""
        schema = self.schema()
        table = arrow_table(rows, schema)
        file = f"{uuid.uuid4()}.parquet"
        pq.write_table(table.rename_columns([self._physical()[name] for name in schema.names]), self.path / file)
        removed = [
            {"path": add["path"], "deletionTimestamp": 0, "dataChange": True}
            | ({"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {})
            for add in self._live().values()
        ]
        added = {
            "path": file, "partitionValues": {}, "size": (self.path / file).stat().st_size, "modificationTime": 0, "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }  # fmt: skip
        actions = [{"commitInfo": {"operation": "WRITE"}}, *({"remove": one} for one in removed), {"add": added}]
        log = self.path / "_delta_log" / f"{len(self._logs()):020}.json"
        with log.open("x", encoding="utf-8") as commit:
            commit.write("".join(json.dumps(action) + "\n" for action in actions))

    def _read(self) -> pa.Table:
        found = read_delta(self.path, list(self._physical()))
        return found.cast(pa.schema([(field.name, without_views(field.type)) for field in found.schema]))

    def _logs(self) -> list[Path]:
        return sorted((self.path / "_delta_log").glob("*.json"))

    def _actions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for log in self._logs() for line in log.read_text(encoding="utf-8").splitlines()]

    def _physical(self) -> Mapping[str, str]:
        """The names that the files have for the table's columns."""
        [*_, schema] = [json.loads(a["metaData"]["schemaString"]) for a in self._actions() if "metaData" in a]
        return {field["name"]: field["metadata"].get(_PHYSICAL, field["name"]) for field in schema["fields"]}

    def _live(self) -> Mapping[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for action in self._actions():
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
            if "add" in action:
                found[action["add"]["path"]] = action["add"]
        return found


@dataclass(slots=True, kw_only=True)
class DuckDBCopy:
    """A table of a DuckDB file, read and changed while nobody else has the file open."""

    file: Path
    namespace: str
    name: str

    def how(self, table: SpoiledTable) -> Mapping[str, Held]:
        """By the types in which DuckDB gives it to Arrow."""
        schema = self.arrow(table.columns).schema
        return {name: held(type_.name, schema.field(name).type) for name, type_ in table.types.items()}

    def rows(self) -> Sequence[Row]:
        """All of it."""
        found = self.arrow()
        whole = [column.cast(whole_numbers(column.type)).to_pylist() for column in found.columns]
        return [dict(zip(found.column_names, row, strict=True)) for row in zip(*whole, strict=True)]

    def replace(self, rows: Sequence[Row]) -> None:
        """One transaction, which deletes all rows and inserts these."""
        wanted = arrow_table(rows, self.arrow().schema)

        def change(connection: DuckDBPyConnection) -> None:
            connection.register("wanted", wanted)
            connection.begin()
            connection.execute(f"DELETE FROM {self._path}")
            connection.execute(f"INSERT INTO {self._path} SELECT * FROM wanted")
            connection.commit()

        with_duckdb(self.file, change, read_only=False)

    def arrow(self, columns: Sequence[str] = ()) -> pa.Table:
        """Some columns of all rows, or all of them."""
        listed = ", ".join(f'"{name}"' for name in columns) or "*"

        def read(connection: DuckDBPyConnection) -> pa.Table:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(f"SELECT {listed} FROM {self._path}").to_arrow_table()

        return with_duckdb(self.file, read)

    @property
    def _path(self) -> str:
        return f'"{self.namespace}"."{self.name}"'


def arrow_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Rows with whole numbers for days and times in a schema's types."""
    columns = [
        pa.array([row[field.name] for row in rows], whole_numbers(field.type)).cast(field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([(field.name, field.type) for field in schema]))


# -- BigQuery --------------------------------------------------------------------------------------------------------------

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(), "INTEGER": pa.int64(), "FLOAT": pa.float64(), "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38), "STRING": pa.string(), "BYTES": pa.binary(), "DATE": pa.date32(), "TIME": pa.time64("us"),
    "DATETIME": pa.timestamp("us"), "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
_NAMES: Final = {"BOOL": "BOOLEAN", "INT64": "INTEGER", "FLOAT64": "FLOAT"}
"""The service has other names for some types in its API than in its SQL; the emulator has those of the SQL."""
_DAY_ONE: Final = date(1970, 1, 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class BigQueryCopy:
    """A table of BigQuery's emulator, changed by its SQL. `client` is Google's own."""

    client: Any
    path: str

    def how(self, table: SpoiledTable) -> Mapping[str, Held]:
        """By the types that the table has there."""
        types = self._types()
        return {
            name: held(type_.name, _ARROW[types[name]], is_list=is_list(type_.name))
            for name, type_ in table.types.items()
        }

    def rows(self) -> Sequence[Row]:
        """All of it."""
        found = self.client.query(f"SELECT * FROM `{self.path}`", retry=None, job_retry=None).result(retry=None)
        return [{name: _number(value) for name, value in row.items()} for row in found]

    def replace(self, rows: Sequence[Row]) -> None:
        """Delete the rows of ids that are not to stay as they are, and insert them as they are to be."""
        now, wanted = _by_id(self.rows()), _by_id(rows)
        others = [id_ for id_ in now.keys() | wanted.keys() if not _is_same(now.get(id_, []), wanted.get(id_, []))]
        self._run(f"DELETE FROM `{self.path}` WHERE id IN ({', '.join(map(str, sorted(others)))})")
        types = self._types()
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for id_ in others:
            for row in wanted.get(id_, []):
                there = {name: value for name, value in row.items() if value is not None}
                values = ", ".join(_literal(value, types[name]) for name, value in there.items())
                by_columns.setdefault(tuple(there), []).append(f"({values})")
        for names, values_of_rows in by_columns.items():
            columns = ", ".join(f"`{name}`" for name in names)
            self._run(f"INSERT INTO `{self.path}` ({columns}) VALUES {', '.join(values_of_rows)}")

    def _types(self) -> Mapping[str, str]:
        fields = self.client.get_table(self.path).schema
        return {field.name: _NAMES.get(field.field_type, field.field_type) for field in fields}

    def _run(self, statement: str) -> None:
        self.client.query(statement, retry=None, job_retry=None).result(retry=None)


def is_list(source_type: str) -> bool:
    """Whether a type of PostgreSQL is an array, or a domain over one."""
    return source_type.endswith("[]") or source_type == "scores"


def _by_id(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def _is_same(some: Sequence[Row], others: Sequence[Row]) -> bool:
    """NaN is equal to itself here."""
    return sorted(map(repr, some)) == sorted(map(repr, others))


def _number(value: Any) -> Any:
    """Days, and microseconds of a day or since 1970, as whole numbers."""
    match value:
        case datetime():
            return (value.replace(tzinfo=UTC) - _EPOCH) // _US
        case date():
            return (value - _DAY_ONE).days
        case time():
            return (datetime.combine(_DAY_ONE, value, UTC) - _EPOCH) // _US
    return value


def _literal(value: Any, type_: str) -> str:
    """A value in GoogleSQL."""
    return _SPELLED[type_](value)


def _encoded(value: bytes) -> str:
    return f"FROM_BASE64('{base64.b64encode(value).decode()}')"


_SPELLED: Final[Mapping[str, Callable[[Any], str]]] = {
    "BOOLEAN": str,
    "INTEGER": str,
    "FLOAT": lambda value: f"CAST('{value!r}' AS FLOAT64)",
    "NUMERIC": lambda value: f"NUMERIC '{value:f}'",
    "BIGNUMERIC": lambda value: f"BIGNUMERIC '{value:f}'",
    "STRING": lambda value: f"SAFE_CONVERT_BYTES_TO_STRING({_encoded(value.encode())})",
    "BYTES": _encoded,
    "DATE": lambda value: f"DATE '{_DAY_ONE + timedelta(days=value)}'",
    "TIME": lambda value: f"TIME '{(_EPOCH + value * _US).time().isoformat(timespec='microseconds')}'",
    "DATETIME": lambda value: (
        f"DATETIME '{(_EPOCH + value * _US).replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    ),
    "TIMESTAMP": lambda value: f"TIMESTAMP '{(_EPOCH + value * _US).isoformat(sep=' ', timespec='microseconds')}'",
}
