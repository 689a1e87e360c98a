"""bqemulator with what version 1.4.0 lacks; run as `python -m bqemulator` would be.

- `CREATE OR REPLACE TABLE x COPY y OPTIONS(…)`: done by the emulator's copy job, with a new creation time, the
  labels and the description of the options, and the service's refusal where the tables are partitioned or clustered differently.
- `ALTER TABLE x ADD PRIMARY KEY (…) NOT ENFORCED`: accepted; the emulator does not remember keys.
- `FOR SYSTEM_TIME AS OF`, also of what scripts changed (`history`).

The first two come through the emulator's door for statements that DuckDB does not know (`versioning`).

It parses the text of a statement some fifteen times, which was most of its processor time: here once, and copies the tree.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import Any, Final

import sqlglot
from bqemulator.cli import main
from bqemulator.domain.errors import InvalidQueryError
from bqemulator.jobs import executor
from bqemulator.scripting import interpreter

from replicator_testbed.bigquery import history

_COPY: Final = re.compile(
    r"CREATE OR REPLACE TABLE `([^`]+)` COPY `([^`]+)`(?: OPTIONS\((.*)\))?", re.DOTALL | re.IGNORECASE
)
_KEY: Final = re.compile(r"ALTER TABLE `[^`]+` ADD PRIMARY KEY \([^)]*\) NOT ENFORCED", re.IGNORECASE)
_TEXT: Final = r"'(?:[^'\\]|\\.)*'"


@dataclass(frozen=True)
class Copy:
    """One statement; without paths it does nothing."""

    target: str = ""
    source: str = ""
    options: str = ""

    async def run(self, ctx: Any) -> None:
        """Carry it out."""
        if not self.target:
            return
        target, source = self.target.split("."), self.source.split(".")
        before, copied = ctx.catalog.get_table(*target), ctx.catalog.get_table(*source)
        if before is not None and copied is not None:
            if (before.time_partitioning, before.clustering) != (copied.time_partitioning, copied.clustering):
                raise InvalidQueryError(
                    "Cannot replace a table with a different partitioning spec. Instead, DROP the table, and then recreate it."
                )
            ctx.engine.execute(f'DROP TABLE "{target[0]}__{target[1]}"."{target[2]}"')
            ctx.catalog.delete_table(*target)
        await executor._copy_table_into_destination(  # noqa: SLF001 - the emulator's copy job
            src_proj=source[0], src_ds=source[1], src_table_id=source[2],
            dst_proj=target[0], dst_ds=target[1], dst_table_id=target[2],
            write_disposition="WRITE_TRUNCATE", create_if_needed=True, ctx=ctx,
        )  # fmt: skip
        listed = re.search(r"labels = \[(.*?)\]", self.options, re.DOTALL)
        labels = re.findall(rf"\(({_TEXT}), ({_TEXT})\)", listed[1] if listed else "")
        described = re.search(rf"description = ({_TEXT})", self.options)
        found = {
            "labels": {_value(name): _value(value) for name, value in labels},
            "description": _value(described[1]) if described else None,
        }
        made = ctx.catalog.get_table(*target)
        ctx.catalog.update_table(made.model_copy(update={**found, "creation_time": ctx.clock.now()}))


def parsed(sql: str) -> Copy | None:
    """The statement, if it is one of the two."""
    text = sql.strip().rstrip(";").strip()
    if match := _COPY.fullmatch(text):
        return Copy(target=match[1], source=match[2], options=match[3] or "")
    return Copy() if _KEY.fullmatch(text) else None


def _value(literal: str) -> str:
    return str(ast.literal_eval(literal))


def _install(module: Any) -> None:
    is_known, router, execute = module.is_versioning_ddl, module.VersioningDDLRouter, module.execute_versioning_ddl

    class Router(router):  # type: ignore[misc, valid-type] # the emulator has no types
        def parse(self, sql: str) -> Any:
            return parsed(sql) or super().parse(sql)

    async def executed(statement: Any, ctx: Any) -> None:
        await (statement.run(ctx) if isinstance(statement, Copy) else execute(statement, ctx))

    module.is_versioning_ddl = lambda sql: parsed(sql) is not None or is_known(sql)
    module.VersioningDDLRouter = Router
    module.execute_versioning_ddl = executed


def _parse_once() -> None:
    parse = functools.lru_cache(maxsize=32)(sqlglot.parse_one)

    def parsed_before(sql: Any, **how: Any) -> Any:
        # Callers change what they get.
        return parse(sql, **how).copy()

    sqlglot.parse_one = parsed_before  # type: ignore[assignment]


if __name__ == "__main__":
    _parse_once()
    history.install()
    for module in (executor, interpreter):
        _install(module)
    main()
