"""No secret of a configuration, of the state store's address or of the API is shown, stored, logged or passed on, by any command.

Secrets have names that do not say so. What is written anywhere, whatever runs, answers or fails, is searched for them.
"""

from __future__ import annotations

import gc
import json
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import duckdb
import psutil
import psycopg
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel

from replicator.cli.entry import main
from replicator.config import ReplicatorConfig
from replicator.config.shape import Shape, fields_of
from replicator.model import redaction
from replicator.plugins.registry import Registry
from replicator.runtime.watch_process import LOOK_VARIABLE
from replicator_testbed.canaries import Canaries, programs, record_programs
from replicator_testbed.network import rogue
from replicator_testbed.network.receiver import Received, Receiver, receiving
from replicator_testbed.network.rest import RestServer, serving
from replicator_testbed.postgresql.servers import PostgresServer, ScratchDatabase
from replicator_testbed.rig import Rig
from replicator_testbed.spark.java import short_lived_options
from replicator_testing.waiting import wait_until

CANARIES: Final = Canaries(
    "C_SOURCE", "C_STATE", "C_HOOK", "C_SIGNING", "C_APPRISE", "C_LINEAGE", "C_LINEAGE_URL", "C_SPARK", "AWS_SECRET_ACCESS_KEY",
)  # fmt: skip
SECRET_SETTINGS: Final = {
    "source.password": "C_SOURCE",
    "alerts.webhooks.*.url": "C_HOOK",
    "alerts.webhooks.*.signing_key": "C_SIGNING",
    "alerts.apprise.*.url": "C_APPRISE",
    "lineage.api_key": "C_LINEAGE",
}
"""Every setting that is a secret by its type, of the product and of all plugins."""
NOT_CALLED: Final = {"demo": "has a configuration and servers of its own"}
"""Commands that are not called here, and why."""
OF_THE_MATRIX: Final = {"alert watch": "starts the same process as `serve`"}
"""Commands that `make test` leaves to the matrix, and why."""
WORKERS: Final = ("serve", "alert watch")
"""Commands that are a process of their own."""
WITHOUT_STORE: Final = ("init", "schema", "plugins", "demo")
"""Commands that ask no state store."""
EXTRA: Final = """
journal: {{uri: {journal}}}
alerts:
  after: 0s
  journal_free_min: 1
  webhooks:
    ops: {{url: "${{env:C_HOOK}}", signing_key: "${{env:C_SIGNING}}"}}
  apprise:
    chat: {{url: "${{env:C_APPRISE}}"}}
  commands:
    note: {{argv: [/bin/sh, -c, "cat >> $0; env >> $0", {told}]}}
lineage: {{url: "${{env:C_LINEAGE_URL}}", api_key: "${{env:C_LINEAGE}}", file: {lineage}, console: true}}
spark: {{settings: {spark}}}
retry: {{backoff_initial: 20ms, backoff_max: 100ms}}
"""


def test_every_setting_that_is_a_secret_has_a_canary() -> None:
    registry = Registry.discover()
    found = set(secrets_of(ReplicatorConfig))
    for kind, models in (("source", registry.source_models()), ("target", registry.target_models())):
        found |= {f"{kind}.{path}" for model in models.values() for path in secrets_of(model)}
    assert found == set(SECRET_SETTINGS)


def secrets_of(model: type[BaseModel]) -> Iterator[str]:
    """Paths of settings that are secrets."""
    for key, setting in fields_of(model).items():
        yield from secrets_in(setting.shape, key)


def secrets_in(shape: Shape, path: str) -> Iterator[str]:
    if shape.is_secret:
        yield path
    if shape.block is not None:
        yield from (f"{path}.{inner}" for inner in secrets_of(shape.block))
    if shape.items is not None:
        yield from secrets_in(shape.items, f"{path}.*")


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command of the application, with its name as it is called."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


