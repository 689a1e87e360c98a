"""Configurations sent to the REST API: what is found, what is stored, and what a caller must not learn or do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from replicator.model.access import Scope
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.service.access import tokens
from replicator.service.access.listening import Listening
from replicator.state.records import Desired, ReplicatorRecord
from replicator.state.store import StateStore
from replicator.web.app import WebApp
from replicator_testbed.postgresql.servers import ScratchDatabase

YAML = "application/yaml"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The API without a worker, so that nothing acts on what is stored."""

    app: WebApp
    store: StateStore
    folder: Path
    tokens: Mapping[Scope, str]

    def ask(self, method: str, path: str, body: str | bytes = b"", **options: Any) -> httpx.Response:
        """One request."""
        return asyncio.run(self.one(method, path, body, **options))

    async def one(
        self,
        method: str,
        path: str,
        body: str | bytes = b"",
        *,
        media_type: str = YAML,
        scope: Scope | None = Scope.CONFIGURE,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One of several requests at the same time."""
        sent = {"content-type": media_type} if body else {}
        if scope is not None:
            sent["authorization"] = f"Bearer {self.tokens[scope]}"
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
            return await client.request(method, f"/api/v1{path}", content=body, headers={**sent, **(headers or {})})

    def validate(self, body: str | bytes, **options: Any) -> httpx.Response:
        """Check a configuration."""
        return self.ask("POST", "/validate", body, **options)

    def put(self, body: str | bytes, name: str = "shop", **options: Any) -> httpx.Response:
        """Send a replicator's configuration."""
        return self.ask("PUT", f"/replicators/{name}", body, **options)

    def stored(self, name: str = "shop") -> ReplicatorRecord | None:
        """What is stored."""
        return self.store.replicator(name)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    home = Home(folder=tmp_path / "home", state_url=f"sqlite:///{tmp_path / 'home' / 'state.db'}")
    home.ensure()
    store = StateStore(home.state_url)
    app = WebApp(home=home, registry=Registry.discover(), listening=Listening(host="127.0.0.1", port=8410))
    made = {scope: tokens.create(store, scope.value, scope, None)[1] for scope in Scope}
    yield Api(app=app, store=store, folder=tmp_path, tokens=made)
    app.close()
    store.close()


def away(folder: Path, **changed: Any) -> dict[str, Any]:
    """A configuration whose source nobody listens at: nothing but its text is right."""
    source = {
        "type": "postgresql",
        "host": "127.0.0.1",
        "port": 1,
        "user": "u",
        "database": "d",
        "connect_timeout": "1s",
    }
    target = {"type": "delta", "path": str(folder / "lake")}
    return {"name": "shop", "source": {**source, **changed.pop("source", {})}, "target": target, **changed}


def written(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False)


@pytest.fixture
def shop(database: ScratchDatabase, tmp_path: Path) -> dict[str, Any]:
    """A configuration that can be replicated."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    source = {key: value if isinstance(value, int) else str(value) for key, value in database.source.items()}
    return {
        "name": "shop",
        "source": source,
        "target": {"type": "delta", "path": str(tmp_path / "lake")},
        "tables": {"include": ["public.orders"]},
    }


@pytest.mark.matrix
@pytest.mark.parametrize("media_type", [YAML, JSON])
def test_everything_that_is_wrong_with_a_file_is_answered_with_its_line_and_setting(api: Api, media_type: str) -> None:
    document = {"name": "Shop!", "source": {"type": "postgresql", "hots": "x"}, "target": {"type": "none"}}
    body = written(document) if media_type == YAML else json.dumps(document)
    answer = api.validate(body, media_type=media_type)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    problem = answer.json()
    assert problem["code"] == "invalid_configuration"
    found = {(one["code"], one["location"], one["line"] is not None) for one in problem["findings"]}
    has_lines = media_type == YAML
    assert {
        ("invalid_value", "name", has_lines),
        ("unknown_key", "source.hots", has_lines),
        ("missing_key", "source.host", has_lines),
        ("unknown_plugin", "target.type", has_lines),
    } <= found
    assert next(one["line"] for one in problem["findings"] if one["location"] == "source.hots") == (
        4 if has_lines else None
    )


@pytest.mark.matrix
def test_what_source_and_target_say_is_found_and_nothing_is_stored(api: Api, tmp_path: Path) -> None:
    answer = api.validate(written(away(tmp_path)))
    assert answer.status_code == 200
    document = answer.json()
    assert (document["name"], document["is_blocked"]) == ("shop", True)
    assert [(one["code"], one["location"]) for one in document["findings"]] == [("source_unavailable", "source")]
    refused = api.put(written(away(tmp_path)))
    assert (refused.status_code, refused.json()["code"]) == (422, "assessment_failed")
    assert refused.json()["findings"] == document["findings"]
    assert api.stored() is None


@pytest.mark.matrix
def test_a_new_file_starts_the_same_changes_nothing_and_a_changed_one_is_reloaded(
    api: Api, shop: dict[str, Any]
) -> None:
    checked = api.validate(written(shop)).json()
    assert (checked["is_blocked"], checked["tables"]) == (
        False,
        [{"table": "public.orders", "columns": 1, "key": ["id"]}],
    )
    first = api.put(written(shop))
    assert (first.status_code, first.json()["is_new"]) == (201, True)
    record = api.stored()
    assert record is not None
    assert (record.config, record.desired) == (written(shop), Desired.RUNNING)

    api.store.set_desired("shop", Desired.PAUSED)
    same = api.put(written(shop))
    assert (same.status_code, same.json()["changed"]) == (200, [])
    shop["tables"]["include"].append("public.items")
    changed = api.put(written(shop))
    assert (changed.status_code, changed.json()["changed"]) == (200, ["tables"])
    assert set(changed.json()["added"]) == {"public.items", "public.orders"}
    again = api.stored()
    assert again is not None
    # What is wanted of it is set by other paths.
    assert (again.uuid, again.desired, again.config) == (record.uuid, Desired.PAUSED, written(shop))

    other = api.put(written({**shop, "target": {**shop["target"], "path": "/elsewhere"}}))
    assert (other.status_code, other.json()["code"]) == (422, "identity_changed")
    assert api.ask("DELETE", "/replicators/shop").status_code == 202
    assert api.put(written(shop)).status_code == 409


@pytest.mark.matrix
def test_json_is_stored_as_yaml_and_is_the_same_file_again(api: Api, shop: dict[str, Any]) -> None:
    body = json.dumps({**shop, "name": "shop"}, indent="\t")
    assert api.put(body, media_type=JSON).status_code == 201
    record = api.stored()
    assert record is not None
    assert yaml.safe_load(record.config) == shop
    assert api.put(body, media_type=JSON).json()["changed"] == []


@pytest.mark.matrix
def test_a_name_in_the_path_that_is_not_that_of_the_file_is_refused(api: Api, shop: dict[str, Any]) -> None:
    answer = api.put(written(shop), name="other")
    assert (answer.status_code, answer.json()["code"]) == (422, "name_differs")
    assert [one["location"] for one in answer.json()["findings"]] == ["name"]
    assert (api.stored(), api.stored("other")) == (None, None)


@pytest.mark.matrix
def test_of_two_callers_at_the_same_time_one_starts_it_and_both_are_answered(api: Api, shop: dict[str, Any]) -> None:
    async def both() -> list[httpx.Response]:
        return await asyncio.gather(*(api.one("PUT", "/replicators/shop", written(shop)) for _ in range(2)))

    answers = asyncio.run(both())
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert len(api.store.replicators()) == 1


@pytest.mark.parametrize("scope", [None, Scope.READ, Scope.OPERATE])
@pytest.mark.parametrize(("method", "path"), [("POST", "/validate"), ("PUT", "/replicators/shop")])
def test_a_configuration_is_read_only_for_who_may_configure(
    api: Api, tmp_path: Path, scope: Scope | None, method: str, path: str
) -> None:
    answer = api.ask(method, path, written(away(tmp_path)), scope=scope)
    expected = (401, "unauthorized") if scope is None else (403, "scope_too_small")
    assert (answer.status_code, answer.json()["code"]) == expected
    assert "configure" in (answer.json()["detail"] + answer.json()["action"])
    if scope is None:
        assert answer.json()["action"].endswith("replicator token create NAME --scope configure")


@pytest.mark.parametrize(
    ("headers", "media_type", "status"),
    [
        ({"Origin": "http://evil.example"}, YAML, 403),
        ({"Origin": "null"}, YAML, 403),
        ({"Sec-Fetch-Site": "cross-site"}, YAML, 403),
        ({"Sec-Fetch-Site": "same-site"}, JSON, 403),
        ({"Host": "rebound.example"}, YAML, 421),
        ({}, "text/plain", 415),
        ({}, "application/x-www-form-urlencoded", 415),
        ({}, "multipart/form-data", 415),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/validate"), ("PUT", "/replicators/shop")])
def test_a_page_of_another_site_is_refused(
    api: Api, tmp_path: Path, headers: Mapping[str, str], media_type: str, status: int, method: str, path: str
) -> None:
    answer = api.ask(method, path, written(away(tmp_path)), media_type=media_type, headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert answer.json()["action"] == "Send the header Content-Type: application/json or application/yaml."


@pytest.mark.matrix
def test_an_alias_bomb_and_ten_megabytes_are_refused(api: Api) -> None:
    levels = [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]" for i in range(8)]
    bomb = api.put("\n".join(["a: &a [x, x, x, x, x, x, x, x, x, x]", *levels]))
    assert (bomb.status_code, [one["code"] for one in bomb.json()["findings"]]) == (422, ["document_too_large"])
    large = api.put("x" * (10 << 20))
    assert (large.status_code, large.json()["code"]) == (413, "request_too_large")
    binary = api.put(b"a: \xff")
    assert (binary.status_code, binary.json()["code"]) == (422, "invalid_request")


def post_form(api: Api, scope: Scope | None, fields: Mapping[str, str], **headers: str) -> httpx.Response:
    """What the page of a new replicator answers to a form."""

    async def one() -> httpx.Response:
        cookies = {"replicator_form": "text-of-the-page"}
        if scope is not None:
            cookies["replicator_token"] = api.tokens[scope]
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", cookies=cookies) as client:
            return await client.post("/new", data={"form": "text-of-the-page", **fields}, headers=headers)

    return asyncio.run(one())


@pytest.mark.matrix
def test_the_page_starts_a_new_replicator_and_changes_none_that_is_there(api: Api, shop: dict[str, Any]) -> None:
    fields = {"plugin.source": "postgresql", "plugin.target": "delta", "name": "shop", "do": "start"}
    for block in ("source", "target"):
        fields |= {f"{block}.{key}": str(value) for key, value in shop[block].items() if key != "type"}
    fields["tables.include"] = "public.orders"
    started = post_form(api, Scope.CONFIGURE, fields)
    assert (started.status_code, started.headers["location"]) == (303, "/replicators/shop?done=start")
    record = api.stored()
    assert record is not None
    assert yaml.safe_load(record.config) == shop
    again = post_form(api, Scope.CONFIGURE, {**fields, "tables.include": "public.items"})
    assert "There is a replicator called shop already." in again.text
    assert api.stored() == record


@pytest.mark.parametrize(
    ("scope", "fields", "headers", "status"),
    [
        (None, {}, {}, 303),
        (Scope.READ, {}, {}, 403),
        (Scope.OPERATE, {}, {}, 403),
        (Scope.CONFIGURE, {"form": "guessed"}, {}, 403),
        (Scope.CONFIGURE, {}, {"Origin": "http://evil.example"}, 403),
        (Scope.CONFIGURE, {"do": "other"}, {}, 422),
        (Scope.CONFIGURE, {"plugin.source": "none"}, {}, 422),
    ],
)
def test_the_page_takes_a_form_only_from_who_may_configure(
    api: Api, scope: Scope | None, fields: Mapping[str, str], headers: Mapping[str, str], status: int
) -> None:
    sent = {"plugin.source": "postgresql", "plugin.target": "delta", "name": "shop", "do": "start", **fields}
    answer = post_form(api, scope, sent, **headers)
    assert answer.status_code == status
    assert answer.headers.get("location", "/login") == "/login"
    assert api.stored() is None
