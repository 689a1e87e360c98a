"""`replicator serve --listen`: what the REST API answers, asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socket

import psutil
import pytest

from replicator.model.events import SnapshotKind
from replicator.model.offset import Offset
from replicator.model.schema import TableId
from replicator.service.metrics import CONTENT_TYPE
from replicator.state import holder_id
from replicator.state.records import (
    AppliedRecord,
    Desired,
    RequestKind,
    Segment,
    SnapshotProgress,
    Stage,
    TableRecord,
    TargetCopy,
)
from replicator.state.store import StateStore
from replicator_testbed.network.rest import Answer, RestServer, command, serving
from replicator_testbed.present import present
from replicator_testing.waiting import wait_until

ORDERS = TableId("public", "orders")
SECRET = "hunter2-hunter2"
API = "/api/v1"


@pytest.fixture(scope="module")
def now() -> datetime:
    """When the home was made: the module may have been read hours earlier."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, now: datetime) -> Path:
    """With a paused replicator that has a table and a log."""
    home = tmp_path_factory.mktemp("home")
    store = StateStore(f"sqlite:///{home / 'state.db'}")
    store.create_replicator("shop", "name: shop\n", str(home / "journal"))
    lease = present(store.leases.acquire("shop", holder_id(), 600))
    store.put_tables("shop", lease.epoch, [TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING)])
    record = AppliedRecord(table=ORDERS, incarnation=1, rows=10, copy=TargetCopy.WHOLE)
    store.put_applied("shop", lease.epoch, [record])
    store.leases.release(lease)
    store.set_desired("shop", Desired.PAUSED)
    store.close()
    (home / "logs").mkdir()
    events = [
        {"timestamp": (now - timedelta(hours=2)).isoformat(), "event": "old", "table": "public.orders"},
        {"timestamp": now.isoformat(), "event": "new", "table": "public.orders", "password": SECRET},
        {"timestamp": now.isoformat(), "event": "other", "table": "public.items"},
    ]
    (home / "logs" / "shop.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[RestServer]:
    with serving(home, "--allowed-host", "replicator.example") as server:
        yield server


def printed(home: Path, *arguments: str) -> object:
    """What a command prints as JSON."""
    return json.loads(replicator(home, *arguments))


def still(document: object) -> object:
    """Without what time alone changes."""
    if isinstance(document, list):
        return [still(one) for one in document]
    if isinstance(document, dict):
        return {key: still(value) for key, value in document.items() if not key.endswith("freshness_s")}
    return document


@pytest.mark.matrix
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/replicators", ("list", "--json")),
        ("/replicators/shop", ("status", "shop", "--json")),
        ("/replicators/shop/history", ("history", "shop", "--json")),
        ("/plugins", ("plugins", "--json")),
    ],
)
def test_a_body_is_what_the_command_prints(
    home: Path, server: RestServer, path: str, arguments: tuple[str, ...]
) -> None:
    answer = server.ask(API + path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert still(answer.document) == still(printed(home, *arguments))


def test_workers_are_what_the_command_prints(home: Path, server: RestServer) -> None:
    (serving,) = server.ask(f"{API}/workers").document
    (shown,) = json.loads(replicator(home, "workers", "--json"))
    assert serving | {"seen_at": None} == shown | {"seen_at": None}
    assert (serving["pid"], serving["state"], serving["capacity"]) == (server.process.pid, "serving", 100)


def test_a_table_is_its_part_of_the_status(server: RestServer) -> None:
    table = server.ask(f"{API}/replicators/shop/tables/public.orders").document
    assert still(table) == still(server.ask(f"{API}/replicators/shop").document["tables"][0])


def test_a_status_that_the_caller_has_is_not_sent_again(server: RestServer) -> None:
    path = f"{API}/replicators/shop/history"
    assert "etag" not in server.ask(path).headers

    def repeated() -> bool:
        first = server.ask(f"{API}/replicators")
        again = server.ask(f"{API}/replicators", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status, again.body) in ((304, b""), (200, again.body))
        return again.status == 304

    # Freshness grows: of two answers of the same second the second one is the first one.
    wait_until(repeated, "no answer was 304", every_s=0)


def test_logs_are_of_the_table_and_since_the_time_that_was_asked_for(server: RestServer, now: datetime) -> None:
    path = f"{API}/replicators/shop/logs"
    assert [e["event"] for e in server.ask(path).document["events"]] == ["old", "new", "other"]
    assert [e["event"] for e in server.ask(f"{path}?table=public.orders&since=1h").document["events"]] == ["new"]
    since = (now - timedelta(hours=3)).isoformat().replace("+", "%2B")
    answer = server.ask(f"{path}?since={since}&limit=1").document
    assert [e["event"] for e in answer["events"]] == ["other"]
    assert not answer["is_complete"]
    assert server.ask(f"{path}?since=yesterday").document["code"] == "invalid_request"


def test_no_answer_has_a_secret(server: RestServer) -> None:
    assert SECRET.encode() not in server.ask(f"{API}/replicators/shop/logs").body


def test_prometheus_reads_the_metrics(server: RestServer) -> None:
    answer = server.ask("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    assert b'replicator_tables{replicator="shop",state="streaming"} 1.0' in answer.body


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_may_use_any_name(server: RestServer, path: str) -> None:
    assert server.ask(path, headers={"Host": "10.0.0.1.nip.example"}).status == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/replicators/none", 404, "unknown_replicator"),
        ("/replicators/none/logs", 404, "unknown_replicator"),
        ("/replicators/..%2F..%2Fetc%2Fpasswd/logs", 404, "unknown_path"),
        ("/replicators/shop/tables/public.none", 404, "unknown_table"),
        ("/replicators/shop/history?table=none", 404, "unknown_table"),
        ("/replicators/shop/history?limit=0", 422, "invalid_request"),
        ("/none", 404, "unknown_path"),
    ],
)
def test_what_cannot_be_answered_is_a_problem_with_our_code(
    server: RestServer, path: str, status: int, code: str
) -> None:
    answer = server.ask(API + path)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.document
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"urn:replicator:error:{code}")
    assert problem["detail"]


