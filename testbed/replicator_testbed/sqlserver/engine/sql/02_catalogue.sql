-- The catalogue views, as far as discovery asks them. They are PostgreSQL's own catalogue, read with SQL Server's names.
CREATE TABLE sqlserver.schemas (name text PRIMARY KEY, schema_id int NOT NULL);
INSERT INTO sqlserver.schemas VALUES ('dbo', 1), ('sys', 4);

-- One row: what ALTER DATABASE and sp_configure can change.
CREATE TABLE sqlserver.database (
  name text NOT NULL,
  collation_name text NOT NULL DEFAULT 'SQL_Latin1_General_CP1_CI_AS',
  is_cdc_enabled boolean NOT NULL DEFAULT false,
  snapshot_isolation_state int NOT NULL DEFAULT 0,
  is_read_committed_snapshot_on boolean NOT NULL DEFAULT true,
  max_text_repl_size int NOT NULL DEFAULT 65536,
  edition text NOT NULL DEFAULT 'Developer Edition (64-bit)',
  create_date timestamp NOT NULL DEFAULT now(),
  family_guid uuid NOT NULL DEFAULT gen_random_uuid(),
  recovery_fork_guid uuid NOT NULL DEFAULT gen_random_uuid(),
  version text NOT NULL DEFAULT '16.0.4000.0',
  is_read_only boolean NOT NULL DEFAULT false,
  is_agent_running boolean NOT NULL DEFAULT true,
  max_text_repl_size_configured int NOT NULL DEFAULT 65536,
  engine_edition int,
  is_published boolean NOT NULL DEFAULT false,
  is_accelerated boolean NOT NULL DEFAULT false,
  delayed_durability int NOT NULL DEFAULT 0,
  user_options int NOT NULL DEFAULT 0,
  user_options_configured int NOT NULL DEFAULT 0
);
-- SERVERPROPERTY('EngineEdition') [DOC: SERVERPROPERTY]. A Managed Instance (8) calls its edition as Azure SQL Database (5) does.
CREATE FUNCTION sqlserver.engine() RETURNS int STABLE LANGUAGE sql AS $$
  SELECT coalesce(engine_edition, CASE WHEN edition LIKE 'Express%' THEN 4 WHEN edition LIKE 'SQL Azure%' THEN 5
    WHEN edition LIKE 'Standard%' OR edition LIKE 'Web%' THEN 2 ELSE 3 END) FROM sqlserver.database
$$;

-- Where tables are, as far as it shows: partition schemes, and the tables that they spread.
CREATE TABLE sqlserver.partition_schemes (name text PRIMARY KEY, data_space_id int GENERATED ALWAYS AS IDENTITY (START WITH 65601));
CREATE TABLE sqlserver.partition_functions (name text PRIMARY KEY, function_id int GENERATED ALWAYS AS IDENTITY (START WITH 65536));
CREATE TABLE sqlserver.partitioned (object_id int PRIMARY KEY, data_space_id int NOT NULL);
-- Clustered columnstore indexes: names for the catalogue, of tables that are stored as all others.
CREATE TABLE sqlserver.columnstores (object_id int PRIMARY KEY, name text NOT NULL);
CREATE FUNCTION sqlserver.has_columnstore(number oid) RETURNS boolean STABLE LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM sqlserver.columnstores c WHERE c.object_id = number::int)
$$;
-- What else is said of a column: that it is masked, sparse, or a column set.
CREATE TABLE sqlserver.column_facts (object_id int NOT NULL, column_name text NOT NULL, fact text NOT NULL);
CREATE FUNCTION sqlserver.is_said(number oid, wanted name, what text) RETURNS sqlserver.bit STABLE LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM sqlserver.column_facts f WHERE f.object_id = number::int AND f.column_name = wanted AND f.fact = what)::int::sqlserver.bit
$$;

-- Alias types, and the columns that have them: what is stored is the type behind them [DOC: CREATE TYPE].
CREATE TABLE sqlserver.aliases (
  user_type_id int GENERATED ALWAYS AS IDENTITY (START WITH 257) PRIMARY KEY,
  schema_name text NOT NULL,
  name text NOT NULL,
  base text NOT NULL,
  is_nullable boolean NOT NULL
);
CREATE TABLE sqlserver.alias_columns (object_id int NOT NULL, column_id int NOT NULL, user_type_id int NOT NULL, PRIMARY KEY (object_id, column_id));

