"""A real Chromium that looks at pages, and whatever it complains of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]'")

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_WAIT_MS = 60_000


@contextmanager
def running_browser() -> Iterator[Any]:
    """Run Chromium without a window; skip the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    sync_api.expect.set_options(timeout=_WAIT_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab of the browser.

    Attributes:
        page: what Playwright calls it.
        complaints: errors of scripts, messages in the console, dialogs, and requests to hosts
            other than that of the page.
    """

    def __init__(self, browser: Any, **options: Any) -> None:
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(_WAIT_MS)
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self._hosts: set[str] = set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._asked)
        self.page.on("request", self._requested)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.netloc not in self._hosts:
            self.complaints.append(f"request to {parts.netloc}: {request.url}")

    def open(self, url: str) -> Any:
        """Open an address, and return the page."""
        self._hosts.add(urlsplit(url).netloc)
        self.page.goto(url)
        return self.page

    def close(self) -> None:
        self._context.close()
