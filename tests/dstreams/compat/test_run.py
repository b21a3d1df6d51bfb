"""``dstreams run``, in processes of its own, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from dstreams.cli.main import main
from tests.support.jvms import ENVIRONMENT
from tests.support.programs import LIMIT_S, running
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.deep]

ROOT = Path(__file__).parents[3]
RUN = ("-m", "dstreams", "run")


def environment(**changes: str) -> Mapping[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_"))
    }
    return {**inherited, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **changes}


def write(directory: Path, source: str, name: str = "app.py") -> str:
    path = directory / name
    path.write_text(textwrap.dedent(source))
    return str(path)


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(**changes),
    )


# A program and its SparkContext --------------------------------------------------------------

PROGRAM = """
    import json
    import os
    import sys

    import helpers
    from pyspark import SparkConf, SparkContext
    from pyspark.streaming import StreamingContext

    class Point:
        def __init__(self, x):
            self.x = x

        def twice(self):
            return Point(2 * self.x)

    def on_a_worker(x):
        from pyspark.streaming import DStream
        return Point(x).twice().x, DStream.__name__

    def main():
        conf = SparkConf().setAppName("mine").set("spark.python.task.killTimeout", "1s")
        sc = SparkContext("local[1]", conf=conf)
        ssc = StreamingContext(sc, 1)
        points = ssc.queueStream([[1, 2]]).map(Point).map(Point.twice).map(lambda p: p.x)
        seen = []
        points.foreachRDD(lambda rdd: seen.append(rdd.collect()))
        ssc.start()
        while not seen:
            ssc.awaitTerminationOrTimeout(0.1)
        ssc.stop(stopSparkContext=False)
        settings = dict(sc.getConf().getAll())
        settings = {key: value for key, value in settings.items() if key.startswith("spark.")}
        print(json.dumps({
            "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
            "module": StreamingContext.__module__, "helper": helpers.CONTEXT is StreamingContext,
            "main": sys.modules["__main__"].Point is Point,
            "worker": sc.parallelize([5], 1).map(on_a_worker).first(), "seen": seen[0],
            "settings": settings, "python": os.environ["PYSPARK_PYTHON"],
        }))

    if __name__ == "__main__":
        main()
"""
ARGUMENTS = ("-x", "--conf", "spark.of.nobody=1", "--", "last")
HELPERS = "from pyspark.streaming.context import StreamingContext as CONTEXT\n"


PAGE = re.compile(r"dstreams: live page: http://127\.0\.0\.1:40\d\d\n")
CHANGED = re.compile(
    r"dstreams changes these defaults \(none with --spark-defaults\):\n"
    r"((?:  .*\n)+)"
)


def changed_in(errors: str) -> set[str]:
    """Return the reported settings, which are reported once."""
    (lines,) = CHANGED.findall(errors)
    return set(re.findall(r"(?m)^  (\w[\w.]*)[=:]", lines))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program and a module in its directory."""
    directory = tmp_path_factory.mktemp("legacy")
    write(directory, HELPERS, "helpers.py")
    return Path(write(directory, PROGRAM))


@pytest.fixture(scope="module")
def told(program: Path) -> dict[str, Any]:
    """The output of a run with settings from the command line."""
    options = ("--master", "local[7]", "--name", "theirs", "--conf", "spark.of.options=a=b")
    conf = ("--conf", "spark.python.task.killTimeout=5s")
    done = run(*options, *conf, str(program), *ARGUMENTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PAGE.fullmatch(CHANGED.sub("", done.stderr))
    # What the program and the command line say is none of it.
    not_told = {"spark.master", "spark.python.task.killTimeout"}
    assert changed_in(done.stderr).isdisjoint(not_told)
    assert {"spark.port.maxRetries", "spark.dstreams.ui.enabled"} <= changed_in(done.stderr)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_a_program_is_the_main_program(told: dict[str, Any], program: Path) -> None:
    """Name, file, arguments and path are those of a program run by Python."""
    assert told["name"] == "__main__"
    assert told["main"]
    assert told["file"] == str(program)
    assert told["argv"] == [str(program), *ARGUMENTS]
    assert told["path"] == str(program.parent)


def test_its_streams_are_ours(told: dict[str, Any]) -> None:
    """Also those of modules that it imports."""
    assert told["module"] == "dstreams.context"
    assert told["helper"]


def test_its_functions_and_classes_reach_the_workers(told: dict[str, Any]) -> None:
    """By value, as of any main program; and on a worker pyspark.streaming can be imported."""
    assert told["seen"] == [2, 4]
    assert told["worker"] == [10, "DStream"]
    assert told["python"] == sys.executable


def test_its_own_settings_win(told: dict[str, Any]) -> None:
    """Settings of the program override the command line, which overrides tuned settings."""
    settings = told["settings"]
    assert settings["spark.master"] == "local[1]"
    assert settings["spark.app.name"] == "mine"
    assert settings["spark.python.task.killTimeout"] == "1s"
    assert settings["spark.of.options"] == "a=b"
    assert "spark.of.nobody" not in settings
    assert "spark.ui.enabled" not in settings
    assert settings["spark.ui.showConsoleProgress"] == "false"
    assert settings["spark.driver.host"] == "127.0.0.1"
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1):
        assert settings["spark.python.unix.domain.socket.enabled"] == "true"