-- Relations that a user of SQL Server sees; PostgreSQL's oid serves as object_id, and stays when a table is renamed.
CREATE VIEW sqlserver.relations AS
  SELECT c.oid, c.relname, c.relkind, c.relnatts, s.name AS schema_name, s.schema_id
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN sqlserver.schemas s ON s.name = n.nspname
  WHERE c.relkind IN ('r', 'v') AND n.nspname NOT IN ('sys');

CREATE VIEW sys.schemas AS
  SELECT name::sqlserver.sysname AS name, schema_id, 1 AS principal_id FROM sqlserver.schemas;

CREATE VIEW sys.types AS
  SELECT * FROM (SELECT DISTINCT ON (type_name) type_name::sqlserver.sysname AS name, system_type_id::sqlserver.tinyint AS system_type_id,
    user_type_id, 4 AS schema_id,
    max_length::int2 AS max_length, precision_digits::sqlserver.tinyint AS precision, scale_digits::sqlserver.tinyint AS scale,
    (CASE WHEN is_text THEN (SELECT d.collation_name FROM sqlserver.database d) END)::sqlserver.sysname AS collation_name,
    (type_name <> 'sysname')::int::sqlserver.bit AS is_nullable, 0::sqlserver.bit AS is_user_defined,
    (system_type_id = 240)::int::sqlserver.bit AS is_assembly_type
  FROM sqlserver.types WHERE type_name <> 'json' OR (SELECT split_part(d.version, '.', 1)::int FROM sqlserver.database d) >= 17
  ORDER BY type_name, max_length DESC) AS system_types
  UNION ALL
  SELECT a.name::sqlserver.sysname, t.system_type_id::sqlserver.tinyint, a.user_type_id, s.schema_id,
    t.max_length::int2, t.precision_digits::sqlserver.tinyint, t.scale_digits::sqlserver.tinyint,
    (CASE WHEN t.is_text THEN (SELECT d.collation_name FROM sqlserver.database d) END)::sqlserver.sysname,
    a.is_nullable::int::sqlserver.bit, 1::sqlserver.bit, 0::sqlserver.bit
  FROM sqlserver.aliases a JOIN sqlserver.types t ON t.name = a.base JOIN sqlserver.schemas s ON s.name = a.schema_name;

CREATE VIEW sys.objects AS
  SELECT relname::sqlserver.sysname AS name, oid::int AS object_id, schema_id, 0 AS parent_object_id,
    (CASE relkind WHEN 'r' THEN 'U ' ELSE 'V ' END)::sqlserver."char(2)" AS type,
    (CASE relkind WHEN 'r' THEN 'USER_TABLE' ELSE 'VIEW' END)::sqlserver."nvarchar(60)" AS type_desc,
    (schema_name = 'cdc')::int::sqlserver.bit AS is_ms_shipped
  FROM sqlserver.relations
  UNION ALL
  SELECT con.conname::sqlserver.sysname, con.oid::int, r.schema_id, r.oid::int,
    (CASE con.contype WHEN 'p' THEN 'PK' ELSE 'UQ' END)::sqlserver."char(2)",
    (CASE con.contype WHEN 'p' THEN 'PRIMARY_KEY_CONSTRAINT' ELSE 'UNIQUE_CONSTRAINT' END)::sqlserver."nvarchar(60)",
    0::sqlserver.bit
  FROM pg_catalog.pg_constraint con JOIN sqlserver.relations r ON r.oid = con.conrelid WHERE con.contype IN ('p', 'u');

-- A user sees an object on which it has some permission, itself or through the schema [DOC: Metadata visibility configuration]. The model itself
-- has no login. Its tables are those of 05_permissions.sql.
CREATE FUNCTION sqlserver.is_visible(number int, schema_number int) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce(current_setting('sqlserver.login', true), '') = '' OR sqlserver.is_owner() OR EXISTS (
    SELECT 1 FROM sqlserver.permissions p WHERE p.login = current_setting('sqlserver.login', true)
      AND p.object_id IN (number, -schema_number) AND NOT p.is_denied);
END $$;

