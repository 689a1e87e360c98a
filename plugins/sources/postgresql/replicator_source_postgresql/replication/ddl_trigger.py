"""The optional event trigger: with it the log announces altered tables at once, and not only with their next row."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import Problem, Severity

DDL_PREFIX: Final = "replicator_ddl"
"""Prefix of the logical messages that the trigger writes. Every user can write one: it makes capture look at the catalogue, and nothing
else. Its content is never read."""

VERSION: Final = 140000
"""The first version whose pgoutput sends messages."""

SCRIPT: Final = f"""\
CREATE SCHEMA IF NOT EXISTS replicator;  -- any schema will do
CREATE OR REPLACE FUNCTION replicator.announce_ddl() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
  altered text;
BEGIN
  IF tg_event = 'sql_drop' THEN
    SELECT string_agg(DISTINCT objid::text, ' ') INTO altered FROM pg_event_trigger_dropped_objects()
    WHERE NOT is_temporary AND object_type IN ('table', 'table column', 'table constraint', 'index', 'schema', 'publication relation');
  ELSE
    SELECT string_agg(DISTINCT objid::text, ' ') INTO altered FROM pg_event_trigger_ddl_commands()
    WHERE schema_name IS DISTINCT FROM 'pg_temp' AND split_part(object_type, ' ', 1) IN ('table', 'index', 'type', 'schema', 'publication');
  END IF;
  IF altered IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, '{DDL_PREFIX}', tg_tag || ' ' || altered);
  END IF;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'replicator.announce_ddl: %', SQLERRM;  -- the statement itself succeeds
END $$;
CREATE EVENT TRIGGER {DDL_PREFIX} ON ddl_command_end EXECUTE FUNCTION replicator.announce_ddl();
CREATE EVENT TRIGGER {DDL_PREFIX}_drop ON sql_drop EXECUTE FUNCTION replicator.announce_ddl();
ALTER EVENT TRIGGER {DDL_PREFIX} ENABLE ALWAYS;
ALTER EVENT TRIGGER {DDL_PREFIX}_drop ENABLE ALWAYS;
"""  # noqa: S608 our own text
"""Installs the trigger, in PostgreSQL 13 and later. The function has the rights of the user who alters a table, and needs none."""

IS_INSTALLED: Final = f"EXISTS (SELECT FROM pg_event_trigger WHERE evtname = '{DDL_PREFIX}' AND evtenabled <> 'D')"


def missing_trigger() -> Problem:
    """The finding for a database without the trigger."""
    return Problem(
        code="ddl_trigger_missing",
        message="PostgreSQL's log describes a table only before the next change of one of its rows; what else happens to tables is found "
        "once a minute. An optional event trigger announces it in the log",
        location="source",
        action=f"If they are to arrive at once, have a superuser run:\n{SCRIPT}",
        # One that is disabled would keep the new one from being created.
        sql=(
            f"DROP EVENT TRIGGER IF EXISTS {DDL_PREFIX};",
            f"DROP EVENT TRIGGER IF EXISTS {DDL_PREFIX}_drop;",
            SCRIPT.rstrip(),
        ),
        severity=Severity.NOTICE,
    )
