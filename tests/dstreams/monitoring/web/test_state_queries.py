"""One key's state and the largest ones, asked over sockets of a double of the state. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.state_jobs import KeySize, StateOfKey
from dstreams.monitoring.web.documents import MOST_TEXT
from dstreams.monitoring.web.server import PageServer
from dstreams.monitoring.web.state_query_handler import key_of, text_of_key
from tests.support.pages import get, make_monitor, serving
from tests.support.waiting import wait_for


class Double:
    """State of which each look is written down."""

    def __init__(self, look: Callable[[Any], Any] = lambda key: key) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._look = look

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        self.asked.append((uid, key))
        return StateOfKey(uid, 1000, 3, True, self._look(key), 7)

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
    """And says as of which batch it is, and in which partition."""
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
    """The one stands for the other."""
    text = text_of_key(key)
    assert text is not None
    assert key_of(text) == key


@pytest.mark.parametrize("key", [b"a", "\udc80", {"a": 1}.keys(), object()])
def test_a_key_without_a_text(key: Any) -> None:
    """It cannot be asked for."""
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
    """Each is a job: who asks meanwhile is told to ask again."""
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
