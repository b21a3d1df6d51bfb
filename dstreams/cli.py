"""The command ``dstreams``."""

from __future__ import annotations

import argparse
import logging
import math
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import pyspark

from checkpoint.tools.help_page import HelpPage, set_help_pages
from dstreams.clock import SystemClock
from dstreams.demo.word_count import run_demo
from dstreams.drill.command import DrillOptions, run_drill
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, StreamError
from dstreams.kafka.command import OffsetsQuestion, show_offsets
from dstreams.kafka_io.config_files import client_settings
from dstreams.kafka_io.parameters import KafkaParameters
from dstreams.legacy.run import run_program
from dstreams.rdd.context import DEFAULT_MASTER
from dstreams.ui.page import page

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SUCCEEDED, FAILED, MISUSED, NOT_READY, INTERRUPTED = 0, 1, 2, 3, 130  # 2 is argparse's own

_DEMO_STATUS = """\
exit status:
  0    the streamed counts are those of the independent count
  1    they differ, or the stream failed
  2    the command was used wrongly
  3    Java, Spark, the text or, with --kafka, Kafka is missing here
  130  interrupted by Ctrl-C or SIGTERM
"""

_DRILL_STATUS = """\
An application of yours is a Python file with four functions, each of which gets the directory of
the drill:
  setup(directory)         returns a StreamingContext; its checkpoint directory is
                           directory + "/checkpoint"; called once, by the first driver
  start(directory)         in its place, for a structured query: starts it with that checkpoint
                           location, and returns its StreamSession; called by each driver
  feed(directory, number)  gives it more input; called with 0, 1, 2, ...
  is_done(directory)       says whether all input has been through
  check(directory)         returns what is wrong with the outputs: a list of texts

exit status:
  0    all promises held: nothing lost, nothing twice, all state equal
  1    they did not; the directory of the drill is kept
  2    the command was used wrongly
  3    Java, Spark or, with --kafka, the client of Kafka is missing here
  130  interrupted by Ctrl-C
"""

_KAFKA_STATUS = """\
A config file has lines name=value, by the names of Kafka's clients: bootstrap.servers,
security.protocol, sasl.password and so on. Nothing of it is printed; a value may be ${env:NAME}.

exit status:
  0    done: each partition can go on where it is
  1    one cannot, and the line says why; or the brokers do not answer, or a file is damaged
  2    the command was used wrongly, or there is no checkpoint, or none that reads Kafka
  3    the client of Kafka is missing on this machine
  130  interrupted by Ctrl-C
"""

