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

from replicator.model.errors import Problem
from replicator_source_postgresql import rules
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
_OF_EVERY_TABLE: Final = frozenset({rules.IS_PARTITION.code, rules.UNLOGGED_TABLE.code, rules.UNLOGGED_PARTITION.code})


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
    return rules.SERVER_TOO_OLD.finding(version_text=facts.version_text)


def assess_server(facts: ServerFacts, resources: Resources) -> list[Problem]:
    """Findings that concern the server and the role rather than a table."""
    problems = []
    if facts.is_in_recovery:
        problems.append(rules.SERVER_IS_STANDBY.finding())
    if facts.wal_level != "logical":
        problems.append(rules.WAL_LEVEL_NOT_LOGICAL.finding(wal_level=facts.wal_level))
    problems += _assess_role(facts)
    problems += _assess_capacity(facts, resources)
    if facts.wal_keep_max == "-1":
        problems.append(rules.WAL_KEEP_UNBOUNDED.finding())
    else:
        problems.append(rules.WAL_KEEP_BOUNDED.finding(wal_keep_max=facts.wal_keep_max))
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
        problems.append(rules.ROLE_LACKS_REPLICATION.finding(role=facts.role, role_2=role))
    elif facts.replication_error is not None:
        problems.append(rules.REPLICATION_REFUSED.finding(replication_error=facts.replication_error))
    if facts.is_superuser:
        problems.append(rules.ROLE_IS_SUPERUSER.finding(role=facts.role))
    return problems


def _assess_capacity(facts: ServerFacts, resources: Resources) -> list[Problem]:
    problems = []
    if resources.slot is None and not resources.is_slot_given and facts.slots_used >= facts.slots_max:
        problems.append(
            rules.NO_FREE_SLOT.finding(
                slots_max=facts.slots_max, sql=(_raised("max_replication_slots", facts.slots_max),)
            )
        )
    if facts.senders_used >= facts.senders_max:
        problems.append(
            rules.NO_FREE_WAL_SENDER.finding(
                senders_max=facts.senders_max, sql=(_raised("max_wal_senders", facts.senders_max),)
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
        statement = f"SELECT pg_create_logical_replication_slot({name}, '{PLUGIN}');"
        return [rules.SLOT_MISSING.finding(name=resources.slot_name, statement=statement, sql=(statement,))]
    fault = slot.unusable_in(database)
    if fault is not None:
        return [rules.SLOT_UNUSABLE.finding(name=slot.name, fault=fault)]
    if slot.lost is not None:
        return [rules.SLOT_LOST.finding(name=slot.name, lost=slot.lost, literal=name)]
    if slot.active_pid is not None:
        holder = f"the server process {slot.active_pid}"
        # The replicator that runs under this configuration may be that process: no hindrance to looking.
        return [rules.SLOT_ACTIVE.finding(name=slot.name, holder=holder)]
    return []


def _assess_own_slot(resources: Resources, database: str) -> list[Problem]:
    slot = resources.slot
    fault = slot.unusable_in(database) if slot is not None else None
    if slot is None or fault is None:
        return []
    return [rules.SLOT_NAME_TAKEN.finding(name=slot.name, fault=fault)]


def _assess_own_publication(facts: ServerFacts, resources: Resources, tables: Sequence[CatalogTable]) -> list[Problem]:
    publication = resources.publication
    problems = []
    already = publication.tables if publication else frozenset()
    not_owned = [t for t in tables if not t.is_owned and t.table not in already]
    if publication is not None and belongs_to_another(publication, resources.uuid):
        problems.append(rules.PUBLICATION_OF_ANOTHER.finding(name=publication.name))
    elif publication is not None and publication.is_for_all_tables:
        problems.append(_publication_taken(publication))
    elif publication is not None and not publication.is_owned:
        problems.append(
            rules.PUBLICATION_NOT_OWNED.finding(
                name=publication.name, owner=publication.owner, sql=(_grant_owner(publication.owner, facts.role),)
            )
        )
    elif publication is None and not facts.may_create_in_database:
        database, role = (sql.Identifier(name).as_string(None) for name in (facts.database, facts.role))
        grant = f"GRANT CREATE ON DATABASE {database} TO {role};"
        problems.append(
            rules.MAY_NOT_CREATE_PUBLICATION.finding(
                role=facts.role, database=facts.database, grant=grant, sql=(grant,)
            )
        )
    may_create = facts.may_create_in_database and not not_owned
    if publication is None and not may_create:
        problems.append(_proposed_publication(resources.publication_name, tables))
    problems += [_table_not_owned(t, facts.role, publication) for t in not_owned]
    return problems


def _proposed_publication(name: str, tables: Sequence[CatalogTable]) -> Problem:
    """One finding for all tables that the role may not publish: the statement is long, and the same for each."""
    return rules.PUBLICATION_PROPOSED.finding(name=name, action=proposed_statements(name, tables))


def _table_not_owned(table: CatalogTable, role: str, publication: Publication | None) -> Problem:
    grant = _grant_owner(table.owner, role)
    addition = None if publication is None else addition_statement(publication.name, [table.table])
    instead = rules.OWNER_CREATES if addition is None else f"run as a superuser: {addition}"
    return rules.TABLE_NOT_OWNED.finding(
        table=str(table.table), owner=table.owner, grant=grant, instead=instead, sql=(addition or grant,)
    )


def _grant_owner(owner: str, role: str) -> str:
    """Return the SQL that makes the role an owner, too."""
    return f"GRANT {sql.Identifier(owner).as_string(None)} TO {sql.Identifier(role).as_string(None)};"


def _publication_taken(publication: Publication) -> Problem:
    return rules.PUBLICATION_NAME_TAKEN.finding(name=publication.name)


def _assess_given_publication(resources: Resources, tables: Sequence[CatalogTable]) -> list[Problem]:
    publication = resources.publication
    name = sql.Identifier(resources.publication_name).as_string(None)
    if publication is None:
        action = proposed_statements(resources.publication_name, tables)
        script = tuple(creation_script(resources.publication_name, tables))
        return [rules.PUBLICATION_MISSING.finding(name=resources.publication_name, action=action, sql=script)]
    problems = [
        problem
        for table in tables
        for problem in unseen_changes(publication, table)
        # The assessment of each table reports these, whether we or you created the publication.
        if problem.code not in _OF_EVERY_TABLE
    ]
    if lacking := sorted(_OPERATIONS - publication.operations):
        problems.append(
            rules.PUBLICATION_LACKS_OPERATIONS.finding(name=publication.name, lacking=", ".join(lacking), quoted=name)
        )
    if publication.is_for_all_tables:
        problems.append(rules.PUBLICATION_FOR_ALL_TABLES.finding(name=publication.name))
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
