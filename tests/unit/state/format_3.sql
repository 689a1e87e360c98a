BEGIN TRANSACTION;
CREATE TABLE applied (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        last_applied BIGINT NOT NULL,
        row_count BIGINT NOT NULL,
        source_time TEXT,
        is_failing BOOLEAN NOT NULL,
        error TEXT, claimed_by BIGINT, audit TEXT,
        PRIMARY KEY (replicator, table_name)
    );
INSERT INTO "applied" VALUES('shop','public.first_copy',1,1,0,NULL,0,NULL,1,'{"has_copy":false,"merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.in_place',2,6,4,NULL,0,NULL,1,'{"has_copy":false,"merged":{"matched":0,"inserted":3,"deleted":0,"not_found":0},"audited_to":"v2","alarms":[{"code":"rows_missing","message":"m","action":"a","at":"2026-11-22T14:00:00+00:00","count":2,"is_covered":true}]}');
INSERT INTO "applied" VALUES('shop','public.streaming',1,8,9,'2026-11-22T14:00:00.000000Z',0,NULL,1,'{"has_copy":true,"merged":{"matched":0,"inserted":3,"deleted":0,"not_found":0},"audited_to":"v2","alarms":[{"code":"rows_missing","message":"m","action":"a","at":"2026-11-22T14:00:00+00:00","count":2,"is_covered":false}]}');
INSERT INTO "applied" VALUES('shop','public.never',1,8,9,'2026-11-22T14:00:00.000000Z',0,NULL,1,'{"has_copy":false,"merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.failed',1,8,9,'2026-11-22T14:00:00.000000Z',1,'{"code":"type_refused","message":"a message","action":"an action","at":"2026-11-22T14:00:00+00:00"}',1,'{"has_copy":true,"merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.failed_recreate',1,8,0,NULL,1,'{"code":"type_refused","message":"a message","action":"an action","at":"2026-11-22T14:00:00+00:00"}',1,'{"has_copy":false,"merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.pending_again',1,8,0,'2026-11-22T14:00:00.000000Z',0,NULL,NULL,NULL);
INSERT INTO "applied" VALUES('shop','public.pending_recreate',1,8,0,NULL,0,NULL,NULL,NULL);
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
INSERT INTO "leases" VALUES('fresh',0,NULL,NULL);
INSERT INTO "leases" VALUES('begun',1,NULL,NULL);
INSERT INTO "leases" VALUES('shop',1,NULL,NULL);
CREATE TABLE replicators (
        name TEXT NOT NULL PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        desired TEXT NOT NULL,
        config TEXT NOT NULL,
        identity TEXT NOT NULL,
        prepared TEXT NOT NULL,
        start_offset TEXT,
        journal_uri TEXT NOT NULL,
        apply_paused BOOLEAN NOT NULL,
        error TEXT,
        created_at TEXT NOT NULL,
        journal_bytes BIGINT NOT NULL
    );
