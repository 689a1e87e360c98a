"""Interface of a flavor: formats of the log, words of SQL, names in the catalogue. Pure: SQL is text here, run by others."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

Version = tuple[int, ...]


class System(StrEnum):
    """The coordinate systems (`coordinates`)."""

    GTID = "gtid"
    MARIADB = "mariadb"
    FILE = "file"


class Flavor(ABC):
    """MySQL or MariaDB. There is one object of each."""

    name: ClassVar[str]
    """Name in offsets and identities: durable."""
    title: ClassVar[str]
    """Name in messages."""
    oldest: ClassVar[Version]
    """The oldest version that is supported."""

    # ---- the log ----

    character_types: ClassVar[frozenset[int]]
    """Types with a collation in the optional metadata of a TABLE_MAP; ENUM and SET have theirs apart."""
    collation_max: ClassVar[int]
    """The highest number of a collation."""
    json_is_text: ClassVar[bool]
    """True if a JSON column is one of text."""
    old_times_may_have_fractions: ClassVar[bool]
    """True if times in the form from before MySQL 5.6 may have fractions, and then another length, of which the log says nothing."""
    has_system_versioning: ClassVar[bool]
    """True if tables may keep their history."""
    executed_comment: ClassVar[re.Pattern[str]]
    """The beginning of a comment whose content is executed."""
    empty_string_may_be_null: ClassVar[bool]
    """True if an SQL mode makes '' NULL."""
    replica_word: ClassVar[str]
    """Word for a replica in the settings of a dump, besides `slave`."""
    source_word: ClassVar[str]
    """Word for the server there, besides `master`."""
    dump_settings: ClassVar[tuple[str, ...]] = ()
    """More settings of the session that asks for the log."""

    @abstractmethod
    def is_hidden_column(self, name: str, type_code: int, *, is_unsigned: bool | None) -> bool:
        """Return whether a column in the log may be one that the server added by itself, and only its log shows."""

    # ---- settings and sessions ----

    identity_query: ClassVar[str]
    """Query of the value that tells two servers apart."""
    isolation_variable: ClassVar[str]
    """Variable of the session's isolation level."""

    def session_settings(self, version: Version) -> Mapping[str, Any]:  # noqa: ARG002 - most versions need none
        """Settings that every session needs."""
        return {}

    @abstractmethod
    def statement_bound(self, seconds: float) -> tuple[str, Any]:
        """The session setting that bounds how long a statement may run."""

    @abstractmethod
    def bounded(self, query: str, seconds: float) -> str:
        """A SELECT statement with a bound of its own."""

    # ---- replication ----

    status_privileges: ClassVar[tuple[str, ...]]
    """Privileges one of which shows the end of the log; the first is the one to grant."""
    has_replica_variables: ClassVar[bool]
    """True if filters of a replica are global variables, too."""

    recover_statement: ClassVar[str]
    """The statement that lists prepared XA transactions, with their names as text."""

    @abstractmethod
    def system(self, gtid_mode: str) -> System:
        """The coordinate system of a new position; `gtid_mode` is the server's, empty if it has none."""

    @abstractmethod
    def is_between_systems(self, gtid_mode: str) -> bool:
        """Return whether the log may have positions of two systems."""

    @abstractmethod
    def logs_cascades(self, version: Version, variables: Mapping[str, str]) -> bool:
        """Return whether the log has the changes that foreign keys make to other tables."""

    @abstractmethod
    def log_status(self, version: Version) -> str:
        """The statement that shows the end of the log."""

    @abstractmethod
    def replica_status(self, version: Version) -> str:
        """The statement that shows the servers from which this one replicates."""

    @abstractmethod
    def replicas_query(self, version: Version) -> str:
        """The statement by whose rows `is_replica` tells."""

    @abstractmethod
    def is_replica(self, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether a server replicates from another one."""

    @abstractmethod
    def clear_filter(self, name: str) -> str:
        """The statements that remove a filter of a replica."""

    # ---- the catalogue ----

    shows_widths: ClassVar[bool]
    """True if a type is shown with the number of its digits where none was given."""
    own_types: ClassVar[Mapping[str, str]]
    """Words for types that the other flavor does not have, or spells in another way → their spelling in the catalogue."""
    innodb_prefix: ClassVar[str]
    """Prefix of InnoDB's own views in `information_schema`."""
    encodes_foreign_names: ClassVar[bool]
    """True if InnoDB's view of foreign keys spells names as those of files."""
    tells_foreign_actions: ClassVar[bool]
    """True if InnoDB's view of foreign keys says in every version what they do."""

    routines_query: ClassVar[str]
    """SQL of every stored routine: database, name and text, NULL for one that is not written in SQL, or not shown to us."""

    @abstractmethod
    def row_versions(self, version: Version) -> str:
        """SQL of the number of times that columns of a table were added or dropped without a rebuild, in InnoDB's view of tables."""


def version_of(text: str) -> Version:
    """The version in a server's own name for itself. MariaDB's may begin with 5.5.5-, for clients that know no other."""
    match = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else (0, 0, 0)
