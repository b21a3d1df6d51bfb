"""mapWithState and flatMapGroupsWithState on real RDDs: outputs and states, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import CommitLog, open_files
from dstreams import (
    BatchFailedError,
    DStream,
    GroupState,
    InvalidStreamError,
    Settings,
    State,
    StateSpec,
    StreamingContext,
    StreamLifecycleError,
)
from dstreams.testing import BatchDriver, ManualClock, run_batches
from tests.support.jobs import count_jobs

Pairs = list[tuple[str, int]]


def letters(text: str | None) -> Pairs | None:
    return None if text is None else [(letter, 1) for letter in text]


def count(key: str, value: int, state: State[int]) -> tuple[str, int]:
    state.update((state.getOption or 0) + 1)
    return key, state.get


def toggle(time: datetime, key: str, value: int, state: State[int]) -> str | None:
    if state.exists:
        state.remove()
        return key
    state.update(1)
    return None


def last_words(time: datetime, key: str, value: int | None, state: State[int]) -> Any:
    if state.isTimingOut:
        return (key, value, state.get, time.timestamp())
    state.update((state.getOption or 0) + 1)
    return None


def mapped(
    sc: SparkContext, batches: list[str | None], spec: StateSpec
) -> tuple[list[Any], list[dict[str, int]]]:
    """Return sorted outputs and snapshots."""
    with BatchDriver(sc) as driver:
        stream = driver.input([letters(batch) for batch in batches]).mapWithState(spec)
        outputs, snapshots = driver.output(stream), driver.output(stream.stateSnapshots())
        driver.run(len(batches))
    return [sorted(out or [], key=repr) for out in outputs], [dict(s or []) for s in snapshots]


@pytest.mark.deep
def test_states_count(sc: SparkContext) -> None:
    """Each record is one call; snapshots have every key in every batch."""
    outputs, snapshots = mapped(sc, ["", "a", "ab", None, "abc"], StateSpec.function(count))
    assert outputs == [
        [],
        [("a", 1)],
        [("a", 2), ("b", 1)],
        [],
        [("a", 3), ("b", 2), ("c", 1)],
    ]
    last = {"a": 2, "b": 1}
    assert snapshots == [{}, {"a": 1}, last, last, {"a": 3, "b": 2, "c": 1}]


def test_removal_and_initial_states(sc: SparkContext) -> None:
    """An initial state exists before the first record, and a record can remove it."""
    spec = StateSpec.function(toggle).initialState([("a", 5), ("z", 0)]).numPartitions(3)
    outputs, snapshots = mapped(sc, ["ab", "a", "b"], spec)
    assert outputs == [["a"], [], ["b"]]
    assert snapshots == [{"b": 1, "z": 0}, {"a": 1, "b": 1, "z": 0}, {"a": 1, "z": 0}]


def test_timeouts_are_exact(sc: SparkContext) -> None:
    """A key ends in the first batch after it was idle for too long, also without an RDD."""
    spec = StateSpec.function(last_words).timeout(2).initialState({"z": 9}.items())
    outputs, snapshots = mapped(sc, ["ab", "a", None, None, None, None], spec)
    assert outputs == [
        [],
        [],
        [],
        [("b", None, 1, 4.0), ("z", None, 9, 4.0)],
        [("a", None, 2, 5.0)],
        [],
    ]
    assert snapshots[3:] == [{"a": 2}, {}, {}]


def by_first_letter(key: str) -> int:
    return ord(key[0])


def test_partition_functions(sc: SparkContext) -> None:
    """A user's partition function places states and emitted rows."""
    spec = StateSpec.function(count).partitioner(by_first_letter)
    (parts,) = run_batches(sc, [letters("abc")], lambda pairs: pairs.mapWithState(spec).glom())
    assert sorted(map(sorted, parts or [])) == [[("a", 1), ("c", 1)], [("b", 1)]]


def sessions(key: str, values: Iterator[int], state: GroupState[int]) -> list[tuple[str, int]]:
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    state.update((state.getOption or 0) + len(list(values)))
    state.setTimeoutDuration("2 seconds")
    return [(key, state.get)]


def test_groups_time_out(sc: SparkContext) -> None:
    """A group is one call; a timer is due in the first batch after its time."""
    outputs = run_batches(
        sc,
        [letters(batch) for batch in ("aa", "b", None, "b", "", "", "")],
        lambda pairs: pairs.flatMapGroupsWithState(sessions, timeout="processingTime"),
    )
    assert [sorted(out or []) for out in outputs] == [
        [("a", 2)],
        [("b", 1)],
        [],
        [("a", -1), ("b", 2)],
        [],
        [],
        [("b", -1)],
    ]


