"""``dstreams kafka``: compare the offsets of a checkpoint with those of the brokers."""

from __future__ import annotations

import argparse
import sys

from checkpoint.cli import CommandParser
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, add_brokers
from dstreams.kafka.offsets_report import OffsetsQuestion, show_offsets

_STATUS = """\
A config file has lines name=value with the names of Kafka's clients: bootstrap.servers,
security.protocol, sasl.password and so on. Its values are never printed, and may be ${env:NAME}.

exit status:
  0    every partition can resume at its offset
  1    a partition cannot, as its line explains; or the brokers do not answer, or a file is damaged
  2    usage error, or no such checkpoint, or none that reads Kafka
  3    the Kafka client is not installed on this machine
  130  interrupted by Ctrl-C
"""


def configure(command: CommandParser) -> None:
    """Add the arguments of the command."""
    command.description = (
        "Shows how far the batches of a stream or query have read its topics, by partition: "
        "committed and planned offsets. With brokers, also their end offsets and the lag."
    )
    command.add_below(["/data/app --bootstrap-server localhost:9092"], _STATUS)
    command.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    command.add_argument("--stream", metavar="ID", help="id of the stream (default: the newest)")
    add_brokers(command, "brokers to compare with")
    command.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    command.set_defaults(run=_run, invalid_status=MISUSED)


def _run(options: argparse.Namespace) -> int:
    question = OffsetsQuestion(
        options.url, options.stream, options.bootstrap_server, options.config, as_json=options.json
    )
    return SUCCEEDED if show_offsets(question, sys.stdout) else FAILED
