"""The text of `docs/configuration.md`, made from the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel

from replicator.config.model import ReplicatorConfig
from replicator.config.shape import Field, fields_of

_HEAD: Final = """\
# Configuration

<!-- Generated from the settings models by `make docs`. Edit the descriptions there. -->

One YAML file describes one replicator. `replicator init` writes a commented one to start from, `replicator validate FILE` checks it, and
`replicator schema` prints its JSON Schema for editors. Every problem of a file is reported at once, with its line.

## Values

- **Durations** are numbers with units, added up: `200ms`, `5s`, `1h30m`, `7d`. Units: `us` `ms` `s` `m` `h` `d`.
- **Sizes** are a number with a unit: `64MiB`, `50GiB` (powers of 1024), `1GB` (powers of 1000), `512B`. A bare number is bytes.
- **References** are replaced by values from outside the file. They work in any text, also inside a longer one:
  `${env:NAME}` for an environment variable, `${file:/path}` for a file's content without
  the newline at its end. `$${` means a literal `${`.
- **Secrets** must be references; a literal one is refused. They show as `***` wherever something is printed or logged. Logs also mask other
  values that come from a file, or from a variable whose name says `password`, `secret`, `token` or the like.
- **Table patterns** are `schema.table` (MySQL: `database.table`), compared case-sensitively. `*` matches any characters but does not
  cross the dot; `\\` takes the next character literally. YAML wants quotes around a pattern that begins with `*`.
- **Paths** are absolute. `validate` and `run` refuse a relative one: workers start in other folders than you.
- Unknown keys are errors. YAML's tags, merge keys and more than 256 KiB of text are refused.

## A file

```yaml
name: shop-to-lake
source:
  type: postgresql
  host: db.internal
  user: replicator
  password: ${env:SHOP_DB_PASSWORD}
  database: shop
target:
  type: delta
  path: /data/lake
tables:
  include: [public.*]
```

"""


def reference_markdown(sources: Mapping[str, type[BaseModel]], targets: Mapping[str, type[BaseModel]]) -> str:
    """Return the configuration reference for the host and these plugins, in Markdown."""
    fields = fields_of(ReplicatorConfig)
    top = [
        fields["name"],
        *(field for key, field in fields.items() if key != "name"),
    ]
    lines = [*_HEAD.splitlines(), "", "## Top level", "", *_table(top, "")]
    lines += [
        "",
        "`source` and `target` are blocks too: `type` names a plugin, the rest of the block is the plugin's own.",
    ]
    for key, field in fields.items():
        if field.shape.block is not None:
            lines += _section(key, field.shape.block, level=2)
    for kind, models in (("source", sources), ("target", targets)):
        for name, model in sorted(models.items()):
            heading = f"{kind}: {name}"
            lines += _section(kind, model, level=2, heading=heading)
    return "\n".join(lines).rstrip() + "\n"


def _section(path: str, model: type[BaseModel], *, level: int, heading: str | None = None) -> Iterator[str]:
    fields = list(fields_of(model).values())
    yield from ("", f"{'#' * level} {heading or path}", "")
    first = (model.__doc__ or "").strip().split("\n\n")[0]
    if first:
        yield from (" ".join(first.split()), "")
    yield from _table(fields, f"{path}.")
    for field in fields:
        inner = field.shape.block or (field.shape.items.block if field.shape.items else None)
        if inner is not None:
            part = f"{path}.{field.key}" + ("" if field.shape.block else ".*")
            yield from _section(part, inner, level=level + 1)


def _table(fields: list[Field], prefix: str) -> Iterator[str]:
    yield "| key | value | default | |"
    yield "| --- | --- | --- | --- |"
    for field in fields:
        default = "**required**" if field.is_required else _spelled(field)
        yield f"| `{prefix}{field.key}` | {_cell(_form(field))} | {default} | {_cell(field.description)} |"


def _form(field: Field) -> str:
    shape = field.shape
    words = ", ".join(f"`{choice}`" for choice in shape.choices) if shape.choices else shape.words
    return f"{words}, {shape.bounds}" if shape.bounds else words


def _spelled(field: Field) -> str:
    if field.shape.block is not None or field.default is None:
        return ""
    value: Any = yaml.safe_dump(field.default, default_flow_style=True, width=10_000, allow_unicode=True)
    return f"`{_cell(value.removesuffix(chr(10)).removesuffix(chr(10) + '...'))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
