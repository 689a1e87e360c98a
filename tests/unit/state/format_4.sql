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
INSERT INTO "applied" VALUES('shop','public.copying',1,NULL,-1,0,NULL,'applying',NULL,'{"copy":"unknown","merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.failed',1,1,-1,0,NULL,'failed','{"code":"schema_changed","message":"a « message »","action":"an action","at":"2026-11-22T14:00:00+00:00","is_finding":false}','{"copy":"changes","merged":{"matched":0,"inserted":0,"deleted":0,"not_found":0},"audited_to":null,"alarms":[]}');
INSERT INTO "applied" VALUES('shop','public.streaming',1,1,9,10,'2026-11-22T14:00:07.250000Z','applying',NULL,'{"copy":"whole","merged":{"matched":1,"inserted":2,"deleted":3,"not_found":4},"audited_to":"v2","alarms":[{"code":"target_diverged","message":"Rows were missing.","action":"Take a snapshot.","at":"2026-11-22T14:00:07.250000+00:00","count":2,"is_covered":true}]}');
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
INSERT INTO "leases" VALUES('shop',1,'host:1:boot','2026-11-22T14:00:10.000000Z');
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
INSERT INTO "replicators" VALUES('shop','00000000-0000-0000-0000-000000000007','running','name: shop','{"source":{"system_id":"1"},"target":{"path":"/lake"}}','ready','{"gtid":"\u00e4","lsn":1}','file:///j',1,'{"code":"schema_changed","message":"a « message »","action":"an action","at":"2026-11-22T14:00:00+00:00","is_finding":false}','2026-11-22T14:00:00.000000Z',100);
CREATE TABLE requests (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_at TEXT NOT NULL
    );
INSERT INTO "requests" VALUES(2,'shop','recreate','{"tables":["public.failed"]}','2026-11-22T14:00:00.000000Z');
INSERT INTO "requests" VALUES(3,'shop','delete','{"drop_target":true,"force":false}','2026-11-22T14:00:00.000000Z');
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
INSERT INTO "runs" VALUES(1,'shop',1,'host:1:boot','2026-11-22T14:00:00.000000Z','2026-11-22T14:00:00.000000Z','failed','{"code":"schema_changed","message":"a « message »","action":"an action","at":"2026-11-22T14:00:00+00:00","is_finding":false}');
CREATE TABLE schemas (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name, fingerprint)
    );
INSERT INTO "schemas" VALUES('shop','public.streaming','5bb83d99bcf32954','{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null}');
CREATE TABLE segment_events (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        segment_id BIGINT NOT NULL,
        sequence_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        event TEXT NOT NULL,
        PRIMARY KEY (replicator, segment_id, sequence_num)
    );
INSERT INTO "segment_events" VALUES('shop',1,5,'public.streaming',1,'{"event":"CREATE_TABLE","table":["public","streaming"],"schema":{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"new_table":null,"statement":null,"transaction_id":null,"source_timestamp":null}');
INSERT INTO "segment_events" VALUES('shop',1,6,'public.streaming',1,'{"event":"SNAPSHOT_STARTED","table":["public","streaming"],"kind":"first","start_number":null}');
INSERT INTO "segment_events" VALUES('shop',1,7,'public.in\.place',1,'{"event":"SNAPSHOT_STARTED","table":["public","in.place"],"kind":"in_place","start_number":3}');
INSERT INTO "segment_events" VALUES('shop',1,8,'public.streaming',1,'{"event":"SNAPSHOT_COMPLETED","table":["public","streaming"],"kind":"first","start_number":null}');
INSERT INTO "segment_events" VALUES('shop',1,9,'public.streaming',1,'{"event":"TRUNCATE_TABLE","table":["public","streaming"],"schema":null,"new_table":null,"statement":null,"transaction_id":"77","source_timestamp":"2026-11-22T14:00:07.250000+00:00"}');
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
INSERT INTO "segment_files" VALUES('shop',1,3,0,'public.streaming',1,'5bb83d99bcf32954','file:///j/a.parquet',4,100,'abababababababababababababababababababababababababababababababab',2,1,0,1);
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
INSERT INTO "segments" VALUES('shop',1,0,9,1,'{"gtid":"\u00e4","lsn":1}','2026-11-22T14:00:07.250000Z','["7@3","8"]',0,'2026-11-22T14:00:00.000000Z');
INSERT INTO "segments" VALUES('shop',2,10,9,1,NULL,NULL,'[]',1,'2026-11-22T14:00:00.000000Z');
CREATE TABLE statuses (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        role TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, role)
    );
