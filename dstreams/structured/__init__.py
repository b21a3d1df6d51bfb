"""Structured queries: a program over unbounded data, run in batches, with state exactly once.

>>> from dstreams.structured import GroupStateTimeout, StreamSession
>>> session = StreamSession(spark)
>>> rate = session.readStream.format("rate").option("rowsPerSecond", 10).load()

Names are those of ``pyspark.sql.streaming``; records are Python objects.
"""

from __future__ import annotations

from dstreams.state.group_state import GroupState, GroupStateTimeout, OutputMode, TestGroupState
from dstreams.structured.dataset import StreamingDataset
from dstreams.structured.grouped import GroupedDataset
from dstreams.structured.listeners import StreamingQueryListener
from dstreams.structured.operators.windows import Window
from dstreams.structured.query import StreamingQuery, StreamingQueryException
from dstreams.structured.session import StreamSession
from dstreams.structured.unsupported import UnsupportedOperationError
from dstreams.structured.windows import session_window, window

__all__ = [
    "GroupState",
    "GroupStateTimeout",
    "GroupedDataset",
    "OutputMode",
    "StreamSession",
    "StreamingDataset",
    "StreamingQuery",
    "StreamingQueryException",
    "StreamingQueryListener",
    "TestGroupState",
    "UnsupportedOperationError",
    "Window",
    "session_window",
    "window",
]
