"""Which Python the workers run, and the one error about workers that lack what dstreams needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import uuid
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext

from checkpoint import open_files
from dstreams import StreamingContext
from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark import worker_python
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.spark_context import require_running
from dstreams.spark.worker_python import require_shared, require_workers, use_driver_python
from dstreams.structured import StreamSession
from tests.support.cluster import StandaloneCluster
from tests.support.jvms import ENVIRONMENT

MODULES = ("dstreams", "checkpoint", "cloudpickle", "lmdb", "msgspec", "zstandard")

PLAIN_PROGRAM = """
    import os, sys
    from tempfile import TemporaryDirectory
    from pyspark import SparkContext
    from dstreams import EnvironmentNotReadyError, StreamingContext

    def update(values, state):
        return sum(values) + (state or 0)

    for python in sys.argv[2:]:
        if python != "any":
            os.environ["PYSPARK_PYTHON"] = python
        sc = SparkContext(sys.argv[1], "plain")
        with TemporaryDirectory() as directory:
            ssc = StreamingContext(sc, 1)
            ssc.checkpoint(directory)
            words = ssc.queueStream([["a", "b"], ["a"]])
            counts = words.map(lambda word: (word, 1)).updateStateByKey(update)
            counts.foreachRDD(lambda rdd: print("batch", sorted(rdd.collect())))
            try:
                ssc.step(2)
            except EnvironmentNotReadyError as error:
                print(error)
            ssc.stop()
    """


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of Python without dstreams."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False, symlinks=True)
    return directory


@pytest.fixture
def spark(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkContext]:
    """The shared context, without a chosen interpreter and before any check."""
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(sc, "pythonExec", "python3")
    # An interpreter that has no tests has PySpark's own daemon.
    conf: Any = sc._jsc.sc().conf()
    of_tests = conf.get("spark.python.daemon.module")
    conf.set("spark.python.daemon.module", "pyspark.daemon")
    worker_python._ready.discard(sc)
    yield sc
    worker_python._ready.discard(sc)
    conf.set("spark.python.daemon.module", of_tests)


def run_plain(
    directory: Path, master: str, *pythons: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program where no variable of Spark says anything that is not given.

    Args:
        directory: where, so that no worker finds our sources beside it.
        master: of Spark.
        pythons: PYSPARK_PYTHON of one context after another; ``any`` leaves it as it is.
        environment: more variables.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PLAIN_PROGRAM), master, *pythons],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**inherited, **ENVIRONMENT, **environment},
    )


@pytest.mark.deep
@pytest.mark.spark
def test_a_plain_context_works_where_path_has_another_python(bare: Path, tmp_path: Path) -> None:
    """A program runs with its own interpreter, even if ``python3`` on PATH lacks modules.

    An interpreter that the user has chosen is not replaced: the first start says what it lacks.
    """
    chosen = f"{bare}/bin/python3"
    path = f"{bare}/bin:{os.environ['PATH']}"
    done = run_plain(tmp_path, "local[2]", "any", chosen, PATH=path)
    assert done.returncode == 0, done.stderr
    first, second, refusal = done.stdout.splitlines()
    assert first == "batch [('a', 1), ('b', 1)]"
    assert second == "batch [('a', 2), ('b', 1)]"
    host = os.uname().nodename
    lacking = f"{chosen} on host {host} lacks {', '.join(MODULES)}; install dstreams there"
    assert refusal.startswith(f"Python workers cannot run dstreams: {lacking}")


def test_the_driver_decides_only_where_nobody_else_did(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment and the SparkContext take precedence; a cluster keeps PySpark's default."""
    monkeypatch.setattr(spark, "master", "spark://somewhere:7077")
    use_driver_python(spark)
    assert spark.pythonExec == "python3"
    monkeypatch.setattr(spark, "master", "local-cluster[2,1,1024]")
    use_driver_python(spark)
    assert spark.pythonExec == sys.executable
    monkeypatch.setattr(spark, "pythonExec", "/some/python")
    use_driver_python(spark)
    assert spark.pythonExec == "/some/python"
    monkeypatch.setattr(spark, "pythonExec", "python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    use_driver_python(spark)
    assert spark.pythonExec == "python3"


def test_the_setting_of_the_interpreter_is_heeded(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``spark.pyspark.python`` counts as well where the program was not started by Spark."""
    conf = spark.getConf().set("spark.pyspark.python", "/opt/python")
    monkeypatch.setattr(spark, "getConf", lambda: conf)
    use_driver_python(spark)
    assert spark.pythonExec == "/opt/python"


@pytest.mark.deep
def test_the_first_start_tells_what_workers_lack(
    spark: SparkContext, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, queries and shuffles fail alike: with host, interpreter, what is missing, remedy."""
    monkeypatch.setattr(spark, "pythonExec", f"{bare}/bin/python")
    messages = []
    ssc = StreamingContext(spark, 1)
    ssc.checkpoint(str(tmp_path))
    ssc.queueStream([[1]]).map(lambda one: (one, 1)).updateStateByKey(_sum).pprint()
    with pytest.raises(EnvironmentNotReadyError) as of_stream:
        ssc.step()
    messages.append(str(of_stream.value))
    session = StreamSession(spark)
    writer = session.memoryStream().toDS().writeStream.format("noop")
    with pytest.raises(EnvironmentNotReadyError) as of_query:
        writer.start()
    messages.append(str(of_query.value))
    with pytest.raises(EnvironmentNotReadyError) as of_lookup:
        require_workers(spark)
    messages.append(str(of_lookup.value))
    assert len(set(messages)) == 1
    host = os.uname().nodename
    start = "Python workers cannot run dstreams: "
    assert messages[0].startswith(f"{start}{bare}/bin/python on host {host} lacks ")
    assert "lmdb, msgspec, zstandard; install dstreams there" in messages[0]
    assert "PYSPARK_PYTHON" in messages[0]
    assert "dstreams pack environment.tar.gz, spark.archives=" in messages[0]
    assert not list(tmp_path.glob("stream-*"))  # nothing was begun


def test_small_modules_look_as_well(
    spark: SparkContext, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dstreams.spark`` by itself, in a notebook, has the same error on its first use."""
    monkeypatch.setattr(spark, "pythonExec", f"{bare}/bin/python")
    monkeypatch.setattr("dstreams.spark.jvm._classes", {})
    with pytest.raises(EnvironmentNotReadyError, match="lacks"):
        shuffle_pairs(spark.parallelize([(1, 2)]), StablePartitioner(2))


def test_an_interpreter_that_is_not_there(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error for a worker that cannot start has Spark's message."""
    absent = str(tmp_path / "python")
    monkeypatch.setattr(spark, "pythonExec", absent)
    with pytest.raises(EnvironmentNotReadyError) as failure:
        require_workers(spark)
    assert f"'{absent}' cannot work on host" in str(failure.value)
    assert "No such file" in str(failure.value)


@pytest.mark.deep
def test_other_versions_on_the_workers(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error has the packages of the workers that do not fit those of the driver."""
    venv.create(tmp_path, with_pip=False, symlinks=True)
    packages = next(tmp_path.glob("lib/python*/site-packages"))
    for module in {*MODULES} - {"msgspec"}:
        (packages / f"{module}.py").write_text("")
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    for name, number in (("dstreams", "0.0.1"), ("lmdb", "0.9"), ("msgspec", "0.1.2")):
        home = packages / f"{name}-{number}.dist-info"
        home.mkdir()
        (home / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    of_driver = {"dstreams": "0.2.0", "lmdb": "1.7.5", "msgspec": "0.1.9"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: of_driver.get(name, "1"))
    monkeypatch.setattr(spark, "pythonExec", f"{tmp_path}/bin/python")
    # Which dstreams a worker finds first is up to the directory that the tests run in.
    dstreams = r"dstreams 0\.[01]\.\d \(the driver has 0\.2\.0\)"
    says = rf" on host \S+ has {dstreams}, lmdb 0\.9 \(the driver has 1\.7\.5\); install dstreams"
    with pytest.raises(EnvironmentNotReadyError, match=says):
        require_workers(spark)


@pytest.mark.parametrize(
    ("package", "of_driver", "fitting", "others"),
    [
        ("dstreams", "0.1.0", ["0.1.0"], ["0.1.1", "1.1.0"]),
        ("pyspark", "4.1.0", ["4.1.2"], ["4.0.1", "3.5.4"]),
        ("lmdb", "1.7.5", ["1.4"], ["0.9", "2.0"]),
        ("zstandard", "0.25.0", ["0.25.1"], ["0.24.0", "1.25.0"]),
    ],
)
def test_versions_that_fit(
    package: str, of_driver: str, fitting: list[str], others: list[str]
) -> None:
    """dstreams is the same everywhere, and other packages are of the same compatible series."""
    fits = {one: worker_python._fits(package, one, of_driver) for one in fitting + others}
    assert [one for one, is_fit in fits.items() if is_fit] == fitting


@pytest.mark.deep
def test_another_python_on_the_workers(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark compares the versions of Python, and the error has host and interpreter."""
    monkeypatch.setattr(spark, "pythonExec", other_python())
    says = r"'\S+' cannot work on host \S+: .*PYTHON_VERSION_MISMATCH.*; install dstreams there"
    with pytest.raises(EnvironmentNotReadyError, match=says):
        require_workers(spark)


def other_python() -> str:
    """Return an interpreter of another version than this one."""
    for minor in (12, 13, 11, 10):
        name = f"python3.{minor}"
        if minor != sys.version_info.minor and shutil.which(name):
            asked = [name, "-c", "import sys; print(sys.executable)"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode == 0:  # a shim of pyenv may have no such version
                return done.stdout.strip()
    pytest.skip("this test needs a second Python, such as python3.12, on PATH")


def test_a_module_that_is_there_and_broken(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module whose import fails is distinguished from an absent module."""
    (tmp_path / "lmdb.py").write_text("raise ImportError('libc is too old')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lmdb", raising=False)
    (found,) = worker_python._look(("lmdb", "zstandard"), (), [])
    assert found[2] == ("lmdb (its import fails: libc is too old)",)


def test_workers_that_run_the_driver_are_not_asked(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine, under any name of the driver's interpreter, no job is run."""
    monkeypatch.setattr(worker_python, "_problems", lambda _: pytest.fail("a job was run"))
    for name in ("python", "python3"):
        worker_python._ready.discard(spark)
        monkeypatch.setattr(spark, "pythonExec", str(Path(sys.executable).with_name(name)))
        require_workers(spark)


class EndedContext:
    """A fake SparkContext that Spark has stopped by itself."""

    def __init__(self) -> None:
        self._jsc = self
        self.appName, self.master = "clicks", "spark://somewhere:7077"
        self.pythonExec = "/opt/python"
        self.applicationId = "app-20261128-0001"

    def sc(self) -> EndedContext:
        return self

    def isStopped(self) -> bool:
        return True

    def getExecutorMemoryStatus(self) -> Any:
        raise Py4JError("java.lang.IllegalStateException: Cannot call methods on a stopped context")


@pytest.fixture
def ended() -> Iterator[Any]:
    """A context that Spark has stopped, and no reason from an earlier one."""
    worker_python.forget_end_of_application()
    yield EndedContext()
    worker_python.forget_end_of_application()


KILLED = (
    b"26/11/24 20:00:00 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: "
)
REASON = "Master removed our application: FAILED"


def test_the_reason_of_a_cluster_that_ends_an_application(ended: Any) -> None:
    """The errors of a start have it, and do not say that dstreams is to be installed."""
    calls: list[Callable[[Any], None]] = [require_workers, require_running]
    for reason, line in (("see Spark's log for the reason", b"ERROR: other"), (REASON, b"")):
        worker_python.note_line_of_log(line or KILLED + REASON.encode() + b"\r")
        for call in calls:
            with pytest.raises(EnvironmentNotReadyError) as raised:
                call(ended)
            assert f"{reason}; see the logs of Spark, of the cluster's" in str(raised.value)
            assert "'clicks'" in str(raised.value)
            assert "install" not in str(raised.value)


def test_a_master_that_does_not_accept_the_application(ended: Any) -> None:
    """The context has no id of the master, also before Spark has stopped it."""
    ended.applicationId = "spark-application-1764312345678"
    ended.isStopped = lambda: False
    with pytest.raises(EnvironmentNotReadyError) as raised:
        require_running(ended)
    assert "spark://somewhere:7077 did not accept it; check the address" in str(raised.value)
    assert "spark.authenticate.secret" in str(raised.value)
    ended.applicationId = "app-20261128-0001"
    require_running(ended)


def test_a_session_on_an_ended_application(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by the same error, and not by one of the JVM."""
    monkeypatch.setattr("dstreams.spark.spark_context.end_of_application", lambda _: REASON)
    with pytest.raises(EnvironmentNotReadyError, match=f"ended the application .*: {REASON}; "):
        StreamSession(spark)


def test_a_lost_executor_is_not_a_lack_of_dstreams(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that Spark aborts for reasons of its own says nothing of the Python of a host."""
    aborted = (
        "An error occurred while calling o1.collect.\n: {}: Job aborted due to stage failure: {}"
    )
    lost = (
        "Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 "
        "(TID 3) (host7 executor 3): ExecutorLostFailure (executor 3 exited) Reason: code 1"
    )
    monkeypatch.setattr(spark, "pythonExec", "/opt/python")
    for reason, words in ((REASON, REASON), (lost, "ExecutorLostFailure (executor 3 exited)")):
        error = Py4JError(aborted.format("org.apache.spark.SparkException", reason))

        def fail(*_: object, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(spark, "parallelize", fail)
        with pytest.raises(EnvironmentNotReadyError, match="could not be checked: ") as raised:
            require_workers(spark)
        assert words in str(raised.value)
        assert "install" not in str(raised.value)


@pytest.mark.deep
def test_a_checkpoint_that_is_not_shared(
    spark: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster it is refused at the start, with host and path, before anything is begun.

    The memory of the driver's process replaces a local disk.
    """
    monkeypatch.setattr(spark, "pythonExec", sys.executable)
    monkeypatch.setattr(spark, "master", "spark://somewhere:7077")
    url = f"memory://{uuid.uuid4()}"
    ssc = StreamingContext(spark, 1)
    ssc.checkpoint(url)
    ssc.queueStream([[1]]).map(lambda one: (one, 1)).updateStateByKey(_sum).pprint()
    host = os.uname().nodename
    says = rf"the checkpoint {url}: not shared by all hosts: host {host} cannot see the file .*"
    with pytest.raises(EnvironmentNotReadyError, match=says):
        ssc.step()
    session = StreamSession(spark)
    counts = session.memoryStream().toDS().groupByKey(str).count()
    writer = counts.writeStream.format("noop").outputMode("update")
    with pytest.raises(EnvironmentNotReadyError, match=says):
        writer.option("checkpointLocation", url).start()
    assert open_files(url).list("") == []
    require_shared(spark, open_files(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_state_need_not_be_shared(
    spark: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver alone reads and writes it."""
    monkeypatch.setattr(spark, "pythonExec", sys.executable)
    monkeypatch.setattr(spark, "master", "spark://somewhere:7077")
    ssc = StreamingContext(spark, 1)
    ssc.checkpoint(f"memory://{uuid.uuid4()}")
    ssc.queueStream([[1]], replayable=True).pprint()
    ssc.step()
    ssc.stop(stopSparkContext=False)


@pytest.mark.slow
def test_a_cluster_is_asked_once(tmp_path: Path, bare: Path) -> None:
    """On a cluster, the first start checks every executor, and continues if all have dstreams."""
    with StandaloneCluster(tmp_path, modules=()) as cluster:
        done = run_plain(tmp_path, cluster.url, sys.executable, f"{bare}/bin/python")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    second, refusal = lines[1:]
    assert second == "batch [('a', 2), ('b', 1)]"
    assert f"{bare}/bin/python on host {os.uname().nodename} lacks dstreams" in refusal


def _sum(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)
