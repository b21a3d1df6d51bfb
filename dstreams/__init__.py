"""Stateful stream processing in Python on Apache Spark RDDs.

>>> from dstreams import StreamingContext, tuned_context
>>> sc = tuned_context("word count")
>>> ssc = StreamingContext(sc, 1)

Names, signatures and behaviour follow ``pyspark.streaming``; the documentation lists what differs
and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstreams.common.imports import lazy_names, require_own_checkpoint

require_own_checkpoint()

if TYPE_CHECKING:
    from dstreams.checkpoint_state import CheckpointState as CheckpointState
    from dstreams.common.settings import Settings as Settings
    from dstreams.context import StreamingContext as StreamingContext
    from dstreams.dstream import DStream as DStream
    from dstreams.engine.lifecycle import StreamingContextState as StreamingContextState
    from dstreams.engine.recovery.compatibility import RestoreReport as RestoreReport
    from dstreams.engine.recovery.spark_checkpoint import spark_state as spark_state
    from dstreams.errors import BatchFailedError as BatchFailedError
    from dstreams.errors import DurabilityError as DurabilityError
    from dstreams.errors import EnvironmentNotReadyError as EnvironmentNotReadyError
    from dstreams.errors import IncompleteStopError as IncompleteStopError
    from dstreams.errors import InvalidStateCallError as InvalidStateCallError
    from dstreams.errors import InvalidStreamError as InvalidStreamError
    from dstreams.errors import NoStateError as NoStateError
    from dstreams.errors import OutputConflictError as OutputConflictError
    from dstreams.errors import RestartError as RestartError
    from dstreams.errors import SourceError as SourceError
    from dstreams.errors import StreamError as StreamError
    from dstreams.errors import StreamLifecycleError as StreamLifecycleError
    from dstreams.listener import StatsReportListener as StatsReportListener
    from dstreams.listener import StreamingListener as StreamingListener
    from dstreams.monitoring.events import BatchInfo as BatchInfo
    from dstreams.monitoring.events import OutputOperationInfo as OutputOperationInfo
    from dstreams.monitoring.events import StateOperatorInfo as StateOperatorInfo
    from dstreams.sources.receiver import Receiver as Receiver
    from dstreams.spark.partitioner import StablePartitioner as StablePartitioner
    from dstreams.spark.rejected_records import RejectedRecord as RejectedRecord
    from dstreams.spark.spark_context import tuned_conf as tuned_conf
    from dstreams.spark.spark_context import tuned_context as tuned_context
    from dstreams.spark.stable_hash import stable_hash as stable_hash
    from dstreams.state.group_state import GroupState as GroupState
    from dstreams.state.group_state import GroupStateTimeout as GroupStateTimeout
    from dstreams.state.group_state import OutputMode as OutputMode
    from dstreams.state.group_state import State as State
    from dstreams.state.group_state import TestGroupState as TestGroupState
    from dstreams.state.map_with_state import StateSpec as StateSpec
    from dstreams.state.stateful_processor import ExpiredTimerInfo as ExpiredTimerInfo
    from dstreams.state.stateful_processor import ListState as ListState
    from dstreams.state.stateful_processor import MapState as MapState
    from dstreams.state.stateful_processor import StatefulProcessor as StatefulProcessor
    from dstreams.state.stateful_processor import StatefulProcessorHandle as StatefulProcessorHandle
    from dstreams.state.stateful_processor import TimerValues as TimerValues
    from dstreams.state.stateful_processor import ValueState as ValueState

_HOMES = {
    "BatchFailedError": "dstreams.errors",
    "BatchInfo": "dstreams.monitoring.events",
    "CheckpointState": "dstreams.checkpoint_state",
    "DStream": "dstreams.dstream",
    "DurabilityError": "dstreams.errors",
    "EnvironmentNotReadyError": "dstreams.errors",
    "ExpiredTimerInfo": "dstreams.state.stateful_processor",
    "GroupState": "dstreams.state.group_state",
    "GroupStateTimeout": "dstreams.state.group_state",
    "IncompleteStopError": "dstreams.errors",
    "InvalidStateCallError": "dstreams.errors",
    "InvalidStreamError": "dstreams.errors",
    "ListState": "dstreams.state.stateful_processor",
    "MapState": "dstreams.state.stateful_processor",
    "NoStateError": "dstreams.errors",
    "OutputConflictError": "dstreams.errors",
    "OutputMode": "dstreams.state.group_state",
    "OutputOperationInfo": "dstreams.monitoring.events",
    "Receiver": "dstreams.sources.receiver",
    "RejectedRecord": "dstreams.spark.rejected_records",
    "RestartError": "dstreams.errors",
    "RestoreReport": "dstreams.engine.recovery.compatibility",
    "Settings": "dstreams.common.settings",
    "SourceError": "dstreams.errors",
    "StablePartitioner": "dstreams.spark.partitioner",
    "State": "dstreams.state.group_state",
    "StateOperatorInfo": "dstreams.monitoring.events",
    "StateSpec": "dstreams.state.map_with_state",
    "StatefulProcessor": "dstreams.state.stateful_processor",
    "StatefulProcessorHandle": "dstreams.state.stateful_processor",
    "StatsReportListener": "dstreams.listener",
    "StreamError": "dstreams.errors",
    "StreamLifecycleError": "dstreams.errors",
    "StreamingContext": "dstreams.context",
    "StreamingContextState": "dstreams.engine.lifecycle",
    "StreamingListener": "dstreams.listener",
    "TestGroupState": "dstreams.state.group_state",
    "TimerValues": "dstreams.state.stateful_processor",
    "ValueState": "dstreams.state.stateful_processor",
    "spark_state": "dstreams.engine.recovery.spark_checkpoint",
    "stable_hash": "dstreams.spark.stable_hash",
    "tuned_conf": "dstreams.spark.spark_context",
    "tuned_context": "dstreams.spark.spark_context",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
