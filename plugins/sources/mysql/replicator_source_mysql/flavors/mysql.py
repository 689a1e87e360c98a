"""MySQL, and what is made of it: Percona Server, Aurora."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from typing_extensions import override

from replicator_source_mysql import column_types as t
from replicator_source_mysql.flavors.base import Flavor, System, Version

_LOGGED_CASCADES: Final = (9, 6)
_NEW_LOG_STATUS: Final = (8, 2)
_NEW_REPLICA_STATUS: Final = (8, 0, 22)
# From here on generated invisible primary keys may be hidden.
_HIDES_KEYS: Final = (8, 0, 30)
# From here on columns that were added or dropped at once are counted.
_ROW_VERSIONS: Final = (8, 0, 29)
_HIDDEN: Final = re.compile(r"!hidden!.*", re.DOTALL)


class MySql(Flavor):
    """See `Flavor`."""

    name = "mysql"
    title = "MySQL"
    oldest = (8, 0)

    character_types = t.CHARACTER | {t.VECTOR}
    collation_max = 1023
    json_is_text = False
    own_types: ClassVar[Mapping[str, str]] = {
        "GEOMETRYCOLLECTION": "geomcollection",
        "GEOMCOLLECTION": "geomcollection",
    }
    old_times_may_have_fractions = False
    has_system_versioning = False
    executed_comment = re.compile(r"/\*!(?:\d{5,6})?")
    empty_string_may_be_null = False
    replica_word = "replica"
    source_word = "source"

    identity_query = "SELECT @@server_uuid"
    isolation_variable = "transaction_isolation"
    status_privileges = ("REPLICATION CLIENT",)
    has_replica_variables = False
    recover_statement = "XA RECOVER CONVERT XID"
    # From 8.0.19 on.
    shows_widths = False
    innodb_prefix = "innodb_"
    encodes_foreign_names = False
    # Early releases of 8.0 (8.0.15 among them) say 0 of every foreign key.
    tells_foreign_actions = False
    routines_query = (
        "SELECT routine_schema, routine_name, IF(routine_body = 'SQL', routine_definition, NULL)"
        " FROM information_schema.routines"
    )

    @override
    def is_hidden_column(self, name: str, type_code: int, *, is_unsigned: bool | None) -> bool:
        # Of functional indexes.
        return _HIDDEN.fullmatch(name) is not None

    @override
    def session_settings(self, version: Version) -> Mapping[str, Any]:
        # A server may hide from the catalogue the keys that it made by itself; the log has them all the same.
        return {"show_gipk_in_create_table_and_information_schema": "ON"} if version >= _HIDES_KEYS else {}

    @override
    def statement_bound(self, seconds: float) -> tuple[str, Any]:
        return "max_execution_time", round(seconds * 1000)

    @override
    def bounded(self, query: str, seconds: float) -> str:
        return query.replace("SELECT", f"SELECT /*+ MAX_EXECUTION_TIME({round(seconds * 1000)}) */", 1)

    @override
    def system(self, gtid_mode: str) -> System:
        return System.FILE if gtid_mode == "OFF" else System.GTID

    @override
    def is_between_systems(self, gtid_mode: str) -> bool:
        return gtid_mode not in {"ON", "OFF"}

    @override
    def logs_cascades(self, version: Version, variables: Mapping[str, str]) -> bool:
        is_native = variables.get("innodb_native_foreign_keys", "").upper() in {"ON", "1", "YES"}
        return version[:2] >= _LOGGED_CASCADES and not is_native

    @override
    def log_status(self, version: Version) -> str:
        # The old name does not exist from 8.4 on.
        return "SHOW BINARY LOG STATUS" if version[:2] >= _NEW_LOG_STATUS else "SHOW MASTER STATUS"

    @override
    def replica_status(self, version: Version) -> str:
        return "SHOW REPLICA STATUS" if version >= _NEW_REPLICA_STATUS else "SHOW SLAVE STATUS"

    @override
    def replicas_query(self, version: Version) -> str:
        return self.replica_status(version)

    @override
    def is_replica(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        return bool(rows)

    @override
    def clear_filter(self, name: str) -> str:
        return f"STOP REPLICA SQL_THREAD; CHANGE REPLICATION FILTER {name.upper()} = (); START REPLICA SQL_THREAD;"

    @override
    def row_versions(self, version: Version) -> str:
        return "total_row_versions" if version >= _ROW_VERSIONS else "0"


MYSQL: Final = MySql()
