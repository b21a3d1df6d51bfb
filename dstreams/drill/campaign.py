"""The course of a drill: drivers are started and killed until all kills are done, then one ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dstreams.clock import Clock
from dstreams.drill.application import Application
from dstreams.drill.findings import Result, percentile
from dstreams.drill.life import Life, start_life
from dstreams.drill.steps import Step

_POLL_S = 0.1
_KILL_WITHIN_S = 5.0
_FIRST_RECOVERY_MS = 8000
_EARLY_SHARE = 4
"""One of so many random kills hits a driver that has not recovered yet."""


class DrillError(Exception):
    """The drill cannot go on; what it has found so far stands."""


@dataclass(frozen=True)
class Plan:
    """What a drill does.

    Args:
        directory: where everything is, empty at the start.
        app: file of the application, None for the drill's own.
        kills: how many kills at random moments.
        steps: steps to be killed at, once each.
        seed: of the random moments.
        feed_s: seconds between two helpings of input.
        patience_s: how long a driver may take for its first batch, and for the next one while
            there is input at the end.
    """

    directory: Path
    app: Path | None
    kills: int
    steps: Sequence[Step]
    seed: int
    feed_s: float = 1.0
    patience_s: float = 240.0


class Campaign:
    """A drill that runs.

    Args:
        plan: what it does.
        application: the application, as loaded in this process.
        clock: the machine's clock.
        tell: called with a line about each life.
    """

    def __init__(
        self, plan: Plan, application: Application, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._application = application
        self._clock = clock
        self._tell = tell
        self._moments = random.Random(plan.seed)
        self._fed = 0
        self._next_feed_ms = 0
        self._feeds = True
        self._kills = 0
        self._at_steps: list[str] = []
        self._batches: set[int] = set()
        self._recoveries: list[int] = []
        self._problems: list[str] = []
        self._dead: list[Life] = []

    def run(self) -> Result:
        """Run all lives, and compare the outputs with what they must be."""
        directory = str(self._plan.directory)
        try:
            if self._plan.kills > 0:
                # The first driver shows that the application works at all.
                self._random_life(self._moments.uniform(0, _KILL_WITHIN_S))
            for target in self._targets():
                if isinstance(target, Step):
                    self._step_life(target)
                else:
                    self._random_life(target)
            self._last_life()
        except DrillError as error:
            self._problems.append(str(error))
        finally:
            self._bury()
        return Result(
            seed=self._plan.seed,
            kills=self._kills,
            at_steps=tuple(self._at_steps),
            batches=len(self._batches),
            recovery_ms=tuple(self._recoveries),
            findings=self._application.findings(directory),
            problems=tuple(self._problems),
        )

    def _targets(self) -> list[Step | float]:
        """Steps and random moments, mixed; a moment is seconds after recovery, or before it."""
        targets: list[Step | float] = list(self._plan.steps)
        for kill in range(1, self._plan.kills):
            is_early = kill % _EARLY_SHARE == 0
            moment = self._moments.uniform(0, _KILL_WITHIN_S)
            targets.append(-self._moments.random() if is_early else moment)
        self._moments.shuffle(targets)
        return targets

    def _random_life(self, moment: float) -> None:
        """Kill a driver *moment* seconds after its first batch; negative: in its recovery.

        Then it is a share of the time that recoveries have taken so far.
        """
        with self._life(None) as life:
            if moment < 0:
                usual_ms = percentile(self._recoveries, 50) or _FIRST_RECOVERY_MS
                until_ms = life.started_ms + round(-moment * usual_ms)
                self._watch(life, lambda: self._clock.now_ms() >= until_ms)
                how = f"{until_ms - life.started_ms} ms after its start"
            else:
                self._recovered(life)
                until_ms = self._clock.now_ms() + round(1000 * moment)
                self._watch(life, lambda: self._clock.now_ms() >= until_ms)
                how = f"{until_ms - life.started_ms} ms after its start, in batch work"
            self._require_alive(life)
            life.kill()
            self._kills += 1
            self._tell_of(life, f"killed {how}")

    def _step_life(self, step: Step) -> None:
        with self._life(step) as life:
            limit_ms = life.started_ms + round(1000 * self._plan.patience_s)
            self._watch(life, lambda: self._clock.now_ms() >= limit_ms)
            if life.was_killed:
                self._kills += 1
                self._at_steps.append(step.name)
                self._tell_of(life, f"killed at the step: {step.name}")
                return
            self._require_alive(life)
            self._problems.append(f"no driver came to the step: {step.name}")
            life.kill()
            self._kills += 1

    def _last_life(self) -> None:
        """Let a driver finish all input and end when it is asked to."""
        with self._life(None) as life:
            self._recovered(life)
            self._feeds = False
            directory = str(self._plan.directory)
            patience_ms = round(1000 * self._plan.patience_s)
            fed_ms, heard = self._clock.now_ms(), -1
            limit_ms = fed_ms + patience_ms

            def is_over() -> bool:
                nonlocal limit_ms, heard
                if len(life.batches) == heard:
                    return self._clock.now_ms() >= limit_ms
                # Many batches may have been missed: it is patient as long as there is progress.
                limit_ms, heard = self._clock.now_ms() + patience_ms, len(life.batches)
                # With too many batches still to run, a stop would have to cut one off in the end.
                return life.batches[-1] >= fed_ms and self._application.is_done(directory)

            self._watch(life, is_over)
            self._require_alive(life)
            if not self._application.is_done(directory):
                self._problems.append(
                    "not all input had been through when there was no batch any more for "
                    f"{self._plan.patience_s:g} s"
                )
            life.ask_to_end()
            limit_ms = self._clock.now_ms() + patience_ms
            self._watch(life, lambda: self._clock.now_ms() >= limit_ms)
            status = life.process.poll()
            if status != 0:
                how = "did not end" if status is None else f"ended with status {status}"
                self._problems.append(f"the last driver {how} when it was asked to by SIGTERM")
            self._tell_of(life, "asked to end")

    @contextmanager
    def _life(self, step: Step | None) -> Iterator[Life]:
        life = start_life(self._plan.directory, self._plan.app, step, self._clock)
        try:
            yield life
        finally:
            life.hear(self._clock)
            # What a killed driver leaves behind, the next one has to live with for a while.
            self._bury()
            self._dead.append(life)
            self._account_for(life)

    def _bury(self) -> None:
        while self._dead:
            self._dead.pop().bury()

    def _account_for(self, life: Life) -> None:
        is_restart = bool(self._batches)
        if is_restart and life.first_ms is not None:
            self._recoveries.append(life.first_ms - life.started_ms)
        self._batches.update(life.batches)
        self._problems += [f"a batch failed: {text}" for text in life.failures]

    def _recovered(self, life: Life) -> None:
        """Wait for the first batch of a driver."""
        limit_ms = life.started_ms + round(1000 * self._plan.patience_s)
        self._watch(life, lambda: bool(life.batches) or self._clock.now_ms() >= limit_ms)
        self._require_alive(life)
        if not life.batches:
            raise DrillError(
                f"a driver had no batch within {self._plan.patience_s:g} s of its start; the end "
                f"of {life.log}:\n{life.last_words()}"
            )

    def _watch(self, life: Life, is_over: Callable[[], bool]) -> None:
        """Feed and listen until *is_over*, or the driver has ended."""
        while True:
            if self._feeds and self._clock.now_ms() >= self._next_feed_ms:
                self._application.feed(str(self._plan.directory), self._fed)
                self._fed += 1
                self._next_feed_ms = self._clock.now_ms() + round(1000 * self._plan.feed_s)
            life.hear(self._clock)
            if life.has_ended or is_over():
                return
            life.wait(_POLL_S)

    def _require_alive(self, life: Life) -> None:
        if life.has_ended:
            raise DrillError(
                f"a driver ended by itself, with status {life.process.poll()}; the end of "
                f"{life.log}:\n{life.last_words()}"
            )

    def _tell_of(self, life: Life, what: str) -> None:
        first = "no batch"
        if life.first_ms is not None:
            first = f"first batch after {(life.first_ms - life.started_ms) / 1000:.1f} s"
        self._tell(f"driver {life.process.pid}: {first}, {len(life.batches)} batches, {what}")
