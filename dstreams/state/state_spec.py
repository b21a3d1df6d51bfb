"""StateSpec: the specification of ``mapWithState``, and the check of initial states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.callables import call_site, describe, require_arity, require_picklable
from dstreams.common.durations import require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import explain_key
from dstreams.state.map_with_state import MappingFunction
from dstreams.state.state_classes import require_classes

_SHAPE = "f(key, value, state) or f(time, key, value, state)"


@dataclass(frozen=True)
class StateSpec:
    """A specification; each method returns a copy with one more option.

    >>> def count(key, value, state):
    ...     state.update((state.getOption or 0) + 1)
    ...     return key, state.get
    >>> spec = StateSpec.function(count).numPartitions(4).timeout(60)
    >>> spec.idle_ms
    60000

    Semantics: org.apache.spark.streaming.StateSpec (4.3).

    Args:
        mapping: the user's function.
        initial: pairs of key and state to start with.
        partitions: partitions of the state, None for the default parallelism.
        partition_func: ``key -> partition``, None for the stable hash.
        idle_ms: time after which a key without records is removed; None for never.
    """

    mapping: MappingFunction
    initial: RDD[Any] | Iterable[tuple[Any, Any]] | None = None
    partitions: int | None = None
    partition_func: Callable[[Any], int] | StablePartitioner | None = None
    idle_ms: int | None = None

    @classmethod
    def function(cls, mappingFunction: Callable[..., Any]) -> StateSpec:
        """Return a specification with the function that is called for each record.

        Args:
            mappingFunction: ``f(key, value, state)``, whose result is always emitted; or
                ``f(time, key, value, state)`` with the batch time as a datetime, whose result is
                emitted unless it is None. *state* is a :class:`~dstreams.State`. When a key times
                out, *value* is None and ``state.isTimingOut`` is true.

        Raises:
            InvalidStreamError: the function takes other arguments, or cannot be sent to workers.
        """
        operation = f"StateSpec.function at {call_site()}"
        count = require_arity(mappingFunction, (3, 4), operation, _SHAPE)
        require_picklable(mappingFunction, operation)
        where = f"mapping function {describe(mappingFunction)}"
        return cls(MappingFunction(mappingFunction, count == 4, where))

    def initialState(self, rdd: RDD[Any] | Iterable[tuple[Any, Any]]) -> StateSpec:
        """Return the specification with pairs of key and state to start with.

        Args:
            rdd: an RDD or a collection of pairs, each key once.

        Raises:
            InvalidStreamError: *rdd* is neither.
        """
        if isinstance(rdd, (str, bytes)) or not isinstance(rdd, RDD | Iterable):
            raise InvalidStreamError(
                "initialState must be an RDD or a collection of (key, state) pairs, got "
                f"{type(rdd).__name__}"
            )
        return replace(self, initial=rdd)

    def stateClasses(self, *classes: type) -> StateSpec:
        """Return the specification with more classes of data for states.

        Classes that the function, its module and the imports of that mention are known without it;
        see :meth:`dstreams.StreamingContext.stateClasses`.

        Raises:
            InvalidStreamError: one of them is not a class of data.
        """
        more = require_classes(classes, "stateClasses")
        return replace(self, mapping=replace(self.mapping, classes=(*self.mapping.classes, *more)))

    def numPartitions(self, numPartitions: int) -> StateSpec:
        """Return the specification with a number of partitions and the stable hash."""
        StablePartitioner(numPartitions)
        return replace(self, partitions=numPartitions, partition_func=None)

    def partitioner(self, partitioner: StablePartitioner | Callable[[Any], int]) -> StateSpec:
        """Return the specification with a partitioner, or a function ``key -> int``."""
        if isinstance(partitioner, StablePartitioner):
            return replace(self, partitions=partitioner.numPartitions, partition_func=partitioner)
        require_arity(partitioner, (1,), "StateSpec.partitioner", "f(key) -> int")
        return replace(self, partition_func=partitioner)

    def timeout(self, idleDuration: float) -> StateSpec:
        """Return the specification with a timeout.

        Args:
            idleDuration: seconds that a key may be without a record; in the first batch after
                that, the function is called once more for the key, and the key is removed. If
                ``spark.dstreams.mapWithState.timeouts`` is ``checkpoint``, this happens in the
                first such batch at the stream's checkpoint interval, as in Spark.

        Raises:
            InvalidStreamError: *idleDuration* is not a positive duration.
        """
        return replace(self, idle_ms=require_duration_ms(idleDuration, "idleDuration"))


def initial_states(
    initial: RDD[Any] | Iterable[tuple[Any, Any]] | None, spark: SparkContext, operation: str
) -> RDD[Any] | None:
    """Return an RDD of the user's pairs of key and state, None without any."""
    if initial is None or isinstance(initial, RDD):
        return initial
    if isinstance(initial, (str, bytes)) or not isinstance(initial, Iterable):
        raise InvalidStreamError(
            f"initialRDD of {operation} must be an RDD or a collection of (key, state) pairs, "
            f"got {type(initial).__name__}"
        )
    pairs = list(initial.items()) if isinstance(initial, dict) else list(initial)
    _require_states(pairs, f"initialRDD of {operation}")
    return spark.parallelize(pairs)


def _require_states(pairs: list[Any], where: str) -> None:
    keys: set[Any] = set()
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidStreamError(
                f"{where} must hold (key, state) pairs, got {shorten(pair)} ({type(pair).__name__})"
            )
        try:
            is_known = pair[0] in keys
        except TypeError as error:
            raise InvalidStreamError(str(explain_key(pair[0], error, where))) from error
        if is_known:
            raise InvalidStreamError(
                f"{where} has the key {shorten(pair[0])} twice; a key has one state, so reduce the "
                "pairs by key first"
            )
        keys.add(pair[0])