def latest(key: str, values: Iterator[int], state: GroupState[int]) -> list[tuple[str, int]]:
    if state.hasTimedOut:
        state.remove()
        return [(key, -1)]
    newest = max([state.getOption or 0, *values])
    state.update(newest)
    state.setTimeoutTimestamp((newest + 5) * 1000)
    return [(key, newest)]


@pytest.mark.deep
def test_groups_in_event_time(sc: SparkContext) -> None:
    """Late values are dropped; a timer is due when the watermark is after it."""
    seconds = [[11, 13, 15], [4], [10], [25], [], []]
    outputs = run_batches(
        sc,
        [[("a", second) for second in batch] for batch in seconds],
        lambda pairs: pairs.flatMapGroupsWithState(
            latest, timeout="eventTime", eventTime=lambda second: second * 1000, watermark=10
        ),
    )
    assert outputs == [[("a", 15)], [], [("a", 15)], [("a", 25)], [], []]
    outputs = run_batches(
        sc,
        [[("a", 15)], [("b", 31)], [], [("b", 21)], []],
        lambda pairs: pairs.flatMapGroupsWithState(
            latest, timeout="eventTime", eventTime=lambda second: second * 1000, watermark=10
        ),
    )
    assert outputs == [[("a", 15)], [("b", 31)], [("a", -1)], [], []]


def test_groups_with_initial_states(sc: SparkContext) -> None:
    """The function is called for keys of the initial state in the first batch only."""

    def total(key: str, values: Iterator[int], state: GroupState[int]) -> tuple[str, int, int]:
        seen = list(values)
        state.update((state.getOption or 0) + len(seen))
        return key, len(seen), state.get

    outputs = run_batches(
        sc,
        [letters("ab"), letters("a")],
        lambda pairs: pairs.mapGroupsWithState(total, initialState=[("a", 5), ("z", 7)]),
    )
    assert sorted(outputs[0] or []) == [("a", 1, 6), ("b", 1, 1), ("z", 0, 7)]
    assert outputs[1] == [("a", 1, 7)]


def test_one_job_for_the_state_and_one_for_the_output(sc: SparkContext) -> None:
    """A version is made once, for any number of outputs that read its rows."""
    with BatchDriver(sc) as driver:
        stream = driver.input([letters("ab")] * 3).mapWithState(StateSpec.function(count))
        driver.output(stream)
        driver.output(stream.map(str))
        driver.run(2)
        assert count_jobs(sc, lambda: driver.run(1)) == 3


@pytest.mark.deep
def test_no_job_for_snapshots_of_which_none_is_due(sc: SparkContext) -> None:
    """The first is due in the tenth batch, the next when the changelogs are as large as it."""
    with BatchDriver(sc) as driver:
        batches = [[(str(number), 1) for number in range(500)], *[[("a", 1)]] * 19]
        driver.output(driver.input(batches).mapWithState(StateSpec.function(count)))
        jobs = [count_jobs(sc, lambda: driver.run(1)) for _ in batches]
    assert jobs == [2] * 9 + [3] + [2] * 10


def test_checksums_of_stored_state(sc: SparkContext, tmp_path: Path) -> None:
    """With the setting each changelog has the checksum of all records of its partition."""
    for checksums in (False, True):
        directory = tmp_path / str(checksums)
        ssc = StreamingContext(
            sc, 1, clock=ManualClock(), settings=Settings(state_checksums=checksums)
        )
        ssc.checkpoint(str(directory))
        ssc.queueStream([letters("ab")]).mapWithState(StateSpec.function(count)).pprint()
        ssc.step(2)
        assert ssc._engine is not None
        states = ssc._engine.rdds.states
        (((_, version),),) = (states.newest().values(),)
        ssc.stop(stopSparkContext=False)
        with closing(states.store._open(version.store_id, version.version_ids[0])) as base:
            assert (base.checksum is not None) is checksums


def test_a_failed_batch_does_not_take_the_state(sc: SparkContext) -> None:
    """Batches that failed are caught up when the function works again; nothing counts twice."""
    fails = [False]

    def outage(rdd: RDD[Any]) -> RDD[Any]:
        if fails[0]:
            raise ValueError("outage")
        return rdd

    with BatchDriver(sc) as driver:
        stream = driver.input([letters("a")] * 5).transform(outage)
        counts = driver.output(stream.mapWithState(StateSpec.function(count)))
        driver.run(1)
        fails[0] = True
        for _ in range(2):
            with pytest.raises(BatchFailedError, match="outage"):
                driver.run(1)
        fails[0] = False
        driver.run(2)
    assert counts == [[("a", 1)], None, None, [("a", 4)], [("a", 5)]]