_RUN_STATUS = """\
exit status:
  that of the program, if it ends by sys.exit; else
  0    it ended; Ctrl-C and SIGTERM stop streams, and it goes on from there
  1    the program failed
  2    the command was used wrongly
  3    Java or Spark is missing on this machine
  130  interrupted by Ctrl-C while no stream was running
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: arguments. None: those of the process.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after ``--help`` or ``--version``.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["checkpoint"]:  # all that follows is its own, --help as well
        return _checkpoint(words[1:])
    options = _parser().parse_args(words)
    command: str = options.command
    try:
        status = _COMMANDS[command](options)
    except BrokenPipeError:
        status = _mute()
    except (EnvironmentNotReadyError, OSError) as error:
        status = _complain(command, error, NOT_READY)
    except InvalidStreamError as error:
        status = _complain(command, error, MISUSED if command in _WITH_CONFIG else FAILED)
    except StreamError as error:
        status = _complain(command, error, FAILED)
    except KeyboardInterrupt:
        status = _complain(command, "interrupted", INTERRUPTED)
    return status


def _demo(options: argparse.Namespace) -> int:
    # The process is the demo's own, and nobody misses what a stop leaves of its text.
    logging.getLogger("dstreams.streams.life_cycle").setLevel(logging.ERROR)
    if options.config is not None and options.kafka is None:
        return _complain("demo", "--config is for brokers of Kafka: give --kafka, too", MISUSED)
    kafka = None if options.kafka is None else client_settings(options.kafka, options.config)
    if options.config is not None:  # which says where the brokers are, or --kafka does
        KafkaParameters.of(kafka, "dstreams demo")
    page.prints = not options.quiet
    limit_bytes = round(options.megabytes * 1e6)
    equal = run_demo(
        options.cores,
        limit_bytes,
        options.timeout,
        sys.stdout,
        kafka,
        as_json=options.json,
        is_quiet=options.quiet,
        stays=options.stay,
    )
    return SUCCEEDED if equal else FAILED


def _run(options: argparse.Namespace) -> int:
    submitted = dict(options.conf)
    if options.master is not None:
        submitted["spark.master"] = options.master
    if options.name is not None:
        submitted["spark.app.name"] = options.name
    if submitted and "PYSPARK_GATEWAY_PORT" in os.environ:
        return _complain("run", "give --master, --name and --conf to spark-submit", MISUSED)
    return run_program(options.program, options.arguments, submitted, is_quiet=options.quiet)


def _drill(options: argparse.Namespace) -> int:
    seed: int = SystemClock().now_ms() % 10**6 if options.seed is None else options.seed
    drill = DrillOptions(
        options.kills,
        seed,
        options.app,
        at_steps=not options.no_steps,
        as_json=options.json,
        keep=options.keep,
        interval_s=options.interval,
        query=options.query,
        kafka=options.kafka,
        worker_kills=options.worker_kills,
        is_quiet=options.quiet,
    )
    return SUCCEEDED if run_drill(drill, sys.stdout) else FAILED


def _checkpoint(words: Sequence[str]) -> int:
    # What it needs is not needed by the other commands.
    from checkpoint.cli import main as checkpoint_main  # noqa: PLC0415

    return checkpoint_main(words, prog="dstreams checkpoint")


def _kafka(options: argparse.Namespace) -> int:
    question = OffsetsQuestion(
        options.url, options.stream, options.bootstrap, options.config, as_json=options.json
    )
    return SUCCEEDED if show_offsets(question, sys.stdout) else FAILED


_WITH_CONFIG = ("demo", "kafka")
"""What takes settings of Kafka: one that cannot be is an error of usage."""

_COMMANDS = {"demo": _demo, "drill": _drill, "kafka": _kafka, "run": _run}


def _complain(command: str, problem: object, status: int) -> int:
    sys.stderr.write(f"dstreams {command}: {problem}\n")
    return status


def _mute() -> int:
    """Nobody reads what we print, for example after ``| head``: end without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dstreams",
        description="Stateful stream processing in Python on Apache Spark RDDs.",
        formatter_class=HelpPage,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_drill(commands)
    _add_kafka(commands)
    _add_run(commands)
    commands.add_parser("checkpoint", help="look into a checkpoint, verify it, go back, export it")
    set_help_pages(commands)
    return parser


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="count words over a socket or through Kafka, and check the counts",
        description=(
            "Counts the words of the standard library's sources, sent over a TCP socket of this "
            "machine or through a topic of Kafka, with updateStateByKey, and compares the result "
            "with an independent count."
        ),
        epilog=_DEMO_STATUS,
    )
    demo.add_argument(
        "--megabytes",
        type=_megabytes,
        default=10.0,
        metavar="N",
        help="how much text to send at most (default: %(default)g)",
    )
    demo.add_argument(
        "--cores",
        type=_cores,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="tasks that Spark runs at a time, on this machine (default here: %(default)s)",
    )
    demo.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long the stream may take (default: %(default)g)",
    )
    demo.add_argument(
        "--kafka",
        nargs="?",
        const="",
        type=_brokers,
        metavar="HOST:PORT",
        help=(
            "send the text through a topic of Kafka: on these brokers, where it is made and "
            "deleted again, or on a cluster inside of this process; brokers get the counts, too, "
            "in a topic that is written exactly once"
        ),
    )
    _add_config(demo)
    demo.add_argument(
        "--json", action="store_true", help="for programs: a line for each batch, and the result"
    )
    demo.add_argument("--quiet", action="store_true", help="no progress: result and errors only")
    demo.add_argument(
        "--stay", action="store_true", help="keep the page after the result, until Ctrl-C"
    )


