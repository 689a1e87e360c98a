"""Findings about server and role that keep tables from being replicated, and the facts that they follow from.

Facts are read once; the findings are computed from them without I/O, all at once.

A running replicator is asked for them, too. Its own slot, connection and publication must cause none that stops it: of those about the
server one only, operations that a publication leaves out, applies `always`. The rest either cannot change under an open slot (PostgreSQL
does not start with wal_level below logical while there is a logical slot), or ends the stream by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from replicator.model.errors import Problem, Severity
from replicator_source_postgresql.catalogue.discovery import Connection
from replicator_source_postgresql.catalogue.tables import CatalogTable, Publication
from replicator_source_postgresql.replication import ddl_trigger
from replicator_source_postgresql.replication.publication import (
    addition_statement,
    belongs_to_another,
    creation_script,
    proposed_statements,
    unseen_changes,
)
from replicator_source_postgresql.replication.slot import PLUGIN, SlotState

OLDEST_VERSION: Final = 130000
_SPARE: Final = 10
_OPERATIONS: Final = frozenset({"insert", "update", "delete", "truncate"})
_OWNER_CREATES: Final = "let the owner create the publication: publication_proposed has the statement."
_OF_EVERY_TABLE: Final = frozenset({"is_partition", "unlogged_table", "unlogged_partition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts of server and role. `replication_error` is the refusal of a replication connection, None if it was granted."""

    version: int
    version_text: str
    wal_level: str
    is_in_recovery: bool
    slots_used: int
    slots_max: int
    senders_used: int
    senders_max: int
    wal_keep_max: str
    role: str
    is_superuser: bool
    may_replicate: bool
    may_create_in_database: bool
    database: str
    replication_error: str | None = None
    lacks_ddl_trigger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The log resources as configured and as they are. `is_…_given`: the user's own, named in the configuration."""

    replicator: str
    uuid: str
    slot_name: str
    publication_name: str
    is_slot_given: bool
    is_publication_given: bool
    slot: SlotState | None
    publication: Publication | None


def read_server(connection: Connection) -> ServerFacts:
    """Read the facts of server and role, without those that need a replication connection."""
    row = connection.execute(_SERVER_QUERY.encode()).fetchone()
    assert row is not None
    return ServerFacts(
        version=connection.info.server_version,
        version_text=row[0],
        wal_level=row[1],
        is_in_recovery=row[2],
        slots_used=row[3],
        slots_max=row[4],
        senders_used=row[5],
        senders_max=row[6],
        wal_keep_max=row[7],
        role=row[8],
        is_superuser=row[9],
        may_replicate=row[10],
        may_create_in_database=row[11],
        database=row[12],
        lacks_ddl_trigger=connection.info.server_version >= ddl_trigger.VERSION and not row[13],
    )


def too_old(facts: ServerFacts) -> Problem:
    """The finding for a server before 13, about which nothing else can be asked."""
    return Problem(
        code="server_too_old",
        message=f"The server is PostgreSQL {facts.version_text}; 13 or later is needed.",
        location="source.host",
        action="Upgrade the server.",
    )


def assess_server(facts: ServerFacts, resources: Resources) -> list[Problem]:
    """Findings that concern the server and the role rather than a table."""
    problems = []
    if facts.is_in_recovery:
        problems.append(
            Problem(
                code="server_is_standby",
                message="The server is a standby; snapshots write marks into the log, which only a primary can do.",
                location="source.host",
                action="Name the primary in source.host.",
            )
        )
    if facts.wal_level != "logical":
        problems.append(
            Problem(
                code="wal_level_not_logical",
                message=f"wal_level is {facts.wal_level}; logical decoding needs logical.",
                location="source",
                action="ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
                " (managed services: set the parameter rds.logical_replication or its like).",
                sql=("ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server",),
            )
        )
    problems += _assess_role(facts)
    problems += _assess_capacity(facts, resources)
    if facts.wal_keep_max == "-1":
        problems.append(
            Problem(
                code="wal_keep_unbounded",
                message="max_slot_wal_keep_size is -1: while the replicator is stopped the server keeps its log without a limit, "
                "and its disk may fill up.",
                location="source",
                action="Watch the bytes retained in the status, or set max_slot_wal_keep_size to what the disk can hold. If the "
                "limit is exceeded, a new snapshot is needed.",
                severity=Severity.NOTICE,
            )
        )
    else:
        problems.append(
            Problem(
                code="wal_keep_bounded",
                message=f"max_slot_wal_keep_size is {facts.wal_keep_max}: if the replicator falls behind by more,"
                " the slot is lost and a new snapshot is needed.",
                location="source",
                severity=Severity.NOTICE,
            )
        )
    if facts.lacks_ddl_trigger:
        problems.append(ddl_trigger.missing_trigger())
    return problems