CREATE VIEW sys.columns AS
  SELECT r.oid::int AS object_id, a.attname::sqlserver.sysname AS name, a.attnum::int AS column_id,
    t.system_type_id::sqlserver.tinyint AS system_type_id,
    coalesce((SELECT ac.user_type_id FROM sqlserver.alias_columns ac WHERE ac.object_id = r.oid::int AND ac.column_id = a.attnum), t.user_type_id)
      AS user_type_id,
    t.max_length::int2 AS max_length, t.precision_digits::sqlserver.tinyint AS precision, t.scale_digits::sqlserver.tinyint AS scale,
    (CASE WHEN t.is_text THEN coalesce(co.collname, (SELECT d.collation_name FROM sqlserver.database d)) END)::sqlserver.sysname AS collation_name,
    (NOT a.attnotnull)::int::sqlserver.bit AS is_nullable,
    (a.attidentity <> '' OR sqlserver.is_said(r.oid, a.attname, 'identity') = 1)::int::sqlserver.bit AS is_identity,
    (a.attgenerated <> '')::int::sqlserver.bit AS is_computed,
    sqlserver.is_said(r.oid, a.attname, 'sparse') AS is_sparse, sqlserver.is_said(r.oid, a.attname, 'column set') AS is_column_set,
    0::sqlserver.bit AS is_hidden,
    0::sqlserver.bit AS is_rowguidcol, 0::sqlserver.bit AS is_filestream,
    sqlserver.is_said(r.oid, a.attname, 'masked') AS is_masked,
    NULL::int AS encryption_type,
    0::sqlserver.tinyint AS generated_always_type,
    coalesce((SELECT ad.oid::int FROM pg_catalog.pg_attrdef ad WHERE ad.adrelid = a.attrelid AND ad.adnum = a.attnum AND a.attgenerated = ''
      AND sqlserver.is_said(r.oid, a.attname, 'identity') = 0), 0) AS default_object_id
  FROM sqlserver.relations r
  JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN sqlserver.types t ON t.pg_type = a.atttypid
  LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation AND a.attcollation <> 100
  WHERE sqlserver.is_visible(r.oid::int, r.schema_id);

-- Extended properties of tables (minor_id 0) and of columns.
CREATE TABLE sqlserver.extended_properties (major_id int NOT NULL, minor_id int NOT NULL, name text NOT NULL, value text,
  PRIMARY KEY (major_id, minor_id, name));
CREATE VIEW sys.extended_properties AS
  SELECT 1::sqlserver.tinyint AS class, 'OBJECT_OR_COLUMN'::sqlserver."nvarchar(60)" AS class_desc, p.major_id, p.minor_id,
    p.name::sqlserver.sysname AS name, p.value::sqlserver.sql_variant AS value
  FROM sqlserver.extended_properties p JOIN sqlserver.relations r ON r.oid::int = p.major_id;

CREATE VIEW sys.indexes AS
  SELECT r.oid::int AS object_id, ic.relname::sqlserver.sysname AS name,
    CASE WHEN i.indisprimary AND NOT sqlserver.has_columnstore(r.oid) THEN 1 ELSE 1 + row_number() OVER (PARTITION BY r.oid ORDER BY i.indisprimary DESC, i.indexrelid)::int END AS index_id,
    (CASE WHEN i.indisprimary AND NOT sqlserver.has_columnstore(r.oid) THEN 1 ELSE 2 END)::sqlserver.tinyint AS type,
    (CASE WHEN i.indisprimary AND NOT sqlserver.has_columnstore(r.oid) THEN 'CLUSTERED' ELSE 'NONCLUSTERED' END)::sqlserver."nvarchar(60)" AS type_desc,
    i.indisunique::int::sqlserver.bit AS is_unique, i.indisprimary::int::sqlserver.bit AS is_primary_key,
    EXISTS (SELECT 1 FROM pg_catalog.pg_constraint con WHERE con.conindid = i.indexrelid AND con.contype = 'u')::int::sqlserver.bit
      AS is_unique_constraint,
    0::sqlserver.bit AS is_disabled, (i.indpred IS NOT NULL)::int::sqlserver.bit AS has_filter,
    coalesce((SELECT p.data_space_id FROM sqlserver.partitioned p WHERE p.object_id = r.oid::int), 1) AS data_space_id
  FROM sqlserver.relations r
  JOIN pg_catalog.pg_index i ON i.indrelid = r.oid
  JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
  UNION ALL
  -- A table without a clustered index, which here is that of its primary key, is a heap.
  SELECT r.oid::int, NULL, 0, 0::sqlserver.tinyint, 'HEAP'::sqlserver."nvarchar(60)", 0::sqlserver.bit, 0::sqlserver.bit, 0::sqlserver.bit,
    0::sqlserver.bit, 0::sqlserver.bit,
    coalesce((SELECT p.data_space_id FROM sqlserver.partitioned p WHERE p.object_id = r.oid::int), 1)
  FROM sqlserver.relations r
  WHERE r.relkind = 'r' AND NOT sqlserver.has_columnstore(r.oid)
    AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = r.oid AND i.indisprimary)
  UNION ALL
  SELECT r.oid::int, c.name::sqlserver.sysname, 1, 5::sqlserver.tinyint, 'CLUSTERED COLUMNSTORE'::sqlserver."nvarchar(60)", 0::sqlserver.bit,
    0::sqlserver.bit, 0::sqlserver.bit, 0::sqlserver.bit, 0::sqlserver.bit,
    coalesce((SELECT p.data_space_id FROM sqlserver.partitioned p WHERE p.object_id = r.oid::int), 1)
  FROM sqlserver.relations r JOIN sqlserver.columnstores c ON c.object_id = r.oid::int;

