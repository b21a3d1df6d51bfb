"""The narrow cogroup: the task of a partition against a dict, and the RDDs around it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import RDD, SparkContext

from dstreams.spark import blocks, cogroup
from dstreams.spark.blocks import MAX_BYTES, MAX_ROWS, Block, BlockBuilder, Side, encode_block
from dstreams.spark.cogroup import (
    ColumnStep,
    DuplicateKeyError,
    IteratorStep,
    StateTask,
    _BatchSteps,
    cogroup_with_state,
)
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.spark.lineage import bytes_shuffled, lineage_of, shuffles_in
from tests.dstreams.spark.updates import (
    SumColumns,
    collect_all,
    collect_in_place,
    collect_keyed,
    grow_keys,
)
from tests.support.jobs import count_jobs

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
Pairs = list[tuple[Any, Any]]
Update = Callable[[list[Any], Any], Any]


def frames_of(pairs: Iterable[tuple[Any, Any]], side: Side) -> list[bytes]:
    """Return blocks of *pairs*."""
    builder = BlockBuilder(side)
    rows = list(pairs)
    full = builder.extend([key for key, _ in rows], [value for _, value in rows])
    return [*full, *builder.flush()]


def pairs_in(frames: Iterable[bytes]) -> Pairs:
    """Return the pairs of blocks that must all be state."""
    decoded = [Block(frame) for frame in frames]
    assert all(block.side is Side.STATE for block in decoded)
    return [pair for block in decoded for pair in zip(block.keys(), block.values(), strict=True)]


def run(task: StateTask, batch: Pairs, state: list[bytes], split: int = 0) -> list[bytes]:
    """Run one task over a batch and a state, and see that it read all of them."""
    frames = iter([*frames_of(batch, Side.BATCH), *state])
    result = list(task(split, frames))
    assert next(frames, None) is None
    return result


def sum_up(values: list[Any], state: Any) -> Any:
    return sum(values) + (0 if state is None else state)


FALSY = (0, "", [], False, 0.0, (), {}, b"", None)


def go_through_falsy_states(values: list[Any], state: Any) -> Any:
    """Return each falsy state in turn, however often a key is dropped in between."""
    at = -1 if state is None else [repr(falsy) for falsy in FALSY].index(repr(state))
    return FALSY[(at + 1 + len(values)) % len(FALSY)]


def share_a_default(values: list[Any], state: Any, default: Any = ((0, []),)) -> Any:
    """Begin with one object for all keys, and change what is inside of it later."""
    if state is None:
        return default
    state[0][1].extend(values)
    return state


UPDATES: tuple[Update, ...] = (
    sum_up,
    collect_in_place,
    go_through_falsy_states,
    share_a_default,
    lambda values, state: sum(values) or None,
)
keys = st.sampled_from([1, 1.0, True, 0, False, 2, "a", "", None, (1, "x"), (True, "x"), "b", b"a"])
batches = st.lists(
    st.one_of(st.none(), st.lists(st.tuples(keys, st.integers(0, 3)), max_size=12)), max_size=8
)


def in_form(update: Update, form: str, unique: bool = True) -> StateTask:
    """Return the task that applies *update* in one of the three forms."""
    partitioner = StablePartitioner(1)

    def keyed(time: Any, key: Any, values: list[Any], state: Any) -> Any:
        assert (time.year, time.second) == (1970, 7)
        return update(values, state)

    def iterator(entries: Iterator[Any]) -> Iterator[Any]:
        for key, values, state in entries:
            new = update(values, state)
            if new is not None:
                yield key, new

    function = {"values": update, "keyed": keyed, "iterator": iterator}[form]
    return UpdateFunction.checked(function, form, "test").task(7000, unique, partitioner)


def next_state(state: dict[Any, Any], batch: Pairs, update: Update) -> dict[Any, Any]:
    """Say with a dict what the state after a batch is."""
    fresh: dict[Any, list[Any]] = {}
    for key, value in batch:
        fresh.setdefault(key, []).append(copy.deepcopy(value))
    after = {}
    for key in {**state, **fresh}:
        new = copy.deepcopy(update(fresh.get(key, []), copy.deepcopy(state.get(key))))
        if new is not None:
            after[key] = new
    return after


@contextmanager
def small_blocks() -> Iterator[None]:
    """Let a handful of rows be a large block, and a few more be too many."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, cogroup):
            patch.setattr(module, "MAX_ROWS", 16)
            patch.setattr(module, "TARGET_BYTES", 120)
            patch.setattr(module, "MAX_BYTES", 300)
        yield


