"""MariaDB."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from typing_extensions import override

from replicator_source_mysql import column_types as t
from replicator_source_mysql.flavors.base import Flavor, System, Version

_HIDDEN: Final = re.compile(r"DB_ROW_HASH_[1-9]\d*")


class MariaDb(Flavor):
    """See `Flavor`."""

    name = "mariadb"
    title = "MariaDB"
    oldest = (10, 5)

    # Measured: GEOMETRY is among them.
    character_types = t.CHARACTER | {t.BLOB_COMPRESSED, t.VARCHAR_COMPRESSED, t.GEOMETRY}
    collation_max = sys.maxsize
    json_is_text = True
    old_times_may_have_fractions = True
    has_system_versioning = True
    executed_comment = re.compile(r"/\*M?!(?:\d{5,6})?")
    # EMPTY_STRING_IS_NULL.
    empty_string_may_be_null = True
    replica_word = "slave"
    source_word = "master"
    dump_settings = (
        "@mariadb_slave_capability = 4",
        "@slave_gtid_strict_mode = 1",
        "@slave_gtid_ignore_duplicates = 0",
    )

    identity_query = "SELECT @@server_id"
    isolation_variable = "tx_isolation"
    status_privileges = ("BINLOG MONITOR", "REPLICATION CLIENT")
    # SHOW ALL SLAVES STATUS takes REPLICA MONITOR; the variables are those of the connection without a name.
    has_replica_variables = True
    recover_statement = "XA RECOVER FORMAT='SQL'"
    shows_widths = True
    own_types: ClassVar[Mapping[str, str]] = {
        "UUID": "uuid",
        "INET4": "inet4",
        "INET6": "inet6",
        "GEOMETRYCOLLECTION": "geometrycollection",
    }
    innodb_prefix = "innodb_sys_"
    encodes_foreign_names = True
    tells_foreign_actions = True
    # `information_schema.routines` has no packages and no defaults of parameters.
    routines_query = (
        "SELECT db, name, IF(language = 'SQL', CONCAT(CONVERT(param_list USING utf8mb4), ' ', CONVERT(body_utf8 USING utf8mb4)), NULL)"
        " FROM mysql.proc"
    )

    @override
    def is_hidden_column(self, name: str, type_code: int, *, is_unsigned: bool | None) -> bool:
        # The hash of a unique key that is too long for an index, an unsigned BIGINT (measured on 10.11: their numbers leave
        # out those that a user's own column has).
        return _HIDDEN.fullmatch(name) is not None and type_code == t.LONGLONG and bool(is_unsigned)

    @override
    def statement_bound(self, seconds: float) -> tuple[str, Any]:
        return "max_statement_time", seconds

    @override
    def bounded(self, query: str, seconds: float) -> str:
        return f"SET STATEMENT max_statement_time = {seconds} FOR {query}"

    @override
    def system(self, gtid_mode: str) -> System:
        return System.MARIADB

    @override
    def is_between_systems(self, gtid_mode: str) -> bool:
        return False

    @override
    def logs_cascades(self, version: Version, variables: Mapping[str, str]) -> bool:
        return False

    @override
    def log_status(self, version: Version) -> str:
        return "SHOW MASTER STATUS"

    @override
    def replica_status(self, version: Version) -> str:
        return "SHOW ALL SLAVES STATUS"

    @override
    def replicas_query(self, version: Version) -> str:
        # To everybody, without a privilege.
        return "SHOW GLOBAL STATUS LIKE 'Slaves_running'"

    @override
    def is_replica(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        return any(int(value) > 0 for _, value in rows)

    @override
    def clear_filter(self, name: str) -> str:
        return f"STOP SLAVE; SET GLOBAL {name} = ''; START SLAVE;"

    @override
    def row_versions(self, version: Version) -> str:
        return "0"


MARIADB: Final = MariaDb()
