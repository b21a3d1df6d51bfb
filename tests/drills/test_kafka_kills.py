"""Kill -9 of drivers and workers that read and write Kafka, with brokers that go and come back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.drill.application import INTERVAL, KAFKA, load
from dstreams.cli.drill.campaign import WORKERS, Campaign, DrillPlan
from dstreams.cli.drill.results import DrillResult, result_table
from dstreams.cli.drill.steps import step_named
from dstreams.common.clock import SystemClock
from tests.support.kafka_broker import KafkaBroker

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("DSTREAMS_DRILL_SEED", "20261123"))
RESTART_EACH = 120
"""After so many helpings of input the broker is stopped, or killed, and started again."""


def drill(
    broker: KafkaBroker,
    plan: DrillPlan,
    monkeypatch: pytest.MonkeyPatch,
    interval_s: int,
    restart_each: int | None = None,
) -> tuple[DrillResult, int]:
    """Run a drill, and return what it found and how often the broker went."""
    plan.directory.mkdir()
    monkeypatch.setenv(KAFKA, broker.bootstrap)
    monkeypatch.setenv(INTERVAL, str(interval_s))
    application = load(None)
    restarts = 0

    def feed(directory: str, number: int) -> Any:
        nonlocal restarts
        if restart_each is not None and number % restart_each == restart_each - 1:
            restarts += 1
            if restarts % 2:
                broker.kill()
            broker.restart()
        return application.feed(directory, number)

    result = Campaign(plan, replace(application, feed=feed), SystemClock(), print).run()
    print(result_table(result), f"{restarts} restarts of the broker")
    return result, restarts


def require_clean(result: DrillResult) -> None:
    found = result.findings
    assert (found.lost, found.duplicated, found.state_equal) == (0, 0, True), result
    assert result.is_passed, result
    assert found.records > 0


@pytest.mark.deep
def test_two_kills_and_the_workers(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random, after its workers; and when outputs are there that no commit record tells of."""
    steps = (step_named("commit.start"),)
    plan = DrillPlan(tmp_path / "drill", None, 1, steps, SEED, worker_kills=1)
    result, _ = drill(kafka_broker, plan, monkeypatch, 10)
    require_clean(result)
    assert result.at_steps == ("commit.start",)
    assert result.ways[WORKERS] == 1


@pytest.mark.slow
def test_twenty_kills_ten_of_workers_and_brokers_that_restart(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Kafka through updateStateByKey and mapWithState to Kafka and SQLite: all of it once."""
    plan = DrillPlan(tmp_path / "drill", None, 20, (), SEED, worker_kills=10)
    result, restarts = drill(kafka_broker, plan, monkeypatch, 10, RESTART_EACH)
    require_clean(result)
    assert result.ways[WORKERS] == 10
    assert result.kills >= 30
    assert restarts > 0
