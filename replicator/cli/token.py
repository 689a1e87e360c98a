"""`replicator token`: manages access to the REST API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import click

from replicator.cli.show import moment
from replicator.config import parse_duration
from replicator.model.access import Scope
from replicator.runtime.home import Home
from replicator.service.access import tokens as use_cases
from replicator.state.store import StateStore
from replicator.state.tokens import TokenRecord

_LONGEST: Final = timedelta(days=3650)


@click.group()
def token() -> None:
    """Manage the tokens that the REST API accepts."""


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.READ.value,
    show_default=True,
    help="read: see everything. operate: also pause, resume, snapshot and delete replicators. configure: also store configurations, which "
    "can start programs and read files as the user of the server.",
)
@click.option(
    "--expires", metavar="DURATION", help="Time after which it is no longer valid, such as 90d. Default: never."
)
def create(name: str, scope: str, expires: str | None) -> None:
    """Create a token and print it, this once. The state store keeps only its hash."""
    lifetime = None if expires is None else _lifetime(expires)
    _, text = use_cases.create(_open(), name, Scope(scope), lifetime)
    click.echo(text)
    click.echo(f"Store it now: it cannot be shown again. To revoke it: replicator token revoke {name}", err=True)


@token.command(name="list")
def list_() -> None:
    """List the tokens: name, scope, creation, expiry."""
    for one in use_cases.everything(_open()):
        click.echo(f"{one.name}  {one.scope.value}  created {moment(one.created_at)}  {_expiry(one)}")


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Make a token invalid, at once."""
    use_cases.revoke(_open(), name)
    click.echo(f"{name} is revoked.")


def _lifetime(text: str) -> timedelta:
    try:
        lifetime = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error
    if not timedelta(minutes=1) <= lifetime <= _LONGEST:
        raise click.BadParameter("must be at least 1m and at most 3650d", param_hint="--expires")
    return lifetime


def _expiry(one: TokenRecord) -> str:
    if one.expires_at is None:
        return "does not expire"
    verb = "expired" if one.expires_at <= datetime.now(UTC) else "expires"
    return f"{verb} {moment(one.expires_at)}"


def _open() -> StateStore:
    home = Home.from_environment()
    home.ensure()
    return StateStore(home.state_url)
