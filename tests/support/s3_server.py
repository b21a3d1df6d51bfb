"""An S3 server on loopback: moto's, in a process of its own, and clients that know no other."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

_BUCKET = "checkpoints"
_ADDRESS = re.compile(r"Running on http://(127\.0\.0\.1:\d+)")
_UP_S, _DOWN_S = 180, 60

_names = itertools.count(1)


class S3Server:
    """A running server.

    Args:
        endpoint: its address, as a URL.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def new_url(self) -> str:
        """Return a URL below which there is nothing yet."""
        return f"s3://{_BUCKET}/{next(_names)}"

    def environment(self) -> dict[str, str]:
        """Return variables by which a client of AWS contacts this server and no other host."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
            "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }


@contextmanager
def running_s3(directory: Path) -> Iterator[S3Server]:
    """Start a server with one bucket, which logs into *directory*; skip without moto or obstore."""
    pytest.importorskip("obstore", reason="install obstore")
    pytest.importorskip("moto.server", reason="install moto[server]")
    log = directory / "s3.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: process.poll() is not None or _ADDRESS.search(log.read_text()), _UP_S)
        address = _ADDRESS.search(log.read_text())
        assert address is not None, log.read_text()
        connection = HTTPConnection(address[1], timeout=_UP_S)
        connection.request("PUT", f"/{_BUCKET}")
        assert connection.getresponse().status == HTTPStatus.OK
        connection.close()
        yield S3Server(f"http://{address[1]}")
    finally:
        process.kill()
        process.wait(_DOWN_S)
