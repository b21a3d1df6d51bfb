"""The base of receivers, as its user meets it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import StorageLevel, cloudpickle

import dstreams
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.receiving.receiver import Receiver
from tests.support.receiving import Calls, Supervised


def test_it_is_public() -> None:
    """Users import it from dstreams."""
    assert dstreams.Receiver is Receiver


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("store", [1]),
        ("storeAll", [[1]]),
        ("reportError", ["x"]),
        ("restart", ["x"]),
        ("stop", ["x"]),
    ],
)
def test_it_has_to_be_started(method: str, arguments: list[Any]) -> None:
    """What needs the stream says that there is none yet."""
    with pytest.raises(StreamLifecycleError, match=f"Calls.{method} was called on a receiver that"):
        getattr(Calls(), method)(*arguments)


@pytest.mark.parametrize("method", ["onStart", "onStop"])
def test_both_callbacks_have_to_be_defined(method: str) -> None:
    """The message names class and method."""
    with pytest.raises(NotImplementedError, match=f"Receiver must define {method}"):
        getattr(Receiver(), method)()


def test_the_constructor_need_not_be_called() -> None:
    """A subclass with a constructor of its own works without super().__init__()."""

    class Forgetful(Receiver):
        def __init__(self) -> None:
            self.started = False

        def onStart(self) -> None:
            self.started = True

        def onStop(self) -> None:
            pass

    receiver = Forgetful()
    assert (receiver.isStarted(), receiver.isStopped()) == (False, False)
    assert receiver.preferredLocation is None
    supervised = Supervised(receiver)
    supervised.supervisor.start()
    supervised.end()
    assert supervised.kinds[-1] == "stopped"


def test_the_storage_level_is_kept() -> None:
    """For programs that look at it."""
    assert Receiver(StorageLevel.MEMORY_ONLY).storageLevel == StorageLevel.MEMORY_ONLY


def test_a_stream_id_comes_with_the_stream() -> None:
    """Before that there is none."""
    with pytest.raises(StreamLifecycleError, match="Calls has no streamId"):
        _ = Calls().streamId


def test_it_travels_without_what_runs_it() -> None:
    """A receiver that is attached here can be pickled, and is not attached there."""
    receiver = Calls()
    supervised = Supervised(receiver)
    receiver._stream_id = 3
    copy = pickle.loads(cloudpickle.dumps(receiver))
    assert copy.streamId == 3
    assert copy._supervisor is None
    supervised.end()


@pytest.mark.parametrize("delay", [-1, "2", float("nan")])
def test_a_delay_is_a_number_of_seconds(delay: Any) -> None:
    """Zero is allowed, less is not."""
    receiver = Calls()
    supervised = Supervised(receiver)
    with pytest.raises(InvalidStreamError, match="delay must be"):
        receiver.restart("again", delay=delay)
    supervised.end()