def assess_resources(facts: ServerFacts, resources: Resources, tables: Sequence[CatalogTable]) -> list[Problem]:
    """Findings about slot and publication: those given by the user, and whether missing ones could be made."""
    of_publication = (
        _assess_given_publication(resources, tables)
        if resources.is_publication_given
        else _assess_own_publication(facts, resources, tables)
    )
    # A slot is created after the publication: what the log had before it could not be decoded.
    if resources.is_slot_given:
        return of_publication + _assess_given_slot(resources, facts.database)
    return of_publication + _assess_own_slot(resources, facts.database)


# -- server --------------------------------------------------------------------------------------------------------------


def _assess_role(facts: ServerFacts) -> list[Problem]:
    role = sql.Identifier(facts.role).as_string(None)
    problems = []
    if not facts.may_replicate:
        problems.append(
            Problem(
                code="role_lacks_replication",
                message=f"The role {facts.role} has no replication privilege.",
                location="source.user",
                action=f"ALTER ROLE {role} REPLICATION; (on Amazon RDS: GRANT rds_replication TO {role};)",
                sql=(f"ALTER ROLE {role} REPLICATION;",),
            )
        )
    elif facts.replication_error is not None:
        problems.append(
            Problem(
                code="replication_refused",
                message=f"The server refuses a replication connection: {facts.replication_error}",
                location="source.user",
                action="Allow the role to connect to the database from this host in pg_hba.conf.",
            )
        )
    if facts.is_superuser:
        problems.append(
            Problem(
                code="role_is_superuser",
                message=f"The role {facts.role} is a superuser, which is more than needed.",
                location="source.user",
                action="Create a role with LOGIN, REPLICATION and SELECT on the tables.",
                severity=Severity.WARNING,
            )
        )
    return problems


def _assess_capacity(facts: ServerFacts, resources: Resources) -> list[Problem]:
    problems = []
    if resources.slot is None and not resources.is_slot_given and facts.slots_used >= facts.slots_max:
        problems.append(
            Problem(
                code="no_free_slot",
                message=f"All {facts.slots_max} replication slots are in use.",
                location="source",
                action="Drop unused slots, or raise max_replication_slots and restart the server.",
                sql=(_raised("max_replication_slots", facts.slots_max),),
            )
        )
    if facts.senders_used >= facts.senders_max:
        problems.append(
            Problem(
                code="no_free_wal_sender",
                message=f"All {facts.senders_max} WAL senders are busy.",
                location="source",
                action="Raise max_wal_senders and restart the server.",
                sql=(_raised("max_wal_senders", facts.senders_max),),
            )
        )
    return problems


def _raised(name: str, now: int) -> str:
    return f"ALTER SYSTEM SET {name} = {now + _SPARE}; -- then restart the server"


# -- slot and publication ------------------------------------------------------------------------------------------------


def _assess_given_slot(resources: Resources, database: str) -> list[Problem]:
    slot = resources.slot
    name = sql.Literal(resources.slot_name).as_string(None)
    if slot is None:
        message = f"There is no replication slot {resources.slot_name}."
        statement = f"SELECT pg_create_logical_replication_slot({name}, '{PLUGIN}');"
        action = f"Create it: {statement} or leave source.slot out."
        return [Problem(code="slot_missing", message=message, location="source.slot", action=action, sql=(statement,))]
    fault = slot.unusable_in(database)
    if fault is not None:
        message = f"The replication slot {slot.name} {fault}."
        return [
            Problem(
                code="slot_unusable",
                message=message,
                location="source.slot",
                action=f"Name a permanent logical slot of this database that uses {PLUGIN}.",
            )
        ]
    if slot.lost is not None:
        message = f"The replication slot {slot.name} has lost its log ({slot.lost})."
        return [
            Problem(
                code="slot_lost",
                message=message,
                location="source.slot",
                action=f"SELECT pg_drop_replication_slot({name}); and create it again.",
            )
        ]
    if slot.active_pid is not None:
        message = f"The replication slot {slot.name} is in use by the server process {slot.active_pid}."
        # The replicator that runs under this configuration may be that process: no hindrance to looking.
        return [
            Problem(
                code="slot_active",
                message=message,
                location="source.slot",
                action="Stop the other process that uses it.",
                severity=Severity.WARNING,
            )
        ]
    return []


def _assess_own_slot(resources: Resources, database: str) -> list[Problem]:
    slot = resources.slot
    fault = slot.unusable_in(database) if slot is not None else None
    if slot is None or fault is None:
        return []
    message = f"A replication slot {slot.name} exists already and {fault}."
    return [
        Problem(
            code="slot_name_taken", message=message, location="name", action="Rename the replicator, or drop that slot."
        )
    ]


