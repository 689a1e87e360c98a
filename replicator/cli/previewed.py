"""Rows as they would arrive, as `preview` prints them."""

from __future__ import annotations

import json
from typing import Final

import click

from replicator.model.schema import type_to_text
from replicator.model.terminal import in_one_line
from replicator.service.configuring.preview import Preview, plain_rows
from replicator.service.status.snapshots import counted

_WIDTH_MAX: Final = 40


def as_json(found: Preview) -> None:
    """Print the rows and the columns as one JSON document."""
    columns = [{"name": column.name, "type": type_to_text(column.type)} for column in found.schema.columns]
    document = {"version": 1, "table": str(found.table), "columns": columns, "rows": plain_rows(found)}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def as_text(found: Preview) -> None:
    """Print the rows as a table; long values are cut."""
    names = [in_one_line(column.name) for column in found.schema.columns]
    rows = [[_cell(value) for value in row.values()] for row in plain_rows(found)]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for line in (names, ["-" * width for width in widths], *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    click.echo(f"{in_one_line(str(found.table))}: {counted(len(rows), 'row')}.")


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value).lower() if isinstance(value, bool) else in_one_line(str(value))
    return text if len(text) <= _WIDTH_MAX else f"{text[: _WIDTH_MAX - 1]}…"
