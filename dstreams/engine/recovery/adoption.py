"""Adopting a stream of pyspark.streaming: a new checkpoint with the state and offsets of Spark's.

:func:`plan_adoption` matches what Spark's checkpoint holds with the streams of a program, and
changes nothing. :meth:`Adoption.write` writes what a driver of dstreams would have left, so that a
restart continues from there::

    batches of Spark    1 2 3 4 5 6 7 8 9           written
    state in files            x                     a commit record of batch 4 with the state
    complete            x x x x x x x               a commit record of batch 7
    files recorded          x x x x x x x           begin records of batches 5 to 9
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex  # noqa: TID251
from typing import Any, TypeVar

from pyspark import RDD, SparkContext

from checkpoint import (
    INPUT_FILES,
    INPUTS_NEEDED_AFTER,
    DriverProcess,
    OperatorSnapshot,
    RecoveryPlan,
    StatePartition,
    discard_stream,
    open_files,
    open_stream,
    stream_ids,
    without_secrets,
)
from dstreams.common.clock import SystemClock
from dstreams.common.durations import batch_datetime
from dstreams.common.settings import Settings
from dstreams.engine.recovery.compatibility import RestoreReport, compare_graphs, require_fit
from dstreams.engine.recovery.graph_snapshot import (
    describe_plan,
    pickle_graph,
    write_graph_snapshot,
)
from dstreams.engine.recovery.recover import ADOPTS, Program, interrupted_adoptions
from dstreams.engine.recovery.spark_checkpoint import (
    INVERSE_SLIDES,
    SparkCheckpoint,
    SparkInput,
    SparkRange,
    SparkRanges,
    SparkState,
    read_spark_checkpoint,
    reading_state,
    spark_state,
    state_directories,
    without_graph,
)
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import InvalidStreamError, RestartError, SourceError
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.graph.state import StateDStream
from dstreams.graph.windowed import ReducedWindowedDStream, WindowedDStream
from dstreams.kafka.offsets import Position, TopicPartition
from dstreams.sources.file_listing import FileStamp, open_listing
from dstreams.sources.file_reader import some_names
from dstreams.sources.file_selection import SETTLED, FileSelection, Selection
from dstreams.sources.file_stream import FileSource
from dstreams.sources.queue import QueueSource
from dstreams.sources.source import PlannedInput, SourceEnvironment
from dstreams.spark.blocks import Side, shorten
from dstreams.spark.encryption import require_encrypted_files
from dstreams.spark.rdd_files import write_rdd
from dstreams.spark.shuffle import PAIR_FRAMES
from dstreams.spark.worker_python import require_shared, require_workers

_UNKEYED = ("reduceByWindow", "countByWindow")
"""Windows whose single value has the key 1 in Spark, and None here."""

_NOT_IN_FILES = "Spark does not keep what it has received in files that can be read"
_UNKNOWN_INPUT = (
    "which input is in the named states is not known: each input begins with what is new to it"
)
_T = TypeVar("_T")

_NOTHING = RecoveryPlan(None, None, (), {}, (), {}, (), {})

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adoption:
    """What a program takes over from a checkpoint of Spark.

    Args:
        found: the checkpoint of Spark.
        plan: the plan of the program.
        states: the state of Spark for each stream with state.
        inputs: the input of Spark for each input.
        files: the files that exist now, for each file stream, by path.
        last_ms: time of the last batch that does not run again.
        since: as :meth:`Plan.required_since` of that batch.
        report: the effects, and what prevents the adoption.
    """

    found: SparkCheckpoint
    plan: Plan
    states: Mapping[Node, SparkState]
    inputs: Mapping[InputDStream, SparkInput]
    files: Mapping[InputDStream, Mapping[str, FileStamp]]
    last_ms: int
    since: Mapping[Node, int]
    report: RestoreReport

    @property
    def _first_ms(self) -> int:
        """The time after which batches get a begin record; the last batch always does."""
        before_last_ms = max(self.plan.zero_ms, self.last_ms - self.plan.batch_ms)
        return min([before_last_ms, *self.since.values()])

    def write(
        self,
        directory: str,
        program: Program,
        now_ms: int,
    ) -> None:
        """Write the new checkpoint into *directory*. The graph, which makes it count, comes last.

        What an interrupted adoption has left is deleted first. If it fails, what was written is
        deleted.
        """
        plan, found = self.plan, self.found
        facts = {ADOPTS: without_secrets(found.files.url)}
        driver = DriverProcess.of_this_process(now_ms, facts)
        for interrupted in interrupted_adoptions(directory, stream_ids(open_files(directory))):
            discard_stream(open_stream(directory, interrupted), interrupted, driver)
        pickled = pickle_graph(program.graph, program.context)
        stream_id = f"stream-{plan.zero_ms}-{token_hex(4)}"
        files = open_stream(directory, stream_id)
        checkpoint = StreamCheckpoint.take_over(files, stream_id, now_ms, facts=facts)
        try:
            checkpoint.fence.wait()
            snapshots = self._write_states(checkpoint, program.spark)
            checkpoint.write_inputs(self._first_ms, self._read_before(program.settings))
            ends: dict[str, int] = {}
            for time_ms in range(self._first_ms, found.time_ms + 1, plan.batch_ms):
                number = max(0, (time_ms - plan.zero_ms) // plan.batch_ms - 1)
                if time_ms > self._first_ms:
                    checkpoint.begin(number, time_ms, self._inputs_at(time_ms, ends))
                if time_ms in snapshots or plan.zero_ms < time_ms == self.last_ms:
                    self._commit(checkpoint, number, time_ms, snapshots.get(time_ms, {}))
            added = {plan.nodes[one].uid: self.last_ms for one in _added(plan, self.report)}
            write_graph_snapshot(
                checkpoint.owned, stream_id, plan, pickled, program.spark, program.given, added
            )
            checkpoint.require_newest()  # or another driver has discarded this
            checkpoint.release()
        except BaseException:
            checkpoint.give_up()
            for name in files.list(""):
                files.delete(name)
            raise
        logger.info("adopted %s/%s as stream %s", found.files.url, found.name, stream_id)

    def _commit(
        self,
        checkpoint: StreamCheckpoint,
        number: int,
        time_ms: int,
        snapshots: Mapping[str, OperatorSnapshot],
    ) -> None:
        uids = self.plan.input_uids
        needed = {uids[stream]: self.since.get(stream, self.last_ms) for stream in self.files}
        facts = {INPUTS_NEEDED_AFTER: needed} if needed else {}
        checkpoint.commit(number, time_ms, snapshots=snapshots, facts=facts)
        checkpoint.fence.wait()

    def _write_states(
        self, checkpoint: StreamCheckpoint, spark: SparkContext
    ) -> dict[int, dict[str, OperatorSnapshot]]:
        """Write the states that a restart may begin with, by batch time and uid."""
        written: dict[int, dict[str, OperatorSnapshot]] = {}
        for node, state in self.states.items():
            placed: Any = node  # a stateful node has a partitioner and a layout
            uid, count = self.plan.nodes[node].uid, placed.partitioner.numPartitions
            for time_ms, directory in state.directories.items():
                if not self.since[node] <= time_ms <= self.last_ms:
                    continue
                pairs = _as_kept(node, self.found.pairs(spark, directory))
                frames = placed.layout.frames(pairs, placed.partitioner, Side.STATE, node.operation)
                first = StatePartition(
                    checkpoint.stream_id, uid, time_ms, 0, count, placed.partitioner.name
                )
                files = checkpoint.files
                with reading_state(f"{self.found.files.url}/{directory}"):
                    rdd = write_rdd(placed.layout.rdd(frames), files, first, checkpoint.epoch)
                snapshot = OperatorSnapshot(first.partitioner, rdd.files)
                written.setdefault(time_ms, {})[uid] = snapshot
                keys = sum(ref.records for ref in rdd.files)
                logger.info("adopted %d keys of %s at %d ms", keys, uid, time_ms)
        return written

    def _read_before(self, settings: Settings) -> dict[str, Mapping[str, Any]]:
        """Return what batches without a begin record have read, by uid."""
        facts: dict[str, Mapping[str, Any]] = {}
        for stream, listing in self.files.items():
            spark_input, source = self.inputs[stream], stream.source
            assert isinstance(source, FileSource)
            read = spark_input.files or {}
            stamps = {time_ms: _stamps(paths, listing) for time_ms, paths in read.items()}
            known = {stamp for of_batch in stamps.values() for stamp in of_batch}
            # Spark forgets files that are too old to be read, and so does not read them again.
            old_ms = self.found.time_ms + self.plan.batch_ms - spark_input.window_ms
            since_ms = spark_input.new_since_ms
            old = (stamp for stamp in listing.values() if stamp.modified_ms <= old_ms)
            selection = FileSelection(
                source.rules(settings, self.plan.batch_ms),
                since_ms,
                self._first_ms,
                tuple(stamp for stamp in old if stamp not in known),
            )
            earlier = [one for at, of in stamps.items() if at <= self._first_ms for one in of]
            selected = Selection(tuple(earlier), self._first_ms)
            selection.take(selected, self._first_ms, 0)
            facts[self.plan.input_uids[stream]] = selection.snapshot(0)
        return facts

    def _inputs_at(self, time_ms: int, ends: dict[str, int]) -> dict[str, object]:
        """Return what a batch reads, by uid; *ends* has the number of batches with files."""
        planned: dict[str, object] = {}
        for stream, spark_input in self.inputs.items():
            uid, source = self.plan.input_uids[stream], stream.source
            if isinstance(source, FileSource):
                start = ends.setdefault(uid, 0)
                paths = (spark_input.files or {}).get(time_ms, ())
                stamps = _stamps(paths, self.files[stream])
                ends[uid] += bool(stamps)
                facts = {INPUT_FILES: stamps, SETTLED: time_ms} if stamps else {}
                records = source.format.count(stamps)
                one = PlannedInput(time_ms, start, ends[uid], facts, records)
                planned[uid] = one.to_record()
            elif spark_input.ranges is not None:
                if time_ms in spark_input.ranges:
                    planned[uid] = _of_kafka(time_ms, spark_input.ranges[time_ms]).to_record()
            elif isinstance(source, QueueSource):
                number = (time_ms - self.plan.zero_ms) // self.plan.batch_ms
                end, start = source.end_after(number), source.end_after(number - 1)
                planned[uid] = PlannedInput(time_ms, start, end, records=None).to_record()
        return planned


def adopt(
    url: str,
    directory: str | None,
    program: Program,
    now_ms: int,
    allow_removed: tuple[str, ...] = (),
    states: Mapping[str, str] | None = None,
) -> RestoreReport:
    """Write a checkpoint of Spark as a new one into *directory*; only report it if that is None.

    *states* as in :meth:`StreamingContext.restore`. Raises RestartError, with the refusals if
    anything would be written.
    """
    spark, is_dry = program.spark, directory is None
    if states:
        found = named_checkpoint(url, program.graph, now_ms)
    else:
        found = read_spark_checkpoint(url, spark)
    adoption = plan_adoption(
        found, program.graph, spark, program.settings, allow_removed, states, counts_keys=is_dry
    )
    if directory is not None:
        require_fit(adoption.report, found.files.url)
        require_encrypted_files(spark, program.settings)
        require_workers(spark)
        require_shared(spark, open_files(directory))
        adoption.write(directory, program, now_ms)
    return adoption.report


def plan_adoption(
    found: SparkCheckpoint,
    graph: StreamGraph,
    spark: SparkContext,
    settings: Settings,
    allow_removed: tuple[str, ...] = (),
    named: Mapping[str, str] | None = None,
    *,
    counts_keys: bool = False,
) -> Adoption:
    """Match a checkpoint of Spark with the streams of a program, by place or uid.

    *named* are the directories of states by uid, instead. *counts_keys* runs a job for each state.
    """
    plan = graph.freeze(found.zero_ms, has_checkpoint_directory=True)
    states = _named(found, plan, named) if named else _states_by_uid(found, plan, allow_removed)
    inputs = _inputs_by_uid(found, plan, allow_removed)
    now = describe_plan(plan, spark.getConf())
    name = f"of pyspark.streaming in {found.files.url}, {found.name}"
    report = compare_graphs(
        _description(found, states, inputs, now), now, plan, _NOTHING, name, allow_removed
    )
    kept = set(report.kept)
    of_nodes = {
        node: states[planned.uid]
        for node, planned in plan.nodes.items()
        if planned.uid in kept & states.keys()
    }
    of_inputs = {
        stream: inputs[uid]
        for stream, uid in plan.input_uids.items()
        if uid in kept & inputs.keys()
    }
    refusals = [*report.refusals, *_not_taken(plan, of_nodes)]
    if refusals:
        report = replace(report, refusals=tuple(refusals))
        return Adoption(found, plan, {}, {}, {}, found.zero_ms, {}, report)
    added = _added(plan, report)
    last_ms, since = _last_batch(found, plan, of_nodes, of_inputs, added)
    listings = {
        stream: open_listing(stream.source.directory, spark).files() or {}
        for stream in of_inputs
        if isinstance(stream.source, FileSource)
    }
    adoption = Adoption(found, plan, of_nodes, of_inputs, listings, last_ms, since, report)
    refusals = list(_unreadable(adoption, spark, settings))
    batches = range(last_ms + found.batch_ms, found.time_ms + 1, found.batch_ms)
    report = replace(
        report,
        last_batch_ms=last_ms,
        in_flight_ms=tuple(batches),
        notes=(*report.notes, *_notes(adoption), *([_UNKNOWN_INPUT] if named else ())),
        refusals=tuple(refusals),
    )
    if not refusals:
        counted = spark if counts_keys else None
        report = replace(report, adopted=tuple(_lines(adoption, counted)))
    return replace(adoption, report=report)


def named_checkpoint(url: str, graph: StreamGraph, now_ms: int) -> SparkCheckpoint:
    """Return a checkpoint of Spark without its graph: its states are those after the batch now."""
    time_ms = now_ms // graph.batch_ms * graph.batch_ms
    slide_ms = math.lcm(graph.batch_ms, *(node.slide_ms for node in graph.draft().stateful()))
    return without_graph(url, graph.batch_ms, time_ms - slide_ms, time_ms)


def _added(plan: Plan, report: RestoreReport) -> list[Node]:
    """Return the streams with state that begin empty."""
    return [node for node in plan.stateful() if plan.nodes[node].uid in report.added]


def _as_kept(node: Node, pairs: RDD[tuple[Any, Any]]) -> RDD[tuple[Any, Any]]:
    """Return the pairs of a state as this stream keeps them."""
    if not isinstance(node, ReducedWindowedDStream):
        return pairs
    if _kind(node.operation) in _UNKEYED:
        pairs = pairs.map(_without_key)
    keeps = node.functions.keeps
    return pairs if keeps is None else pairs.filter(keeps.func)


def _without_key(pair: tuple[Any, Any]) -> tuple[None, Any]:
    return None, pair[1]


# Matching --------------------------------------------------------------------------------------


def _kind(operation: str) -> str:
    return operation.partition(" ")[0]


_WINDOW = "reducedWindow"
"""Kind of a window with an inverse: in Spark all of them are of one class."""


def _by_uid(
    named: Mapping[str, _T], slots: Mapping[str, Mapping[str, bool]], allowed: Collection[str]
) -> dict[str, _T]:
    """Return states or inputs of Spark by the uid that they have in the program.

    *slots* has the uids of the program by kind, and whether each was chosen. A chosen uid may be
    the name of what it continues. The others match by place, if there are as many of a kind. What
    is *allowed* to be removed, and what matches nothing, keeps its name.
    """
    uids = {name: name for name in named}
    for kind, of_kind in slots.items():
        names = [name for name in named if name.rpartition("-")[0] == kind and name not in allowed]
        rest = [name for name in names if not of_kind.get(name, False)]
        free = [uid for uid, is_chosen in of_kind.items() if not (is_chosen and uid in names)]
        if len(rest) == len(free):
            uids.update(zip(rest, free, strict=True))
    return {uids[name]: part for name, part in named.items()}


def _numbered(parts: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Name each part by its kind, and its number among those."""
    counts: Counter[str] = Counter()
    named: dict[str, _T] = {}
    for kind, part in parts:
        named[f"{kind}-{counts[kind]}"] = part
        counts[kind] += 1
    return named


