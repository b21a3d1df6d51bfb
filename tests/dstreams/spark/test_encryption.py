"""What Spark's settings promise to encrypt and dstreams does not is refused at the start."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest
from pyspark import SparkContext

from dstreams import StateSpec, StreamingContext
from dstreams.common.settings import Settings, StateSettings
from dstreams.errors import InvalidStreamError
from dstreams.spark.encryption import require_encrypted_files, require_encrypted_page
from dstreams.structured import StreamSession
from tests.dstreams.conftest import MakeContext
from tests.support.programs import ROOT, running

pytestmark = pytest.mark.spark

OPENS = re.compile(
    r"^[^#\n]*\b(create_connection|create_server|start_server|urlopen|HTTPSConnection|mkstemp"
    r"|mkdtemp|TemporaryFile|SpooledTemporaryFile|TemporaryDirectory)\(",
    re.MULTILINE,
)
DOCUMENTED = {
    "checkpoint/cli/common.py": "copies that `dstreams checkpoint` reads",
    "checkpoint/cli/savepoint.py": "copies that `dstreams checkpoint` reads",
    "checkpoint/state_store/write_buffer.py": "changes of stored state that exceed memory",
    "dstreams/checkpoint_state.py": "copies that `CheckpointState` reads",
    "dstreams/cli/demo.py": "scratch directories of `dstreams demo`",
    "dstreams/cli/drill/command.py": "scratch directories of `dstreams demo`",
    "dstreams/cli/pack.py": "scratch directory of `dstreams pack`",
    "dstreams/cli/replay.py": "scratch directories of `dstreams demo`",
    "dstreams/monitoring/web/page.py": "token of the live page",
    "dstreams/monitoring/web/server.py": "live page",
    "dstreams/sources/socket.py": "socket source",
    "dstreams/spark/placed_pairs.py": "rows that exceed the memory of a worker",
    "dstreams/spark/socket_directory.py": "Unix sockets of Python workers",
    "dstreams/spark/spilling.py": "rows that exceed the memory of a worker",
    "dstreams/structured/execution/query_checkpoint.py": "checkpoint of a query without",
    "dstreams/engine/replay.py": "scratch directories of `dstreams demo`",
    "dstreams/structured/execution/replay.py": "scratch directories of `dstreams demo`",
    "dstreams/testing/batches.py": "scratch directories of `dstreams demo`",
    "dstreams/testing/stream_tester.py": "scratch directories of `dstreams demo`",
}
"""Modules that open a connection or a temporary file, and the beginning of the row about it."""


@pytest.fixture
def encrypting(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> SparkContext:
    """The context of all tests as if Spark encrypted its local files."""
    conf = sc.getConf().set("spark.io.encryption.enabled", "true")
    monkeypatch.setattr(sc, "getConf", lambda: conf)
    return sc


def test_streams_and_queries_are_refused_where_local_files_are_to_be_encrypted(
    encrypting: SparkContext, tmp_path: Path
) -> None:
    """They name the setting, what would be in the clear, and what to do."""
    local = str(tmp_path / "local")
    ssc = StreamingContext(encrypting, 1, settings=Settings(state_local_directory=local))
    ssc.checkpoint(str(tmp_path / "stream"))
    words = ssc.queueStream([["a"]], replayable=True).map(lambda word: (word, 1))
    words.mapWithState(StateSpec.function(lambda key, value, state: key)).pprint()
    with pytest.raises(InvalidStreamError) as of_stream:
        ssc.step()
    session = StreamSession(encrypting, {"spark.dstreams.state.localDirectory": local})
    counts = session.memoryStream().toDS().groupByKey(str).count()
    writer = counts.writeStream.format("noop").outputMode("update")
    with pytest.raises(InvalidStreamError) as of_query:
        writer.start()
    session.stop()
    assert str(of_stream.value) == str(of_query.value)
    assert str(of_stream.value).startswith(
        "spark.io.encryption.enabled: Spark does not encrypt the files of its Python workers: "
        f"copies of stored state ({local}) and rows that exceed the memory of a worker; put "
    )
    assert str(of_stream.value).endswith("and set spark.dstreams.state.localEncrypted=true")
    assert not Path(local).exists()


def test_encryption_by_the_system_is_enough(encrypting: SparkContext) -> None:
    """The setting declares the disks encrypted; without Spark's encryption it is not needed."""
    require_encrypted_files(encrypting, StateSettings(state_local_encrypted=True))
    encrypting.getConf().set("spark.io.encryption.enabled", "false")
    require_encrypted_files(encrypting, StateSettings())