SETTINGS = """
    import json
    import os
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    sc = SparkSession.builder.getOrCreate().sparkContext
    left = {"MASTER", "PYSPARK_SUBMIT_ARGS"} & set(os.environ)
    print(json.dumps([dict(sc.getConf().getAll()), sorted(left)]))
    sc.stop()
    again = SparkContext()
    print(json.dumps(dict(again.getConf().getAll())))
"""


def test_settings_of_the_machine_win_over_tuned_ones(tmp_path: Path) -> None:
    """spark-defaults.conf loses to the command line alone; a SparkSession is tuned as well."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.master local[3]\nspark.ui.showConsoleProgress true\nspark.of.the.machine yes\n"
        "spark.python.task.killTimeout 3s\n"
    )
    option = ("--conf", "spark.python.task.killTimeout=5s")
    done = run(*option, write(tmp_path, SETTINGS), SPARK_CONF_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, again = map(json.loads, done.stdout.splitlines())
    assert first[1] == []
    for settings in (first[0], again):
        assert settings["spark.master"] == "local[3]"
        assert settings["spark.app.name"] == "app.py"
        assert settings["spark.ui.showConsoleProgress"] == "true"
        assert settings["spark.of.the.machine"] == "yes"
        assert settings["spark.python.task.killTimeout"] == "5s"
        assert "spark.ui.enabled" not in settings
    assert changed_in(done.stderr).isdisjoint({"spark.master", "spark.ui.showConsoleProgress"})


DEFAULTS = """
    import json
    import os
    from pyspark import SparkContext
    spark = SparkContext()
    python = os.environ.get("PYSPARK_PYTHON")
    print(json.dumps([spark.master, dict(spark.getConf().getAll()), python]))
    spark.stop()
    SparkContext().stop()
"""


def test_the_defaults_that_are_changed(tmp_path: Path) -> None:
    """They are reported once; not with --quiet."""
    program = write(tmp_path, DEFAULTS)
    done = run(program)
    assert done.returncode == 0, done.stderr
    master, settings, _ = json.loads(done.stdout)
    assert master == "local[*,4]"
    told = changed_in(done.stderr)
    assert told >= {
        "spark.master",
        "spark.driver.defaultJavaOptions",
        "spark.driver.bindAddress",
        "spark.ui.showConsoleProgress",
        "spark.port.maxRetries",
        "spark.python.task.killTimeout",
        "spark.dstreams.ui.enabled",
        "PYSPARK_PYTHON",
    }
    assert told - set(settings) == {"PYSPARK_PYTHON"}
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert run("--quiet", "--master", "local[1]", program).stderr == ""


def test_as_spark(tmp_path: Path) -> None:
    """No default of Spark is changed; options still apply."""
    program = write(tmp_path, DEFAULTS)
    given = ("--conf", "spark.of.options=a=b", "--conf", "spark.log.level=ERROR")
    done = run("--spark-defaults", *given, program)
    assert done.returncode == 0, done.stderr
    master, settings, python = json.loads(done.stdout)
    assert (master, python) == ("local[*]", None)
    assert settings["spark.of.options"] == "a=b"
    assert settings["spark.app.name"] == "pyspark-shell"
    assert (
        set(settings)
        & {
            "spark.driver.bindAddress",
            "spark.driver.defaultJavaOptions",
            "spark.dstreams.ui.enabled",
            "spark.port.maxRetries",
            "spark.python.daemon.module",
            "spark.python.task.killTimeout",
            "spark.python.unix.domain.socket.enabled",
        }
        == set()
    )
    assert "dstreams" not in done.stderr


def test_logging_of_the_machine(tmp_path: Path) -> None:
    """A log4j2.properties in SPARK_CONF_DIR stays what the JVM logs by, and shows no progress."""
    (tmp_path / "log4j2.properties").write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console"
        "\nappender.out.name = out\nappender.out.target = SYSTEM_ERR\n"
        "appender.out.layout.type = PatternLayout\nappender.out.layout.pattern = logged: %m%n\n"
    )
    source = """
        from pyspark import SparkContext
        spark = SparkContext()
        print(spark.getConf().get("spark.ui.showConsoleProgress"), spark.master)
    """
    done = run(write(tmp_path, source), SPARK_CONF_DIR=str(tmp_path))
    # All cores by default, with four attempts for a task.
    assert done.stdout == "false local[*,4]\n"
    assert "logged: " in done.stderr


def test_master_of_the_environment(tmp_path: Path) -> None:
    """PYSPARK_SUBMIT_ARGS has its say, and loses to the options."""
    source = """
        from pyspark import SparkContext
        print(SparkContext(appName="other").master)
    """
    program = write(tmp_path, source)
    submit = "--master local[5] pyspark-shell"
    assert run(program, PYSPARK_SUBMIT_ARGS=submit).stdout == "local[5]\n"
    options = ("--master", "local[6]")
    assert run(*options, program, PYSPARK_SUBMIT_ARGS=submit).stdout == "local[6]\n"


TUNED = """
    import json
    import sys
    from dstreams import StreamingContext, tuned_context

    def setup():
        ssc = StreamingContext(tuned_context("tuned", conf={"spark.of.program": "1"}), 1)
        ssc.checkpoint(sys.argv[1])
        ssc.queueStream([[1], [2], [3]], replayable=True).pprint()
        return ssc

    ssc = StreamingContext.getOrCreate(sys.argv[1], setup)
    print(json.dumps(dict(ssc.sparkContext.getConf().getAll())))
    sys.stdout = sys.stderr
    ssc.step()
    ssc.stop()
