"""The questions of the conformance script, by the rules of the model of a SQL Server (`testbed/replicator_testbed/sqlserver/README.md`).

Each makes tables in the scratch schema, does something, waits for the capture job once or twice, and returns what it then finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from replicator.model.schema import TableId
from replicator_source_sqlserver.catalogue.discovery import read_tables
from replicator_source_sqlserver.connecting.connection import Connection
from replicator_source_sqlserver.log_end import parsed
from replicator_testbed.sqlserver.conformance import tracking
from replicator_testbed.sqlserver.conformance.asking import SCHEMA, Answer, Probe, Scratch
from replicator_testbed.sqlserver.conformance.types import IDENTITIES, TYPES
from replicator_testbed.sqlserver.conformance.verifying import VERIFYING

Answers = Mapping[str, Answer]

_TEXT_LIMIT_MAX: Final = 1 << 20
_SHOWN_MAX: Final = 100


def _enabling(s: Scratch) -> Answers:
    s.table("enabling", "b int NOT NULL, a int NOT NULL, v varchar(10), twice AS (b * 2), PRIMARY KEY (a, b)")
    s.wait_for_capture()
    of = "SELECT object_id FROM cdc.change_tables WHERE capture_instance = N'{s}_enabling'"
    return {
        "change table": s.rows(
            "SELECT c.name, t.name, c.max_length, c.is_nullable FROM sys.columns c JOIN sys.types t"
            f" ON t.user_type_id = c.user_type_id WHERE c.object_id IN ({of}) AND c.name <> N'__$command_id' ORDER BY c.column_id"
        ),
        "has command_id": s.value(
            f"SELECT COUNT(*) FROM sys.columns WHERE name = N'__$command_id' AND object_id IN ({of})"
        ),
        "captured columns": s.rows(
            "SELECT column_name, column_type, column_ordinal, is_computed FROM cdc.captured_columns"
            f" WHERE object_id IN ({of}) ORDER BY column_ordinal"
        ),
        "key": s.rows(
            f"SELECT column_name, index_ordinal FROM cdc.index_columns WHERE object_id IN ({of}) ORDER BY index_ordinal"
        ),
        "partition_switch": s.value(f"SELECT partition_switch FROM cdc.change_tables WHERE object_id IN ({of})"),
        "min_lsn is start_lsn": s.value(
            "SELECT CASE WHEN sys.fn_cdc_get_min_lsn(N'{s}_enabling') = start_lsn THEN 1 ELSE 0 END FROM cdc.change_tables"
            f" WHERE object_id IN ({of})"
        ),
        "min_lsn of nothing": s.value("SELECT sys.fn_cdc_get_min_lsn(N'{s}_nothing')"),
        "no role named": s.outcome("EXEC sys.sp_cdc_enable_table @source_schema = N'{s}', @source_name = N'enabling'"),
        "table is missing": s.outcome(s.enabling("nothing")),
    }


def _changes(s: Scratch) -> Answers:
    s.table("dml", "id int NOT NULL PRIMARY KEY, a int, b varchar(10)")
    s.run(
        "INSERT INTO {s}.dml VALUES (1, 1, 'a')",
        "INSERT INTO {s}.dml VALUES (2, 2, 'b'), (3, 3, 'c')",
        "UPDATE {s}.dml SET a = 10 WHERE id = 1",
        "UPDATE {s}.dml SET a = a WHERE id = 1",
        "UPDATE {s}.dml SET a = 0 WHERE id = 99",
        "UPDATE {s}.dml SET a = NULL, b = 'n' WHERE id > 1",
    )
    with s.transaction():
        s.run(
            "INSERT INTO {s}.dml VALUES (4, 4, 'd')",
            "UPDATE {s}.dml SET a = 41 WHERE id = 4",
            "UPDATE {s}.dml SET a = 42 WHERE id = 4",
            "DELETE FROM {s}.dml WHERE id = 2",
        )
    s.run("BEGIN TRANSACTION", "INSERT INTO {s}.dml VALUES (5, 5, 'e')", "ROLLBACK TRANSACTION")
    with s.transaction():
        s.run(
            "INSERT INTO {s}.dml VALUES (6, 6, 'f')",
            "SAVE TRANSACTION half",
            "INSERT INTO {s}.dml VALUES (7, 7, 'g')",
            "ROLLBACK TRANSACTION half",
        )
    s.run("DELETE FROM {s}.dml WHERE id = 4")
    s.wait_for_capture()
    return {"changes": s.changes("{s}_dml", "id", "a", "b")}


def _commits(s: Scratch) -> Answers:
    for name in ("commits", "others"):
        s.table(name, "id int NOT NULL PRIMARY KEY")
    with s.transaction(on=s.second):
        s.run("INSERT INTO {s}.commits VALUES (1)", on=s.second)
        s.run("INSERT INTO {s}.commits VALUES (2)")
        s.run("INSERT INTO {s}.others VALUES (3)", on=s.second)
    s.wait_for_capture()
    both = "c.[__$start_lsn] = o.[__$start_lsn]"
    return {
        "begun first, committed last": s.changes("{s}_commits", "id"),
        "one position in both tables": s.value(
            f"SELECT COUNT(*) FROM cdc.{{s}}_commits_CT c JOIN cdc.{{s}}_others_CT o ON {both}"
        ),
        "rows of lsn_time_mapping": s.value(
            "SELECT COUNT(*) FROM cdc.lsn_time_mapping m WHERE m.tran_id <> 0x00 AND m.start_lsn IN"
            " (SELECT [__$start_lsn] FROM cdc.{s}_commits_CT)"
        ),
    }


def _keys(s: Scratch) -> Answers:
    for name in ("one", "shifted", "swapped", "moved"):
        s.table(f"key_{name}", "id int NOT NULL PRIMARY KEY, v varchar(10)")
        s.run(f"INSERT INTO {{s}}.key_{name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    s.table("key_unique", "id int NOT NULL PRIMARY KEY, u int NOT NULL UNIQUE")
    s.run("INSERT INTO {s}.key_unique VALUES (1, 1), (2, 2), (3, 3)")
    s.run(
        "UPDATE {s}.key_one SET id = 9, v = 'z' WHERE id = 1",
        "UPDATE {s}.key_shifted SET id = id + 1",
        "UPDATE {s}.key_swapped SET id = 3 - id WHERE id < 3",
        "UPDATE {s}.key_moved SET id = id + 10",
        "UPDATE {s}.key_unique SET u = u + 1",
    )
    s.wait_for_capture()
    found = {name: s.changes(f"{{s}}_key_{name}", "id", "v") for name in ("one", "shifted", "swapped", "moved")}
    return {**found, "unique": s.changes("{s}_key_unique", "id", "u")}


def _large_values(s: Scratch) -> Answers:
    s.table("large", "id int NOT NULL PRIMARY KEY, n int, v nvarchar(max), b varbinary(max)")
    s.table("old_large", "id int NOT NULL PRIMARY KEY, n int, t text, i image")
    for table in ("large", "old_large"):
        one, other = ("v", "b") if table == "large" else ("t", "i")
        s.run(
            f"INSERT INTO {{s}}.{table} VALUES (1, 1, 'text', 0x01)",
            f"UPDATE {{s}}.{table} SET n = 2 WHERE id = 1",
            f"UPDATE {{s}}.{table} SET {one} = 'other' WHERE id = 1",
            f"UPDATE {{s}}.{table} SET {one} = NULL, {other} = 0x02 WHERE id = 1",
            f"DELETE FROM {{s}}.{table} WHERE id = 1",
            # Logged as a deletion and an insertion: whether the value that stays is in both, no manual says.
            f"INSERT INTO {{s}}.{table} VALUES (2, 1, 'stays', 0x03)",
            f"UPDATE {{s}}.{table} SET id = 3 WHERE id = 2",
        )
    s.wait_for_capture()
    return {
        "max": s.changes("{s}_large", "id", "n", "CAST(v AS nvarchar(20))", "CAST(b AS varbinary(20))"),
        "text and image": s.changes(
            "{s}_old_large", "id", "n", "CAST(t AS nvarchar(max))", "CAST(i AS varbinary(max))"
        ),
    }


def _replication_limit(s: Scratch) -> Answers:
    limit = s.value(
        "SELECT CAST(c.value_in_use AS int) FROM sys.configurations c WHERE c.name = N'max text repl size (B)'"
    )
    if not 0 <= limit <= _TEXT_LIMIT_MAX:
        return {"limit": limit}
    s.table("limited", "id int NOT NULL PRIMARY KEY, v varchar(max)")
    insert = "INSERT INTO {{s}}.limited VALUES ({}, REPLICATE(CAST('x' AS varchar(max)), {}))"
    return {
        "limit": limit,
        "as large": s.outcome(insert.format(1, limit)),
        "larger": s.outcome(insert.format(2, limit + 1)),
    }


def _special_columns(s: Scratch) -> Answers:
    s.table("special", "id int NOT NULL PRIMARY KEY, a int, twice AS (a * 2), flag bit NOT NULL, n int NOT NULL")
    s.run(
        "INSERT INTO {s}.special (id, a, flag, n) VALUES (1, 1, 1, 1)",
        "UPDATE {s}.special SET a = 2 WHERE id = 1",
        "DELETE FROM {s}.special WHERE id = 1",
    )
    s.wait_for_capture()
    return {"computed, bit": s.changes("{s}_special", "id", "a", "twice", "flag", "n")}


def _without_key(s: Scratch) -> Answers:
    s.table("keyless", "a int, b varchar(10)")
    s.run(
        "INSERT INTO {s}.keyless VALUES (1, 'a'), (1, 'a'), (2, 'b')",
        "UPDATE {s}.keyless SET b = 'c' WHERE a = 1",
        "DELETE FROM {s}.keyless WHERE a = 1",
    )
    s.wait_for_capture()
    return {"changes": s.changes("{s}_keyless", "a", "b")}


def _columns(s: Scratch) -> Answers:
    s.table(
        "columns", "id int NOT NULL CONSTRAINT {s}_columns_key PRIMARY KEY, a int, b varchar(10), c int", captured=None
    )
    s.run(s.enabling("columns"), "INSERT INTO {s}.columns VALUES (1, 1, 'one', 1)")
    s.run(
        "ALTER TABLE {s}.columns ADD d int NOT NULL DEFAULT 5",
        "UPDATE {s}.columns SET d = 6",
        "UPDATE {s}.columns SET a = 2, d = 7",
        "ALTER TABLE {s}.columns ALTER COLUMN b nvarchar(20)",
        "UPDATE {s}.columns SET b = N'żółw'",
        "ALTER TABLE {s}.columns DROP COLUMN c",
        "UPDATE {s}.columns SET a = 3",
    )
    refused = {
        "rename a captured column": s.outcome("EXEC sys.sp_rename N'{s}.columns.a', N'z', N'COLUMN'"),
        "rename another column": s.outcome("EXEC sys.sp_rename N'{s}.columns.d', N'z', N'COLUMN'"),
        "change the key's type": s.outcome("ALTER TABLE {s}.columns ALTER COLUMN id bigint NOT NULL"),
        "drop the key": s.outcome("ALTER TABLE {s}.columns DROP CONSTRAINT {s}_columns_key"),
        "truncate": s.outcome("TRUNCATE TABLE {s}.columns"),
        "rename the table": s.outcome("EXEC sys.sp_rename N'{s}.columns', N'columns_2'"),
    }
    s.run("UPDATE {s}.columns_2 SET a = 4")
    s.wait_for_capture()
    of = "SELECT object_id FROM cdc.change_tables WHERE capture_instance = N'{s}_columns'"
    history = s.rows(
        "SELECT ddl_command, required_column_update, CAST(DATEPART(second, ddl_time) AS int) FROM cdc.ddl_history"
        f" WHERE object_id IN ({of}) ORDER BY ddl_lsn"
    )
    return {
        **refused,
        "changes": s.changes("{s}_columns", "id", "a", "b", "c"),
        "captured columns": s.rows(
            f"SELECT column_name, column_type, column_ordinal FROM cdc.captured_columns WHERE object_id IN ({of}) ORDER BY column_ordinal"
        ),
        "history": [[" ".join(command.split()), int(update), second] for command, update, second in history],
    }


def _same_name(s: Scratch) -> Answers:
    s.table("again", "id int NOT NULL PRIMARY KEY, a int, b int")
    number = "SELECT column_id FROM sys.columns WHERE object_id = OBJECT_ID(N'{s}.again') AND name = N'b'"
    of = "SELECT object_id FROM cdc.change_tables WHERE capture_instance = N'{s}_again'"
    captured = f"SELECT column_id FROM cdc.captured_columns WHERE object_id IN ({of}) AND column_name = N'b'"
    first = s.value(number)
    s.run("INSERT INTO {s}.again VALUES (1, 1, 1)", "ALTER TABLE {s}.again DROP COLUMN b")
    s.run("ALTER TABLE {s}.again ADD b int", "INSERT INTO {s}.again VALUES (2, 2, 2)", "UPDATE {s}.again SET b = 3")
    s.wait_for_capture()
    second = s.value(number)
    return {
        "another column_id": int(second != first),
        "a higher column_id": int(second > first),
        "the instance keeps the first": int(s.value(captured) == first),
        "changes": s.changes("{s}_again", "id", "a", "b"),
    }


def _end_of_log(s: Scratch) -> Answers:
    s.table("ends", "id int NOT NULL PRIMARY KEY")
    ask = "SELECT log_end_lsn FROM sys.dm_db_log_stats(DB_ID())"
    s.run("INSERT INTO {s}.ends VALUES (1)")
    outcome = s.outcome(ask)
    text = s.value(ask) if outcome == "done" else None
    s.run("INSERT INTO {s}.ends VALUES (2)")
    s.wait_for_capture()
    end = parsed(text)
    first, second = (bytes(row[0]) for row in s.rows("SELECT [__$start_lsn] FROM cdc.{s}_ends_CT ORDER BY id"))
    return {
        "ask": outcome,
        "is understood": int(end is not None),
        "behind what was committed before": int(end is not None and end >= first),
        "in front of what was committed later": int(end is not None and end < second),
    }


def _instances(s: Scratch) -> Answers:
    s.table("twice", "id int NOT NULL PRIMARY KEY, a int")
    s.run("INSERT INTO {s}.twice VALUES (1, 1)", "ALTER TABLE {s}.twice ADD b int")
    taken = s.outcome(s.enabling("twice"))
    keyless = s.outcome(s.enabling("twice", ", @capture_instance = N'{s}_a', @captured_column_list = N'a'"))
    s.run(s.enabling("twice", ", @capture_instance = N'{s}_twice_2'"), "INSERT INTO {s}.twice VALUES (2, 2, 2)")
    third = s.outcome(s.enabling("twice", ", @capture_instance = N'{s}_twice_3'"))
    s.wait_for_capture()
    starts = "SELECT start_lsn FROM cdc.change_tables WHERE capture_instance = N'{s}_twice_2'"
    disable = "EXEC sys.sp_cdc_disable_table @source_schema = N'{s}', @source_name = N'twice', @capture_instance = N'{s}_twice"
    answers: dict[str, Answer] = {
        "a taken name": taken,
        "without the key": keyless,
        "a third": third,
        "the first": s.changes("{s}_twice", "id", "a"),
        "the second": s.changes("{s}_twice_2", "id", "a", "b"),
        "in the first from the start of the second on": s.value(
            f"SELECT COUNT(*) FROM cdc.{{s}}_twice_CT WHERE [__$start_lsn] >= ({starts})"
        ),
        "equal in both": s.value(
            "SELECT COUNT(*) FROM cdc.{s}_twice_CT a JOIN cdc.{s}_twice_2_CT b"
            " ON a.[__$start_lsn] = b.[__$start_lsn] AND a.[__$seqval] = b.[__$seqval]"
        ),
    }
    s.run(f"{disable}'")
    return {
        **answers,
        "read a disabled one": s.outcome("SELECT * FROM cdc.{s}_twice_CT"),
        "disable it again": s.outcome(f"{disable}'"),
        "history of a disabled one": s.value(
            "SELECT COUNT(*) FROM cdc.ddl_history h JOIN sys.tables t ON t.object_id = h.source_object_id"
            " WHERE t.name = N'twice' AND NOT EXISTS (SELECT 1 FROM cdc.change_tables i WHERE i.object_id = h.object_id)"
        ),
    }


def _functions(s: Scratch) -> Answers:
    s.table("functions", "id int NOT NULL PRIMARY KEY, a int")
    s.run("INSERT INTO {s}.functions VALUES (1, 1)", "UPDATE {s}.functions SET a = 2")
    s.wait_for_capture()
    low, high = "sys.fn_cdc_get_min_lsn(N'{s}_functions')", "sys.fn_cdc_get_max_lsn()"
    call = "SELECT {} FROM cdc.fn_cdc_get_all_changes_{{s}}_functions({}, {}, N'{}') ORDER BY [__$start_lsn], [__$seqval], [__$operation]"
    columns = "[__$operation], [__$update_mask], id, a"
    return {
        "all": s.rows(call.format(columns, low, high, "all")),
        "all update old": s.rows(call.format(columns, low, high, "all update old")),
        "has command_id": s.outcome(call.format("[__$command_id]", low, high, "all")),
        "below the low watermark": s.outcome(call.format(columns, f"sys.fn_cdc_decrement_lsn({low})", high, "all")),
        "above the high watermark": s.outcome(call.format(columns, low, f"sys.fn_cdc_increment_lsn({high})", "all")),
        "from behind to": s.outcome(call.format(columns, high, low, "all")),
        "ordinal of a": s.value("SELECT sys.fn_cdc_get_column_ordinal(N'{s}_functions', N'a')"),
        "bits of 0x02": s.rows("SELECT sys.fn_cdc_is_bit_set(1, 0x02), sys.fn_cdc_is_bit_set(2, 0x02)"),
        "times are known": s.value(
            "SELECT COUNT(*) FROM cdc.{s}_functions_CT WHERE sys.fn_cdc_map_lsn_to_time([__$start_lsn]) IS NULL"
        ),
    }


def _cleanup(s: Scratch) -> Answers:
    s.table("cleaned", "id int NOT NULL PRIMARY KEY")
    for key in (1, 2, 3):
        s.run(f"INSERT INTO {{s}}.cleaned VALUES ({key})")
    s.wait_for_capture()
    first = s.value("SELECT [__$start_lsn] FROM cdc.{s}_cleaned_CT WHERE id = 1")
    s.run(
        "DECLARE @low binary(10) SET @low = (SELECT [__$start_lsn] FROM cdc.{s}_cleaned_CT WHERE id = 3)"
        " EXEC sys.sp_cdc_cleanup_change_table @capture_instance = N'{s}_cleaned', @low_water_mark = @low"
    )
    read = "cdc.fn_cdc_get_all_changes_{s}_cleaned"
    return {
        "left": s.changes("{s}_cleaned", "id"),
        "start_lsn is the low watermark": s.value(
            "SELECT COUNT(*) FROM cdc.change_tables WHERE capture_instance = N'{s}_cleaned'"
            " AND start_lsn = (SELECT [__$start_lsn] FROM cdc.{s}_cleaned_CT WHERE id = 3)"
        ),
        "the table below": s.value("SELECT COUNT(*) FROM cdc.{s}_cleaned_CT WHERE [__$start_lsn] <= ?", first),
        "the function below": s.outcome(f"SELECT * FROM {read}(0x{first.hex()}, sys.fn_cdc_get_max_lsn(), N'all')"),
    }


def _partitions(s: Scratch) -> Answers:
    s.run(
        "CREATE PARTITION FUNCTION {s} (int) AS RANGE RIGHT FOR VALUES (100)",
        "CREATE PARTITION SCHEME {s} AS PARTITION {s} ALL TO ([PRIMARY])",
    )
    s.table("parts", "id int NOT NULL PRIMARY KEY, a int", behind=" ON {s}(id)")
    for name in ("staged", "staged_2", "staged_3"):
        s.table(name, "id int NOT NULL PRIMARY KEY, a int", captured=None)
    s.table("whole", "id int NOT NULL PRIMARY KEY, a int", captured=None)
    s.run(s.enabling("whole", ", @allow_partition_switch = 0"))
    s.run("INSERT INTO {s}.parts VALUES (1, 1), (2, 2)", "INSERT INTO {s}.whole VALUES (1, 1)")
    allowed = s.outcome("ALTER TABLE {s}.parts SWITCH PARTITION 1 TO {s}.staged")
    s.wait_for_capture()
    changes = s.changes("{s}_parts", "id", "a")
    s.run(s.enabling("parts", ", @capture_instance = N'{s}_parts_2', @allow_partition_switch = 0"))
    return {
        "allowed": allowed,
        "rows that are left": s.value("SELECT COUNT(*) FROM {s}.parts"),
        "changes": changes,
        "with an instance that does not allow it": s.outcome(
            "ALTER TABLE {s}.parts SWITCH PARTITION 1 TO {s}.staged_2"
        ),
        "the setting of a table that is not partitioned": s.value(
            "SELECT CAST(partition_switch AS int) FROM cdc.change_tables WHERE capture_instance = N'{s}_whole'"
        ),
        "a table that is not partitioned": s.outcome("ALTER TABLE {s}.whole SWITCH TO {s}.staged_3"),
    }


def _snapshots(s: Scratch) -> Answers:
    if s.value("SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()") != 1:
        return {"allowed": 0}
    s.table("seen", "id int NOT NULL PRIMARY KEY")
    count = "SELECT COUNT(*) FROM {s}.seen"
    s.run("SET TRANSACTION ISOLATION LEVEL SNAPSHOT", on=s.second)
    with s.transaction(on=s.second):
        s.run("INSERT INTO {s}.seen VALUES (1)")
        first = s.rows(count, on=s.second)[0][0]
        s.run("INSERT INTO {s}.seen VALUES (2)")
        second = s.rows(count, on=s.second)[0][0]
        before = s.rows("SELECT sys.fn_cdc_get_max_lsn()", on=s.second)[0][0]
        s.wait_for_capture()
        after = s.rows("SELECT sys.fn_cdc_get_max_lsn()", on=s.second)[0][0]
    s.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", on=s.second)
    return {
        "allowed": 1,
        "rows of before the first read": first,
        "rows of after the first read": second - first,
        "max_lsn is the current one": int(after > before),
    }


def _types(s: Scratch) -> Answers:
    made: dict[str, str] = {}
    answers: dict[str, Answer] = {}
    for number, (kind, first, second) in enumerate(TYPES, start=1):
        name = f"type_{number}"
        answers[kind] = s.outcome(f"CREATE TABLE {{s}}.{name} (id int NOT NULL PRIMARY KEY, v {kind})")
        if answers[kind] == "done":
            made[kind] = name
            s.run(
                s.enabling(name),
                f"INSERT INTO {{s}}.{name} VALUES (1, {first})",
                f"UPDATE {{s}}.{name} SET v = {second}",
                f"INSERT INTO {{s}}.{name} VALUES (2, NULL)",
            )
    s.wait_for_capture()
    for kind, name in made.items():
        (table,) = read_tables(Connection(s.first), [TableId(SCHEMA, name)]).values()
        spec = table.specs.get("v")
        if spec is None:
            answers[kind] = "not replicated"
            continue
        selected = spec.selected.format("v")
        changes = s.rows(
            f"SELECT [__$operation], {selected} FROM cdc.{{s}}_{name}_CT"
            " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
        )
        answers[kind] = {
            "table": [_short(value) for (value,) in s.rows(f"SELECT {selected} FROM {{s}}.{name} ORDER BY id")],
            "operations": [operation for operation, _ in changes],
            "log": [_short(value) for _, value in changes],
        }
    return answers


def _identities(s: Scratch) -> Answers:
    answers: dict[str, Answer] = {}
    for number, kind in enumerate(IDENTITIES, start=1):
        s.table(f"identity_{number}", f"v {kind} IDENTITY(1,1) NOT NULL PRIMARY KEY, n int")
        s.run(f"INSERT INTO {{s}}.identity_{number} (n) VALUES (1), (2)")
    s.wait_for_capture()
    for number, kind in enumerate(IDENTITIES, start=1):
        changes = f"cdc.{{s}}_identity_{number}_CT"
        answers[kind] = {
            "in the change table": s.value(
                "SELECT t.name FROM sys.columns c JOIN sys.types t ON t.user_type_id = c.user_type_id"
                f" WHERE c.object_id = OBJECT_ID(N'{changes}') AND c.name = N'v'"
            ),
            "values": [int(v) for (v,) in s.rows(f"SELECT CAST(v AS bigint) FROM {changes} ORDER BY v")],
        }
    return answers


def _rowversion(s: Scratch) -> Answers:
    s.table("versions", "id int NOT NULL PRIMARY KEY, a int, v rowversion")
    s.run("INSERT INTO {s}.versions (id, a) VALUES (1, 1)", "UPDATE {s}.versions SET a = 2")
    s.wait_for_capture()
    return {
        "operations": [row[3:5] for row in s.changes("{s}_versions")],
        "the last is the table's": s.value(
            "SELECT COUNT(*) FROM cdc.{s}_versions_CT c JOIN {s}.versions t ON CAST(t.v AS binary(8)) = CAST(c.v AS binary(8))"
            " WHERE c.[__$operation] = 4"
        ),
    }


def _short(value: Answer) -> Answer:
    """Long texts by their length and their beginning."""
    return f"{len(value)} times {value[:1]}" if isinstance(value, str) and len(value) > _SHOWN_MAX else value


PROBES: Final = (
    Probe("enabling", 4, _enabling),
    Probe("changes", 3, _changes),
    Probe("commits", 1, _commits),
    Probe("keys", 3, _keys),
    Probe("large values", 8, _large_values),
    Probe("max text repl size", 9, _replication_limit),
    Probe("special columns", 8, _special_columns),
    Probe("without a key", 3, _without_key),
    Probe("columns", 7, _columns),
    Probe("a name again", 7, _same_name),
    Probe("end of the log", 18, _end_of_log),
    Probe("instances", 6, _instances),
    Probe("functions", 4, _functions),
    Probe("cleanup", 5, _cleanup),
    Probe("partitions", 10, _partitions),
    Probe("snapshots", 12, _snapshots),
    Probe("types", 8, _types),
    Probe("identities", 8, _identities),
    Probe("rowversion", 8, _rowversion),
    *tracking.PROBES,
    *VERIFYING,
)
