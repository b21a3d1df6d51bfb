"""The documentation of metrics matches the code. No Spark."""

from __future__ import annotations

import re
from pathlib import Path

from dstreams.monitoring.metrics import METRICS, PARTITIONS, SERIES, Metric

DIRECTORY = Path(__file__).parents[3] / "docs" / "monitoring"
PAPER = (DIRECTORY / "README.md").read_text(encoding="utf-8")


def cells(metric: Metric) -> list[str]:
    ending = "_total" if metric.kind == "counter" else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    return [f"`dstreams_{metric.name}{ending}`", metric.kind, labels, metric.meaning]


def test_each_metric_has_its_row() -> None:
    """Each row has the kind, labels and help text of its metric."""
    rows = re.findall(r"^\| (`dstreams_.*) \|$", PAPER, re.MULTILINE)
    assert [row.split(" | ") for row in rows] == [cells(metric) for metric in METRICS]
    assert f"first {SERIES} have series" in PAPER.replace("\n  ", " ")
    assert f"lowest numbers, {PARTITIONS} in all" in PAPER
