"""Choice of the coordinate system: that of the open log; without one, that of the server's settings."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.model.errors import ConfigError, LogGapError
from replicator.model.schema import TableId
from replicator_source_mysql.connecting.connection import Connection, flavor_of, rows_of
from replicator_source_mysql.connecting.errors import RESTART_ACTION
from replicator_source_mysql.coordinates.base import Coordinates
from replicator_source_mysql.coordinates.file import FileCoordinates
from replicator_source_mysql.coordinates.gtid import GtidCoordinates
from replicator_source_mysql.coordinates.mariadb import MariadbCoordinates
from replicator_source_mysql.flavors import System
from replicator_source_mysql.positions.position import Position
from replicator_source_mysql.server import ServerFacts


class CoordinateSystems:
    """The coordinate systems of one source object. Thread-safe.

    A position decides, not the server's setting: a log that was opened by file stays so while GTIDs are switched on and off, and
    a new position uses them.

    Args:
        watermark: `source.watermark_table`.
    """

    def __init__(self, watermark: TableId) -> None:
        self._by_system: Mapping[System, Coordinates] = {
            System.GTID: GtidCoordinates(),
            System.MARIADB: MariadbCoordinates(),
            System.FILE: FileCoordinates(watermark),
        }
        self._of_log: Coordinates | None = None

    def of_server(self, facts: ServerFacts) -> Coordinates:
        """The coordinate system of a new position of this server."""
        return self._by_system[facts.system]

    def of_position(self, position: Position) -> Coordinates:
        """The coordinate system of a position."""
        return self._by_system[position.executed.system]

    def of_log(self, connection: Connection) -> Coordinates:
        """The coordinate system of the log that was opened last; that of the server's settings if none was."""
        if self._of_log is not None:
            return self._of_log
        modes = rows_of(connection, "SHOW GLOBAL VARIABLES LIKE 'gtid_mode'")
        return self._by_system[flavor_of(connection).system(modes[0][1].upper() if modes else "")]

    def current_position(self, connection: Connection, facts: ServerFacts) -> Position:
        """See `Coordinates.current_position`.

        Raises:
            ConfigError: Also: there is no log.
        """
        if not facts.is_on("log_bin"):
            raise ConfigError("The server has no binary log.", code="log_bin_off", action="Start it with log_bin.")
        return self.of_server(facts).current_position(connection, facts)

    def open(self, connection: Connection, facts: ServerFacts, position: Position) -> Coordinates:
        """The coordinate system of a position at which the log is opened. Errors as `Coordinates.verify_joins`."""
        if facts.flavor is not position.flavor:
            raise LogGapError(
                f"The source was {position.flavor.name} and is {facts.name} now.",
                code="other_flavor",
                action=RESTART_ACTION,
            )
        coordinates = self.of_position(position)
        coordinates.verify_joins(connection, facts, position)
        coordinates.opened(facts, position)
        self._of_log = coordinates
        return coordinates
