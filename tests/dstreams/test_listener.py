"""Arguments of listeners: Java's names, Python's values; no Spark."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from typing import Any

import pytest

from dstreams import StatsReportListener, StreamingListener
from dstreams.listener import CALLBACKS, BatchInfoView, InfoMap, OutputInfo
from dstreams.monitoring.events import (
    BatchCompleted,
    BatchInfo,
    BatchStarted,
    BatchSubmitted,
    Event,
    InputInfo,
    OutputOperationCompleted,
    OutputOperationInfo,
    OutputOperationStarted,
    PendingBatch,
    PlannedOutput,
    ReceiverError,
    ReceiverInfo,
    ReceiverStarted,
    ReceiverStopped,
    StateOperatorInfo,
    StreamingStarted,
)
from dstreams.monitoring.listener_bus import call

INPUTS = (InputInfo(0, "socket", 3, "3 lines"), InputInfo(1, "files", None, ""))
PENDING = PendingBatch(0, 1000, INPUTS, (PlannedOutput(0, "pprint at a.py:1"),), 1005)
STARTED = dataclasses.replace(PENDING, started_ms=1200)
OUTPUT = OutputOperationInfo(0, "pprint at a.py:1", 1210, 1900, "ValueError: no")
DONE = BatchInfo(
    batch_id=0,
    batch_time_ms=1000,
    records={"socket": 3, "files": None},
    submitted_ms=1005,
    started_ms=1200,
    completed_ms=1950,
    outputs=(OUTPUT,),
    outcome="failed",
    failure="batch at 1000 ms failed",
    inputs=INPUTS,
    states=(
        StateOperatorInfo(
            "mapWithState-0",
            "mapWithState at a.py:1",
            2,
            {
                "numTotalStateRows": 9,
                "numUpdatedStateRows": 3,
                "numRemovedStateRows": 1,
                "numRowsDroppedByWatermark": 4,
                "allUpdatesTimeMs": 30,
                "allRemovalsTimeMs": 10,
                "commitTimeMs": 5,
                "stateMemory": 4096,
                "numStateStoreInstances": 2,
                "numOutputRows": 7,
            },
        ),
    ),
)
RECEIVER = ReceiverInfo(2, "lines", True, "host", "7")

EVENTS: dict[str, Event] = {
    "onStreamingStarted": StreamingStarted(900),
    "onReceiverStarted": ReceiverStarted(RECEIVER),
    "onReceiverError": ReceiverError(RECEIVER),
    "onReceiverStopped": ReceiverStopped(RECEIVER),
    "onBatchSubmitted": BatchSubmitted(PENDING),
    "onBatchStarted": BatchStarted(STARTED),
    "onBatchCompleted": BatchCompleted(DONE),
    "onOutputOperationStarted": OutputOperationStarted(1000, PENDING.outputs[0], 1210),
    "onOutputOperationCompleted": OutputOperationCompleted(1000, OUTPUT),
}


class Recorder:
    """A listener with every callback that keeps their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on"):
            raise AttributeError(name)
        return lambda argument: self.calls.append((name, argument))


def seen(event: Event) -> Any:
    recorder = Recorder()
    call(CALLBACKS, recorder, event)
    [(_, argument)] = recorder.calls
    return argument


@pytest.mark.parametrize("name", EVENTS)
def test_each_event_has_its_callback(name: str) -> None:
    """It has the name of pyspark.streaming, and gets one argument."""
    recorder = Recorder()
    call(CALLBACKS, recorder, EVENTS[name])
    assert [called for called, _ in recorder.calls] == [name]
    call(CALLBACKS, StreamingListener(), EVENTS[name])
    call(CALLBACKS, object(), EVENTS[name])


def test_the_base_has_all_callbacks() -> None:
    """Each event has a method to override, and each method an event."""
    callbacks = {name for name, _ in CALLBACKS.values()}
    assert {name for name in vars(StreamingListener) if name.startswith("on")} == callbacks
    assert set(EVENTS) == callbacks


@pytest.mark.parametrize(
    ("event", "times", "delays"),
    [
        ("onBatchSubmitted", (1005, -1, -1), (-1, -1, -1)),
        ("onBatchStarted", (1005, 1200, -1), (195, -1, -1)),
        ("onBatchCompleted", (1005, 1200, 1950), (195, 750, 945)),
    ],
)
def test_a_batch_step_by_step(event: str, times: tuple[int, ...], delays: tuple[int, ...]) -> None:
    """Unknown numbers are -1."""
    info = seen(EVENTS[event]).batchInfo()
    assert info.batchTime().milliseconds() == 1000
    assert (info.submissionTime(), info.processingStartTime(), info.processingEndTime()) == times
    assert (info.schedulingDelay(), info.processingDelay(), info.totalDelay()) == delays
    assert info.numRecords() == 3
    assert list(info.outputOperationInfos()) == [0]


def test_inputs_of_a_batch() -> None:
    """By stream id; an uncounted input has no records, an undescribed one no description."""
    inputs = BatchInfoView(DONE).streamIdToInputInfo()
    assert [inputs[stream_id].inputStreamId() for stream_id in inputs] == [0, 1]
    assert [given.numRecords() for given in inputs.values()] == [3, 0]
    assert inputs[0].metadata() == {"Name": "socket", "Description": "3 lines"}
    assert inputs.get(0).metadataDescription() == "3 lines"  # type: ignore[union-attr]
    assert inputs[1].metadataDescription() is None
    assert inputs.get(2) is None