def test_a_function_that_fails(sc: SparkContext) -> None:
    """The error names the function, its line and the key; later batches fail until it works."""

    def fails(key: str, value: int, state: State[int]) -> Any:
        return {}[key]

    with BatchDriver(sc) as driver:
        driver.output(driver.input([letters("a")]).mapWithState(StateSpec.function(fails)))
        with pytest.raises(BatchFailedError) as raised:
            driver.run(1)
    message = str(raised.value)
    assert "fails at test_stored.py:" in message or "test_stored" in message
    assert "failed for key 'a': KeyError: 'a'" in message


def test_the_record_names_what_counts(sc: SparkContext, tmp_path: Path) -> None:
    """Each batch has one commit record with the content of each partition."""
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        stream = driver.input([letters("ab"), letters("a")])
        driver.output(stream.mapWithState(StateSpec.function(count)))
        driver.run(2)
        (run,) = tmp_path.glob("stream-*")
        log = CommitLog(open_files(str(run)))
        records = [log.read(time_ms) for time_ms in log.times()]
    assert [record.batch_time_ms for record in records] == [1000, 2000]
    for version, record in enumerate(records, 1):
        (store,) = record.stores
        assert store.operator_uid == "mapWithState-0"
        assert [part.version_id.version for part in store.partitions] == [version, version]
        assert sum(part.count for part in store.partitions) == 2
        assert all((run / ref.name).is_file() for ref in store.files())


def test_a_look_inside(sc: SparkContext) -> None:
    """The newest state can be read between batches, with the timeouts of its keys."""
    with BatchDriver(sc) as driver:
        spec = StateSpec.function(last_words).timeout(5)
        stream = driver.input([letters("ab"), letters("a")]).mapWithState(spec)
        driver.output(stream)
        with pytest.raises(StreamLifecycleError, match=r"mapWithState at .* has no state yet"):
            stream.stateStore()
        driver.run(2)
        rows = stream.stateStore()
        assert sorted(rows.collect()) == [("a", 2, 7000), ("b", 1, 6000)]
        driver.run(1)
        assert sorted(rows.collect()) == [("a", 2, 7000), ("b", 1, 6000)]


def test_a_look_back(sc: SparkContext) -> None:
    """The state after an earlier batch can be read while it is kept."""
    with BatchDriver(sc) as driver:
        stream = driver.input([letters("ab"), letters("a"), letters("ac")]).mapWithState(
            StateSpec.function(count)
        )
        driver.output(stream)
        driver.run(4)
        states = [
            dict(stream.stateStore(time).keyBy(itemgetter(0)).mapValues(itemgetter(1)).collect())
            for time in (1, 2, 2.5, datetime.fromtimestamp(3, tz=timezone.utc))
        ]
        with pytest.raises(
            InvalidStreamError,
            match="9000 ms is not kept; kept batches: from 1000 to 4000 ms",
        ):
            stream.stateStore(9)
        newest = sorted(stream.stateStore().collect())
    assert states == [
        {"a": 1, "b": 1},
        {"a": 2, "b": 1},
        {"a": 2, "b": 1},
        {"a": 3, "b": 1, "c": 1},
    ]
    assert newest == [("a", 3, None), ("b", 1, None), ("c", 1, None)]


@pytest.mark.deep
def test_a_look_while_batches_run(sc: SparkContext) -> None:
    """Each read shows one version, even if batches run in the meantime."""
    batches = 12
    with BatchDriver(sc) as driver:
        stream = driver.input([letters("abcdef")] * batches).mapWithState(StateSpec.function(count))
        counts = driver.output(stream)
        driver.run(1)
        running = Thread(target=driver.run, args=(batches - 1,))
        running.start()
        looks = [stream.stateStore().values().distinct().collect()]
        while running.is_alive():
            looks.append(stream.stateStore().values().distinct().collect())
        running.join()
    assert dict(counts[-1] or []) == dict.fromkeys("abcdef", batches)
    assert all(len(states) == 1 for states in looks), looks
    assert looks == sorted(looks)


