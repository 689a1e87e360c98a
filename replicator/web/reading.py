"""Routes that only read. Their bodies are the documents that the commands print with `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as InPath
from pydantic import TypeAdapter

from replicator.config import parse_duration
from replicator.model.access import Scope as TokenScope
from replicator.model.documents.status import ReplicatorStatus, StatusModel, TableStatus
from replicator.model.errors import RequestError
from replicator.model.schema import TableId
from replicator.service import metrics
from replicator.service import workers as use_case
from replicator.service.configuring.stored import find
from replicator.service.history import changes as history
from replicator.service.history.document import HistoryDocument
from replicator.service.lifecycle import unknown_tables
from replicator.service.logs import LogsDocument, log_page
from replicator.service.plugin_list import PluginDocument, documents
from replicator.service.status import assemble as use_cases
from replicator.service.workers import WorkerDocument
from replicator.web.access import Access
from replicator.web.demands import demanding, demands
from replicator.web.problems import refusals
from replicator.web.repeated import JSON, tagged

_LONGEST: Final = timedelta(days=3650)
_NOT_MODIFIED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "The document is the one whose ETag the request named in If-None-Match."}
}
_PLUGINS: Final = TypeAdapter(Sequence[PluginDocument])

Name = Annotated[str, InPath(max_length=63, description="Name of the replicator.")]
TableName = Annotated[str, InPath(max_length=512, description="schema.table, as in the status.")]
WantedTable = Annotated[
    str | None, Query(max_length=512, description="Only this table: schema.table, as in the status.")
]


def router(access: Access) -> APIRouter:
    """Return the routes below `/api/v1`."""
    routes = demanding("/api/v1")

    async def seen(request: Request, make: Callable[[], bytes]) -> Response:
        # Kept under its path, where `Repeated` finds it.
        path = str(request.scope["path"])
        return tagged(await access.run(lambda: access.recent.get(path, make)), request.headers)

    @routes.get(
        "/replicators",
        summary="List the replicators",
        response_model=list[ReplicatorStatus],
        responses={**_NOT_MODIFIED, **refusals(503)},
    )
    @demands(TokenScope.READ)
    async def replicators(request: Request) -> Response:
        """Return all stored replicators by name, each as `replicator status --json` prints it."""
        return await seen(request, lambda: _many(use_cases.statuses(access.store)))

    @routes.get(
        "/replicators/{name}",
        summary="Show a replicator",
        response_model=ReplicatorStatus,
        responses={**_NOT_MODIFIED, **refusals(404, 422, 503)},
    )
    @demands(TokenScope.READ)
    async def replicator(request: Request, name: Name) -> Response:
        """Return the document that `replicator status NAME --json` prints."""
        return await seen(request, lambda: _one(_status(access, name)))

    @routes.get(
        "/replicators/{name}/tables/{table:path}",
        summary="Show a table",
        response_model=TableStatus,
        responses={**_NOT_MODIFIED, **refusals(404, 422, 503)},
    )
    @demands(TokenScope.READ)
    async def table(request: Request, name: Name, table: TableName) -> Response:
        """Return the table's part of the replicator's status."""
        return await seen(request, lambda: _one(table_of(_status(access, name), table)))

    @routes.get(
        "/replicators/{name}/history",
        summary="Show schema changes",
        response_model=HistoryDocument,
        responses=refusals(404, 422, 503),
    )
    @demands(TokenScope.READ)
    async def changes(
        name: Name,
        table: WantedTable = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Number of events: the newest, oldest first.")] = 50,
    ) -> Response:
        """Return the document that `replicator history NAME --json` prints."""

        def look() -> bytes:
            record = find(access.store, name)
            return _one(history.document(record, history.history(access.store, record, table=table, limit=limit)))

        return Response(await access.run(look), media_type=JSON)

    @routes.get(
        "/replicators/{name}/logs",
        summary="Show the log",
        response_model=LogsDocument,
        responses=refusals(404, 422, 503),
    )
    @demands(TokenScope.READ)
    async def logs(
        name: Name,
        table: WantedTable = None,
        since: Annotated[
            str | None,
            Query(
                max_length=64,
                description="Only events since this time (ISO 8601 with its zone), or duration ago (`15m`).",
            ),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Number of events: the newest, oldest first.")] = 100,
    ) -> Response:
        """Return the newest events that the replicator's workers logged on this host."""

        def look() -> bytes:
            find(access.store, name)
            begin = None if since is None else _moment(since, access.store.now())
            return _one(log_page(access.home.log_file(name), name, table=table, since=begin, limit=limit))

        return Response(await access.run(look), media_type=JSON)

    return routes


