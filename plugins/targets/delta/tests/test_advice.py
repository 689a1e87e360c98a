"""The advice of errors of this target, followed literally: the table streams afterwards. Each code has a case, or a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

import replicator_target_delta
from replicator.model.errors import Problem, ReplicatorError, TargetUnavailableError
from replicator.model.events import DDLEvent, DDLOperation
from replicator.plugins.target import TableOptions
from replicator_target_delta.lane.losses import LOOK_EVERY_S, FileChecks
from replicator_target_delta.log.table import TableLog, read_log
from replicator_testbed.advice import Case, codes_in, ways_of
from replicator_testbed.present import present

if TYPE_CHECKING:
    from plugins.targets.delta.tests.conftest import Lake

NOT_PROVOKED: Final = {
    "column_name_reserved": "about the source's names, before anything is written: test_names, tests/unit",
    "comment_changed": "a notice: nothing stops",
    "journal_file_unreadable": "about the journal: a snapshot reads the rows again (tests/faults)",
    "key_missing": "about a change of the source",
    "ledger_disagrees": "a bug: no advice but to report it",
    "merge_not_unique": "a bug: no advice but to report it",
    "path_not_shared": "needs executors of another user or host (tests of the Spark cluster)",
    "spark_executors_lost": "needs executors that die (tests of the Spark cluster); is retried",
    "spark_missing": "a bug of the host",
    "spark_out_of_memory": "needs a JVM with too little memory; is retried",
    "spark_refused": "a bug: the advice is to report it and to exclude the table",
    "spark_scratch_unusable": "needs a full disk of an executor; is retried",
    "table_name_too_long": "about the source's names: test_check",
    "target_busy": "is retried: test_target, test_engine",
    "target_full": "needs a full disk; is retried",
    "target_not_writable": "about rights on the path; is retried: test_check",
    "target_unreachable": "needs a network; is retried",
    "unsupported_type": "about the source's types: test_types",
}
"""Codes whose advice has no case here, and why."""

RECREATE: Final = "Recreate it: replicator snapshot test public.people --recreate."
RECREATE_WAY: Final = "--recreate"


SPARK: Final = frozenset({RECREATE_WAY})
"""For what is recreated Spark has to work."""


# -- what the advice tells to do --------------------------------------------------------------------------------------


def snapshot(lake: Lake) -> None:
    """`snapshot`, of the one row that the source has."""
    lake.apply(lake.update(id=1, name="a", note="x"))


def recreate(lake: Lake) -> None:
    """`snapshot --recreate`."""
    lake.table = replace(lake.table, incarnation=lake.table.incarnation + 1)
    lake.target.read_ledger(lake.table)
    lake.target.claim(lake.table)
    lake.create()
    snapshot(lake)
    lake.target.publish(lake.table, lake.number())


def start(lake: Lake) -> None:
    """A replicator's first steps with a table."""
    assert lake.target.check([lake.schema]) == []
    lake.target.claim(lake.table)
    lake.create()
    snapshot(lake)


def move_away(lake: Lake) -> None:
    lake.path.rename(lake.folder / "away")


def move_away_and_start(lake: Lake) -> None:
    move_away(lake)
    start(lake)


def move_away_and_recreate(lake: Lake) -> None:
    move_away(lake)
    recreate(lake)


def choose_another_path(lake: Lake) -> None:
    lake.folder /= "another"
    lake.folder.mkdir()
    lake.target = lake.process(lake.table.uuid)
    start(lake)


def adopt(lake: Lake) -> None:
    lake.config["adopt"] = "replace"
    lake.target = lake.process(lake.table.uuid)
    start(lake)


def restore(lake: Lake) -> None:
    for file in (lake.folder / "saved").iterdir():
        file.rename(lake.path / "_delta_log" / file.name)