def _named_states(found: SparkCheckpoint) -> dict[str, SparkState]:
    return _numbered(
        (_WINDOW if state.is_python and state.window_ms is not None else state.operation, state)
        for state in found.states
    )


def _named_inputs(found: SparkCheckpoint) -> dict[str, SparkInput]:
    return _numbered((one.operation, one) for one in found.inputs)


def _states_by_uid(
    found: SparkCheckpoint, plan: Plan, allowed: Collection[str]
) -> dict[str, SparkState]:
    """Return the states of Spark by uid.

    That of ``groupByKeyAndWindow`` is left out: it is computed again from the input.
    """
    slots: dict[str, dict[str, bool]] = {}
    kinds: dict[str, str] = {}
    grouped = set()
    for node, planned in plan.nodes.items():
        kind = _kind(node.operation)
        is_group = isinstance(node, WindowedDStream) and kind == "groupByKeyAndWindow"
        if isinstance(node, ReducedWindowedDStream) or is_group:
            times: Any = node
            if times.times.slides < INVERSE_SLIDES:
                continue
            slots.setdefault(_WINDOW, {})[planned.uid] = planned.is_chosen
            grouped |= {planned.uid} if is_group else set()
        elif isinstance(node, StateDStream):
            slots.setdefault(kind, {})[planned.uid] = planned.is_chosen
        kinds[planned.uid] = kind
    named = _named_states(found)
    return {
        uid: replace(state, operation=kinds.get(uid, state.operation))
        for uid, state in _by_uid(named, slots, allowed).items()
        if uid not in grouped
    }


