"""getOrCreate, getActive and getActiveOrCreate, by what the checkpoint directory holds."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import (
    InvalidStreamError,
    RestartError,
    StreamingContext,
    StreamingContextState,
    StreamLifecycleError,
)
from tests.dstreams.conftest import MakeContext


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


class SetUp:
    """A setup function that defines a stateful stream and counts its calls."""

    def __init__(self, make_ssc: MakeContext) -> None:
        self._make_ssc = make_ssc
        self.calls = 0

    def __call__(self) -> StreamingContext:
        self.calls += 1
        ssc = self._make_ssc()
        ssc.queueStream([[("a", 1)], [("a", 1)]]).updateStateByKey(add).checkpoint(1).pprint()
        return ssc


@pytest.fixture
def setup(make_ssc: MakeContext) -> SetUp:
    return SetUp(make_ssc)


def nothing(directory: Path) -> None:
    pass


def empty(directory: Path) -> None:
    directory.mkdir()


def files_of_others(directory: Path) -> None:
    """Contents that are neither ours nor a checkpoint of Spark: a directory may have other uses."""
    (directory / "6b1f0c5e-uuid" / "rdd-7").mkdir(parents=True)
    (directory / "6b1f0c5e-uuid" / "rdd-7" / "part-00000").touch()
    (directory / "checkpoint-notes.txt").touch()
    (directory / "streams.txt").touch()


def run_without_files(directory: Path) -> None:
    """A run that ended before any state was due left its directory, and nothing to resume."""
    (directory / "stream-1000-0123abcd").mkdir(parents=True)


@pytest.mark.deep
@pytest.mark.parametrize("before", [nothing, empty, files_of_others, run_without_files])
@pytest.mark.parametrize("create_on_error", [False, True])
def test_where_nothing_was_left_the_setup_is_called(
    setup: SetUp,
    tmp_path: Path,
    before: Callable[[Path], None],
    create_on_error: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, without a message, and the context uses the directory."""
    directory = tmp_path / "here"
    before(directory)
    with caplog.at_level(logging.WARNING, "dstreams"):
        ssc = StreamingContext.getOrCreate(str(directory), setup, createOnError=create_on_error)
    assert caplog.messages == []
    assert setup.calls == 1
    assert ssc.getState() is StreamingContextState.INITIALIZED
    ssc.step()
    assert list(directory.glob("stream-*/commits/*.commit")) != []


def test_a_directory_that_the_setup_chose_is_replaced(setup: SetUp, tmp_path: Path) -> None:
    """As in pyspark.streaming, the given path is used."""

    def elsewhere() -> StreamingContext:
        ssc = setup()
        ssc.checkpoint(str(tmp_path / "elsewhere"))
        return ssc

    ssc = StreamingContext.getOrCreate(str(tmp_path / "here"), elsewhere)
    ssc.step()
    assert list((tmp_path / "here").glob("stream-*/commits/*.commit")) != []
    assert list((tmp_path / "elsewhere").glob("stream-*")) == []