CREATE VIEW sys.data_spaces AS
  SELECT 'PRIMARY'::sqlserver.sysname AS name, 1 AS data_space_id, 'FG'::sqlserver."char(2)" AS type
  UNION ALL SELECT name::sqlserver.sysname, data_space_id, 'PS'::sqlserver."char(2)" FROM sqlserver.partition_schemes;

CREATE VIEW sys.partition_schemes AS SELECT name::sqlserver.sysname AS name, data_space_id FROM sqlserver.partition_schemes;
CREATE VIEW sys.partition_functions AS SELECT name::sqlserver.sysname AS name, function_id FROM sqlserver.partition_functions;

CREATE VIEW sys.index_columns AS
  SELECT i.object_id, i.index_id, k.ordinality::int AS index_column_id, k.attnum::int AS column_id,
    (CASE WHEN k.ordinality <= pi.indnkeyatts THEN k.ordinality ELSE 0 END)::int::sqlserver.tinyint AS key_ordinal,
    0::sqlserver.bit AS is_descending_key, (k.ordinality > pi.indnkeyatts)::int::sqlserver.bit AS is_included_column
  FROM sys.indexes i
  JOIN pg_catalog.pg_class ic ON ic.relname::text COLLATE "C" = i.name::text COLLATE "C"
  JOIN pg_catalog.pg_index pi ON pi.indexrelid = ic.oid AND pi.indrelid::int = i.object_id
  CROSS JOIN LATERAL unnest(pi.indkey::int2[]) WITH ORDINALITY AS k(attnum, ordinality);

CREATE VIEW sys.key_constraints AS
  SELECT o.name, o.object_id, o.schema_id, o.parent_object_id, o.type, o.type_desc, i.index_id AS unique_index_id
  FROM sys.objects o JOIN sys.indexes i ON i.object_id = o.parent_object_id AND i.name = o.name
  WHERE o.type IN ('PK', 'UQ');

CREATE VIEW sys.databases AS
  SELECT name::sqlserver.sysname AS name, 5 AS database_id, sqlserver.to_datetime(create_date)::sqlserver.datetime AS create_date,
    collation_name::sqlserver.sysname AS collation_name, is_cdc_enabled::int::sqlserver.bit AS is_cdc_enabled,
    snapshot_isolation_state::sqlserver.tinyint AS snapshot_isolation_state,
    (CASE snapshot_isolation_state WHEN 1 THEN 'ON' ELSE 'OFF' END)::sqlserver."nvarchar(60)" AS snapshot_isolation_state_desc,
    is_read_committed_snapshot_on::int::sqlserver.bit AS is_read_committed_snapshot_on,
    160::sqlserver.tinyint AS compatibility_level, is_read_only::int::sqlserver.bit AS is_read_only,
    'FULL'::sqlserver."nvarchar(60)" AS recovery_model_desc, 'NOTHING'::sqlserver."nvarchar(60)" AS log_reuse_wait_desc,
    0::sqlserver.tinyint AS state, 'ONLINE'::sqlserver."nvarchar(60)" AS state_desc,
    is_published::int::sqlserver.bit AS is_published, is_accelerated::int::sqlserver.bit AS is_accelerated_database_recovery_on,
    delayed_durability::sqlserver.tinyint AS delayed_durability
  FROM sqlserver.database
  UNION ALL
  SELECT name::sqlserver.sysname, id, timestamp '2003-04-08 09:13:36.390'::sqlserver.datetime, 'SQL_Latin1_General_CP1_CI_AS'::sqlserver.sysname,
    0::sqlserver.bit, 1::sqlserver.tinyint, 'ON'::sqlserver."nvarchar(60)", 0::sqlserver.bit, 160::sqlserver.tinyint, 0::sqlserver.bit,
    'SIMPLE'::sqlserver."nvarchar(60)", 'NOTHING'::sqlserver."nvarchar(60)", 0::sqlserver.tinyint, 'ONLINE'::sqlserver."nvarchar(60)",
    0::sqlserver.bit, 0::sqlserver.bit, 0::sqlserver.tinyint
  FROM (VALUES ('master', 1), ('tempdb', 2), ('model', 3), ('msdb', 4)) AS system(name, id);

