"""Functions that give tokens: which would have a secret in their pickle."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from os import environ
from typing import Any

import pytest
from pyspark import cloudpickle

from dstreams.errors import RestartError
from dstreams.kafka.parameters import KafkaParameters, secret_of

HIDDEN = "hunter2"
WHERE = "https://login.example/token"


def of_environment(config: str, token_type: str = "") -> Any:
    return WHERE, config, token_type, os.environ["CLIENT_SECRET"]


def fetched(client_secret: str, _: str) -> Any:
    return client_secret


class Provider:
    """One with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def token(self, _: str) -> Any:
        return vars(self)


class Slotted:
    """One without a dictionary of its attributes."""

    __slots__ = ("api_key",)

    def __init__(self) -> None:
        self.api_key = HIDDEN

    def __call__(self, _: str) -> Any:
        return self.api_key


def capturing(**values: Any) -> Callable[[str], Any]:
    """Return a function that has a dictionary of values in its closure."""
    return lambda _: values


def of_closure() -> Callable[[str], Any]:
    client_secret = HIDDEN
    return lambda _: client_secret


def of_default() -> Callable[[str], Any]:
    return lambda _, password=HIDDEN: password


def through_another() -> Callable[[str], Any]:
    inner = of_closure()
    return lambda config: (config, inner(config))


def of_the_environment_itself() -> Callable[[str], Any]:
    variables = environ
    return lambda _: variables["CLIENT_SECRET"]


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (of_closure(), "client_secret"),
        (of_default(), "password"),
        (through_another(), "client_secret"),
        (functools.partial(fetched, HIDDEN), "client_secret"),
        (functools.partial(fetched, client_secret=HIDDEN), "client_secret"),
        (Provider(_password=HIDDEN).token, "_password"),
        (Provider(login={"passwords": [HIDDEN]}).token, "passwords"),
        (Provider(key=HIDDEN.encode()).token, "key"),
        (Provider(where=f"https://me:{HIDDEN}@login.example").token, "where"),
        (Slotted(), "api_key"),
        (of_the_environment_itself(), "variables"),
    ],
)
def test_secrets_of_functions(
    func: Callable[[str], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found by the names that the function has for them, and are in no checkpoint."""
    monkeypatch.setenv("CLIENT_SECRET", HIDDEN)
    word = HIDDEN.encode()
    assert word in cloudpickle.dumps(func)
    assert secret_of(func) == name
    given = KafkaParameters.of(
        {"bootstrap.servers": "localhost:9092", "oauth_cb": func}, "createDirectStream"
    )
    assert given.unkept == ("oauth_cb",)
    assert given.for_tasks()["oauth_cb"] is func
    pickled = cloudpickle.dumps(given)
    assert word not in pickled
    with pytest.raises(RestartError, match="oauth_cb uses a variable with the name of a secret"):
        pickle.loads(pickled).for_tasks()


@pytest.mark.parametrize(
    "func",
    [
        of_environment,
        lambda config: of_environment(config)[1:],
        capturing(token_url=WHERE, client_id="me", token_lifetime_s=600, password=None),
        Provider(scope="kafka").token,
        functools.partial(of_environment, token_type=""),
        print,
    ],
)
def test_functions_without_secrets(func: Callable[[str], Any]) -> None:
    """They are kept: what they know by secret names is an address, a number or nothing."""
    assert secret_of(func) is None


def test_functions_that_cannot_be_pickled() -> None:
    """Other clients reject them."""
    opened = open(os.devnull)  # noqa: SIM115
    with opened:
        assert secret_of(lambda _: opened) is None