def no_longer_append_only(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` UNSET TBLPROPERTIES ('delta.appendOnly')")


def drop_constraint(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` DROP CONSTRAINT c")
    snapshot(lake)


def compare(lake: Lake, at: int | None = None) -> None:
    """`verify`."""
    columns = {column.name: column.name for column in lake.schema.columns}
    at = lake.next - 1 if at is None else at
    with lake.target.open_state(lake.table, lake.schema, columns=columns, at=at):
        pass


# -- what somebody does -----------------------------------------------------------------------------------------------


def save(lake: Lake, version: int) -> Path:
    """The file of a version, of which a copy is kept."""
    (lake.folder / "saved").mkdir()
    file = lake.path / "_delta_log" / f"{version:020}.json"
    (lake.folder / "saved" / file.name).write_bytes(file.read_bytes())
    return file


def cut_off(lake: Lake, version: int) -> None:
    file = save(lake, version)
    file.write_bytes(file.read_bytes()[:30])


def log_of(lake: Lake) -> TableLog:
    return present(read_log(lake.target._storage, str(lake.path)))


def commit(lake: Lake, *actions: Mapping[str, Any]) -> None:
    """A version by somebody else."""
    version = max(int(file.stem) for file in (lake.path / "_delta_log").glob("*.json")) + 1
    text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
    (lake.path / "_delta_log" / f"{version:020}.json").write_text(f"{text}\n")


def write(lake: Lake) -> None:
    """A batch."""
    lake.apply(lake.update(id=1, name="b", note="x"))


def next_process(lake: Lake) -> None:
    lake.target = lake.process()
    lake.table = replace(lake.table, epoch=lake.table.epoch + 1)


def newest_commit_cut_off(lake: Lake) -> None:
    cut_off(lake, lake.version())
    write(lake)


def commit_of_others_cut_off(lake: Lake) -> None:
    folder = lake.path / "_delta_log"
    (folder / f"{lake.version() + 1:020}.json").write_text('{"commitInfo":{"timestamp":1,"opera')
    write(lake)


def first_commit_cut_off(lake: Lake) -> None:
    cut_off(lake, 0)
    next_process(lake)
    write(lake)


def version_removed(lake: Lake) -> None:
    snapshot(lake)
    save(lake, 1).unlink()
    next_process(lake)
    write(lake)


def checkpoint_cut_off(lake: Lake) -> None:
    damage_checkpoint(lake, lambda file: file.write_bytes(file.read_bytes()[:-1]))


def damage_checkpoint(lake: Lake, how: Callable[[Path], object]) -> None:
    """All versions are there."""
    snapshot(lake)
    DeltaTable(lake.path).create_checkpoint()
    (file,) = (lake.path / "_delta_log").glob("*.checkpoint.parquet")
    (lake.folder / "saved").mkdir()
    (lake.folder / "saved" / file.name).write_bytes(file.read_bytes())
    how(file)
    next_process(lake)
    write(lake)


def first_commit_cut_off_for_check(lake: Lake) -> Problem:
    cut_off(lake, 0)
    return the_finding(lake)


def the_finding(lake: Lake) -> Problem:
    (problem,) = lake.process(lake.table.uuid).check([lake.schema])
    return problem


def files_removed(lake: Lake) -> None:
    for file in lake.path.glob("*.parquet"):
        file.unlink()
    now = [0.0]
    lake.target._files = FileChecks(lambda: now[0])
    now[0] += LOOK_EVERY_S
    lake.target.audit(lake.table, None)


def of_another(lake: Lake) -> Problem:
    """Another replicator has a table there."""
    lake.table = replace(lake.table, uuid="u-2")
    lake.target = lake.process("u-2")
    problem = the_finding(lake)
    with pytest.raises(ReplicatorError) as caught:
        lake.target.claim(lake.table)
    assert (caught.value.code, caught.value.action) == (problem.code, problem.action)
    return problem


def adopted(lake: Lake) -> None:
    """Another replicator takes the table over."""
    lake.config["adopt"] = "replace"
    lake.process("u-2").claim(replace(lake.table, uuid="u-2"))
    del lake.config["adopt"]
    lake.target = lake.process()
    write(lake)


def files_at_its_path(lake: Lake) -> None:
    lake.path.rename(lake.folder / "gone")
    lake.path.mkdir()
    (lake.path / "notes.txt").write_text("x")
    lake.target = lake.process()
    lake.target.claim(lake.table)
    lake.create()


def file_at_its_path(lake: Lake) -> Problem:
    lake.path.rename(lake.folder / "gone")
    lake.path.write_text("x")
    return the_finding(lake)


def table_removed(lake: Lake) -> None:
    lake.path.rename(lake.folder / "gone")
    with suppress(TargetUnavailableError):
        write(lake)  # it is retried
    write(lake)


def column_dropped(lake: Lake) -> None:
    metadata = dict(log_of(lake).metadata)
    shape = json.loads(metadata["schemaString"])
    fields = [field for field in shape["fields"] if field["name"] != "note"]
    commit(lake, {"metaData": {**metadata, "schemaString": json.dumps({**shape, "fields": fields})}})
    write(lake)


def settings_changed(lake: Lake) -> None:
    lake.table = replace(lake.table, options=TableOptions(source_timestamp=True))
    lake.target = lake.process()
    write(lake)


def altered_too_much(lake: Lake) -> None:
    lake.event(DDLEvent(operation=DDLOperation.ALTER_TABLE, table=lake.schema.table, schema=lake.schema))


def append_only(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    write(lake)


def constraint(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` ADD CONSTRAINT c CHECK (name <> 'b')")
    write(lake)


def compared_with_the_past(lake: Lake) -> None:
    compare(lake, at=-1)


def cloned_back(lake: Lake) -> None:
    """The table is moved away, and a clone of it made where it was: its files stay where they are."""
    lake.apply(lake.insert(id=7, name="g", note="x"))
    lake.path.rename(lake.folder / "away")
    lake.spark.sql(f"CREATE TABLE delta.`{lake.path}` SHALLOW CLONE delta.`{lake.folder / 'away'}`")
    next_process(lake)
    write(lake)
    compare(lake)


LOG: Final = (
    "Restore the log, or move the folder away and recreate the table: replicator snapshot NAME TABLE --recreate."
)
COMMIT: Final = (
    "Restore the file, or recreate the table: replicator snapshot NAME TABLE --recreate. Then the file gets another name, and the table "
    "continues without it."
)
CASES: Final[Mapping[str, Case[Lake]]] = {
    "newest commit cut off": Case(
        code="target_unreadable",
        stop=newest_commit_cut_off,
        advice=COMMIT,
        ways={"Restore the file": restore, RECREATE_WAY: recreate},
        slow=SPARK,
    ),
    "commit of others cut off": Case(
        code="target_unreadable", stop=commit_of_others_cut_off, advice=COMMIT, ways={RECREATE_WAY: recreate}, slow=SPARK,
    ),
    "first commit cut off": Case(
        code="target_unreadable",
        stop=first_commit_cut_off,
        advice=LOG,
        ways={"Restore the log": restore, "move the folder away": move_away_and_recreate},
    ),
    "first commit cut off before a start": Case(
        code="target_unreadable",
        stop=first_commit_cut_off_for_check,
        advice="Move the folder away.",
        ways={"Move the folder away": move_away_and_start},
    ),
    "version removed": Case(
        code="target_unreadable",
        stop=version_removed,
        advice=LOG,
        ways={"Restore the log": restore, "move the folder away": move_away_and_recreate},
        slow=frozenset({"Restore the log", "move the folder away"}),
    ),
    **{
        f"checkpoint {how}": Case(
            code="target_unreadable",
            stop=stop,
            advice=LOG,
            ways={"Restore the log": restore, "move the folder away": move_away_and_recreate},
            slow=frozenset({"Restore the log", "move the folder away"}),
        )
        for how, stop in {"cut off": checkpoint_cut_off}.items()
    },
    "data files removed": Case(
        code="target_file_unreadable",
        stop=files_removed,
        advice="Something else removed or changed files of the table. Recreate it: replicator snapshot NAME TABLE --recreate.",
        ways={RECREATE_WAY: recreate},
        slow=SPARK,
    ),
    "another replicator's": Case(
        code="not_ours",
        stop=of_another,
        advice="Choose another target.path, move the table away, or set target.adopt: replace to lose its content.",
        ways={"another target.path": choose_another_path, "move": move_away_and_start, "target.adopt: replace": adopt},
        slow=frozenset({"target.adopt: replace"}),
    ),
    "taken over": Case(
        code="not_ours",
        stop=adopted,
        advice=(
            "Delete this replicator, or choose another target.path. Or delete the other one, move the table's folder away, and recreate "
            "the table: replicator snapshot NAME TABLE --recreate."
        ),
        ways={"another target.path": choose_another_path, "move the table's folder away": move_away_and_recreate},
    ),
    "files at its path": Case(
        code="target_occupied",
        stop=files_at_its_path,
        advice="Move the folder away, or choose another target.path.",
        ways={"Move the folder away": move_away_and_start, "another target.path": choose_another_path},
    ),
    "a file at its path": Case(
        code="target_occupied",
        stop=file_at_its_path,
        advice="Move it away, or choose another target.path.",
        ways={"Move it away": move_away_and_start, "another target.path": choose_another_path},
    ),
    "table removed": Case(
        code="schema_conflict",
        stop=table_removed,
        advice=RECREATE,
        ways={RECREATE_WAY: recreate},
    ),
    "column dropped": Case(
        code="schema_conflict",
        stop=column_dropped,
        advice="Run `replicator snapshot NAME TABLE --recreate`.",
        ways={RECREATE_WAY: recreate},
        slow=SPARK,
    ),
    "settings changed": Case(
        code="schema_conflict", stop=settings_changed, advice=RECREATE, ways={RECREATE_WAY: recreate}, slow=SPARK
    ),
    "constraint added": Case(
        code="schema_conflict",
        stop=constraint,
        advice="Drop it (ALTER TABLE … DROP CONSTRAINT …). Then run `replicator snapshot NAME TABLE`.",
        ways={"DROP CONSTRAINT": drop_constraint},
        slow=frozenset({"DROP CONSTRAINT"}),
    ),
    "altered too much": Case(
        code="ddl_not_supported", stop=altered_too_much, advice=RECREATE, ways={RECREATE_WAY: recreate}, slow=SPARK
    ),
    "append-only": Case(
        code="spark_failed",
        stop=append_only,
        advice="Run ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly') on it. The batch is retried automatically.",
        ways={"UNSET TBLPROPERTIES": no_longer_append_only},
        slow=frozenset({"UNSET TBLPROPERTIES"}),
    ),
    "compared with a clone": Case(
        code="state_not_readable",
        stop=cloned_back,
        advice="Run the command again. If that fails too: Run `replicator snapshot NAME TABLE --recreate`.",
        ways={RECREATE_WAY: recreate},
        slow=SPARK,
    ),
    "compared with the past": Case(
        code="state_not_readable",
        stop=compared_with_the_past,
        advice="Run the command again.",
        ways={"Run the command again": compare},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "way"), ways_of(CASES))
def test_the_table_streams_after_its_advice_was_followed(new_lake: Callable[..., Lake], name: str, way: str) -> None:
    case, lake = CASES[name], new_lake(engine="auto")
    snapshot(lake)
    case.check(lake, way)
    lake.target = lake.process(lake.table.uuid)
    case.ways[way](lake)
    lake.apply(lake.update(id=1, name="c", note="y"), lake.insert(id=2, name="d", note="z"))
    assert lake.rows() == {(1, "c", "y"), (2, "d", "z")}
    compare(lake)


def test_every_code_has_a_case_or_a_reason() -> None:
    assert codes_in([replicator_target_delta]) == {case.code for case in CASES.values()} | set(NOT_PROVOKED)