CREATE VIEW sys.database_recovery_status AS
  SELECT 5 AS database_id, family_guid, recovery_fork_guid FROM sqlserver.database;

CREATE VIEW sys.configurations AS
  SELECT 1536 AS configuration_id, 'max text repl size (B)'::sqlserver."nvarchar(35)" AS name,
    max_text_repl_size_configured AS value, max_text_repl_size AS value_in_use FROM sqlserver.database;

-- Functions of T-SQL that PostgreSQL has not. They stand first in the search path.
CREATE FUNCTION sqlserver.db_name() RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT name::sqlserver.sysname FROM sqlserver.database $$;
CREATE FUNCTION sqlserver.db_id() RETURNS int2 STABLE LANGUAGE sql AS $$ SELECT 5::int2 $$;
CREATE FUNCTION sqlserver.db_id(wanted text) RETURNS int2 STABLE LANGUAGE sql AS $$ SELECT database_id::int2 FROM sys.databases WHERE lower(name) = lower(wanted) $$;
CREATE FUNCTION sqlserver.schema_id(wanted text) RETURNS int STABLE LANGUAGE sql AS $$ SELECT schema_id FROM sqlserver.schemas WHERE lower(name) = lower(wanted) $$;
CREATE FUNCTION sqlserver.schema_name(wanted int DEFAULT 1) RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT name::sqlserver.sysname FROM sqlserver.schemas WHERE schema_id = wanted $$;
CREATE FUNCTION sqlserver.object_id(wanted text, kind text DEFAULT NULL) RETURNS int STABLE LANGUAGE sql AS $$
  SELECT r.oid::int FROM sqlserver.relations r, LATERAL (SELECT parse_ident(replace(replace(wanted COLLATE "C", '[', '"'), ']', '"'), false) AS parts) p
  WHERE lower(r.relname) = lower(p.parts[array_length(p.parts, 1)])
    AND lower(r.schema_name) = lower(coalesce(p.parts[array_length(p.parts, 1) - 1], 'dbo'))
    AND (kind IS NULL OR (kind = 'U') = (r.relkind = 'r'))
