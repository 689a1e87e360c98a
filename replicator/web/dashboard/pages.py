"""Pages that only show. They read what the API reads: the status, the history and the log, as documents."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from replicator.model.access import Scope as TokenScope
from replicator.model.documents import ordering
from replicator.model.documents.status import DesiredState, ReplicatorStatus
from replicator.model.errors import ReplicatorError, RequestError
from replicator.service.configuring.stored import find
from replicator.service.history import changes as history
from replicator.service.history.document import HistoryDocument
from replicator.service.logs import LogsDocument, log_page
from replicator.service.status import assemble as use_cases
from replicator.service.status.snapshots import Meter, SnapshotPace, pace_in_words
from replicator.service.status.snapshots import text as snapshot_in_words
from replicator.web.access import Access
from replicator.web.dashboard import words
from replicator.web.dashboard.chart import SHOWN, Chart, chart
from replicator.web.dashboard.csrf import COOKIE, FIELD, new_text
from replicator.web.demands import demanding, page, rights_of
from replicator.web.guard import COOKIE as TOKEN_COOKIE
from replicator.web.paths import LOGIN, STATIC, is_page
from replicator.web.problems import answer, problem
from replicator.web.reading import Name, TableName, WantedTable, table_of

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    # With no-referrer a browser sends `Origin: null` with forms.
    "referrer-policy": "same-origin",
}
_STATIC_TYPES: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_EVENTS: Final = 12
_METERS_MAX: Final = 256
_SHOWN_MAX: Final = 500
_ENVELOPE: Final = frozenset({"timestamp", "level", "event", "table", "replicator", "logger"})
_LOUD: Final = frozenset({"warning", "error", "critical", "exception"})
_LEVELS: Final = {"info": "information", "warning": "warning", "error": "error", "critical": "error"}
_STATUSES: Final = TypeAdapter(list[ReplicatorStatus])
DONE: Final[Mapping[str, str]] = {
    "pause": "Pausing was asked for.",
    "resume": "Resuming was asked for.",
    "snapshot": "A new snapshot was asked for.",
    "restart": "A start at a new position was asked for.",
    "start": "It is stored, and set to run.",
    "change": "Its configuration is stored. Its worker takes it within a second.",
    "delete": "Deleting was asked for. Its worker deletes it; then it is no longer listed.",
}


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("replicator.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "age": words.age, "moment": words.moment, "size": words.size, "number": words.number, "percent": words.percent,
        "state": words.state, "tone": words.tone_of, "path": partial(quote, safe=""),
    }  # fmt: skip
    made.globals |= {"words": words, "snapshot_in_words": snapshot_in_words, "pace_in_words": pace_in_words}
    return made


_TEMPLATES: Final = _environment()


def render(request: Request, template: str, status: int = HTTPStatus.OK, **values: Any) -> Response:
    """Return a page. Its forms have a text that the browser's cookie repeats."""
    return _page(request.scope, request.cookies.get(COOKIE), template, status, values)


def refuse(scope: Scope, error: ReplicatorError) -> Response:
    """Return the answer to a request that was not done: a page for pages, otherwise a problem."""
    found = problem(error)
    if not is_page(scope["path"]):
        return answer(error)
    if found.status == HTTPStatus.UNAUTHORIZED:
        return RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
    return _page(scope, None, "problem.html", found.status, {"problem": found})


def _page(scope: Scope, csrf: str | None, template: str, status: int, values: Mapping[str, Any]) -> Response:
    text = csrf or new_text()
    rights = rights_of(scope)
    has_token = TOKEN_COOKIE in cookie_parser(Headers(scope=scope).get("cookie", ""))
    body = _TEMPLATES.get_template(template).render(
        csrf=text,
        csrf_field=FIELD,
        may_operate=rights.include(TokenScope.OPERATE),
        may_configure=rights.include(TokenScope.CONFIGURE),
        has_token=has_token,
        **values,
    )
    response = Response(body, status, HEADERS, "text/html; charset=utf-8")
    if csrf is None:
        response.set_cookie(COOKIE, text, httponly=True, samesite="strict", secure=scope["scheme"] == "https")
    return response


