"""Puts one version into a table's log, by Delta's own LogStore in Spark's JVM, without a transaction.

The file of version v + 1 is a compare-and-swap: it is prepared from every commit up to v, and written only if no other writer has.
Delta's `OptimisticTransaction` does the same at its end, after it has reconstructed the table's state, which costs seconds of processor
time. `docs/adr/0023-ledger-commits-are-put.md` has the protocol: fields, features, what is never written.

A crash before the put leaves nothing, after it the whole version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from replicator.model.crash import crash_point
from replicator.plugins import get_logger
from replicator_target_delta.log.files import LogFiles, commit_name
from replicator_target_delta.log.table import TableLog
from replicator_target_delta.scala import Scala
from replicator_target_delta.storage import NO_LINKS, Storage

_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_CHECKPOINT_INTERVAL_DEFAULT: Final = 10
_READER_MAX: Final = 3
_WRITER_MAX: Final = 7
# Features that ask nothing of a commit that has no data files and changes neither schema nor properties.
_FEATURES: Final = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
# Likewise; compared without case, as Delta does.
_PROPERTIES: Final = frozenset(
    {
        "delta.appendonly",
        "delta.autooptimize.autocompact",
        "delta.autooptimize.optimizewrite",
        "delta.checkpoint.writestatsasjson",
        "delta.checkpoint.writestatsasstruct",
        "delta.checkpointinterval",
        "delta.checkpointpolicy",
        "delta.columnmapping.maxcolumnid",
        "delta.columnmapping.mode",
        "delta.dataskippingnumindexedcols",
        "delta.dataskippingstatscolumns",
        "delta.deletedfileretentionduration",
        "delta.enablechangedatafeed",
        "delta.enabledeletionvectors",
        "delta.enableexpiredlogcleanup",
        "delta.enabletypewidening",
        "delta.isolationlevel",
        "delta.logretentionduration",
        "delta.parquet.compression.codec",
        "delta.targetfilesize",
        "delta.tunefilesizesforrewrites",
    }
)
_ITS_OWN: Final = {"fs.replicator.checkpoints": "true"}
"""An option without meaning to a file system: it makes Delta keep a separate `DeltaLog` of the same path."""
_CHOSEN_STORES: Final = ("spark.delta.logStore.class", "spark.delta.logStore.file.impl")
_TAKEN: Final = "FileAlreadyExistsException"
CONSTRAINT: Final = "delta.constraints."

_log = get_logger("target.delta")


def obstacle(log: TableLog) -> str | None:
    """The reason for which no version may be put into the log, None if one may: unknown features are left to Delta's transaction."""
    reader, writer = log.protocol.get("minReaderVersion"), log.protocol.get("minWriterVersion")
    if not isinstance(reader, int) or not isinstance(writer, int) or reader > _READER_MAX or writer > _WRITER_MAX:
        return f"protocol {reader}, {writer}"
    features = {*(log.protocol.get("readerFeatures") or ()), *(log.protocol.get("writerFeatures") or ())}
    strange = [f"feature {name}" for name in sorted(features - _FEATURES)]
    strange += [f"property {name}" for name in sorted(log.properties) if not _is_known(name.lower())]
    strange += [f"action {name}" for name in sorted(log.unknown)]
    return strange[0] if strange else None


def _is_known(property_name: str) -> bool:
    return (
        property_name in _PROPERTIES or not property_name.startswith("delta.") or property_name.startswith(CONSTRAINT)
    )