def test_outputs_of_a_batch() -> None:
    """Before the end they have no times and no reason; then all known facts."""
    output = BatchInfoView(PENDING).outputOperationInfos()[0]
    assert (output.id(), output.name(), output.description()) == (0, *["pprint at a.py:1"] * 2)
    assert (output.startTime(), output.endTime(), output.duration()) == (-1, -1, -1)
    assert output.failureReason() is None
    output = seen(EVENTS["onOutputOperationStarted"]).outputOperationInfo()
    assert (output.startTime(), output.endTime(), output.duration()) == (1210, -1, -1)
    output = seen(EVENTS["onOutputOperationCompleted"]).outputOperationInfo()
    assert output == BatchInfoView(DONE).outputOperationInfos()[0]
    assert output.batchTime().milliseconds() == 1000
    assert (output.startTime(), output.endTime(), output.duration()) == (1210, 1900, 690)
    assert output.failureReason() == "ValueError: no"


def test_the_outcome_of_a_batch() -> None:
    """Only a batch that has run has one."""
    done, pending = BatchInfoView(DONE), BatchInfoView(STARTED)
    assert (done.outcome(), done.failureReason()) == ("failed", "batch at 1000 ms failed")
    assert (pending.outcome(), pending.failureReason()) == (None, None)


def test_a_receiver() -> None:
    """Without an error there is no text and no time."""
    info = seen(ReceiverStarted(RECEIVER)).receiverInfo()
    facts = (info.streamId(), info.name(), info.active(), info.location(), info.executorId())
    assert facts == (2, "lines", True, "host", "7")
    assert (info.lastErrorMessage(), info.lastError(), info.lastErrorTime()) == ("", "", -1)
    failed = dataclasses.replace(
        RECEIVER, last_error_message="gone", last_error="gone\n  at x", last_error_ms=5
    )
    info = seen(ReceiverError(failed)).receiverInfo()
    assert (info.lastErrorMessage(), info.lastError()) == ("gone", "gone\n  at x")
    assert info.lastErrorTime() == 5


def test_the_start() -> None:
    """The time of the clock."""
    assert seen(StreamingStarted(900)).time() == 900


def test_maps_as_in_java_and_as_in_python() -> None:
    """The method names of both exist, and the map is immutable."""
    items = InfoMap({1: "a", 2: "b"})
    assert (items.size(), items.isEmpty(), items.containsKey(3)) == (2, False, False)
    assert (items.keySet(), list(items.values())) == ({1, 2}, ["a", "b"])
    assert (items[1], items.get(3), len(items), list(items)) == ("a", None, 2, [1, 2])
    assert items == {1: "a", 2: "b"}
    assert repr(items) == "{1: 'a', 2: 'b'}"
    with pytest.raises(TypeError):
        items[1] = "c"  # type: ignore[index]


@pytest.mark.parametrize("name", EVENTS)
def test_what_listeners_get_is_a_value(name: str) -> None:
    """It compares equal, is immutable, survives a pickle, and has a readable repr."""
    argument = seen(EVENTS[name])
    assert argument == seen(EVENTS[name])
    assert pickle.loads(pickle.dumps(argument)) == argument
    with pytest.raises(dataclasses.FrozenInstanceError):
        argument._event = None
    assert argument.toString() == repr(argument)


def test_the_text_of_a_value() -> None:
    """Facts by the names of the methods."""
    assert repr(OutputInfo(1000, OUTPUT)) == (
        "OutputInfo(batchTime=1000 ms, id=0, name='pprint at a.py:1', startTime=1210, "
        "endTime=1900, failureReason='ValueError: no')"
    )
    assert str(BatchInfoView(DONE).batchTime()) == "1000 ms"
    assert "outcome='failed'" in str(seen(EVENTS["onBatchCompleted"]))


def test_stats(caplog: pytest.LogCaptureFixture) -> None:
    """The spread of the delays of the last batches, up to the given number."""
    listener = StatsReportListener(numBatchInfos=2)
    with caplog.at_level(logging.INFO, "dstreams.listener"):
        for completed_ms in (9999, 1950, 2050):
            call(
                CALLBACKS,
                listener,
                BatchCompleted(dataclasses.replace(DONE, completed_ms=completed_ms)),
            )
    assert caplog.messages[-2].startswith("total delay of the last 2 batches: mean 995.0 ms, 0%: ")
    assert caplog.messages[-1] == (
        "processing time of the last 2 batches: mean 800.0 ms, 0%: 750 ms, 5%: 750 ms, "
        "10%: 750 ms, 25%: 750 ms, 50%: 750 ms, 75%: 750 ms, 90%: 750 ms, 95%: 750 ms, 100%: 850 ms"
    )


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_stats_of_no_batches(count: Any) -> None:
    """An invalid number of batches is refused."""
    with pytest.raises(ValueError, match=f"numBatchInfos is {count}; use a whole number of at lea"):
        StatsReportListener(count)


def test_states() -> None:
    """After the batch, stateful operations are reported with the names of a query's progress."""
    assert BatchInfoView(STARTED).stateOperators() == ()
    [state] = BatchInfoView(DONE).stateOperators()
    assert (state.operatorName(), state.numShufflePartitions()) == ("mapWithState at a.py:1", 2)
    assert (state.numRowsTotal(), state.numRowsUpdated(), state.numRowsRemoved()) == (9, 3, 1)
    times = (state.allUpdatesTimeMs(), state.allRemovalsTimeMs(), state.commitTimeMs())
    assert times == (30, 10, 5)
    assert (state.numRowsDroppedByWatermark(), state.memoryUsedBytes()) == (4, 4096)
    assert state.numStateStoreInstances() == 2
    assert state.customMetrics()["numOutputRows"] == 7
    assert "numRowsTotal=9" in repr(state)