INSERT INTO "statuses" VALUES('shop','capture','2026-11-22T14:00:00.000000Z','{"stage":"capturing","position":"{\"gtid\":\"ä\",\"lsn\":1}","retained_bytes":4096,"clock_ahead_s":0.5,"keeps_log_s":3600.0,"oldest_open":{"name":"XA a","since":"2026-11-22T13:59:00+00:00"},"source_time":"2026-11-22T14:00:00+00:00","last_sequence_num":9,"pending_rows":0,"ring":2,"waiting_for":["transaction 7"],"tables":{"public.copying":{"stage":"snapshot","incarnation":1,"snapshot_rows":7,"estimated_rows":null,"waiting":{"retry_in_s":3.5,"code":"lock_timeout","message":"it is locked"}},"public.pending":{"stage":"pending","incarnation":1,"step":"settling"},"public.streaming":{"stage":"streaming","incarnation":1,"snapshot_rows":12,"estimated_rows":null}},"stamp":[1,99.5]}');
INSERT INTO "statuses" VALUES('shop','apply','2026-11-22T14:00:00.000000Z','{"tables":{"public.streaming":{"last_applied":9,"highest":9,"source_time":"2026-11-22T14:00:00+00:00","last_batch":{"way":"merge","rows":4,"pause_s":null},"waiting":{"retry_in_s":600.0,"code":null,"message":null},"upkeep":{"failures":2,"code":"internal_error","message":"no","action":null,"failed_s":60.0,"retry_in_s":120.0}}},"busy":[],"stamp":[1,100.5]}');
INSERT INTO "statuses" VALUES('shop','supervisor','2026-11-22T14:00:00.000000Z','{"role":"apply","retry_in_s":1.5,"code":"spark_lost","message":"Spark''s JVM has died.","stamp":[1,98.5]}');
CREATE TABLE store (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        format_version INTEGER NOT NULL,
        last_id BIGINT NOT NULL,
        epoch_floor BIGINT NOT NULL
    );
INSERT INTO "store" VALUES(1,4,3,0);
CREATE TABLE tables (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        state TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    );
INSERT INTO "tables" VALUES('shop','public.copying',1,'snapshot','{"schema":{"table":["public","copying"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":7,"columns":["id"]},"is_recreated":false,"snapshot":{"kind":"first","start_number":null,"ranges":[{"after":null,"upto":null,"is_done":false}],"keys":[],"rows":7,"estimated_rows":null,"started_at":null,"completed_at":null,"is_outdated":false},"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.dropped',2,'failed','{"schema":{"table":["public","dropped"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":null,"is_recreated":true,"snapshot":null,"first_change":null,"error":{"code":"table_missing","message":"the table does not exist in the source.","action":"Exclude it.","at":"2026-11-22T14:00:00+00:00","is_finding":false}}');
INSERT INTO "tables" VALUES('shop','public.failed',1,'failed','{"schema":null,"identity":null,"is_recreated":false,"snapshot":null,"first_change":null,"error":{"code":"select_missing","message":"a finding","action":null,"at":"2026-11-22T14:00:07.250000+00:00","is_finding":true}}');
INSERT INTO "tables" VALUES('shop','public.in\.place',3,'snapshot','{"schema":{"table":["public","in.place"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":8,"parts":{"a":null}},"is_recreated":false,"snapshot":{"kind":"in_place","start_number":3,"ranges":[{"after":["1","ä"],"upto":["9",""],"is_done":false},{"after":null,"upto":null,"is_done":true}],"keys":[["4"],["5","x"]],"rows":10,"estimated_rows":9,"started_at":"2026-11-22T14:00:00+00:00","completed_at":null,"is_outdated":true},"first_change":4,"error":null}');
INSERT INTO "tables" VALUES('shop','public.pending',1,'pending','{"schema":null,"identity":null,"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.removed',1,'removed','{"schema":null,"identity":null,"is_recreated":false,"snapshot":null,"first_change":null,"error":null}');
INSERT INTO "tables" VALUES('shop','public.streaming',1,'streaming','{"schema":{"table":["public","streaming"],"columns":[{"name":"id","type":"int64","source_type":"bigint","nullable":false,"comment":null},{"name":"price","type":"decimal128(20,4)","source_type":"numeric(20,4)","nullable":true,"comment":null},{"name":"at","type":"timestamp[us, tz=UTC]","source_type":"timestamptz","nullable":true,"comment":null},{"name":"Ünïcode","type":"string","source_type":"text","nullable":true,"comment":null}],"key":["id"],"comment":null},"identity":{"oid":9},"is_recreated":false,"snapshot":{"kind":"first","start_number":null,"ranges":[{"after":null,"upto":null,"is_done":false}],"keys":[],"rows":12,"estimated_rows":null,"started_at":"2026-11-22T14:00:00+00:00","completed_at":"2026-11-22T14:00:07.250000+00:00","is_outdated":false},"first_change":0,"error":null}');
CREATE INDEX segment_files_feed ON segment_files (replicator, table_name, last_num);
CREATE INDEX segment_events_feed ON segment_events (replicator, table_name, sequence_num);
COMMIT;
