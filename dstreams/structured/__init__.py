"""Structured queries: programs over unbounded data, run in batches, with exactly-once state.

>>> from dstreams.structured import GroupStateTimeout, StreamSession
>>> session = StreamSession(spark)
>>> rate = session.readStream.format("rate").option("rowsPerSecond", 10).load()

Names are those of ``pyspark.sql.streaming``; records are Python objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstreams.common.imports import lazy_names

if TYPE_CHECKING:
    from dstreams.state.group_state import GroupState as GroupState
    from dstreams.state.group_state import GroupStateTimeout as GroupStateTimeout
    from dstreams.state.group_state import OutputMode as OutputMode
    from dstreams.state.group_state import TestGroupState as TestGroupState
    from dstreams.state.stateful_processor import ExpiredTimerInfo as ExpiredTimerInfo
    from dstreams.state.stateful_processor import ListState as ListState
    from dstreams.state.stateful_processor import MapState as MapState
    from dstreams.state.stateful_processor import StatefulProcessor as StatefulProcessor
    from dstreams.state.stateful_processor import (
        StatefulProcessorHandle as StatefulProcessorHandle,
    )
    from dstreams.state.stateful_processor import TimerValues as TimerValues
    from dstreams.state.stateful_processor import ValueState as ValueState
    from dstreams.structured.api.dataset import GroupedDataset as GroupedDataset
    from dstreams.structured.api.dataset import StreamingDataset as StreamingDataset
    from dstreams.structured.api.listeners import StreamingQueryListener as StreamingQueryListener
    from dstreams.structured.api.query import StreamingQuery as StreamingQuery
    from dstreams.structured.api.query import StreamingQueryException as StreamingQueryException
    from dstreams.structured.api.session import StreamSession as StreamSession
    from dstreams.structured.named_rows import NamedRow as NamedRow
    from dstreams.structured.named_rows import Window as Window
    from dstreams.structured.plan.unsupported import (
        UnsupportedOperationError as UnsupportedOperationError,
    )
    from dstreams.structured.window_function import session_window as session_window
    from dstreams.structured.window_function import window as window

_HOMES = {
    "ExpiredTimerInfo": "dstreams.state.stateful_processor",
    "GroupState": "dstreams.state.group_state",
    "GroupStateTimeout": "dstreams.state.group_state",
    "GroupedDataset": "dstreams.structured.api.dataset",
    "ListState": "dstreams.state.stateful_processor",
    "MapState": "dstreams.state.stateful_processor",
    "NamedRow": "dstreams.structured.named_rows",
    "OutputMode": "dstreams.state.group_state",
    "StreamSession": "dstreams.structured.api.session",
    "StatefulProcessor": "dstreams.state.stateful_processor",
    "StatefulProcessorHandle": "dstreams.state.stateful_processor",
    "StreamingDataset": "dstreams.structured.api.dataset",
    "StreamingQuery": "dstreams.structured.api.query",
    "StreamingQueryException": "dstreams.structured.api.query",
    "StreamingQueryListener": "dstreams.structured.api.listeners",
    "TestGroupState": "dstreams.state.group_state",
    "TimerValues": "dstreams.state.stateful_processor",
    "UnsupportedOperationError": "dstreams.structured.plan.unsupported",
    "ValueState": "dstreams.state.stateful_processor",
    "Window": "dstreams.structured.named_rows",
    "session_window": "dstreams.structured.window_function",
    "window": "dstreams.structured.window_function",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
