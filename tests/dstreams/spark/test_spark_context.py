"""The tuned SparkContext, and what is checked before there is one."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import SparkConf, SparkContext

from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark import spark_context
from dstreams.spark.spark_context import (
    JVM_OPTIONS,
    ONE_COMPILER,
    UNIX_SOCKETS,
    require_java,
    require_running,
    require_spark,
    starting_spark,
    tuned_conf,
    tuned_context,
    tuned_settings,
    warn_if_untuned,
)
from tests.support.jvms import ENVIRONMENT

ROOT = Path(__file__).parents[3]
HAS_UNIX_SOCKETS = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 1)


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, where no JVM is running yet."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_"))
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**inherited, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture(scope="module")
def story() -> tuple[dict[str, Any], str, str]:
    """One process: a context, a job, a failing task, and another context on the same JVM."""
    done = run_python(
        """
        import json, os, socket, sys, threading, urllib.request
        from dstreams.spark.spark_context import (
            context_like, tuned_conf, tuned_context, warn_if_untuned,
        )

        os.umask(0)
        directories = []

        def facts(sc):
            keys = ["spark.driver.host", "spark.python.task.killTimeout", "spark.ui.enabled",
                    "spark.python.unix.domain.socket.enabled"]
            directory = sc.getConf().get("spark.python.unix.domain.socket.dir")
            if directory:
                directories.append([directory, os.stat(directory).st_mode & 0o777])
            return {"master": sc.master, **{key: sc.getConf().get(key) for key in keys}}

        cluster = dict(tuned_conf("story", "spark://far:7077").getAll())
        sc = tuned_context("story", "local[2,2]")
        warn_if_untuned(sc)
        first = facts(sc)
        port = int(sc.uiWebUrl.rpartition(":")[2])
        page = {"url": sc.uiWebUrl,
                "found": urllib.request.urlopen(sc.uiWebUrl + "/jobs/", timeout=300).status,
                "elsewhere": socket.socket().connect_ex(("127.0.0.2", port))}
        pythons = sc.parallelize([0], 1).map(lambda _: sys.executable).collect()
        print("FAILING", file=sys.stderr, flush=True)

        def fail_once(index, records):
            from pyspark import TaskContext
            if TaskContext.get().attemptNumber() == 0:
                raise ValueError("lost on purpose")
            return list(records)

        total = sc.parallelize(range(4), 1).mapPartitionsWithIndex(fail_once).sum()
        sc.stop()
        second_sc = tuned_context("again", conf={
            "spark.master": "local[1]", "spark.python.unix.domain.socket.enabled": "false",
            "spark.python.task.killTimeout": "1s",
        })
        second = facts(second_sc)
        warn_if_untuned(second_sc)
        warn_if_untuned(second_sc)
        second_sc.stop()
        earlier = {key: value for key, value in tuned_conf("like", "local[1]").getAll()
                   if key not in ("spark.driver.host", "spark.driver.bindAddress")}
        third_sc = context_like(lambda conf: conf.setAll(list(earlier.items())))
        third = {**facts(third_sc), "name": third_sc.appName}
        third_sc.stop()
        print(json.dumps({
            "cluster": cluster, "directories": directories, "total": total, "page": page,
            "first": first, "second": second, "third": third,
            "pythons": [sys.executable, os.environ["PYSPARK_PYTHON"],
                        os.environ["PYSPARK_DRIVER_PYTHON"], *pythons],
        }))
        """
    )
    assert done.returncode == 0, done.stderr
    silent, _, rest = done.stderr.partition("FAILING\n")
    return json.loads(done.stdout), silent, rest


@pytest.mark.deep
@pytest.mark.spark
def test_a_context_like_an_earlier_one(story: tuple[dict[str, Any], str, str]) -> None:
    """Its settings, and for a tuned one the addresses, which an earlier process cannot say."""
    facts, _, _ = story
    assert facts["third"]["name"] == "like"
    assert facts["third"]["master"] == "local[1]"
    assert facts["third"]["spark.driver.host"] == "127.0.0.1"
    assert facts["third"]["spark.python.task.killTimeout"] == "200ms"


@pytest.mark.spark
def test_console_is_silent(story: tuple[dict[str, Any], str, str]) -> None:
    """Starting the JVM and running jobs prints nothing, on either stream."""
    _, silent, _ = story
    assert silent == ""


@pytest.mark.spark
def test_console_has_errors(story: tuple[dict[str, Any], str, str]) -> None:
    """A failed attempt is reported in one line, without the frames of Python and the JVM."""
    facts, _, errors = story
    told = [line for line in errors.splitlines() if "ERROR Executor" in line]
    assert len(told) == 1
    assert "Exception in task 0.0 in stage " in told[0]
    assert told[0].endswith("): ValueError: lost on purpose")
    assert "Traceback" not in errors
    assert "\tat " not in errors
    assert facts["total"] == 6


@pytest.mark.spark
def test_workers_run_the_python_of_the_driver(story: tuple[dict[str, Any], str, str]) -> None:
    """If the environment does not set a Python, workers use the driver's."""
    facts, _, _ = story
    assert set(facts["pythons"]) == {facts["pythons"][0]}


