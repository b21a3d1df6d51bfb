"""The step from window to window: the task of a partition against dicts, and the RDDs around it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import RDD, SparkContext

from dstreams.spark.blocks import MAX_BYTES, MAX_ROWS, Block, BlockBuilder, Side, encode_block
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import END, Reduction, UserFunction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.window_step import WindowFunctions, WindowStep, slide_window
from tests.dstreams.spark.lineage import bytes_shuffled, shuffles_in
from tests.support.jobs import count_jobs

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLUS = Reduction(operator.add, "reduce function plus of reduceByKeyAndWindow at a.py:1")
MINUS = UserFunction(operator.sub, "inverse function minus of reduceByKeyAndWindow at a.py:1")
SUMS = WindowFunctions(PLUS, MINUS)


def keeping(func: Callable[[tuple[Any, Any]], Any]) -> WindowFunctions:
    return WindowFunctions(PLUS, MINUS, UserFunction(func, "filter f of window at a.py:1"))


def state_of(pairs: dict[Any, Any]) -> list[bytes]:
    """Return the previous result in blocks as the step itself makes them."""
    builder = BlockBuilder(Side.STATE)
    return [*builder.extend(pairs.keys(), pairs.values()), *builder.flush()]


def partial_of(pairs: dict[Any, Any]) -> list[bytes]:
    """Return the reduction of a batch."""
    if not pairs:
        return [END]
    return [encode_block(Side.BATCH, list(pairs), list(pairs.values())), END]


def slide(
    functions: WindowFunctions,
    state: list[bytes],
    left: list[dict[Any, Any]],
    entered: list[dict[Any, Any]],
) -> list[bytes]:
    """Run one task and see that it read all that it was given."""
    frames = [frame for pairs in (*left, *entered) for frame in partial_of(pairs)] + state
    remaining = iter(frames)
    found = list(WindowStep(functions, len(left), len(entered))(0, remaining))
    assert next(remaining, None) is None
    return found


def pairs_in(frames: Iterable[bytes]) -> dict[Any, Any]:
    decoded = [Block(frame) for frame in frames]
    assert all(block.side is Side.STATE and block.rows for block in decoded)
    pairs = [p for block in decoded for p in zip(block.keys(), block.values(), strict=True)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize(
    ("state", "left", "entered", "wanted"),
    [
        pytest.param({}, [], [], {}, id="nothing"),
        pytest.param({}, [], [{"a": 1}], {"a": 1}, id="first window"),
        pytest.param({}, [], [{"a": 1}, {"a": 2}], {"a": 3}, id="first window of two batches"),
        pytest.param({"a": 1}, [], [{"a": 2}], {"a": 3}, id="entered"),
        pytest.param({"a": 3}, [{"a": 1}], [{}], {"a": 2}, id="left"),
        pytest.param({"a": 3}, [{"a": 1}], [{"a": 5}], {"a": 7}, id="left and entered"),
        pytest.param({"a": 3}, [{"a": 1}, {"a": 2}], [{}, {}], {"a": 0}, id="zero stays"),
        pytest.param({"a": 3, "b": 4}, [{}], [{"b": 1}], {"a": 3, "b": 5}, id="untouched"),
        pytest.param({"a": 3}, [{}], [{"b": 1}], {"a": 3, "b": 1}, id="new key"),
        pytest.param({}, [{"a": 1}], [{"a": 5}], {"a": 5}, id="lost, but entered anew"),
        pytest.param({None: 1, 0: 2}, [{None: 1}], [{0: 1}], {None: 0, 0: 3}, id="falsy keys"),
    ],
)
def test_rules_of_a_key(state: Any, left: Any, entered: Any, wanted: Any) -> None:
    """Previous, minus what left, plus what entered; without a previous value what entered."""
    assert pairs_in(slide(SUMS, state_of(state), left, entered)) == wanted


def test_none_is_a_value_like_others() -> None:
    """The functions get it; no key is dropped because of it."""
    first = Reduction(lambda v, w: v, "first")
    functions = WindowFunctions(first, UserFunction(lambda v, w: None, "inverse"), is_scala=True)
    found = slide(functions, state_of({"a": 1, "b": 3}), [{"b": None}], [])
    assert pairs_in(found) == {"a": 1, "b": None}
    found = slide(functions, state_of({"a": 1, "b": None, "c": 0}), [{"a": 1}], [{"b": 2}])
    assert pairs_in(found) == {"a": None, "b": None, "c": 0}


@pytest.mark.parametrize("drops_only_empty", [False, True])
def test_the_functions_are_called_for_touched_keys_only(drops_only_empty: bool) -> None:
    """With the reduced value first; a filter of the user's is called for every pair."""
    calls: list[Any] = []

    def called(name: str, result: Any) -> Callable[..., Any]:
        return lambda *arguments: (calls.append((name, *arguments)), result)[1]

    functions = WindowFunctions(
        Reduction(called("plus", 30), "plus"),
        UserFunction(called("minus", 20), "minus"),
        UserFunction(called("keeps", True), "keeps"),
        drops_only_empty=drops_only_empty,
    )
    state = state_of({"a": 1, "b": 2, "c": 3, "d": 4})
    found = slide(functions, state, [{"a": 5, "b": 6}], [{"b": 7, "c": 8, "e": 9}])
    assert pairs_in(found) == {"a": 20, "b": 30, "c": 30, "d": 4, "e": 9}
    assert calls == [
        ("minus", 1, 5),
        ("minus", 2, 6),
        ("plus", 20, 7),
        ("plus", 3, 8),
        ("keeps", ("a", 20)),
        ("keeps", ("b", 30)),
        ("keeps", ("c", 30)),
        *([] if drops_only_empty else [("keeps", ("d", 4))]),
        ("keeps", ("e", 9)),
    ]