INSERT INTO "replicators" VALUES('fresh','00000000-0000-4000-8000-000000000001','running','name: fresh
','{}','none',NULL,'file:///j/fresh',0,NULL,'2026-11-22T14:00:00.000000Z',0);
INSERT INTO "replicators" VALUES('begun','00000000-0000-4000-8000-000000000000','running','name: begun
','{}','intent',NULL,'file:///j/begun',0,NULL,'2026-11-22T14:00:00.000000Z',0);
INSERT INTO "replicators" VALUES('shop','00000000-0000-4000-8000-000000000002','running','name: shop
','{"source":{"system":"7"},"target":{"path":"/t"}}','ready','{"lsn":5}','file:///j/shop',0,NULL,'2026-11-22T14:00:00.000000Z',100);
CREATE TABLE requests (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_at TEXT NOT NULL
    );
INSERT INTO "requests" VALUES(1,'shop','snapshot','{"tables":["public.streaming"],"recreate":true}','2026-11-22T14:00:00.000000Z');
INSERT INTO "requests" VALUES(2,'shop','snapshot','{"tables":[]}','2026-11-22T14:00:00.000000Z');
INSERT INTO "requests" VALUES(3,'shop','restart','{"tables":["public.streaming"],"recreate":false}','2026-11-22T14:00:00.000000Z');
INSERT INTO "requests" VALUES(4,'shop','place','{}','2026-11-22T14:00:00.000000Z');
INSERT INTO "requests" VALUES(5,'fresh','delete','{"drop_target":true,"force":false}','2026-11-22T14:00:00.000000Z');
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
INSERT INTO "runs" VALUES(6,'shop',1,'host:1:boot','2026-11-22T14:00:00.000000Z','2026-11-22T14:00:00.000000Z','stopped',NULL);
CREATE TABLE schemas (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name, fingerprint)
    );
INSERT INTO "schemas" VALUES('shop','public.first_copy','8388c78991a9e88d','{"table":["public","first_copy"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.in_place','8388c78991a9e88d','{"table":["public","in_place"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.streaming','8388c78991a9e88d','{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.failed','8388c78991a9e88d','{"table":["public","failed"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.failed_recreate','8388c78991a9e88d','{"table":["public","failed_recreate"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.pending_again','8388c78991a9e88d','{"table":["public","pending_again"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.pending_recreate','8388c78991a9e88d','{"table":["public","pending_recreate"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.never','8388c78991a9e88d','{"table":["public","never"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
INSERT INTO "schemas" VALUES('shop','public.removed','8388c78991a9e88d','{"table":["public","removed"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
CREATE TABLE segment_events (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        segment_id BIGINT NOT NULL,
        sequence_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        event TEXT NOT NULL,
        PRIMARY KEY (replicator, segment_id, sequence_num)
    );
INSERT INTO "segment_events" VALUES('shop',1,0,'public.streaming',1,'{"event":"CREATE_TABLE","table":["public","streaming"],"schema":{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"new_table":null,"statement":null,"transaction_id":null,"source_timestamp":null}');
INSERT INTO "segment_events" VALUES('shop',1,1,'public.streaming',1,'{"event":"SNAPSHOT_STARTED","table":["public","streaming"],"start_number":null}');
INSERT INTO "segment_events" VALUES('shop',1,5,'public.streaming',1,'{"event":"SNAPSHOT_COMPLETED","table":["public","streaming"],"start_number":null}');
INSERT INTO "segment_events" VALUES('shop',1,6,'public.in_place',2,'{"event":"SNAPSHOT_STARTED","table":["public","in_place"],"start_number":6}');
INSERT INTO "segment_events" VALUES('shop',1,7,'public.streaming',1,'{"event":"SNAPSHOT_STARTED","table":["public","streaming"],"start_number":7}');
INSERT INTO "segment_events" VALUES('shop',1,8,'public.streaming',1,'{"event":"SNAPSHOT_COMPLETED","table":["public","streaming"],"start_number":7}');
INSERT INTO "segment_events" VALUES('shop',1,9,'public.streaming',1,'{"event":"TRUNCATE_TABLE","table":["public","streaming"],"schema":null,"new_table":null,"statement":"TRUNCATE \"start_number\"","transaction_id":"77","source_timestamp":"2026-11-22T14:00:00+00:00"}');
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
INSERT INTO "segment_files" VALUES('shop',1,4,2,'public.streaming',1,'8388c78991a9e88d','file:///j/shop/1.parquet',3,100,'abababababababababababababababababababababababababababababababab',3,0,0,1);
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
INSERT INTO "segments" VALUES('shop',1,0,9,1,'{"lsn":9}','2026-11-22T14:00:00.000000Z','["77:9"]',0,'2026-11-22T14:00:00.000000Z');
CREATE TABLE statuses (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        role TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, role)
    );
INSERT INTO "statuses" VALUES('shop','capture','2026-11-22T14:00:00.000000Z','{"stage":"capturing"}');
CREATE TABLE store (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        format_version INTEGER NOT NULL,
        last_id BIGINT NOT NULL,
        epoch_floor BIGINT NOT NULL
    );
INSERT INTO "store" VALUES(1,3,6,0);
CREATE TABLE tables (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        stage TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    );
INSERT INTO "tables" VALUES('shop','public.waiting',1,'pending','{"schema":null,"identity":null,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.failed_at_once',1,'failing','{"schema":null,"identity":null,"snapshot":null,"first_change":null,"error":{"code":"unsupported_type","message":"a message","action":"an action","at":"2026-11-22T14:00:00+00:00","is_finding":true}}');
INSERT INTO "tables" VALUES('shop','public.first_copy',1,'snapshot','{"schema":{"table":["public","first_copy"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":1,"filenode":1},"snapshot":{"start_number":null,"ranges":[{"after":["3"],"upto":null,"is_done":false}],"keys":[],"rows":3,"estimated_rows":10,"started_at":"2026-11-22T14:00:00+00:00","completed_at":null,"is_outdated":false},"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.in_place',2,'snapshot','{"schema":{"table":["public","in_place"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":2,"filenode":2},"snapshot":{"start_number":6,"ranges":[{"after":["1"],"upto":["9"],"is_done":false},{"after":["9"],"upto":null,"is_done":true}],"keys":[["4"]],"rows":2,"estimated_rows":10,"started_at":"2026-11-22T14:00:00+00:00","completed_at":null,"is_outdated":true},"first_change":4,"error":null}');
INSERT INTO "tables" VALUES('shop','public.streaming',1,'streaming','{"schema":{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":3,"filenode":3},"snapshot":{"start_number":null,"ranges":[{"after":["9"],"upto":null,"is_done":true}],"keys":[],"rows":9,"estimated_rows":9,"started_at":"2026-11-22T14:00:00+00:00","completed_at":"2026-11-22T14:00:00+00:00","is_outdated":false},"first_change":7,"error":null}');
INSERT INTO "tables" VALUES('shop','public.never',1,'streaming','{"schema":{"table":["public","never"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":4,"filenode":4},"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.failed',1,'failing','{"schema":{"table":["public","failed"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":5,"filenode":5},"snapshot":{"start_number":null,"ranges":[{"after":["9"],"upto":null,"is_done":true}],"keys":[],"rows":9,"estimated_rows":9,"started_at":"2026-11-22T14:00:00+00:00","completed_at":"2026-11-22T14:00:00+00:00","is_outdated":false},"first_change":null,"error":{"code":"schema_changed","message":"a message","action":"an action","at":"2026-11-22T14:00:00+00:00"}}');
INSERT INTO "tables" VALUES('shop','public.failed_recreate',1,'failing','{"schema":{"table":["public","failed_recreate"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":null,"snapshot":{"start_number":null,"ranges":[{"after":["9"],"upto":null,"is_done":true}],"keys":[],"rows":9,"estimated_rows":9,"started_at":"2026-11-22T14:00:00+00:00","completed_at":"2026-11-22T14:00:00+00:00","is_outdated":false},"first_change":null,"error":{"code":"table_missing","message":"a message","action":"an action","at":"2026-11-22T14:00:00+00:00"}}');
INSERT INTO "tables" VALUES('shop','public.pending_again',1,'pending','{"schema":{"table":["public","pending_again"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":6,"filenode":6},"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.pending_recreate',3,'pending','{"schema":{"table":["public","pending_recreate"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":null,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.removed',1,'removed','{"schema":{"table":["public","removed"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"v","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":7,"filenode":7},"snapshot":null,"first_change":null,"error":null}');
CREATE INDEX segment_files_feed ON segment_files (replicator, table_name, last_num);
CREATE INDEX segment_events_feed ON segment_events (replicator, table_name, sequence_num);
COMMIT;
