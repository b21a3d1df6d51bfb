"""The narrow cogroup of a batch with the state, in which the state is not shuffled.

``cogroup_with_state`` unites the blocks of a batch with the blocks of the state. Both have the same
partitioner, so the union is narrow, and only new records are shuffled. One pass over a partition
reads the new values first, then each key of the state once.

>>> from dstreams.spark.cogroup import ColumnStep, cogroup_with_state
>>> from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
>>> class Sum:
...     where = "running sum"
...     needs_keys = False
...     def __call__(self, keys, values, states, into):
...         into.extend(sum(v) + (s or 0) for v, s in zip(values, states))
>>> batch = shuffle_pairs(words, partitioner)
>>> state = cogroup_with_state(batch, None, ColumnStep(Sum()))
>>> state = cogroup_with_state(batch, state, ColumnStep(Sum()))
>>> dict(BlockPairsRDD(state).collect())
{'a': 8, 'b': 4}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat, starmap
from typing import Any, Protocol

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import (
    MAX_BYTES,
    MAX_ROWS,
    TARGET_BYTES,
    Block,
    BlockBuilder,
    Side,
    UnpicklableError,
    encode_block,
    shorten,
)
from dstreams.spark.failures import UserFunctionError, failed, summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import empty_partitions
from dstreams.spark.shuffle import unhashable_key
from dstreams.spark.worker_gc import settle_worker

NewValues = dict[Any, list[Any]]
StateTask = Callable[[int, Iterable[bytes]], Iterator[bytes]]

_BATCH_END = b""
"""Ends the blocks of each batch in a task with several batches; no block is empty."""


def cogroup_with_state(
    batch: RDD[bytes] | None,
    state: RDD[bytes] | None,
    task: StateTask,
    *,
    preserves_partitioning: bool = True,
) -> RDD[bytes]:
    """Compute the next state from a batch and the previous state.

    Args:
        batch: blocks of new values, or None.
        state: blocks of the previous state, or None. If both are given, their partitioners must be
            equal.
        task: :class:`ColumnStep` or :class:`IteratorStep`.
        preserves_partitioning: whether the result has the partitioner of its input.

    Raises:
        ValueError: *batch* and *state* are both None, or their partitioners differ.
    """
    if batch is not None and state is not None:
        inputs = jvm.unite_frames(batch, state)
    else:
        only = state if batch is None else batch
        if only is None:
            raise ValueError("cogroup_with_state: needs a batch or a state, got neither")
        inputs = only
    computed = PipelinedRDD(inputs, task, preserves_partitioning)
    return jvm.as_frames(computed, jvm.partitioner_of(inputs) if preserves_partitioning else None)


def replay_batches(
    spark: SparkContext,
    partitioner: StablePartitioner,
    batches: Sequence[RDD[bytes] | None],
    state: RDD[bytes] | None,
    tasks: Sequence[StateTask],
) -> RDD[bytes]:
    """Return the blocks of the state after several batches, oldest first, in one stage.

    A chain of state RDDs would need a Python worker for each of them. A batch without new values is
    None, and so is the state before the first batch.
    """
    inputs: list[RDD[bytes]] = []
    for batch in batches:
        if batch is not None:
            inputs += [batch, empty_partitions(spark, partitioner)]
    if state is not None:
        inputs.append(state)
    has_blocks = tuple(batch is not None for batch in batches)
    steps = _BatchSteps(tuple(tasks), has_blocks)
    return jvm.as_frames(PipelinedRDD(jvm.unite_frames(*inputs), steps, True), partitioner)


class _BatchSteps:
    """Task: blocks of several batches, each followed by an end, and of the state -> last state."""

    def __init__(self, tasks: tuple[StateTask, ...], has_blocks: tuple[bool, ...]) -> None:
        self.tasks = tasks
        self.has_blocks = has_blocks

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        remaining = iter(frames)
        take = partial(next, remaining)
        batches = [list(iter(take, _BATCH_END)) if given else [] for given in self.has_blocks]
        state: Iterator[bytes] = remaining
        for task, batch in zip(self.tasks, batches, strict=True):
            state = task(split, chain(batch, state))
        yield from state


class ColumnUpdate(Protocol):
    """An update function over columns, called once per block of keys."""

    @property
    def where(self) -> str: ...

    @property
    def needs_keys(self) -> bool:
        """Return whether the update reads the keys; otherwise they stay pickled."""
        ...

    def __call__(
        self,
        keys: Iterable[Any],
        values: Iterable[list[Any]],
        states: Iterable[Any],
        into: list[Any],
    ) -> None:
        """Append the new state of each key to *into*, or None to drop the key."""
        ...


class IteratorUpdate(Protocol):
    """An update function over an iterator of (key, new values, previous state or None)."""

    @property
    def where(self) -> str: ...

    def __call__(self, entries: Iterator[tuple[Any, list[Any], Any]]) -> Iterable[tuple[Any, Any]]:
        """Return pairs of key and state."""
        ...


class DuplicateKeyError(ValueError):
    """A state has the same key twice."""


def _no_values() -> Iterator[list[Any]]:
    """Return an endless iterator of new lists, because a user's function may keep or change one."""
    return starmap([].copy, repeat(()))


