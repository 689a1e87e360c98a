"""Reads of the model that wait for a scan of the capture job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replicator_testbed.sqlserver.model import SqlServerModel
from tests.testbed.sqlserver.conftest import Client

pytestmark = pytest.mark.matrix

READS = ("SELECT sys.fn_cdc_get_max_lsn()", "SELECT start_lsn FROM cdc.lsn_time_mapping", "SELECT id FROM cdc.dbo_t_CT")


@pytest.fixture
def captured(model: SqlServerModel, client: Client) -> Iterator[Client]:
    """A client of a database with a captured table."""
    client("EXEC sys.sp_cdc_enable_db")
    client("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)")
    client("EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', @role_name = NULL")
    model.capture.scan_all()
    client("SET LOCK_TIMEOUT 0")
    yield client
    client("ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT ON")


def test_reads_without_row_versions_wait_for_what_a_scan_has_written(model: SqlServerModel, captured: Client) -> None:
    # rule 33 [DOC: a scan is one transaction]
    with model.capture.scanning("dbo_t"):
        for read in READS:
            captured(read)
    captured("ALTER DATABASE shop SET READ_COMMITTED_SNAPSHOT OFF")
    for read in READS:
        captured(read)
    with model.capture.scanning("dbo_t"):
        assert [captured.error(read) for read in READS] == [1222, 1222, 1222]
    with model.capture.scanning():
        assert [captured.error(read) for read in READS[:2]] == [1222, 1222]
        captured(READS[2])
    with model.capture.scanning(has_victims=True):
        assert captured.error(READS[0]) == 1205
    for read in READS:
        captured(read)
