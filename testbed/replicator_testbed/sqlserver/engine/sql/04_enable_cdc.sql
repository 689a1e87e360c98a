-- What sp_cdc_enable_db makes: the schema cdc, through which everything is read.
CREATE SCHEMA cdc;
INSERT INTO sqlserver.schemas SELECT 'cdc', 5 + count(*) FROM sqlserver.schemas;
CREATE VIEW cdc.change_tables AS
  SELECT object_id, 0 AS version, source_object_id, capture_instance::sqlserver.sysname AS capture_instance,
    start_lsn::sqlserver."binary(10)" AS start_lsn, NULL::sqlserver."binary(10)" AS end_lsn,
    supports_net_changes::int2::sqlserver.bit AS supports_net_changes, 0::sqlserver.bit AS has_drop_pending,
    role_name::sqlserver.sysname AS role_name, index_name::sqlserver.sysname AS index_name, NULL::sqlserver.sysname AS filegroup_name,
    sqlserver.to_datetime(create_date)::sqlserver.datetime AS create_date, partition_switch::int2::sqlserver.bit AS partition_switch
  FROM sqlserver.cdc_instances;
CREATE VIEW cdc.captured_columns AS
  SELECT object_id, column_name::sqlserver.sysname AS column_name, column_id, split_part(column_type, '(', 1)::sqlserver.sysname AS column_type,
    column_ordinal, is_computed::int2::sqlserver.bit AS is_computed
  FROM sqlserver.cdc_captured;
CREATE VIEW cdc.index_columns AS
  SELECT object_id, column_name::sqlserver.sysname AS column_name, index_ordinal::int2::sqlserver.tinyint AS index_ordinal, column_id
  FROM sqlserver.cdc_keys;
CREATE VIEW cdc.ddl_history AS
  SELECT source_object_id, object_id, required_column_update::int2::sqlserver.bit AS required_column_update,
    ddl_command::sqlserver."nvarchar(max)" AS ddl_command, ddl_lsn::sqlserver."binary(10)" AS ddl_lsn, ddl_time::sqlserver.datetime AS ddl_time
  FROM sqlserver.cdc_ddl;
-- Azure SQL Database has no msdb [DOC: change data capture with Azure SQL Database]; K that everybody may read it.
CREATE VIEW cdc.cdc_jobs AS
  SELECT job_type::sqlserver."nvarchar(60)" AS job_type, maxtrans, maxscans, retention::bigint AS retention, threshold::bigint AS threshold
  FROM sqlserver.cdc_jobs WHERE sqlserver.engine() = 5;
CREATE VIEW cdc.lsn_time_mapping AS
  SELECT start_lsn::sqlserver."binary(10)" AS start_lsn, tran_begin_time::sqlserver.datetime AS tran_begin_time,
    tran_end_time::sqlserver.datetime AS tran_end_time, tran_id::sqlserver."varbinary(10)" AS tran_id,
    tran_begin_lsn::sqlserver."binary(10)" AS tran_begin_lsn
  FROM sqlserver.cdc_lsn_time;
UPDATE sqlserver.database SET is_cdc_enabled = true;
