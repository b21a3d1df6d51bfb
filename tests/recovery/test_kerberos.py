"""A checkpoint on an HDFS that authenticates its users by Kerberos."""

from __future__ import annotations

import os
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import pytest

from checkpoint import StorageRefusedError, open_files
from checkpoint.testing import check_files
from tests.recovery.lives import entries, expected, run_program
from tests.support.hdfs import Hdfs, Kerberos, running_hdfs, running_kerberos

pytestmark = [pytest.mark.spark, pytest.mark.deep]

BATCHES = 3


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    with running_kerberos(tmp_path_factory.mktemp("kdc")) as kerberos:
        yield kerberos


@pytest.fixture(scope="module")
def secure(kerberos: Kerberos, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS with a directory of the user, which encrypts what is sent."""
    directory = tmp_path_factory.mktemp("secure")
    with running_hdfs(directory, kerberos=kerberos) as hdfs:
        yield hdfs


@pytest.fixture
def url(secure: Hdfs, kerberos: Kerberos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of the user, with the configuration of clients and without a ticket."""
    monkeypatch.setenv("KRB5_CONFIG", str(kerberos.conf))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure.conf))
    from hdfs_native import Client  # noqa: PLC0415 - skipped without it

    superuser = Client(
        secure.uri,
        kerberos_principal=f"{getuser()}/localhost@EXAMPLE.COM",
        kerberos_keytab=str(kerberos.keytab),
    )
    path = f"/{tmp_path.name}"
    superuser.mkdirs(path, 0o700, True)
    superuser.set_owner(path, kerberos.user.partition("@")[0])
    return f"{secure.uri}{path}"


def test_files_by_keytab(url: str, kerberos: Kerberos) -> None:
    """All promises of files hold; the user and the keytab are options."""
    options = {"kerberos_principal": kerberos.user, "kerberos_keytab": str(kerberos.keytab)}
    numbers = iter(range(1000))
    check_files(lambda: open_files(f"{url}/{next(numbers)}", **options))


def test_without_a_ticket(url: str, kerberos: Kerberos) -> None:
    """The error names Kerberos and what to do."""
    assert "KRB5_CLIENT_KTNAME" not in os.environ
    with pytest.raises(StorageRefusedError) as refused:
        open_files(url)
    assert "No Kerberos credentials available" in str(refused.value)
    assert str(refused.value).endswith("by kinit, or name a keytab in KRB5_CLIENT_KTNAME")


def test_a_stream(
    url: str, kerberos: Kerberos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and workers find the keytab in their environment; a killed driver restarts exactly.

    Spark's JVM, which creates the directory of RDD.checkpoint, has settings of its own.
    """
    login = (
        f"spark.kerberos.principal={kerberos.user} --conf spark.kerberos.keytab={kerberos.keytab}"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {login} pyspark-shell")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(kerberos.jvm_options))
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kerberos.keytab))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    checkpoint = f"{url}/checkpoint"
    program = ("application", tmp_path, "1", str(BATCHES), checkpoint)
    run_program(*program, kill_at="commit.start@1")
    run_program(*program)
    for entry in entries(tmp_path):
        assert entry.rows == expected(entry.output, entry.batch_id), entry
    assert max(entry.batch_id for entry in entries(tmp_path)) == BATCHES
