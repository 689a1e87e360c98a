"""The first format of the state store, from which `migrations.py` makes all others. Frozen."""

from __future__ import annotations

from typing import Final

FIRST_FORMAT: Final = (
    """CREATE TABLE store (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        format_version INTEGER NOT NULL,
        last_id BIGINT NOT NULL,
        epoch_floor BIGINT NOT NULL
    )""",
    "INSERT INTO store VALUES (1, 1, 0, 0)",
    """CREATE TABLE replicators (
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
    )""",
    """CREATE TABLE leases (
        replicator TEXT NOT NULL PRIMARY KEY REFERENCES replicators (name),
        epoch BIGINT NOT NULL,
        holder TEXT,
        expires_at TEXT
    )""",
    """CREATE TABLE segments (
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
    )""",
    """CREATE TABLE segment_files (
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
    )""",
    "CREATE INDEX segment_files_feed ON segment_files (replicator, table_name, last_num)",
    """CREATE TABLE segment_events (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        segment_id BIGINT NOT NULL,
        sequence_num BIGINT NOT NULL,
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        event TEXT NOT NULL,
        PRIMARY KEY (replicator, segment_id, sequence_num)
    )""",
    "CREATE INDEX segment_events_feed ON segment_events (replicator, table_name, sequence_num)",
    """CREATE TABLE schemas (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name, fingerprint)
    )""",
    """CREATE TABLE dropped (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        last_num BIGINT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    )""",
    """CREATE TABLE tables (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        stage TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, table_name)
    )""",
    """CREATE TABLE applied (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        table_name TEXT NOT NULL,
        incarnation BIGINT NOT NULL,
        last_applied BIGINT NOT NULL,
        row_count BIGINT NOT NULL,
        source_time TEXT,
        is_failing BOOLEAN NOT NULL,
        error TEXT,
        PRIMARY KEY (replicator, table_name)
    )""",
    """CREATE TABLE requests (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        created_at TEXT NOT NULL
    )""",
    """CREATE TABLE statuses (
        replicator TEXT NOT NULL REFERENCES replicators (name),
        role TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (replicator, role)
    )""",
    """CREATE TABLE runs (
        id BIGINT NOT NULL PRIMARY KEY,
        replicator TEXT NOT NULL REFERENCES replicators (name),
        epoch BIGINT NOT NULL,
        holder TEXT NOT NULL,
        started_at TEXT NOT NULL,
        ended_at TEXT,
        outcome TEXT,
        error TEXT
    )""",
)
