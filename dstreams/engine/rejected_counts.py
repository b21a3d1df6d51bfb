"""Records that were left out behind an input, because they could not be decoded: who is told."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import InputInfo
from dstreams.sources.source import InputDescription, merge_info
from dstreams.spark.bad_records import LeavesOut

logger = logging.getLogger(__name__)

REJECTED = "rejected"


def with_left_out(
    infos: tuple[InputInfo, ...], plan: Plan, history: History, time_ms: int
) -> tuple[InputInfo, ...]:
    """Return what is told of the inputs of a batch, with the records that its streams left out.

    They count for the input that the stream is made of; of several, for the first.
    """
    counts: Counter[int] = Counter()
    for node in plan.nodes:
        for rdd in history.remembered(node, time_ms - 1, time_ms):
            if not isinstance(rdd, LeavesOut):
                continue
            reports = rdd.left_out.facts()
            stream = next(_inputs_of(node), None)
            if not reports or stream is None:
                continue
            records = sum(one.records for one in reports)
            counts[stream.stream_id] += records
            logger.warning(
                "%s: of the records of the batch at %d ms %s, such as %s",
                node.operation,
                time_ms,
                _said(records),
                reports[0].first,
            )
    return tuple(
        merge_info(info, _noticed(info, counts[info.stream_id])) if counts[info.stream_id] else info
        for info in infos
    )


def _inputs_of(node: Node) -> Iterator[InputDStream]:
    if isinstance(node, InputDStream):
        yield node
    for parent in node.parents:
        yield from _inputs_of(parent)


def _noticed(info: InputInfo, records: int) -> InputDescription:
    known = info.metadata.get(REJECTED, 0)
    return InputDescription(f"; {_said(records)}", {REJECTED: known + records})


def _said(records: int) -> str:
    return f"{records} could not be decoded and were skipped"