class ColumnStep:
    """Task: new values and state -> state, a block of keys at a time.

    A block that drops no key keeps the bytes of its key column. Small blocks and new keys are
    gathered into common blocks, so that a long run does not fragment the state. Duplicate keys in
    the state are an error, checked unless the state is known to be *unique*.
    """

    def __init__(self, update: ColumnUpdate, *, unique: bool = True) -> None:
        self.update = update
        self.unique = unique

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        try:
            yield from self._steps(frames)
        except UnpicklableError as error:
            raise UserFunctionError(f"{self.update.where}: {error}") from error

    def _steps(self, frames: Iterable[bytes]) -> Iterator[bytes]:
        fresh, state = _split_sides(frames, self.update.where)
        seen = None if self.unique else _SeenKeys(self.update.where)
        gathered = BlockBuilder(Side.STATE)
        for block in state:
            if seen is not None:
                seen.add(block.keys())
            if block.rows >= MAX_ROWS // 8 or block.size >= TARGET_BYTES // 8:
                yield from self._rewrite(block, fresh, gathered)
            else:
                keys, states = self._step(block, fresh)
                yield from gathered.extend(*_live(keys, states))
        keys = list(fresh)
        states = self._call(len(keys), lambda: keys, keys, fresh.values(), repeat(None))
        yield from gathered.extend(*_live(keys, states))
        yield from gathered.flush()

    def _rewrite(self, block: Block, fresh: NewValues, gathered: BlockBuilder) -> Iterator[bytes]:
        """Yield a large block with its new states, and reuse its key column if possible."""
        if fresh or self.update.needs_keys:
            keys, states = self._step(block, fresh)
        else:
            states = self._call(block.rows, block.keys, (), _no_values(), block.values())
            keys = None
        kinds = set(map(type, states))
        if type(None) not in kinds:
            rewritten = encode_block(Side.STATE, [], states, block.key_column, kinds)
            if len(rewritten) <= MAX_BYTES or block.rows == 1:
                yield rewritten
                return
        yield from gathered.extend(*_live(block.keys() if keys is None else keys, states))

    def _step(self, block: Block, fresh: NewValues) -> tuple[list[Any], list[Any]]:
        keys = block.keys()
        values = map(fresh.pop, keys, _no_values()) if fresh else _no_values()
        return keys, self._call(block.rows, lambda: keys, keys, values, block.values())

    def _call(
        self,
        rows: int,
        names: Callable[[], list[Any]],
        keys: Iterable[Any],
        values: Iterable[list[Any]],
        states: Iterable[Any],
    ) -> list[Any]:
        results: list[Any] = []
        try:
            self.update(keys, values, states, results)
            if len(results) != rows:  # a StopIteration of the user ended an iterator early
                raise StopIteration
        except Exception as error:
            key = names()[min(len(results), rows - 1)]
            raise failed(self.update.where, key, error) from error
        return results


