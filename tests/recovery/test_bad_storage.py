"""Storage that refuses: at the start, and in the middle of a stream. A clear end, and no loss."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from tests.recovery.application import OUTPUTS
from tests.recovery.lives import entries, expected
from tests.support.hdfs import Hdfs
from tests.support.programs import Program, running
from tests.support.s3_server import S3Server
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.deep]

MANY = 10_000  # more than run until the storage refuses
USER = "clicks"


class Storage(Protocol):
    """Storage of a checkpoint that can be made to refuse its user.

    Args:
        url: where the checkpoint is.
        says: pattern of the error.
        prefix: of the command of a program.
    """

    url: str
    says: str
    prefix: tuple[str, ...]

    def refuse(self) -> None: ...

    def accept(self) -> None: ...


class LocalDirectory:
    """A directory that the user may not write, as root without the right to do so anyway."""

    says = rf"cannot .*; give user id {os.geteuid()} the permission"
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")

    def __init__(self, directory: Path) -> None:
        self.url = str(directory)

    def refuse(self) -> None:
        self._set_modes(0o500)

    def accept(self) -> None:
        self._set_modes(0o700)

    def _set_modes(self, mode: int) -> None:
        for directory, _, _ in os.walk(self.url):
            os.chmod(directory, mode)


class Bucket:
    """A bucket whose server does not know the credentials any more."""

    says = r"cannot .*s3://.*check .*credentials"
    prefix = ()

    def __init__(self, server: S3Server) -> None:
        self.url = server.new_url()
        self._address = urlsplit(server.endpoint).netloc

    def refuse(self) -> None:
        self._allow_without_check("0")

    def accept(self) -> None:
        self._allow_without_check("inf")

    def _allow_without_check(self, requests: str) -> None:
        connection = HTTPConnection(self._address, timeout=60)
        connection.request("POST", "/moto-api/reset-auth", requests)
        assert connection.getresponse().status == 200
        connection.close()


class HdfsDirectory:
    """A directory of HDFS that belongs to another user."""

    says = r"cannot .*hdfs://.*give the user of this driver the permission"
    prefix = ()

    def __init__(self, hdfs: Hdfs, name: str) -> None:
        from hdfs_native import Client  # noqa: PLC0415 - skipped without it

        self._path = f"/{name}"
        self.url = f"{hdfs.uri}{self._path}"
        self._client = Client(hdfs.uri)
        self._client.mkdirs(self._path, 0o700, True)
        self.accept()

    def refuse(self) -> None:
        self._client.set_owner(self._path, "somebody")

    def accept(self) -> None:
        self._client.set_owner(self._path, USER)


@pytest.fixture(params=["local", "s3", "hdfs"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storage]:
    """Storage that accepts its user."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found: Any
    if request.param == "local":
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed; apt install util-linux")
        found = LocalDirectory(tmp_path / "checkpoint")
    elif request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        found = Bucket(server)
    else:
        found = HdfsDirectory(request.getfixturevalue("hdfs"), tmp_path.name)
        monkeypatch.setenv("HADOOP_USER_NAME", USER)
    yield found
    found.accept()


def application(directory: Path, storage: Storage, batches: int) -> Any:
    arguments = ("-m", "tests.recovery.application", str(directory), "1", str(batches))
    return running(*arguments, storage.url, prefix=storage.prefix)


def whole_lines(ledger: Path) -> int:
    return ledger.read_text(encoding="utf-8").count("\n")


def require_refusal(program: Program, says: str) -> None:
    """Require that a program has ended with an error by which a user knows what to do."""
    assert program.wait() == 1, program.lines
    text = "\n".join(program.lines)
    assert [line for line in program.lines if re.search(says, line)], text
    for secret in ("the-secret-of-the-tests", "AKIATESTTESTTESTTEST"):
        assert secret not in text


def test_a_stream_loses_nothing(storage: Storage, tmp_path: Path) -> None:
    """It ends at the next batch with an error, and goes on exactly where it ended."""
    with application(tmp_path, storage, MANY) as program:
        ledger = tmp_path / "ledger"
        wait_for(lambda: (ledger.exists() and whole_lines(ledger) > 6) or program.has_ended)
        storage.refuse()
        require_refusal(program, storage.says)
    with application(tmp_path, storage, 1) as program:
        require_refusal(program, storage.says)
    before = entries(tmp_path)
    storage.accept()
    with application(tmp_path, storage, 2) as program:
        assert program.wait() == 0, program.lines
    seen = Counter((entry.output, entry.batch_id) for entry in entries(tmp_path))
    last = max(batch_id for _, batch_id in seen)
    assert last < MANY
    assert seen.keys() == {(output, number) for output in OUTPUTS for number in range(last + 1)}
    repeated = {batch_id for (_, batch_id), times in seen.items() if times > 1}
    assert repeated <= {max(entry.batch_id for entry in before)}  # the one that was not committed
    for entry in entries(tmp_path):
        assert entry.rows == expected(entry.output, entry.batch_id), entry


def test_a_start_is_refused(storage: Storage, tmp_path: Path) -> None:
    """Before the first batch, and once the storage accepts, it begins with the first record."""
    if isinstance(storage, LocalDirectory):
        (tmp_path / "checkpoint").mkdir()
    storage.refuse()
    with application(tmp_path, storage, 1) as program:
        require_refusal(program, storage.says)
    assert not (tmp_path / "ledger").exists()
    storage.accept()
    with application(tmp_path, storage, 1) as program:
        assert program.wait() == 0, program.lines
    for entry in entries(tmp_path):
        assert (entry.batch_id, entry.rows) == (0, expected(entry.output, 0))


def test_a_bucket_that_does_not_exist(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it; no bucket is made."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    absent = Bucket(s3)
    absent.url = "s3://absent/checkpoint"
    with application(tmp_path, absent, 1) as program:
        require_refusal(program, r"cannot .*s3://absent/.*bucket does not exist")
    assert not (tmp_path / "ledger").exists()
