"""Queries of one state and of the largest ones over sockets, with a fake state. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_queries import KeySize, StateOfKey
from dstreams.monitoring.web.documents import MOST_TEXT, parse_key, text_of_key
from dstreams.monitoring.web.server import PageServer
from tests.support.pages import get, make_monitor, serving
from tests.support.waiting import wait_for


class Double:
    """A fake state that records its queries."""

    def __init__(self, look: Callable[[Any], Any] = lambda key: key, uid: str = "counts") -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.states = {uid: None}
        self._look = look

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        self.asked.append((uid, key))
        return StateOfKey(uid, 1000, 3, key != "nobody", self._look(key), 7)

    def range(self, uid: str, start: Any, stop: Any, limit: int) -> tuple[int, list[Any]]:
        self.asked.append((uid, start, stop, limit))
        return 1000, [("a", self._look("a")), (("b", 2), {"n": 1})]

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        self.asked.append((uid, count))
        return (KeySize("a", 1, 100), KeySize(("b", 2), 0, 50), KeySize(b"\xff", 0, 10))


def ask(server: PageServer, path: str, **query: str) -> Any:
    return get(server, f"{path}?{urlencode(query)}")


def looked_up(states: Double, key: str) -> Any:
    registry = StreamRegistry()
    make_monitor(registry, states=states)
    with serving(registry) as server:
        return ask(server, "/state", stream="run-1", uid="counts", key=key)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("word", "word"),
        ('"word"', "word"),
        ("5", 5),
        ('"5"', "5"),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ('["a", [1, 2]]', ("a", (1, 2))),
        ("", ""),
        ("{not json", "{not json"),
        ("Straße & <b>", "Straße & <b>"),
        ("[" * 4000, "[" * 4000),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_key_is_json_or_text(text: str, key: Any) -> None:
    """Lists are tuples, as keys are; nothing is unpickled or evaluated."""
    states = Double()
    reply = looked_up(states, text)
    assert reply.status == 200
    assert states.asked == [("counts", key)]
    assert type(states.asked[0][1]) is type(key)


def test_an_answer_is_text_of_a_bounded_length() -> None:
    """It has bounded text, the batch and the partition."""
    reply = looked_up(Double(lambda _: ["<b>"] + ["x" * 1000] * 1000), "word")
    answer = reply.json
    value = answer.pop("value")
    assert answer == {
        "uid": "counts",
        "key": "'word'",
        "batch_time_ms": 1000,
        "partition": 3,
        "is_there": True,
        "timeout_ms": 7,
    }
    assert value.startswith("['<b>', ")
    assert len(value) <= MOST_TEXT + 3


def test_the_largest_keys_can_be_asked_for_again() -> None:
    """Each has the text that looks it up, where there is one."""
    registry, states = StreamRegistry(), Double()
    make_monitor(registry, states=states)
    with serving(registry) as server:
        answer = ask(server, "/largest", stream="run-1", uid="counts").json
    assert states.asked == [("counts", 20)]
    assert answer["uid"] == "counts"
    assert [(each["key"], each["key_json"]) for each in answer["keys"]] == [
        ("'a'", '"a"'),
        ("('b', 2)", '["b",2]'),
        ("b'\\xff'", None),
    ]


@pytest.mark.parametrize("key", ["a", "5", 5, 1.5, None, True, ("a", ("b", 1)), "\n", ""])
def test_a_key_and_its_text(key: Any) -> None:
    """A key and its text are converted both ways."""
    text = text_of_key(key)
    assert text is not None
    assert parse_key(text) == key


@pytest.mark.parametrize("key", [b"a", "\udc80", {"a": 1}.keys(), object()])
def test_a_key_without_a_text(key: Any) -> None:
    """Such a key has no text."""
    assert text_of_key(key) is None


def fail(error: Exception) -> Callable[[Any], Any]:
    def look(key: Any) -> Any:
        raise error

    return look


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InvalidStreamError("there is no operator 'x'"), 400, "there is no operator 'x'"),
        (ValueError("first\nsecond"), 500, "ValueError: first"),
        (RuntimeError(), 500, "RuntimeError: "),
        (OSError("s3://me:secret@host/x" + "y" * 9999), 500, "OSError: "),
    ],
)
def test_a_question_that_fails_says_why(error: Exception, status: int, text: str) -> None:
    """In a line, without secrets."""
    reply = looked_up(Double(fail(error)), "word")
    assert reply.status == status
    assert reply.json["error"].startswith(text)
    assert len(reply.json["error"]) <= 500
    assert "secret" not in reply.json["error"]
    assert "second" not in reply.json["error"]


def test_one_question_at_a_time() -> None:
    """Each runs a job: concurrent queries are asked to retry."""
    add, go_on = threading.Event(), threading.Event()

    def slow(key: Any) -> Any:
        add.set()
        assert go_on.wait(60)
        return key

    registry = StreamRegistry()
    make_monitor(registry, states=Double(slow))
    first: list[int] = []
    with serving(registry) as server:

        def wait() -> None:
            first.append(ask(server, "/state", stream="run-1", uid="counts", key="a").status)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert add.wait(60)
        reply = ask(server, "/largest", stream="run-1", uid="counts")
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert get(server, "/status.json").status == 200
        go_on.set()
        waiter.join(60)
        assert first == [200]
        wait_for(lambda: ask(server, "/largest", stream="run-1", uid="counts").status == 200)


@pytest.mark.parametrize(
    ("path", "query", "status", "error"),
    [
        (
            "/state",
            {"stream": "run-1", "uid": "a"},
            400,
            "missing parameter key; the parameters are ",
        ),
        ("/state", {"uid": "a", "key": "a"}, 400, "missing parameter stream; the parameters are "),
        ("/largest", {"stream": "run-1"}, 400, "missing parameter uid; the parameters are "),
        (
            "/largest",
            {"stream": "other", "uid": "a"},
            404,
            "no active stream with state has this run id",
        ),
        (
            "/largest",
            {"stream": "without", "uid": "a"},
            404,
            "no active stream with state has this run id",
        ),
        (
            "/largest",
            {"stream": "ended", "uid": "a"},
            404,
            "no active stream with state has this run id",
        ),
    ],
)
def test_what_cannot_be_asked(path: str, query: dict[str, str], status: int, error: str) -> None:
    """Nothing is looked up of what does not run any more."""
    registry, states = StreamRegistry(), Double()
    make_monitor(registry, states=states)
    make_monitor(registry, "without")
    ended = make_monitor(registry, "ended", states)
    ended.ended()
    registry.ended(ended)
    with serving(registry) as server:
        reply = ask(server, path, **query)
    assert reply.status == status
    assert reply.json["error"].startswith(error)
    assert states.asked == []


class Row(tuple[Any, ...]):
    """Named like a Row of Spark."""

    __fields__ = ("name", "pages")


@dataclass(frozen=True)
class Visit:
    page: str
    at: datetime


def at_path(path: str, *states: Double) -> Any:
    registry = StreamRegistry()
    for number, double in enumerate(states, 1):
        make_monitor(registry, f"run-{number}", states=double)  # type: ignore[arg-type]
    with serving(registry) as server:
        return get(server, path)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/state/counts/word", ("counts", "word")),
        ("/state/counts/5", ("counts", 5)),
        ("/state/counts/%225%22", ("counts", "5")),
        ("/state/counts/%5B%22a%22%2C1%5D", ("counts", ("a", 1))),
        ("/state/counts/a%2Fb?stream=run-1", ("counts", "a/b")),
        ("/state/counts/", ("counts", "")),
        ("/state/counts", ("counts", None, None, 100)),
        ("/state/counts?start=a&stop=%22b%22&limit=7", ("counts", "a", "b", 7)),
    ],
)
def test_a_path_is_an_operator_and_a_key(path: str, asked: tuple[Any, ...]) -> None:
    """Parts of the path are percent-encoded; a key is JSON or text, as elsewhere."""
    states = Double()
    assert at_path(path, states).status == 200
    assert states.asked == [asked]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, 5),
        (("a", [1, None]), ["a", [1, None]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ({("a", 1): (2,)}, [[["a", 1], [2]]]),
        (Row(("ann", ("/",))), {"name": "ann", "pages": ["/"]}),
        (
            Visit("/", datetime(2026, 11, 28, tzinfo=timezone.utc)),
            {"page": "/", "at": "2026-11-28T00:00:00Z"},
        ),
        (object, "<class 'object'>"),
    ],
)
def test_a_value_is_json(value: Any, shown: Any) -> None:
    """Tuples are lists, dicts with other keys are lists of pairs, the rest is bounded text."""
    states = Double(lambda _: value)
    found = at_path("/state/counts/a", states).json
    assert found == {
        "stream": "run-1",
        "uid": "counts",
        "key": "a",
        "batch_time_ms": 1000,
        "is_there": True,
        "value": shown,
        "timeout_ms": 7,
    }
    found = at_path("/state/counts", states).json
    assert found["pairs"] == [{"key": "a", "value": shown}, {"key": ["b", 2], "value": {"n": 1}}]


def test_a_large_value_is_cut() -> None:
    """It becomes bounded text."""
    value = at_path("/state/counts/a", Double(lambda _: ["x" * 1000] * 2000)).json["value"]
    assert isinstance(value, str)
    assert len(value) <= MOST_TEXT + 3


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/state/other/a", 404, "no stateful operator has the uid 'other'; known uids: counts"),
        ("/state//a", 404, "no stateful operator has the uid ''"),
        ("/state/counts/a/b", 404, "a path is /state/UID/KEY; write %2F for /"),
        ("/state/counts/a", 400, "2 streams have an operator 'counts'; add ?stream=RUN_ID, one of"),
        ("/state/counts/a?stream=run-3", 404, "known uids: none"),
        ("/state/counts?limit=0&stream=run-1", 400, "limit must be an integer from 1 to 1000"),
        ("/state/counts?limit=x&stream=run-1", 400, "limit must be an integer from 1 to 1000"),
    ],
)
def test_paths_without_an_answer(path: str, status: int, error: str) -> None:
    """The error lists the uids, or the runs to choose from."""
    reply = at_path(path, Double(), Double())
    assert reply.status == status
    assert error in reply.json["error"]


def test_a_key_without_a_state_is_not_found() -> None:
    """The answer says so, with status 404."""
    reply = at_path("/state/counts/nobody", Double())
    assert (reply.status, reply.json["is_there"]) == (404, False)
