"""What of a checkpoint of Spark a program takes over, as far as no state is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import Files, open_files, open_stream
from dstreams import RestartError, Settings, StreamingContext
from dstreams.engine.recovery.adoption import Adoption, plan_adoption
from dstreams.engine.recovery.recover import recover
from dstreams.engine.recovery.spark_checkpoint import SparkCheckpoint, SparkInput, SparkState
from dstreams.spark import jvm
from dstreams.testing import ManualClock
from tests.support.faults import FaultyFiles, SimulatedCrash

Define = Callable[[StreamingContext], Any]


def state(*times: int, **facts: Any) -> SparkState:
    """Return a state with a directory for each batch time."""
    return SparkState("updateStateByKey", 1000, None, dict.fromkeys(times, "uuid/rdd-1"), **facts)


@pytest.fixture
def adopt(sc: SparkContext, tmp_path: Path) -> Callable[..., Adoption]:
    """Plans the adoption of a stream of nine batches, the last of which is pending."""
    (tmp_path / "uuid" / "rdd-1").mkdir(parents=True)
    (tmp_path / "uuid" / "rdd-1" / "part-00000").touch()
    files = open_files(tmp_path)
    found = SparkCheckpoint(files, files.url, "checkpoint-9000", 1000, 0, 9000, (9000,), (), ())

    settings = Settings().replace(kafka_fail_on_data_loss=False)  # asks no broker

    def plan(define: Define, removed: tuple[str, ...] = (), **facts: Any) -> Adoption:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        define(ssc).foreachRDD(lambda rdd: None)
        return plan_adoption(replace(found, **facts), ssc._graph, sc, settings, removed)

    return plan


def totals_of(name: str, *arguments: Any, **options: Any) -> Define:
    """Return a program with one state, of an input that a method creates."""

    def define(ssc: StreamingContext) -> Any:
        lines = getattr(ssc, name)(*arguments, **options)
        return lines.map(lambda line: (line, 1)).updateStateByKey(lambda new, old: (old or 0) + 1)

    return define


SOCKET = totals_of("socketTextStream", "localhost", 9)


def test_records_of_a_socket(adopt: Callable[..., Adoption]) -> None:
    """The state is taken, and a note says that the records are not, and why."""
    found = adopt(SOCKET, states=(state(6000),), inputs=(SparkInput("socketTextStream"),))
    assert found.report.refusals == ()
    assert found.report.last_batch_ms == 8000
    assert found.report.in_flight_ms == (9000,)
    [note] = found.report.notes
    assert note.startswith("the records of socketTextStream-0 cannot be taken: Spark does not keep")


def test_a_receiver_that_the_program_lacks(adopt: Callable[..., Adoption]) -> None:
    """An input without a counterpart is refused, unless it may go."""
    inputs = (SparkInput("socketTextStream"), SparkInput("FlumeInputDStream"))
    found = adopt(SOCKET, states=(state(6000),), inputs=inputs)
    [refusal] = found.report.refusals
    assert refusal.startswith("nothing has the uid 'FlumeInputDStream-0'")
    removed = ("FlumeInputDStream-0",)
    assert not adopt(SOCKET, removed, states=(state(6000),), inputs=inputs).report.refusals


def test_state_of_java(adopt: Callable[..., Adoption]) -> None:
    """The state of a Scala program is refused."""
    inputs = (SparkInput("socketTextStream"),)
    found = adopt(SOCKET, states=(state(6000, is_python=False),), inputs=inputs)
    assert "is objects of Java" in found.report.refusals[0]


def test_a_batch_that_stays_pending(adopt: Callable[..., Adoption], tmp_path: Path) -> None:
    """Spark goes on after a failed batch; if only later state is left, that one counts."""
    (tmp_path / "in").mkdir()
    read: dict[int, tuple[str, ...]] = dict.fromkeys(range(5000, 10000, 1000), ())
    directory = f"file://{tmp_path}/in"
    inputs = (SparkInput("textFileStream", directory, read),)
    program = totals_of("textFileStream", directory)
    found = adopt(program, states=(state(6000),), inputs=inputs, pending_ms=(2000, 9000))
    assert found.report.last_batch_ms == 6000
    assert "1 batches up to 2000 ms were not complete in Spark" in found.report.notes[0]
    with pytest.raises(RestartError, match=r"does not remember the input of all batches"):
        adopt(program, states=(state(3000),), inputs=inputs, pending_ms=(4000, 9000))


def test_items_of_a_queue(adopt: Callable[..., Adoption]) -> None:
    """A queue must have its items again; each batch then continues with the next one."""
    inputs, states = (SparkInput("queueStream"),), (state(6000),)
    found = adopt(totals_of("queueStream", [["a"]]), states=states, inputs=inputs)
    assert "the items of a queue are lost with their driver" in found.report.refusals[0]
    again = totals_of("queueStream", [["a"]] * 20, replayable=True)
    found = adopt(again, states=states, inputs=inputs)
    assert found.report.refusals == ()
    [planned] = found._inputs_at(9000, {}).values()
    assert planned == {"start": 8, "end": 9}


def test_offsets_of_kafka(adopt: Callable[..., Adoption]) -> None:
    """Batches read Spark's ranges; one without recorded offsets is refused. Both APIs match."""
    from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies  # noqa: PLC0415

    parameters = {"bootstrap.servers": "localhost:9"}

    def totals(stream: Any) -> Any:
        return stream.map(lambda line: (line, 1)).updateStateByKey(lambda new, old: 1)

    def new_api(ssc: StreamingContext) -> Any:
        strategy = ConsumerStrategies.Subscribe(["t"], parameters)
        place = LocationStrategies.PreferConsistent
        return totals(KafkaUtils.createDirectStream(ssc, place, strategy))

    def old_api(ssc: StreamingContext) -> Any:
        return totals(KafkaUtils.createDirectStream(ssc, ["t"], parameters))

    ranges = {ms: (("t", 0, ms // 1000, ms // 1000 + 2), ("t", 1, 0, 0)) for ms in (8000, 9000)}
    states = (state(8000),)
    for define in (new_api, old_api):
        inputs = (SparkInput("createDirectStream", ranges=ranges),)
        found = adopt(define, states=states, inputs=inputs)
        assert found.report.refusals == ()
        assert "t-0: 11, t-1: 0; the batches after 8000 ms" in found.report.adopted[1]
        assert found.report.adopted[1].endswith("read 2 offsets again")
        [planned] = found._inputs_at(9000, {}).values()
        assert planned == {
            "start": {"offsets": {"t": {"0": 9, "1": 0}}, "topicIds": {}},
            "end": {"offsets": {"t": {"0": 11, "1": 0}}, "topicIds": {}},
            "records": 2,
        }
    inputs = (SparkInput("createDirectStream", ranges={8000: ranges[8000]}),)
    found = adopt(new_api, states=states, inputs=inputs)
    assert "has not recorded the offsets of its newest batch" in found.report.refusals[0]


def test_a_store_that_spark_cannot_read(sc: SparkContext, tmp_path: Path) -> None:
    """The error says that Spark needs a connector."""
    (tmp_path / "uuid" / "rdd-1").mkdir(parents=True)
    content = b"LZ4Block" if jvm.reads_compressed_checkpoints(sc) else b"\xac\xed"
    (tmp_path / "uuid" / "rdd-1" / "part-00000").write_bytes(content)
    files = open_files(tmp_path)
    found = SparkCheckpoint(files, "nowhere://bucket", "", 1000, 0, 9000, (), (), ())
    with pytest.raises(RestartError, match=r"uuid/rdd-1 cannot be read by Spark: .*nowhere.*; "):
        found.pairs(sc, "uuid/rdd-1")


def test_uids_before_places(adopt: Callable[..., Adoption]) -> None:
    """A chosen uid may be the name of a state of Spark; the others match by place."""

    def define(ssc: StreamingContext) -> Any:
        pairs = ssc.socketTextStream("localhost", 9).map(lambda line: (line, 1))
        first = pairs.updateStateByKey(lambda new, old: 1)
        second = pairs.updateStateByKey(lambda new, old: 1, uid="updateStateByKey-0")
        return first.union(second)

    states = (state(6000), state(5000))
    with pytest.raises(ValueError, match="the same uid"):
        adopt(define, states=states)
    named = ("updateStateByKey-1", "mine")

    def swapped(ssc: StreamingContext) -> Any:
        pairs = ssc.socketTextStream("localhost", 9).map(lambda line: (line, 1))
        one, other = (pairs.updateStateByKey(lambda new, old: 1, uid=uid) for uid in named)
        return one.union(other)

    found = adopt(swapped, states=states, inputs=(SparkInput("socketTextStream"),))
    by_uid = {found.plan.nodes[node].uid: one for node, one in found.states.items()}
    assert {uid: [*one.directories] for uid, one in by_uid.items()} == {
        "updateStateByKey-1": [5000],
        "mine": [6000],
    }


class FaultyInTheDriver(FaultyFiles):
    """Files that fail in the driver only: tasks get working ones."""

    def __reduce__(self) -> tuple[Callable[[Files], Files], tuple[Files]]:
        return _itself, (self._inner,)


def _itself(files: Files) -> Files:
    return files


@pytest.fixture
def attempt(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[FaultyFiles]]:
    """Adopts a state of two pairs at 6000 ms; storage fails at one operation. Returns the files."""
    state_rdd = sc.parallelize([("a", 3), ("b", 4)], 1)
    monkeypatch.setattr(sc, "getCheckpointDir", lambda: None)
    assert sc._jsc is not None
    sc._jsc.setCheckpointDir(f"file://{tmp_path}/spark")
    state_rdd.checkpoint()
    state_rdd.count()
    [rdd] = (tmp_path / "spark").glob("*/rdd-*")
    files = open_files(tmp_path / "spark" / rdd.parent.name)
    states = (replace(state(6000), directories={6000: rdd.name}),)
    queue = (SparkInput("queueStream"),)
    found = SparkCheckpoint(
        files, files.url, "checkpoint-9000", 1000, 0, 9000, (9000,), states, queue
    )
    module = "dstreams.engine.recovery.adoption"
    monkeypatch.setattr(f"{module}.read_spark_checkpoint", lambda url, spark: found)

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(9000))
        program = totals_of("queueStream", [["a"]] * 20, replayable=True)
        program(ssc).foreachRDD(lambda rdd: None)
        return ssc

    def adopt(directory: Path, at: int) -> list[FaultyFiles]:
        opened: list[FaultyFiles] = []

        def faulty(url: str, stream_id: str) -> FaultyFiles:
            before = sum(len(one.calls) for one in opened)
            opened.append(FaultyInTheDriver(open_stream(url, stream_id), at - before, "during"))
            return opened[-1]

        monkeypatch.setattr(f"{module}.open_stream", faulty)
        StreamingContext.restore(str(directory), setup, adopt="spark")
        return opened

    return adopt


def contents(directory: Path) -> Any:
    """Return what a restart finds in a checkpoint."""
    found = recover(str(directory))
    assert found is not None
    records = found.records
    written = {uid: one.time_ms for uid, one in records.snapshots.items()}
    return found.zero_ms, records.last_ms, written, [one.batch_time_ms for one in records.in_flight]


@pytest.mark.deep
def test_a_crash_in_an_adoption(attempt: Callable[..., list[FaultyFiles]], tmp_path: Path) -> None:
    """At any step, also while it replaces an earlier one: the next start with adopt= completes."""
    calls = [call for files in attempt(tmp_path / "whole", 0) for call in files.calls]
    expected = contents(tmp_path / "whole")
    assert expected[1:] == (8000, {"updateStateByKey-0": 6000}, [9000])
    graph = next(n for n, call in enumerate(calls, 1) if call.startswith("create graph/"))
    at, is_done = 0, False
    while not is_done:
        at += 1
        new = tmp_path / str(at)
        with pytest.raises(SimulatedCrash):
            attempt(new, graph)
        try:
            attempt(new, at)
            is_done = True
        except SimulatedCrash:
            pass
        if not list(new.glob("*/graph/*")):
            with pytest.raises(RestartError, match=r"adoption of file:.* was interrupted; start"):
                recover(str(new))
            attempt(new, 0)
        assert contents(new) == expected
    assert at > 2 * graph - 5, "it was enumerated"
