"""A secret gives its value to `reveal` and to nothing else."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from replicator.config import Secret


class Model(BaseModel):
    password: Secret
    others: list[Secret] = []


@given(st.text(alphabet="ΑΒΓΔΕ\n'\"", min_size=1).filter(lambda text: text.strip("\n'\"")))
def test_secret_shows_nowhere(value: str) -> None:
    secret = Secret(value)
    model = Model(password=secret, others=[secret])
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>5}",
        "%s" % secret,  # noqa: UP031 one more way to print
        repr(model),
        str(model.model_dump()),
    ]
    shown += [model.model_dump_json(), json.dumps(model.model_dump(mode="json")), str(vars(model))]
    assert all(value not in text for text in shown)
    assert secret.reveal() == value


def test_secret_serialises_as_stars() -> None:
    assert Model(password=Secret("abcd")).model_dump(mode="json") == {"password": "***", "others": []}


def test_literal_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"password": "Geheimnis"})
    assert caught.value.errors()[0]["type"] == "literal_secret"


def test_secret_cannot_be_pickled_and_copies_are_itself() -> None:
    secret = Secret("abcd")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert copy.deepcopy(secret) is secret
    assert copy.copy(secret) is secret


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