"""


def test_the_options_hold_for_a_tuned_context_and_for_a_restart(tmp_path: Path) -> None:
    """The program and its checkpoint win; master and new settings are the options."""
    program = write(tmp_path, TUNED)

    def told(*options: str) -> dict[str, str]:
        done = run(*options, program, str(tmp_path / "checkpoint"))
        assert done.returncode == 0, done.stderr
        settings: dict[str, str] = json.loads(done.stdout)
        return settings

    given = ("--conf", "spark.of.program=2", "--conf", "spark.of.options=a=b")
    first = told("--master", "local[2,4]", "--name", "theirs", *given)
    assert first["spark.master"] == "local[2,4]"
    assert first["spark.of.options"] == "a=b"
    assert (first["spark.of.program"], first["spark.app.name"]) == ("1", "tuned")
    assert first["spark.dstreams.ui.enabled"] == "true"
    given = ("--conf", "spark.of.options=c", "--conf", "spark.of.restart=d")
    again = told("--master", "local[3,4]", *given)
    assert again["spark.master"] == "local[3,4]"
    assert again["spark.of.restart"] == "d"
    assert (again["spark.of.program"], again["spark.of.options"]) == ("1", "a=b")


# How it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "status", "errors"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no such topic')", 1, "no such topic\n"),
        ("raise SystemExit(3)", 3, ""),
        ("raise KeyboardInterrupt", 130, "dstreams run: interrupted\n"),
    ],
)
def test_exit_status(tmp_path: Path, source: str, status: int, errors: str) -> None:
    """It is that of the program."""
    done = run(write(tmp_path, source))
    assert (done.returncode, done.stdout, done.stderr) == (status, "", errors)


def test_a_program_that_fails(tmp_path: Path) -> None:
    """Its traceback begins in the program, and its output was written."""
    program = write(tmp_path, "print('before')\ndef f():\n    return 1 / 0\nf()\n")
    done = run(program)
    assert done.returncode == 1
    assert done.stdout == "before\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1:3] == [f'  File "{program}", line 4, in <module>', "    f()"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "dstreams" not in done.stderr


def test_a_program_of_python_2(tmp_path: Path) -> None:
    """A syntax error is printed with its line, and with the command that helps."""
    program = write(tmp_path, "x = 1\nprint 'two'\n")
    done = run(program)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == f'  File "{program}", line 2'
    assert lines[-2].startswith("SyntaxError: ")
    assert lines[-1] == f"dstreams run: if it is Python 2, see dstreams check {program}"


def test_a_batch_that_fails(tmp_path: Path) -> None:
    """awaitTermination raises it in the program, whose line is shown, and so is the function's."""
    source = """
        from pyspark import SparkContext
        from pyspark.streaming import StreamingContext
        ssc = StreamingContext(SparkContext("local[1]", "fails"), 0.5)
        ssc.queueStream([[1]]).map(lambda x: x / 0).pprint()
        ssc.start()
        ssc.awaitTermination()
    """
    program = write(tmp_path, source)
    done = run(program)
    assert done.returncode == 1
    assert f'File "{program}", line 7, in <module>' in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dstreams.errors.BatchFailedError: batch ")
    assert last.endswith("ZeroDivisionError: division by zero")


