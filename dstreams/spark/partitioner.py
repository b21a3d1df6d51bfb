"""A partitioner that has the same identity in every process.

PySpark identifies a partitioner by the ``id`` of its function, which differs between processes, so
an RDD that was restored after a restart would be shuffled again. Here the identity is a name:

>>> from dstreams.spark.partitioner import StablePartitioner
>>> StablePartitioner(4)("spark"), StablePartitioner(4)(17), StablePartitioner(4)(17.0)
(1, 1, 1)
>>> StablePartitioner(4) == StablePartitioner(4)
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pyspark.rdd import Partitioner as PySparkPartitioner

from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.function_fingerprint import identity_of
from dstreams.spark.stable_hash import STABLE_HASH_NAME, stable_hash, stable_hashes


class StablePartitioner(PySparkPartitioner):  # type: ignore[misc]
    """A partitioner whose identity is its number of partitions and the name of its function.

    Equal partitioners send equal keys to the same partition in every process, so RDDs with equal
    partitioners are united without a shuffle.

    Args:
        num_partitions: number of partitions, at least 1.
        func: ``key -> int``, taken modulo *num_partitions*. None:
            :func:`~dstreams.spark.stable_hash.stable_hash`.
        name: identity of *func*. None: computed by :mod:`dstreams.spark.function_fingerprint`. Give
            a name to keep the identity if a lambda, a nested function or a function of
            ``__main__`` is edited, or run by another version of Python.

    Raises:
        InvalidStreamError: *num_partitions* is not a positive integer, or *func* is not callable.
    """

    def __init__(
        self, num_partitions: int, func: Callable[[Any], int] | None = None, name: str | None = None
    ) -> None:
        if isinstance(num_partitions, bool) or not isinstance(num_partitions, int):
            raise InvalidStreamError(f"numPartitions must be an integer, got {num_partitions!r}")
        if num_partitions < 1:
            raise InvalidStreamError(f"numPartitions must be at least 1, got {num_partitions}")
        if func is not None and not callable(func):
            raise InvalidStreamError(f"partitionFunc must be callable, got {func!r}")
        super().__init__(num_partitions, stable_hash if func is None else func)
        self.name = name or (STABLE_HASH_NAME if func in (None, stable_hash) else identity_of(func))

    @property
    def jvm_id(self) -> int:
        """The identity in the JVM, a positive signed 64-bit integer."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def __call__(self, key: Any) -> int:
        partition: int = self.partitionFunc(key) % self.numPartitions
        return partition

    def partitions_of(self, keys: list[Any]) -> list[int]:
        """Return the partition of each key.

        Raises:
            TypeError: a key cannot be placed; the message names it.
        """
        func, count = self.partitionFunc, self.numPartitions
        try:
            if func is stable_hash:
                return [number % count for number in stable_hashes(keys)]
            return [func(key) % count for key in keys]
        except Exception as error:
            raise TypeError(self._explain(keys, error)) from error

    def _explain(self, keys: list[Any], error: Exception) -> str:
        for key in keys:
            try:
                self(key)
            except Exception as again:
                return f"the key {shorten(key)} cannot be placed: {again}"
        return f"keys cannot be placed: {error}"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StablePartitioner)
            and self.numPartitions == other.numPartitions
            and self.name == other.name
        )

    def __hash__(self) -> int:
        return hash((self.numPartitions, self.name))

    def __repr__(self) -> str:
        return f"StablePartitioner({self.numPartitions}, {self.name})"
