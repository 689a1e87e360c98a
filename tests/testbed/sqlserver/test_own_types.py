"""Alias types, the types of .NET, sql_variant, json, sparse columns and column sets, as the rules of README.md say."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyodbc
import pytest

from replicator_testbed.postgresql.servers import PostgresServer
from replicator_testbed.sqlserver.drivers import Driver, connect
from replicator_testbed.sqlserver.model import SqlServerModel
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

COLUMNS = """
SELECT c.name, u.name, c.system_type_id, c.user_type_id, c.max_length, c.is_nullable, u.is_user_defined, u.is_assembly_type
FROM sys.columns c JOIN sys.types u ON u.user_type_id = c.user_type_id WHERE c.object_id = OBJECT_ID(?) ORDER BY c.column_id
"""


@pytest.fixture
def fresh(postgres: PostgresServer) -> Iterator[SqlServerModel]:
    with SqlServerModel(postgres) as model:
        yield model


@pytest.fixture
def server(fresh: SqlServerModel) -> Iterator[Client]:
    connection = connect(Driver.FREETDS, fresh.address)
    yield Client(connection)
    connection.close()


# -- rule 28: aliases ----------------------------------------------------------------------------------------------------


def test_an_alias_is_listed_with_the_type_behind_it(server: Client) -> None:
    # [DOC: CREATE TYPE; sys.types; sys.columns] rule 28
    server("CREATE TYPE dbo.code FROM nvarchar(20) NOT NULL")
    server("CREATE TYPE dbo.price FROM decimal(9, 2)")
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a dbo.code, b code NULL, c [dbo].[price], d sysname)")
    code, price = (server.value("SELECT user_type_id FROM sys.types WHERE name = ?", n) for n in ("code", "price"))
    assert min(code, price) > 256
    assert server(COLUMNS, "dbo.t")[1:] == [
        ("a", "code", 231, code, 40, False, True, False),
        ("b", "code", 231, code, 40, True, True, False),
        ("c", "price", 106, price, 5, True, True, False),
        ("d", "sysname", 231, 256, 256, False, False, False),
    ]
    assert server(
        "SELECT system_type_id, max_length, precision, scale, is_nullable FROM sys.types WHERE name = 'price'"
    ) == [(106, 5, 9, 2, True)]
    assert server.value("SELECT collation_name FROM sys.types WHERE name = 'code'") == "SQL_Latin1_General_CP1_CI_AS"


def test_a_column_of_an_alias_holds_what_the_type_behind_it_holds(server: Client) -> None:
    # [DOC: CREATE TYPE] rule 28
    server("CREATE TYPE dbo.code FROM nvarchar(3) NOT NULL")
    server("CREATE TABLE dbo.t (code dbo.code PRIMARY KEY)")
    server("INSERT INTO dbo.t (code) VALUES (N'abc')")
    assert server("SELECT code FROM dbo.t") == [("abc",)]
    assert server.error("INSERT INTO dbo.t (code) VALUES (N'abcd')") in {2628, 8152}
    assert server.error("INSERT INTO dbo.t (code) VALUES (NULL)") == 515


def test_an_alias_that_a_column_has_cannot_be_dropped(server: Client) -> None:
    # [DOC: DROP TYPE; the numbers: K] rule 28
    server("CREATE TYPE dbo.code FROM nvarchar(20)")
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a dbo.code)")
    assert server.error("CREATE TYPE dbo.code FROM int") == 219
    assert server.error("DROP TYPE dbo.code") == 3732
    server("ALTER TABLE dbo.t ALTER COLUMN a nvarchar(20)")
    server("DROP TYPE dbo.code")
    assert server.error("DROP TYPE dbo.code") == 3701
    server("DROP TYPE IF EXISTS dbo.code")
    assert server.error("CREATE TABLE dbo.u (a dbo.code)") == 2715
    server("CREATE TYPE dbo.code FROM int")
    server("ALTER TABLE dbo.t ADD b dbo.code")
    assert [row[1] for row in server(COLUMNS, "dbo.t")] == ["int", "nvarchar", "code"]


@pytest.mark.parametrize("base", ["xml", "json", "hierarchyid", "geometry", "rowversion"])
def test_what_no_alias_is_made_from(server: Client, base: str) -> None:
    # [DOC: CREATE TYPE, base_type; json data type] rule 28
    assert server.error(f"CREATE TYPE dbo.odd FROM {base}") == 222


def test_a_column_is_altered_between_an_alias_and_its_type(server: Client) -> None:
    # [DOC: ALTER TABLE] rule 28
    server("CREATE TYPE dbo.code FROM nvarchar(20)")
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a nvarchar(20))")
    server("INSERT INTO dbo.t VALUES (1, N'x')")
    server("ALTER TABLE dbo.t ALTER COLUMN a dbo.code")
    assert [row[1] for row in server(COLUMNS, "dbo.t")] == ["int", "code"]
    assert server("SELECT a FROM dbo.t") == [("x",)]


# -- rule 29: the types of .NET ------------------------------------------------------------------------------------------


def test_types_of_dotnet_share_a_number(server: Client) -> None:
    # [DOC: sys.types; K for the numbers 128 to 130] rule 29
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, h hierarchyid, g geometry, e geography, v sql_variant)")
    assert server(COLUMNS, "dbo.t")[1:] == [
        ("h", "hierarchyid", 240, 128, 892, True, False, True),
        ("g", "geometry", 240, 129, -1, True, False, True),
        ("e", "geography", 240, 130, -1, True, False, True),
        ("v", "sql_variant", 98, 98, 8016, True, False, False),
    ]


def test_a_hierarchy_is_ordered_depth_first(server: Client) -> None:
    # [DOC: hierarchyid, "comparison is in depth-first order"; K that /1.1/ is behind all below /1/] rule 29
    nodes = ["/", "/-1/", "/0/", "/1/", "/1/1/", "/1/1/2/", "/1/2/", "/1/10/", "/1.1/", "/1.1/3/", "/2/", "/10/"]
    server("CREATE TABLE dbo.t (node hierarchyid NOT NULL PRIMARY KEY)")
    for node in sorted(nodes):
        server("INSERT INTO dbo.t (node) VALUES (CAST(? AS hierarchyid))", node)
    assert [row[0] for row in server("SELECT node.ToString() FROM dbo.t ORDER BY node")] == nodes
    behind = "SELECT t.[node].ToString() AS c FROM dbo.t AS t WHERE t.[node] > CAST(? AS hierarchyid) ORDER BY t.[node]"
    assert [row[0] for row in server(behind, "/1/2/")] == nodes[nodes.index("/1/2/") + 1 :]
    assert server("SELECT node.GetLevel() FROM dbo.t WHERE node = CAST('/1.1/3/' AS hierarchyid)") == [(2,)]
    assert server.error("INSERT INTO dbo.t (node) VALUES ('/1/1/')") == 2627
    assert server.error("INSERT INTO dbo.t (node) VALUES ('1/1')") == 6522


def test_methods_of_null_are_null_and_their_names_have_a_case(server: Client) -> None:
    # [DOC: SqlHierarchyId.ToString, InvokeIfReceiverIsNull = false; K for the case] rule 29
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, h hierarchyid, g geometry)")
    server("INSERT INTO dbo.t (id) VALUES (1)")
    assert server("SELECT h.ToString(), g.AsBinaryZM(), CAST(h AS nvarchar(4000)) FROM dbo.t") == [(None, None, None)]
    assert server.error("SELECT h.tostring() FROM dbo.t") == 6506


def _wkb(kind: int, *numbers: float, count: int | None = None) -> bytes:
    counted = b"" if count is None else struct.pack("<I", count)
    return struct.pack("<BI", 1, kind) + counted + struct.pack(f"<{len(numbers)}d", *numbers)


@pytest.mark.parametrize(
    ("written", "bytes_", "text", "flat"),
    [
        # The first one is the example of Microsoft's documentation of AsBinaryZM.
        ("Point(1 1 2 3)", bytes.fromhex("01B90B0000000000000000F03F000000000000F03F00000000000000400000000000000840"),
         "POINT (1 1 2 3)", "POINT (1 1)"),
        ("POINT(1 2)", _wkb(1, 1, 2), "POINT (1 2)", "POINT (1 2)"),
        ("POINT (1 2 3)", _wkb(1001, 1, 2, 3), "POINT (1 2 3)", "POINT (1 2)"),
        ("POINT (1 2 NULL 4)", _wkb(2001, 1, 2, 4), "POINT (1 2 NULL 4)", "POINT (1 2)"),
        ("POINT EMPTY", _wkb(4, count=0), "POINT EMPTY", "POINT EMPTY"),
        ("LINESTRING (0 0, 1.50 -1)", _wkb(2, 0, 0, 1.5, -1, count=2), "LINESTRING (0 0, 1.5 -1)", "LINESTRING (0 0, 1.5 -1)"),
        ("LINESTRING EMPTY", _wkb(2, count=0), "LINESTRING EMPTY", "LINESTRING EMPTY"),
        ("POLYGON ((0 0, 1 0, 1 1, 0 0))", _wkb(3, count=1) + struct.pack("<I8d", 4, 0, 0, 1, 0, 1, 1, 0, 0),
         "POLYGON ((0 0, 1 0, 1 1, 0 0))", "POLYGON ((0 0, 1 0, 1 1, 0 0))"),
        ("GEOMETRYCOLLECTION (POINT (1 2), LINESTRING (0 0, 1 1))", _wkb(7, count=2) + _wkb(1, 1, 2) + _wkb(2, 0, 0, 1, 1, count=2),
         "GEOMETRYCOLLECTION (POINT (1 2), LINESTRING (0 0, 1 1))", "GEOMETRYCOLLECTION (POINT (1 2), LINESTRING (0 0, 1 1))"),
        ("CIRCULARSTRING (0 0, 1 1, 2 0)", _wkb(8, 0, 0, 1, 1, 2, 0, count=3), "CIRCULARSTRING (0 0, 1 1, 2 0)",
         "CIRCULARSTRING (0 0, 1 1, 2 0)"),
    ],
)  # fmt: skip
def test_a_shape_has_its_text_and_its_wkb(server: Client, written: str, bytes_: bytes, text: str, flat: str) -> None:
    # [DOC: AsBinaryZM, AsTextZM, STAsText, STAsBinary; K for what is empty] rule 29
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, g geometry, e geography)")
    server("INSERT INTO dbo.t VALUES (1, CAST(? AS geometry), geography::STGeomFromText(?, 4979))", written, written)
    assert server("SELECT g.AsBinaryZM(), g.ToString(), e.STAsText(), g.STSrid, e.STSrid FROM dbo.t") == [
        (bytes_, text, flat, 0, 4979)
    ]


def test_a_shape_is_no_key_and_has_to_be_one(server: Client) -> None:
    # [DOC: geometry; the numbers: K] rule 29
    assert server.error("CREATE TABLE dbo.t (g geometry NOT NULL PRIMARY KEY)") == 1919
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, g geometry)")
    for wrong in ("POINT (1)", "CUBE (1 2)", "POINT 1 2"):
        assert server.error("INSERT INTO dbo.t VALUES (1, CAST(? AS geometry))", wrong) == 6522


def test_values_that_the_model_does_not_send_are_refused(server: Client, fresh: SqlServerModel) -> None:
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, h hierarchyid, g geometry, v sql_variant)")
    server("INSERT INTO dbo.t VALUES (1, '/1/', 'POINT (1 2)', 5)")
    for driver in Driver:
        connection = connect(driver, fresh.address)
        for column in ("*", "h", "g", "v"):
            with pytest.raises(pyodbc.Error, match="sends no values of"):
                connection.execute(f"SELECT {column} FROM dbo.t")
        assert connection.execute("SELECT h.ToString() FROM dbo.t").fetchval() == "/1/"
        connection.close()


# -- rules 30 and 31: sql_variant, json, sparse columns ------------------------------------------------------------------


def test_a_variant_takes_values_of_many_types(server: Client) -> None:
    # [DOC: sql_variant] rule 30
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, v sql_variant)")
    server("INSERT INTO dbo.t VALUES (1, 1), (2, NULL)")
    server("INSERT INTO dbo.t VALUES (3, N'a')")
    assert server("SELECT CAST(v AS nvarchar(10)) FROM dbo.t ORDER BY id") == [("1",), (None,), ("a",)]


def test_json_came_with_2025(server: Client, fresh: SqlServerModel) -> None:
    # [DOC: json data type] rule 30
    assert server.error("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, j json)") == 2715
    assert server("SELECT name FROM sys.types WHERE name = 'json'") == []
    fresh.change(version="17.0.1000.7")
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, j json)")
    assert server(COLUMNS, "dbo.t")[1:] == [("j", "json", 244, 244, -1, True, False, False)]
    server("""INSERT INTO dbo.t VALUES (1, N'{"ż":1}')""")
    assert server.value("SELECT CAST(j AS nvarchar(max)) FROM dbo.t") == '{"ż":1}'
    for driver in Driver:
        connection = connect(driver, fresh.address)
        assert connection.execute("SELECT j FROM dbo.t").fetchval() == '{"ż":1}'
        connection.close()
    server("INSERT INTO dbo.t VALUES (2, NULL)")
    for wrong in ("{", "x"):
        with pytest.raises(pyodbc.Error):
            server("INSERT INTO dbo.t VALUES (3, ?)", wrong)
    assert server.error("CREATE TABLE dbo.u (j json NOT NULL PRIMARY KEY)") == 1919


def test_sparse_columns_and_column_sets_are_listed(server: Client) -> None:
    # [DOC: use column sets] rule 31
    server(
        "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a int SPARSE NULL, s xml COLUMN_SET FOR ALL_SPARSE_COLUMNS)"
    )
    rows = server(
        "SELECT name, is_sparse, is_column_set FROM sys.columns WHERE object_id = OBJECT_ID('dbo.t') ORDER BY column_id"
    )
    assert rows == [("id", False, False), ("a", True, False), ("s", False, True)]


def test_descriptions_are_extended_properties(server: Client) -> None:
    # [DOC: sys.extended_properties, sp_addextendedproperty; the numbers: K] rule 32
    server("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, a int)")
    table = "@level0type = N'SCHEMA', @level0name = N'dbo', @level1type = N'TABLE', @level1name = N't'"
    column = f"{table}, @level2type = N'COLUMN', @level2name = N'a'"
    add = "EXEC sys.sp_addextendedproperty @name = N'MS_Description', @value = N'{}', {}"
    server(add.format("Of the table", table))
    server(add.format("Of a", column))
    assert server.error(add.format("again", column)) == 15233
    assert server.error(add.format("of none", column.replace("N'a'", "N'b'"))) == 15135
    query = (
        "SELECT minor_id, CAST(value AS nvarchar(100)) FROM sys.extended_properties"
        " WHERE class = 1 AND name = N'MS_Description' AND major_id = OBJECT_ID('dbo.t') ORDER BY minor_id"
    )
    assert server(query) == [(0, "Of the table"), (2, "Of a")]
    server(f"EXEC sys.sp_updateextendedproperty @name = N'MS_Description', @value = N'Else', {column}")
    server(f"EXEC sys.sp_dropextendedproperty @name = N'MS_Description', {table}")
    assert server.error(f"EXEC sys.sp_dropextendedproperty @name = N'MS_Description', {table}") == 15217
    assert server(query) == [(2, "Else")]


# -- what capture and change tracking make of them -----------------------------------------------------------------------


def test_own_types_are_captured_with_their_values(server: Client, fresh: SqlServerModel) -> None:
    # [DOC: "All base column types are supported by change data capture"] rules 28, 29, 30
    server("CREATE TYPE dbo.code FROM nvarchar(20) NOT NULL")
    server(
        "CREATE TABLE dbo.t (node hierarchyid NOT NULL PRIMARY KEY, a dbo.code, g geometry, e geography, v sql_variant)"
    )
    server("EXEC sys.sp_cdc_enable_db")
    server("EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', @role_name = NULL")
    server(
        "INSERT INTO dbo.t VALUES ('/1/', N'x', 'POINT (1 2)', 'POINT (1 2 3 4)', 1), ('/2/', N'y', NULL, NULL, NULL)"
    )
    server("UPDATE dbo.t SET a = N'z' WHERE node = CAST('/1/' AS hierarchyid)")
    server("DELETE FROM dbo.t WHERE node = CAST('/2/' AS hierarchyid)")
    fresh.capture.scan_all()
    changes = server(
        "SELECT [__$operation], node.ToString(), a, g.AsTextZM(), e.AsTextZM() FROM cdc.dbo_t_CT"
        " ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
    )
    assert changes == [
        (2, "/1/", "x", "POINT (1 2)", "POINT (1 2 3 4)"),
        (2, "/2/", "y", None, None),
        (3, "/1/", "x", None, None),
        (4, "/1/", "z", None, None),
        (1, "/2/", "y", None, None),
    ]


def test_own_types_are_tracked_by_their_key(server: Client) -> None:
    # [DOC: change tracking] rules 28, 29
    server("ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 2 DAYS, AUTO_CLEANUP = ON)")
    server("CREATE TABLE dbo.t (node hierarchyid NOT NULL PRIMARY KEY, g geometry)")
    server("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING")
    server("INSERT INTO dbo.t VALUES ('/1/', 'POINT (1 2)')")
    assert server("SELECT c.node.ToString(), c.SYS_CHANGE_OPERATION FROM CHANGETABLE(CHANGES dbo.t, 0) AS c") == [
        ("/1/", "I")
    ]