@pytest.mark.deep
def test_old_files_are_deleted(sc: SparkContext, tmp_path: Path) -> None:
    """After snapshots, older changelogs and records are deleted; the state stays complete."""
    batches = 45
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        stream = driver.input([letters("abcdef")] * batches)
        counts = driver.output(stream.mapWithState(StateSpec.function(count)))
        driver.run(batches)
        (run,) = tmp_path.glob("stream-*")
        times = CommitLog(open_files(str(run))).times()
    assert dict(counts[-1] or []) == dict.fromkeys("abcdef", batches)
    assert len(list(run.rglob("*.snapshot"))) >= 2
    assert len(times) < batches
    assert len(list(run.rglob("*.changes"))) < 2 * batches


@pytest.mark.deep
def test_both_kinds_of_state(sc: SparkContext, tmp_path: Path) -> None:
    """One record holds the state of both; files that one of them needs are kept."""

    def total(values: list[int], state: int | None) -> int:
        return sum(values) + (state or 0)

    batches = 25
    with BatchDriver(sc, checkpoint=str(tmp_path)) as driver:
        stream = driver.input([letters("ab")] * batches)
        counts = driver.output(stream.mapWithState(StateSpec.function(count)))
        totals = driver.output(stream.updateStateByKey(total))
        driver.run(batches)
        (run,) = tmp_path.glob("stream-*")
        record = CommitLog(open_files(str(run))).read(20_000)
    assert dict(counts[-1] or []) == dict(totals[-1] or []) == {"a": batches, "b": batches}
    assert (list(record.snapshots), len(record.stores)) == (["updateStateByKey-0"], 1)
    named = [ref.name for ref in record.snapshots["updateStateByKey-0"].files]
    named += [ref.name for ref in record.stores[0].files()]
    assert all((run / name).is_file() for name in named)


class Seen:
    """A class that is not a data class."""

    def __init__(self, times: int) -> None:
        self.times = times


def keep_object(key: str, value: int, state: State[Seen]) -> int:
    state.update(Seen((state.getOption or Seen(0)).times + 1))
    return state.get.times


def test_objects_need_pickle(sc: SparkContext) -> None:
    """The error for a state that is not plain data names the setting that accepts it."""
    spec = StateSpec.function(keep_object)
    with BatchDriver(sc) as driver:
        driver.output(driver.input([letters("a")]).mapWithState(spec))
        with pytest.raises(BatchFailedError, match="Seen"):
            driver.run(1)


def defined(ssc: StreamingContext) -> DStream[tuple[str, int]]:
    return ssc.queueStream([[("a", 1)]])


BAD = {
    "no StateSpec": (lambda s: s.mapWithState(count), "needs a StateSpec, got function"),
    "wrong arity": (lambda s: s.flatMapGroupsWithState(len), "flatMapGroupsWithState at"),
    "output mode": (
        lambda s: s.flatMapGroupsWithState(sessions, "complete"),
        "should be append or update",
    ),
    "timeout": (
        lambda s: s.flatMapGroupsWithState(sessions, timeout="soon"),
        "timeout of flatMapGroupsWithState at .* must be one of none, .*, got 'soon'",
    ),
    "no event time": (
        lambda s: s.flatMapGroupsWithState(latest, timeout="eventTime"),
        "timeout='eventTime' of flatMapGroupsWithState at .* needs eventTime and watermark",
    ),
    "no watermark": (
        lambda s: s.mapGroupsWithState(latest, eventTime=int),
        "eventTime and watermark of mapGroupsWithState at .* need each other",
    ),
    "negative watermark": (
        lambda s: s.mapGroupsWithState(latest, eventTime=int, watermark=-1),
        "watermark must be a positive number of seconds",
    ),
    "partitions": (lambda s: s.mapGroupsWithState(sessions, numPartitions=0), "at least 1"),
    "initial": (
        lambda s: s.mapGroupsWithState(sessions, initialState=[("a", 1), ("a", 2)]),
        "has the key 'a' twice",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_definitions(sc: SparkContext, case: str) -> None:
    """Streams that cannot run are refused when they are defined."""
    define, message = BAD[case]
    with pytest.raises(InvalidStreamError, match=message):
        define(defined(StreamingContext(sc, 1, clock=ManualClock())))


def test_a_checkpoint_directory_is_needed(
    sc: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored state needs a checkpoint directory."""
    monkeypatch.setattr(SparkContext, "getCheckpointDir", lambda _: None)
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    defined(ssc).mapWithState(StateSpec.function(count)).pprint()
    with pytest.raises(InvalidStreamError, match=r"mapWithState .* checkpoint directory has not"):
        ssc.step()
