"""Names in BigQuery: of datasets, tables, columns, ledgers, staging. Pure text."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, Protocol

from replicator.model.errors import Problem
from replicator.model.events import RESERVED_COLUMNS
from replicator.model.naming import folded
from replicator.model.schema import TableId, TableSchema
from replicator.plugins.target import TargetTable

LENGTH_MAX: Final = 300
_UNSAFE: Final = {"ascii": re.compile(r"[^A-Za-z0-9_]+"), "unicode": re.compile(r"[^\w]+")}
_RESERVED_PREFIXES: Final = (
    "_table_", "_file_", "_partition", "_row_timestamp", "__root__", "_colidentifier", "_change_",
)  # fmt: skip


class NamingSettings(Protocol):
    """Settings that decide on names; see `BigQueryConfig`."""

    @property
    def project(self) -> str:
        """The project of all datasets."""

    @property
    def dataset(self) -> str:
        """The rule for datasets of tables."""

    @property
    def own_dataset(self) -> str:
        """The dataset of ledgers and staging."""

    @property
    def names(self) -> Literal["ascii", "unicode"]:
        """The characters that names keep."""


@dataclass(frozen=True)
class Names:
    """The names of datasets and tables for one configuration."""

    config: NamingSettings

    def dataset(self, table: TableId) -> str:
        """Return the dataset of a table, by the naming rule."""
        return self._safe(self.config.dataset.replace("{namespace}", table.namespace))

    def table(self, table: TableId) -> str:
        """Return the table's own name."""
        return self._safe(table.name)

    def path(self, table: TableId) -> str:
        """Return `project.dataset.table`."""
        return f"{self.config.project}.{self.dataset(table)}.{self.table(table)}"

    @cached_property
    def own_dataset(self) -> str:
        """The path `project.dataset` of ledgers, staging, and tables that are built."""
        return f"{self.config.project}.{self.config.own_dataset}"

    def ledger(self, table: TableId) -> str:
        """Return the ledger table of a target table: the same for every replicator that would write to it."""
        return f"{self.own_dataset}.ledger_{self.mark(table)}"

    def staging_prefix(self, table: TargetTable) -> str:
        """Return the prefix of the names of a table's staging tables; another replicator's differs."""
        return f"staging_{self.mark(table.table)}_{_whose(table)}_"

    def staging(self, table: TargetTable, skip_to: int, last: int) -> str:
        """Return the staging table of one batch: no other process and no other batch has it."""
        numbers = f"{table.incarnation}_{table.epoch}_{skip_to + 1}_{last}"
        return f"{self.own_dataset}.{self.staging_prefix(table)}{numbers}"

    def building_prefix(self, table: TableId) -> str:
        """Return the prefix of tables that are built to replace the table; the replicator and the incarnation follow it."""
        return f"building_{self.mark(table)}_"

    def building(self, table: TargetTable) -> str:
        """Return the table of an incarnation that readers do not have yet."""
        return f"{self.own_dataset}.{self.building_prefix(table.table)}{_whose(table)}_{table.incarnation}"

    def mark(self, table: TableId) -> str:
        """Return a short text that identifies the table's path; BigQuery's names of tables are case-sensitive."""
        readable = re.sub(r"[^A-Za-z0-9]+", "_", self.table(table))[:40]
        return f"{readable}_{hashlib.sha256(self.path(table).encode()).hexdigest()[:16]}"

    def columns(self, schema: TableSchema) -> Mapping[str, str]:
        """Map columns of the source to columns of the target. Collisions are found by `column_problems`."""
        return {column.name: self.column(column.name) for column in schema.held}

    def column(self, name: str) -> str:
        """Return one column's name: a character that is not allowed becomes `_`, a digit at the beginning gets one before it."""
        safe = self._safe(name)
        return f"c{safe}"[:LENGTH_MAX] if safe.casefold().startswith(_RESERVED_PREFIXES) else safe

    def _safe(self, name: str) -> str:
        safe = _UNSAFE[self.config.names].sub("_", name)
        return (f"_{safe}" if safe[:1].isdigit() else safe)[:LENGTH_MAX] or "_"


def staged_fields(schema: TableSchema) -> Mapping[str, str]:
    """Map columns of the source to fields in `row` and `before` of a staging table: the journal's, unless BigQuery reserves the name."""
    taken = {field.casefold() for field in schema.fields.values()}
    names: dict[str, str] = {}
    for column, field in schema.fields.items():
        name = field
        if field.casefold().startswith(_RESERVED_PREFIXES):
            name = f"c{field}"
            while name.casefold() in taken:
                name += "_"
            taken.add(name.casefold())
        names[column] = name
    return names


def quoted(path: str) -> str:
    """Return a path or a name in GoogleSQL; every name was made safe before."""
    assert "`" not in path
    assert "\\" not in path
    return f"`{path}`"


def text(value: str) -> str:
    """Return a string literal in GoogleSQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def table_problems(names: Names, tables: Iterable[TableId]) -> list[Problem]:
    """Find tables that would have the same path."""
    by_path: dict[str, list[TableId]] = defaultdict(list)
    for table in tables:
        by_path[names.path(table).casefold()].append(table)
    return [
        Problem(
            code="table_names_clash",
            message=f"{_listed(str(table) for table in group)} would both be {names.path(group[0])}.",
            table=str(group[0]),
            action="Exclude all but one of them (tables.exclude), or separate them with target.dataset.",
        )
        for group in by_path.values()
        if len(group) > 1
    ]


def column_problems(names: Names, schema: TableSchema) -> list[Problem]:
    """Find columns that would have the same name, or one of ours."""
    reserved = {folded(name) for name in RESERVED_COLUMNS}
    bearers: dict[str, list[str]] = defaultdict(list)
    for column, name in names.columns(schema).items():
        bearers[folded(name)].append(column)
    problems = []
    for name, columns in bearers.items():
        if len(columns) > 1:
            problems.append(
                Problem(
                    code="column_names_clash",
                    message=f"The columns {_listed(columns)} would both be called {name}.",
                    table=str(schema.table),
                    action="Rename all but one of them in the source, set target.names: unicode, or exclude the table (tables.exclude).",
                )
            )
        elif name in reserved and folded(columns[0]) not in reserved:
            problems.append(
                Problem(
                    code="column_name_reserved",
                    message=f"The column {columns[0]} would be called {name}, which is a column of the Replicator's own.",
                    table=str(schema.table),
                    action="Rename the column in the source, or exclude the table (tables.exclude).",
                )
            )
    return problems


def _listed(names: Iterable[str]) -> str:
    *rest, last = sorted(names)
    return f"{', '.join(rest)} and {last}" if rest else last


def _whose(table: TargetTable) -> str:
    return hashlib.sha256(table.uuid.encode()).hexdigest()[:8]