def _named(found: SparkCheckpoint, plan: Plan, named: Mapping[str, str]) -> dict[str, SparkState]:
    """Return the states in directories that the user names by uid."""
    known = {one.uid: node for node, one in plan.nodes.items() if isinstance(node, StateDStream)}
    unknown = sorted(set(named).difference(known))
    if unknown:
        raise InvalidStreamError(
            f"states: no updateStateByKey has the uid {unknown[0]!r}; name one of "
            f"{', '.join(known) or 'a program with updateStateByKey'}"
        )
    return {
        uid: SparkState(
            _kind(known[uid].operation), known[uid].slide_ms, None, {found.time_ms: directory}
        )
        for uid, directory in named.items()
    }


def _inputs_by_uid(
    found: SparkCheckpoint, plan: Plan, allowed: Collection[str]
) -> dict[str, SparkInput]:
    slots: dict[str, dict[str, bool]] = {}
    kinds = {uid: _kind(stream.operation) for stream, uid in plan.input_uids.items()}
    for stream, uid in plan.input_uids.items():
        kind = kinds[uid].removeprefix("KafkaUtils.")  # of the API of Spark 2.4
        slots.setdefault(kind, {})[uid] = stream in plan.chosen_inputs
    named = _named_inputs(found)
    return {
        uid: replace(one, operation=kinds.get(uid, one.operation))
        for uid, one in _by_uid(named, slots, allowed).items()
    }