@pytest.mark.parametrize(
    ("rule", "calls"),
    [({}, 0), ({"is_scala": True}, 2), ({"drops_only_empty": True}, 1)],
    ids=["pyspark", "scala", "drops only what is empty"],
)
def test_the_filter_where_no_rdd_entered(rule: dict[str, bool], calls: int) -> None:
    """It waits by the rule of pyspark, unless it drops just what is empty."""
    asked: list[Any] = []
    keeps = UserFunction(lambda pair: asked.append(pair) or pair[1] > 0, "keeps")
    functions = WindowFunctions(PLUS, MINUS, keeps, **rule)
    found = slide(functions, state_of({"a": 1, "b": 2}), [{"a": 1}], [])
    assert len(asked) == calls
    assert pairs_in(found) == ({"b": 2} if calls else {"a": 0, "b": 2})
    assert pairs_in(slide(functions, found, [{}], [{}])) == {"b": 2}


def test_a_filter_looks_at_large_blocks_that_nothing_touched() -> None:
    """One that loses nothing is handed on byte by byte."""
    state = [encode_block(Side.STATE, list(many(5000)), [1] * 5000)]
    assert slide(keeping(lambda pair: pair[1] == 1), state, [{}], [{}]) == state
    found = pairs_in(slide(keeping(lambda pair: pair[0] == "key-7"), state, [{}], [{}]))
    assert found == {"key-7": 1}


def test_what_left_and_is_not_known_is_left_out() -> None:
    """A filter dropped the pair; a None value cannot leave."""
    found = slide(SUMS, state_of({"a": 1, "b": 2}), [{"b": None, "c": 3}], [{"a": 1}])
    assert pairs_in(found) == {"a": 2, "b": 2}


def test_the_filter_drops_pairs() -> None:
    """Old ones and new ones, which are then not in what the next window begins with."""
    functions = keeping(lambda pair: pair[1] > 0)
    found = slide(functions, state_of({"a": 1, "b": 2}), [{"a": 1}], [{"b": 1, "c": -1}])
    assert pairs_in(found) == {"b": 3}
    assert pairs_in(slide(functions, found, [{"b": 3}], [{}])) == {}


def many(count: int) -> dict[str, int]:
    return {f"key-{number}": number for number in range(count)}


def test_untouched_blocks_pass_through() -> None:
    """A large block without a key that entered or left is handed on byte by byte."""
    state = state_of(many(4 * MAX_ROWS))
    large = [frame for frame in state if Block(frame).rows == MAX_ROWS]
    assert len(large) >= 3
    found = slide(SUMS, state, [{}], [{"key-39999": 1}])
    assert [frame for frame in found if frame in large] == large[: len(large)]
    assert pairs_in(found) == {**many(4 * MAX_ROWS), "key-39999": 40000}