def test_streams_without_stored_state_spill_as_well(
    encrypting: SparkContext, make_ssc: MakeContext, tmp_path: Path
) -> None:
    """The state of updateStateByKey is in RDDs, but its rows may exceed a worker's memory."""
    ssc = make_ssc()
    ssc.checkpoint(str(tmp_path))
    words = ssc.queueStream([["a"]], replayable=True).map(lambda word: (word, 1))
    words.updateStateByKey(lambda new, count: sum(new) + (count or 0)).pprint()
    with pytest.raises(InvalidStreamError, match="rows that exceed the memory of a worker"):
        ssc.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "host", "is_refused"),
    [
        ({"spark.ssl.enabled": "true"}, "0.0.0.0", True),  # noqa: S104
        ({"spark.ssl.enabled": "true"}, "driver.example.org", True),
        ({"spark.ssl.ui.enabled": "true"}, "10.0.0.1", True),
        ({"spark.ssl.enabled": "true", "spark.ssl.ui.enabled": "false"}, "10.0.0.1", False),
        ({"spark.ssl.enabled": "true"}, "127.0.0.1", False),
        ({"spark.ssl.enabled": "true"}, "::1", False),
        ({"spark.ssl.enabled": "true"}, None, False),
        ({}, "10.0.0.1", False),
    ],
)
def test_a_page_without_tls_is_not_shown_to_other_hosts(
    sc: SparkContext,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    host: str | None,
    is_refused: bool,
) -> None:
    """If Spark's pages have TLS, the live page stays on this machine, or the start is refused."""
    conf = sc.getConf().setAll(list(settings.items()))
    monkeypatch.setattr(sc, "getConf", lambda: conf)
    require_encrypted_page(sc, Settings(ui_host=host))  # it is not served
    shown = Settings(ui_enabled=True, ui_port=0, ui_host=host)
    if not is_refused:
        require_encrypted_page(sc, shown)
        return
    ssc = StreamingContext(sc, 1, settings=shown)
    ssc.queueStream([[1]]).pprint()
    with pytest.raises(InvalidStreamError, match=f"ui.host={host}: .* asks for TLS, which the"):
        ssc.step()
    assert ssc.uiWebUrl is None
    with pytest.raises(InvalidStreamError, match="put a TLS proxy in front of it"):
        require_encrypted_page(sc, shown)


TLS_PROGRAM = """
import json, os, ssl, sys
from urllib.request import urlopen
from dstreams import Settings, StreamingContext, tuned_context
from dstreams.testing import ManualClock

store, password = sys.argv[1:]
spark = tuned_context("tls", "local[1]", {
    "spark.ssl.enabled": "true",
    "spark.ssl.keyStore": store,
    "spark.ssl.keyStorePassword": password,
    "spark.ssl.keyPassword": password,
})
settings = Settings(ui_enabled=True, ui_port=0)
ssc = StreamingContext(spark, 1, clock=ManualClock(), settings=settings)
ssc.queueStream([[1, 2]]).foreachRDD(lambda rdd: rdd.count())
ssc.step()
shown = urlopen(f"{ssc.uiWebUrl}/status.json", timeout=300).read().decode()
unchecked = ssl._create_unverified_context()
spark_page = urlopen(spark.uiWebUrl, timeout=300, context=unchecked)
print("SHOWN", json.dumps([ssc.uiWebUrl, spark.uiWebUrl, spark_page.status, shown]), flush=True)
os._exit(0)
"""


@pytest.mark.deep
def test_tls_of_spark_pages(tmp_path: Path) -> None:
    """The live page links to Spark's page with TLS, and does not show its passwords."""
    if which("keytool") is None:
        pytest.skip("keytool is not installed; install a JDK or JRE")
    store, password = tmp_path / "keys.p12", "password-of-test"
    subprocess.run(
        ["keytool", "-genkeypair", "-alias", "spark", "-keyalg", "RSA", "-dname", "CN=localhost",
         "-storetype", "PKCS12", "-keystore", str(store), "-storepass", password],
        check=True, capture_output=True,
    )  # fmt: skip
    with running("-c", TLS_PROGRAM, str(store), password) as program:
        assert program.wait() == 0, program.lines
    (line,) = [line for line in program.lines if line.startswith("SHOWN ")]
    own, of_spark, status, shown = json.loads(line.removeprefix("SHOWN "))
    assert own.startswith("http://127.0.0.1:")
    assert of_spark.startswith("https://")
    assert status == 200
    document = json.loads(shown)
    assert document["application"]["spark_ui"] == of_spark
    assert [each["phase"] for each in document["streams"]] == ["active"]
    assert password not in "".join(program.lines)


