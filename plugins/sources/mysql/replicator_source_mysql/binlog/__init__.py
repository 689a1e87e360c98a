"""Raw bodies of binlog events to Arrow columns: table maps, row images, compressed transactions. No I/O, no connection.

All rows of a table in a pull are decoded at once, column by column, with numpy and Arrow (`images` says how). There is no compiled
variant: in `python -m benchmarks mysql_decode` this one is 49 to 80 times as fast as `mysql-replication`, and the
bottleneck between the log and a sealed file is then elsewhere.
"""

from replicator_source_mysql.binlog.compressed import InnerEvent, transaction_payload, uncompressed_body
from replicator_source_mysql.binlog.events import table_id
from replicator_source_mysql.binlog.rows import DecodedRows, RowDecoder
from replicator_source_mysql.binlog.tablemap import MapColumn, TableMap, TableMaps, named_table, parse_table_map
from replicator_source_mysql.binlog.types import ColumnSpec, TypeKind, declared_spec, logged_spec

__all__ = [
    "ColumnSpec",
    "DecodedRows",
    "InnerEvent",
    "MapColumn",
    "RowDecoder",
    "TableMap",
    "TableMaps",
    "TypeKind",
    "declared_spec",
    "logged_spec",
    "named_table",
    "parse_table_map",
    "table_id",
    "transaction_payload",
    "uncompressed_body",
]
