"""Access control of the page: by host, origin and token.

A foreign page in the user's browser can send requests here. The ``Host`` header (against DNS
rebinding), ``Origin`` and ``Sec-Fetch-Site`` reveal it. Other hosts also need the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets  # noqa: TID251 - tokens must be unpredictable
import socket
from collections.abc import Mapping

from dstreams.monitoring.web.requests import Answer, Request

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


def is_loopback(host: str) -> bool:
    """Return whether an address or name is a loopback one."""
    return host.lower() == "localhost" or (_is_address(host) and _address(host).is_loopback)


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
        return name in self._names or _is_address(name)  # addresses cannot be rebound

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


def _is_address(host: str) -> bool:
    try:
        _address(host)
    except ValueError:
        return False
    return True


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host)
