"""Kill -9 of a driver with structured queries, at random moments and at each step of a batch."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dstreams.cli.drill.driver import DriverLife
from dstreams.cli.drill.steps import STEPS as ALL_STEPS
from dstreams.common.clock import SystemClock
from dstreams.structured.sources.committed_files import committed_lines
from tests.drills.broken_query_job import BREAKS
from tests.drills.query_job import DELAY_S, IDLE_S, QUERIES, WINDOW_S, event_ms, key_of
from tests.support.programs import ROOT

pytestmark = pytest.mark.spark

KILLS = 32
STEPS = [step.name for step in ALL_STEPS if not step.function]
WAYS = ("driver", "group", "zombie", "early", "paused", "driver", "workers", "early")
SEED = int(os.environ.get("DSTREAMS_DRILL_SEED", "20261121"))
RECORDS = 20
KEYS = 7
GENERATION = 6  # files with the same keys: the timer of a key is due when it has no records more
FIRST_LATE = 7
_PATIENCE_S = 240
_FEED_S = 2.0
_KILL_WITHIN_S = 4.0
_USUAL_START_S = 8.0


def records_of(number: int) -> list[str]:
    """The records of a file, of which one is too late where there were enough before."""
    chance = random.Random(number)
    records = [
        f"g{number // GENERATION}-k{chance.randrange(KEYS)} {3 * number + chance.randint(1, 5)} "
        f"{chance.randrange(100)}"
        for _ in range(RECORDS)
    ]
    return [*records, f"late {3 * number - 20} 1"] if number >= FIRST_LATE else records


class Drill:
    """Feeds and kills.

    Args:
        directory: where everything is.
        job: the module that runs the queries.
    """

    def __init__(self, directory: Path, job: str = "query_job") -> None:
        self.directory = directory
        self.job = job
        self.files = 0
        self.kills: Counter[str] = Counter()
        self.clock = SystemClock()
        self._inputs = directory / "inputs"
        self._inputs.mkdir()
        self._next_ms = 0
        self._paused: DriverLife | None = None

    @contextmanager
    def life(self, target: str) -> Iterator[DriverLife]:
        """Start the queries; what is left of them ends with the block."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        started_ms = self.clock.now_ms()
        log = self.directory / f"{started_ms}.log"
        command = ("-m", f"tests.drills.{self.job}", str(self.directory), str(writing), target)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        life = DriverLife(process, reading, log, started_ms)
        try:
            yield life
        finally:
            if life is not self._paused:
                life.bury()

    def watch(
        self, life: DriverLife, is_over: Callable[[], bool], seconds: float = _PATIENCE_S
    ) -> bool:
        """Feed until something is so, the queries have ended, or it takes too long."""
        limit_ms = self.clock.now_ms() + round(1000 * seconds)
        while not is_over():
            if life.has_ended or self.clock.now_ms() >= limit_ms:
                return is_over()  # its end may be what is waited for
            if self.clock.now_ms() >= self._next_ms:
                self.feed()
            life.wait(min(0.1, max(0.0, (limit_ms - self.clock.now_ms()) / 1000)))
            life.hear(self.clock)
        return True

    def kill_at_step(self, step: str) -> None:
        """Let a driver run until it comes to a step."""
        with self.life(step) as life:
            assert self.watch(life, lambda: life.was_killed), f"{step}: {life.last_words()}"
        self.kills["step"] += 1

    def kill_early(self, seconds: float) -> None:
        """Kill a driver that may not even have begun."""
        with self.life("go-on") as life:
            self.watch(life, lambda: False, seconds)
            assert not life.has_ended, life.last_words()
        self.kills["early"] += 1

    def kill(self, way: str, seconds: float, batches: int = 1) -> None:
        """Kill a driver some time after its first batch, or more of them."""
        with self.life("go-on") as life:
            self._see(life, batches)
            self._wake(life)
            self.watch(life, lambda: False, seconds)
            assert not life.has_ended, life.last_words()
            if way == "group":
                life.kill_all()
            elif way == "zombie":
                life.kill_from_jvm()
            elif way == "paused":
                life.pause()
                self._paused = life
            else:
                if way == "workers":
                    life.kill_workers()
                    self._see(life, 1)
                life.kill()
            self.kills[way] += 1

    def finish(self) -> None:
        """Let all input go through."""
        with self.life("finish") as life:
            assert life.process.wait(2 * _PATIENCE_S) == 0, life.last_words()

    def _see(self, life: DriverLife, batches: int) -> None:
        wanted = len(life.batches) + batches
        assert self.watch(life, lambda: len(life.batches) >= wanted), life.last_words()

    def _wake(self, present: DriverLife) -> None:
        """Let a driver go on that stood still while this one took over: it has to end."""
        if self._paused is not None:
            life, self._paused = self._paused, None
            try:
                life.resume()
                assert self.watch(present, lambda: life.has_ended), life.last_words()
                assert life.process.poll() == 1, life.last_words()
                assert "has taken over" in life.log.read_text(), life.last_words()
            finally:
                life.bury()

    def feed(self) -> None:
        """Give one more file."""
        hidden = self._inputs / f".{self.files:05}"
        hidden.write_text("".join(f"{line}\n" for line in records_of(self.files)))
        os.utime(hidden, (self.files, self.files))
        hidden.rename(self._inputs / f"{self.files:05}.txt")
        self.files += 1
        self._next_ms = self.clock.now_ms() + round(1000 * _FEED_S)


