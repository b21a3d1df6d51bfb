"""How and when drivers are killed: drawn from a seed, before the first one is started."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dstreams.cli.drill.steps import Step

Way = Literal["driver", "group", "zombie", "paused", "workers", "stop"]

WAYS: dict[Way, str] = {
    "driver": "driver killed, its JVM ends by itself",
    "group": "driver, JVM and workers killed at once",
    "zombie": "driver killed, its JVM goes on",
    "paused": "driver stopped, and continued after the next one had begun",
    "workers": "Python workers killed in a batch, the driver later",
    "stop": "driver killed while it was stopping",
}
"""The ways to kill at random moments, for the report."""

AT_STEP = "driver killed at a named step"
"""The other way, for the report."""

WORKERS = "Python workers killed, the driver goes on"
"""What comes before another kill, for the report."""

KILL_WITHIN_S = 5.0

_CYCLE: tuple[Way, ...] = (
    *("driver", "group", "zombie", "driver", "paused"),
    *("driver", "workers", "driver", "stop", "group"),
)
_EARLY_SHARE = 4
"""One of so many random kills hits a driver that has not recovered yet."""


@dataclass(frozen=True)
class Kill:
    """A kill at a random moment.

    Args:
        way: how.
        moment: seconds after the first batch of the driver; negative: the share of the time of a
            usual recovery, after its start.
    """

    way: Way
    moment: float


def first_kill(chance: random.Random) -> Kill:
    """Return the kill of the first driver, which has shown that the application works at all."""
    return Kill("driver", chance.uniform(0, KILL_WITHIN_S))


def other_targets(kills: int, steps: Sequence[Step], chance: random.Random) -> list[Step | Kill]:
    """Return all targets but the first, mixed; half of the early kills follow another one."""
    targets: list[Step | Kill] = list(steps)
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
