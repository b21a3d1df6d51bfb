"""A Schema Registry on loopback: as much of it as Confluent's serializers and our decoders ask."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalRegistry:
    """Schemas by id; *asked* has the path of each request for one.

    Args:
        user: ``name:password`` that requests have to give, None for none.
    """

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.asked: list[str] = []
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.is_failing = False
        self.url = ""

    @property
    def settings(self) -> dict[str, str | float]:
        return {"url": self.url, "max.retries": 0}

    def register(self, subject: str, schema: object, kind: str = "AVRO", **more: Any) -> int:
        """Return the id of a schema; *more* are fields that a request for it is answered with."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        fields = {"schema": text, "schemaType": kind, **more}
        number = next((at for at, known in self.schemas.items() if known == fields), None)
        if number is None:
            number = 1 + len(self.schemas)
            self.schemas[number] = fields
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.is_failing:
            return 500, {"error_code": 50001, "message": "the registry has lost its store"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            self.asked.append(path)
            number = int(found[1])
            if number not in self.schemas:
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self.schemas[number]
        if found := re.fullmatch(r"/subjects/([^/]+)(/versions(/\d+)?)?", path):
            subject = found[1]
            if method == "POST":
                number = self.register(
                    subject,
                    body["schema"],
                    body.get("schemaType", "AVRO"),
                    references=body.get("references", []),
                )
            else:
                self.asked.append(path)
                number = self.subjects[subject][int((found[3] or "/1")[1:]) - 1]
            version = self.subjects[subject].index(number) + 1
            known = {"subject": subject, "version": version, "id": number}
            return 200, {**self.schemas[number], **known}
        return 404, {"error_code": 404, "message": f"HTTP 404 Not Found {path}"}


@contextmanager
def running(registry: LocalRegistry) -> Iterator[LocalRegistry]:
    """Let a registry answer until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            if registry.user and base64.b64decode(given) != registry.user.encode():
                status, said = 401, {"error_code": 40101, "message": "Unauthorized"}
            else:
                path = self.path.partition("?")[0]
                status, said = registry.answer(self.command, path, body)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815  # names of http.server

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
