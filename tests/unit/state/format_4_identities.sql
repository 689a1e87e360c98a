BEGIN TRANSACTION;
CREATE TABLE applied (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        claimed_by BIGINT,
        last_applied BIGINT NOT NULL,
        row_count BIGINT NOT NULL,
        source_time TEXT,
        state TEXT NOT NULL,
        error TEXT,
        audit TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    );
CREATE TABLE dropped (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        last_num BIGINT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    );
CREATE TABLE leases (
        replicator TEXT NOT NULL PRIMARY KEY REFERENCES replicators (name),
        epoch BIGINT NOT NULL,
        holder TEXT,
        expires_at TEXT
    );
INSERT INTO "leases" VALUES('shop',1,NULL,NULL);
CREATE TABLE replicators (
        name TEXT NOT NULL PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        desired TEXT NOT NULL,
        config TEXT NOT NULL,
        identity TEXT NOT NULL,
        preparation TEXT NOT NULL,
        start_offset TEXT,
        journal_uri TEXT NOT NULL,
        apply_paused BOOLEAN NOT NULL,
        error TEXT,
        created_at TEXT NOT NULL,
        journal_bytes BIGINT NOT NULL
    );
INSERT INTO "replicators" VALUES('shop','0edd33ff-8347-4791-8cac-1ad62bfe328e','running','name: shop
','{}','none',NULL,'file:///journal',0,NULL,'2026-11-22T19:27:15.345969Z',0);
CREATE TABLE requests (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_at TEXT NOT NULL
    );
CREATE TABLE runs (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        epoch BIGINT NOT NULL,
        holder TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        outcome TEXT,
        error TEXT
    );
CREATE TABLE schemas (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name, fingerprint)
    );
CREATE TABLE segment_events (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        segment_id BIGINT NOT NULL,
        sequence_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        event TEXT NOT NULL,
        PRIMARY KEY (replicator, segment_id, sequence_num)
    );
CREATE TABLE segment_files (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        segment_id BIGINT NOT NULL,
        last_num BIGINT NOT NULL,
        first_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        schema_fingerprint TEXT NOT NULL,
        uri TEXT NOT NULL,
        row_count BIGINT NOT NULL,
        byte_count BIGINT NOT NULL,
        sha256 TEXT NOT NULL,
        snapshot_rows BIGINT NOT NULL,
        has_absent BOOLEAN NOT NULL,
        has_key_changes BOOLEAN NOT NULL,
        seal_id BIGINT,
        PRIMARY KEY (replicator, segment_id, last_num)
    );
CREATE TABLE segments (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        id BIGINT NOT NULL,
        first_num BIGINT NOT NULL,
        last_num BIGINT NOT NULL,
        epoch BIGINT NOT NULL,
        resume_offset TEXT,
        source_time TEXT,
        ring TEXT NOT NULL,
        is_empty BOOLEAN NOT NULL,
        sealed_at TEXT NOT NULL,
        PRIMARY KEY (replicator, id)
    );
CREATE TABLE statuses (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        role TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, role)
    );
CREATE TABLE store (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        format_version INTEGER NOT NULL,
        last_id BIGINT NOT NULL,
        epoch_floor BIGINT NOT NULL
    );
INSERT INTO "store" VALUES(1,4,0,0);
CREATE TABLE tables (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        state TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    );
INSERT INTO "tables" VALUES('shop','public.object',1,'streaming','{"schema":{"table":["public","object"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":16385,"filenode":16385,"persistence":"p","replica_identity":"d","publish":["delete","insert"],"publication":"16400:750","column_list":null,"partitions":null,"columns":{"id":[1,20]},"label:16390":"741"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.partitioned',1,'streaming','{"schema":{"table":["public","partitioned"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":16386,"filenode":0,"persistence":"p","replica_identity":"d","publish":["delete","insert"],"publication":"16400:750","column_list":null,"partitions":{"16387":[16387,"d"]},"columns":{"id":[1,20]},"label:16390":"741"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.truncated',1,'streaming','{"schema":{"table":["public","truncated"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":16388,"filenode":{"truncated_by":"760"},"persistence":"p","replica_identity":"d","publish":["delete","insert"],"publication":"16400:750","column_list":null,"partitions":null,"columns":{"id":[1,20]},"label:16390":"741"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.truncated_by_unknown',1,'streaming','{"schema":{"table":["public","truncated_by_unknown"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":16389,"filenode":{"truncated_by":null},"persistence":"p","replica_identity":"d","publish":["delete","insert"],"publication":"16400:750","column_list":null,"partitions":null,"columns":{"id":[1,20]},"label:16390":"741"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.truncated_long_ago',1,'streaming','{"schema":{"table":["public","truncated_long_ago"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":16390,"filenode":null,"persistence":"p","replica_identity":"d","publish":["delete","insert"],"publication":"16400:750","column_list":null,"partitions":null,"columns":{"id":[1,20]},"label:16390":"741"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.innodb',1,'streaming','{"schema":{"table":["public","innodb"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"filenode":[1063,2],"engine":"InnoDB"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.myisam',1,'streaming','{"schema":{"table":["public","myisam"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null}],"key":["id"],"comment":null},"identity":{"filenode":"2026-11-22 14:00:00","engine":"MyISAM"},"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.waiting',1,'pending','{"schema":null,"identity":null,"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
CREATE INDEX segment_files_feed ON segment_files (replicator, table_name, last_num);
CREATE INDEX segment_events_feed ON segment_events (replicator, table_name, sequence_num);
COMMIT;
