"""Locking reads wait for commits that are captured and still hold their locks.

A SQL Server lets go of a commit's locks after it is in the log. PostgreSQL's row locks cannot show that for a row that was inserted: a
statement whose snapshot does not have the row does not wait for it.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from replicator_testbed.sqlserver.engine.names import quoted
from replicator_testbed.sqlserver.outcomes import SqlError

if TYPE_CHECKING:
    from replicator_testbed.sqlserver.engine.database import Database

_POLL_S: Final = 0.01
_LATEST: Final = 500
_INSTANCES: Final = "SELECT capture_instance FROM sqlserver.cdc_instances WHERE source_object_id = ANY(%s)"
_HIDDEN: Final = f"""
SELECT count(*) FROM (SELECT start_lsn, tran_id FROM sqlserver.cdc_lsn_time ORDER BY start_lsn DESC LIMIT {_LATEST}) AS l
WHERE length(tran_id) = 6
AND NOT pg_visible_in_snapshot(('x' || encode(tran_id, 'hex'))::bit(48)::bigint::text::xid8, pg_current_snapshot())
AND ({{changed}})
"""


def wait_for_captured_commits(database: Database, tables: frozenset[int], lock_timeout_ms: int) -> None:
    """Wait until every captured commit that changed one of the tables is visible.

    Args:
        database: Of the tables.
        tables: Their numbers.
        lock_timeout_ms: How long; negative: without end.

    Raises:
        SqlError: 1222, it took longer.
    """
    instances = [name for (name,) in database.execute(_INSTANCES, [list(tables)])]
    if not instances:
        return
    changed = " OR ".join(
        f'EXISTS (SELECT FROM cdc.{quoted(f"{name}_CT")} AS c WHERE c."__$start_lsn" = l.start_lsn)'
        for name in instances
    )
    query = _HIDDEN.format(changed=changed)
    deadline = time.monotonic() + lock_timeout_ms / 1000
    # Not on the connection that all share: the capture job, which needs that one, may have locked a change table to alter it.
    with closing(database.connect()) as connection:
        try:
            while connection.execute(query.encode()).fetchall() != [(0,)]:
                database.waits_for_commits = True
                if lock_timeout_ms >= 0 and time.monotonic() >= deadline:
                    raise SqlError(1222, "Lock request time out period exceeded.", state=51)
                time.sleep(_POLL_S)
        finally:
            database.waits_for_commits = False
