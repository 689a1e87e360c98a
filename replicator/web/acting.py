"""Routes that change the desired state of a replicator. Its worker acts on it, as after the command of the same name."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Body, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from replicator.model.access import Scope as TokenScope
from replicator.model.documents.status import ReplicatorStatus, StatusModel
from replicator.service import lifecycle
from replicator.service.configuring.stored import find
from replicator.service.status import assemble as use_cases
from replicator.web.access import Access
from replicator.web.demands import demanding, demands
from replicator.web.problems import refusals
from replicator.web.reading import Name
from replicator.web.repeated import JSON

_REQUESTED_VERSION: Final = 1
_TABLES_MAX: Final = 10_000


class SnapshotRequest(BaseModel):
    """Tables that get a new snapshot, and options for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: tuple[Annotated[str, Field(max_length=512)], ...] = Field(
        (), max_length=_TABLES_MAX, description="Tables as `schema.table`, as in the status. Empty: all of them."
    )
    since: AwareDatetime | None = Field(
        None,
        description="Leave out tables for which that was asked, or whose snapshot began, since this time (ISO 8601 with its zone): a call "
        "that is repeated with the same time asks for nothing more. Null: each call asks for another snapshot.",
    )
    recreate: bool = Field(
        False, description="Recreate the target tables with the current settings, instead of updating them in place."
    )


class RestartRequest(BaseModel):
    """Options of a restart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: AwareDatetime | None = Field(
        None,
        description="Do nothing if a restart was asked for, or has begun, since this time (ISO 8601 with its zone): a call that is "
        "repeated with the same time asks for nothing more. Null: each call asks for another restart.",
    )


class RequestedDocument(StatusModel):
    """Result of a request for snapshots."""

    version: Literal[1] = Field(description="Version of this document.")
    name: str = Field(description="Name of the replicator.")
    tables: tuple[str, ...] = Field(description="The tables for which a new snapshot was asked now; empty: for none.")


def router(access: Access) -> APIRouter:
    """Return the routes below `/api/v1/replicators/{name}`."""
    routes = demanding("/api/v1/replicators/{name}")

    @routes.post(
        "/pause", summary="Pause a replicator", response_model=ReplicatorStatus, responses=refusals(404, 409, 422, 503)
    )
    @demands(TokenScope.OPERATE)
    async def pause(
        name: Name,
        apply_only: Annotated[
            bool, Query(description="Pause only the writes to the target; capture continues.")
        ] = False,
    ) -> Response:
        """Pause it, as `replicator pause NAME` does. A second call changes nothing."""
        return await _changed(
            access, name, lambda: lifecycle.pause(access.store, name, apply_only=apply_only), HTTPStatus.OK
        )

    @routes.post(
        "/resume",
        summary="Resume a replicator",
        response_model=ReplicatorStatus,
        responses=refusals(404, 409, 422, 503),
    )
    @demands(TokenScope.OPERATE)
    async def resume(name: Name) -> Response:
        """Resume it, as `replicator resume NAME` does, also after it failed. A second call changes nothing."""
        return await _changed(access, name, lambda: lifecycle.resume(access.store, name), HTTPStatus.OK)

    @routes.post(
        "/snapshot",
        summary="Take new snapshots",
        status_code=HTTPStatus.ACCEPTED,
        response_model=RequestedDocument,
        responses=refusals(404, 409, 422, 503),
    )
    @demands(TokenScope.OPERATE)
    async def snapshot(name: Name, asked: Annotated[SnapshotRequest, Body()] = SnapshotRequest()) -> Response:  # noqa: B008 (frozen)
        """Do as `replicator snapshot NAME [TABLE…]`. With `since` a call can be repeated; without it each asks for another snapshot."""
        return await _requested(access, name, asked, restart=False)

    @routes.post(
        "/restart",
        summary="Start at a new position of the log",
        status_code=HTTPStatus.ACCEPTED,
        response_model=RequestedDocument,
        responses=refusals(404, 409, 422, 503),
    )
    @demands(TokenScope.OPERATE)
    async def restart(name: Name, asked: Annotated[RestartRequest, Body()] = RestartRequest()) -> Response:  # noqa: B008 (frozen)
        """Do as `replicator snapshot NAME --restart`, after the log's position was lost. Every table gets a new snapshot, in place.

        With `since` a call can be repeated; without it each call asks for another restart.
        """
        return await _requested(access, name, SnapshotRequest(since=asked.since), restart=True)

    @routes.delete(
        "",
        summary="Delete a replicator",
        status_code=HTTPStatus.ACCEPTED,
        response_model=ReplicatorStatus,
        responses=refusals(404, 422, 503),
    )
    @demands(TokenScope.OPERATE)
    async def delete(
        name: Name,
        drop_target: Annotated[bool, Query(description="Also delete the tables in the target.")] = False,
        force: Annotated[
            bool, Query(description="Skip an unreachable source; the worker's log names what stays.")
        ] = False,
    ) -> Response:
        """Delete it, as `replicator delete NAME` does, without waiting: once its worker has deleted it, the path is unknown (404)."""

        def ask() -> None:
            lifecycle.request_delete(access.store, name, drop_target=drop_target, force=force)

        return await _changed(access, name, ask, HTTPStatus.ACCEPTED)

    return routes


async def _changed(access: Access, name: str, change: Callable[[], object], status: HTTPStatus) -> Response:
    """Return the status after a change."""

    def work() -> bytes:
        change()
        access.recent.forget()
        return use_cases.status(access.store, find(access.store, name)).model_dump_json().encode()

    return Response(await access.run(work), status_code=status, media_type=JSON)


async def _requested(access: Access, name: str, asked: SnapshotRequest, *, restart: bool) -> Response:
    """Return the tables that get a new snapshot."""

    def work() -> bytes:
        tables = lifecycle.snapshot(
            access.store, name, asked.tables, restart=restart, recreate=asked.recreate, since=asked.since
        )
        access.recent.forget()
        document = RequestedDocument(version=_REQUESTED_VERSION, name=name, tables=tuple(map(str, tables)))
        return document.model_dump_json().encode()

    return Response(await access.run(work), status_code=HTTPStatus.ACCEPTED, media_type=JSON)