def test_a_directory_that_the_setup_has_set_is_not_set_again(
    setup: SetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs call checkpoint() in the setup function; a second call has no effect."""
    here = str(tmp_path / "here")
    called: list[str] = []
    checkpoint = StreamingContext.checkpoint

    def note(self: StreamingContext, directory: str) -> None:
        called.append(directory)
        checkpoint(self, directory)

    def with_checkpoint() -> StreamingContext:
        ssc = setup()
        ssc.checkpoint(here)
        return ssc

    monkeypatch.setattr(StreamingContext, "checkpoint", note)
    StreamingContext.getOrCreate(here, with_checkpoint)
    assert called == [here]


@pytest.fixture
def left_behind(setup: SetUp, tmp_path: Path) -> Path:
    """A directory in which a run has committed state at 1000 and 2000 ms."""
    ssc = StreamingContext.getOrCreate(str(tmp_path / "here"), setup)
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    setup.calls = 0
    return tmp_path / "here"


@pytest.mark.parametrize("call", ["getOrCreate", "getActiveOrCreate"])
def test_state_of_an_earlier_run_is_never_passed_over(
    setup: SetUp, left_behind: Path, call: str
) -> None:
    """If the checkpoint cannot be resumed, the error says why, and nothing has been set up."""
    with pytest.raises(RestartError) as raised:
        getattr(StreamingContext, call)(str(left_behind), setup)
    assert re.fullmatch(
        r"queueStream at test_life_cycle.py:\d+ cannot be resumed: the items of a queue "
        r"are lost with their driver; pass lists of records and replayable=True",
        str(raised.value),
    )
    assert setup.calls == 0


def test_beginning_anew_on_request(
    setup: SetUp, left_behind: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With createOnError the setup is called, the log names the remains, and nothing changes."""
    before = {path: path.read_bytes() for path in left_behind.rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING, "dstreams"):
        ssc = StreamingContext.getOrCreate(str(left_behind), setup, createOnError=True)
    (message,) = caplog.messages
    assert message.startswith("starting from scratch; the existing checkpoint is left in place: ")
    assert setup.calls == 1
    ssc.step()
    assert {path: path.read_bytes() for path in before} == before
    ssc.stop(stopSparkContext=False)
    with pytest.raises(RestartError, match="cannot be resumed"):
        StreamingContext.getOrCreate(str(left_behind), setup)


def test_files_without_committed_state(setup: SetUp, tmp_path: Path) -> None:
    """Files of a run that failed halfway are reported too."""
    run = tmp_path / "stream-1000-0123abcd" / "log"
    run.mkdir(parents=True)
    (run / "1").touch()
    with pytest.raises(RestartError, match="stream-1000-0123abcd, without committed state"):
        StreamingContext.getOrCreate(str(tmp_path), setup)


@pytest.mark.parametrize("name", ["checkpoint-1700000000000", "checkpoint-1700000000000.bk"])
def test_a_checkpoint_of_spark(setup: SetUp, tmp_path: Path, name: str) -> None:
    """A checkpoint that pyspark.streaming left there is reported too."""
    (tmp_path / name).touch()
    with pytest.raises(RestartError, match=f"of a stream of pyspark.streaming, with {name}:"):
        StreamingContext.getOrCreate(str(tmp_path), setup)
    assert setup.calls == 0


@pytest.mark.parametrize("wrong", ["", None, 1])
def test_the_path_must_be_one(setup: SetUp, wrong: Any) -> None:
    """Anything else is refused before anything is set up."""
    with pytest.raises(InvalidStreamError, match="checkpointPath must be a path or URL, got "):
        StreamingContext.getOrCreate(wrong, setup)
    assert setup.calls == 0


@pytest.mark.parametrize("make", [lambda path: str(path / "file" / "in"), lambda _: "hdfs://a/b"])
def test_the_path_must_be_usable(setup: SetUp, tmp_path: Path, make: Callable[[Path], str]) -> None:
    """A directory that cannot hold state is refused with the reason, not taken for empty."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidStreamError, match=r"the checkpoint directory .* cannot be used: "):
        StreamingContext.getOrCreate(make(tmp_path), setup)
    assert setup.calls == 0


CALLS: dict[str, Callable[[str | None, Any], StreamingContext]] = {
    "getOrCreate": StreamingContext.getOrCreate,
    "getActiveOrCreate": StreamingContext.getActiveOrCreate,
}


@pytest.mark.parametrize("call", CALLS)
def test_what_the_setup_returns_is_checked(tmp_path: Path, call: str) -> None:
    """The error names a setup function that returned nothing."""

    def forgetful() -> None:
        pass

    with pytest.raises(InvalidStreamError) as raised:
        CALLS[call](str(tmp_path), forgetful)
    assert re.fullmatch(
        r"setupFunc must return its StreamingContext, but .*forgetful:\d+ returned "
        r"NoneType; end it with: return ssc",
        str(raised.value),
    )


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", [None, 1, "setup", lambda ssc: ssc])
def test_the_setup_must_be_callable(tmp_path: Path, call: str, wrong: Any) -> None:
    """A setup function that cannot be called without arguments is refused, also when active."""
    with pytest.raises(InvalidStreamError, match=rf"{call} .*f\(\) -> StreamingContext"):
        CALLS[call](str(tmp_path), wrong)


def test_streams_may_be_defined_outside_of_the_setup(make_ssc: MakeContext, tmp_path: Path) -> None:
    """Streams that Spark refuses after a restart work: the setup function always runs."""
    seen: list[int] = []
    ssc = StreamingContext.getOrCreate(str(tmp_path), make_ssc)
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    ssc.step()
    assert seen == [1]


def test_a_setup_that_started_its_context(setup: SetUp, tmp_path: Path) -> None:
    """It is too late to set a directory, which is an error as always after the start."""

    def too_early() -> StreamingContext:
        ssc = setup()
        ssc.checkpoint(str(tmp_path / "elsewhere"))
        ssc.step()
        return ssc

    with pytest.raises(StreamLifecycleError, match="the checkpoint directory cannot be set after"):
        StreamingContext.getOrCreate(str(tmp_path / "here"), too_early)


def test_the_spark_context_is_used_again(sc: SparkContext, setup: SetUp, tmp_path: Path) -> None:
    """A setup function with an existing SparkContext keeps it."""
    ssc = StreamingContext.getOrCreate(str(tmp_path), setup)
    assert ssc.sparkContext is sc
    assert StreamingContext.getActive() is None


def test_the_active_context_comes_first(setup: SetUp, tmp_path: Path) -> None:
    """getActiveOrCreate returns the active context, or a new one after it has stopped."""
    here = str(tmp_path / "here")
    first = StreamingContext.getActiveOrCreate(here, setup)
    first.step()
    assert StreamingContext.getActive() is first
    assert StreamingContext.getActiveOrCreate(here, setup) is first
    assert StreamingContext.getActiveOrCreate(None, setup) is first
    assert setup.calls == 1
    first.stop(stopSparkContext=False)
    assert StreamingContext.getActive() is None
    second = StreamingContext.getActiveOrCreate(str(tmp_path / "there"), setup)
    assert second is not first


def test_no_directory(setup: SetUp) -> None:
    """With None getActiveOrCreate calls the setup function and sets no directory."""
    ssc = StreamingContext.getActiveOrCreate(None, setup)
    assert setup.calls == 1
    assert ssc._checkpoint_directory is None


def in_two_threads(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """Call two functions at the same time; return what they returned or raised."""
    ready, found = threading.Barrier(2), []

    def call(function: Callable[[], Any]) -> None:
        assert ready.wait(300) is not None
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=call, args=[each]) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(found) == 2
    return found


@pytest.mark.parametrize("begin", ["start", "step"])
def test_two_threads_on_one_checkpoint(make_ssc: MakeContext, tmp_path: Path, begin: str) -> None:
    """The later one is refused and has changed nothing: there is one claim."""
    contexts = [make_ssc(), make_ssc()]
    for ssc in contexts:
        ssc.checkpoint(str(tmp_path))
        ssc.queueStream([[1]], replayable=True).foreachRDD(_count)
    found = in_two_threads(*(getattr(ssc, begin) for ssc in contexts))
    (refused,) = (each for each in found if isinstance(each, Exception))
    assert isinstance(refused, StreamLifecycleError)
    assert "only one StreamingContext may be active" in str(refused)
    assert "StreamingContext.getActive().stop(stopSparkContext=False)" in str(refused)
    assert len(list(tmp_path.glob("stream-*/epochs/*.claim"))) == 1


def _count(rdd: RDD[int]) -> None:
    rdd.count()


def test_two_threads_that_start_one_context(make_ssc: MakeContext) -> None:
    """It is started once; a second start is a warning."""
    ssc = make_ssc()
    ssc.queueStream([[1]]).foreachRDD(_count)
    assert in_two_threads(ssc.start, ssc.start) == [None, None]
    assert ssc.getState() is StreamingContextState.ACTIVE


def test_two_threads_that_step_one_context(make_ssc: MakeContext) -> None:
    """Batches run one after another: a step is refused while another one runs."""
    ssc, entered, leave = make_ssc(), threading.Event(), threading.Event()

    def wait(rdd: RDD[int]) -> None:
        entered.set()
        assert leave.wait(300)

    def step_again() -> None:
        assert entered.wait(300)
        try:
            with pytest.raises(StreamLifecycleError, match=r"a step is running in thread \S"):
                ssc.step()
        finally:
            leave.set()

    ssc.queueStream([[1], [2]]).foreachRDD(wait)
    infos, _ = sorted(in_two_threads(ssc.step, step_again), key=lambda each: each is None)
    assert [info.batch_id for info in infos] == [0]
    assert [info.batch_id for info in ssc.step()] == [1]
