"""Output of `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.text import Text

from replicator.cli.changes import one_line
from replicator.cli.show import terminal
from replicator.model.terminal import in_one_line
from replicator.service.status.snapshots import counted
from replicator.service.verify.document import DifferenceDocument, VerifiedTableDocument, VerifyDocument
from replicator.verify import Result, Verdict

_STYLES: Final = {
    Result.EQUAL: "green",
    Result.EQUAL_IN_PART: "yellow",
    Result.DIFFERENT: "red",
    Result.NOTHING_COMPARED: "yellow",
    Result.NOT_VERIFIED: "yellow",
}
_SHOWN: Final = 20


def table(verdict: Verdict, document: VerifiedTableDocument) -> None:
    """Print one table's verdict."""
    console = terminal()
    result = verdict.result.value.replace("_", " ")
    at = ""
    if verdict.position is not None:
        some = f", of {some}" if (some := _compared(document)) else ""
        upto = f" to {verdict.last_position}" if verdict.last_position not in (None, verdict.position) else ""
        at = f"  {counted(verdict.rows_source or 0, 'row')} at {verdict.position}{upto}{some}"
    console.print(
        Text.assemble((str(verdict.table), "bold"), "  ", (result, _STYLES[verdict.result]), at), soft_wrap=True
    )
    for line in _details(document):
        console.print(Text(f"    {line}"), soft_wrap=True)


def document(found: VerifyDocument) -> None:
    """Print a document (`docs/verify.schema.json`)."""
    click.echo(found.model_dump_json(indent=2))


def markdown(found: VerifyDocument) -> str:
    """Return a document for people to keep, in Markdown."""
    lines = [
        f"# Verification of {found.name}",
        "",
        "| table | result | compared | position | rows in source | rows in target | missing | extra | different |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for one in found.tables:
        counts = one.counts
        cells = (
            one.table,
            one.result,
            _compared(one) or one.scope,
            one.position,
            one.rows_source,
            one.rows_target,
            counts.missing,
            counts.extra,
            counts.different,
        )
        lines.append(
            f"| {' | '.join('' if cell is None else in_one_line(str(cell)).replace('|', chr(92) + '|') for cell in cells)} |"
        )
    for one in found.tables:
        if details := _details(one, limit=len(one.differences)):
            lines += ["", f"## {in_one_line(one.table)}", "", *(f"- {in_one_line(line)}" for line in details)]
    return "\n".join(lines) + "\n"


def _compared(one: VerifiedTableDocument) -> str:
    """Return the rows that were compared, in words; empty if all."""
    if one.scope == "table" or one.position is None:
        return ""
    if one.scope == "sample":
        return f"a {one.sample:g} % sample"
    return counted(one.keys or 0, "key" if one.scope == "keys" else "changed row")


def _details(one: VerifiedTableDocument, *, limit: int = _SHOWN) -> Sequence[str]:
    lines = []
    if one.reason:
        lines.append(one_line(one.reason))
    if one.action:
        lines.append(f"→ {one.action}")
    if one.not_compared:
        lines.append(f"not compared: {', '.join(one.not_compared)}")
    if one.ranges_kept:
        lines.append(f"{one.ranges_kept} of {counted(one.ranges or 0, 'range')} had been proven before")
    if one.repaired:
        fixed = one.repaired
        lines.append(f"repaired: missing {fixed.missing}, extra {fixed.extra}, different {fixed.different}")
    if one.result == "different":
        counts = one.counts
        lines.append(f"rows in source {one.rows_source}, in target {one.rows_target}")
        lines.append(f"missing {counts.missing}, extra {counts.extra}, different {counts.different}")
    lines += [_difference(difference) for difference in one.differences[:limit]]
    if len(one.differences) > limit or one.truncated:
        lines.append("… (more: --json, --report)")
    return lines


def _difference(one: DifferenceDocument) -> str:
    text = f"{one.kind}: {_values(one.key)}"
    if one.columns:
        text += f"; columns: {', '.join(one.columns)}"
    if one.source:
        text += f"; source: {_values(one.source)}"
    if one.target:
        text += f"; target: {_values(one.target)}"
    return one_line(text)


def _values(of: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in of.items())
