"""Creation of tables: described in pure code, made through Delta's builder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from replicator.model.events import IS_DELETED, SEQUENCE_NUM, SOURCE_TIMESTAMP
from replicator.model.schema import TableSchema
from replicator.plugins.target import TableOptions, TargetTable
from replicator_target_delta.log.table import INCARNATION, LIVE, SCHEMA, STATE, TABLE, UUID
from replicator_target_delta.shape.comments import column_comment, table_comment
from replicator_target_delta.shape.types import clustering_columns, json_type

# Delta keeps statistics of the first 32 columns, and clusters only by columns that have them.
STATISTICS_MAX: Final = 32
_LISTED: Final = re.compile(r"`((?:[^`]|``)*)`|([^,`]+)")
_RETENTIONS: Final = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")


def quoted(name: str) -> str:
    """An identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def listed(names: Sequence[str]) -> str:
    """Columns as a property of Delta lists them."""
    return ",".join(map(quoted, names))


def listed_names(text: str) -> Sequence[str]:
    """Columns in a property of Delta (`listed`)."""
    return [quoted.replace("``", "`") if quoted else plain.strip() for quoted, plain in _LISTED.findall(text)]


def path_of(path: str) -> str:
    """A table by its path."""
    return f"delta.{quoted(path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """An empty table in the shape that it is to have.

    Attributes:
        fields: Columns, in the form of Spark's JSON of a struct.
        cluster_by: Columns to cluster by.
        properties: Table properties.
        comment: Description.
    """

    fields: Sequence[Mapping[str, Any]]
    cluster_by: Sequence[str]
    properties: Mapping[str, str]
    comment: str | None

    def create(self, session: Any, path: str) -> None:
        """Make it. Names and comments go to Delta as objects: no text of the source is parsed as a statement."""
        jvm, java_session = session._jvm, session._jsparkSession  # noqa: SLF001 - Delta's own builder does the same
        struct = java_session.parseDataType(json.dumps({"type": "struct", "fields": self.fields}))
        builder = jvm.io.delta.tables.DeltaTable.create(java_session).location(path).addColumns(struct)
        for name, value in self.properties.items():
            builder = builder.property(name, value)
        if self.comment:
            builder = builder.comment(self.comment)
        if self.cluster_by:
            names = session.sparkContext._gateway.new_array(jvm.java.lang.String, len(self.cluster_by))  # noqa: SLF001
            for index, name in enumerate(self.cluster_by):
                names[index] = quoted(name)  # parsed as a path of names
            builder = builder.clusterBy(names)
        builder.execute()


def with_log_retention(new: NewTable, retention: timedelta) -> NewTable:
    """The same table, whose log keeps versions for `retention`: with a commit per second it has 86,400 of them a day.

    Delta refuses a log that is kept for a shorter time than deleted files, which are kept for a week unless the table says otherwise.
    """
    kept = dict.fromkeys(_RETENTIONS, f"interval {int(retention.total_seconds())} seconds")
    return replace(new, properties={**new.properties, **kept})


def new_table(table: TargetTable, schema: TableSchema, *, clustering: bool) -> NewTable:
    """The table to create for `table`.

    Columns have the source's names (column mapping allows every character), those that are kept included. Only key columns are
    NOT NULL: a column of the source may lose that constraint at any time, and Delta could not drop it.
    """
    fields = [
        _field(c.name, json_type(c.type), column_comment(c.comment), is_nullable=c.name not in schema.key)
        for c in schema.held
    ]
    fields.append(_field(SEQUENCE_NUM, "long", "Number of the last change of the row", is_nullable=False))
    if table.options.deletes == "soft":
        fields.append(_field(IS_DELETED, "boolean", "Whether the row was deleted in the source", is_nullable=False))
    if table.options.source_timestamp:
        fields.append(_field(SOURCE_TIMESTAMP, "timestamp", "Commit time of the last change in the source"))
    by = clustering_columns(schema) if clustering else ()
    properties = {
        UUID: table.uuid,
        TABLE: str(table.table),
        INCARNATION: str(table.incarnation),
        SCHEMA: schema_mark(schema, table.options),
        STATE: LIVE,
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
    }
    if len(fields) > STATISTICS_MAX:
        # Of so many columns only these help to skip files.
        properties["delta.dataSkippingStatsColumns"] = listed([*by, SEQUENCE_NUM])
    return NewTable(fields=fields, cluster_by=by, properties=properties, comment=table_comment(schema.comment))


def schema_mark(schema: TableSchema, options: TableOptions) -> str:
    """A text that changes whenever the table would have to look different."""
    return f"{schema.fingerprint} {options.deletes}{' time' if options.source_timestamp else ''}"


def _field(name: str, type_: Any, comment: str | None, *, is_nullable: bool = True) -> Mapping[str, Any]:
    metadata = {"comment": comment} if comment else {}
    return {"name": name, "type": type_, "nullable": is_nullable, "metadata": metadata}
