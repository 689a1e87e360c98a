-- Change Data Capture: what sp_cdc_enable_db will show in the schema cdc, and what the capture job keeps.
CREATE TABLE sqlserver.cdc_instances (
  capture_instance text PRIMARY KEY,
  object_id int NOT NULL,
  source_object_id int NOT NULL,
  start_lsn bytea,
  role_name text,
  index_name text,
  supports_net_changes int NOT NULL,
  partition_switch int NOT NULL,
  create_date timestamp NOT NULL
);
CREATE TABLE sqlserver.cdc_captured (
  object_id int NOT NULL, column_name text NOT NULL, column_id int, column_type text NOT NULL, column_ordinal int NOT NULL,
  is_computed int NOT NULL, is_dropped int NOT NULL DEFAULT 0, PRIMARY KEY (object_id, column_ordinal)
);
CREATE TABLE sqlserver.cdc_keys (object_id int NOT NULL, column_name text NOT NULL, index_ordinal int NOT NULL, column_id int NOT NULL);
CREATE TABLE sqlserver.cdc_ddl (
  source_object_id int NOT NULL, object_id int NOT NULL, required_column_update int NOT NULL, ddl_command text NOT NULL,
  ddl_lsn bytea NOT NULL, ddl_time timestamp NOT NULL
);
CREATE TABLE sqlserver.cdc_lsn_time (
  start_lsn bytea PRIMARY KEY, tran_begin_time timestamp, tran_end_time timestamp, tran_id bytea, tran_begin_lsn bytea
);
CREATE TABLE sqlserver.cdc_errors (session_id int NOT NULL, entry_time timestamp NOT NULL, error_number int NOT NULL, error_message text NOT NULL);
CREATE TABLE sqlserver.cdc_sessions (
  session_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, start_time timestamp NOT NULL, end_time timestamp NOT NULL,
  tran_count int NOT NULL, command_count int NOT NULL, start_lsn bytea, end_lsn bytea, error_count int NOT NULL
);
CREATE TABLE sqlserver.cdc_jobs (
  job_type text PRIMARY KEY, maxtrans int NOT NULL, maxscans int NOT NULL, continuous int NOT NULL, pollinginterval int NOT NULL,
  retention int NOT NULL, threshold int NOT NULL, is_running boolean NOT NULL DEFAULT true,
  is_enabled boolean NOT NULL DEFAULT true, job_id uuid NOT NULL DEFAULT gen_random_uuid()
);
-- How far the capture job has read PostgreSQL's log: written with what it captured.
CREATE TABLE sqlserver.cdc_progress (read_up_to pg_lsn NOT NULL);
-- What the capture job has to meet in the order of the log: a new instance, a changed definition.
CREATE TABLE sqlserver.cdc_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL, capture_instance text, source_object_id int,
  command text, column_name text, column_type text
);
CREATE PUBLICATION sqlserver_cdc FOR TABLE sqlserver.cdc_events WITH (publish = 'insert, update, delete');

CREATE FUNCTION sys.fn_cdc_get_max_lsn() RETURNS sqlserver."binary(10)" STABLE LANGUAGE sql AS
$$ SELECT start_lsn::sqlserver."binary(10)" FROM sqlserver.cdc_lsn_time ORDER BY start_lsn DESC LIMIT 1 $$;
-- 0x00… for an unknown instance, and for one that the capture job has not reached yet [rule 4].
CREATE FUNCTION sys.fn_cdc_get_min_lsn(wanted text) RETURNS sqlserver."binary(10)" STABLE LANGUAGE sql AS $$
  SELECT coalesce((SELECT start_lsn FROM sqlserver.cdc_instances WHERE lower(capture_instance) = lower(wanted)), '\x00000000000000000000'::bytea)
    ::sqlserver."binary(10)"
$$;
CREATE FUNCTION sqlserver.add_to_lsn(lsn bytea, step int) RETURNS sqlserver."binary(10)" IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
  at int := 9;
  made bytea := lsn;
  one int;
BEGIN
  LOOP
    one := get_byte(made, at) + step;
    made := set_byte(made, at, (one + 256) % 256);
    EXIT WHEN (one BETWEEN 0 AND 255) OR at = 0;
    at := at - 1;
  END LOOP;
  RETURN made;
