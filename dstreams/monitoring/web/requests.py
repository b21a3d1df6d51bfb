"""Requests and answers of HTTP/1.1 for a read-only page.

A connection has one request without a body, so that requests cannot be smuggled. Anything else is
rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

MOST_HEAD_BYTES = 32 << 10
_MOST_LINE_BYTES = 16 << 10
_MOST_HEADERS = 64
_MOST_PARAMETERS = 8

_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_ONLY_ONCE = ("authorization", "host", "origin", "sec-fetch-site")

TEXT = "text/plain; charset=utf-8"


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

    def head(self, more: Mapping[str, str], *, has_length: bool = True) -> bytes:
        """Return the status line and headers, including *more*."""
        length = {"Content-Length": str(len(self.body))} if has_length else {}
        headers = {
            "Content-Type": self.content_type,
            **length,
            "Connection": "close",
            **more,
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