@pytest.mark.spark
def test_local_context(story: tuple[dict[str, Any], str, str]) -> None:
    """A local context listens to this machine only and has what makes jobs quick."""
    facts, _, _ = story
    sockets = "true" if HAS_UNIX_SOCKETS else None
    assert facts["first"] == {
        "master": "local[2,2]",
        "spark.driver.host": "127.0.0.1",
        "spark.python.task.killTimeout": "200ms",
        "spark.ui.enabled": None,
        UNIX_SOCKETS: sockets,
    }


@pytest.mark.spark
def test_sparks_page_is_for_this_machine(story: tuple[dict[str, Any], str, str]) -> None:
    """It stays on, and no other host can open it, though Spark binds it to all addresses."""
    page = story[0]["page"]
    assert page["url"].startswith("http://127.0.0.1:")
    assert page["found"] == 200
    assert page["elsewhere"] != 0  # 127.0.0.2 is this machine as well, and another address


@pytest.mark.spark
@pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="PySpark before 4.1 has only TCP")
def test_sockets_are_where_only_their_user_can_go(story: tuple[dict[str, Any], str, str]) -> None:
    """With any umask; they are removed with the process."""
    directories = story[0]["directories"]
    assert len(directories) == 3
    assert {mode for _, mode in directories} == {0o700}
    assert not any(Path(directory).exists() for directory, _ in directories)


@pytest.mark.spark
def test_cluster_conf(story: tuple[dict[str, Any], str, str]) -> None:
    """The driver of a cluster is not hidden from it on the loopback address."""
    cluster = story[0]["cluster"]
    assert cluster["spark.master"] == "spark://far:7077"
    assert "spark.driver.host" not in cluster
    assert "spark.driver.bindAddress" not in cluster
    assert UNIX_SOCKETS not in cluster  # hosts of a cluster have no directory of this process


@pytest.mark.spark
def test_caller_wins_in_a_running_jvm(story: tuple[dict[str, Any], str, str]) -> None:
    """A second context of the process has its own master and settings, and the caller's win."""
    second = story[0]["second"]
    assert second["master"] == "local[1]"
    assert second["spark.python.task.killTimeout"] == "1s"
    assert second[UNIX_SOCKETS] == "false"


@pytest.mark.spark
@pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="PySpark before 4.1 has only TCP")
def test_untuned_context_is_told_once(story: tuple[dict[str, Any], str, str]) -> None:
    """A real context that talks over TCP gets one line."""
    assert story[2].count("the Python workers of this SparkContext use TCP") == 1


