"""What the state store's drivers raise, told apart."""

from __future__ import annotations

import psycopg.errors
import pytest
from sqlalchemy import exc

from replicator.model.errors import StateUnavailableError
from replicator.state.database.errors import translated


@pytest.mark.parametrize("code", ["25P03", "25P04", "57P01"])
def test_a_connection_that_the_server_ended_may_be_made_again(code: str) -> None:
    """The first is what a host gets that did not reach the state store for a while, in the middle of a transaction."""
    ended = psycopg.errors.lookup(code)("terminating connection")
    with pytest.raises(StateUnavailableError) as caught, translated("store"):
        raise exc.InternalError("SELECT 1", {}, ended)
    assert caught.value.code == "state_unavailable"
