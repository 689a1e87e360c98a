"""The `source:` block of a SQL Server replicator."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from replicator.model.schema import TableId
from replicator.plugins.kit.relational import RelationalConfig
from replicator.plugins.lineage import DatasetName

FREETDS: Final = "FreeTDS"
_NO_CERTIFICATES: Final = "Refused: SQL Server takes no client certificates over ODBC."

IDLE_S: Final = 610.0
"""Seconds of silence after which a capture job is suspicious without a mark table: twice the time after which it writes by itself."""


class SqlServerConfig(RelationalConfig):
    """Settings of the SQL Server source."""

    port: int = Field(default=1433, ge=1, le=65535, description="Port of the server.")
    user: str = Field(
        min_length=1,
        description="Account that reads. It needs SELECT on the tables, and on the change table of each.",
    )
    database: str = Field(min_length=1, description="Database that is replicated.")
    tls_cert: Path | None = Field(default=None, description=_NO_CERTIFICATES)
    tls_key: Path | None = Field(default=None, description=_NO_CERTIFICATES)
    driver: str = Field(
        default=FREETDS,
        min_length=1,
        pattern=r"^[^{};=\x00]+$",
        description="ODBC driver: its name in odbcinst.ini, or the file of its library. FreeTDS, or Microsoft's (ODBC Driver 18 for SQL"
        " Server).",
    )
    capture: Literal["cdc", "change_tracking"] = Field(
        default="cdc",
        description="From what changes are read: change data capture (cdc), which has every committed change in its order, or change "
        "tracking, which has the last state of each row that changed, and only of tables with a key.",
    )
    manage_capture: bool = Field(
        default=False,
        description="Whether capture instances are created, and ours are replaced after a change of columns; or, with change tracking, "
        "whether it is enabled for tables. The account then has to be db_owner. If not, validate prints the statements.",
    )
    partition_switch: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="Partitioned tables whose partitions may be switched in and out (ALTER TABLE … SWITCH), which change data capture does "
        "not record: refused, or accepted. Then the tables have to be read again after each switch.",
    )
    mark_table: str | None = Field(
        default=None,
        pattern=r"^[^.]+\.[^.]+$",
        description="Table, as schema.table, captured itself, into which a row is written with every chunk, and as a heartbeat. Without "
        "it a chunk has to wait for the capture job, up to five minutes on a database where nothing changes.",
    )
    chunk_isolation: Literal["default", "locking"] = Field(
        default="default",
        description="How chunks are read: as any SELECT of the database (default), or with shared locks on the rows (locking), which is "
        "proof against changes that are captured a moment before they are visible.",
    )

    # Of each alone: to have both, as other sources do, would help nobody here.
    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _is_left_out(cls, value: Path | None) -> Path | None:
        if value is not None:
            raise ValueError("SQL Server knows no accounts by certificate over ODBC; leave tls_cert and tls_key out")
        return value

    @model_validator(mode="after")
    def _driver_can_be_told(self) -> Self:
        # FreeTDS's file of settings has a line for each, and no way to quote.
        for name, value in (("host", self.host), ("tls_ca", str(self.tls_ca or ""))):
            if any(character in value for character in "\n\r;#"):
                raise ValueError(f"{name} has a line break, a semicolon or a #, which FreeTDS cannot read")
        return self

    @property
    def is_freetds(self) -> bool:
        """Return whether the driver is FreeTDS, by its name or by that of its library."""
        return "tds" in Path(self.driver).name.lower()

    def dataset_name(self, table: TableId) -> DatasetName:
        """See `SupportsLineage`."""
        name = f"{self.database}.{table.namespace}.{table.name}"
        return DatasetName(namespace=f"mssql://{self.host}:{self.port}", name=name)

    def column_name(self, name: str) -> str:
        """See `SupportsLineage`."""
        return name

    @property
    def mark_table_id(self) -> TableId | None:
        """The id of `mark_table`; None without one."""
        return None if self.mark_table is None else TableId(*self.mark_table.split("."))
