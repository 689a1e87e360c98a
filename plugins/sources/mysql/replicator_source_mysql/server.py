"""Facts about the server that matter for replication."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pymysql

from replicator_source_mysql.connecting.connection import Connection, flavor_of, rows_of
from replicator_source_mysql.filters import Filters, read_filters
from replicator_source_mysql.flavors import Flavor, System, version_of
from replicator_source_mysql.positions.marks import log_status_statement

_ACCESS_DENIED: Final = 1227

_VARIABLES: Final = (
    "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options",
    "binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge",
    "expire_logs_days", "enforce_gtid_consistency", "gtid_mode", "gtid_strict_mode",
    "innodb_flush_log_at_trx_commit", "innodb_native_foreign_keys", "innodb_read_only", "log_bin", "log_replica_updates",
    "log_slave_updates", "lower_case_table_names", "max_allowed_packet", "read_only", "server_id", "server_uuid", "sync_binlog",
    "super_read_only", "aurora_version", "binlog_storage_engine", "binlog_row_event_fragment_threshold", "binlog_order_commits",
    "max_binlog_total_size", "slave_connections_needed_for_purge",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server.

    Attributes:
        version: Such as (10, 11, 19).
        text: The server's own name for itself.
        variables: Global variables that it has, by name.
        server: Its name in offsets: MySQL's server_uuid, MariaDB's server_id.
        is_replica: It replicates from another server; None if we may not know.
        grants: `SHOW GRANTS` of our account; one line each.
        filters: Filters of its log, as far as we may know.
    """

    flavor: Flavor
    version: tuple[int, ...]
    text: str
    variables: Mapping[str, str]
    grants: tuple[str, ...]
    is_replica: bool | None
    filters: Filters = field(default_factory=Filters)

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.flavor.title} {'.'.join(map(str, self.version))}"

    @property
    def server(self) -> str:
        """Its name in offsets."""
        return self.variables.get("server_uuid") or self.variables.get("server_id", "")

    @property
    def gtid_mode(self) -> str:
        """MySQL's gtid_mode; OFF where there is none."""
        return self.variables.get("gtid_mode", "OFF").upper()

    @property
    def system(self) -> System:
        """The coordinate system of a new position in its log."""
        return self.flavor.system(self.gtid_mode)

    @property
    def is_by_file(self) -> bool:
        """Return whether positions in its log are files and bytes: MySQL without GTIDs."""
        return self.system is System.FILE

    @property
    def is_between(self) -> bool:
        """Return whether GTIDs are being switched on or off."""
        return self.flavor.is_between_systems(self.gtid_mode)

    @property
    def lower_case_table_names(self) -> int:
        """The variable of this name. 0: names are as written. 1, 2: case does not matter."""
        return int(self.variables.get("lower_case_table_names", "0"))

    @property
    def is_too_old(self) -> bool:
        """Return whether its version is not supported."""
        return self.version[:2] < self.flavor.oldest

    @property
    def logs_cascades(self) -> bool:
        """Return whether its log has the changes that foreign keys make to other tables."""
        return self.flavor.logs_cascades(self.version, self.variables)

    def is_on(self, variable: str) -> bool:
        """Return whether a variable that the server has is on."""
        return self.variables.get(variable, "").upper() in {"ON", "1", "YES"}


def read_facts(connection: Connection) -> ServerFacts:
    """Ask the server."""
    text = connection.get_server_info()
    flavor = flavor_of(connection)
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    variables = {
        name.lower(): value
        for name, value in rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
    }
    grants = tuple(row[0] for row in rows_of(connection, "SHOW GRANTS"))
    return ServerFacts(
        flavor=flavor,
        version=version_of(text),
        text=text,
        variables=variables,
        grants=grants,
        is_replica=_is_replica(connection),
        filters=read_filters(
            connection,
            flavor,
            status=log_status_statement(connection),
            replica_status=flavor.replica_status(version_of(text)),
        ),
    )


def global_privileges(grants: Iterable[str]) -> set[str]:
    """Return the privileges that lines of SHOW GRANTS give on all databases."""
    found: set[str] = set()
    for grant in grants:
        if match := re.match(r"GRANT (.*?) ON \*\.\* TO ", grant):
            found.update(part.strip().upper() for part in match[1].split(","))
    return found


def _is_replica(connection: Connection) -> bool | None:
    """Return whether it replicates from another server; MySQL tells it to REPLICATION CLIENT only."""
    flavor = flavor_of(connection)
    try:
        rows = rows_of(connection, flavor.replicas_query(version_of(connection.get_server_info())))
    except pymysql.err.OperationalError as error:
        if error.args[0] != _ACCESS_DENIED:
            raise
        return None
    return flavor.is_replica(rows)


def folded_name(connection: Connection, name: str) -> str:
    """One spelling of all names that are the same to the server, which minds no case (and accents from MariaDB 11.5 on).

    Names of ASCII become capitals.
    """
    # general_ci has number 33 in every version; where the other one exists, it is the one that compares names.
    ((collation,),) = rows_of(
        connection,
        "SELECT collation_name FROM information_schema.collations WHERE id = 33 OR collation_name = 'utf8mb3_general1400_as_ci'"
        " ORDER BY id DESC LIMIT 1",
    )
    charset = collation.partition("_")[0]
    weights = f"HEX(WEIGHT_STRING(CONVERT(%s USING {charset}) COLLATE {collation}))"
    ((of_name, of_ascii),) = rows_of(connection, f"SELECT {weights}, {weights}", [name, "aZ_"])
    if bytes.fromhex(of_ascii) != "AZ_".encode("utf-16-be"):
        return f"\0{of_name}"
    return bytes.fromhex(of_name).decode("utf-16-be", "surrogatepass")