def _assess_own_publication(facts: ServerFacts, resources: Resources, tables: Sequence[CatalogTable]) -> list[Problem]:
    publication = resources.publication
    problems = []
    already = publication.tables if publication else frozenset()
    not_owned = [t for t in tables if not t.is_owned and t.table not in already]
    if publication is not None and belongs_to_another(publication, resources.uuid):
        problems.append(
            Problem(
                code="publication_of_another",
                message=f"The publication {publication.name} and the slot of that name belong to another replicator"
                f" called {resources.replicator}.",
                location="name",
                action="Rename this replicator; or, if the other one no longer exists, drop its slot and its publication.",
            )
        )
    elif publication is not None and publication.is_for_all_tables:
        problems.append(_publication_taken(publication))
    elif publication is not None and not publication.is_owned:
        problems.append(
            Problem(
                code="publication_not_owned",
                message=f"The publication {publication.name} belongs to {publication.owner}.",
                location="source.publication",
                action=f"Name it in source.publication to use it as it is, or grant {publication.owner} to the role.",
                sql=(_grant_owner(publication.owner, facts.role),),
            )
        )
    elif publication is None and not facts.may_create_in_database:
        database, role = (sql.Identifier(name).as_string(None) for name in (facts.database, facts.role))
        grant = f"GRANT CREATE ON DATABASE {database} TO {role};"
        problems.append(
            Problem(
                code="may_not_create_publication",
                message=f"The role {facts.role} may not create a publication in the database {facts.database}.",
                location="source.publication",
                action=f"Either {grant} or {_OWNER_CREATES}",
                sql=(grant,),
            )
        )
    may_create = facts.may_create_in_database and not not_owned
    if publication is None and not may_create:
        problems.append(_proposed_publication(resources.publication_name, tables))
    problems += [_table_not_owned(t, facts.role, publication) for t in not_owned]
    return problems


def _proposed_publication(name: str, tables: Sequence[CatalogTable]) -> Problem:
    """One finding for all tables that the role may not publish: the statement is long, and the same for each."""
    return Problem(
        code="publication_proposed",
        message=f"The owner of the tables can create the publication instead; then set source.publication to {name}.",
        location="source.publication",
        action=proposed_statements(name, tables),
        severity=Severity.NOTICE,
    )


def _table_not_owned(table: CatalogTable, role: str, publication: Publication | None) -> Problem:
    grant = _grant_owner(table.owner, role)
    addition = None if publication is None else addition_statement(publication.name, [table.table])
    instead = _OWNER_CREATES if addition is None else f"run as a superuser: {addition}"
    return Problem(
        code="table_not_owned",
        message=f"the table belongs to {table.owner}; only its owner can add it to a publication",
        table=str(table.table),
        action=f"Either {grant} or {instead}",
        sql=(addition or grant,),
    )


def _grant_owner(owner: str, role: str) -> str:
    """Return the SQL that makes the role an owner, too."""
    return f"GRANT {sql.Identifier(owner).as_string(None)} TO {sql.Identifier(role).as_string(None)};"


def _publication_taken(publication: Publication) -> Problem:
    return Problem(
        code="publication_name_taken",
        message=f"The publication {publication.name} is FOR ALL TABLES, so it was not created by Replicator.",
        location="name",
        action="Rename the replicator, or drop that publication.",
    )


def _assess_given_publication(resources: Resources, tables: Sequence[CatalogTable]) -> list[Problem]:
    publication = resources.publication
    name = sql.Identifier(resources.publication_name).as_string(None)
    if publication is None:
        message = f"There is no publication {resources.publication_name}."
        action = proposed_statements(resources.publication_name, tables)
        script = tuple(creation_script(resources.publication_name, tables))
        return [
            Problem(
                code="publication_missing", message=message, location="source.publication", action=action, sql=script
            )
        ]
    problems = [
        problem
        for table in tables
        for problem in unseen_changes(publication, table)
        # The assessment of each table reports these, whether we or you created the publication.
        if problem.code not in _OF_EVERY_TABLE
    ]
    if lacking := sorted(_OPERATIONS - publication.operations):
        problems.append(
            Problem(
                code="publication_lacks_operations",
                message=f"The publication {publication.name} does not publish {', '.join(lacking)}.",
                location="source.publication",
                sql=(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');",),
                # Changes of these kinds are missing from the log, without a trace there.
                applies="always",
            )
        )
    if publication.is_for_all_tables:
        problems.append(
            Problem(
                code="publication_for_all_tables",
                message=f"The publication {publication.name} is FOR ALL TABLES: updates and deletes fail on every table"
                " without a replica identity, new ones included.",
                location="source.publication",
                action="List the tables by name instead.",
                severity=Severity.WARNING,
            )
        )
    return problems


_SERVER_QUERY: Final = f"""
SELECT current_setting('server_version'), current_setting('wal_level'), pg_is_in_recovery(),
  (SELECT count(*) FROM pg_replication_slots), current_setting('max_replication_slots')::int,
  (SELECT count(*) FROM pg_stat_replication), current_setting('max_wal_senders')::int,
  current_setting('max_slot_wal_keep_size'), current_user::text, r.rolsuper,
  r.rolreplication OR r.rolsuper OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'MEMBER')),
  has_database_privilege(current_database(), 'CREATE'), current_database()::text, {ddl_trigger.IS_INSTALLED}
FROM pg_roles r WHERE r.rolname = current_user
"""  # noqa: S608 our own text