def surroundings(access: Access) -> APIRouter:
    """Return the routes below `/api/v1` that concern no single replicator."""
    routes = demanding("/api/v1")

    @routes.get("/workers", summary="List the workers", response_model=list[WorkerDocument], responses=refusals(503))
    @demands(TokenScope.READ)
    async def workers() -> Response:
        """Return the document that `replicator workers --json` prints: the workers of all hosts, with what each runs."""
        kept = await access.run(lambda: access.recent.get("workers", lambda: _many(use_case.workers(access.store))))
        return Response(kept.body, media_type=JSON)

    @routes.get("/plugins", summary="List the plugins", response_model=list[PluginDocument], responses=refusals())
    @demands(TokenScope.READ)
    async def plugins() -> Response:
        """Return the document that `replicator plugins --json` prints."""
        return Response(_PLUGINS.dump_json(documents(access.registry.plugins)), media_type=JSON)

    return routes


def probes(access: Access) -> APIRouter:
    """Return the routes for probes and monitoring."""
    routes = demanding()

    @routes.get("/healthz", summary="Is the server there?")
    @demands(None)
    async def alive() -> dict[str, str]:
        """Answers as long as the server does."""
        return {"status": "ok"}

    @routes.get("/readyz", summary="Does the state store answer?", responses=refusals(503))
    @demands(None)
    async def ready() -> dict[str, str]:
        """Answers 200 if the state store does, and has this version's format. Whether a worker runs does not matter."""

        def ask() -> None:
            # `access.store` is asked for in the thread: opening it may take a while.
            access.store.now()

        await access.run(ask)
        return {"status": "ok"}

    @routes.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals(503)},
    )
    @demands(TokenScope.READ)
    async def scrape() -> Response:
        """Return the metrics that `replicator metrics` prints."""
        kept = await access.run(lambda: access.recent.get("metrics", lambda: metrics.exposition(access.store)))
        return Response(kept.body, headers={"content-type": metrics.CONTENT_TYPE})

    return routes


def table_of(document: ReplicatorStatus, name: str) -> TableStatus:
    """Return a table of a status.

    Raises:
        ConfigError: `unknown_table`.
    """
    for table in document.tables:
        if table.table == name:
            return table
    raise unknown_tables(document.name, [name], {table.table: TableId.parse(table.table) for table in document.tables})


def _status(access: Access, name: str) -> ReplicatorStatus:
    return use_cases.status(access.store, find(access.store, name))


def _one(document: StatusModel) -> bytes:
    return document.model_dump_json().encode()


def _many(found: Sequence[StatusModel]) -> bytes:
    return json.dumps([document.model_dump(mode="json") for document in found], separators=(",", ":")).encode()


def _moment(text: str, now: datetime) -> datetime:
    """Return the time that `since` means."""
    try:
        ago = parse_duration(text)
    except ValueError:
        pass
    else:
        return now - min(ago, _LONGEST)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RequestError(
            "`since` is neither a time with its zone nor a duration.",
            status=422,
            code="invalid_request",
            action="Write, for example, 2026-01-31T03:00:00Z or 15m. In an address a + is written %2B.",
        )
    return moment
