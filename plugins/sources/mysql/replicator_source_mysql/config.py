"""The `source:` block of a MySQL or MariaDB replicator."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from replicator.model.schema import TableId
from replicator.plugins import Duration, Size
from replicator.plugins.kit.relational import RelationalConfig
from replicator.plugins.lineage import DatasetName


class MysqlConfig(RelationalConfig):
    """Settings of the MySQL source, which also reads MariaDB."""

    port: int = Field(default=3306, ge=1, le=65535, description="Port of the server.")
    user: str = Field(
        min_length=1,
        description="Account that reads. It needs SELECT on the tables, REPLICATION SLAVE, REPLICATION CLIENT (MariaDB:"
        " BINLOG MONITOR) and PROCESS.",
    )
    start_at: str | None = Field(
        default=None,
        description="A GTID set (MariaDB: GTID position; MySQL without GTIDs: file and byte, as binlog.000003:1234) after which the "
        "log is read at the very first start, instead of now. Use it with snapshot.mode: never, for a target that was "
        "restored from a backup.",
    )
    watermark_table: str = Field(
        default="replicator.watermarks",
        pattern=r"^[^.]+\.[^.]+$",
        description="For MySQL without GTIDs only: the table, as database.table, in which a row is inserted and deleted with every "
        "chunk. validate prints the statements that create it.",
    )
    unrepresentable: Literal["fail", "null"] = Field(
        default="fail",
        description="What to do with zero and partial dates: fail the table (fail), or replicate NULL (null). Values in key columns "
        "always fail the table.",
    )
    foreign_keys: Literal["refuse", "resnapshot", "warn"] = Field(
        default="refuse",
        description="What to do with tables whose foreign keys change them by cascades that the server does not log (MariaDB, MySQL "
        "before 9.6): refuse them, take a new snapshot in place after each change of a parent that may have cascaded, or "
        "warn and let them differ.",
    )
    accept_log_loss: bool = Field(
        default=False,
        description="Whether to read from a server whose sync_binlog or innodb_flush_log_at_trx_commit is not 1. After a crash of "
        "its operating system such a server may have lost transactions that were already replicated.",
    )
    heartbeat: Duration = Field(
        default=timedelta(seconds=1),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=1),
        description="How often the server sends a heartbeat while it has nothing else to send. After ten times this long (at least "
        "30 s) without a byte the connection is closed.",
    )
    transaction_bytes_max: Size = Field(
        default=1 << 30,
        ge=1 << 20,
        le=1 << 34,
        description="Largest size of one compressed event of the log after decompression; the table of a larger one fails. Also the "
        "largest size of prepared XA transactions held in memory.",
    )

    @property
    def watermark(self) -> TableId:
        """The table of `watermark_table`."""
        return TableId(*self.watermark_table.split("."))

    def dataset_name(self, table: TableId) -> DatasetName:
        """See `SupportsLineage`."""
        return DatasetName(namespace=f"mysql://{self.host}:{self.port}", name=f"{table.namespace}.{table.name}")

    def column_name(self, name: str) -> str:
        """See `SupportsLineage`."""
        return name
