"""A real Prometheus scrapes the page of a real stream, and its rules see an output fail."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest

from dstreams import BatchFailedError
from dstreams.monitoring.web.page import page
from tests.dstreams.conftest import MakeContext
from tests.support.ports import free_port
from tests.support.waiting import wait_for

RULES = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
Ask = Callable[[str], Any]


@pytest.fixture(autouse=True)
def _page_closed(active_stopped: None) -> Iterator[None]:
    yield
    page.close()


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[Ask]:
    """Run a server that scrapes *target* each second; yields a function that queries a path."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus here; install it: apt install prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "dstreams", "static_configs": [{"targets": [target]}]}],
        "rule_files": [str(RULES)],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"

    def ask(path: str) -> Any:
        try:
            with urlopen(f"http://{address}/api/v1/{path}", timeout=60) as answer:
                return json.load(answer)["data"]
        except OSError:  # it has not begun to listen, or is not ready
            return None

    with (directory / "log").open("wb") as out:
        server = subprocess.Popen(
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=out,
            stderr=out,
        )
        try:
            yield ask
        finally:
            server.terminate()
            server.wait(60)


def scraped(ask: Ask) -> list[tuple[str, str]]:
    """Return the health and the last error of each target."""
    targets = ask("targets")["activeTargets"]
    return [(target["health"], target["lastError"]) for target in targets]


def firing(ask: Ask, stream: str) -> list[Any]:
    """Return what fires of a stream; others have ended before in this process."""
    return [
        alert
        for alert in ask("alerts")["alerts"]
        if alert["state"] == "firing" and alert["labels"].get("stream") == stream
    ]


def test_an_output_that_fails_is_an_alert(make_ssc: MakeContext, tmp_path: Path) -> None:
    """Prometheus reads the page without an error, and the alert is there for its output alone."""
    ssc = make_ssc(ui_enabled=True, ui_port=0)
    numbers = ssc.queueStream([[1], [2]])

    def save(rdd: Any) -> None:
        if rdd.collect() == [2]:
            raise ValueError("no disk")

    numbers.foreachRDD(save)
    numbers.foreachRDD(lambda rdd: rdd.count())
    ssc.step()
    name = ssc.sparkContext.appName
    query = quote(f'dstreams_output_failures_total{{stream="{name}"}} == 0')
    with prometheus(urlsplit(str(ssc.uiWebUrl)).netloc, tmp_path) as ask:
        wait_for(lambda: len((ask(f"query?query={query}") or {"result": ()})["result"]) == 2)
        wait_for(lambda: scraped(ask) == [("up", "")])  # a slow answer fails one scrape
        assert firing(ask, name) == []
        with pytest.raises(BatchFailedError, match="no disk"):
            ssc.step()
        wait_for(lambda: firing(ask, name))
        [alert] = firing(ask, name)
        assert alert["labels"]["alertname"] == "DStreamsOutputFailing"
        failed = next(iter(ssc.status().totals.output_failures))
        assert alert["labels"]["output"] == failed
        assert alert["annotations"]["summary"] == f"{failed} of {name} fails"
