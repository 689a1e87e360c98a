"""MySQL and MariaDB: their differences, apart from coordinates (`coordinates`). One module each."""

from replicator_source_mysql.flavors.base import Flavor, System, Version, version_of
from replicator_source_mysql.flavors.mariadb import MARIADB
from replicator_source_mysql.flavors.mysql import MYSQL


def flavor_of_server(text: str) -> Flavor:
    """The flavor of a server, by how it names itself in its greeting."""
    return MARIADB if MARIADB.name in text.lower() else MYSQL


__all__ = ["MARIADB", "MYSQL", "Flavor", "System", "Version", "flavor_of_server", "version_of"]
