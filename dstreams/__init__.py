"""Stateful stream processing in Python on Apache Spark RDDs.

>>> from dstreams import StreamingContext, tuned_context
>>> sc = tuned_context("word count")
>>> ssc = StreamingContext(sc, 1)

Names, signatures and behaviour follow ``pyspark.streaming``; the README lists what differs and why.
"""

from __future__ import annotations

from dstreams.api.dstream import DStream
from dstreams.api.life_cycle import StreamingContextState
from dstreams.api.streaming_context import StreamingContext
from dstreams.errors import (
    BatchFailedError,
    DurabilityError,
    EnvironmentNotReadyError,
    InvalidStateCallError,
    InvalidStreamError,
    NoStateError,
    RestartError,
    SourceError,
    StreamError,
    StreamLifecycleError,
)
from dstreams.events import BatchInfo, OutputOperationInfo, StateOperatorInfo
from dstreams.listener import StatsReportListener, StreamingListener
from dstreams.rdd.context import tuned_conf, tuned_context
from dstreams.rdd.partitioner import StablePartitioner
from dstreams.rdd.stable_hash import stable_hash
from dstreams.receiving.receiver import Receiver
from dstreams.runtime.grafting import RestoreReport
from dstreams.settings import Settings
from dstreams.state.group_state import (
    GroupState,
    GroupStateTimeout,
    OutputMode,
    TestGroupState,
)
from dstreams.state.keyed_state import State
from dstreams.state.state_spec import StateSpec

__all__ = [
    "BatchFailedError",
    "BatchInfo",
    "DStream",
    "DurabilityError",
    "EnvironmentNotReadyError",
    "GroupState",
    "GroupStateTimeout",
    "InvalidStateCallError",
    "InvalidStreamError",
    "NoStateError",
    "OutputMode",
    "OutputOperationInfo",
    "Receiver",
    "RestartError",
    "RestoreReport",
    "Settings",
    "SourceError",
    "StablePartitioner",
    "State",
    "StateOperatorInfo",
    "StateSpec",
    "StatsReportListener",
    "StreamError",
    "StreamLifecycleError",
    "StreamingContext",
    "StreamingContextState",
    "StreamingListener",
    "TestGroupState",
    "stable_hash",
    "tuned_conf",
    "tuned_context",
]