def _add_drill(commands: Commands) -> None:
    drill = commands.add_parser(
        "drill",
        help="kill a driver again and again, and check that nothing is lost",
        description=(
            "Runs a job with updateStateByKey, a window, mapWithState and files written exactly "
            "once, or a structured query; kills its driver at random moments, and once at each "
            "step of a batch, restarts it from its checkpoint, and compares all outputs with an "
            "oracle."
        ),
        epilog=_DRILL_STATUS,
    )
    drill.add_argument(
        "--kills",
        type=_count,
        default=20,
        metavar="N",
        help="kills at random moments (default: %(default)s)",
    )
    drill.add_argument(
        "--worker-kills",
        type=_count,
        default=0,
        metavar="N",
        help="as many drivers lose their Python workers before (default: %(default)s)",
    )
    drill.add_argument(
        "--seed", type=_seed, metavar="S", help="of the random moments (default: another each time)"
    )
    drill.add_argument(
        "--no-steps", action="store_true", help="do not kill at each step of a batch as well"
    )
    what = drill.add_mutually_exclusive_group()
    what.add_argument("--app", type=_file, metavar="app.py", help="an application of yours")
    what.add_argument(
        "--query", action="store_true", help="drill a structured query with state by key instead"
    )
    what.add_argument(
        "--kafka",
        type=_brokers,
        metavar="HOST:PORT",
        help="drill a job that reads and writes topics of these brokers, where it makes its own",
    )
    drill.add_argument(
        "--interval",
        type=_count,
        metavar="SECONDS",
        help="between two batches of the drill's own job; more on a slow machine (default: 2)",
    )
    drill.add_argument("--json", action="store_true", help="print the result as JSON, alone")
    drill.add_argument("--quiet", action="store_true", help="no progress: result and errors only")
    drill.add_argument("--keep", action="store_true", help="keep the directory of the drill")


def _add_kafka(commands: Commands) -> None:
    kafka = commands.add_parser(
        "kafka",
        help="offsets of a checkpoint beside those of the brokers, with the lag",
        description=(
            "Shows up to where batches of a stream or query have read its topics, by partition: "
            "committed, and begun. Where brokers are given, also what they have, and the lag."
        ),
        epilog=_KAFKA_STATUS,
    )
    kafka.add_argument("url", help="path or URL of the checkpoint, or of one stream in it")
    kafka.add_argument("--stream", help="id of the stream; the newest one by default")
    kafka.add_argument(
        "--bootstrap", type=_some_brokers, metavar="HOST:PORT", help="brokers to ask"
    )
    _add_config(kafka)
    kafka.add_argument("--json", action="store_true", help="for programs")


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=_file, metavar="FILE", help="settings of Kafka's clients, with secrets"
    )


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a program that was written for pyspark.streaming, as it is",
        description=(
            "Runs a Python program in which pyspark.streaming is dstreams. A SparkContext that it "
            "makes has the settings of dstreams.tuned_conf, then those of spark-defaults.conf and "
            "of these options, then its own: the later ones win."
        ),
        epilog=_RUN_STATUS,
    )
    run.add_argument(
        "--quiet",
        action="store_true",
        help="print neither how far a restart is nor where the page is",
    )
    run.add_argument("--master", metavar="M", help=f"Spark master (default: {DEFAULT_MASTER})")
    run.add_argument("--name", metavar="N", help="name of the application (default: the file's)")
    run.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="K=V",
        help="a setting of Spark; may be given more than once",
    )
    run.add_argument("program", type=_file, metavar="app.py", help="the program, a Python file")
    run.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="args", help="arguments of the program"
    )


def _version() -> str:
    try:
        installed = version("dstreams")
    except PackageNotFoundError:
        installed = "(not installed)"
    return (
        f"dstreams {installed}, PySpark {pyspark.__version__}, Python {platform.python_version()}"
    )


def _megabytes(text: str) -> float:
    return _number(text, 0.01, "megabytes")


def _seconds(text: str) -> float:
    return _number(text, 1, "seconds")


def _cores(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 1024")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} must be spark.KEY=VALUE")
    return key, value


def _brokers(text: str) -> str:
    return _some_brokers(text) if text else text  # none: a cluster of the demo's own


def _some_brokers(text: str) -> str:
    for one in text.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, or some with commas")
    return text


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def _number(text: str, least: float, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of {unit}, at least {least}")
    return value
