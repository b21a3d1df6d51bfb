"""The commands ``run``, ``check``, ``kafka`` and ``completion``."""

# ruff: noqa: PLC0415 - a command loads only what it runs
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from checkpoint.cli import CommandParser
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, add_brokers, add_states, complain, file

_RUN_STATUS = """\
exit status:
  that of the program, if it calls sys.exit; otherwise
  0    the program ended; Ctrl-C and SIGTERM stop streams, and the program continues after them
  1    the program failed
  2    usage error
  3    Java or Spark is missing on this machine
  130  interrupted by Ctrl-C while no stream was running
"""
_CHECK_STATUS = """\
exit status:
  0    nothing to change; differences are listed
  1    a change or a setting is needed
  2    a file cannot be read, or usage error
  130  interrupted by Ctrl-C
"""
_KAFKA_STATUS = """\
A config file has lines name=value with the names of Kafka's clients: bootstrap.servers,
security.protocol, sasl.password and so on. Its values are never printed, and may be ${env:NAME}.

exit status:
  0    every partition can resume at its offset
  1    a partition cannot, as its line explains; or the brokers do not answer, or a file is damaged
  2    usage error, or no such checkpoint, or none that reads Kafka
  3    the Kafka client is not installed on this machine
  130  interrupted by Ctrl-C
"""
_COMPLETION = """\
Prints a script that completes commands, options and files when you press Tab. Print it again after
updating dstreams.

bash:
  DIR=~/.local/share/bash-completion/completions
  mkdir -p $DIR
  dstreams completion bash > $DIR/dstreams

zsh:
  mkdir -p ~/.zfunc
  dstreams completion zsh > ~/.zfunc/_dstreams
  and in ~/.zshrc, above compinit: fpath+=~/.zfunc
"""
_FILES, _DIRECTORIES = ("FILE", "app.py"), ("CHECKPOINT", "DIR")
"""Metavars of arguments that are completed with paths."""


def configure_run(command: CommandParser) -> None:
    """Add the arguments of ``dstreams run``."""
    command.description = (
        "Runs a Python program in which pyspark.streaming is dstreams. A SparkContext that the "
        "program creates uses the settings of dstreams.tuned_conf, overridden by "
        "spark-defaults.conf, then by these options, then by the program's own."
    )
    command.add_below(
        ["app.py", "--spark-defaults app.py", "--master local[4] app.py /data/app"], _RUN_STATUS
    )
    command.add_argument(
        "--quiet",
        action="store_true",
        help="print no restart progress, no address of the live page and no changed defaults",
    )
    command.add_argument(
        "--spark-defaults",
        action="store_true",
        help="keep Spark's defaults, and turn the live page off",
    )
    command.add_argument("--master", metavar="URL", help="Spark master (default: local[*,4])")
    command.add_argument(
        "--name", metavar="NAME", help="name of the application (default: that of the file)"
    )
    command.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="K=V",
        help="a Spark setting; can be repeated",
    )
    command.add_argument(
        "--adopt",
        metavar="CHECKPOINT",
        help="take over a checkpoint of pyspark.streaming, as restore(adopt=) does, if the "
        "program calls getOrCreate or restore with a directory without checkpoint; this runs code "
        "in that checkpoint",
    )
    add_states(command)
    command.add_argument(
        "program", nargs="?", type=file, metavar="app.py", help="the program, a Python file"
    )
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="args", help="arguments of the program"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.program is None:
        return complain("run", "which program? dstreams run app.py", MISUSED)
    if options.state and options.adopt is None:
        return complain("run", "--state names a state in a checkpoint; give --adopt too", MISUSED)
    submitted = dict(options.conf)
    if options.master is not None:
        submitted["spark.master"] = options.master
    if options.name is not None:
        submitted["spark.app.name"] = options.name
    if submitted and "PYSPARK_GATEWAY_PORT" in os.environ:
        return complain("run", "give --master, --name and --conf to spark-submit", MISUSED)
    from dstreams.compat.run import run_program

    return run_program(
        options.program,
        options.arguments,
        submitted,
        is_quiet=options.quiet,
        is_as_spark=options.spark_defaults,
        adopts=options.adopt,
        states=dict(options.state),
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} must be spark.KEY=VALUE")
    return key, value


def configure_check(command: CommandParser) -> None:
    """Add the arguments of ``dstreams check``."""
    command.description = (
        "Reads programs written for pyspark.streaming without running them, and lists by line "
        "what to change or configure, what behaves differently, and what stays the same."
    )
    command.add_below(["app.py", "--json src/"], _CHECK_STATUS)
    command.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    command.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, or a directory for all *.py files in it"
    )
    command.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from dstreams.compat.check import as_json, check, report_text

    checked = check([Path(path) for path in options.paths])
    sys.stdout.write((as_json if options.json else report_text)(checked, options.paths))
    return checked.status


def configure_kafka(command: CommandParser) -> None:
    """Add the arguments of ``dstreams kafka``."""
    command.description = (
        "Shows how far the batches of a stream or query have read its topics, by partition: "
        "committed and planned offsets. With brokers, also their end offsets and the lag."
    )
    command.add_below(["/data/app --bootstrap-server localhost:9092"], _KAFKA_STATUS)
    command.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    command.add_argument("--stream", metavar="ID", help="id of the stream (default: the newest)")
    add_brokers(command, "brokers to compare with")
    command.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    command.set_defaults(run=_kafka, invalid_status=MISUSED)


def _kafka(options: argparse.Namespace) -> int:
    from dstreams.kafka.offsets_report import OffsetsQuestion, show_offsets

    question = OffsetsQuestion(
        options.url, options.stream, options.bootstrap_server, options.config, as_json=options.json
    )
    return SUCCEEDED if show_offsets(question, sys.stdout) else FAILED


def configure_completion(command: CommandParser) -> None:
    """Add the arguments of ``dstreams completion``."""
    command.description = _COMPLETION
    command.add_below(["bash"], None)
    command.add_argument("shell", choices=["bash", "zsh"], help="the shell")
    command.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    from dstreams.cli.main import parser

    sys.stdout.write(completion_script(parser(), options.shell))
    return SUCCEEDED


def completion_script(parser: CommandParser, shell: str) -> str:
    """Return the completion script of a parser."""
    import shtab

    for action in _actions(parser):
        if action.metavar in (*_FILES, *_DIRECTORIES):
            is_file = action.metavar in _FILES
            action.complete = shtab.FILE if is_file else shtab.DIR  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for row in action._choices_actions:
                action.choices[row.dest].description = row.help
    return f"{shtab.complete(parser, shell).rstrip()}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
