"""replay: recorded batches of a stream run again, with other code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dstreams.context import StreamingContext
from dstreams.engine.replay import ReplayedBatch
from dstreams.structured.api.writer import DataStreamWriter
from dstreams.structured.execution.replay import query_in


def replay(
    checkpoint: str,
    setup: Callable[[], StreamingContext | DataStreamWriter] | None = None,
    batches: tuple[int | None, int | None] = (None, None),
    *,
    allowRemoved: Iterable[str] = (),
) -> list[ReplayedBatch]:
    """Run recorded batches of a stream or query again, with other code, and return what they make.

    The checkpoint is copied as of the batch before the first one, and the copy is given to the
    streams by the rules of :meth:`dstreams.StreamingContext.restore`, or to the query by those of a
    restart. Each batch reads the input that its begin record names, at its recorded time, and with
    its recorded watermark. Outputs are replaced by recorders. The checkpoint is only read; its
    stream or query may be running.

    >>> from dstreams.testing import replay
    >>> batches = replay("/checkpoints/app", setup)          # doctest: +SKIP
    >>> batches[-1].states["counts"]["alice"]                # doctest: +SKIP
    3

    Args:
        checkpoint: path or URL of the checkpoint directory.
        setup: ``f() -> StreamingContext``; defines the streams without starting them. None: the
            streams that are recorded in the checkpoint. For a query, which does not record its
            code, ``f() -> DataStreamWriter``; it does not call ``start``.
        batches: times in milliseconds of the first and the last batch to run again. None: the
            oldest that is possible, and the newest that was begun.
        allowRemoved: uids of operators and inputs whose state or progress may be discarded.

    Returns:
        The batches in order, each with the records of its outputs and the states after it. The
        output of a query is ``sink``; those for late and rejected records are ``sink1`` and so on.

    Raises:
        InvalidStreamError: there is no such checkpoint, or it does not keep these batches.
        RestartError: the checkpoint is damaged, or does not match the streams.
        SourceError: input of the batches is not available any more, such as files. Nothing has run.
        BatchFailedError: a batch fails.
    """
    first_ms, last_ms = batches
    program: Any = StreamingContext if query_in(checkpoint) is None else DataStreamWriter
    with program._replay(
        checkpoint, setup, first_ms=first_ms, last_ms=last_ms, allow_removed=allowRemoved
    ) as opened:
        batches_of: list[ReplayedBatch] = opened.step(len(opened.left_ms))
    return batches_of