END $$;
CREATE FUNCTION sys.fn_cdc_increment_lsn(lsn bytea) RETURNS sqlserver."binary(10)" IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.add_to_lsn(lsn, 1) $$;
CREATE FUNCTION sys.fn_cdc_decrement_lsn(lsn bytea) RETURNS sqlserver."binary(10)" IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.add_to_lsn(lsn, -1) $$;
CREATE FUNCTION sys.fn_cdc_map_lsn_to_time(lsn bytea) RETURNS sqlserver.datetime STABLE LANGUAGE sql AS
$$ SELECT tran_end_time::sqlserver.datetime FROM sqlserver.cdc_lsn_time WHERE start_lsn = lsn $$;
CREATE FUNCTION sys.fn_cdc_map_time_to_lsn(relation text, at timestamp) RETURNS sqlserver."binary(10)" STABLE LANGUAGE sql AS $$
  SELECT decode(CASE relation
    WHEN 'largest less than' THEN (SELECT max(encode(start_lsn, 'hex')) FROM sqlserver.cdc_lsn_time WHERE tran_end_time < at)
    WHEN 'largest less than or equal' THEN (SELECT max(encode(start_lsn, 'hex')) FROM sqlserver.cdc_lsn_time WHERE tran_end_time <= at)
    WHEN 'smallest greater than' THEN (SELECT min(encode(start_lsn, 'hex')) FROM sqlserver.cdc_lsn_time WHERE tran_end_time > at)
    WHEN 'smallest greater than or equal' THEN (SELECT min(encode(start_lsn, 'hex')) FROM sqlserver.cdc_lsn_time WHERE tran_end_time >= at)
  END, 'hex')::sqlserver."binary(10)"
$$;
-- The lowest ordinals are in the last byte of the mask [ISS: debezium/dbz#2650].
CREATE FUNCTION sys.fn_cdc_is_bit_set(ordinal int, mask bytea) RETURNS sqlserver.bit IMMUTABLE LANGUAGE sql AS $$
  SELECT (CASE WHEN (ordinal - 1) / 8 < length(mask)
    THEN get_byte(mask, length(mask) - 1 - (ordinal - 1) / 8) >> ((ordinal - 1) % 8) & 1 ELSE 0 END)::int2::sqlserver.bit
$$;
CREATE FUNCTION sys.fn_cdc_get_column_ordinal(instance text, wanted text) RETURNS int STABLE LANGUAGE sql AS $$
  SELECT c.column_ordinal FROM sqlserver.cdc_captured c JOIN sqlserver.cdc_instances i ON i.object_id = c.object_id
  WHERE lower(i.capture_instance) = lower(instance) AND lower(c.column_name) = lower(wanted)
$$;

-- A value that is larger than `max text repl size` fails in the application once the table is captured [rule 9].
-- Its arguments: the columns, and those of them that have two bytes for each character.
CREATE FUNCTION sqlserver.check_large_values() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  size_max int := (SELECT max_text_repl_size FROM sqlserver.database);
  is_new boolean := TG_OP = 'INSERT';
  present jsonb := to_jsonb(NEW);
  name text;
  size bigint;
BEGIN
  FOREACH name IN ARRAY TG_ARGV[0]::text[] LOOP
    CONTINUE WHEN NOT present ? name OR (NOT is_new AND present -> name = to_jsonb(OLD) -> name);
    EXECUTE format('SELECT octet_length(($1).%I)', name) INTO size USING NEW;
    IF name = ANY (TG_ARGV[1]::text[]) THEN
      EXECUTE format('SELECT 2 * length(($1).%I)', name) INTO size USING NEW;
    END IF;
    IF size_max >= 0 AND size > size_max THEN
      RAISE EXCEPTION 'Length of LOB data (%) to be replicated exceeds configured maximum %.', size, size_max
        USING ERRCODE = 'MS000', HINT = '7139';
    END IF;
  END LOOP;
  RETURN NEW;
END $$;

CREATE VIEW sys.tables AS
  SELECT o.name, o.object_id, o.schema_id, o.type, o.type_desc, o.is_ms_shipped,
    EXISTS (SELECT 1 FROM sqlserver.cdc_instances i WHERE i.source_object_id = o.object_id)::int::sqlserver.bit AS is_tracked_by_cdc,
    0::sqlserver.tinyint AS temporal_type, 0::sqlserver.bit AS is_memory_optimized, 0::sqlserver.bit AS is_external,
    0::sqlserver.bit AS is_filetable, 0::sqlserver.bit AS is_node, 0::sqlserver.bit AS is_edge
  FROM sys.objects o WHERE o.type = 'U ' AND sqlserver.is_visible(o.object_id, o.schema_id);
CREATE VIEW sys.partitions AS
  SELECT r.oid::int AS object_id, 1 AS index_id, 1 AS partition_number, greatest(c.reltuples, 0)::bigint AS rows,
    r.oid::bigint AS partition_id, r.oid::bigint AS hobt_id
  FROM sqlserver.relations r JOIN pg_catalog.pg_class c ON c.oid = r.oid WHERE r.relkind = 'r';
-- The table's own pages, and those of its large values [DOC: sys.allocation_units; type 1, IN_ROW_DATA, and 2, LOB_DATA].
CREATE VIEW sys.allocation_units AS
  SELECT p.partition_id AS container_id, k.type::int AS type,
    (CASE k.type WHEN 1 THEN pg_relation_size(c.oid) ELSE coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) END / 8192)::bigint AS used_pages
  FROM sys.partitions p JOIN pg_catalog.pg_class c ON c.oid::bigint = p.partition_id CROSS JOIN (VALUES (1), (2)) AS k(type);
