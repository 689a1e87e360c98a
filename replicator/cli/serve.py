"""`replicator serve`: workers for all stored replicators and, if asked for, the REST API in addition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from replicator.cli.stopping import stop_on_signals
from replicator.plugins.registry import Registry
from replicator.runtime.home import Home
from replicator.runtime.serve import CAPACITY
from replicator.runtime.serve import serve as serve_all
from replicator.runtime.watch_process import watched
from replicator.runtime.web_process import WebProcess
from replicator.service import lifecycle
from replicator.service.access.listening import CONNECTIONS_PER_CLIENT, Listening
from replicator.service.eligibility import refusal
from replicator.service.watching import is_watched
from replicator.state.store import StateStore


@click.command()
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Also show the dashboard and answer the REST API and Prometheus (docs/dashboard.md, docs/rest.md) at this address, such as "
    "127.0.0.1:8410. Other addresses than those "
    "of the host itself need tokens and TLS. Needs replicator[web].",
)
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="Certificate with its chain, for HTTPS (PEM)."
)
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="Its private key (PEM, no password).")
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="A proxy in front of the server adds TLS. Every request then needs a token, at any address.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Also answer requests that call the server by this name. Can be given several times.",
)
@click.option(
    "--capacity",
    default=CAPACITY,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Replicators that this worker runs at most. Several workers share them in proportion to their capacities "
    "(docs/several-hosts.md).",
)
@click.option(
    "--requests-per-second",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Requests that one caller may make on average; for a moment twice as many.",
)
@click.option(
    "--connections-per-client",
    default=CONNECTIONS_PER_CLIENT,
    show_default=True,
    type=click.IntRange(1, 512),
    help="Connections that one address may have open; then its oldest one that waits is closed. With --behind-proxy: requests that one "
    "token may have under way.",
)
def serve(
    listen: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_proxy: bool,
    allowed_hosts: tuple[str, ...],
    requests_per_second: int,
    connections_per_client: int,
    capacity: int,
) -> None:
    """Run the stored replicators: all of them, or, next to other workers, a share."""
    listening = None
    if listen is not None:
        listening = Listening.read(
            listen,
            tls_cert=tls_cert,
            tls_key=tls_key,
            behind_proxy=behind_proxy,
            allowed_hosts=allowed_hosts,
            requests_per_second=requests_per_second,
            connections_per_client=connections_per_client,
        )
    elif tls_cert or tls_key or behind_proxy or allowed_hosts:
        raise click.UsageError("--tls-cert, --tls-key, --behind-proxy and --allowed-host need --listen.")
    registry, home = Registry.discover(), Home.from_environment()
    home.ensure()
    store = StateStore(home.state_url)
    stop = stop_on_signals()
    with _listening(listening), watched(is_watched(store), (), _log_line):
        serve_all(
            store,
            lambda record, lease, stop: lifecycle.supervise(
                store, home, registry, record, stop, refuse_first=False, echo=_log_line, lease=lease
            ),
            stop,
            capacity=capacity,
            refuses=lambda record: refusal(store, home, registry, record),
            beat=home.beat,
        )


@contextmanager
def _listening(listening: Listening | None) -> Iterator[None]:
    """Serve the REST API while the block runs."""
    if listening is None:
        yield
        return
    listener = listening.bind()
    web = WebProcess(listener, listening.model_dump_json())
    try:
        web.start()
        scheme = "http" if listening.tls_cert is None else "https"
        host, port = listener.getsockname()[:2]
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        click.echo(f"Dashboard: {address}/", err=True)
        click.echo(f"REST API: {address}/api/v1/replicators", err=True)
        yield
    finally:
        web.stop()


def _log_line(line: str) -> None:
    click.echo(line, err=True)
