"""Access to the page: requests over real sockets, and their answers. No Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dstreams.common.addresses import is_loopback
from dstreams.monitoring.registry import StreamRegistry
from dstreams.monitoring.web.requests import HEADERS, Guard
from dstreams.monitoring.web.server import Address, PageServer
from tests.support.pages import get, make_monitor, request, say, serving

TOKEN = "0123456789-abcdef"  # noqa: S105
PATHS = (
    "/",
    "/static/page.js",
    "/status.json",
    "/events",
    "/metrics",
    "/state",
    "/state/counts",
    "/state/counts/a",
    "/largest",
)
NAVIGATE = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.fixture(scope="module")
def local() -> Iterator[PageServer]:
    """A server for this machine, without a token."""
    registry = StreamRegistry()
    make_monitor(registry)
    with serving(registry) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[PageServer]:
    """A server for other machines, with a token."""
    with serving(StreamRegistry(), Address("0.0.0.0", 0, TOKEN)) as server:  # noqa: S104
        yield server


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("127.0.0.1", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST:8888", 200),  # as through a tunnel
        ("127.8.9.1:1", 200),
        ("[::1]:{port}", 200),
        ("attacker.example:{port}", 421),
        ("127.0.0.1.attacker.example", 421),
        ("localhost.attacker.example:{port}", 421),
        ("attacker.example#@localhost", 421),
        ("192.168.1.2:{port}", 421),
        ("0.0.0.0:{port}", 421),
        ("[::]:{port}", 421),
        ("[localhost]", 421),
        ("127.0.0.1:{port}/", 421),
        ("localhost:123456", 421),
        ("2130706433", 421),
        ("", 421),
    ],
)
def test_a_server_of_this_machine_goes_by_its_names(
    local: PageServer, host: str, status: int
) -> None:
    """A foreign name that resolves to 127.0.0.1 (DNS rebinding) is rejected."""
    assert get(local, "/status.json", Host=host.format(port=local.port)).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "https://127.0.0.1:{port}"}, 200),  # behind a proxy with TLS
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", **NAVIGATE}, 403),
        ({"Sec_Fetch_Site": "something new"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/status.json", "/metrics"])
def test_pages_of_other_origins_are_refused(
    local: PageServer, path: str, headers: dict[str, str], status: int
) -> None:
    """Also those of another port of this machine."""
    given = {name: value.format(port=local.port) for name, value in headers.items()}
    assert get(local, path, **given).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site", **NAVIGATE}, 200),
        ({"Sec_Fetch_Site": "cross-site", **NAVIGATE, "Sec_Fetch_Dest": "iframe"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
    ],
)
def test_a_link_from_elsewhere_leads_to_the_page_alone(
    local: PageServer, headers: dict[str, str], status: int
) -> None:
    """The page itself has no data, and cannot be framed."""
    assert get(local, "/", **headers).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_can_be_changed(local: PageServer, path: str, method: str) -> None:
    """There are GET and HEAD; a preflight gets no leave."""
    reply = get(local, path, method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path", ["/status.json", "/metrics", "/state", "/state/a/b", "/nothing", "/events"]
)
def test_each_answer_has_the_headers_that_protect_it(local: PageServer, path: str) -> None:
    """Every answer has them; HEAD has the same without a body."""
    reply = get(local, path, "HEAD")
    assert reply.body == b""
    assert HEADERS.items() <= reply.headers.items()


def test_the_policy_of_content_is_strict() -> None:
    """Nothing inline, nothing evaluated, nothing from elsewhere, in no frame."""
    policy = HEADERS["Content-Security-Policy"]
    directives = dict(each.strip().partition(" ")[::2] for each in policy.split(";"))
    assert directives.pop("default-src") == "'none'"
    assert directives.pop("frame-ancestors") == "'none'"
    assert set(directives.values()) == {"'self'", "'none'"}


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 421),  # without a host
        (b"GET /metrics HTTP/1.1\r\nhost:localhost\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n" + HOST + b"\r\n", 200),
        (b"GET /metrics?a=1 HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET status.json HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\n" + HOST + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),  # TLS
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: a\r\nOrigin: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X : 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 0, 3\r\n\r\nabc", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: 1\r\n" * 64 + b"\r\n", 431),
        (b"GET /state?" + b"&".join(b"a%d=1" % n for n in range(9)) + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /state?uid=a&uid=b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /static/../server.py HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /static/%2e%2e/server.py HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /static/ HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET //status.json HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /%73tatus.json HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    ],
)
def test_what_is_no_plain_request_is_refused(local: PageServer, text: bytes, status: int) -> None:
    """It gets an answer, and its connection ends."""
    assert say(local, text).status == status


def test_a_second_request_on_a_connection_is_not_read(local: PageServer) -> None:
    """So none can be smuggled behind another one."""
    once = request("/nothing", Host="localhost")
    reply = say(local, once + request("/metrics", Host="localhost"))
    assert reply.status == 404
    assert b"HTTP/1.1" not in reply.body


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_nothing(guarded: PageServer, path: str) -> None:
    """The answer says where to find the token, and does not contain it."""
    reply = get(guarded, path)
    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="dstreams"'
    assert TOKEN.encode() not in reply.body


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/metrics", {"Authorization": f"Bearer {TOKEN}"}, 200),
        ("/metrics", {"Authorization": f"bearer  {TOKEN}"}, 200),
        ("/metrics", {"Authorization": f"Basic {TOKEN}"}, 401),
        ("/metrics", {"Authorization": TOKEN}, 401),
        ("/metrics", {"Authorization": f"Bearer {TOKEN}x"}, 401),
        ("/metrics", {"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ("/metrics", {"Authorization": "Bearer "}, 401),
        ("/metrics", {"Authorization": "Bearer \xe4"}, 401),
        ("/metrics", {"Cookie": f"dstreams_1={TOKEN}"}, 401),
        (f"/metrics?token={TOKEN}", {}, 401),  # an address is kept in histories and logs
        (f"/?token={TOKEN}x", {}, 401),
        ("/?token=", {}, 401),
    ],
)
def test_a_token_is_given_by_a_header(
    guarded: PageServer, path: str, headers: dict[str, str], status: int
) -> None:
    """Or, for the page alone, in its address."""
    assert get(guarded, path, **headers).status == status


def test_a_token_in_the_address_becomes_a_cookie(guarded: PageServer) -> None:
    """Scripts cannot read it, other sites cannot use it, and it does not reveal the token."""
    reply = get(guarded, f"/?token={TOKEN}", Sec_Fetch_Site="cross-site", **NAVIGATE)
    assert (reply.status, reply.headers["Refresh"]) == (200, "0;url=/")
    cookie, *attributes = reply.headers["Set-Cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in cookie
    assert get(guarded, "/metrics", Cookie=cookie).status == 200
    assert get(guarded, "/metrics", Cookie=f"a=b; {cookie};c").status == 200
    assert get(guarded, "/metrics", Cookie=cookie[:-1]).status == 401
    with serving(StreamRegistry(), Address("0.0.0.0", 0, TOKEN[::-1])) as other:  # noqa: S104
        named = re.sub(r"\d+=", f"{other.port}=", cookie)
        assert get(other, "/metrics", Cookie=named).status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [("10.1.2.3:4050", 200), ("[fe80::1]", 200), ("localhost", 200), ("attacker.example", 421)],
)
def test_a_server_for_others_goes_by_addresses_and_its_own_name(
    guarded: PageServer, host: str, status: int
) -> None:
    """A foreign name is rejected even with the token."""
    headers = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
    assert get(guarded, "/metrics", **headers).status == status


def test_a_server_goes_by_the_name_that_it_was_given() -> None:
    """Names are compared without case."""
    guard = Guard("Driver.Example", 4050, None)
    asked = SimpleNamespace(method="GET", path="/", query={}, headers={"host": "driver.example:1"})
    assert guard.refuse(asked) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],  # noqa: S104
)
def test_what_is_of_this_machine_alone(host: str, is_own: bool) -> None:
    """A local page requires no token unless one is set."""
    assert is_loopback(host) is is_own
