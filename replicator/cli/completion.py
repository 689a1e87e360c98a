"""Shell completion of arguments: names of replicators, of their tables, and of plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from click.shell_completion import CompletionItem

from replicator.model.documents import ordering
from replicator.model.errors import ReplicatorError
from replicator.runtime.home import Home
from replicator.state import table_life
from replicator.state.store import StateStore

_PLAIN: Final = re.compile(r"[\w.,:@%+-]+")
"""Names that need no quotes in a shell, which inserts completions as they are; others choose how tables are called."""


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> Sequence[CompletionItem]:
    """Return the stored replicators, with their desired states."""
    del ctx, param
    with _store() as store:
        found = () if store is None else store.replicators()
        return [CompletionItem(r.name, help=r.desired.value) for r in found if r.name.startswith(incomplete)]


def tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> Sequence[CompletionItem]:
    """Return the tables of the replicator named before, except those named already; matched by full name or by table name alone."""
    given = ctx.params.get(param.name or "") or ()
    taken = {given} if isinstance(given, str) else set(given)
    with _store() as store:
        found = () if store is None else store.outlines(str(ctx.params.get("name")))
        known = [one.record.table for one in found if table_life.is_replicated(one.record)]
    known = [table for table in known if _PLAIN.fullmatch(str(table))]
    fitting = [str(t) for t in known if str(t).startswith(incomplete) or t.name.startswith(incomplete)]
    return [CompletionItem(text) for text in sorted(fitting, key=ordering.natural) if text not in taken]


def plugins(ctx: click.Context, param: click.Parameter, incomplete: str) -> Sequence[CompletionItem]:
    """Return the installed plugins: of the kind that the argument names, or all."""
    del ctx
    from importlib.metadata import entry_points  # no other command asks for them before its work

    kinds = ("source", "target") if param.name not in {"source", "target"} else (param.name,)
    found = (point.name.partition("-") for point in entry_points(group="replicator"))
    return [
        CompletionItem(name, help=kind)
        for kind, _, name in sorted(found)
        if kind in kinds and name.startswith(incomplete)
    ]


@contextmanager
def _store() -> Iterator[StateStore | None]:
    """Yield the state store; None if there is none or it cannot be read. Creates nothing and raises nothing: the shell shows no errors."""
    home = Home.from_environment()
    if home.state_url == f"sqlite:///{home.folder / 'state.db'}" and not (home.folder / "state.db").exists():
        yield None
        return
    try:
        store = StateStore(home.state_url, busy_timeout_s=1.0)
    except ReplicatorError:
        yield None
        return
    try:
        yield store
    finally:
        store.close()
