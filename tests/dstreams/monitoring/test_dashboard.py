"""The dashboard for Grafana: its queries are evaluated by Prometheus on what is scraped. No Spark.

That Grafana shows it is not tried here; its schema is that of Grafana 10.1, which later ones read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from dstreams.monitoring.metrics import METRICS, families
from dstreams.monitoring.status import Totals
from tests.support.promtool import Expected, Scrapes
from tests.support.statuses import a_batch, a_status

PATH = Path(__file__).parents[3] / "docs" / "monitoring" / "grafana.json"
DASHBOARD = json.loads(PATH.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {
    "$job": "dstreams",
    "$stream": "app|other",
    "$__rate_interval": "4m",
    "$__interval": "1m",
}


def filled(query: str) -> str:
    """Return a query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


@pytest.fixture
def scrapes() -> Scrapes:
    """Ten minutes of a stream for which every metric has samples."""
    scrapes, totals = Scrapes(), Totals()
    for number in range(10):
        batch = a_batch(number)
        totals = totals.with_batch(batch)
        now_ms = 60_000 * number + 10_000
        scrapes.scrape([a_status(totals=totals, recent=(batch,), now_ms=now_ms)])
    return scrapes


def test_each_query_has_something_to_show(scrapes: Scrapes, tmp_path: Path) -> None:
    """Prometheus understands it, and finds series of numbers for it."""
    queries = [filled(target["expr"]) for panel in PANELS for target in panel["targets"]]
    assert len(queries) > 30
    found = [Expected(f"count(({query}) > -Inf) > bool 0", 9, {"{}": 1}) for query in queries]
    scrapes.check(found, tmp_path)


def test_marks_are_starts(scrapes: Scrapes, tmp_path: Path) -> None:
    """A driver that keeps running has no marks."""
    [mark] = DASHBOARD["annotations"]["list"]
    scrapes.check([Expected(filled(mark["expr"]), 9, {})], tmp_path)


def test_only_metrics_that_exist_are_named() -> None:
    """Also by the lists of jobs and streams that one chooses from."""
    known = {sample.name for family in families([a_status()]) for sample in family.samples}
    named = set(re.findall(r"dstreams_[a-z_]+", PATH.read_text(encoding="utf-8")))
    assert named - known == set()
    shown = {name for name in known if name in named or f"{name}_bucket" in named}
    unseen = {f"dstreams_{metric.name}" for metric in METRICS} - {
        re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown
    }
    assert unseen == {
        "dstreams_stream_started_timestamp_seconds",
        "dstreams_batch_last_completed_timestamp_seconds",
    }


def test_panels_stand_side_by_side() -> None:
    """Each with an id, a title and a sentence of its own, and none on another one."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) >= len(PANELS) - 1
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )


def test_the_schema_of_grafana_knows_all_of_it() -> None:
    """Read into Grafana's own model of a dashboard and written again, nothing is lost."""
    dashboard = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="pip install -e '.[dev]'"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: PLC0415

    register_default_plugins()
    read = dashboard.Dashboard.from_json(DASHBOARD)
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    assert list(lost(DASHBOARD, written, "$")) == []


def lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the places at which something is not there any more, or another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after.get(name, "nothing"), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{path}[{at}]")
    elif before != after:
        yield path
