"""`replicator verify --repair` of tables of MariaDB and MySQL with keys of every type, whatever somebody wrote into the target's keys.

Rows that the source could have, and rows that it could not: texts that the column's character set lacks, or that its collation takes for
another one; numbers, days and bytes that the type does not hold. Rows are lost and changed, too. Afterwards both sides are compared
without the product.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from replicator_testbed.delta import plain_rows
from replicator_testbed.mysql.servers import MysqlDatabase
from replicator_testbed.mysql.tables import OddTable, RandomLoad, make, some_ids, source_rows
from replicator_testbed.mysql.types import GROUPS, OF_MARIADB, OF_MYSQL, Values, can_be_key, held, one_of
from replicator_testbed.rig import Rig, is_streaming
from replicator_testbed.spark.java import short_lived_options
from replicator_testbed.spoiled.copies import DeltaCopy

EXTRA = f"""
retry: {{backoff_initial: 20ms, backoff_max: 500ms, give_up_after: 30m}}
spark:
  settings: {json.dumps({"spark.driver.memory": "1g", **short_lived_options()})}
"""
COLLATED: Final[Mapping[str, Sequence[str]]] = {
    "mariadb": ("utf8mb4_unicode_nopad_ci", "utf8mb4_nopad_bin", "latin1_german1_ci", "utf8mb4_uca1400_as_cs"),
    "mysql": ("utf8mb4_0900_ai_ci", "utf8mb4_0900_bin", "latin1_german1_ci", "utf8mb4_0900_as_cs"),
}
SLICE = ("varchar(20) character set latin1", "varchar(20) character set sjis", "decimal(10,5)")
"""What the quick suite has."""

TEXTS: Final = (
    "日本", "😀", "\U0010ffff", "\uffff", "\ufffd", "e\u0301", "\u00ad", "ﾊ", "ハ", "は", "Ⅰ", "∪", "％", "ａ", "Ａ", "é", "ß",
    "SS", "¥", "‾", "~",
    "a", "A", "a ", "b", "B", "c", "", " ", "\0", "it's", "\\", "?", "_", "%", "x" * 300, "b,a", "l1,l1", ",", "NULL",
    "٣", "²", "-", ".", "1", "-1", "0", "00", "1e5", "2024-02-31", "25:00:00", "12:00:00.000000", "1.2.3.4", "::1", "::0001",
    "123E4567-E89B-12D3-A456-426655440000",
)  # fmt: skip
DAY_US: Final = 86_400_000_000
DAYS: Final = (-735_234, -719_529, -719_528, -719_527, -719_163, -719_162, 0, 2_932_896, 2_932_897, 6_585_443)
"""From 44 BC to the year 20000; also those around the years 0, 1 and 9999."""


def odd_values(kind: pa.DataType) -> Iterator[Any]:
    """What somebody may write into a column of the target; days and moments as whole numbers."""
    if pa.types.is_boolean(kind):
        yield from (False, True)
    elif pa.types.is_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        some = (-1, 0, 1, 8, 69, 70, 99, 1900, 1970, 2000, 2156, 100_000)
        yield from (least, most, *(value for value in some if value < most))
    elif pa.types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale)
        least = Decimal(1).scaleb(-kind.scale)
        yield from (most, -most, least, -least, Decimal(0).scaleb(-kind.scale))
    elif pa.types.is_date(kind):
        yield from DAYS
    elif pa.types.is_timestamp(kind):
        yield from (day * DAY_US + us for day in DAYS for us in (0, DAY_US - 1))
        yield from (2**31 * 1_000_000, 1_000_000, 999_999)
    elif pa.types.is_time(kind):
        yield from (0, 1, DAY_US - 1)
    elif pa.types.is_binary(kind):
        yield from (b"", b"\0", b"a", b"A", b"a\0", b"a".ljust(9, b"\0"), b" ", b"\xff" * 300, b"'\\")
    else:
        yield from TEXTS


def types_of(database: MysqlDatabase) -> Mapping[str, Values]:
    """Every type that may be in a key, and collations."""
    is_mariadb = database.server.flavor == "mariadb"
    known = {type_: values for group in GROUPS.values() for type_, values in group.items()}
    known |= OF_MARIADB if is_mariadb else OF_MYSQL
    letters = one_of(
        "'a'",
        "'A '",
        "'b'",
        "'ß'",
        "'e'",
        "'é'",
        or_=lambda chance: f"'{chance.choice('aAbBcCeE')}{chance.randrange(9)}'",
    )
    collated = {
        f"varchar(20) character set {name.partition('_')[0]} collate {name}": letters
        for name in COLLATED[database.server.flavor]
    }
    return {type_: held(type_, values) for type_, values in known.items() if can_be_key(type_)} | collated


def told_apart(type_: str, values: Values) -> Values:
    """In SJIS a backslash is another character, too: such a key fails its table."""

    def value(chance: random.Random) -> str:
        while "\\" in (found := values(chance)):
            pass
        return found

    return value if "sjis" in type_ else values


def tables_of(types: Mapping[str, Values]) -> Mapping[str, OddTable]:
    """A table for each type of key, by its type."""
    return {
        type_: OddTable(
            name=f"t{number}",
            create=f"(k {type_} NOT NULL PRIMARY KEY, v int) ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4",
            columns={"k": told_apart(type_, values), "v": some_ids(9)},
            key=("k",),
        )
        for number, (type_, values) in enumerate(types.items())
    }


def spoil(copy: DeltaCopy) -> int:
    """Lose a row, change one, and add one for each odd value; return how many were added."""
    kind = copy.schema().field("k").type
    [lost, *rows] = copy.rows()
    if rows:
        rows[0] = {**rows[0], "v": 77}
    known = [lost["k"], *(row["k"] for row in rows)]
    added = []
    for value in odd_values(kind):
        if value not in known:
            known.append(value)
            added.append({**lost, "k": value})
    copy.replace([*rows, *added])
    return len(added)


def check_repair(folder: Path, database: MysqlDatabase, types: Mapping[str, Values]) -> None:
    """Every table is repaired while rows change, and is then the same as the source's."""
    tables = tables_of(types)
    make(database, list(tables.values()))
    RandomLoad(database=database, tables=list(tables.values()), seed=1).fill(12)
    rig = Rig(folder=folder, database=database, tables=[t.name for t in tables.values()], extra=EXTRA, may_alarm=True)
    worker = rig.start()
    try:
        rig.wait_for_status(is_streaming, worker, timeout_s=900)
        rig.settle(worker)
        copies = {type_: DeltaCopy(rig.lake / database.name / table.name) for type_, table in tables.items()}
        added = {type_: spoil(copy) for type_, copy in copies.items()}
        assert sum(added.values()) > 2 * len(tables), "much could be added"
        load = RandomLoad(database=database, tables=list(tables.values()), seed=2)
        writer = threading.Thread(target=load.run, args=(4 * len(tables),), name="load")
        writer.start()
        done = rig.command("verify", rig.name, "--repair", "--json", check=None, timeout=1500)
        writer.join()
        types_by_name = {f"{database.name}.{table.name}": type_ for type_, table in tables.items()}
        found = {types_by_name[one["table"]]: one for one in json.loads(done.stdout)["tables"]}
        assert {
            type_: (one["result"], one["reason"], one["differences"][:3])
            for type_, one in found.items()
            if one["result"] != "equal"
        } == {}
        assert done.returncode == 0
        assert load.done == 4 * len(tables)
        rig.settle(worker)
        differing = {}
        for type_, table in tables.items():
            source = source_rows(database, table.name)
            copy = plain_rows(rig.lake / database.name / table.name, ["k", "v"])
            if source != copy:
                differing[type_] = (list((copy - source).items())[:3], list((source - copy).items())[:3])
        assert differing == {}
        assert rig.stop(worker) == 0, rig.output()
    finally:
        rig.kill()


@pytest.mark.matrix
def test_keys_that_the_source_cannot_have_are_removed_and_others_repaired(
    tmp_path: Path, mysql_database: MysqlDatabase
) -> None:
    every = types_of(mysql_database)
    check_repair(tmp_path, mysql_database, {type_: every[type_] for type_ in SLICE})


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_keys_of_every_type_are_repaired(tmp_path: Path, mysql_database: MysqlDatabase) -> None:
    check_repair(tmp_path, mysql_database, types_of(mysql_database))
