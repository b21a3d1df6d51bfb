"""``demo``: words are counted, and the counts are checked."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from dstreams.cli.common import (
    FAILED,
    MISUSED,
    SUCCEEDED,
    Commands,
    add_config,
    add_quiet,
    brokers,
    complain,
    cores,
    megabytes,
    seconds,
)
from dstreams.cli.demo.word_count import run_demo
from dstreams.kafka.parameters import KafkaParameters, client_settings
from dstreams.monitoring.web.page import page

_STATUS = """\
exit status:
  0    the streamed counts are those of the independent count
  1    they differ, or the stream failed
  2    the command was used wrongly
  3    Java, Spark, the text or, with --kafka, Kafka is missing here
  130  interrupted by Ctrl-C or SIGTERM
"""


def add_demo(commands: Commands) -> None:
    """Add the command to a parser."""
    demo = commands.add_parser(
        "demo",
        help="count words over a socket or through Kafka, and check the counts",
        description=(
            "Counts the words of the standard library's sources, sent over a TCP socket of this "
            "machine or through a topic of Kafka, with updateStateByKey, and compares the result "
            "with an independent count."
        ),
        examples=["--megabytes 1", "--kafka localhost:9092 --json"],
        epilog=_STATUS,
    )
    demo.add_argument(
        "--megabytes",
        type=megabytes,
        default=10.0,
        metavar="N",
        help="how much text to send at most (default: %(default)g)",
    )
    demo.add_argument(
        "--cores",
        type=cores,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="tasks that Spark runs at a time, on this machine (default here: %(default)s)",
    )
    demo.add_argument(
        "--timeout",
        type=seconds,
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
    add_config(demo)
    demo.add_argument(
        "--json", action="store_true", help="for programs: a line for each batch, and the result"
    )
    add_quiet(demo)
    demo.add_argument(
        "--stay", action="store_true", help="keep the page after the result, until Ctrl-C"
    )
    demo.set_defaults(run=_demo, invalid_status=MISUSED)


def _demo(options: argparse.Namespace) -> int:
    # The process is the demo's own, and nobody misses what a stop leaves of its text.
    logging.getLogger("dstreams.engine.lifecycle").setLevel(logging.ERROR)
    if options.config is not None and options.kafka is None:
        return complain("demo", "--config is for brokers of Kafka: give --kafka, too", MISUSED)
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


def _brokers(text: str) -> str:
    return brokers(text) if text else text  # none: a cluster of the demo's own
