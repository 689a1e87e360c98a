"""Findings with change tracking: `check`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from replicator.model.errors import Problem, Severity
from replicator.model.schema import TableId
from replicator_source_sqlserver import remedies, rules
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
            rules.SNAPSHOT_NEEDED_FOR_TRACKING.finding(
                location=facts.database, database=facts.database, sql=(remedies.ALLOW_SNAPSHOTS,)
            )
        )
    if settings is None:
        problems.append(
            rules.TRACKING_OFF.finding(
                location=facts.database, database=facts.database, sql=(remedies.track_database(_WEEK),)
            )
        )
        return problems
    if not settings.is_cleaned:
        problems.append(rules.TRACKING_NOT_CLEANED.finding(sql=(remedies.clean_tracking(),)))
        return problems
    kept = settings.retention
    problems.append(
        rules.TRACKING_RETENTION.finding(
            kept=kept / _DAY,
            action="If a pause may be longer, raise CHANGE_RETENTION." if kept >= _WEEK else None,
            sql=() if kept >= _WEEK else (remedies.keep_tracking_for(_WEEK),),
            severity=Severity.WARNING if kept < _DAY else Severity.NOTICE,
        )
    )
    return problems


def _account(facts: ServerFacts, config: SqlServerConfig) -> list[Problem]:
    problems = assessment.assess_account(facts, config)
    if config.mark_table_id is not None:
        problems.append(rules.MARK_TABLE_NOT_NEEDED.finding())
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
            f"Its primary key ({', '.join(table.primary_key)}) has a part that cannot identify a row"
            if table.primary_key
            else "It has no primary key"
        )
        return [rules.KEY_NEEDED_FOR_TRACKING.finding(table=str(table.table), reason=reason, name=name)]
    declared = {k: table.specs[k].declared for k in table.key}
    spelled = [k for k, kind in declared.items() if kind.collation is not None or kind.name == "varbinary"]
    if not spelled:
        return []
    return [rules.KEY_SPELLING.finding(table=str(table.table), spelled=", ".join(spelled))]


def _tracked(
    table: CatalogTable, facts: ServerFacts, settings: TrackingSettings | None, config: SqlServerConfig
) -> list[Problem]:
    if table.tracking is None or not table.primary_key:
        return []
    if table.tracking.since is None:
        if config.manage_capture:
            return []
        return [
            rules.TABLE_NOT_TRACKED_0.finding(
                table=str(table.table),
                sql=remedies.track_table(table.table, facts.account),
                severity=Severity.BLOCKING if settings is not None else Severity.WARNING,
            )
        ]
    if table.tracking.min_valid is None:
        return [
            rules.TRACKING_NOT_VISIBLE_0.finding(
                table=str(table.table),
                user=facts.account.user,
                table_name=quoted_table(table.table),
                user_2=quoted(facts.account.user),
            )
        ]
    return []
