"""Descriptions of the jobs of a batch on Spark's page, and the jobs of each output."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import RDD, SparkContext

from dstreams import BatchFailedError, State, StateSpec, StreamingContext
from dstreams.spark.job_labels import (
    BATCH_TIME,
    DESCRIPTION,
    OUTPUT_ID,
    jobs_since,
    label_jobs,
    labelled_jobs,
    next_job_id_if_known,
)
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

HERE = Path(__file__).name


def described(sc: SparkContext, job_ids: tuple[int, ...]) -> list[str]:
    """Return the descriptions of jobs on Spark's page."""
    context = sc._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    return [context.statusStore().job(job).description().get() for job in job_ids]


def total(key: str, value: int | None, state: State[int]) -> int:
    count = (state.getOption or 0) + (value or 0)
    state.update(count)
    return count


def test_jobs_say_batch_output_and_line(ssc: StreamingContext, sc: SparkContext) -> None:
    """Each output is described by its number, the time of the batch and the line of the user."""
    numbers = ssc.queueStream([[1], [2]])
    numbers.foreachRDD(lambda rdd: rdd.collect())
    numbers.map(lambda n: n).foreachRDD(lambda rdd: (rdd.count(), rdd.count()))
    first, second = ssc.step(2)
    one, two = first.outputs
    assert (len(one.job_ids), len(two.job_ids)) == (1, 2)
    assert [*one.job_ids, *two.job_ids] == list(range(one.job_ids[0], one.job_ids[0] + 3))
    (said,) = described(sc, one.job_ids)
    told = r"Streaming job from \[output operation 0, batch time \d\d:\d\d:01\] foreachRDD at "
    assert re.fullmatch(rf"{told}{HERE}:\d+", said)
    later = described(sc, second.outputs[1].job_ids)
    assert all("[output operation 1, batch time " in text and ":02] " in text for text in later)


def test_short_batches_are_told_in_milliseconds(
    make_ssc: Callable[..., StreamingContext], sc: SparkContext
) -> None:
    """Batch times below a second have milliseconds."""
    ssc = make_ssc(0.5)
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: rdd.collect())
    (info,) = ssc.step()
    assert re.search(r"batch time \d\d:\d\d:00\.500\]", described(sc, info.outputs[0].job_ids)[0])


def test_properties_are_those_of_sparks_own_streaming(
    ssc: StreamingContext, sc: SparkContext
) -> None:
    """Listeners of Spark find batch and output by the properties of its own streaming."""
    seen = []

    def look(rdd: RDD[int]) -> None:
        seen.append((sc.getLocalProperty(BATCH_TIME), sc.getLocalProperty(OUTPUT_ID)))

    numbers = ssc.queueStream([[1], [2]])
    numbers.foreachRDD(look)
    numbers.foreachRDD(look)
    ssc.step(2)
    assert seen == [("1000", "0"), ("1000", "1"), ("2000", "0"), ("2000", "1")]


