"""Each file of a checkpoint that is lost or damaged is missed, where it matters to a restart.

A stream and a query are run over files, and others, in two lives. Then one file of their checkpoint
after the other is deleted, cut short, has a byte changed, or changes places with another of its
kind; ``verify`` looks at the copy, and a restart goes on from it. It is refused with the name of a
file and a remedy, or what it has counted is what the input holds; and only where it is right may
``verify`` have found nothing.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import CheckpointError, CorruptCheckpointError, open_files, read_plan
from checkpoint.cli.verify import verify_stream
from dstreams import Settings, StateSpec, StreamingContext
from dstreams.errors import StreamError
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.recovery.feeding import HandFed, feed

pytestmark = pytest.mark.spark

Mutate = Callable[[Path], None]
Restart = Callable[[Path], None]

seen: dict[str, Any] = {}
"""What each output saw last."""


def note(name: str, rdd: RDD[Any]) -> None:
    seen[name] = sorted(rdd.collect())


def watch(stream: Any, name: str) -> None:
    stream.foreachRDD(partial(note, name))


def pair(line: str) -> tuple[str, int]:
    return line, 1


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> None:
    state.update((state.getOption or 0) + value)


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


@dataclass
class Checkpoint:
    """A checkpoint that can be copied, and what a restart on a copy has to count.

    Args:
        root: what holds the directory of the stream.
        inside: that directory, in it.
        restart: goes on from a copy of *root*, and asserts that it counts what there is.
    """

    root: Path
    inside: str
    restart: Restart
    wrong: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    def files(self) -> list[Path]:
        """Return the names of all files, in the directory of the stream."""
        inside = self.root / self.inside
        return sorted(path.relative_to(inside) for path in inside.rglob("*.*") if path.is_file())

    def try_out(self, name: Path, way: str, copy: Path, with_restart: bool) -> None:
        """Damage one file of a copy, and keep what is wrong with what comes of it."""
        shutil.copytree(self.root, copy)
        path = copy / self.inside / name
        WAYS[way](path)
        problems = verify_stream(open_files(copy / self.inside)).problems
        self.figures["cases"] += 1
        self.figures["found by verify"] += bool(problems)
        if problems and not any(is_near(problem, path) for problem in problems):
            self.wrong.append(f"{way} {name}: verify names {problems[0]}")
        if with_restart or not problems:
            self._go_on(name, way, copy, found=bool(problems))
        shutil.rmtree(copy)

    def _go_on(self, name: Path, way: str, copy: Path, *, found: bool) -> None:
        self.figures["restarts"] += 1
        try:
            self.restart(copy)
        except (CheckpointError, StreamError) as error:
            self.figures["refused"] += 1
            if str(copy) not in str(error) or not any(word in str(error) for word in REMEDIES):
                self.wrong.append(f"{way} {name}: refused, and nothing said: {error}")
            if not found:
                self.wrong.append(f"{way} {name}: refused, and verify is silent: {error}")
        except AssertionError as error:
            self.wrong.append(f"{way} {name}: counts what is not there: {error}")
        else:
            self.figures["right"] += 1


REMEDIES = ("restore", "go back", "rewind", "begin")


def is_near(problem: CorruptCheckpointError, path: Path) -> bool:
    """Whether a problem is that of a file, or of the directory that it is in.

    Without its takeover an epoch does not count, and without a pack the values in it are missing.
    """
    named = Path(problem.file.removeprefix("file://"))
    return path.is_relative_to(named) or path.suffix == ".takeover" or named.parent == path.parent


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def swap(path: Path) -> None:
    """Change places with the next file of that kind; without another one, it is deleted."""
    others = sorted(other for other in path.parent.parent.rglob(f"*{path.suffix}") if other != path)
    others = [other for other in others if other.read_bytes() != path.read_bytes()]
    if not others:
        path.unlink()
        return
    other = next((other for other in others if other > path), others[0])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


WAYS: dict[str, Mutate] = {"delete": Path.unlink, "cut": cut, "flip": flip, "swap": swap}


# A stream ----------------------------------------------------------------------------------------


def define(sc: SparkContext, directory: Path) -> StreamingContext:
    settings = Settings(
        receiver_write_ahead_log=True, state_local_directory=str(directory / "local")
    )
    ssc = StreamingContext(sc, 1, settings=settings, clock=ManualClock())
    ssc.checkpoint(str(directory / "base"))
    files = ssc.fileStream(str(directory / "in"), newFilesOnly=False, maxFileAge=math.inf)
    words = files.union(ssc.receiverStream(HandFed(), uid="fed")).map(pair)
    initial = sc.parallelize([("z", 1)], 1)
    watch(words.updateStateByKey(total, 2, initialRDD=initial).checkpoint(2), "sums")
    watch(words.mapWithState(StateSpec.function(count)).stateSnapshots(), "counts")
    watch(words.reduceByKeyAndWindow(plus, None, 4, 1, 2), "window")
    return ssc


@pytest.fixture
def stream(sc: SparkContext, tmp_path: Path) -> Iterator[Checkpoint]:
    """Eight batches in two lives, each with a file and most with a block of before."""
    batches: list[list[str]] = []
    blocks: list[str] = []

    def come(lines: list[str]) -> Path:
        """Let a file come, which the next batch reads, and what was received."""
        path = tmp_path / "in" / f"{len(batches)}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        batches.append([*lines, *blocks])
        blocks.clear()
        return path

    def require_right() -> None:
        counts = Counter(itertools.chain.from_iterable(batches))
        assert seen["sums"] == sorted([*counts.items(), ("z", 1)])
        assert seen["counts"] == sorted(counts.items())
        window = Counter(itertools.chain.from_iterable(batches[-4:]))
        assert seen["window"] == sorted(window.items())

    def live(ssc: StreamingContext, count: int, fed: int) -> None:
        try:
            for number in range(count):
                come(["abc"[number % 3], "d"])
                ssc.step()
                if number < fed:
                    blocks.append("e")
                    feed(["e"])
        finally:
            ssc.stop(stopSparkContext=False)

    def restart(copy: Path) -> None:
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        seen.clear()
        path = come(["a"])
        try:
            ssc = StreamingContext.getOrCreate(str(copy), never)
            try:
                # Without its commit record the last batch runs again.
                in_flight = read_plan(open_files(next(copy.glob("stream-*")))).in_flight
                ssc.step(len(in_flight) + 1)
            finally:
                ssc.stop(stopSparkContext=False)
            require_right()
        finally:
            path.unlink()
            batches.pop()

    (tmp_path / "in").mkdir()
    live(define(sc, tmp_path), 5, 5)  # the last block is in no batch of this life
    live(StreamingContext.getOrCreate(str(tmp_path / "base"), never), 3, 1)
    require_right()
    (inside,) = (tmp_path / "base").glob("stream-*")
    yield Checkpoint(tmp_path / "base", inside.name, restart)
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


# A query -----------------------------------------------------------------------------------------


@pytest.fixture
def query(sc: SparkContext, tmp_path: Path) -> Checkpoint:
    """Twelve files and some records of a program, counted in two lives."""
    (tmp_path / "in").mkdir()
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.dstreams.state.localDirectory": str(tmp_path / "local"),
    }
    words: list[str] = []

    def run(checkpoint: Path, *lines: str) -> None:
        """Let a file come for each line, and one record beside, and run until all is read."""
        paths = []
        for line in lines:
            paths.append(tmp_path / "in" / f"{len(words)}.txt")
            paths[-1].write_text(f"{line}\n")
            words.append(line)
        session = StreamSession(sc, conf, ManualClock(1000))
        try:
            files = session.readStream.text(tmp_path / "in", maxFilesPerTrigger=1)
            rate = session.readStream.format("rate").load().map(lambda row: "rate")
            counted = files.union(rate).groupByKey(str).count()
            writer = counted.writeStream.outputMode("complete").foreachBatch(keep)
            writer = writer.option("checkpointLocation", str(checkpoint / "query"))
            running = writer.trigger(availableNow=True).start()
            running.awaitTermination()
            assert seen["counts"] == sorted(Counter(words).items())
        finally:
            session.stop()

    def restart(copy: Path) -> None:
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        seen.clear()
        before = len(words)
        try:
            run(copy, "a")
        finally:
            del words[before:]
            (tmp_path / "in" / f"{before}.txt").unlink()

    run(tmp_path / "base", *"abcabcabcab")
    run(tmp_path / "base", "c", "d")
    return Checkpoint(tmp_path / "base", "query", restart)


def keep(rows: RDD[Any], batch_id: int) -> None:
    seen["counts"] = sorted((key, number) for key, number in rows.collect() if key != "rate")


# Each file, each way ------------------------------------------------------------------------------


def kind_of(name: Path) -> str:
    """Return what kind of file a name is of: of several of a kind one is tried out."""
    return f"{name.parts[0]} {name.suffix}"


@pytest.mark.deep
@pytest.mark.parametrize("which", ["stream", "query"])
def test_each_lost_file_is_missed(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every file once deleted; a restart where verify says nothing, and on one of each kind."""
    checkpoint: Checkpoint = request.getfixturevalue(which)
    assert verify_stream(open_files(checkpoint.root / checkpoint.inside)).problems == []
    tried: set[str] = set()
    for number, name in enumerate(reversed(checkpoint.files())):
        with_restart = kind_of(name) not in tried
        tried.add(kind_of(name))
        checkpoint.try_out(name, "delete", tmp_path / f"copy-{number}", with_restart)
    assert not checkpoint.wrong, "\n".join(checkpoint.wrong)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", ["stream", "query"])
def test_each_file_that_is_not_what_it_was_is_missed(
    which: str, way: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every file, in every way, with a restart each time."""
    checkpoint: Checkpoint = request.getfixturevalue(which)
    for number, name in enumerate(checkpoint.files()):
        checkpoint.try_out(name, way, tmp_path / f"copy-{number}", with_restart=True)
    print(which, way, dict(checkpoint.figures))
    assert not checkpoint.wrong, "\n".join(checkpoint.wrong)
