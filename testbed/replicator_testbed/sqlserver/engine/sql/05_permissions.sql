-- Who may do what, and the tables of msdb. `engine/permissions.py` keeps these tables.
CREATE TABLE sqlserver.owners (login text PRIMARY KEY);
-- object_id: 0 for what concerns the server or the database, a negative number for a schema.
CREATE TABLE sqlserver.permissions (
  login text NOT NULL, permission text NOT NULL, object_id int NOT NULL, is_denied boolean NOT NULL, PRIMARY KEY (login, permission, object_id)
);

CREATE FUNCTION sqlserver.is_owner() RETURNS boolean STABLE LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM sqlserver.owners WHERE login = current_setting('sqlserver.login', true))
$$;
CREATE FUNCTION sqlserver.user_name() RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$
  SELECT (CASE WHEN sqlserver.is_owner() THEN 'dbo' ELSE sqlserver.suser_sname() END)::sqlserver.sysname
$$;
-- The owners of the model's database are its administrators, too.
CREATE FUNCTION sqlserver.is_srvrolemember(role text) RETURNS int STABLE LANGUAGE sql AS $$ SELECT sqlserver.is_owner()::int $$;
CREATE FUNCTION sqlserver.is_member(role text) RETURNS int STABLE LANGUAGE sql AS $$ SELECT sqlserver.is_owner()::int $$;
CREATE FUNCTION sqlserver.is_rolemember(role text) RETURNS int STABLE LANGUAGE sql AS $$ SELECT sqlserver.is_owner()::int $$;
-- A denial counts more than a grant or a role [DOC: Permissions, summary of the permission check algorithm].
CREATE FUNCTION sqlserver.has_permission(wanted text, on_object int) RETURNS boolean STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN bool_or(is_denied) THEN false ELSE sqlserver.is_owner() OR count(*) > 0 END
  FROM sqlserver.permissions p
  WHERE p.login = current_setting('sqlserver.login', true) AND p.permission = upper(wanted)
    AND p.object_id IN (on_object, (SELECT -r.schema_id FROM sqlserver.relations r WHERE r.oid::int = on_object AND on_object <> 0))
$$;
-- NULL for an object that is not there. A database has a name of one part; NULL is the current one [DOC: HAS_PERMS_BY_NAME].
CREATE FUNCTION sqlserver.has_perms_by_name(securable text, class text, permission text) RETURNS int STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN upper(class) = 'DATABASE' AND lower(securable) NOT IN (
      SELECT one FROM sqlserver.database d, LATERAL (VALUES (lower(sqlserver.quotename(d.name))),
        (CASE WHEN d.name ~ '^[[:alpha:]_][[:alnum:]_]*$' THEN lower(d.name) END)) AS named(one) WHERE one IS NOT NULL) THEN NULL
    WHEN upper(class) <> 'OBJECT' OR class IS NULL THEN sqlserver.has_permission(permission, 0)::int
    WHEN sqlserver.object_id(securable) IS NULL THEN NULL
    ELSE sqlserver.has_permission(permission, sqlserver.object_id(securable))::int END
$$;
CREATE FUNCTION sqlserver.has_perms_by_name(securable text, class text, permission text, sub text, sub_class text) RETURNS int STABLE LANGUAGE sql AS
$$ SELECT sqlserver.has_perms_by_name(securable, class, permission) $$;

-- Security policies are listed, and hide no row. An account without VIEW DEFINITION sees none [DOC: sys.security_predicates].
CREATE TABLE sqlserver.security_predicates (object_id int GENERATED ALWAYS AS IDENTITY (START WITH 900000) PRIMARY KEY,
  target_object_id int NOT NULL, predicate_type int NOT NULL DEFAULT 0, is_enabled boolean NOT NULL DEFAULT true);
CREATE VIEW sys.security_predicates AS
  SELECT object_id, 1 AS security_predicate_id, target_object_id, predicate_type FROM sqlserver.security_predicates
  WHERE sqlserver.has_permission('VIEW DEFINITION', 0);
CREATE VIEW sys.security_policies AS
  SELECT object_id, is_enabled::int::sqlserver.bit AS is_enabled FROM sqlserver.security_predicates
  WHERE sqlserver.has_permission('VIEW DEFINITION', 0);

-- Of a secondary replica the server knows no positions [DOC: sys.dm_db_log_stats]. The number of the error: K.
CREATE FUNCTION sys.dm_db_log_stats(wanted int) RETURNS TABLE (database_id int, log_end_lsn sqlserver."nvarchar(60)") VOLATILE LANGUAGE plpgsql AS $$
BEGIN
  IF NOT (sqlserver.has_permission('VIEW SERVER STATE', 0) OR sqlserver.has_permission('VIEW SERVER PERFORMANCE STATE', 0)) THEN
    RAISE EXCEPTION 'VIEW SERVER STATE permission was denied on object ''server'', database ''master''.' USING ERRCODE = 'MS000', HINT = '300';
  END IF;
  RETURN QUERY SELECT wanted, (CASE WHEN NOT d.is_read_only THEN
    regexp_replace(lpad(to_hex((pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint - 1), 16, '0'), '^(.{8})', '\1:') || ':0001'
    END)::sqlserver."nvarchar(60)" FROM sqlserver.database d;
END $$;

-- SQL Server Agent's own tables. The capture job runs without end, the cleanup at night.
CREATE VIEW msdb.sysjobs AS
  SELECT job_id, ('cdc.' || d.name || '_' || j.job_type)::sqlserver.sysname AS name, j.is_enabled::int::sqlserver.tinyint AS enabled
  FROM sqlserver.cdc_jobs j CROSS JOIN sqlserver.database d;
CREATE VIEW msdb.sysjobactivity AS
  SELECT 1 AS session_id, job_id, d.create_date::sqlserver.datetime AS start_execution_date,
    (CASE WHEN NOT (j.job_type = 'capture' AND j.is_running AND d.is_agent_running) THEN d.create_date END)::sqlserver.datetime AS stop_execution_date
  FROM sqlserver.cdc_jobs j CROSS JOIN sqlserver.database d;
