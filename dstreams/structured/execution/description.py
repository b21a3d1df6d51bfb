"""What a query is, as JSON: for ``dstreams checkpoint show``, and to find out what changed."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import pyspark

from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.batch_records import source_uid, watermark_uid
from dstreams.structured.plan.logical import LogicalPlan
from dstreams.structured.plan.planning import PlannedQuery
from dstreams.structured.sinks.sink import Sink

_FORMAT = 1


def describe_query(
    name: str | None,
    plan: LogicalPlan,
    planned: PlannedQuery,
    operators: Sequence[Mapping[str, Any]],
    sink: Sink,
    conf: QueryConf,
) -> dict[str, object]:
    """Describe a query; of its settings only those that its checkpoint keeps."""
    return {
        "format": _FORMAT,
        "query": name,
        "mode": planned.mode.name,
        "inputs": [
            {"uid": source_uid(number), "source": source.name}
            for number, source in enumerate(planned.sources)
        ],
        "watermarks": [
            {"uid": watermark_uid(number), "delay_ms": step.delay_ms, "idle_ms": step.idle_ms}
            for number, step in enumerate(planned.watermarks)
        ],
        "operators": [dict(operator) for operator in operators],
        "outputs": [{"uid": "sink", "sink": sink.name}],
        "plan": plan.tree().splitlines(),
        "physical plan": planned.root.tree().splitlines(),
        "conf": conf.pinned(),
        "versions": {"python": platform.python_version(), "pyspark": pyspark.__version__},
    }
