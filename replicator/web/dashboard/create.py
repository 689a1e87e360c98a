"""Page that creates a replicator: as a form, or as text; checked any number of times, then started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from replicator.config import read_document
from replicator.model.access import Scope as TokenScope
from replicator.model.errors import RequestError
from replicator.observability import MASK
from replicator.plugins.registry import Registry
from replicator.service.configuring.document import ORIGIN, Refusal, ValidationDocument
from replicator.service.configuring.process import Asked, Deed
from replicator.web.access import Access
from replicator.web.configuring import Configurations
from replicator.web.dashboard import pages, wizard
from replicator.web.dashboard.forms import Form, read_form
from replicator.web.demands import demanding, page
from replicator.web.paths import NEW

_FIELDS_MAX: Final = 500
_TEXT: Final = "text"
"""Field that holds the whole configuration when it is edited as text."""
_Plugin = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A user's input: fields, or the configuration as text. `models` are those of the plugins; None: none are chosen."""

    source: str = ""
    target: str = ""
    models: wizard.Models | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    is_text: bool = False

    @property
    def name(self) -> str:
        """The replicator's name, as far as it can be read."""
        name = read_document(self.text, ORIGIN).values.get("name")
        return name if isinstance(name, str) else ""


def router(access: Access, configurations: Configurations) -> APIRouter:
    """Return the routes of the page."""
    routes = demanding()

    @routes.get(NEW)
    @page(TokenScope.READ)
    async def ask(request: Request, source: _Plugin = "", target: _Plugin = "") -> Response:
        return await access.run(lambda: _page(request, access.registry, _empty(access.registry, source, target)))

    @routes.post(NEW)
    @page(TokenScope.CONFIGURE)
    async def make(request: Request) -> Response:
        form = await read_form(request, _FIELDS_MAX)
        draft = await access.run(lambda: _draft(access.registry, form))
        do = form.text("do")
        if do == "edit":
            return await access.run(lambda: _page(request, access.registry, draft))
        if do not in ("validate", "start"):
            raise RequestError("The form cannot be read.", status=422, code="invalid_request")
        deed = Deed.CONFIGURE if do == "start" else Deed.VALIDATE
        name = await access.run(lambda: draft.name)
        outcome = await configurations.ask(
            Asked(deed=deed, text=draft.text, is_json=False, name=name, must_be_new=True)
        )
        if outcome.configured is not None:
            return RedirectResponse(f"/replicators/{quote(name, safe='')}?done=start", HTTPStatus.SEE_OTHER)
        return await access.run(lambda: _page(request, access.registry, draft, outcome.validated, outcome.refused))

    return routes


def _empty(registry: Registry, source: str, target: str) -> Draft:
    """Return the draft of a user who has written nothing yet.

    Raises:
        ConfigError: `unknown_plugin`.
    """
    if not source and not target:
        return Draft()
    return Draft(source=source, target=target, models=_models(registry, source, target))


def _draft(registry: Registry, form: Form) -> Draft:
    """Return the draft of a form. Secrets that were written out instead of referred to are neither shown again nor passed on.

    Raises:
        ConfigError: `unknown_plugin`.
    """
    source, target = form.text("plugin.source"), form.text("plugin.target")
    if form.is_set(_TEXT):
        return Draft(source=source, target=target, text=form.text(_TEXT).replace("\r\n", "\n"), is_text=True)
    models = _models(registry, source, target)
    made = wizard.document(
        models, {"source": source, "target": target}, wizard.without_secrets(models, form.texts, MASK)
    )
    fields = wizard.without_secrets(models, form.texts, "")
    is_text = form.text("do") == "edit"
    return Draft(source=source, target=target, models=models, fields=fields, text=wizard.text_of(made), is_text=is_text)


def _models(registry: Registry, source: str, target: str) -> wizard.Models:
    return wizard.Models(registry.source(source).config_model, registry.target(target).config_model)


def _page(
    request: Request,
    registry: Registry,
    draft: Draft,
    validated: ValidationDocument | None = None,
    refused: Refusal | None = None,
) -> Response:
    found = refused or validated
    findings = found.findings if found is not None else ()
    groups = () if draft.models is None or draft.is_text else wizard.form(draft.models, draft.fields, findings)
    return pages.render(
        request,
        "new.html",
        draft=draft,
        sources=sorted(registry.source_models()),
        targets=sorted(registry.target_models()),
        groups=groups,
        known={one.path for one in wizard.inputs(groups)},
        input_path=wizard.input_path,
        findings=findings,
        left_out=found.findings_left_out if found is not None else 0,
        validated=validated,
        refused=refused,
    )
