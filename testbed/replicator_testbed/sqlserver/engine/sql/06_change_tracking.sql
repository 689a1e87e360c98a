-- Change Tracking: what is kept of changed rows, in the user's transaction, and the versions that commits get.
CREATE TABLE sqlserver.ct_database (is_auto_cleanup_on boolean NOT NULL, retention_period int NOT NULL, retention_units text NOT NULL);
-- Whether a row that came and went since the version that is asked for is told [rule 21, K].
CREATE TABLE sqlserver.ct_doubts AS SELECT false AS hides_passing;
CREATE TABLE sqlserver.ct_tables (
  object_id int PRIMARY KEY, is_track_columns_updated_on boolean NOT NULL,
  begin_version bigint NOT NULL, cleanup_version bigint NOT NULL, min_valid_version bigint NOT NULL
);
CREATE SEQUENCE sqlserver.ct_versions;
CREATE TABLE sqlserver.ct_commits (version bigint PRIMARY KEY, xid xid8 NOT NULL UNIQUE, commit_time timestamp NOT NULL);
-- Transactions that have changed tracked tables and are not committed.
CREATE TABLE sqlserver.ct_open (xid xid8 PRIMARY KEY);

-- Runs at the very end of a transaction. The lock is let go of when the commit is visible: versions are in the order of commits, and
-- who sees one sees all that are lower [rule 20].
CREATE FUNCTION sqlserver.ct_commit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  made bigint;
BEGIN
  PERFORM pg_catalog.pg_advisory_xact_lock(22105);
  made := nextval('sqlserver.ct_versions');
  INSERT INTO sqlserver.ct_commits VALUES (made, NEW.xid, clock_timestamp() AT TIME ZONE 'UTC');
  DELETE FROM sqlserver.ct_open WHERE xid = NEW.xid;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER ct_commit AFTER INSERT ON sqlserver.ct_open DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION sqlserver.ct_commit();

-- Of a tracked table. Its arguments: the columns of the key of row $1, and the same of row $2.
CREATE FUNCTION sqlserver.ct_note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  into_side text := format('INSERT INTO sqlserver.change_tracking_%s SELECT pg_current_xact_id(), nextval(%L), ', TG_RELID::text, 'sqlserver.ct_serials');
  is_moved boolean;
BEGIN
  INSERT INTO sqlserver.ct_open VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
  IF TG_OP = 'INSERT' THEN
    EXECUTE into_side || '''I'', ' || TG_ARGV[0] USING NEW;
  ELSIF TG_OP = 'DELETE' THEN
    EXECUTE into_side || '''D'', ' || TG_ARGV[0] USING OLD;
  ELSE
    EXECUTE format('SELECT (%s) IS DISTINCT FROM (%s)', TG_ARGV[0], TG_ARGV[1]) INTO is_moved USING OLD, NEW;
    IF is_moved THEN
      EXECUTE into_side || '''D'', ' || TG_ARGV[0] USING OLD;
      EXECUTE into_side || '''I'', ' || TG_ARGV[0] USING NEW;
    ELSE
      EXECUTE into_side || '''U'', ' || TG_ARGV[0] USING NEW;
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE SEQUENCE sqlserver.ct_serials;

-- 0 while nothing was tracked, NULL where the database is not tracked [rule 20].
CREATE FUNCTION sqlserver.change_tracking_current_version() RETURNS bigint STABLE LANGUAGE sql AS $$
  SELECT CASE WHEN EXISTS (SELECT 1 FROM sqlserver.ct_database) THEN coalesce((SELECT max(version) FROM sqlserver.ct_commits), 0) END
$$;
-- NULL also where the account may not see it [rule 24].
CREATE FUNCTION sqlserver.change_tracking_min_valid_version(wanted int) RETURNS bigint STABLE LANGUAGE sql AS $$
  SELECT min_valid_version FROM sqlserver.ct_tables WHERE object_id = wanted AND sqlserver.has_permission('VIEW CHANGE TRACKING', wanted)
$$;
CREATE VIEW sys.change_tracking_databases AS
  SELECT 5 AS database_id, is_auto_cleanup_on::int::sqlserver.bit AS is_auto_cleanup_on, retention_period,
    (CASE retention_units WHEN 'MINUTES' THEN 1 WHEN 'HOURS' THEN 2 ELSE 3 END)::sqlserver.tinyint AS retention_period_units,
    retention_units::sqlserver."nvarchar(60)" AS retention_period_units_desc
  FROM sqlserver.ct_database;
CREATE VIEW sys.change_tracking_tables AS
  SELECT object_id, is_track_columns_updated_on::int::sqlserver.bit AS is_track_columns_updated_on, min_valid_version, begin_version, cleanup_version
  FROM sqlserver.ct_tables;

-- Where the keys of changed rows are: a table of the server's own, made when tracking is switched on [DOC: sys.internal_tables; K that its
-- number is never that of the one before].
CREATE VIEW sys.internal_tables AS
  SELECT s.relname::sqlserver.sysname AS name, s.oid::int AS object_id, t.object_id AS parent_object_id, t.object_id AS parent_id,
    209::sqlserver.tinyint AS internal_type, 'CHANGE_TRACKING'::sqlserver."nvarchar(60)" AS internal_type_desc
  FROM sqlserver.ct_tables t JOIN pg_catalog.pg_class s
    ON s.relname = 'change_tracking_' || t.object_id AND s.relnamespace = 'sqlserver'::regnamespace;

-- Each statement that alters a table leaves a row: a SNAPSHOT transaction that began before it reads the table no more [3961].
CREATE TABLE sqlserver.definitions (object_id int NOT NULL);
