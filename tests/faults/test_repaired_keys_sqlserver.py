"""`replicator verify --repair` on the model of a SQL Server: keys of every type, whatever somebody wrote into them in the target.

As `test_repaired_keys_mysql`: rows that the source could have, and rows that it could not, are added; rows are lost and changed.
"""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest

from replicator_testbed.background import in_background
from replicator_testbed.delta import plain_rows
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.spoiled.copies import DeltaCopy
from replicator_testbed.sqlserver.databases import SqlServers, enable
from replicator_testbed.sqlserver.tables import KEYS, OTHER_KEYS, source_rows
from tests.faults.test_repaired_keys_mysql import EXTRA, spoil


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_keys_of_every_type_are_repaired_while_rows_change(tmp_path: Path, sqlserver: SqlServers) -> None:
    # A bit has two values: nothing can be added, and it may be missing in the log of a deletion.
    # Text in another code page than the database's is refused.
    types = [type_ for type_ in (*KEYS, *OTHER_KEYS) if type_ != "bit" and "UTF8" not in type_]
    values = {**KEYS, **OTHER_KEYS}
    with sqlserver.database() as database:
        for number, type_ in enumerate(types):
            database.execute(
                f"CREATE TABLE dbo.t{number} (k {type_} NOT NULL PRIMARY KEY, v int NULL)",
                enable(f"t{number}"),
                *(f"INSERT INTO dbo.t{number} VALUES ({value}, {v})" for v, value in enumerate(values[type_])),
            )
        names = [f"t{number}" for number in range(len(types))]
        rig = Rig(folder=tmp_path, database=database, tables=names, extra=EXTRA, may_alarm=True)
        worker = rig.start()
        try:
            rig.wait_for_status(is_streaming, worker, timeout_s=900)
            rig.settle(worker)
            added = [spoil(DeltaCopy(rig.lake / "dbo" / name)) for name in names]
            assert sum(added) > 2 * len(names), "much could be added"

            def change(stop: threading.Event) -> None:
                # At a pace: rows that change whenever they are read again cannot be verified, and that is what is said of them.
                for name in itertools.cycle(names):
                    if stop.wait(1.0):
                        return
                    database.execute(f"UPDATE dbo.{name} SET v = v + 100 WHERE v % 2 = 0")

            with in_background(change):
                done = rig.command("verify", rig.name, "--repair", "--json", check=None, timeout=1500)
            found = {one["table"].partition(".")[2]: one for one in json.loads(done.stdout)["tables"]}
            assert {
                type_: (found[name]["result"], found[name]["reason"], found[name]["differences"][:3])
                for name, type_ in zip(names, types, strict=True)
                if found[name]["result"] != "equal"
            } == {}
            assert done.returncode == 0
            rig.settle(worker)
            copies = {name: plain_rows(rig.lake / "dbo" / name, ["k", "v"]) for name in names}
            sources = {name: source_rows(database, name) for name in names}
            assert {
                type_: (sources[name] - copies[name], copies[name] - sources[name])
                for name, type_ in zip(names, types, strict=True)
                if sources[name] != copies[name]
            } == {}
            assert rig.stop(worker) == 0, rig.output()
        finally:
            rig.kill()