class Oracle:
    """What both queries write and keep, from plain dicts.

    Args:
        files: how many files there were.
    """

    def __init__(self, files: int) -> None:
        batches = [
            [line for line in records_of(number) if key_of(line) != "late"]
            for number in range(files)
        ]
        counts = Counter(
            event_ms(line) // 1000 // WINDOW_S * WINDOW_S for lines in batches for line in lines
        )
        passed = max(event_ms(line) // 1000 for lines in batches for line in lines) - DELAY_S
        ended = {start: count for start, count in counts.items() if start + WINDOW_S <= passed}
        self.rows = {"counts": [f"{start}:{count}" for start, count in ended.items()], "sums": []}
        groups: dict[str, tuple[int, int, int]] = {}
        for lines in batches:
            touched = sorted({key_of(line) for line in lines})
            for line in lines:
                count, total, last_ms = groups.get(key_of(line), (0, 0, 0))
                value = int(line.split()[2])
                groups[key_of(line)] = (count + 1, total + value, max(last_ms, event_ms(line)))
            self.rows["sums"] += [f"{key}:{groups[key][0]}:{groups[key][1]}" for key in touched]
        for key, (count, total, last_ms) in list(groups.items()):
            if last_ms // 1000 + IDLE_S < passed:
                self.rows["sums"].append(f"{key}:ended:{count}:{total}")
                del groups[key]
        self.states = {
            "counts": [
                [(start + WINDOW_S) * 1000, [count], None]
                for start, count in counts.items()
                if start not in ended
            ],
            "sums": [[key, [*group], group[2] + IDLE_S * 1000] for key, group in groups.items()],
        }


def outcome(drill: Drill, query: str) -> tuple[int, int, bool]:
    """Return how many rows are lost, how many too many, and whether the state is right."""
    oracle = Oracle(drill.files)
    states = json.loads((drill.directory / "states.json").read_text())[query]
    written = committed_lines(str(drill.directory / query))
    found = Counter(line for lines in written.values() for line in lines)
    expected = Counter(oracle.rows[query])
    lost, surplus = expected - found, found - expected
    print(
        f"{query}: {drill.kills.total()} kills {dict(drill.kills)}, {drill.files} files, "
        f"{len(written)} batches, {found.total()} rows, {lost.total()} lost {list(lost)[:9]}, "
        f"{surplus.total()} too many {list(surplus)[:9]}, {len(states)} states, seed {SEED}"
    )
    return lost.total(), surplus.total(), sorted(states) == sorted(oracle.states[query])


@pytest.mark.slow
def test_kills_change_nothing(tmp_path: Path) -> None:
    """Nothing is lost and nothing twice in the files of both queries, and their states are equal.

    Drivers are killed at each step of a batch, and at random moments: alone, with all their
    processes, without their JVM, after their workers, and before their first batch. Some stand
    still until another one has taken over, and have to end then.
    """
    chance, drill = random.Random(SEED), Drill(tmp_path)
    targets = [*STEPS, *(WAYS[number % len(WAYS)] for number in range(KILLS))]
    chance.shuffle(targets)
    for target in targets:
        if target in STEPS:
            drill.kill_at_step(target)
        elif target == "early":
            drill.kill_early(chance.uniform(0, _USUAL_START_S))
        else:
            drill.kill(target, chance.uniform(0, _KILL_WITHIN_S))
    drill.finish()
    for query in QUERIES:
        assert outcome(drill, query) == (0, 0, True), query
        verify = ("-m", "checkpoint", "verify", str(tmp_path / "checkpoints" / query))
        assert subprocess.run([sys.executable, *verify], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "finds"), [("rows", "lost"), ("state", "state"), ("watermark", "surplus")]
)
def test_a_broken_promise_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str, finds: str
) -> None:
    """One kill is enough."""
    monkeypatch.setenv(BREAKS, breaks)
    drill = Drill(tmp_path, "broken_query_job")
    for _ in range(FIRST_LATE + 3):
        drill.feed()
    drill.kill("driver", 0, batches=2 * drill.files)
    drill.feed()
    drill.finish()
    outcomes = [outcome(drill, query) for query in QUERIES]
    lost, surplus, state = (list(each) for each in zip(*outcomes, strict=True))
    assert {"lost": any(lost), "surplus": any(surplus), "state": not all(state)}[finds], outcomes