@pytest.mark.deep
@pytest.mark.spark
def test_submitted_settings_win() -> None:
    """Under spark-submit its master and settings hold, and the arguments of the caller above."""
    script = textwrap.dedent(
        """
        import json
        from dstreams.spark.spark_context import tuned_context
        sc = tuned_context("mine", conf={"spark.ui.showConsoleProgress": "true"})
        conf = dict(sc.getConf().getAll())
        print(json.dumps([sc.master, sc.appName, conf["spark.python.task.killTimeout"],
                          conf["spark.ui.showConsoleProgress"], conf["spark.port.maxRetries"]]))
        """
    )
    done = run_python(
        f"""
        import pathlib, subprocess, sys, tempfile, pyspark
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program.py")
            program.write_text({script!r})
            submit = pathlib.Path(pyspark.__file__).parent / "bin" / "spark-submit"
            sys.exit(subprocess.run([
                "bash", str(submit), "--master", "local[1]", "--name", "theirs",
                "--conf", "spark.python.task.killTimeout=3s",
                "--conf", "spark.ui.showConsoleProgress=false", str(program),
            ]).returncode)
        """,
        PYSPARK_PYTHON=sys.executable,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["local[1]", "mine", "3s", "true", "64"]


def test_conf_of_the_caller_wins() -> None:
    """Settings of the caller replace ours, whether given as a mapping or as a SparkConf."""
    given = {"spark.port.maxRetries": "0", "spark.mine": "1", "spark.app.name": "other"}
    for conf in (given, SparkConf(loadDefaults=False).setAll(list(given.items()))):
        tuned = tuned_conf("mine", "local[3]", conf)
        assert tuned.get("spark.port.maxRetries") == "0"
        assert tuned.get("spark.mine") == "1"
        assert tuned.get("spark.ui.showConsoleProgress") == "false"
        assert tuned.get("spark.master") == "local[3]"
        assert tuned.get("spark.app.name") == "mine"
    assert given == {"spark.port.maxRetries": "0", "spark.mine": "1", "spark.app.name": "other"}


def test_default_master() -> None:
    """Without a master all cores are used and a failed task is tried again."""
    assert tuned_conf("mine").get("spark.master") == "local[*,4]"
    assert tuned_conf("mine", conf={"spark.master": "local[1]"}).get("spark.master") == "local[1]"


def test_options_of_the_jvm_are_kept() -> None:
    """Our option for the JVM leaves the place free that callers use for theirs."""
    options = "-Dmine=1"
    tuned = tuned_conf("mine", conf={"spark.driver.extraJavaOptions": options})
    assert tuned.get("spark.driver.extraJavaOptions") == options
    ours = tuned.get("spark.driver.defaultJavaOptions")
    assert ours is not None
    _, _, file = ours.partition("-Dlog4j2.configurationFile=file://")
    assert Path(file).is_file()


def test_the_jvm_of_workers_has_one_compiler() -> None:
    """With a local master only; what a caller says of it comes later, and wins."""
    assert ONE_COMPILER in (tuned_conf("mine", "local[2]").get(JVM_OPTIONS) or "")
    assert ONE_COMPILER not in (tuned_conf("mine", "spark://host:7077").get(JVM_OPTIONS) or "")


@pytest.mark.parametrize(
    ("version", "has_sockets"), [("3.5.9", False), ("4.0.1", False), ("4.1.0", True)]
)
def test_unix_sockets_by_version(
    version: str, has_sockets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unix sockets are enabled if PySpark supports them."""
    monkeypatch.setattr(pyspark, "__version__", version)
    assert (UNIX_SOCKETS in tuned_settings("local[2]")) is has_sockets


class HandedOver:
    """A fake SparkContext that the program has created.

    Args:
        master: of Spark.
        conf: its settings.
    """

    def __init__(self, master: str = "local[2]", **conf: str) -> None:
        self.master = master
        self._conf = SparkConf(loadDefaults=False)
        for key, value in conf.items():
            self._conf.set(key, value)

    def getConf(self) -> SparkConf:
        return self._conf


@pytest.mark.parametrize("conf", [{}, {UNIX_SOCKETS: "false"}])
def test_warns_once(
    conf: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a context without Unix sockets, one warning names the setting, once."""
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    sc: Any = HandedOver(**conf)
    with caplog.at_level(logging.WARNING):
        warn_if_untuned(sc)
        warn_if_untuned(sc)
    (record,) = caplog.records
    assert f"set {UNIX_SOCKETS}=true" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_no_advice_on_a_cluster(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tuned_context has no Unix sockets there either."""
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)
    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    sc: Any = HandedOver("spark://far:7077", **dict(tuned_conf("a", "spark://far:7077").getAll()))
    warn_if_untuned(sc)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("conf", "uds_mode", "version"),
    [
        ({UNIX_SOCKETS: "true"}, "false", "4.3.0"),
        ({}, "true", "4.3.0"),
        ({}, "false", "4.0.1"),
        ({}, "false", "3.5.0"),
    ],
)
def test_no_warning(
    conf: dict[str, str],
    uds_mode: str,
    version: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is said where the sockets are on, or where PySpark has none."""
    monkeypatch.setenv("PYSPARK_UDS_MODE", uds_mode)
    monkeypatch.setattr(pyspark, "__version__", version)
    sc: Any = HandedOver(**conf)
    warn_if_untuned(sc)
    assert caplog.records == []


def test_a_context_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook whose first cell runs again: the one that runs is named, and what to do."""
    running = SimpleNamespace(appName="story", master="local[2]")
    monkeypatch.setattr(SparkContext, "_active_spark_context", running)
    with pytest.raises(EnvironmentNotReadyError, match=r"'story' at local\[2\].*getOrCreate\(\)"):
        tuned_context("again")


def test_a_context_that_was_stopped() -> None:
    """It answers with errors of its own, so it is refused by its name; one that runs is not."""
    stopped: Any = SimpleNamespace(appName="story", master="local[1]", _jsc=None)
    with pytest.raises(EnvironmentNotReadyError, match="'story' has been stopped"):
        require_running(stopped)
    stopped._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    require_running(stopped)


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8", "5.0.0", "5.1.0.dev0"])
def test_spark_of_the_wrong_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PySpark too old or too new is named, with the command that installs a good one."""
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(EnvironmentNotReadyError) as raised:
        tuned_context("never started")
    assert str(raised.value) == (
        f"pyspark {version} is installed, but dstreams needs 3.5 or newer and older than 5; "
        "run: python -m pip install 'pyspark>=3.5,<5'"
    )


@pytest.mark.parametrize("version", ["3.5.0", "4.0.0", "4.3.0", "4.4.0.dev1"])
def test_spark_of_a_good_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All releases from 3.5 to before 5 will do."""
    monkeypatch.setattr(pyspark, "__version__", version)
    require_spark()


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take Java away; return the directory that is all of PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    return programs


def install_java(directory: Path, script: str) -> Path:
    """Put a program named java there that runs *script*."""
    directory.mkdir(exist_ok=True, parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def says(version: str) -> str:
    return f"echo 'Picked up JAVA_TOOL_OPTIONS: -Da=1' >&2; echo '{version}' >&2"


def test_java_missing(no_java: Path) -> None:
    """Without Java the message says where it was looked for and how to install it."""
    with pytest.raises(EnvironmentNotReadyError) as raised:
        require_java()
    assert str(raised.value) == (
        "PySpark 4.3.0 needs Java 17 or newer, but JAVA_HOME is not set and PATH has no java; "
        "install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17) or set JAVA_HOME to its directory"
    )


def test_java_home_wrong(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME without Java counts, as for Spark, even if PATH has a good one."""
    install_java(no_java, says('openjdk version "17.0.1"'))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentNotReadyError, match=r"JAVA_HOME is '.*/gone' and .*/gone/bin/j"):
        require_java()


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "16-ea" 2021-03-16', 16),
    ],
)
def test_java_too_old(no_java: Path, answer: str, major: int) -> None:
    """A Java too old is named with its place and version."""
    java = install_java(no_java, says(answer))
    with pytest.raises(EnvironmentNotReadyError) as raised:
        require_java()
    assert f"needs Java 17 or newer, but {java} (from PATH) is Java {major}; " in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "spark"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "4.3.0"),
        ('openjdk version "21" 2023-09-19', "4.0.0"),
        ('java version "1.8.0_292"', "3.5.0"),
        ('openjdk version "11.0.2" 2019-01-15', "3.5.9"),
    ],
)
def test_java_good(
    no_java: Path, answer: str, spark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java that the installed PySpark can use passes, from JAVA_HOME as well."""
    monkeypatch.setattr(pyspark, "__version__", spark)
    install_java(tmp_path / "jdk" / "bin", says(answer))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    require_java()


def test_java_that_fails(no_java: Path) -> None:
    """A placeholder that exits with an error, as macOS has one, is quoted."""
    install_java(no_java, "echo 'Unable to locate a Java Runtime.'; exit 1")
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"exited with 1 and printed 'Unable to locate a Java Runtime.'",
    ):
        require_java()


def test_java_that_says_nothing(no_java: Path) -> None:
    """A program that prints no version is not accepted as Java."""
    install_java(no_java, "exit 0")
    with pytest.raises(EnvironmentNotReadyError, match="exited with 0 and printed 'nothing'"):
        require_java()


def test_java_that_cannot_run(no_java: Path) -> None:
    """A file that is not executable is reported with the error of the system."""
    java = install_java(no_java, "")
    java.write_bytes(b"\x7fELF")
    with pytest.raises(EnvironmentNotReadyError, match=r"java \(from PATH\) cannot be run: .*Exec"):
        require_java()


def test_java_that_hangs(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that does not answer times out."""
    monkeypatch.setattr(spark_context, "_JAVA_ANSWER_S", 0.1)
    install_java(no_java, "exec /bin/sleep 600")
    with pytest.raises(EnvironmentNotReadyError, match=r"did not answer -version within 0\.1 s"):
        require_java()


def test_java_is_asked_once(no_java: Path) -> None:
    """A good Java is not started again; a bad one is, since it may have been replaced."""
    java = install_java(no_java, says('openjdk version "11.0.2"'))
    with pytest.raises(EnvironmentNotReadyError, match="is Java 11"):
        require_java()
    install_java(no_java, says('openjdk version "17.0.1"'))
    require_java()
    java.write_text("#!/bin/sh\nexit 1\n")
    require_java()


def test_java_of_spark_env(no_java: Path, tmp_path: Path) -> None:
    """A spark-env.sh may set JAVA_HOME for Spark alone, so nothing is refused then."""
    script = tmp_path / "conf" / "spark-env.sh"
    script.parent.mkdir()
    script.write_text("export JAVA_HOME=/somewhere\n")
    require_java()


def test_missing_java_is_told_before_the_launch(tmp_path: Path) -> None:
    """A program that starts a context without Java gets our error, not the gateway's."""
    done = run_python(
        "from dstreams.spark.spark_context import tuned_context\ntuned_context('never started')",
        JAVA_HOME=str(tmp_path),
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dstreams.errors.EnvironmentNotReadyError: PySpark ")
    assert "Traceback" in done.stderr
    assert "JAVA_GATEWAY_EXITED" not in done.stderr


def test_ctrl_c_is_put_off() -> None:
    """It is raised when the block has come to its end, and the handler is that of before."""
    before = signal.getsignal(signal.SIGINT)
    steps: list[str] = []

    def press_and_go_on() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("went on")

    with pytest.raises(KeyboardInterrupt), starting_spark():
        press_and_go_on()
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is before
    with starting_spark():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_comes_before_the_error_that_it_may_have_caused() -> None:
    """A child that was ended as well fails; without Ctrl-C the error says that."""

    def fail(pressed: bool) -> None:
        if pressed:
            signal.raise_signal(signal.SIGINT)
        raise OSError("the child has ended")

    with pytest.raises(KeyboardInterrupt) as raised, starting_spark():
        fail(pressed=True)
    assert isinstance(raised.value.__cause__, EnvironmentNotReadyError)
    with pytest.raises(EnvironmentNotReadyError, match=r"started .*: the child has ended"):  # noqa: SIM117
        with starting_spark():
            fail(pressed=False)


def test_a_handler_that_the_block_installed_stays() -> None:
    """PySpark puts its own there when its context is made."""
    before = signal.getsignal(signal.SIGINT)

    def its_own(*_: object) -> None:
        pass

    try:
        with starting_spark():
            signal.signal(signal.SIGINT, its_own)
        assert signal.getsignal(signal.SIGINT) is its_own
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_left_alone_in_other_threads() -> None:
    """Only the main thread may have handlers, and only it is interrupted."""
    seen: list[object] = []

    def block() -> None:
        with starting_spark():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join(300)
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_forwarded_errors(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines come through whole and in order, also the last one without an end; noise does not."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"one\nWARNING: Using incubator modules: jdk.incubator.vector\ntwo\nthr")
    os.write(write_fd, b"ee")
    os.close(write_fd)
    spark_context._forward_errors(read_fd)
    assert capfd.readouterr().err == "one\ntwo\nthree"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_fd)
