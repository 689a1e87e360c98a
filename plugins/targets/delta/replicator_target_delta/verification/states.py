"""Opens the state of a table that is verified: a version of its log, read by DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from replicator.model.schema import TableSchema
from replicator.plugins.kit.folding.needed import EngineNeededError
from replicator.plugins.target import TargetTable
from replicator.plugins.verification import VerifiedState
from replicator_target_delta.definition.building import path_of
from replicator_target_delta.errors import RECREATE, not_readable, translated
from replicator_target_delta.lane.losses import check_files
from replicator_target_delta.ledger import exists
from replicator_target_delta.log.mapping import conflict
from replicator_target_delta.log.table import read_log
from replicator_target_delta.storage import Storage
from replicator_target_delta.verification.duckdb_state import duckdb_state
from replicator_target_delta.verification.version import number_at, read_version


@contextmanager
def open_state(
    storage: Storage, table: TargetTable, schema: TableSchema, columns: Mapping[str, str], at: int
) -> Iterator[VerifiedState]:
    """See `SupportsTargetVerification.open_state`."""
    with ExitStack() as stack:
        with translated(str(table.table)):
            path = storage.table_path(table.table)
            path = path_of(storage, table, read_log(storage, path))
            number = number_at(storage, path, table, at)
            try:
                version = read_version(storage, path, number)
                if not exists(table, version.properties):
                    raise not_readable(table, "The table did not exist then")
                if (changed := conflict(version.metadata)) is not None:
                    why = f"Somebody else changed its columns. {changed.removesuffix('.')}"
                    raise not_readable(table, why, action=RECREATE)
                state = stack.enter_context(duckdb_state(storage, path, version, table, schema, columns))
            except EngineNeededError as why:
                check_files(storage, path)
                text = f"It is not understood without Spark: {why}"
                raise not_readable(table, text, action=f"Run the command again. If that fails too: {RECREATE}") from why
        yield state
