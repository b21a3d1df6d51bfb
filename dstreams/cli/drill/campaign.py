"""Runs a drill: starts and kills drivers, lets the last one finish, and checks the outputs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from checkpoint.cli import SILENT, Progress
from dstreams.cli.drill.application import Application, raised
from dstreams.cli.drill.driver import DriverLife, start_life
from dstreams.cli.drill.oracle import problems_of, write_completed
from dstreams.cli.drill.results import DrillResult, OutputFindings, percentile
from dstreams.cli.drill.steps import PHASES, KillStep
from dstreams.common.clock import Clock

T = TypeVar("T")

Way = Literal["driver", "group", "zombie", "paused", "workers", "stop"]

WAYS: dict[Way, str] = {
    "driver": "driver killed, its JVM ends by itself",
    "group": "driver, JVM and workers killed at once",
    "zombie": "driver killed, its JVM continues",
    "paused": "driver suspended, and continued after the next one started",
    "workers": "Python workers killed in a batch, the driver later",
    "stop": "driver killed while it was stopping",
}
"""The ways to kill at random moments."""

AT_STEP = "driver killed at a named step"

WORKERS = "Python workers killed, the driver continues"
"""Precedes another kill."""

KILL_WITHIN_S = 5.0

_CYCLE: tuple[Way, ...] = (
    *("driver", "group", "zombie", "driver", "paused"),
    *("driver", "workers", "driver", "stop", "group"),
)
_EARLY_SHARE = 4
"""One in this many random kills hits a driver before its first batch."""


@dataclass(frozen=True)
class Kill:
    """A kill at a random moment."""

    way: Way
    moment: float
    """Seconds after the first batch; negative: share of the usual recovery time after the start."""


def first_kill(chance: random.Random) -> Kill:
    """Return the kill of the first driver, whose first batch shows that the application works."""
    return Kill("driver", chance.uniform(0, KILL_WITHIN_S))


def other_targets(
    kills: int, steps: Sequence[KillStep], chance: random.Random
) -> list[KillStep | Kill]:
    """Return all other targets, shuffled; half of the early kills follow another early one."""
    targets: list[KillStep | Kill] = list(steps)
    early: list[Kill] = []
    for number in range(1, kills):
        if number % _EARLY_SHARE == 0:
            way: Way = "group" if number % (2 * _EARLY_SHARE) == 0 else "driver"
            early.append(Kill(way, -chance.random()))
        else:
            way = _CYCLE[(number - number // _EARLY_SHARE) % len(_CYCLE)]
            targets.append(Kill(way, chance.uniform(0, KILL_WITHIN_S)))
    half = len(early) // 2
    targets += early[half:]
    chance.shuffle(targets)
    for first, second in zip(early[half:], early[:half], strict=False):
        targets.insert(targets.index(first) + 1, second)
    return targets


_POLL_S = 0.1
_FIRST_RECOVERY_MS = 8000
_STOP_SHARE = 0.3
_ALL_WAYS = (*WAYS.values(), AT_STEP, WORKERS)
_BEHIND_MS = 60_000
"""Beyond this delay, a stop may time out before its own steps."""


class DrillError(Exception):
    """The drill cannot continue; its findings so far are reported."""


@dataclass(frozen=True)
class DrillPlan:
    """The plan of a drill."""

    directory: Path  # the directory of the drill, empty at the start
    app: Path | None  # file of the application; None for a job of the drill
    kills: int  # number of kills at random moments
    steps: Sequence[KillStep]  # steps to kill at, once each
    seed: int  # seed of the random moments
    feed_s: float = 1.0  # seconds between two additions of input
    query: bool = False  # whether the job of the drill is the structured query
    worker_kills: int = 0  # number of drivers whose Python workers are also killed
    patience_s: float = 240.0
    """Seconds to wait for the first batch of a driver, and for each batch of the last driver."""


class Campaign:
    """A running drill."""

    def __init__(
        self,
        plan: DrillPlan,
        application: Application,
        clock: Clock,
        report: Callable[[str], None],
        progress: Progress = SILENT,
    ) -> None:
        self._plan = plan
        self._application = application
        self._clock = clock
        self._report = report
        self._progress = progress
        self._chance = random.Random(plan.seed)  # noqa: S311
        self._fed = 0
        self._next_feed_ms = 0
        self._feeds = True
        self._at_steps: list[str] = []
        self._ways: Counter[str] = Counter()
        self._phases: Counter[str] = Counter()
        self._in_a_row = self._deepest = 0
        self._batches: dict[int, int] = {}
        self._recoveries: list[int] = []
        self._problems: list[str] = []
        self._dead: list[DriverLife] = []
        self._paused: list[DriverLife] = []

    def run(self) -> DrillResult:
        """Run all drivers, and check the outputs."""
        directory = self._plan.directory
        started_ms = self._clock.now_ms()
        self._progress.begin("killing drivers", self._plan.kills + len(self._plan.steps))
        try:
            self._attempt(self._lives)
            self._progress.begin("finishing the input")
            # Even after an error: lost records show only once all input has been processed.
            self._attempt(self._last_life)
            self._progress.begin("comparing")
            self._problems += problems_of(directory)
        finally:
            self._bury()
        write_completed(directory, self._batches)
        findings = OutputFindings()
        if self._batches:
            findings = self._attempt(self._findings) or findings
        else:
            self._problems.append("no batch was completed, so nothing was tested")
        return DrillResult(
            seed=self._plan.seed,
            kills=self._ways.total(),
            at_steps=tuple(self._at_steps),
            batches=len(self._batches),
            recovery_ms=tuple(self._recoveries),
            findings=findings,
            problems=tuple(self._problems),
            ways={way: self._ways[way] for way in _ALL_WAYS if self._ways[way]},
            phases={phase: self._phases[phase] for phase in PHASES},
            deepest=self._deepest,
            seconds=(self._clock.now_ms() - started_ms) // 1000,
        )

    def _attempt(self, course: Callable[[], T]) -> T | None:
        try:
            return course()
        except DrillError as error:
            if str(error) not in self._problems:
                self._problems.append(str(error))
        return None

    def _findings(self) -> OutputFindings:
        with _failing("check(directory)"):
            return self._application.findings(str(self._plan.directory))

    def _is_done(self) -> bool:
        with _failing("is_done(directory)"):
            return self._application.is_done(str(self._plan.directory))

    def _feed(self) -> None:
        number, self._fed = self._fed, self._fed + 1
        with _failing(f"feed(directory, {number})"):
            self._application.feed(str(self._plan.directory), number)

    def _lives(self) -> None:
        if self._plan.kills > 0:
            self._random_life(first_kill(self._chance))
        for target in other_targets(self._plan.kills, self._plan.steps, self._chance):
            if isinstance(target, KillStep):
                self._step_life(target)
            elif not self._random_life(target):
                self._random_life(Kill("driver", target.moment))

    def _random_life(self, kill: Kill) -> bool:
        """Kill a driver after its first batch, or during its recovery.

        Returns:
            False if it was asked to end, and ended before the kill.
        """
        with self._life(None) as life:
            if kill.moment < 0:
                usual_ms = percentile(self._recoveries, 50) or _FIRST_RECOVERY_MS
                until_ms = life.started_ms + round(-kill.moment * usual_ms)
            else:
                self._recovered(life)
                self._wake(life)
                if self._ways[WORKERS] < self._plan.worker_kills:
                    self._kill_workers(life, kill.moment)
                until_ms = self._clock.now_ms() + round(1000 * kill.moment)
            self._watch_until(life, until_ms)
            self._require_alive(life)
            self._end(life, kill)
            if life.is_asked and not life.was_killed:
                self._report_on(life, "ended on request, before it was killed")
                return False
            self._count(life, WAYS[kill.way])
            after_ms = self._clock.now_ms() - life.started_ms
            self._report_on(life, f"{WAYS[kill.way]}, {after_ms} ms after its start: {life.phase}")
            return True

    def _kill_workers(self, life: DriverLife, moment: float) -> None:
        """Kill the Python workers, and require a further batch."""
        self._watch_until(life, self._clock.now_ms() + round(1000 * moment))
        self._require_alive(life)
        life.kill_workers()
        self._ways[WORKERS] += 1
        known = len(life.batches)
        self._wait(life, lambda: len(life.batches) > known)
        self._require_alive(life)

    def _end(self, life: DriverLife, kill: Kill) -> None:
        if kill.way == "group":
            life.kill_all()
        elif kill.way == "zombie":
            life.kill_from_jvm()
        elif kill.way == "paused":
            life.pause()
        elif kill.way == "workers":
            life.kill_workers()
            known = len(life.batches)
            self._wait(life, lambda: len(life.batches) > known)
            self._require_alive(life)
            if len(life.batches) == known:
                self._problems.append(
                    "a driver completed no further batch after its workers were killed"
                )
            life.kill()
        elif kill.way == "stop":
            life.ask_to_end()
            until_ms = self._clock.now_ms() + round(1000 * _STOP_SHARE * kill.moment)
            self._watch_until(life, until_ms)
            if life.process.poll() not in (None, 0):
                self._problems.append(
                    f"a driver ended with status {life.process.poll()} after "
                    f"SIGTERM; the end of {life.log}:\n{life.last_words()}"
                )
            life.kill()
        else:
            life.kill()

    def _step_life(self, step: KillStep) -> None:
        with self._life(step) as life:
            behind_ms = 0
            if step.in_stop:
                self._recovered(life)
                behind_ms = self._catch_up(life)
                life.ask_to_end()
            self._wait(life, lambda: False)
            if life.was_killed:
                self._at_steps.append(step.name)
                self._report_on(life, f"killed at the step: {step.name}")
            else:
                if not step.in_stop:
                    self._require_alive(life)
                why = ""
                if behind_ms > _BEHIND_MS:
                    why = (
                        f"; the stop started {behind_ms // 1000} s behind, with batches that take "
                        "longer than their interval; use a longer --interval"
                    )
                self._problems.append(f"no driver reached the step: {step.name}{why}")
                life.kill()
            self._count(life, AT_STEP)

    def _catch_up(self, life: DriverLife) -> int:
        """Let a driver run its pending batches, as long as they become fewer.

        Returns:
            The remaining delay in milliseconds.
        """

        def behind_ms() -> int:
            return self._clock.now_ms() - life.batches[-1]

        self._wait(life, lambda: behind_ms() <= _BEHIND_MS, lambda: -behind_ms())
        self._require_alive(life)
        return behind_ms()

    def _count(self, life: DriverLife, way: str) -> None:
        """Count a kill, after reading the last reports of the driver."""
        life.hear(self._clock)
        self._ways[way] += 1
        self._progress.advance()
        self._phases[life.phase] += 1
        self._in_a_row = 1 if life.batches else self._in_a_row + 1
        self._deepest = max(self._deepest, self._in_a_row)
        if way == WAYS["paused"]:
            self._paused.append(life)

    def _last_life(self) -> None:
        """Let a driver process all input, and stop it with SIGTERM."""
        with self._life(None) as life:
            self._recovered(life)
            self._wake(life)
            self._feeds = False
            fed_ms, heard = self._clock.now_ms(), -1

            def is_through() -> bool:
                nonlocal heard
                if self._application.start is not None:  # a query, whose batches end with its input
                    return self._is_done()
                known, heard = heard, len(life.batches)
                # With too many pending batches, a stop would time out.
                is_due = heard > known and life.batches[-1] >= fed_ms
                return is_due and self._is_done()

            # Many batches may have been missed: waits while further batches complete.
            self._wait(life, is_through, lambda: len(life.batches))
            self._require_alive(life)
            if not self._is_done():
                self._problems.append(
                    "not all input was processed when no batch had completed for "
                    f"{self._plan.patience_s:g} s"
                )
            life.ask_to_end()
            self._wait_for_end(life, life)
            status = life.process.poll()
            if status != 0:
                how = "did not end" if status is None else f"ended with status {status}"
                self._problems.append(f"the last driver {how} after SIGTERM")
            self._report_on(life, "stopped")

    @contextmanager
    def _life(self, step: KillStep | None) -> Iterator[DriverLife]:
        life = start_life(
            self._plan.directory, self._plan.app, step, self._clock, query=self._plan.query
        )
        try:
            yield life
        finally:
            life.hear(self._clock)
            # Processes of a killed driver run alongside the next one for a while.
            self._bury(but=self._paused)
            self._dead.append(life)
            if life not in self._paused:
                self._account_for(life)

    def _bury(self, but: Sequence[DriverLife] = ()) -> None:
        for life in [life for life in self._dead if life not in but]:
            self._dead.remove(life)
            life.bury()

    def _wake(self, present: DriverLife) -> None:
        """Continue the suspended drivers, which must end because a newer one took over."""
        for life in [life for life in self._paused if life is not present]:
            known, failures = len(life.batches), list(life.failures)
            life.resume()
            self._wait_for_end(life, present)
            name = f"driver {life.process.pid}, suspended while another one took over,"
            if not life.has_ended:
                self._problems.append(f"{name} did not end within {self._plan.patience_s:g} s")
            elif life.process.poll() == 0:
                self._problems.append(f"{name} ended with status 0")
            self._report(f"{name} ended, after {len(life.batches) - known} more batches")
            self._paused.remove(life)
            life.failures = failures  # later failures are expected
            self._account_for(life)

    def _wait_for_end(self, life: DriverLife, present: DriverLife) -> None:
        self._wait(present, lambda: life.has_ended)
        life.hear(self._clock)

    def _account_for(self, life: DriverLife) -> None:
        if self._batches and life.first_ms is not None:
            self._recoveries.append(life.first_ms - life.started_ms)
        for time_ms in life.batches:
            other = self._batches.setdefault(time_ms, life.process.pid)
            if other != life.process.pid:
                self._problems.append(
                    f"the batch at {time_ms} ms was completed by driver {other}, and again by "
                    f"driver {life.process.pid}"
                )
        self._problems += [f"a batch failed: {text}" for text in life.failures]

    def _recovered(self, life: DriverLife) -> None:
        """Wait for the first batch of a driver."""
        self._wait(life, lambda: bool(life.batches))
        self._require_alive(life)
        if not life.batches:
            raise DrillError(
                f"a driver completed no batch within {self._plan.patience_s:g} s; the end "
                f"of {life.log}:\n{life.last_words()}"
            )

    def _wait(
        self,
        life: DriverLife,
        is_there: Callable[[], bool],
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch a driver until *is_there*, or until it makes no progress for *patience_s*."""
        best, limit_ms = None, 0

        def is_over() -> bool:
            nonlocal best, limit_ms
            reached, now_ms = progress(), self._clock.now_ms()
            if best is None or reached > best:
                best, limit_ms = reached, now_ms + round(1000 * self._plan.patience_s)
            return is_there() or now_ms >= limit_ms

        self._watch(life, is_over)

    def _watch_until(self, life: DriverLife, until_ms: int) -> None:
        self._watch(life, lambda: self._clock.now_ms() >= until_ms, until_ms)

    def _watch(
        self, life: DriverLife, is_over: Callable[[], bool], until_ms: int | None = None
    ) -> None:
        """Add input and read reports until *is_over*, or the driver has ended.

        Wakes exactly at *until_ms*, not at the next report, so that drivers are killed anywhere.
        """
        while True:
            now_ms = self._clock.now_ms()
            if self._feeds and now_ms >= self._next_feed_ms:
                self._feed()
                self._next_feed_ms = now_ms + round(1000 * self._plan.feed_s)
            life.hear(self._clock)
            self._progress.advance(0)
            if life.has_ended or is_over():
                return
            rest_s = _POLL_S if until_ms is None else (until_ms - self._clock.now_ms()) / 1000
            life.wait(max(0.0, min(_POLL_S, rest_s)))

    def _require_alive(self, life: DriverLife) -> None:
        if life.has_ended:
            raise DrillError(
                f"a driver ended by itself, with status {life.process.poll()}; the end of "
                f"{life.log}:\n{life.last_words()}"
            )

    def _report_on(self, life: DriverLife, what: str) -> None:
        first = "no batch"
        if life.first_ms is not None:
            first = f"first batch after {(life.first_ms - life.started_ms) / 1000:.1f} s"
        self._report(f"driver {life.process.pid}: {first}, {len(life.batches)} batches, {what}")


@contextmanager
def _failing(call: str) -> Iterator[None]:
    """Convert an error of the application into one that ends the drill."""
    try:
        yield
    except Exception as error:
        raise DrillError(f"{call} of the application failed: {raised(error)}") from error
