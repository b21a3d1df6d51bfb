"""Several batches in one task, against the same batches one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.spark.blocks import Block, BlockBuilder, Side
from dstreams.spark.cogroup import _BatchSteps
from dstreams.state.update_function import UpdateFunction

Pairs = list[tuple[int, int]]

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


def frames_of(records: Iterable[tuple[int, int]], side: Side) -> list[bytes]:
    builder = BlockBuilder(side)
    rows = list(records)
    full = builder.extend([key for key, _ in rows], [value for _, value in rows])
    return [*full, *builder.flush()]


def pairs_in(frames: Iterable[bytes]) -> Pairs:
    blocks = map(Block, frames)
    return sorted(
        pair for block in blocks for pair in zip(block.keys(), block.values(), strict=True)
    )


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
    assert pairs_in(steps(0, iter([*inputs, *before]))) == pairs_in(wanted)


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