$$;
CREATE FUNCTION sqlserver.object_name(wanted int) RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT relname::sqlserver.sysname FROM sqlserver.relations WHERE oid::int = wanted $$;
CREATE FUNCTION sqlserver.object_schema_name(wanted int) RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT schema_name::sqlserver.sysname FROM sqlserver.relations WHERE oid::int = wanted $$;
CREATE FUNCTION sqlserver.col_name(wanted int, at int) RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT name FROM sys.columns WHERE object_id = wanted AND column_id = at $$;
CREATE FUNCTION sqlserver.type_name(wanted int) RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT name FROM sys.types WHERE user_type_id = wanted $$;
CREATE FUNCTION sqlserver.quotename(name text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT '[' || replace(name COLLATE "C", ']', ']]') || ']' $$;
-- Collations of UTF-8 are there since SQL Server 2019 [DOC: Collation and Unicode support]; of an unknown one the answer is NULL.
CREATE FUNCTION sqlserver.collationproperty(collation_name text, property text) RETURNS int STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN lower(property COLLATE "C") <> 'codepage' OR collation_name IS NULL THEN NULL
    WHEN collation_name COLLATE "C" LIKE '%UTF8' AND sqlserver.engine() NOT IN (5, 8)
      AND (SELECT split_part(d.version, '.', 1)::int FROM sqlserver.database d) < 15 THEN NULL
    WHEN collation_name COLLATE "C" LIKE '%UTF8' THEN 65001 WHEN collation_name COLLATE "C" LIKE 'Polish%' THEN 1250 ELSE 1252 END
$$;
CREATE FUNCTION sqlserver.len(value text) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT length(rtrim(value, ' ')) $$;
CREATE FUNCTION sqlserver.datalength(value bytea) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT octet_length(value) $$;
CREATE FUNCTION sqlserver.datalength(value text) RETURNS int IMMUTABLE LANGUAGE sql AS $$
  SELECT 2 * length(value) + 2 * length(regexp_replace(value COLLATE "C", '[\u0001-\uffff]', '', 'g'))
$$;
CREATE FUNCTION sqlserver.datalength(value bpchar) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.datalength(concat(value)) $$;
-- How far the server's clock is ahead of PostgreSQL's, since when by PostgreSQL's: `SqlServerModel.set_clock`.
CREATE TABLE sqlserver.clock (since timestamp NOT NULL, ahead interval NOT NULL);
CREATE FUNCTION sqlserver.server_time(at timestamp) RETURNS timestamp VOLATILE LANGUAGE sql AS $$
  SELECT at + coalesce((SELECT ahead FROM sqlserver.clock WHERE since <= at ORDER BY since DESC LIMIT 1), '0'::interval)
$$;
CREATE FUNCTION sqlserver.sysutcdatetime() RETURNS sqlserver."datetime2(7)" VOLATILE LANGUAGE sql AS $$ SELECT sqlserver.server_time(clock_timestamp() AT TIME ZONE 'UTC')::sqlserver."datetime2(7)" $$;
CREATE FUNCTION sqlserver.sysdatetime() RETURNS sqlserver."datetime2(7)" VOLATILE LANGUAGE sql AS $$ SELECT sqlserver.server_time(clock_timestamp() AT TIME ZONE 'UTC')::sqlserver."datetime2(7)" $$;
CREATE FUNCTION sqlserver.getdate() RETURNS sqlserver.datetime VOLATILE LANGUAGE sql AS $$ SELECT sqlserver.to_datetime(sqlserver.server_time(clock_timestamp() AT TIME ZONE 'UTC'))::sqlserver.datetime $$;
CREATE FUNCTION sqlserver.getutcdate() RETURNS sqlserver.datetime VOLATILE LANGUAGE sql AS $$ SELECT sqlserver.to_datetime(sqlserver.server_time(clock_timestamp() AT TIME ZONE 'UTC'))::sqlserver.datetime $$;
CREATE FUNCTION sqlserver.newid() RETURNS uuid VOLATILE LANGUAGE sql AS $$ SELECT gen_random_uuid() $$;
CREATE FUNCTION sqlserver.suser_sname() RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT coalesce(current_setting('sqlserver.login', true), '')::sqlserver.sysname $$;
CREATE FUNCTION sqlserver.original_login() RETURNS sqlserver.sysname STABLE LANGUAGE sql AS $$ SELECT sqlserver.suser_sname() $$;
CREATE FUNCTION sqlserver.serverproperty(wanted text) RETURNS text STABLE LANGUAGE sql AS $$
  SELECT CASE lower(wanted)
    WHEN 'edition' THEN edition
    WHEN 'engineedition' THEN sqlserver.engine()::text
    WHEN 'productversion' THEN version WHEN 'productmajorversion' THEN split_part(version, '.', 1)
    WHEN 'servername' THEN 'MODEL' WHEN 'machinename' THEN 'MODEL' WHEN 'collation' THEN collation_name
    WHEN 'ishadrenabled' THEN '0' WHEN 'isclustered' THEN '0' END
  FROM sqlserver.database
$$;
CREATE FUNCTION sqlserver.databasepropertyex(wanted text, property text) RETURNS text STABLE LANGUAGE sql AS $$
  SELECT CASE lower(property) WHEN 'collation' THEN collation_name WHEN 'updateability' THEN CASE WHEN is_read_only THEN 'READ_ONLY' ELSE 'READ_WRITE' END WHEN 'status' THEN 'ONLINE' END
  FROM sqlserver.database WHERE lower(name) = lower(wanted)
$$;
CREATE FUNCTION sys.fn_varbintohexstr(value bytea) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT '0x' || encode(value, 'hex') $$;
