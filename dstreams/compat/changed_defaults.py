"""What ``dstreams run`` says of the defaults of Spark that it changes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from dstreams.common.settings import UI_ENABLED
from dstreams.spark.context import JVM_OPTIONS, SOCKET_DIRECTORY, UNIX_SOCKETS, WORKER_DAEMON

PYTHON = "PYSPARK_PYTHON"

_WHY: Mapping[str, str] = {
    "spark.master": "all cores, and a failed task is tried again",
    JVM_OPTIONS: "the JVM logs errors only",
    "spark.driver.bindAddress": "Spark is open to this machine alone",
    "spark.ui.showConsoleProgress": "Spark draws no bars over what the program prints",
    "spark.port.maxRetries": "so many programs have a page each on one host",
    "spark.shuffle.compress": "what stays on this machine is not compressed",
    "spark.python.task.killTimeout": "a cancelled task stops in half a second",
    UNIX_SOCKETS: "workers answer about 40 ms sooner",
    WORKER_DAEMON: "workers begin with dstreams loaded",
    UI_ENABLED: "the page of dstreams is on",
    PYTHON: "workers run the interpreter of the program",
}
_WITH_ANOTHER = {"spark.driver.host": "spark.driver.bindAddress", SOCKET_DIRECTORY: UNIX_SOCKETS}
_WITHOUT_VALUE = (JVM_OPTIONS, PYTHON)
_COLUMNS = 80


def changed_defaults(changed: Mapping[str, str]) -> str:
    """Return what is said of *changed* settings, a line or two each; nothing where there are none.

    Settings that go with another one, such as the two addresses of a driver, are one line.
    """
    shown = [key for key in _WHY if key in changed or key in map(_WITH_ANOTHER.get, changed)]
    if not shown:
        return ""
    lines = ["dstreams changes these defaults (none with --spark-defaults):"]
    for key in shown:
        has_value = key in changed and key not in _WITHOUT_VALUE
        named = f"{key}={changed[key]}" if has_value else key
        lines += textwrap.wrap(
            f"{named}: {_WHY[key]}",
            _COLUMNS,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "".join(f"{line}\n" for line in lines)
