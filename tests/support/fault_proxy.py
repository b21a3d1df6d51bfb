"""A proxy on loopback before an HTTP server, which fails requests as networks and stores do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Action = Literal["throttle", "fail", "expired", "forbidden", "reset", "lose answer", "hang"]

_ANSWERS = {
    "throttle": (503, "SlowDown", "Please reduce your request rate."),
    "fail": (500, "InternalError", "We encountered an internal error. Please try again."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "forbidden": (403, "InvalidAccessKeyId", "The AWS Access Key Id does not exist."),
}
_BACKEND_S = 60
_HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass
class Fault:
    """An action on the next *times* requests with a method whose path contains *part*.

    ``reset`` ends the connection before the request is carried out, ``lose answer`` after it, and
    ``hang`` carries it out and never answers.
    """

    method: str
    part: str
    action: Action
    times: int = 1


class FaultProxy:
    """A running proxy.

    Attributes:
        url: its address.
        requests: method and path of all requests.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()

    def inject(self, fault: Fault) -> None:
        """Let requests fail."""
        with self._lock:
            self._faults.append(fault)

    @property
    def is_calm(self) -> bool:
        """Whether all faults have happened."""
        return not any(fault.times for fault in self._faults)

    def action_for(self, method: str, path: str) -> Action | None:
        """Return what happens to a request."""
        with self._lock:
            self.requests.append((method, path))
            for fault in self._faults:
                if fault.times and fault.method == method and fault.part in path:
                    fault.times -= 1
                    return fault.action
        return None


@contextmanager
def running_fault_proxy(backend: str) -> Iterator[FaultProxy]:
    """Start a proxy for the server at the URL *backend*."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")
    server.proxy, server.backend = proxy, urlsplit(backend).netloc  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        proxy: FaultProxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        action = proxy.action_for(self.command, self.path)
        if action in _ANSWERS:
            self._refuse(*_ANSWERS[action])
        elif action == "reset":
            self.close_connection = True
        else:
            self._forward(body, action)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def _forward(self, body: bytes, action: Action | None) -> None:
        backend = HTTPConnection(self.server.backend, timeout=_BACKEND_S)  # type: ignore[attr-defined]
        try:
            backend.request(self.command, self.path, body, dict(self.headers.items()))
            answer = backend.getresponse()
            content = answer.read()
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in _HOP_BY_HOP
            ]
            length = answer.getheader("Content-Length")
        finally:
            backend.close()
        if action == "hang":
            self.server.proxy.closing.wait(_BACKEND_S)  # type: ignore[attr-defined]
        if action is not None:
            self.close_connection = True
            return
        self._answer(answer.status, headers, content, length)

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
        length: str | None = None,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        is_head = self.command == "HEAD" and length is not None
        self.send_header("Content-Length", length or "0" if is_head else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass
