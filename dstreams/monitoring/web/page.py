"""The live page: one server for all streams and queries of this process."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkContext

from dstreams.common.addresses import is_loopback
from dstreams.common.clock import SystemClock
from dstreams.common.redaction import redacted
from dstreams.common.settings import Settings
from dstreams.monitoring.registry import registry
from dstreams.monitoring.web.documents import ApplicationFacts

if TYPE_CHECKING:
    from dstreams.monitoring.web.server import PageServer

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 64
"""Requests served at a time, and pages open; a client may have a quarter of these."""


class ProcessPage:
    """The page of this process, served from the first start that enables it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: PageServer | None = None
        self.prints = False
        """Print the address at the start instead of logging it."""

    @property
    def url(self) -> str | None:
        """Address of the page without a token; None if it is not served."""
        server = self._server
        return None if server is None else server.url

    def show(self, spark: SparkContext, settings: Settings) -> None:
        """Serve the page if *settings* enable it, unless it is served already; never raises."""
        if not settings.ui_enabled:
            return
        try:
            with self._lock:
                self._show(_facts(spark, settings), settings)
        except Exception as error:
            logger.warning(
                "live page: cannot start: %s; set spark.dstreams.ui.port to another port, or "
                "spark.dstreams.ui.enabled=false",
                error,
            )

    def close(self) -> None:
        """Stop serving the page; does nothing if it is not served."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()
            atexit.unregister(self.close)

    def _show(self, facts: ApplicationFacts, settings: Settings) -> None:
        if self._server is not None:
            self._server.facts = facts
            return
        # Programs without a page do not load a server.
        from dstreams.monitoring.web.requests import new_token  # noqa: PLC0415
        from dstreams.monitoring.web.server import Address, PageServer  # noqa: PLC0415

        host, token = settings.ui_host or "127.0.0.1", settings.ui_token
        is_made = token is None and not is_loopback(host)
        if is_made:
            token = new_token()
        address = Address(host, settings.ui_port, token, _MAX_CONNECTIONS)
        self._server = PageServer(address, registry(), facts, SystemClock())
        atexit.register(self.close)
        self._announce(self._server.url, token if is_made else None)

    def _announce(self, url: str, made_token: str | None) -> None:
        """Print or log the address; a generated token goes to a terminal or a private file."""
        text = f"live page: {url}"
        if made_token is not None:
            if self.prints and sys.stderr.isatty():
                text = f"{text}/?token={made_token}"
            else:  # logs are kept, and read by others
                text = f"{text}; its token is in {_token_file(made_token)}"
        if self.prints:
            sys.stderr.write(f"dstreams: {text}\n")
        else:  # a warning, so that the path of the token is found
            logger.log(logging.INFO if made_token is None else logging.WARNING, "%s", text)


def _token_file(token: str) -> str:
    """Write a token to a file for this user alone, removed at exit; return its path."""
    descriptor, path = tempfile.mkstemp(prefix="dstreams-token-")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:
        with suppress(OSError):
            os.unlink(path)


def _facts(spark: SparkContext, settings: Settings) -> ApplicationFacts:
    return ApplicationFacts(
        spark.appName or "",
        spark.applicationId,
        spark.uiWebUrl,
        _version(),
        pyspark.__version__,
        spark.startTime,
        _shown(dict(spark.getConf().getAll()), settings),
    )


def _shown(conf: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """Return the settings of Spark, and those of dstreams that differ from their defaults."""
    own = {
        declared["key"]: str(getattr(settings, name))
        for name, declared in Settings.declared().items()
        if getattr(settings, name) != getattr(Settings, name)
    }
    return redacted({**own, **conf})


def _version() -> str:
    try:
        return version("dstreams")
    except PackageNotFoundError:
        return "(not installed)"


page = ProcessPage()
registry().subscribe(page)