def _description(
    found: SparkCheckpoint,
    states: Mapping[str, SparkState],
    inputs: Mapping[str, SparkInput],
    now: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe a graph of Spark as :func:`describe_plan` does; without state as it is *now*."""
    stateless = [part for part in now["operators"] if part["state"] == "none"]
    chosen = {part["uid"] for part in (*now["inputs"], *now["operators"]) if part["is_chosen"]}
    sources = {part["uid"]: part["source"] for part in now["inputs"]}
    of_inputs = [
        {
            "uid": uid,
            "operation": f"{one.operation} of Spark",
            "source": sources.get(uid) if one.directory is None else _source(one).name,
            "place": None if one.directory is None else _source(one).place,
            "is_chosen": uid in chosen,
        }
        for uid, one in inputs.items()
    ]
    stateful: list[Any] = [
        {
            "uid": uid,
            "operation": f"{one.operation} of Spark",
            "state": "copied",
            "is_chosen": uid in chosen,
            "partitions": _partitions(found, one),
            "slide_ms": one.slide_ms,
            "window_ms": one.window_ms,
            "parents": [],
        }
        for uid, one in states.items()
    ]
    return {"batch_ms": found.batch_ms, "inputs": of_inputs, "operators": stateless + stateful}


def _source(one: SparkInput) -> FileSource:
    return FileSource(one.directory or "", one.operation)


def _partitions(found: SparkCheckpoint, state: SparkState) -> int | None:
    if not state.directories or not state.is_python:
        return None
    return found.partitions(state.directories[max(state.directories)])


def _not_taken(plan: Plan, states: Mapping[Node, SparkState]) -> Iterator[str]:
    """Yield why the state of an operator is not what the program can continue."""
    for node, state in states.items():
        if not state.is_python:
            yield (
                f"the state of {plan.nodes[node].uid!r} is objects of Java; only that of Python "
                "programs can be adopted"
            )
        elif getattr(node, "layout", None) is not PAIR_FRAMES:
            yield (
                f"{node.operation} keeps its state in blocks, and Spark's is pairs; adopt it "
                "with updateStateByKey on pairs"
            )


# Which batches ---------------------------------------------------------------------------------


def _last_batch(
    found: SparkCheckpoint,
    plan: Plan,
    states: Mapping[Node, SparkState],
    inputs: Mapping[InputDStream, SparkInput],
    added: Collection[Node],
) -> tuple[int, Mapping[Node, int]]:
    """Return the last batch that does not run again, and :meth:`Plan.required_since` of it.

    It is the one before the first pending batch. If Spark has only state after that, because a
    batch failed and later ones went on, it is the first batch with state.
    """
    complete_ms = min((*found.pending_ms, found.time_ms + found.batch_ms)) - found.batch_ms
    times = {time_ms for state in states.values() for time_ms in state.directories}
    candidates = sorted({max(complete_ms, plan.zero_ms), *times, found.time_ms})
    for last_ms in candidates:
        if last_ms < complete_ms:
            continue

        def newest(node: Node, upto_ms: int, last_ms: int = last_ms) -> int:
            if node not in states:
                return last_ms if node in added else plan.zero_ms
            known = states[node].directories
            return max((one for one in known if one <= upto_ms), default=plan.zero_ms)

        since = plan.required_since(last_ms, newest, dict.fromkeys(added, last_ms))
        if all(
            _begins_by(one, found, since.get(stream, last_ms)) for stream, one in inputs.items()
        ):
            return last_ms, since
    oldest = {
        stream.operation: min(one.batches or {}, default=None) for stream, one in inputs.items()
    }
    raise RestartError(
        f"{found.files.url} cannot be adopted: Spark does not remember the input of all batches "
        f"that the state or the windows of this program need; it does since {oldest} ms. A longer "
        "window than before needs them, or a state whose directory is missing"
    )


def _begins_by(one: SparkInput, found: SparkCheckpoint, since_ms: int) -> bool:
    """Return whether Spark remembers all input of batches after a time."""
    if one.batches is None or since_ms >= found.time_ms:
        return True
    return min(one.batches, default=found.time_ms + 1) <= since_ms + found.batch_ms


def _unreadable(adoption: Adoption, spark: SparkContext, settings: Settings) -> Iterator[str]:
    """Yield the input that a batch needs again, and that is missing."""
    for stream, one in adoption.inputs.items():
        if one.ranges is not None and adoption.found.time_ms not in one.ranges:
            yield f"{stream.operation}: Spark has not recorded the offsets of its newest batch"
        elif one.ranges is not None and settings.kafka_fail_on_data_loss:
            yield from _expired(adoption, stream, one.ranges, spark, settings)
    if settings.ignore_missing_files:
        return
    for stream, listing in adoption.files.items():
        since_ms = adoption.since.get(stream, adoption.last_ms)
        for time_ms, paths in (adoption.inputs[stream].files or {}).items():
            missing = [path for path in paths if not _stamps((path,), listing)]
            if missing and time_ms > since_ms:
                yield (
                    f"{stream.operation}: the batch at {time_ms} ms has to read "
                    f"{', '.join(missing)} again, which is missing; put it back, or "
                    "accept the loss with spark.files.ignoreMissingFiles=true"
                )


def _expired(
    adoption: Adoption,
    stream: InputDStream,
    ranges: SparkRanges,
    spark: SparkContext,
    settings: Settings,
) -> Iterator[str]:
    """Yield why the offsets that batches need cannot be read from the brokers, if so."""
    found, since_ms = adoption.found, adoption.since.get(stream, adoption.last_ms)
    plans = [_of_kafka(time_ms, ranges[time_ms]) for time_ms in ranges if time_ms > since_ms]
    newest = _of_kafka(found.time_ms, ranges[found.time_ms])
    plans.append(replace(newest, start=newest.end))  # of the next batch
    environment = SourceEnvironment(
        spark, SystemClock(), settings, found.zero_ms, logger.warning, found.batch_ms
    )
    reader = stream.source.open(environment)
    try:
        reader.require_records(plans)
    except SourceError as error:
        yield f"{error}; spark.dstreams.kafka.failOnDataLoss=false accepts the loss"
    finally:
        reader.close()


def _stamps(paths: Collection[str], listing: Mapping[str, FileStamp]) -> tuple[FileStamp, ...]:
    """Return the files of Spark that exist. It writes ``file:/path`` for a local one."""
    names = (path if path in listing else path.replace("file:/", "file:///", 1) for path in paths)
    return tuple(listing[name] for name in names if name in listing)


# The report ------------------------------------------------------------------------------------


def _notes(adoption: Adoption) -> Iterator[str]:
    found, uids = adoption.found, adoption.plan.input_uids
    late = [time_ms for time_ms in found.pending_ms if time_ms <= adoption.last_ms]
    if late:
        yield (
            f"{len(late)} batches up to {max(late)} ms were not complete in Spark, and do not run "
            "again, because Spark keeps only later state: their outputs may be missing"
        )
    for stream in adoption.inputs:
        is_known = adoption.inputs[stream].batches is not None
        if not (is_known or isinstance(stream.source, QueueSource)):
            yield (
                f"the records of {uids[stream]} cannot be taken: {_NOT_IN_FILES}; those that are "
                "in no state yet are lost, unless the sender sends them again"
            )


def _lines(adoption: Adoption, counted: SparkContext | None) -> Iterator[str]:
    """Yield what is taken over: states, with their number of keys if counted, and files."""
    found, uids = adoption.found, adoption.plan.input_uids
    for node, state in adoption.states.items():
        uid = adoption.plan.nodes[node].uid
        known = [time_ms for time_ms in state.directories if time_ms <= adoption.last_ms]
        if not known:
            yield f"{uid}: no state in files; computed from the first batch"
            continue
        directory, keys = state.directories[max(known)], ""
        if counted is not None:
            with reading_state(f"{found.files.url}/{directory}"):
                keys = f"{found.pairs(counted, directory).count()} keys "
        yield f"{uid}: {keys}after the batch at {_at(max(known))}, from {directory}"
    for stream in adoption.files:
        since_ms = adoption.since.get(stream, adoption.last_ms)
        read = (adoption.inputs[stream].files or {}).items()
        again = sum(len(paths) for time_ms, paths in read if time_ms > since_ms)
        total = sum(len(paths) for _, paths in read)
        yield (
            f"{uids[stream]}: {total} files of Spark's batches are known as read; the batches "
            f"after {_at(since_ms)} read {again} of them again"
        )
    for stream, one in adoption.inputs.items():
        if one.ranges is not None:
            since_ms = adoption.since.get(stream, adoption.last_ms)
            again = sum(
                until - first
                for time_ms, ranges in one.ranges.items()
                for *_, first, until in ranges
                if time_ms > since_ms
            )
            yield (
                f"{uids[stream]}: read by Spark until {_ends(one.ranges)}; the batches after "
                f"{_at(since_ms)} read {again} offsets again"
            )


def _ends(ranges: SparkRanges) -> str:
    """Return the offsets at which the newest batch ends, as text."""
    newest = sorted(ranges[max(ranges)]) if ranges else ()
    return some_names([f"{topic}-{number}: {until}" for topic, number, _, until in newest])


def _of_kafka(time_ms: int, ranges: Iterable[SparkRange]) -> PlannedInput:
    """Return the plan of a batch with these ranges of topics."""
    start = {TopicPartition(topic, number): first for topic, number, first, _ in ranges}
    end = {TopicPartition(topic, number): until for topic, number, _, until in ranges}
    records = sum(end.values()) - sum(start.values())
    first, last = (Position(offsets, {}).to_json() for offsets in (start, end))
    return PlannedInput(time_ms, first, last, records=records)


def contents_of(url: str, spark: SparkContext, samples: int) -> Iterator[str]:
    """Yield lines about what a checkpoint of Spark holds, with some pairs of each state.

    A job reads each state. If its graph cannot be read, these are all states that there are.
    """
    try:
        found = read_spark_checkpoint(url, spark)
    except RestartError as error:
        directories = state_directories(url)
        if not directories:
            raise
        yield str(error)
        for directory in directories:
            yield from _state_lines(
                directory, lambda one: spark_state(spark, f"{url}/{one}"), samples
            )
        return
    pending = f"{len(found.pending_ms)} batches not complete"
    yield f"{found.files.url}: {found.name}, of the batch at {_at(found.time_ms)}, {pending}"
    yield f"a batch every {found.batch_ms} ms since {_at(found.zero_ms)}"
    for name, state in _named_states(found).items():
        window = "" if state.window_ms is None else f", over {state.window_ms} ms"
        yield f"{name}: an RDD every {state.slide_ms} ms{window}"
        if not state.is_python:
            yield "  cannot be taken: objects of Java"
        elif not state.directories:
            yield "  no state in files yet: computed from the first batch"
        for time_ms, directory in sorted(state.directories.items()):
            yield f"  after the batch at {_at(time_ms)}:"
            yield from _state_lines(directory, partial(found.pairs, spark), samples)
    for name, one in _named_inputs(found).items():
        if one.files is not None:
            total = sum(map(len, one.files.values()))
            yield f"{name}: {total} files of {len(one.files)} batches, in {one.directory}"
        elif one.ranges is not None:
            yield f"{name}: offsets of {len(one.ranges)} batches, until {_ends(one.ranges)}"
        elif one.operation == "queueStream":
            yield f"{name}: taken by a queue with the same items and replayable=True"
        else:
            yield f"{name}: records cannot be taken: {_NOT_IN_FILES}"


def _state_lines(
    directory: str, pairs_in: Callable[[str], RDD[tuple[Any, Any]]], samples: int
) -> Iterator[str]:
    """Yield the number of keys and some pairs; why not, if the state cannot be read."""
    try:
        with reading_state(directory):
            pairs = pairs_in(directory)
            keys, shown = pairs.count(), pairs.take(samples)
    except RestartError as error:
        yield f"  {error}"
        return
    yield f"  {keys} keys in {pairs.getNumPartitions()} partitions, in {directory}"
    yield from (f"    {shorten(pair)}" for pair in shown)


def _at(time_ms: int) -> str:
    return f"{time_ms} ms ({batch_datetime(time_ms)})"
