"""Scratch databases of every kind that can be replicated, with one interface for tests that compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.postgresql.servers import ScratchDatabase

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.databases import SqlServerDatabase  # with packages of an extra

Database: TypeAlias = Union[ScratchDatabase, MysqlDatabase, "SqlServerDatabase"]


def is_tracked(database: Database) -> bool:
    """Whether its changes come from change tracking, which knows no table without a key."""
    return bool(database.source.get("capture") == "change_tracking")


def source_block(database: Database, *, password: str, changed: Mapping[str, Any] | None = None) -> str:
    """The lines of a YAML file's `source:` block, indented.

    Args:
        database: What is copied from.
        password: The variable of the environment that holds the password.
        changed: Keys that are others than the database's own.
    """
    block = {**database.source, "password": f"${{env:{password}}}", **(changed or {})}
    return "\n".join(f"  {key}: {value}" for key, value in block.items())
