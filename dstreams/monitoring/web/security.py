"""Who may look at the page: by host, origin and token.

A page that somebody's browser shows from elsewhere reaches this server as that browser does. It is
told apart by the ``Host`` header (of a name that was made to mean this address), ``Origin`` and
``Sec-Fetch-Site``. From other hosts the token is asked for besides.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets  # noqa: TID251 - a token is what nobody else may know
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
"""What each answer has."""

_PAGE = "/"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Say whether an address or name is that of this machine for itself."""
    return host.lower() == "localhost" or (_is_address(host) and _address(host).is_loopback)


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


class Guard:
    """Refuses requests.

    Args:
        host: what the server listens on.
        port: its port, for the name of its cookie: browsers keep one jar for all ports of a host.
        token: what has to be known; None for nothing.
    """

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._is_local = is_loopback(host)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._token = token
        self._cookie = f"dstreams_{port}"
        # Other servers of this host are sent the cookie, too: it does not tell them the token.
        self._session = "" if token is None else _mac(token)

    def refuse(self, request: Request) -> Answer | None:
        """Return why a request is refused; None where it may be answered."""
        if request.method not in ("GET", "HEAD"):
            return Answer.text(405, "there is nothing here but to look at", Allow="GET, HEAD")
        host = request.headers.get("host", "")
        if not self._is_own(host):
            return Answer.text(
                421,
                "this server does not go by that name; use the address that the start of the "
                "stream printed",
            )
        if not _is_from_here(request, host):
            return Answer.text(403, "a page of another origin may not look at this one")
        return None if self._token is None else self._refuse_stranger(request, self._token)

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        if self._is_local:
            return is_loopback(name)
        return name in self._names or _is_address(name)  # an address means nothing but itself

    def _refuse_stranger(self, request: Request, token: str) -> Answer | None:
        given = request.query.get("token")
        if request.path == _PAGE and given is not None and _is_equal(given, token):
            return self._let_in()
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_equal(sent.strip(), token):
            return None
        if _is_equal(_cookies(request).get(self._cookie, ""), self._session):
            return None
        return Answer.text(
            401,
            "a token is needed: open the address with ?token=... that the start of the stream "
            "printed, or send the header Authorization: Bearer ...",
            WWW_Authenticate='Bearer realm="dstreams"',
        )

    def _let_in(self) -> Answer:
        """Give the browser a cookie, and let it go to the page without the token.

        Not by status 303: after a link on somebody else's page a browser withholds strict cookies
        until the last redirection, and sends them when a page of ours sends it on.
        """
        cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        headers = {"Set-Cookie": cookie, "Refresh": f"0;url={_PAGE}"}
        return Answer(200, b"Welcome.\n", headers=headers)


def _is_from_here(request: Request, host: str) -> bool:
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() not in (
        f"http://{host}".lower(),
        f"https://{host}".lower(),
    ):
        return False
    site = request.headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return True
    # A link leads to the page, which has nothing in it before it asks.
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
