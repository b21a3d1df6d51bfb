"""The states that a stateful stream begins with, checked while their caller is still there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.shuffle import explain_key


def initial_states(
    initial: RDD[Any] | Iterable[tuple[Any, Any]] | None, spark: SparkContext, operation: str
) -> RDD[Any] | None:
    """Return the RDD of the pairs of key and state that a user gave, None for none."""
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
