"""``kafka``: offsets of a checkpoint beside those of the brokers."""

from __future__ import annotations

import argparse
import sys

from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, Commands, add_config, add_kafka
from dstreams.kafka.offsets_report import OffsetsQuestion, show_offsets

_STATUS = """\
A config file has lines name=value, by the names of Kafka's clients: bootstrap.servers,
security.protocol, sasl.password and so on. Nothing of it is printed; a value may be ${env:NAME}.

exit status:
  0    done: each partition can go on where it is
  1    one cannot, and the line says why; or the brokers do not answer, or a file is damaged
  2    the command was used wrongly, or there is no checkpoint, or none that reads Kafka
  3    the client of Kafka is missing on this machine
  130  interrupted by Ctrl-C
"""


def add_kafka_offsets(commands: Commands) -> None:
    """Add the command to a parser."""
    kafka = commands.add_parser(
        "kafka",
        help="offsets of a checkpoint beside those of the brokers; lag",
        description=(
            "Shows up to where batches of a stream or query have read its topics, by partition: "
            "committed, and begun. Where brokers are given, also what they have, and the lag."
        ),
        examples=["/data/app --kafka localhost:9092"],
        epilog=_STATUS,
    )
    kafka.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    kafka.add_argument("--stream", metavar="ID", help="id of the stream; the newest one by default")
    add_kafka(kafka, "brokers to ask")
    kafka.add_argument("--bootstrap", dest="kafka", help=argparse.SUPPRESS)  # its older name
    add_config(kafka)
    kafka.add_argument("--json", action="store_true", help="for programs")
    kafka.set_defaults(run=_kafka, invalid_status=MISUSED)


def _kafka(options: argparse.Namespace) -> int:
    question = OffsetsQuestion(
        options.url, options.stream, options.kafka, options.config, as_json=options.json
    )
    return SUCCEEDED if show_offsets(question, sys.stdout) else FAILED
