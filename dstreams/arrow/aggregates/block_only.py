"""Aggregates of blocks only: TopK and ApproxDistinct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, log2
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.aggregates.functions import ColumnAggregate, column_name
from dstreams.arrow.groups import Groups, Ordered, list_sizes, lists_of, numpy_of, valid_rows
from dstreams.arrow.key_hash import UnplaceableKeyError, flags_of, hashes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.groups import Floats, Ints

_RANK_BITS = 6
_LEAST_BITS, _MOST_BITS = 7, 18
_ONE_REGISTER = 1.07
"""The relative standard deviation is below this divided by the root of the registers."""


@dataclass(frozen=True)
class TopK(ColumnAggregate):
    """The *k* rows of a key with the greatest *by*, greatest first, as a list.

    Elements are structs of *column* and *by*; without a *by* they are the greatest values of
    *column*. Rows whose *by* is null are passed over; of those with an equal one the row that came
    first stands first. It does not count: for what is most frequent see the how-to.
    """

    part_names: ClassVar[tuple[str, ...]] = ("top",)
    is_ordered: ClassVar[bool] = True

    of: str
    k: int
    by: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"k of TopK must be a positive integer, got {self.k!r}")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (column_name(self.of),) if self._by == self.of else (self.of, self._by)

    @property
    def _by(self) -> str:
        return self.of if self.by is None else self.by

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        if len(columns) == 1:
            values = columns[0]
        else:
            values = pa.StructArray.from_arrays(columns, names=list(self.inputs))
        flags = flags_of(columns[-1].is_valid())
        return [self._top(groups.where(flags), values.filter(pa.array(flags)))]

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        sizes = list_sizes(parts[0])
        rows = Groups(np.repeat(groups.of_rows, sizes), groups.count)
        return [self._top(rows, parts[0].flatten())]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        return parts[0]

    def _top(self, rows: Groups, values: pa.Array) -> pa.Array:
        by = pc.struct_field(values, [1]) if len(self.inputs) == 2 else values
        order = np.lexsort((~Ordered.of(by).numbers, rows.of_rows))
        groups = rows.of_rows[order]
        sizes = rows.counts()
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = rank < self.k
        sizes = Groups(groups[kept], rows.count).counts()
        return lists_of(values.take(pa.array(order[kept])), sizes)


@dataclass(frozen=True)
class ApproxDistinct(ColumnAggregate):
    """The approximate number of distinct values of a column, without nulls: int64 (HyperLogLog).

    The result has a relative standard deviation of at most *relativeSD*: two of three are nearer
    than that, 19 of 20 within twice of it. A key has ``(1.07 / relativeSD)**2`` registers, rounded
    up to a power of two, of 2 bytes each (4 if there are more than 1,024), and as many as it has
    different values if these are fewer. NaN equals NaN, and -0.0 equals 0.0.

    Each register keeps the longest run of zeros in the hashes of its values. The estimate is that
    of O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), section 3:
    it needs no tables, and has the same error for few values and for many.
    """

    part_names: ClassVar[tuple[str, ...]] = ("registers",)

    of: str
    relativeSD: float = 0.05

    def __post_init__(self) -> None:
        least, most = (_ONE_REGISTER / 2 ** (bits / 2) for bits in (_MOST_BITS, _LEAST_BITS))
        if not least <= self.relativeSD <= most:
            raise ValueError(
                f"relativeSD of ApproxDistinct must be from {least:.4f} to {most:.2f}, got "
                f"{self.relativeSD!r}"
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        return (column_name(self.of),)

    @property
    def bits(self) -> int:
        """The number of bits of a hash that select its register."""
        return max(_LEAST_BITS, ceil(2 * log2(_ONE_REGISTER / self.relativeSD)))

    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        rows, values = valid_rows(groups, columns[0])
        return [self._lists(rows, self._entries(_hashes(values)))]

    def merge_parts(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        sizes = list_sizes(parts[0])
        rows = Groups(np.repeat(groups.of_rows, sizes), groups.count)
        return [self._lists(rows, numpy_of(parts[0].flatten()).astype(np.int64))]

    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        registers = parts[0]
        sizes = list_sizes(registers)
        of_rows = np.repeat(np.arange(len(sizes)), sizes)
        ranks = numpy_of(registers.flatten()).astype(np.int64) & (2**_RANK_BITS - 1)
        return pa.array(
            np.rint(_estimates(Groups(of_rows, len(sizes)), ranks, self.bits)), pa.int64()
        )

    def _entries(self, hashes: NDArray[np.uint64]) -> Ints:
        """Return for each hash its register and, in the last bits, how many zeros it has there."""
        left = 64 - self.bits
        register = (hashes >> np.uint64(left)).astype(np.int64)
        rest = hashes & np.uint64(2**left - 1)
        ranks = left + 1 - _bit_lengths(rest)
        return np.asarray(register << _RANK_BITS | ranks)

    def _lists(self, rows: Groups, entries: Ints) -> pa.Array:
        """Return the registers of each group, each once with its greatest rank, in order."""
        width = self.bits + _RANK_BITS
        every = np.sort(rows.of_rows << width | entries)
        registers = every >> _RANK_BITS
        greatest = np.append(registers[1:] != registers[:-1], True)[: len(every)]
        every = every[greatest]
        kind = np.uint16 if width <= 16 else np.uint32
        values = pa.array((every & (2**width - 1)).astype(kind))
        return lists_of(values, Groups(every >> width, rows.count).counts())


def _hashes(values: pa.Array) -> NDArray[np.uint64]:
    if pa.types.is_floating(values.type):
        floats = numpy_of(values).astype(np.float64) + 0.0
        values = pa.array(np.where(np.isnan(floats), np.nan, floats).view(np.int64))
    try:
        return hashes_of([values])
    except UnplaceableKeyError:
        raise TypeError(
            f"values of {values.type} have no hash; use numbers, decimals, texts, bytes or times"
        ) from None


def _bit_lengths(words: NDArray[np.uint64]) -> Ints:
    """Return how many bits each word has up to its highest one."""
    high = np.frexp((words >> np.uint64(32)).astype(np.float64))[1]
    low = np.frexp((words & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    return np.asarray(np.where(high > 0, high + 32, low), np.int64)


def _estimates(rows: Groups, ranks: Ints, bits: int) -> Floats:
    """Return how many different values each group has, from the ranks of its registers."""
    registers, most = 2**bits, 64 - bits + 1
    full = ranks == most
    empty = registers - rows.counts()
    inner = rows.where(~full).float_sums(0.5 ** ranks[~full])
    with np.errstate(divide="ignore"):
        ends = _tau(1 - rows.where(full).counts() / registers) * 0.5 ** (most - 1)
        total = inner + registers * (ends + _sigma(empty / registers))
        return np.asarray(registers * registers / (2 * log(2)) / total)


def _sigma(x: Floats) -> Floats:
    """Return the share of empty registers: x + the sum of x**(2**k) * 2**(k - 1); inf for 1."""
    result = np.where(x == 1, np.inf, x)
    power, weight, before = np.where(x == 1, 0, x), 1.0, np.full_like(x, -1)
    while (result != before).any():
        before = result
        power = power * power
        result = result + power * weight
        weight *= 2
    return result


def _tau(x: Floats) -> Any:
    """Return the share of full registers; 0 for both 0 and 1."""
    result = np.where((x == 0) | (x == 1), 0, 1 - x)
    root, weight, before = np.where(x == 0, 1, x), 1.0, np.full_like(x, -1)
    while (result != before).any():
        before = result
        root = np.sqrt(root)
        weight /= 2
        result = result - (1 - root) ** 2 * weight
    return result / 3
