"""Findings with change tracking: `check`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator_source_sqlserver import remedies
from replicator_source_sqlserver.assessment import server as assessment
from replicator_source_sqlserver.assessment import tables as table_assessment
from replicator_source_sqlserver.catalogue.server import ServerFacts
from replicator_source_sqlserver.catalogue.tables import CatalogTable
from replicator_source_sqlserver.config import SqlServerConfig
from replicator_source_sqlserver.names import quoted, quoted_table
from replicator_source_sqlserver.tracking.queries import TrackingSettings

_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)


def assess(
    facts: ServerFacts,
    settings: TrackingSettings | None,
    found: Mapping[TableId, CatalogTable],
    tables: Sequence[TableId],
    config: SqlServerConfig,
) -> list[Problem]:
    """Find everything that would keep these tables from being replicated correctly.

    Args:
        facts: Facts of the server.
        settings: The settings of change tracking of the database; None: it is off.
        found: The tables that exist, as the catalogue has them.
        tables: All of them.
        config: The configuration.
    """
    if too_old := assessment.assess_version(facts):
        return too_old
    problems = [*_database(facts, settings), *_account(facts, config)]
    for table in tables:
        problems += (
            _table(found[table], facts, settings, config) if table in found else [table_assessment.missing_table(table)]
        )
    return problems


def _database(facts: ServerFacts, settings: TrackingSettings | None) -> list[Problem]:
    problems = []
    if not facts.is_snapshot_allowed:
        problems.append(
            Problem(
                code="snapshot_isolation_off",
                message=f"Changes and rows are read in SNAPSHOT transactions, which the database {facts.database} does not allow.",
                location=facts.database,
                sql=(remedies.ALLOW_SNAPSHOTS,),
            )
        )
    if settings is None:
        problems.append(
            Problem(
                code="change_tracking_off",
                message=f"Change tracking is off for the database {facts.database}.",
                location=facts.database,
                sql=(remedies.track_database(_WEEK),),
            )
        )
        return problems
    if not settings.is_cleaned:
        problems.append(
            Problem(
                code="tracking_not_cleaned",
                message="AUTO_CLEANUP is off: what is known of changes grows without a limit.",
                location="sys.change_tracking_databases",
                sql=(remedies.clean_tracking(),),
                severity=Severity.WARNING,
            )
        )
        return problems
    kept = settings.retention
    problems.append(
        Problem(
            code="log_retention",
            message=f"The server keeps changes for {kept / _DAY:.1f} days; after a longer pause every table is read again.",
            location="sys.change_tracking_databases",
            action="If a pause may be longer, raise CHANGE_RETENTION." if kept >= _WEEK else None,
            sql=() if kept >= _WEEK else (remedies.keep_tracking_for(_WEEK),),
            severity=Severity.WARNING if kept < _DAY else Severity.NOTICE,
        )
    )
    return problems


def _account(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    problems = assessment.assess_account(facts, config)
    if config.mark_table_id is not None:
        problems.append(
            Problem(
                code="mark_table",
                message="Change tracking needs no mark table: nothing is written into it.",
                location="source.mark_table",
                action="Leave source.mark_table out.",
                severity=Severity.NOTICE,
            )
        )
    return problems


def _table(
    table: CatalogTable, facts: ServerFacts, settings: TrackingSettings | None, config: SqlServerConfig
) -> list[Problem]:
    return [
        *table_assessment.assess_columns(table, facts),
        *_key(table),
        *table_assessment.assess_old_writes(table, config),
        *_tracked(table, facts, settings, config),
        *table_assessment.assess_reading(table, facts, config),
    ]


def _key(table: CatalogTable) -> list[Problem]:
    name = quoted_table(table.table)
    if not table.key:
        reason = (
            f"its primary key ({', '.join(table.primary_key)}) has a part that cannot identify a row"
            if table.primary_key
            else "it has no primary key"
        )
        return [
            Problem(
                code="key_needed",
                table=str(table.table),
                message=f"{reason}, and change tracking tells changed rows by it",
                action=f"ALTER TABLE {name} ADD PRIMARY KEY (…); -- or exclude the table, or set source.capture: cdc",
            )
        ]
    declared = {k: table.specs[k].declared for k in table.key}
    spelled = [k for k, kind in declared.items() if kind.collation is not None or kind.name == "varbinary"]
    if not spelled:
        return []
    return [
        Problem(
            code="key_spelling",
            table=str(table.table),
            message=f"its key has text or varbinary ({', '.join(spelled)}): if it changes only in case, accents, trailing spaces or "
            "trailing zeros, the target may keep the row under the former spelling, too",
            action="If such changes happen, run `replicator snapshot NAME TABLE` after them, or set source.capture: cdc.",
            severity=Severity.WARNING,
        )
    ]


def _tracked(
    table: CatalogTable, facts: ServerFacts, settings: TrackingSettings | None, config: SqlServerConfig
) -> list[Problem]:
    if table.tracking is None or not table.primary_key:
        return []
    if table.tracking.since is None:
        if config.manage_capture:
            return []
        return [
            Problem(
                code="table_not_tracked",
                table=str(table.table),
                message="its changes are not tracked",
                # If the database tracks nothing, that is the cause, which fails no table by itself.
                severity=Severity.BLOCKING if settings is not None else Severity.WARNING,
                sql=remedies.track_table(table.table, facts.account),
            )
        ]
    if table.tracking.min_valid is None:
        return [
            Problem(
                code="tracking_not_visible",
                table=str(table.table),
                message=f"the account {facts.account.user} may not see its changes",
                sql=(f"GRANT VIEW CHANGE TRACKING ON {quoted_table(table.table)} TO {quoted(facts.account.user)};",),
                is_access=True,
            )
        ]
    return []