CREATE VIEW sys.dm_cdc_errors AS
  SELECT session_id, 0 AS phase_number, entry_time::sqlserver.datetime AS entry_time, error_number, 16 AS error_severity, 1 AS error_state,
    error_message::sqlserver."nvarchar(4000)" AS error_message, ''::sqlserver."nvarchar(60)" AS start_lsn, ''::sqlserver."nvarchar(60)" AS begin_lsn
  FROM sqlserver.cdc_errors;
CREATE VIEW sys.dm_cdc_log_scan_sessions AS
  SELECT session_id, start_time::sqlserver.datetime AS start_time, end_time::sqlserver.datetime AS end_time, 0 AS duration,
    'Done'::sqlserver."nvarchar(60)" AS scan_phase, error_count, sys.fn_varbintohexstr(start_lsn)::sqlserver."nvarchar(60)" AS start_lsn,
    sys.fn_varbintohexstr(end_lsn)::sqlserver."nvarchar(60)" AS end_lsn, tran_count::bigint AS tran_count,
    command_count::bigint AS command_count, (tran_count = 0)::int AS empty_scan_count
  FROM sqlserver.cdc_sessions;
-- Statements that run. Of who waits for a lock it has one of those that keep it, the kind of lock, and the table.
CREATE VIEW sys.dm_exec_requests AS
  SELECT a.pid AS session_id, 5::int2 AS database_id, (CASE WHEN l.pid IS NULL THEN 'running' ELSE 'suspended' END)::sqlserver."nvarchar(60)" AS status,
    coalesce((pg_catalog.pg_blocking_pids(a.pid))[1], 0) AS blocking_session_id,
    (CASE l.mode WHEN 'AccessExclusiveLock' THEN 'LCK_M_SCH_M' WHEN 'RowExclusiveLock' THEN 'LCK_M_IX' WHEN 'AccessShareLock' THEN 'LCK_M_SCH_S'
      WHEN 'ShareLock' THEN 'LCK_M_S' WHEN 'ExclusiveLock' THEN 'LCK_M_X' END)::sqlserver."nvarchar(60)" AS wait_type,
    coalesce('OBJECT: 5:' || l.relation::bigint || ':0 ', '')::sqlserver."nvarchar(60)" AS wait_resource
  FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND NOT l.granted
  WHERE a.datname = pg_catalog.current_database() AND a.state = 'active' AND a.backend_type = 'client backend';
CREATE VIEW sys.dm_server_services AS
  SELECT 'SQL Server Agent (MODEL)'::sqlserver."nvarchar(60)" AS servicename, CASE WHEN is_agent_running THEN 4 ELSE 1 END AS status,
    (CASE WHEN is_agent_running THEN 'Running' ELSE 'Stopped' END)::sqlserver."nvarchar(60)" AS status_desc
  FROM sqlserver.database;
CREATE VIEW msdb.cdc_jobs AS
  SELECT 5 AS database_id, job_type::sqlserver."nvarchar(60)" AS job_type, maxtrans, maxscans, continuous::int2::sqlserver.bit AS continuous,
    pollinginterval::bigint AS pollinginterval, retention::bigint AS retention, threshold::bigint AS threshold,
    job_id
  FROM sqlserver.cdc_jobs;