def test_another_method_is_refused(server: RestServer) -> None:
    answer = server.ask("/healthz", method="DELETE")
    assert (answer.status, answer.document["code"], answer.headers["allow"]) == (405, "method_not_allowed", "GET")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8410"}, 200),
        ({"Host": "[::1]:8410"}, 200),
        ({"Host": "Replicator.example."}, 200),
        ({"Host": "rebound.example"}, 421),
        ({"Host": "replicator.example@rebound.example"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1"}, 200),
        ({"Host": "127.0.0.1", "Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1", "Origin": "null"}, 403),
        ({"Host": "127.0.0.1", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "127.0.0.1", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_get_nothing(server: RestServer, headers: Mapping[str, str], status: int) -> None:
    assert server.ask(f"{API}/replicators", headers=headers).status == status


def test_serve_says_where_people_and_programs_find_it(server: RestServer) -> None:
    address = f"http://127.0.0.1:{server.port}"
    assert [f"Dashboard: {address}/\n", f"REST API: {address}{API}/replicators\n"] == server.lines[:2]


def test_a_body_of_another_type_and_a_head_that_is_too_large_are_refused(server: RestServer) -> None:
    path = f"{API}/replicators/shop/pause"
    form = server.ask(path, method="POST", body=b"a=1", headers={"Content-Type": "text/plain"})
    assert (form.status, form.document["code"]) == (415, "unsupported_media_type")
    long = server.ask(path, headers={"X-Long": "x" * (40 << 10)})
    assert (long.status, long.document["code"]) == (431, "request_too_large")


def test_the_openapi_document_describes_every_path(server: RestServer) -> None:
    document = server.ask(f"{API}/openapi.json").document
    assert set(document["paths"]) == {
        "/healthz",
        "/metrics",
        "/readyz",
        "/api/v1/plugins",
        "/api/v1/replicators",
        "/api/v1/replicators/{name}",
        "/api/v1/replicators/{name}/history",
        "/api/v1/replicators/{name}/logs",
        "/api/v1/replicators/{name}/pause",
        "/api/v1/replicators/{name}/restart",
        "/api/v1/replicators/{name}/resume",
        "/api/v1/replicators/{name}/snapshot",
        "/api/v1/replicators/{name}/tables/{table}",
        "/api/v1/workers",
        "/api/v1/validate",
    }
    found = document["paths"]["/api/v1/replicators/{name}"]["get"]["responses"]
    assert list(found["404"]["content"]) == ["application/problem+json"]


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StateStore, RestServer]]:
    """A state store and its server, for all: a start takes longer than what the tests ask.

    The worker of each test's replicator is the test, so that nothing else acts on what is asked of it.
    """
    home = tmp_path_factory.mktemp("led")
    store = StateStore(f"sqlite:///{home / 'state.db'}")
    for name in ("wanted", "since", "restarted"):
        store.create_replicator(name, f"name: {name}\n", str(home / name))
        lease = present(store.leases.acquire(name, holder_id(), 3600))
        store.put_tables(name, lease.epoch, [TableRecord(table=ORDERS, incarnation=1, stage=Stage.STREAMING)])
    with serving(home) as server:
        yield store, server
    store.close()


def test_what_is_wanted_of_a_replicator_is_changed_and_shown_at_once(led: tuple[StateStore, RestServer]) -> None:
    store, server = led
    name = "wanted"
    path = f"{API}/replicators/{name}"

    def ask(what: str, method: str = "POST", **body: object) -> Answer:
        sent = json.dumps(body).encode() if body else None
        headers = {"Content-Type": "application/json"} if body else {}
        return server.ask(path + what, method=method, headers=headers, body=sent)

    assert server.ask(path).document["desired"] == "running"
    for _ in range(2):
        assert ask("/pause").document["desired"] == "paused"
        assert server.ask(path).document["desired"] == "paused"
    assert ask("/pause?apply_only=true").document["desired"] == "apply_paused"
    assert ask("/resume").document["desired"] == "running"

    asked = ask("/snapshot", tables=["public.orders"], recreate=True)
    assert (asked.status, asked.document["tables"]) == (202, ["public.orders"])
    assert (ask("/snapshot").status, ask("/restart").status) == (202, 202)
    kinds = [request.kind for request in store.requests.open(name)]
    assert kinds == [RequestKind.RECREATE, RequestKind.SNAPSHOT, RequestKind.RESTART]
    assert ask("/snapshot", tables=["public.none"]).document["code"] == "unknown_table"
    assert ask("/snapshot", table="public.orders").document["code"] == "invalid_request"

    deleted = ask("?drop_target=true", method="DELETE")
    assert (deleted.status, deleted.document["state"]) == (202, "deleting")
    payload = present([r for r in store.requests.open(name) if r.kind is RequestKind.DELETE]).pop().payload
    assert (payload["drop_target"], payload["is_awaited"]) == (True, False)
    assert (ask("/pause").status, ask("/resume").document["code"]) == (409, "being_deleted")


def test_a_snapshot_since_a_time_is_asked_for_once(led: tuple[StateStore, RestServer]) -> None:
    store, server = led
    name = "since"
    first = store.now()

    def ask(**body: object) -> list[str]:
        answer = server.ask(
            f"{API}/replicators/{name}/snapshot",
            method="POST",
            headers={"Content-Type": "application/json"},
            body=json.dumps(body).encode(),
        )
        assert answer.status == 202
        return list(answer.document["tables"])

    since = first.isoformat()
    assert [ask(since=since), ask(since=since)] == [["public.orders"], []]
    assert len(store.requests.open(name)) == 1
    # Another kind, then a later time.
    assert [ask(since=since, recreate=True), ask(since=since, recreate=True)] == [["public.orders"], []]
    assert ask(since=(store.now() + timedelta(hours=1)).isoformat()) == ["public.orders"]

    # The worker has taken it, and the snapshot has begun.
    for request in store.requests.open(name):
        store.requests.remove(request.id)
    progress = SnapshotProgress(kind=SnapshotKind.IN_PLACE, start_number=0, started_at=store.now())
    epoch = present(store.leases.current(name)).epoch
    store.put_tables(name, epoch, [TableRecord(table=ORDERS, incarnation=1, stage=Stage.SNAPSHOT, snapshot=progress)])
    assert ask(since=since) == []
    assert ask(since=since, recreate=True) == ["public.orders"]


def test_a_restart_since_a_time_is_asked_for_once(led: tuple[StateStore, RestServer]) -> None:
    store, server = led
    name = "restarted"

    def ask(**body: object) -> list[str]:
        answer = server.ask(
            f"{API}/replicators/{name}/restart",
            method="POST",
            headers={"Content-Type": "application/json"},
            body=json.dumps(body).encode(),
        )
        assert answer.status == 202
        return list(answer.document["tables"])

    since = store.now().isoformat()
    # Neither a snapshot nor a restart that only reads what differs is what is asked for here.
    store.requests.add(name, RequestKind.SNAPSHOT, {"tables": ["public.orders"]})
    store.requests.add(name, RequestKind.RESTART, {"tables": ["public.orders"], "changed_only": True})
    assert [ask(since=since), ask(since=since)] == [["public.orders"], []]
    assert len(store.requests.open(name)) == 3

    # The worker has begun with it.
    epoch = present(store.leases.current(name)).epoch
    done = [request.id for request in store.requests.open(name)]
    now = store.now()
    segment = Segment(
        id=1, first=0, last=-1, epoch=epoch, offset=Offset.of({"lsn": 1}), source_time=now, ring=(), files=(), events=(), sealed_at=now
    )  # fmt: skip
    store.seal(name, epoch, [segment], done_requests=done)
    assert ask(since=since) == []
    assert ask(since=(store.now() + timedelta(hours=1)).isoformat()) == ["public.orders"]
    assert ask() == ["public.orders"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Origin": "http://evil.example"}, None, 403),
        ({"Origin": "null"}, None, 403),
        ({"Sec-Fetch-Site": "cross-site"}, None, 403),
        ({"Sec-Fetch-Site": "none"}, None, 403),
        ({"Content-Type": "text/plain"}, b'{"tables": []}', 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"tables=", 415),
        ({"Content-Type": "application/json"}, b"{", 422),
        ({"Content-Type": "application/json"}, b"[" * 100_000, 422),
        ({"Content-Type": "application/json"}, b'"\xff"', 422),
        ({"Content-Type": "application/yaml"}, b"tables: []", 415),
        ({"Content-Type": "application/json"}, b" " * (600 << 10), 413),
        (
            {"Content-Type": "application/json", "Transfer-Encoding": "chunked"},
            b"92800\r\n" + b" " * 0x92800 + b"\r\n0\r\n\r\n",
            413,
        ),
    ],
)
def test_a_write_that_is_foreign_malformed_or_too_large_changes_nothing(
    home: Path, server: RestServer, headers: Mapping[str, str], body: bytes | None, status: int
) -> None:
    answer = server.ask(f"{API}/replicators/shop/snapshot", method="POST", headers=headers, body=body)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    store = StateStore(f"sqlite:///{home / 'state.db'}")
    assert store.requests.open("shop") == []
    store.close()


@pytest.mark.matrix
def test_who_asks_too_often_is_told_to_wait(home: Path) -> None:
    with serving(home, "--requests-per-second", "1") as server:
        answers = [server.ask("/healthz") for _ in range(20)]
    refused = next(answer for answer in answers if answer.status == 429)
    assert (refused.document["code"], refused.headers["retry-after"]) == ("too_many_requests", "1")


@pytest.mark.matrix
def test_the_server_ends_with_serve_and_starts_again_if_it_alone_ends(home: Path) -> None:
    with serving(home) as server:
        (web,) = [p for p in psutil.Process(server.process.pid).children() if "replicator.web.__main__" in p.cmdline()]
        web.kill()
        web.wait()
        # The socket is open all the time: this request waits for the next process.
        assert server.ask("/healthz").status == 200
        (again,) = [
            p for p in psutil.Process(server.process.pid).children() if "replicator.web.__main__" in p.cmdline()
        ]
        server.process.kill()
        wait_until(lambda: not again.is_running(), "the server runs without serve")


@pytest.mark.matrix
def test_another_address_needs_tls_and_a_token_that_is_valid_until_it_is_revoked(home: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key),
            "-out", str(certificate), "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with serving(home, *tls, address="0.0.0.0:0", certificate=certificate) as server:
        assert server.ask("/readyz").status == 200
        for headers in ({}, bearer("replicator_" + "x" * 43), {"Authorization": "Basic eDp5"}):
            refused = server.ask("/metrics", headers=headers)
            assert (refused.status, refused.document["code"]) == (401, "unauthorized")
            assert refused.headers["www-authenticate"].startswith("Bearer")
        token = token_of(home, "grafana")
        assert server.ask("/metrics", headers=bearer(token)).status == 200
        refused = server.ask(f"{API}/replicators/shop/pause", method="POST", headers=bearer(token))
        assert (refused.status, refused.document["code"]) == (403, "scope_too_small")
        assert replicator(home, "token", "list").startswith("grafana  read  created ")
        replicator(home, "token", "revoke", "grafana")
        assert server.ask("/metrics", headers=bearer(token)).status == 401
        assert token not in "".join(server.lines)


@pytest.mark.matrix
def test_behind_a_proxy_every_request_needs_a_token(home: Path) -> None:
    token = token_of(home, "proxied", "--scope", "operate", "--expires", "90d")
    with serving(home, "--behind-proxy") as server:
        assert server.ask(f"{API}/replicators").status == server.ask(f"{API}/none").status == 401
        assert server.ask(f"{API}/replicators", headers=bearer(token)).status == 200
        # Also while the answer is kept.
        assert server.ask(f"{API}/replicators").status == 401
        assert server.ask("/healthz", method="POST", headers=bearer(token)).status == 405


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def token_of(home: Path, name: str, *options: str) -> str:
    """A new token's text, which is all that goes to the standard output."""
    return replicator(home, "token", "create", name, *options).strip()


def replicator(home: Path, *arguments: str) -> str:
    """What a command prints."""
    return subprocess.check_output(
        command(*arguments), text=True, stderr=subprocess.DEVNULL, env={**os.environ, "REPLICATOR_HOME": str(home)}
    )


@pytest.mark.matrix
def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate", encoding="utf-8")
    file = str(tmp_path / "none.pem")
    assert refusal(tmp_path, "127.0.0.1:0", "--tls-cert", file, "--tls-key", file) == (2, "tls_unusable")
    assert refusal(tmp_path, "127.0.0.1:0", "--tls-cert", file) == (2, "tls_unusable")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("0.0.0.0:8410", "tls_required"),
        ("192.0.2.1:8410", "tls_required"),
        ("replicator.example:8410", "tls_required"),
        ("127.0.0.1", "invalid_listen"),
        ("127.0.0.1:99999", "invalid_listen"),
        ("::1:8410", "invalid_listen"),
    ],
)
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, address: str, code: str) -> None:
    assert refusal(tmp_path, address) == (2, code)


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert refusal(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}") == (2, "cannot_listen")


@pytest.mark.matrix
def test_without_the_extra_it_is_refused(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.modules['fastapi'] = None\n", encoding="utf-8")
    assert refusal(tmp_path, "127.0.0.1:0", PYTHONPATH=str(tmp_path)) == (2, "missing_extra")


def refusal(home: Path, address: str, *options: str, **environ: str) -> tuple[int, str]:
    """Exit code of `serve`, and the code of its error."""
    done = subprocess.run(
        command("serve", "--listen", address, *options),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "REPLICATOR_HOME": str(home), **environ},
    )
    return done.returncode, present(re.search(r"error \[(\w+)\]", done.stderr))[1]