CONTEXT = "from pyspark import SparkContext\nSparkContext('local[1]', 'never')\n"


def test_no_java(tmp_path: Path) -> None:
    """Without Java the error says how to install it, and no traceback."""
    done = run(write(tmp_path, CONTEXT), JAVA_HOME=str(tmp_path))
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dstreams run: PySpark {pyspark.__version__} needs Java ")
    assert "apt-get install openjdk-17" in line


def test_jvm_that_does_not_start(tmp_path: Path) -> None:
    """A JVM that cannot start is a problem of the machine, without a traceback."""
    done = run(write(tmp_path, CONTEXT), PYSPARK_SUBMIT_ARGS="--no-such-option pyspark-shell")
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dstreams run: Spark could not be started on this machine: ")
    assert "Traceback" not in done.stderr


def test_a_master_that_is_none(tmp_path: Path) -> None:
    """A master that Spark rejects is an error of the program."""
    source = "from pyspark import SparkContext\nSparkContext('nowhere', 'never')\n"
    program = write(tmp_path, source)
    done = run(program)
    assert done.returncode == 1
    assert f'File "{program}", line 2, in <module>' in done.stderr
    assert "Could not parse Master URL: 'nowhere'" in done.stderr


def below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def has_java(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # one that asks for the version has ended
            if "java" in process.name():
                return True
    return False


def test_interrupted_while_the_jvm_starts(tmp_path: Path) -> None:
    """Ctrl-C ends the program with a word and a status of its own, and leaves no JVM."""
    with running(*RUN, write(tmp_path, CONTEXT)) as program:
        me = psutil.Process(program.process.pid)
        wait_for(lambda: has_java(below(me)), LIMIT_S)
        started = below(me)
        os.killpg(program.process.pid, signal.SIGINT)
        assert program.wait() == 130
        assert program.lines[-1] == "dstreams run: interrupted"
        psutil.wait_procs(started, LIMIT_S)
        assert [child for child in started if child.is_running()] == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_interrupted_without_a_stream(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """A program that waits for something else ends as any other does."""
    source = "import threading\nprint('waiting')\nthreading.Event().wait()\n"
    with running(*RUN, write(tmp_path, source)) as program:
        wait_for(lambda: program.lines == ["waiting"], LIMIT_S)
        assert program.end(number) == status
        assert program.lines[1:] == (["dstreams run: interrupted"] if status == 130 else [])


# The command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "argument app.py: no such file: 'nowhere.py'"),
        (["--conf", "a=b", "x.py"], "argument --conf: 'a=b' must be spark.KEY=VALUE"),
        (["--state", "uid=", "x.py"], "argument --state: 'uid=' must be UID=DIRECTORY"),
        (["--conf", "spark.a", "x.py"], "argument --conf: 'spark.a' must be spark.KEY=VALUE"),
        (["--kernel", "x.py"], "unknown option '--kernel'; see dstreams run --help"),
    ],
)
def test_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error has status 2 and the usage, and starts nothing."""
    with pytest.raises(SystemExit) as end:
        main(["run", *arguments])
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("usage: dstreams run")
    assert message in errors


def test_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a program, the error names the usage."""
    assert main(["run"]) == 2
    assert capsys.readouterr().err == "dstreams run: which program? dstreams run app.py\n"


def test_a_state_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state to take over is in a checkpoint of Spark, which must be named."""
    assert main(["run", "--state", "uid=uuid/rdd-1", write(tmp_path, "")]) == 2
    assert capsys.readouterr().err == (
        "dstreams run: --state names a state in a checkpoint; give --adopt too\n"
    )


def test_options_under_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JVM is there already: the options would come too late, so they are refused."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert main(["run", "--master", "local", write(tmp_path, "")]) == 2
    errors = capsys.readouterr().err
    assert errors == "dstreams run: give --master, --name and --conf to spark-submit\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the options and each exit status."""
    with pytest.raises(SystemExit) as end:
        main(["run", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "[--conf K=V] [--adopt CHECKPOINT] [--state UID=DIRECTORY] [app.py] ..." in " ".join(
        text.split()
    )
    statuses = text.partition("exit status:\n")[2].splitlines()
    assert [line.split()[0] for line in statuses[1:] if line[2] != " "] == [
        "0",
        "1",
        "2",
        "3",
        "130",
    ]
