"""Moves the state of a stopped query into another number of partitions, as a batch without data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

from pyspark import SparkContext

from checkpoint.state_store import Classes
from dstreams.common.clock import Clock
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import RestartError
from dstreams.sources.source import PlannedInput
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.state_version import StateVersion
from dstreams.state.processor_states import GroupOfPlace
from dstreams.state.state_versions import StateVersions, repartition
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_checkpoint import (
    QueryCheckpoint,
    claim_checkpoint,
    take_over_state,
)
from dstreams.structured.execution.query_records import (
    QueryBatch,
    QueryCommit,
    batch_end,
    batch_start,
)
from dstreams.structured.operators.join import KeyBefore, StreamingSymmetricHashJoinExec
from dstreams.structured.operators.sessions import SessionWindowStateStoreSaveExec
from dstreams.structured.operators.transform_with_state import TransformWithStateExec

logger = logging.getLogger(__name__)


def repartition_state(
    spark: SparkContext,
    location: str,
    partitions: int,
    conf: QueryConf,
    clock: Clock,
    classes: Classes,
) -> None:
    """Move all states of a query; see :meth:`dstreams.structured.StreamSession.repartitionState`.

    A restart of the query before the commit refuses to run, and another call completes it.
    """
    with ExitStack() as undo:
        claimed = claim_checkpoint(location, "repartitionState")
        undo.callback(claimed.release)
        checkpoint = QueryCheckpoint(location, "", "repartitionState")
        undo.callback(checkpoint.close)
        committed, commit, begun = _found(checkpoint, partitions)
        claimed.claim_id(checkpoint.query_id)
        kept = conf.restored(committed.conf)
        if begun is None and kept.shuffle_partitions == partitions:
            return
        log, states = take_over_state(spark, checkpoint, kept, clock.now_ms(), classes)
        undo.callback(states.release)
        if begun is None:
            begun = _begin(log, committed, commit, kept.replace(shuffle_partitions=partitions))
        moved = _move(states, log, committed, partitions)
        log.commit(
            begun.batch_id,
            begun.begun.batch_time_ms,
            stores=[version.commit for version in moved],
            **batch_end(commit.watermarks, commit.next_timeout_ms),
        )
        log.fence.wait()
    logger.info("moved the state in %s to %d partitions", location, partitions)


def _found(
    checkpoint: QueryCheckpoint, partitions: int
) -> tuple[QueryBatch, QueryCommit, QueryBatch | None]:
    """Return the newest committed batch, its commit, and an interrupted batch that moves state."""
    recovered, location = checkpoint.recovered(), checkpoint.location
    committed, commit = recovered.committed, recovered.commit
    if committed is None or commit is None:
        raise RestartError(
            f"{location} has no committed batch of a query; use the checkpointLocation of one"
        )
    if not recovered.unfinished:
        return committed, commit, None
    begun = recovered.unfinished[0]
    if not begun.moves_state:
        raise RestartError(
            f"batch {begun.batch_id} of {location} has begun and is not committed: start the query "
            "and stop it in order, with its program unchanged, before its state is moved"
        )
    wanted = QueryConf.from_conf(begun.conf).shuffle_partitions
    if wanted != partitions:
        raise RestartError(
            f"repartitionState of {location} to {wanted} partitions was interrupted: complete it "
            f"with numPartitions={wanted} first"
        )
    return committed, commit, begun


def _begin(
    log: StreamCheckpoint, committed: QueryBatch, commit: QueryCommit, conf: QueryConf
) -> QueryBatch:
    time_ms = log.time_of_next(committed.timestamp_ms)
    start = batch_start(
        committed.timestamp_ms,
        commit.watermarks.query_ms,
        committed.watermark_ms,
        [PlannedInput(committed.timestamp_ms, end, end) for end in committed.ends],
        conf.pinned(),
        committed.operators,
        committed.static,
        moves_state=True,
    )
    return QueryBatch(log.begin(committed.batch_id + 1, time_ms, **start))


def _move(
    states: StateVersions, log: StreamCheckpoint, committed: QueryBatch, partitions: int
) -> list[StateVersion]:
    """Write the states of the newest batch into new stores, in the order of the operators."""
    stores = {store.operator_uid: store for store in log.plan.stores}
    partitioner = StablePartitioner(partitions)
    moved = []
    for facts in committed.operators:
        uid, batch = facts["uid"], committed.batch_id
        before, name = StateVersion.committed(log.stream_id, stores[uid]), facts["operatorName"]
        states.restore(uid, batch, before)
        after = repartition(
            states,
            uid,
            name,
            partitioner,
            log.epoch,
            batch,
            _placed_by(facts),
            KeyBefore(before.version) if name == StreamingSymmetricHashJoinExec.shortName else None,
        )
        assert after is not None, "the version was restored above"
        moved.append(after)
    return moved


def _placed_by(facts: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """Return how a key in the store of an operator gives the one that places it; None if equal."""
    name = facts["operatorName"]
    if name == StreamingSymmetricHashJoinExec.shortName:
        return itemgetter(1)
    if name == SessionWindowStateStoreSaveExec.shortName:
        return itemgetter(0)
    return GroupOfPlace.of_described(facts) if name == TransformWithStateExec.shortName else None
