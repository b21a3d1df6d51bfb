"""Prometheus' own tool, where it is installed, and series that were scraped from monitors."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dstreams.monitoring.metrics import families
from dstreams.monitoring.status import StreamStatus

TARGET = {"job": "dstreams", "instance": "driver:4050"}


def require_promtool() -> str:
    """Return the path of promtool, or skip the test that asks for it."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool here; install it: apt install prometheus")
    return found


def promtool(*words: str, text: str = "") -> str:
    """Run promtool, and return what it printed; fails with that where promtool does."""
    done = subprocess.run(
        [require_promtool(), *words], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Expected:
    """What a query gives at a minute: the value of each series of it."""

    query: str
    minute: int
    samples: Mapping[str, float]


@dataclass
class Scrapes:
    """The series that Prometheus has after scrapes at minute 0, 1, 2, ..."""

    minutes: int = 0
    values: dict[str, list[str]] = field(default_factory=dict)

    def scrape(self, statuses: Sequence[StreamStatus], *, is_up: bool = True) -> None:
        """Take in what is told at the next minute; nothing from a driver that is down."""
        seen = {series("up", TARGET): str(int(is_up))}
        for family in families(statuses) if is_up else ():
            for sample in family.samples:
                seen[series(sample.name, {**sample.labels, **TARGET})] = repr(float(sample.value))
        for name in {**self.values, **seen}:
            before = self.values.setdefault(name, ["_"] * self.minutes)
            is_new = not before or before[-1] in ("_", "stale")
            before.append(seen.get(name, "_" if is_new else "stale"))
        self.minutes += 1

    def check(self, expected: Iterable[Expected], directory: Path, *rules: Path) -> None:
        """Let promtool evaluate *rules* each minute, and compare what queries give then.

        Args:
            directory: where the test for promtool is written.
        """
        test = {
            "rule_files": [str(path) for path in rules],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": name, "values": " ".join(values)}
                        for name, values in self.values.items()
                    ],
                    "promql_expr_test": [
                        {
                            "expr": one.query,
                            "eval_time": f"{one.minute}m",
                            "exp_samples": [
                                {"labels": labels, "value": value}
                                for labels, value in one.samples.items()
                            ],
                        }
                        for one in expected
                    ],
                }
            ],
        }
        path = directory / "rules-test.yml"
        path.write_text(json.dumps(test), encoding="utf-8")  # which is YAML as well
        promtool("test", "rules", str(path))


def firing(minute: int, *alerts: str) -> Expected:
    """Return that these alerts fire at a minute, and no other ones."""
    query = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return Expected(query, minute, {series("", {"alertname": name}): 1 for name in alerts})


def series(name: str, labels: Mapping[str, str]) -> str:
    """Write a series in the words of promtool."""
    shown = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels.items()))
    return f"{name}{{{shown}}}"