@dataclass(kw_only=True)
class Caller:
    """Calls commands in this process, each as if it were the process's first, and keeps what they print."""

    monkeypatch: pytest.MonkeyPatch
    called: set[str] = field(default_factory=set)
    leaks: list[tuple[str, set[str]]] = field(default_factory=list)
    token: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, *arguments: str) -> str:
        """What a command prints, after it was searched."""
        # What an earlier command has read of secrets would be masked for this one, too.
        self.monkeypatch.setattr(redaction, "_redactor", redaction.Redactor())
        done = CliRunner().invoke(main, [*name.split(), *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        self.note(name, done.output)
        self.called |= {name} | ({f"{name} --json"} if "--json" in arguments else set())
        if done.exit_code != 0:
            self.failed[name] = done.output[-500:]
        return done.stdout

    def noting(self, start: Callable[..., None]) -> Callable[..., None]:
        """What starts a program, after its arguments were searched."""

        def noted(process: Any, arguments: Any, *rest: Any, **more: Any) -> None:
            self.note("arguments of a program", repr(arguments))
            start(process, arguments, *rest, **more)

        return noted

    def note(self, what: str, said: str | bytes) -> None:
        """Search what was said."""
        found = CANARIES.found(said)
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        if self.token and self.token in text:
            found |= {"token"}
        if found:
            self.leaks.append((what, found))


def echo(received: Received, request: BaseHTTPRequestHandler) -> None:
    """Refuse, and repeat all that was said."""
    request.send_response(400)
    request.end_headers()
    request.wfile.write(f"{received.path} {dict(received.headers)} {received.body!r}"[:150].encode())


def echoing_database() -> rogue.Talk:
    """A server that refuses a password, and repeats it in its error."""

    def talk(client: Any, told: bytearray) -> None:
        first = client.recv(1 << 16)
        if len(first) == 8:
            client.sendall(b"N")
            client.recv(1 << 16)
        client.sendall(b"R" + struct.pack(">II", 8, 3))
        password = client.recv(1 << 16)
        told += password
        text = b"SFATAL\0VFATAL\0C28P01\0Mno such password: " + password[5:].rstrip(b"\0") + b"\0\0"
        client.sendall(b"E" + struct.pack(">I", len(text) + 4) + text)

    return talk


@dataclass(kw_only=True)
class Walk:
    """A replicator all of whose secrets are canaries, and the servers that it speaks to."""

    rig: Rig
    folder: Path
    call: Caller
    receiver: Receiver
    state: ScratchDatabase

    @property
    def file(self) -> str:
        """The configuration."""
        return str(self.rig.file)

    def text_of_the_store(self) -> str:
        """Every row of every table of the state store."""
        names = self.state.execute("SELECT format('%I.%I', schemaname, relname) FROM pg_stat_user_tables")
        assert names
        return str([self.state.execute(f"SELECT x::text FROM {name} x") for (name,) in names])

    def text_of_the_target(self) -> str:
        """Every row of every table of the target."""
        with duckdb.connect(str(self.rig.duckdb), read_only=True) as target:
            names = target.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
            assert names
            return str([target.execute(f'SELECT * FROM "{schema}"."{name}"').fetchall() for schema, name in names])


@pytest.fixture
def walk(tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    with ExitStack() as stack:
        database, state = (stack.enter_context(postgres.database()) for _ in range(2))
        database.execute(
            "CREATE TABLE people (id int PRIMARY KEY, name text)",
            "INSERT INTO people SELECT n, 'x' FROM generate_series(1, 9) n",
        )
        receiver = stack.enter_context(receiving())
        receiver.answer = echo
        port = receiver.url.rpartition(":")[2].partition("/")[0]
        address = f"127.0.0.1:{port}"
        recording, _ = record_programs(tmp_path / "recording")
        (tmp_path / "tmp").mkdir()
        environ = {
            **{
                name: CANARIES.password(name)
                for name in ("C_SOURCE", "C_SIGNING", "C_LINEAGE", "C_SPARK", "AWS_SECRET_ACCESS_KEY")
            },
            "C_HOOK": f"http://{address}/hook/{CANARIES.core('C_HOOK')}",
            "C_APPRISE": f"json://user:{CANARIES.core('C_APPRISE')}@{address}/{CANARIES.core('C_APPRISE')}",
            "C_LINEAGE_URL": f"http://user:{CANARIES.core('C_LINEAGE_URL')}@{address}",
            "REPLICATOR_STATE_URL": state_url(state.name, postgres.port),
            "REPLICATOR_HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path / "tmp"),
            "COLUMNS": "200",
            LOOK_VARIABLE: "5",
            **recording,
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        call = Caller(monkeypatch=monkeypatch)
        monkeypatch.setattr(subprocess.Popen, "__init__", call.noting(subprocess.Popen.__init__))
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        spark = {**short_lived_options(), "spark.hadoop.fs.s3a.secret.key": "${env:C_SPARK}"}
        extra = EXTRA.format(
            journal=tmp_path / "journal", told=tmp_path / "told", lineage=tmp_path / "lineage", spark=json.dumps(spark)
        )
        rig = Rig(folder=tmp_path, database=database, extra=extra)
        rig.write_to("duckdb")
        rig.write_yaml(source={"password": "${env:C_SOURCE}"})
        yield Walk(rig=rig, folder=tmp_path, call=call, receiver=receiver, state=state)
        rig.kill()
        # A command leaves its connections to the end of its process.
        for connection in (one for one in gc.get_objects() if isinstance(one, psycopg.Connection)):
            connection.close()


def state_url(database: str, port: int) -> str:
    password = quote(CANARIES.password("C_STATE"), safe="")
    return f"postgresql://postgres:{password}@127.0.0.1:{port}/{database}?connect_timeout=5"


@pytest.mark.filterwarnings("ignore:.*BoundedConnection:ResourceWarning", "ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_no_secret_is_shown_stored_or_passed_on_by_any_command(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    call, rig = walk.call, walk.rig
    processes: list[str] = []
    before_it_runs(walk)
    with serving(rig.home) as server:
        told = wait_until(
            lambda: all_told(walk) or None,
            lambda: f"every channel was told: {[r.path for r in walk.receiver.received.queue]} {server.lines}",
            timeout_s=60,
        )
        assert told
        processes += arguments_of(server)
        while_it_runs(walk, server)
        ask(walk, server, is_whole=is_whole)
        processes += arguments_of(server)
    call.note("serve", "".join(server.lines))
    call.called |= {"serve"}
    if is_whole:
        watch(walk)
    search(walk)
    failing_servers(walk, monkeypatch)
    call("pause", rig.name)
    call("resume", rig.name)
    if is_whole:
        call.note("run", rig.command("run", walk.file, "--until-caught-up").stderr)
        rig.duckdb.write_bytes(b"no database" * 1000)
        call("verify", rig.name, "--json")
        call("delete", rig.name, "--yes", "--drop-target")
    call("delete", rig.name, "--yes", "--force")
    search(walk, has_target=not is_whole)
    processes += programs(walk.folder / "recording" / "programs.jsonl")
    call.note("process list", "\n".join(processes))
    assert call.leaks == []
    known = dict(commands(main))
    wanted = {*known, *(f"{n} --json" for n, c in known.items() if any("--json" in p.opts for p in c.params))}
    assert wanted - call.called == {*NOT_CALLED, *({} if is_whole else OF_THE_MATRIX)}


def all_told(walk: Walk) -> bool:
    """Whether each channel was told something, and lineage; and the tables stream."""
    seen = {received.path.split("/")[1] for received in walk.receiver.received.queue}
    is_told = {"hook", CANARIES.core("C_APPRISE"), "api"} <= seen
    return is_told and (walk.folder / "told").exists()


def before_it_runs(walk: Walk) -> None:
    call, file = walk.call, walk.file
    call("init", "postgresql", "duckdb")
    call("schema")
    call("plugins")
    call("plugins", "--json")
    call("validate", file)
    call("validate", file, "--sql")
    call("preview", file, "public.people")
    call("preview", file, "public.people", "--json")
    call("plan", file, "--count-seconds", "0.1")
    call("plan", file, "--json", "--count-seconds", "0.1")
    call("plan", file, "--ddl", "ALTER TABLE public.people ADD COLUMN more text", "--json")
    call("start", file)


def while_it_runs(walk: Walk, server: RestServer) -> None:
    """Every command that asks or acts, and every path that answers."""
    call, name = walk.call, walk.rig.name
    walk.rig.database.execute("ALTER TABLE people ADD COLUMN more text", "INSERT INTO people VALUES (10, 'y', 'z')")
    for command in ("list", "status", "workers", "history"):
        arguments = [name] if command in ("status", "history") else []
        call(command, *arguments)
        call(command, *arguments, "--json")
    call("metrics")
    call("logs", name)
    call("alert test", name, "ops")
    call("ddl accept", name, "public.people")
    call("verify", name)
    call("verify", name, "--json", "--report", str(walk.folder / "report.md"), "--show-values")
    call("snapshot", name)
    call("reload", walk.file)
    assert {n: said for n, said in call.failed.items() if n not in ("alert test", "ddl accept")} == {}


def ask(walk: Walk, server: RestServer, *, is_whole: bool) -> None:
    """Every path that answers, as somebody with a token, which is told once only, and is a secret from then on."""
    call, name = walk.call, walk.rig.name
    call.token = CliRunner().invoke(main, ["token", "create", "canary", "--scope", "configure"]).stdout.split()[-1]
    assert call.token.startswith("replicator_")
    call.called |= {"token create"}
    call("token list")
    headers = {"Authorization": f"Bearer {call.token}"}
    paths = server.ask("/api/v1/openapi.json", headers=headers).document["paths"]
    asked = [path for path, methods in paths.items() if "get" in methods]
    asked += [
        "/",
        "/new",
        "/metrics",
        "/healthz",
        "/readyz",
        "/login",
        "/replicators/{name}",
        "/replicators/{name}/logs",
    ]
    asked += ["/replicators/{name}/tables/{table}"]
    for path in asked:
        filled = path.format(name=name, table="public.people", action="pause")
        answer = server.ask(filled, headers=headers)
        assert answer.status == 200, filled
        call.note(f"GET {path}", answer.body)
    body = {**headers, "Content-Type": "application/yaml"}
    for method, path in (("POST", "/api/v1/validate"), ("PUT", f"/api/v1/replicators/{name}")):
        for text in (walk.rig.file.read_text(), walk.rig.file.read_text().replace("port:", "port: x"))[: 2 * is_whole]:
            answer = server.ask(path, method=method, headers=body, body=text.encode())
            call.note(f"{method} {path}", answer.body)
    call("token revoke", "canary")


def watch(walk: Walk) -> None:
    """`alert watch`, until it has told something."""
    walk.receiver.received.queue.clear()
    process = walk.rig.start("alert", "watch")
    walk.receiver.next()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    walk.call.called |= {"alert watch"}


def failing_servers(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source, and then the state store, refuse the password and repeat it."""
    call, rig = walk.call, walk.rig
    with rogue.rogue(echoing_database()) as server:
        other = walk.folder / "other.yaml"
        block = yaml.safe_load(rig.file.read_text())
        block |= {"name": "other", "journal": {"uri": str(walk.folder / "another")}}
        block["source"]["port"] = server.port
        other.write_text(yaml.safe_dump(block))
        for command in ("validate", "plan", "start"):
            call(command, str(other))
            assert command in call.failed
        call("preview", str(other), "public.people")
        call("plan", str(other), "--json")
        call("run", str(other), "--until-caught-up")
        assert "run" in call.failed
        assert CANARIES.found(server.heard) == {"C_SOURCE"}
    with rogue.rogue(echoing_database()) as server, monkeypatch.context() as patch:
        patch.setenv("REPLICATOR_STATE_URL", state_url("state", server.port))
        call.failed.clear()
        asked: dict[str, tuple[str, ...]] = dict.fromkeys(("list", "workers", "metrics", "token list"), ())
        names = ("status", "history", "pause", "resume", "verify", "snapshot", "logs", "alert test")
        asked |= dict.fromkeys(names, (rig.name,))
        asked |= dict.fromkeys(("reload", "start", "run", "validate", "plan"), (walk.file,))
        asked["preview"] = (walk.file, "public.people")
        asked |= dict.fromkeys(("token create", "token revoke"), ("another",))
        asked |= {"delete": (rig.name, "--yes"), "ddl accept": (rig.name, "public.people")}
        for command, arguments in asked.items():
            call(command, *arguments)
        for command in WORKERS:
            done = rig.command(*command.split(), check=None)
            call.note(command, done.stdout + done.stderr)
            if done.returncode:
                call.failed[command] = done.stderr[-500:]
        assert {*asked, *WORKERS, *WITHOUT_STORE} == dict(commands(main)).keys()
        assert set(call.failed) == {*asked, *WORKERS}
        assert CANARIES.found(server.heard) == {"C_STATE"}


def search(walk: Walk, *, has_target: bool = True) -> None:
    """Look for secrets wherever something was written."""
    walk.call.note("state store", walk.text_of_the_store())
    if has_target:
        walk.call.note("target", walk.text_of_the_target())
    found = CANARIES.found_in(*(f for f in walk.folder.iterdir() if f.is_dir()))
    found |= {(f.name, n) for f in walk.folder.iterdir() if f.is_file() for n in CANARIES.found(f.read_bytes())}
    walk.call.leaks += [(f"file {file}", {name}) for file, name in found]


def arguments_of(server: RestServer) -> list[str]:
    """What the list of processes shows of a server and of all that it has started."""
    process = psutil.Process(server.process.pid)
    found: list[str] = []
    for one in (process, *process.children(recursive=True)):
        try:
            found.append(" ".join(one.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return found
