"""Streams of receivers: what is refused where they are defined, and how they read."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import InvalidStreamError, Receiver, Settings, SourceError, StreamingContext
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext
from tests.support.receiving import Calls
from tests.support.waiting import wait_for


class Holding(Receiver):
    """A receiver with an attribute that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def onStart(self) -> None:
        pass

    def onStop(self) -> None:
        pass


@pytest.mark.parametrize("receiver", [None, Calls, object(), lambda: None])
def test_what_is_no_receiver_is_refused(ssc: StreamingContext, receiver: Any) -> None:
    """Also the class instead of an instance."""
    with pytest.raises(InvalidStreamError, match=r"needs an instance of dstreams.Receiver, got"):
        ssc.receiverStream(receiver)


def test_a_receiver_that_cannot_be_pickled(
    make_ssc: MakeContext, no_checkpoint_directory: None, tmp_path: Path
) -> None:
    """Without a checkpoint directory it works; with one, the error of start names the attribute."""
    ssc = make_ssc()
    ssc.receiverStream(Holding()).foreachRDD(lambda rdd: None)
    ssc.start()
    ssc.stop(stopSparkContext=False)
    again = make_ssc()
    again.checkpoint(str(tmp_path))
    again.receiverStream(Holding()).foreachRDD(lambda rdd: None)
    with pytest.raises(
        InvalidStreamError, match=r"uses .receiver.lock., .* in onStart of a receiver"
    ):
        again.start()


def test_a_receiver_is_of_one_stream(ssc: StreamingContext) -> None:
    """Otherwise it would have two stream ids."""
    receiver = Calls()
    ssc.receiverStream(receiver)
    with pytest.raises(
        InvalidStreamError, match=r"this Calls already is the receiver of receiverStream at"
    ):
        ssc.receiverStream(receiver)


def test_a_receiver_can_be_stepped(ssc: StreamingContext, clock: ManualClock) -> None:
    """In a notebook the receiver runs, and each step takes what it has stored."""
    receiver = Calls(lambda started: started.storeAll([1, 2, 3]))
    seen: list[Any] = []
    stream = ssc.receiverStream(receiver)
    stream.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    (info,) = ssc.step()
    wait_for(lambda: bool(ssc.step()) and seen == [1, 2, 3])
    assert list(info.records) == ["receiverStream(Calls)"]


def test_a_receiver_that_gave_up_is_raised(ssc: StreamingContext) -> None:
    """awaitTermination raises its error instead of waiting forever."""
    receiver = Calls(lambda started: started.stop("no licence", ValueError("expired")))
    ssc.receiverStream(receiver).foreachRDD(lambda rdd: None)
    ssc.start()
    with pytest.raises(SourceError, match=r"receiverStream\(Calls\) stopped for good: no licence"):
        ssc.awaitTermination(30)


def test_a_log_needs_a_checkpoint_directory(
    make_ssc: MakeContext, no_checkpoint_directory: None
) -> None:
    """The error is raised at the start."""
    ssc = make_ssc(receiver_write_ahead_log=True)
    ssc.receiverStream(Calls()).foreachRDD(lambda rdd: None)
    with pytest.raises(InvalidStreamError, match=r"writeAheadLog\.enable is true without a "):
        ssc.start()


# socketStream ------------------------------------------------------------------------------------


def lines(stream: Any) -> Any:
    return (line.decode().strip() for line in stream)


def nothing() -> list[str]:
    return []


def test_socket_stream(sc: SparkContext) -> None:
    """The converter's records reach the batches, in order."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        ssc = StreamingContext(sc, 0.1, settings=Settings(block_interval_ms=20))
        stream = ssc.socketStream("127.0.0.1", server.getsockname()[1], lines)
        seen: list[str] = []
        stream.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
        ssc.start()
        try:
            with server.accept()[0] as connection:
                connection.sendall(b"to be\nor not\nto be\n")
                wait_for(lambda: len(seen) == 3)
        finally:
            ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert seen == ["to be", "or not", "to be"]


@pytest.mark.parametrize(
    ("hostname", "port", "converter", "message"),
    [
        ("", 9999, lines, "host of socketStream must be a host name"),
        ("localhost", 0, lines, "port of socketStream must be from 1 to 65535"),
        ("localhost", 9999, None, r"socketStream needs a function converter\(file\)"),
        ("localhost", 9999, nothing, "socketStream calls"),
    ],
)
def test_socket_stream_refuses(
    ssc: StreamingContext, hostname: Any, port: Any, converter: Any, message: str
) -> None:
    """Receivers that can never work are refused when they are defined."""
    with pytest.raises(InvalidStreamError, match=message):
        ssc.socketStream(hostname, port, converter)