def test_touched_blocks_keep_their_keys() -> None:
    """Only the column of values is encoded again."""
    state = [encode_block(Side.STATE, list(many(5000)), [0] * 5000)]
    [found] = slide(SUMS, state, [{"key-1": 4}], [{"key-2": 5}])
    assert Block(found).key_column == Block(state[0]).key_column
    assert Block(found).values()[:4] == [0, -4, 5, 0]


def test_a_large_block_that_loses_keys() -> None:
    """Its other pairs stay."""
    state = [encode_block(Side.STATE, list(many(5000)), [1] * 5000)]
    left = dict.fromkeys(list(many(5000))[::2], 1)
    found = pairs_in(slide(keeping(lambda pair: pair[1] > 0), state, [left], [{}]))
    assert found == dict.fromkeys(list(many(5000))[1::2], 1)


def test_a_block_that_grows_is_split() -> None:
    """No block exceeds its limit, for any results of the functions."""
    state = [encode_block(Side.STATE, list(range(2000)), [b""] * 2000)]
    grown = {key: str(key).encode() * 1000 for key in range(2000)}
    found = slide(SUMS, state, [], [grown])
    assert len(found) > 1
    assert max(map(len, found)) <= MAX_BYTES
    assert pairs_in(found) == grown


def test_a_long_run_does_not_fragment_the_result() -> None:
    """New keys in every batch are put together in few blocks."""
    state: list[bytes] = []
    for batch in range(300):
        state = slide(SUMS, state, [], [{f"{batch}-{n}": 1 for n in range(100)}])
    assert len(state) <= 3 + 30_000 // (MAX_ROWS // 8)
    assert len(pairs_in(state)) == 30_000


def test_changing_a_value_in_place_changes_no_other() -> None:
    """Keys whose values were one object have values of their own."""
    lists = Reduction(operator.iadd, "plus")
    functions = WindowFunctions(lists, UserFunction(lambda v, w: v[len(w) :], "minus"))
    shared = [1]
    state = slide(functions, [], [], [{"a": shared, "b": shared}])
    state = slide(functions, state, [], [{"a": [2]}])
    assert pairs_in(state) == {"a": [1, 2], "b": [1]}
    assert pairs_in(slide(functions, state, [{"a": [1]}], [{}])) == {"a": [2], "b": [1]}


# What can go wrong ---------------------------------------------------------------------------


def refused(functions: WindowFunctions, state: Any, left: Any, entered: Any) -> str:
    with pytest.raises(UserFunctionError) as caught:
        slide(functions, state_of(state), left, entered)
    return str(caught.value)


def test_a_key_that_leaves_and_never_was() -> None:
    """By Scala's rule it is an error that asks about the key, and about the filter if any."""
    functions = replace(SUMS, is_scala=True)
    message = refused(functions, {"a": 1}, [{("b", 1): 1}], [{"c": 1}])
    assert message == (
        "reduce function plus of reduceByKeyAndWindow at a.py:1: values of the key ('b', 1) leave "
        "the window, but neither the previous window nor the entering batches have a value for it; "
        "do keys of type tuple compare and hash consistently, in every process?"
    )
    functions = replace(keeping(bool), is_scala=True)
    message = refused(functions, {"a": 1}, [{"b": 1}], [{}])
    assert message.endswith(
        "in every process, or did filterFunc drop the key while the window still had values for it?"
    )


@pytest.mark.parametrize(
    ("plus", "minus", "keeps", "message"),
    [
        (max, operator.sub, None, "minus failed for key 'a': TypeError: unsupported operand"),
        (operator.add, lambda v, w: "", None, "plus failed for key 'a': TypeError: can only conc"),
        (max, max, lambda pair: pair[2], "keeps failed for key 'a': IndexError: tuple index"),
        (max, lambda v, w: next(iter(())), None, "minus failed for key 'a': StopIteration"),
    ],
)
def test_errors_name_the_function_and_the_key(
    plus: Any, minus: Any, keeps: Any, message: str
) -> None:
    """Whichever of the functions it is."""
    functions = WindowFunctions(
        Reduction(plus, "plus"),
        UserFunction(minus, "minus"),
        None if keeps is None else UserFunction(keeps, "keeps"),
    )
    value = 1 if keeps else "x"
    assert refused(functions, {"a": value}, [{"a": 2}], [{"a": 3}]).startswith(message)