def router(access: Access) -> APIRouter:
    """Return the routes of the pages."""
    routes = demanding()
    seen = _Seen(access)

    @routes.get("/")
    @page(TokenScope.READ)
    async def fleet(request: Request) -> Response:
        found = await access.run(seen.fleet)
        return render(request, "fleet.html", replicators=sorted(found, key=ordering.worst_replicator_first))

    @routes.get("/replicators/{name}")
    @page(TokenScope.READ)
    async def replicator(
        request: Request, name: Name, done: Annotated[str | None, Query(max_length=20)] = None
    ) -> Response:
        one, paces = await access.run(lambda: seen.replicator(name))
        log = await access.run(lambda: seen.log(name, None, _EVENTS))
        return render(
            request,
            "replicator.html",
            one=one,
            chart=await access.run(lambda: seen.chart(one)),
            tables=sorted(one.tables, key=ordering.worst_first)[:_SHOWN_MAX],
            paces=paces,
            log=log,
            events=_events(log),
            done=DONE.get(done or ""),
            is_paused=one.desired in (DesiredState.PAUSED, DesiredState.APPLY_PAUSED),
            is_deleting=one.desired is DesiredState.DELETED,
        )

    @routes.get("/replicators/{name}/tables/{table:path}")
    @page(TokenScope.READ)
    async def table(request: Request, name: Name, table: TableName) -> Response:
        one, paces = await access.run(lambda: seen.replicator(name))
        row = table_of(one, table)
        past = await access.run(lambda: seen.history(name, table))
        log = await access.run(lambda: seen.log(name, table, _EVENTS))
        return render(
            request,
            "table.html",
            one=one,
            row=row,
            pace=paces.get(table),
            past=past,
            log=log,
            events=_events(log),
            batch=_plain(row.last_batch or {}),
        )

    @routes.get("/replicators/{name}/logs")
    @page(TokenScope.READ)
    async def logs(
        request: Request, name: Name, table: WantedTable = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> Response:
        one, _ = await access.run(lambda: seen.replicator(name))
        log = await access.run(lambda: seen.log(name, table or None, limit))
        return render(request, "logs.html", one=one, table=table or "", log=log, events=_events(log))

    @routes.get(STATIC + "{file}")
    @page(None)
    async def static(file: str) -> Response:
        media_type = _STATIC_TYPES.get(file)
        if media_type is None:
            raise RequestError("There is nothing at this path.", status=404, code="unknown_path")
        body = (files("replicator.web.dashboard") / "static" / file).read_bytes()
        return Response(body, headers={"cache-control": "no-cache"}, media_type=media_type)

    return routes


class _Seen:
    """Data of the pages, and the pace of snapshots from one look to the next."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._meters: OrderedDict[str, Meter] = OrderedDict()

    def fleet(self) -> list[ReplicatorStatus]:
        """Return every replicator, at most a second old."""

        def make() -> bytes:
            return _STATUSES.dump_json(list(use_cases.statuses(self._access.store)))

        return _STATUSES.validate_json(self._access.recent.get("pages", make).body)

    def replicator(self, name: str) -> tuple[ReplicatorStatus, Mapping[str, SnapshotPace]]:
        """Return a replicator, and the pace of its running snapshots."""
        one = use_cases.status(self._access.store, find(self._access.store, name))
        with self._lock:
            meter = self._meters.setdefault(one.uuid, Meter())
            self._meters.move_to_end(one.uuid)
            if len(self._meters) > _METERS_MAX:
                self._meters.popitem(last=False)
            return one, meter.observe(one, time.monotonic())

    def chart(self, one: ReplicatorStatus) -> Chart | None:
        """Return the chart of its freshness in the last hours, as far as a server has recorded it."""
        now = self._access.store.now()
        objectives = [row.freshness_objective_s for row in one.tables if row.freshness_objective_s is not None]
        points = self._access.store.points.of(one.name, now - SHOWN)
        return chart(points, min(objectives, default=None), now)

    def history(self, name: str, table: str) -> HistoryDocument:
        """Return the changes of a table's definition."""
        record = find(self._access.store, name)
        return history.document(record, history.history(self._access.store, record, table=table, limit=50))

    def log(self, name: str, table: str | None, limit: int) -> LogsDocument | None:
        """Return the newest events of the log; None: this host has none."""
        find(self._access.store, name)
        file = self._access.home.log_file(name)
        return log_page(file, name, table=table, since=None, limit=limit) if file.exists() else None


def _events(log: LogsDocument | None) -> Sequence[Mapping[str, Any]]:
    """Return the events as they are shown, newest first."""
    found = reversed(log.events if log else ())
    return [
        {
            "at": str(event.get("timestamp", ""))[:19].replace("T", " "),
            "level": _LEVELS.get(str(event.get("level", "")), str(event.get("level", ""))),
            "is_loud": event.get("level") in _LOUD,
            "event": str(event.get("event", "")).replace("_", " "),
            "table": event.get("table"),
            "more": _plain({key: value for key, value in event.items() if key not in _ENVELOPE}),
        }
        for event in found
    ]


def _plain(fields: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return names and values as text."""
    return [
        (key.replace("_", " "), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        for key, value in fields.items()
    ]