@pytest.mark.deep
@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
@settings(PATIENT, max_examples=150)
@given(batches=batches, update=st.sampled_from(UPDATES), small=st.booleans(), unique=st.booleans())
def test_state_is_what_a_dict_says(
    form: str, batches: list[Pairs | None], update: Update, small: bool, unique: bool
) -> None:
    """Any sequence of batches ends in the state that a loop over a dict has, in every form."""
    expected: dict[Any, Any] = {}
    state: list[bytes] = []
    task = in_form(update, form, unique)
    for batch in batches:
        if small:
            with small_blocks():
                state = run(task, batch or [], state)
        else:
            state = run(task, batch or [], state)
        expected = next_state(expected, batch or [], update)
        found = pairs_in(state)
        assert len(found) == len(expected)
        assert {key: repr(value) for key, value in found} == {
            key: repr(value) for key, value in expected.items()
        }


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_equal_keys_of_different_types_are_one_key(form: str) -> None:
    """1, 1.0 and True are one key, as in a dict, and it looks as it came first."""
    state = run(in_form(sum_up, form), [(1, 1), (1.0, 2), (True, 4)], [])
    state = run(in_form(sum_up, form), [(True, 8), ("1", 16)], state)
    assert [(repr(key), value) for key, value in pairs_in(state)] == [("1", 15), ("'1'", 16)]


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_values_arrive_in_order_as_private_lists(form: str) -> None:
    """A key gets its values in the order of the frames; each list is a new one."""
    lists: list[list[Any]] = []

    def keep(values: list[Any], state: Any) -> Any:
        lists.append(values)
        return [*(state or []), *values]

    state = run(in_form(keep, form), [("a", n) for n in range(100)] + [("b", 0)], [])
    assert dict(pairs_in(state)) == {"a": list(range(100)), "b": [0]}
    run(in_form(keep, form), [], state)
    assert len(set(map(id, lists))) == 4
    assert lists[2:] == [[], []]


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_state_of_a_key_is_its_own(form: str) -> None:
    """A state that several keys were given is a copy for each of them a batch later."""
    state = run(in_form(share_a_default, form), [(n, 0) for n in range(3000)], [])
    state = run(in_form(share_a_default, form), [(n, n) for n in range(3000)], state)
    assert all(value == ((0, [key]),) for key, value in pairs_in(state))


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_large_states_make_more_and_smaller_blocks(form: str) -> None:
    """States that grow split their blocks; states that shrink come together again."""

    def grow(values: list[Any], state: Any) -> Any:
        return b"x" * values[0] if values else state

    task = in_form(grow, form)
    state = run(task, [(n, 10) for n in range(2000)], [])
    few = len(state)
    for size in (10_000, 50, 700_000, 1):
        state = run(task, [(n, size) for n in range(2000 if size < 100_000 else 40)], state)
        decoded = [Block(frame) for frame in state]
        assert all(block.size <= MAX_BYTES or block.rows == 1 for block in decoded)
        assert sorted(key for block in decoded for key in list(block.keys())) == list(range(2000))
    for _ in range(3):
        state = run(task, [], state)
    assert len(state) <= few + 5