def test_a_value_that_cannot_be_pickled() -> None:
    """Is named with its key."""
    functions = WindowFunctions(Reduction(lambda v, w: (x for x in ()), "plus"), MINUS)
    message = refused(functions, {"a": 1}, [], [{"a": 1}])
    assert message.startswith("plus: the value of type generator of key 'a' cannot be pickled")


# Against a plain recomputation ----------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "", None, 0, 1.5, ("a", 1)])
BATCHES = st.lists(st.dictionaries(KEYS, st.integers(-3, 3), max_size=5), max_size=14)


@PATIENT
@given(BATCHES, st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_steps_add_up_to_what_is_in_the_window(
    batches: list[dict[Any, int]], window: int, slide_by: int, filtered: bool
) -> None:
    """After any number of windows the result is the sum over the batches of the last one."""
    counts = [{key: (value, 1) for key, value in batch.items()} for batch in batches]
    plus = Reduction(lambda v, w: (v[0] + w[0], v[1] + w[1]), "plus")
    minus = UserFunction(lambda v, w: (v[0] - w[0], v[1] - w[1]), "minus")
    keeps = UserFunction(lambda pair: pair[1][1] > 0, "keeps") if filtered else None
    functions = WindowFunctions(plus, minus, keeps)
    state: list[bytes] | None = None
    seen: set[Any] = set()
    for end in range(slide_by, len(counts) + 1, slide_by):
        begin, before = max(0, end - window), end - slide_by
        left = [] if state is None else counts[max(0, before - window) : min(before, begin)]
        state = slide(functions, state or [], left, counts[max(before, begin) : end])
        sums: Counter[Any] = Counter()
        numbers: Counter[Any] = Counter()
        for batch in batches[begin:end]:
            seen.update(batch)
            numbers.update(batch.keys())
            for key, value in batch.items():
                sums[key] += value
        wanted = {key: (sums[key], numbers[key]) for key in (numbers if filtered else seen)}
        assert pairs_in(state) == wanted


# On Spark ------------------------------------------------------------------------------------


def reduced(sc: SparkContext, pairs: list[tuple[Any, Any]]) -> RDD[bytes]:
    return reduce_pairs(sc.parallelize(pairs, 2), PLUS, StablePartitioner(2)).blocks


def test_windows_on_spark(sc: SparkContext) -> None:
    """Two windows: each batch is shuffled once, neither result nor reductions are."""
    partials = [reduced(sc, [(n % 5, 1) for n in range(batch)]).cache() for batch in (5, 7, 9)]
    first = slide_window(SUMS, None, left=[], entered=partials[:2]).cache()
    assert dict(BlockPairsRDD(first, Side.STATE).collect()) == {0: 3, 1: 3, 2: 2, 3: 2, 4: 2}
    second = slide_window(SUMS, first, left=partials[:1], entered=partials[2:])
    assert second.partitioner == StablePartitioner(2)
    assert second.getNumPartitions() == 2
    assert shuffles_in(second) == 3
    assert dict(BlockPairsRDD(second, Side.STATE).collect()) == {0: 4, 1: 4, 2: 3, 3: 3, 4: 2}
    assert bytes_shuffled(sc, second.count) == 0


def test_making_a_window_runs_no_job(sc: SparkContext) -> None:
    """However many reductions there are."""
    partials = [reduced(sc, [("a", 1)]) for _ in range(5)]
    assert count_jobs(sc, lambda: slide_window(SUMS, None, left=[], entered=partials)) == 0


def test_a_window_without_news_is_the_window_before(sc: SparkContext) -> None:
    """Nothing left, nothing entered."""
    first = slide_window(SUMS, None, left=[], entered=[reduced(sc, [("a", 1)])])
    second = slide_window(SUMS, first, left=[], entered=[])
    assert BlockPairsRDD(second, Side.STATE).collect() == [("a", 1)]
