"""Requests and answers of HTTP/1.1 for a read-only page, and access control.

A connection has one request without a body, so that requests cannot be smuggled. Anything else is
rejected. A foreign page in the user's browser can send requests here: the ``Host`` header (against
DNS rebinding), ``Origin`` and ``Sec-Fetch-Site`` reveal it. Other hosts also need the token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets  # noqa: TID251 - tokens must be unpredictable
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

from dstreams.common.addresses import is_address, is_loopback

MOST_HEAD_BYTES = 32 << 10
_MOST_LINE_BYTES = 16 << 10
_MOST_HEADERS = 64
_MOST_PARAMETERS = 8

_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_ONLY_ONCE = ("authorization", "host", "origin", "sec-fetch-site")

TEXT = "text/plain; charset=utf-8"

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""

_PAGE = "/"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Request:
    """A request with lower-case header names and the path as sent."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, status: int, text: str, **headers: str) -> Answer:
        """Return an answer with a line of text."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, f"{text}\n".encode("utf-8", "replace"), headers=named)

    def head(self, *, has_length: bool = True) -> bytes:
        """Return the status line and headers."""
        length = {"Content-Length": str(len(self.body))} if has_length else {}
        headers = {
            "Content-Type": self.content_type,
            **length,
            "Connection": "close",
            **HEADERS,
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


class RequestError(Exception):
    """A rejected request, to be answered with *answer*."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def _refuse(status: int, text: str) -> RequestError:
    return RequestError(Answer.text(status, text))


def parse_request(head: bytes) -> Request:
    """Return the request with this head.

    Raises:
        RequestError: it is malformed, or has a body.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    if len(first) > _MOST_LINE_BYTES:
        raise _refuse(414, f"an address has at most {_MOST_LINE_BYTES} bytes")
    match = _LINE.fullmatch(first)
    if match is None:
        raise _refuse(400, "malformed request line")
    headers = _headers([line for line in lines if line])
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise _refuse(400, "requests cannot have a body: this server is read-only")
    method, target = match.groups()
    path, _, query = target.partition("?")
    return Request(method, path, _parameters(query), headers)


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > _MOST_HEADERS:
        raise _refuse(431, f"a request has at most {_MOST_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise _refuse(400, "malformed header")
        name = match[1].lower()
        if name in headers and name in _ONLY_ONCE:
            raise _refuse(400, f"duplicate header {name}")
        headers[name] = match[2]
    return headers


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise _refuse(400, f"an address has at most {_MOST_PARAMETERS} parameters") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise _refuse(400, "duplicate parameter")
    return parameters


def new_token() -> str:
    """Return an unpredictable token."""
    return secrets.token_urlsafe(32)


class Guard:
    """Rejects requests without access.

    Args:
        host: the host that the server listens on.
        port: its port, part of the cookie's name: browsers share cookies between ports of a host.
        token: the required token; None if none is required.
    """

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._is_local = is_loopback(host)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._token = token
        self._cookie = f"dstreams_{port}"
        # Browsers send the cookie to other servers of this host, so it must not reveal the token.
        self._session = "" if token is None else _mac(token)

    def refuse(self, request: Request) -> Answer | None:
        """Return the answer that rejects a request; None if it may be answered."""
        if request.method not in ("GET", "HEAD"):
            return Answer.text(405, "this server is read-only", Allow="GET, HEAD")
        host = request.headers.get("host", "")
        if not self._is_own(host):
            return Answer.text(
                421,
                "unknown host name; use the address that was printed when the stream started",
            )
        if not _is_same_origin(request, host):
            return Answer.text(403, "requests from pages of other origins are forbidden")
        return None if self._token is None else self._check_token(request, self._token)

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        if self._is_local:
            return is_loopback(name)
        return name in self._names or is_address(name)  # addresses cannot be rebound

    def _check_token(self, request: Request, token: str) -> Answer | None:
        given = request.query.get("token")
        if request.path == _PAGE and given is not None and _is_equal(given, token):
            return self._grant()
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_equal(sent.strip(), token):
            return None
        if _is_equal(_cookies(request).get(self._cookie, ""), self._session):
            return None
        return Answer.text(
            401,
            "token required: open the address with ?token=... that was printed when the stream "
            "started, or send the header Authorization: Bearer ...",
            WWW_Authenticate='Bearer realm="dstreams"',
        )

    def _grant(self) -> Answer:
        """Set a cookie, and redirect the browser to the page without the token.

        Not with status 303: after a link on a foreign page browsers withhold strict cookies during
        redirects, but send them when a page of ours refreshes.
        """
        cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        headers = {"Set-Cookie": cookie, "Refresh": f"0;url={_PAGE}"}
        return Answer(200, b"Welcome.\n", headers=headers)


def _is_same_origin(request: Request, host: str) -> bool:
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() not in (
        f"http://{host}".lower(),
        f"https://{host}".lower(),
    ):
        return False
    site = request.headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return True
    # A foreign page may link to the page itself, which contains no data.
    kind = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest"))
    return request.path == _PAGE and kind == ("navigate", "document")


def _mac(token: str) -> str:
    return hmac.new(token.encode(), b"cookie of the dstreams page", hashlib.sha256).hexdigest()


def _is_equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _cookies(request: Request) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in request.headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}