def test_a_step_leaves_the_thread_as_it_was(ssc: StreamingContext, sc: SparkContext) -> None:
    """Also if it fails: the program's own job description is restored."""
    ssc.queueStream([[1], [2]]).foreachRDD(lambda rdd: rdd.map(lambda n: 1 // (n - 2)).collect())
    sc.setJobDescription("mine")
    try:
        ssc.step()
        with pytest.raises(BatchFailedError):
            ssc.step()
        assert sc.getLocalProperty(DESCRIPTION) == "mine"
        assert sc.getLocalProperty(BATCH_TIME) is None
        assert sc.getLocalProperty(OUTPUT_ID) is None
    finally:
        sc.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]


def test_what_the_user_says_wins(ssc: StreamingContext, sc: SparkContext) -> None:
    """A user's description applies to the end of the function, and not to other outputs."""

    def own(rdd: RDD[int]) -> None:
        sc.setJobDescription("to the warehouse")
        rdd.count()

    numbers = ssc.queueStream([[1]])
    numbers.foreachRDD(own)
    numbers.foreachRDD(lambda rdd: rdd.count())
    (info,) = ssc.step()
    mine, other = (described(sc, output.job_ids)[0] for output in info.outputs)
    assert mine == "to the warehouse"
    assert other.startswith("Streaming job from [output operation 1,")


def test_state_is_told_by_its_operator(
    ssc: StreamingContext, sc: SparkContext, tmp_path: Path
) -> None:
    """The job that makes a state belongs to no output."""
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream([[("a", 1)]])
    pairs.mapWithState(StateSpec.function(total)).foreachRDD(lambda rdd: rdd.collect())
    before = next_job_id_if_known(sc)
    (info,) = ssc.step()
    (output,) = info.outputs[0].job_ids
    assert before is not None
    said = described(sc, tuple(range(before, output)))
    assert any(
        re.fullmatch(
            rf"Streaming job from \[state, batch time .*\] mapWithState at {HERE}:\d+", text
        )
        for text in said
    )


def test_a_failed_output_has_its_jobs(ssc: StreamingContext, sc: SparkContext) -> None:
    """They are needed for finding the error."""
    ssc.queueStream([[0]]).foreachRDD(lambda rdd: rdd.map(lambda n: 1 // n).collect())
    with pytest.raises(BatchFailedError) as raised:
        ssc.step()
    (output,) = raised.value.batch_infos[0].outputs
    assert len(output.job_ids) == 1


def test_a_started_stream_labels_its_jobs(
    ssc: StreamingContext, sc: SparkContext, clock: ManualClock
) -> None:
    """The description that a scheduler thread inherits is replaced by that of the batch."""
    seen: list[str | None] = []
    ssc.queueStream([[1]]).foreachRDD(lambda rdd: seen.append(sc.getLocalProperty(DESCRIPTION)))
    sc.setJobDescription("the program")
    try:
        ssc.start()
        clock.advance(1000)
        wait_for(lambda: seen)
    finally:
        sc.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]
        ssc.stop(stopSparkContext=False)
    assert seen[0] is not None
    assert seen[0].startswith("Streaming job from [output operation 0,")


def test_jobs_beside_other_streams_are_told_by_their_group(sc: SparkContext) -> None:
    """Jobs of other threads of the process are not counted for an output."""
    asked, ran, end = threading.Event(), threading.Event(), threading.Event()

    def beside() -> None:
        with labelled_jobs(sc):
            asked.wait(60)
            sc.parallelize([1], 1).count()
            ran.set()
            end.wait(60)

    other = threading.Thread(target=beside)
    other.start()
    sc.setJobGroup("mine", "of a test")
    try:
        with labelled_jobs(sc):
            first = next_job_id_if_known(sc)
            sc.parallelize([1], 1).count()
            asked.set()
            assert ran.wait(60)
            sc._jsc.sc().listenerBus().waitUntilEmpty()
            assert first is not None
            assert next_job_id_if_known(sc) == first + 2
            assert jobs_since(sc, first) == (first,)
    finally:
        end.set()
        other.join()
        sc._jsc.clearJobGroup()


def test_labels_outside_of_batches_are_none(sc: SparkContext) -> None:
    """A program that computes outside of batches labels its jobs itself."""
    label_jobs("state: nothing")
    assert sc.getLocalProperty(DESCRIPTION) is None


def test_jobs_of_a_stopped_context_are_unknown(sc: SparkContext) -> None:
    """Labels never fail a batch; running a job reports the error."""

    class Stopped:
        _jsc = None
        _gateway = sc._gateway

        def setLocalProperty(self, key: str, value: str) -> None:
            raise AttributeError(key)

        def getLocalProperty(self, key: str) -> str:
            raise AttributeError(key)

    stopped: SparkContext = Stopped()  # type: ignore[assignment]
    assert next_job_id_if_known(stopped) is None
    with labelled_jobs(stopped):
        label_jobs("state: nothing")
    assert jobs_since(stopped, 0) == ()
