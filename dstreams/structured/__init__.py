"""Structured queries: a program over unbounded data, run in batches, with state exactly once.

>>> from dstreams.structured import GroupStateTimeout, StreamSession
>>> session = StreamSession(spark)
>>> rate = session.readStream.format("rate").option("rowsPerSecond", 10).load()

Names are those of ``pyspark.sql.streaming``; records are Python objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstreams.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from dstreams.state.group_state import GroupState as GroupState
    from dstreams.state.group_state import GroupStateTimeout as GroupStateTimeout
    from dstreams.state.group_state import OutputMode as OutputMode
    from dstreams.state.group_state import TestGroupState as TestGroupState
    from dstreams.structured.api.dataset import GroupedDataset as GroupedDataset
    from dstreams.structured.api.dataset import StreamingDataset as StreamingDataset
    from dstreams.structured.api.listeners import StreamingQueryListener as StreamingQueryListener
    from dstreams.structured.api.query import StreamingQuery as StreamingQuery
    from dstreams.structured.api.query import StreamingQueryException as StreamingQueryException
    from dstreams.structured.api.session import StreamSession as StreamSession
    from dstreams.structured.operators.time_windows import Window as Window
    from dstreams.structured.plan.unsupported import (
        UnsupportedOperationError as UnsupportedOperationError,
    )
    from dstreams.structured.window_function import session_window as session_window
    from dstreams.structured.window_function import window as window

_HOMES = {
    "GroupState": "dstreams.state.group_state",
    "GroupStateTimeout": "dstreams.state.group_state",
    "GroupedDataset": "dstreams.structured.api.dataset",
    "OutputMode": "dstreams.state.group_state",
    "StreamSession": "dstreams.structured.api.session",
    "StreamingDataset": "dstreams.structured.api.dataset",
    "StreamingQuery": "dstreams.structured.api.query",
    "StreamingQueryException": "dstreams.structured.api.query",
    "StreamingQueryListener": "dstreams.structured.api.listeners",
    "TestGroupState": "dstreams.state.group_state",
    "UnsupportedOperationError": "dstreams.structured.plan.unsupported",
    "Window": "dstreams.structured.operators.time_windows",
    "session_window": "dstreams.structured.window_function",
    "window": "dstreams.structured.window_function",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