class LogStore:
    """The log of one table, as Delta writes it. Thread-safe.

    Args:
        session: A SparkSession.
        path: The table's path.
    """

    def __init__(self, session: Any, path: str) -> None:
        self._session, self._path = session, path
        self._scala = Scala(session)
        # There is no public way to the LogStore that the user has configured, and to the lock below.
        self._for_table = self._scala.delta.DeltaLog.forTable
        chosen = (session.conf.get(name, None) for name in _CHOSEN_STORES)
        self._is_linked = "://" not in path and all(store is None for store in chosen)

    def put(self, version: int, lines: Sequence[str]) -> bool:
        """Write the file of a version; False if there is one. After an error the outcome is unknown: read the version.

        On this host's disk by link(2), elsewhere through Delta's LogStore.
        """
        if self._is_linked:
            try:
                return self._link(version, lines)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                self._is_linked = False
        return self._write(version, lines)

    def _link(self, version: int, lines: Sequence[str]) -> bool:
        """Give the file its name by link(2), which never replaces one.

        Delta's own store looks first and renames then, and the JVM starts a program for it: that takes a tenth of a second.
        """
        folder = Path(self._path) / "_delta_log"
        temporary = folder / f".{commit_name(version)}.{uuid4()}.tmp"
        try:
            temporary.write_bytes("".join(f"{line}\n" for line in lines).encode())
            with _locked(self._log()):
                os.link(temporary, folder / commit_name(version))
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _write(self, version: int, lines: Sequence[str]) -> bool:
        from py4j.protocol import Py4JJavaError

        log, jvm = self._log(), self._scala.jvm
        path = jvm.org.apache.hadoop.fs.Path(log.logPath(), commit_name(version))
        text = jvm.java.util.ArrayList()
        text.add("\n".join(lines))
        with _locked(log):
            try:
                iterator = jvm.scala.jdk.javaapi.CollectionConverters.asScala(text.iterator())
                log.store().write(path, iterator, False, log.newDeltaHadoopConf())
            except Py4JJavaError as error:
                if error.java_exception.getClass().getSimpleName() == _TAKEN:
                    return False
                raise
        return True

    def _log(self) -> Any:
        """The `DeltaLog` that Delta has of the table now, and with which it commits."""
        self._scala.activate()
        return self._for_table(self._session._jsparkSession, self._path)  # noqa: SLF001

    def make_folder(self) -> None:
        """Make the folder of the log."""
        log = self._log()
        folder = log.logPath()
        folder.getFileSystem(log.newDeltaHadoopConf()).mkdirs(folder)

    def checkpoint(self) -> None:
        """Make a checkpoint of the newest version. The versions are valid even if it fails.

        It takes seconds, during which Delta holds the lock of the log that it works with: another one than that of `put`.
        """
        try:
            self._scala.activate()
            path, options = self._scala.jvm.org.apache.hadoop.fs.Path(self._path), self._scala.immutable_map(_ITS_OWN)
            log = self._for_table(self._session._jsparkSession, path, options)  # noqa: SLF001
            log.update(False, self._scala.none(), self._scala.none())
            log.checkpoint()
        except Exception as error:  # noqa: BLE001 - as in Delta, the next version that is due tries again
            _log.warning("checkpoint_failed", path=self._path, error=type(error).__name__)


@contextmanager
def _locked(log: Any) -> Iterator[None]:
    """Hold the lock that Delta's transactions hold while they write where a rename does not exclude another one."""
    lock = log.snapshotLock()
    lock.lock()
    try:
        yield
    finally:
        lock.unlock()


def create(store: LogStore, storage: Storage, path: str, actions: Sequence[Mapping[str, Any]], operation: str) -> bool:
    """Write version 0; False if another writer has. Otherwise as `commit`."""
    store.make_folder()
    return _commit(store, storage, path, -1, [_commit_info(-1, operation), *actions])


def commit(
    store: LogStore,
    storage: Storage,
    path: str,
    log: TableLog,
    actions: Sequence[Mapping[str, Any]],
    operation: str,
    **info: object,
) -> bool:
    """Write the version after `log`; False if another writer has. `info`: additional fields of `commitInfo`.

    The content of the log afterwards decides, not the store's answer: an exception may come after the file was written, and a file
    system that only looks before it renames may replace it.

    Raises:
        Exception: The store's, if there is no such version.
    """
    if not _commit(store, storage, path, log.version, [_commit_info(log.version, operation, **info), *actions]):
        return False
    if (log.version + 1) % _interval(log.properties) == 0:
        store.checkpoint()
    return True


def _commit(store: LogStore, storage: Storage, path: str, behind: int, actions: Sequence[Mapping[str, Any]]) -> bool:
    version, identity = behind + 1, actions[0]["commitInfo"]["txnId"]
    lines = [json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions]
    failure: Exception | None = None
    crash_point("target.before_put")
    try:
        store.put(version, lines)
        crash_point("target.after_put")
    except Exception as error:  # noqa: BLE001 - whatever it was, the log knows the outcome
        failure = error
    found = _identity(storage, path, version)
    if found is None and failure is not None:
        raise failure
    return bool(found == identity)


def _identity(storage: Storage, path: str, version: int) -> str | None:
    """The identity of a version's commit, empty if it has none; None if there is no such version."""
    found = LogFiles(storage, path).find(version)
    return None if found is None else str(found.identity or "")


def _commit_info(read_version: int, operation: str, **info: object) -> Mapping[str, Any]:
    # The first version has read none. delta-rs shows no history that has another number than those of versions.
    read = {"readVersion": read_version} if read_version >= 0 else {}
    return {
        "commitInfo": {
            "timestamp": int(time.time() * 1000),
            "operation": operation,
            "operationParameters": {},
            **read,
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {},
            "engineInfo": "Replicator",
            "txnId": str(uuid4()),
            **info,
        }
    }


def _interval(properties: Mapping[str, str]) -> int:
    text = properties.get(_CHECKPOINT_INTERVAL, "")
    return int(text) if text.isdigit() and int(text) > 0 else _CHECKPOINT_INTERVAL_DEFAULT
