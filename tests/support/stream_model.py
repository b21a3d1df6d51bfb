"""A stream without Spark: everything it writes is written by checkpoint, everything else is a dict.

It counts numbers that arrive in its world, in two states that are written every second and every
third batch, and tells its outputs what it read and what the states were. The world remembers, so a
test can ask afterwards whether anything was lost, counted twice, or told in two ways.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from checkpoint import (
    BeginRecord,
    CommitRecord,
    DriverProcess,
    Files,
    GraphSnapshot,
    OperatorSnapshot,
    OwnedStream,
    StateFileId,
    StatePartition,
    new_attempt,
    read_newest_graph,
    read_state_file,
    take_over,
    write_graph,
    write_state_file,
)
from checkpoint.log.lineage import read_lineage
from checkpoint.log.recovery import NewestSnapshot
from checkpoint.state_store.retention import (
    LISTED_PREFIXES,
    RetentionPlan,
    apply_retention,
    plan_leftovers,
    plan_retention,
)

STREAM = "stream-0-00000001"
BATCH_MS = 1000
PARTITIONS = 2
SNAPSHOT_EVERY = {"sums": 2, "counts": 3}

State = dict[str, list[int]]
T = TypeVar("T")


@dataclass
class World:
    """What is outside of the checkpoint, and remembers.

    Args:
        told: what outputs were told of a batch, by its time; each time they were told.
        committed: times of the batches that a driver was told to be committed.
    """

    arrived: int = 0
    told: dict[int, list[object]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def more(self) -> int:
        """Return up to where numbers have arrived: never the same answer twice."""
        self.arrived += 3
        return self.arrived

    def report(self, time_ms: int) -> None:
        """Note that a driver was told that its batch is committed: once for each batch."""
        assert time_ms not in self.committed, f"{time_ms} is reported as committed by two drivers"
        self.committed.add(time_ms)

    def tell(self, time_ms: int, what: object) -> None:
        """Take what an output says of a batch."""
        self.told.setdefault(time_ms, []).append(what)


class Driver:
    """One start of the stream.

    Args:
        files: its directory.
        world: what is around it.
    """

    def __init__(self, files: Files, world: World) -> None:
        self.files = files
        self.world = world
        self.known = set(world.committed)
        self.owned: OwnedStream = take_over(files, STREAM, DriverProcess.of_this_process(0))
        if read_newest_graph(files) is None:
            description = {"operators": {uid: {"kind": "state"} for uid in SNAPSHOT_EVERY}}
            graph = GraphSnapshot(STREAM, 0, self.owned.epoch, description, b"opaque")
            write_graph(self.owned.lease, graph)
        snapshot = read_newest_graph(files)
        assert snapshot is not None
        self.graph = snapshot.record_id
        self.owned.lease.check()
        self.commits = self.owned.commits
        self.begins = self.owned.begins
        plan = self.owned.plan
        self.time_ms = plan.last_ms or 0
        self.state: State = {uid: [0] * PARTITIONS for uid in SNAPSHOT_EVERY}
        self._restore()
        self.read_upto = max((self._range(begun)[1] for begun in plan.begins.values()), default=0)
        self.unreported: int | None = None

    def run(self, upto_ms: int) -> None:
        """Run the batches that were in flight, then new ones, up to a time."""
        for begun in self.owned.plan.in_flight:
            self.report()
            self._run(begun)
        while self.time_ms < upto_ms:
            time_ms = self.time_ms + BATCH_MS
            numbers = [self.read_upto, self.world.more()]
            begun = BeginRecord(
                STREAM, time_ms // BATCH_MS - 1, time_ms, self.owned.epoch, {"numbers": numbers}
            )
            self.begin(replace(begun, graph=self.graph))
            self.report()
            self._run(begun)
        self.report()
        self.owned.lease.release()

    def begin(self, begun: BeginRecord) -> None:
        """Begin a batch; its fence check may end long before the outputs run."""
        self.begins.begin(begun)
        self.owned.lease.check()

    def commit(self, record: CommitRecord) -> None:
        """Commit a batch; whether that counts is known, and told, when the next one has begun."""
        self.commits.commit(record)
        self.unreported = record.batch_time_ms

    def report(self) -> None:
        """Tell that the last batch is committed, and clean up after it."""
        if self.unreported is None:
            return
        self.owned.lease.check()
        self.world.report(self.unreported)
        if self.unreported // BATCH_MS % 2 == 0:
            self._retire()
        self.unreported = None

    def _restore(self) -> None:
        plan = self.owned.plan
        for uid in SNAPSHOT_EVERY:
            found = plan.snapshots.get(uid)
            since_ms = 0 if found is None else found.time_ms
            if found is not None:
                self.state[uid] = self._read(uid, found)
            for time_ms in range(since_ms + BATCH_MS, self.time_ms + 1, BATCH_MS):
                self._advance(uid, self._range(plan.begins[time_ms]))

    def _read(self, uid: str, newest: NewestSnapshot) -> list[int]:
        assert newest.snapshot is not None
        values = []
        for partition, ref in enumerate(newest.snapshot.files):
            wanted = StatePartition(STREAM, uid, newest.time_ms, partition, PARTITIONS, "stable")
            [payload] = read_state_file(self.files, ref, wanted)
            [(_, value)] = pickle.loads(payload)
            values.append(value)
        return values

    def _run(self, begun: BeginRecord) -> None:
        time_ms = begun.batch_time_ms
        numbers = self._range(begun)
        for uid in SNAPSHOT_EVERY:
            self._advance(uid, numbers)
        operators = {
            uid: self._write(uid, time_ms)
            for uid, every in SNAPSHOT_EVERY.items()
            if time_ms // BATCH_MS % every == 0
        }
        # What an older driver tells after that is the same once more, or require_right finds it.
        assert time_ms not in self.known, f"the batch at {time_ms} was committed, and runs again"
        self.world.tell(time_ms, (numbers, {uid: list(self.state[uid]) for uid in SNAPSHOT_EVERY}))
        self.commit(
            CommitRecord(
                STREAM,
                begun.batch_id,
                time_ms,
                self.owned.epoch,
                operators,
                {},
                (),
                {"w": time_ms},
            )
        )
        self.time_ms, self.read_upto = time_ms, numbers[1]

    def _retire(self) -> None:
        try:
            records = self.commits.records()
        except FileNotFoundError:  # a newer driver deletes as well
            self.owned.lease.check()
            raise
        newest = self.commits.last or records[-1]
        if newest.newest_snapshots.keys() != SNAPSHOT_EVERY.keys():
            return  # a state without a snapshot is made from the first batch on
        plan = plan_retention(records, self.time_ms - BATCH_MS, SNAPSHOT_EVERY)
        names = [name for prefix in LISTED_PREFIXES for name in self.files.list(prefix)]
        others = plan_leftovers(read_lineage(self.files), names, records, plan)
        plan = RetentionPlan(plan.commits, plan.files, others)
        apply_retention(self.commits, plan, self.owned.epoch)

    def _advance(self, uid: str, numbers: tuple[int, int]) -> None:
        for number in range(*numbers):
            self.state[uid][number % PARTITIONS] += number if uid == "sums" else 1

    def _write(self, uid: str, time_ms: int) -> OperatorSnapshot:
        refs = []
        for partition, value in enumerate(self.state[uid]):
            file_id = StateFileId(
                STREAM,
                uid,
                time_ms,
                partition,
                PARTITIONS,
                "stable",
                self.owned.epoch,
                new_attempt(),
            )
            payload = pickle.dumps([(f"rest {len(refs)}", value)])
            refs.append(write_state_file(self.files, file_id, [(payload, 1)]))
        return OperatorSnapshot("stable", tuple(refs))

    def _range(self, begun: BeginRecord) -> tuple[int, int]:
        start, end = begun.inputs["numbers"]  # type: ignore[misc]
        return start, end


def require_right(world: World, driver: Driver) -> None:
    """Assert that nothing was lost, counted twice or told in two ways, and nothing is missing."""
    read_upto = 0
    for time_ms in range(BATCH_MS, driver.time_ms + 1, BATCH_MS):
        told = world.told[time_ms]
        assert all(each == told[0] for each in told), f"{time_ms} is told in two ways: {told}"
        (start, end), _ = told[0]  # type: ignore[misc]
        assert start == read_upto, f"the batch at {time_ms} begins at {start}, not {read_upto}"
        read_upto = end
    numbers = range(read_upto)
    wanted = {
        "sums": [sum(n for n in numbers if n % PARTITIONS == part) for part in range(PARTITIONS)],
        "counts": [sum(n % PARTITIONS == part for n in numbers) for part in range(PARTITIONS)],
    }
    assert driver.state == wanted
    assert max(world.committed) == driver.time_ms == max(world.told)


class PausedFiles:
    """Files of a driver that stands still before one operation, while something else happens.

    Args:
        inner: the files that do the work.
        at: number of the operation, from 1, counted over all of them.
        meanwhile: what happens then.
        at_once: as of a storage on which that many requests are worth making at a time.
    """

    def __init__(
        self, inner: Files, at: int, meanwhile: Callable[[], None], at_once: int = 1
    ) -> None:
        self.inner = inner
        self.count = 0
        self.at = at
        self.meanwhile = meanwhile
        self._at_once = at_once

    @property
    def at_once(self) -> int:
        return self._at_once

    @property
    def url(self) -> str:
        return self.inner.url

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self._after_pause(self.inner.create)(name, chunks)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        return self._after_pause(self.inner.read_chunks)(name, chunk_bytes)

    def read(self, name: str) -> bytes:
        return self._after_pause(self.inner.read)(name)

    def exists(self, name: str) -> bool:
        return self._after_pause(self.inner.exists)(name)

    def list(self, prefix: str) -> list[str]:
        return self._after_pause(self.inner.list)(prefix)

    def directories(self, directory: str = "") -> list[str]:
        return self._after_pause(self.inner.directories)(directory)

    def delete(self, name: str) -> None:
        self._after_pause(self.inner.delete)(name)

    def _after_pause(self, operation: Callable[..., T]) -> Callable[..., T]:
        self.count += 1
        if self.count == self.at:
            self.meanwhile()
        return operation