class IteratorStep:
    """Task: new values and state -> state, by one call of a function per partition.

    If the result has a *partitioner*, a key that belongs in another partition is an error: the next
    batch would not find it.
    """

    def __init__(
        self,
        update: IteratorUpdate,
        *,
        unique: bool = True,
        partitioner: StablePartitioner | None = None,
    ) -> None:
        self.update = update
        self.unique = unique
        self.partitioner = partitioner

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        entries = self._entries(frames)
        try:
            yield from self._states(self.update(entries), split)
        except (UserFunctionError, DuplicateKeyError):
            raise
        except UnpicklableError as error:
            raise UserFunctionError(f"{self.update.where}: {error}") from error
        except Exception as error:
            raise UserFunctionError(f"{self.update.where} failed: {summarize(error)}") from error
        for _ in entries:  # Spark does not reuse a worker with unread input
            pass

    def _states(self, pairs: Iterable[tuple[Any, Any]], split: int) -> Iterator[bytes]:
        builder = BlockBuilder(Side.STATE)
        seen = _SeenKeys(self.update.where)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise UserFunctionError(
                    f"{self.update.where}: must return pairs of key and state, got "
                    f"{shorten(pair)} ({type(pair).__name__})"
                )
            key, state = pair
            seen.add([key])
            if self.partitioner is not None and self.partitioner(key) != split:
                raise self._moved(key, split)
            block = builder.add(key, state)
            if block is not None:
                yield block
        yield from builder.flush()

    def _entries(self, frames: Iterable[bytes]) -> Iterator[tuple[Any, list[Any], Any]]:
        fresh, state = _split_sides(frames, self.update.where)
        seen = None if self.unique else _SeenKeys(self.update.where)
        for block in state:
            keys = block.keys()
            if seen is not None:
                seen.add(keys)
            yield from zip(keys, map(fresh.pop, keys, _no_values()), block.values(), strict=False)
        yield from ((key, values, None) for key, values in fresh.items())

    def _moved(self, key: Any, split: int) -> UserFunctionError:
        return UserFunctionError(
            f"{self.update.where}: returned the key {shorten(key)} in partition {split}, but it "
            f"belongs in partition {self.partitioner(key) if self.partitioner else None}; pass "
            "preservePartitioning=False if the function changes keys"
        )


class _SeenKeys:
    """Raises DuplicateKeyError for a duplicate key."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: set[Any] = set()

    def add(self, keys: list[Any]) -> None:
        count = len(self._seen) + len(keys)
        try:
            duplicates = self._seen.intersection(keys)
            self._seen.update(keys)
        except TypeError as error:
            raise _key_error(keys, self._where, error) from error
        if len(self._seen) != count:
            key = next(iter(duplicates), None) if duplicates else _first_duplicate(keys)
            raise DuplicateKeyError(
                f"{self._where}: duplicate key {shorten(key)} in the state; reduce the pairs by "
                "key first, for example with reduceByKey"
            )


def _first_duplicate(keys: list[Any]) -> Any:
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return key


def _split_sides(frames: Iterable[bytes], where: str) -> tuple[NewValues, Iterator[Block]]:
    """Return the new values by key, and the blocks of the state, which come after them."""
    fresh: NewValues = defaultdict(list)
    blocks = map(Block, frames)
    for block in blocks:
        if block.side is Side.STATE:
            return fresh, chain((block,), blocks)
        keys = block.keys()
        try:
            for key, value in zip(keys, block.values(), strict=True):
                fresh[key].append(value)
        except TypeError as error:
            raise _key_error(keys, where, error) from error
    return fresh, iter(())


def _key_error(keys: list[Any], where: str, error: TypeError) -> UserFunctionError:
    """Return the error for an unhashable key, which a user's partition function accepted."""
    return UserFunctionError(unhashable_key(keys, where) or f"{where}: {error}")


def _live(keys: list[Any], states: list[Any]) -> tuple[list[Any], list[Any]]:
    if type(None) not in set(map(type, states)):
        return keys, states
    live = [index for index, state in enumerate(states) if state is not None]
    return [keys[index] for index in live], [states[index] for index in live]