def test_keys_that_stay_are_not_pickled_again() -> None:
    """A large block that drops no key keeps the bytes of its keys, which are not even read."""
    first = run(in_form(sum_up, "values"), [(f"key {n}", 1) for n in range(20_000)], [])
    large = [frame for frame in first if Block(frame).rows >= MAX_ROWS // 8]
    columns = [bytes(Block(frame).key_column) for frame in large]
    for batch in ([], [("key 7", 5)], [("key 8", 5), ("new", 1)]):
        first = run(in_form(sum_up, "values"), batch, first)
        assert {bytes(Block(frame).key_column) for frame in first} >= set(columns)
    unreadable = encode_block(Side.STATE, [], [1] * MAX_ROWS, memoryview(b"no pickle"))
    (after,) = run(in_form(lambda values, state: state + 1, "values"), [], [unreadable])
    assert Block(after).values() == [2] * MAX_ROWS


@pytest.mark.deep
@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_small_batches_do_not_fragment_the_state(form: str) -> None:
    """After hundreds of batches with a few new keys each, the blocks are as few as before."""
    task = in_form(sum_up, form)
    state: list[bytes] = []
    for batch in range(300):
        state = run(task, [(batch * 20 + n, 1) for n in range(20)], state)
        rows = sum(Block(frame).rows for frame in state)
        assert rows == 20 * (batch + 1)
        assert len(state) <= 3 + rows // (MAX_ROWS // 8)


@pytest.mark.deep
@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_drops_do_not_fragment_the_state(form: str) -> None:
    """Keys that go from everywhere leave no crumbs behind."""

    def count_down(values: list[Any], state: Any) -> Any:
        left = (values[0] if values else state) - 1
        return left or None

    task = in_form(count_down, form)
    state = run(task, [(n, n % 20 + 2) for n in range(60_000)], [])
    for batch in range(1, 20):
        state = run(task, [], state)
        rows = sum(Block(frame).rows for frame in state)
        assert rows == 3000 * (20 - batch)
        assert len(state) <= 3 + rows // (MAX_ROWS // 8)
    assert run(task, [], state) == []


@pytest.mark.parametrize("form", ["values", "keyed"])
@pytest.mark.parametrize("keys", [3, 5000], ids=["few", "many"])
def test_failure_names_the_key(form: str, keys: int) -> None:
    """The message has operation, function, key and reason, and the cause is the user's error."""

    def divide(values: list[Any], state: Any) -> Any:
        return (1 if state is None else state) // (0 if values == [13] else 1)

    state = run(in_form(divide, form), [(f"key {n}", 1) for n in range(keys)], [])
    message = (
        r"update function \S+(divide|keyed):\d+ of test failed for key 'key 2': "
        "ZeroDivisionError: integer division or modulo by zero"
    )
    with pytest.raises(UserFunctionError, match=message) as caught:
        run(in_form(divide, form), [("key 2", 13), ("new", 1)], state)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(UserFunctionError, match="failed for key 'new 4': ZeroDivisionError"):
        run(in_form(divide, form), [(f"new {n}", 9 + n) for n in range(9)], state)


@pytest.mark.parametrize("form", ["values", "keyed"])
@pytest.mark.parametrize("keys", [3, 5000], ids=["few", "many"])
def test_stop_iteration_does_not_end_the_state(form: str, keys: int) -> None:
    """``next`` of nothing in an update function is an error, not the end of all keys."""

    def first(values: list[Any], state: Any) -> Any:
        return next(iter(values))

    state = run(in_form(first, form), [(n, n) for n in range(keys)], [])
    batch = [(n, 0) for n in range(keys) if n != 2]
    for given_values in (batch, []):
        key = 2 if given_values else 0
        with pytest.raises(UserFunctionError, match=f"failed for key {key}: StopIteration"):
            run(in_form(first, form), given_values, state)


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_state_that_cannot_be_pickled_is_named(form: str) -> None:
    """A state that cannot be kept is an error with function and key."""

    def lock(values: list[Any], state: Any) -> Any:
        return threading.Lock() if values == ["lock"] else 1

    message = (
        r"update function \S+ of test: the value of type lock of key 'guilty' cannot be pickled"
    )
    with pytest.raises(UserFunctionError, match=message):
        run(in_form(lock, form), [("fine", 1), ("guilty", "lock")], [])
    state = run(in_form(lock, form), [(n, 1) for n in range(5000)] + [("guilty", 1)], [])
    with pytest.raises(UserFunctionError, match=message):
        run(in_form(lock, form), [("guilty", "lock")], state)


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
@pytest.mark.parametrize(
    ("pairs", "key"),
    [
        ([("z", 5), ("y", 1), ("z", 7)], "'z'"),
        ([(1, 5), (True, 7)], "True"),
        ([(n, 0) for n in range(5000)] + [(17, 0)], "17"),
    ],
    ids=["text", "equal numbers", "far apart"],
)
def test_duplicate_key_in_a_state_is_refused(form: str, pairs: Pairs, key: str) -> None:
    """A duplicate key in a state that the user supplies is an error, not silent loss."""
    message = (
        rf"update function \S+ of test: duplicate key {key} in the state; reduce the pairs by "
        "key first, for example with reduceByKey"
    )
    with pytest.raises(DuplicateKeyError, match=message):
        run(in_form(sum_up, form, unique=False), [], frames_of(pairs, Side.STATE))


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_unhashable_key_is_named(form: str) -> None:
    """An unhashable key that a user's partition function accepted is named in the error."""
    message = (
        r"update function \S+ of test: the key \['a'\] cannot be placed: "
        r"unhashable type: 'list'; use an immutable value, for example tuple\(key\)"
    )
    with pytest.raises(UserFunctionError, match=message):
        run(in_form(sum_up, form), [(["a"], 1)], [])
    state = frames_of([("b", 1), (["a"], 1)], Side.STATE)
    with pytest.raises(UserFunctionError, match=message):
        run(in_form(sum_up, form, unique=False), [], state)


def iterate(
    function: Callable[[Iterator[Any]], Any], partitioner: StablePartitioner | None = None
) -> IteratorStep:
    task = UpdateFunction.checked(function, "iterator", "test").task(0, True, partitioner)
    assert isinstance(task, IteratorStep)
    return task


def test_iterator_may_stop_early() -> None:
    """Keys that are not returned are dropped, and the input is read to its end all the same."""
    state = frames_of([(n, n) for n in range(5000)], Side.STATE)

    def first_two(entries: Iterator[Any]) -> Iterator[Any]:
        for number, (key, _, kept) in enumerate(entries):
            if number == 2:
                return
            yield key, kept

    assert pairs_in(run(iterate(first_two), [("new", 1)], state)) == [(0, 0), (1, 1)]
    assert run(iterate(lambda entries: []), [("new", 1)], state) == []


def test_iterator_sees_each_key_once() -> None:
    """States with their new values come first, then the new keys with state None."""
    seen: list[Any] = []

    def look(entries: Iterator[Any]) -> list[Any]:
        seen.extend(entries)
        return []

    state = frames_of([("a", 0), ("b", ""), ("c", None)], Side.STATE)
    run(iterate(look), [("b", 1), ("d", 2), ("b", 3)], state)
    assert seen == [("a", [], 0), ("b", [1, 3], ""), ("c", [], None), ("d", [2], None)]


def test_iterator_is_lazy() -> None:
    """The function is not handed a list: a partition need not fit into memory twice."""
    read: list[str] = []

    def frames() -> Iterator[bytes]:
        for name in ("a", "b"):
            read.append(name)
            yield encode_block(Side.STATE, [name], [1])

    def look(entries: Iterator[Any]) -> Iterator[Any]:
        for key, _, state in entries:
            assert read[-1] == key
            yield key, state

    assert dict(pairs_in(iterate(look)(0, frames()))) == {"a": 1, "b": 1}


def test_iterator_may_not_move_a_key_that_has_a_place() -> None:
    """With preservePartitioning the next batch would not find a key in another partition."""
    place = StablePartitioner(2, lambda key: key, name="test")
    task = iterate(lambda entries: ((key + 1, values) for key, values, _ in entries), place)
    message = (
        "returned the key 5 in partition 0, but it belongs in partition 1; pass "
        "preservePartitioning=False if the function changes keys"
    )
    with pytest.raises(UserFunctionError, match=message):
        run(task, [(4, 1)], [], split=0)
    assert pairs_in(run(task, [(4, 1)], [], split=1)) == [(5, [1])]


def test_iterator_may_move_keys_where_nothing_is_claimed() -> None:
    """Without a partitioner any key may be returned, but none twice."""
    task = iterate(lambda entries: ((key + 1, len(values)) for key, values, _ in entries))
    assert pairs_in(run(task, [(4, 1), (7, 1)], [])) == [(5, 1), (8, 1)]
    twice = iterate(lambda entries: ((key // 2, 1) for key, _, _ in entries))
    with pytest.raises(DuplicateKeyError, match="duplicate key 2 in the state"):
        run(twice, [(4, 1), (5, 1)], [])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda entries: None, "must return an iterator of .key, state., got NoneType"),
        (lambda entries: 5, "must return an iterator of .key, state., got int"),
        (
            lambda entries: ["ab"],
            r"must return pairs of key and state, got 'ab' \(str\)",
        ),
        (lambda entries: entries, r"pairs of key and state, got \('a', \[1\], None\) \(tuple\)"),
        (lambda entries: {"a": 1}, r"pairs of key and state, got 'a' \(str\)"),
        (lambda entries: [(["a"], 1)], r"the key \['a'\] cannot be placed: unhashable"),
        (lambda entries: 1 // 0, "failed: ZeroDivisionError: integer division or modulo by zero"),
        (lambda entries: (1 // 0 for _ in entries), "failed: ZeroDivisionError"),
    ],
    ids=["none", "int", "text", "triples", "dict", "unhashable", "raises", "raises later"],
)
@pytest.mark.parametrize("partitioner", [None, StablePartitioner(1)], ids=["free", "placed"])
def test_iterator_that_returns_no_states(
    function: Any, message: str, partitioner: StablePartitioner | None
) -> None:
    """The error for a result that is not an iterator of pairs names function and result."""
    with pytest.raises(UserFunctionError, match=rf"update function \S+:\d+ of test.*{message}"):
        run(iterate(function, partitioner), [("a", 1)], [])


def test_iterator_may_return_lists_as_pairs() -> None:
    """A list of two is a pair, a dict's items are pairs."""
    as_lists = iterate(lambda entries: [[key, 1] for key, _, _ in entries])
    assert pairs_in(run(as_lists, [("a", 1)], [])) == [("a", 1)]
    as_items = iterate(lambda entries: {key: 2 for key, _, _ in entries}.items())
    assert pairs_in(run(as_items, [("a", 1)], [])) == [("a", 2)]


def test_step_of_ones_own() -> None:
    """The task is of use with any function over columns."""
    task = ColumnStep(SumColumns())
    state = run(task, [("a", 1), ("b", 2), ("a", 3)], [])
    state = run(task, [("b", 5)], state)
    assert dict(pairs_in(state)) == {"a": 4, "b": 7}
    assert list(task(0, iter(()))) == []
    empty = encode_block(Side.STATE, [], [])
    assert list(task(0, iter([empty]))) == []


def batch_of(sc: SparkContext, pairs: Pairs, partitioner: StablePartitioner) -> RDD[bytes]:
    return shuffle_pairs(sc.parallelize(pairs, 3), partitioner)


def test_state_is_never_shuffled(sc: SparkContext) -> None:
    """Only the new records move: each batch adds one shuffle, of the size of the batch."""
    partitioner = StablePartitioner(2)
    load = batch_of(sc, [(f"key {n}", n) for n in range(20_000)], partitioner)
    state = cogroup_with_state(load, None, ColumnStep(SumColumns())).persist()
    written = bytes_shuffled(sc, state.count)
    expected = {f"key {n}": n for n in range(20_000)}
    for number in range(1, 5):
        pairs = [(f"key {n * number}", 1) for n in range(8)] + [(f"new {number}", 1)]
        batch = batch_of(sc, pairs, StablePartitioner(2))
        before, state = state, cogroup_with_state(batch, state, ColumnStep(SumColumns())).persist()
        assert state.getNumPartitions() == 2
        assert state.partitioner == partitioner
        assert shuffles_in(state) == number + 1, lineage_of(state)
        assert bytes_shuffled(sc, state.count) < written / 50
        before.unpersist()
        for key, value in pairs:
            expected[key] = expected.get(key, 0) + value
    pairs_rdd = BlockPairsRDD(state, Side.STATE)
    assert count_jobs(sc, pairs_rdd.count) == 1
    partitions = pairs_rdd.glom().collect()
    assert dict(pair for part in partitions for pair in part) == expected
    assert pairs_rdd.count() == len(expected)
    assert [{partitioner(key) for key, _ in part} for part in partitions] == [{0}, {1}]
    state.unpersist()


def test_batch_without_records_and_state_without_batch(sc: SparkContext) -> None:
    """No batch maps the state where it is; no state begins one; neither is a mistake."""
    partitioner = StablePartitioner(2)
    state = cogroup_with_state(
        batch_of(sc, [("a", 1), ("b", 2)], partitioner), None, ColumnStep(SumColumns())
    )
    alone = cogroup_with_state(None, state, ColumnStep(SumColumns()))
    assert shuffles_in(alone) == shuffles_in(state) == 1
    assert alone.partitioner == partitioner
    assert sorted(BlockPairsRDD(alone).collect()) == [("a", 1), ("b", 2)]
    empty = cogroup_with_state(batch_of(sc, [], partitioner), state, ColumnStep(SumColumns()))
    assert sorted(BlockPairsRDD(empty).collect()) == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="cogroup_with_state: needs a batch or a state, got neith"):
        cogroup_with_state(None, None, ColumnStep(SumColumns()))


def test_unequal_partitioners_are_refused(sc: SparkContext) -> None:
    """A union that would not be narrow is an error that shows both partitioners."""
    two = batch_of(sc, [("a", 1)], StablePartitioner(2))
    three = batch_of(sc, [("a", 1)], StablePartitioner(3))
    message = (
        r"a narrow union needs equal partitioners, got StablePartitioner\(2, stable-hash-1\) and "
    )
    with pytest.raises(ValueError, match=message + r"StablePartitioner\(3, stable-hash-1\)"):
        cogroup_with_state(two, three, ColumnStep(SumColumns()))
    with pytest.raises(ValueError, match=message + "None"):
        cogroup_with_state(two, sc.parallelize([b""], 2), ColumnStep(SumColumns()))
    claims = sc.parallelize([b""], 2)
    claims.partitioner = StablePartitioner(2)
    message = r"has 4 partitions, so an RDD with StablePartitioner\(2, .* has another partitioner"
    with pytest.raises(ValueError, match=message):
        cogroup_with_state(two, claims, ColumnStep(SumColumns()))


def test_state_that_claims_nothing_is_shuffled(sc: SparkContext) -> None:
    """Without preserved partitioning keys may change, and the next batch moves the state."""
    partitioner = StablePartitioner(2)

    task = UpdateFunction.checked(grow_keys, "iterator", "test").task(0, False, None)
    state: RDD[bytes] | None = None
    for number, shuffles in enumerate((1, 3, 5)):
        batch = batch_of(sc, [("a", 1), (f"b{number}", 1)], partitioner)
        if state is not None:
            state = shuffle_pairs(BlockPairsRDD(state, Side.STATE), partitioner, Side.STATE)
        state = cogroup_with_state(batch, state, task, preserves_partitioning=False)
        assert state.partitioner is None
        assert shuffles_in(state) == shuffles
    assert dict(BlockPairsRDD(state).collect()) == {
        "ax": 1,
        "axx": 1,
        "axxx": 1,
        "b0xxx": 1,
        "b1xx": 1,
        "b2x": 1,
    }


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_rdds_are_what_a_dict_says(sc: SparkContext, form: str) -> None:
    """Batches with every kind of key, drops and additions again, over two partitions."""
    partitioner = StablePartitioner(2)
    functions = {"values": collect_in_place, "keyed": collect_keyed, "iterator": collect_all}
    task = UpdateFunction.checked(functions[form], form, "test").task(7000, True, partitioner)
    expected: dict[Any, Any] = {}
    state: RDD[bytes] | None = None
    kinds = [1, 1.0, True, "a", None, (1, "x"), (True, "x"), b"a", "", 0]
    for number in range(4):
        pairs = [(kinds[(n * 7 + number) % 10], (number, n)) for n in range(0, 20, number + 1)]
        state = cogroup_with_state(batch_of(sc, pairs, partitioner), state, task)
        expected = next_state(expected, pairs, collect_in_place)
    found = BlockPairsRDD(state).mapValues(sorted).collect()
    assert len(found) == len(expected)
    assert dict(found) == {key: sorted(value) for key, value in expected.items()}


pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=12)
states = st.dictionaries(st.integers(0, 20), st.integers(0, 30), max_size=12)


def below_50(values: list[int], state: int | None) -> int | None:
    """The sum, and no state from 50 on."""
    total = sum(values) + (state or 0)
    return total if total < 50 else None


def each_below_50(entries: Iterator[tuple[int, list[int], int | None]]) -> Iterator[Any]:
    for key, values, state in entries:
        total = below_50(values, state)
        if total is not None:
            yield key, total


def sorted_pairs(frames: Iterable[bytes]) -> Pairs:
    return sorted(pairs_in(frames))


@pytest.mark.deep
@pytest.mark.parametrize(("form", "func"), [("values", below_50), ("iterator", each_below_50)])
@given(state=states, batches=st.lists(st.none() | pairs, min_size=1, max_size=8))
def test_one_task_takes_all_steps(
    form: str, func: Any, state: dict[int, int], batches: list[Pairs | None]
) -> None:
    """Keys come, go and come again as they do where each batch has a task of its own."""
    task = UpdateFunction.checked(func, form, "updateStateByKey at a.py:1").task(1000, True, None)
    before = frames_of(state.items(), Side.STATE)
    wanted, inputs = list(before), []
    for batch in batches:
        blocks = frames_of(batch or [], Side.BATCH)
        wanted = list(task(0, iter([*blocks, *wanted])))
        if batch is not None:
            inputs += [*blocks, b""]
    steps = _BatchSteps((task,) * len(batches), tuple(batch is not None for batch in batches))
    assert sorted_pairs(steps(0, iter([*inputs, *before]))) == sorted_pairs(wanted)


def test_blocks_go_to_their_own_batch() -> None:
    """A batch without an RDD has no end in the input; one with an empty RDD has."""
    seen: list[list[int]] = []

    def look(_: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        rows = list(frames)
        seen.append([Block(frame).rows for frame in rows[:-1]])
        return iter(rows[-1:])

    state = frames_of([(1, 1)], Side.STATE)
    three = frames_of([(1, 1), (2, 2), (3, 3)], Side.BATCH)
    steps = _BatchSteps((look, look, look, look), (True, False, True, True))
    assert list(steps(0, iter([*three, b"", b"", *three, b"", *state]))) == state
    assert seen == [[3], [], [], [3]]