PROGRAM = """
import json, os, sys
from pathlib import Path
from pyspark import StorageLevel
from dstreams import InvalidStreamError, StateSpec, StreamingContext, tuned_context
from dstreams.testing import ManualClock

root, encrypts, declared = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = tuned_context("encryption", "local[2]", {
    "spark.ui.enabled": "false",
    "spark.io.encryption.enabled": encrypts,
    "spark.local.dir": str(root / "spark"),
    "spark.python.worker.memory": "1m",
    "spark.dstreams.state.localEncrypted": declared,
    "spark.dstreams.state.localDirectory": str(root / "replicas"),
})
ssc = StreamingContext(spark, 1, clock=ManualClock())
ssc.checkpoint(str(root / "checkpoint"))
pairs = ssc.rateStream(4000, uid="numbers", numPartitions=2).map(
    lambda row: (f"SENTINEL{row[1] % 2000}", "SENTINEL" * 20 + str(row[1]))
)
latest = pairs.updateStateByKey(lambda new, old: (new or [old])[-1], uid="latest")
latest.persist(StorageLevel.DISK_ONLY)
latest.foreachRDD(lambda rdd: rdd.count())
stored = pairs.mapWithState(StateSpec.function(lambda key, value, state: state.update(value)))
stored.foreachRDD(lambda rdd: rdd.count())
try:
    ssc.step(2)
except InvalidStreamError as error:
    print("REFUSED", error)

def has_sentinel(path):
    try:
        return b"SENTINEL" in path.read_bytes()
    except OSError:
        return False

found = {
    name: sum(map(has_sentinel, (path for path in (root / name).rglob("*") if path.is_file())))
    for name in ("spark", "replicas", "checkpoint")
}
print("FOUND", json.dumps(found), flush=True)
os._exit(0)
"""


def _run(directory: Path, encrypts: bool, declared: bool) -> tuple[dict[str, int], str]:
    """Return the number of files with a sentinel by directory, and the refusal, if any."""
    directory.mkdir()
    flags = [str(flag).lower() for flag in (encrypts, declared)]
    with running("-c", PROGRAM, str(directory), *flags) as program:
        assert program.wait() == 0, program.lines
    found = next(line for line in program.lines if line.startswith("FOUND "))
    refused = [line for line in program.lines if line.startswith("REFUSED ")]
    return json.loads(found.removeprefix("FOUND ")), "".join(refused)


@pytest.mark.deep
def test_no_local_file_has_a_value_in_the_clear_unless_disks_are_declared_encrypted(
    tmp_path: Path,
) -> None:
    """Spark's files are encrypted; where those of workers would not be, the start is refused."""
    found, refusal = _run(tmp_path / "refused", encrypts=True, declared=False)
    assert found == {"spark": 0, "replicas": 0, "checkpoint": 0}
    assert "spark.io.encryption.enabled: " in refusal
    found, refusal = _run(tmp_path / "declared", encrypts=True, declared=True)
    assert (found["spark"], refusal) == (0, "")
    assert found["replicas"] > 0  # on disks that the system encrypts
    found, _ = _run(tmp_path / "plain", encrypts=False, declared=False)
    assert found["spark"] > 0


def test_all_connections_and_local_files_are_documented() -> None:
    """The page about deployment has a row for each module that opens one."""
    page = (ROOT / "docs" / "pages" / "how-to" / "deploy.md").read_text()
    modules = {
        str(path.relative_to(ROOT))
        for package in ("checkpoint", "dstreams")
        for path in (ROOT / package).rglob("*.py")
        if OPENS.search(path.read_text())
    }
    assert modules == DOCUMENTED.keys()
    for row in DOCUMENTED.values():
        assert f"\n| {row}" in page
