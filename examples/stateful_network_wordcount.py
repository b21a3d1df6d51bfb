"""Count the words that a server sends, over the whole life of the stream.

    nc -lk 9999
    python examples/stateful_network_wordcount.py localhost 9999

Type lines into the first terminal. The second one prints the counts so far once per second. Ctrl-C
stops it. CHECKPOINT_DIR keeps the counts; by default it is a temporary directory.
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

from dstreams import StreamingContext, tuned_context


def update(new_ones: list[int], count: int | None) -> int:
    """Return the new count of a word. Called for every known word in every batch."""
    return sum(new_ones) + (count or 0)


def count_words(host: str, port: int, checkpoint_dir: str) -> None:
    """Run until Ctrl-C or SIGTERM."""
    sc = tuned_context("stateful_network_wordcount")
    ssc = StreamingContext(sc, batchDuration=1)
    ssc.checkpoint(checkpoint_dir)

    lines = ssc.socketTextStream(host, port)
    pairs = lines.flatMap(str.split).map(lambda word: (word, 1))
    pairs.updateStateByKey(update).pprint()

    ssc.start()
    ssc.awaitTermination()
    sc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("checkpoint_dir", nargs="?")
    args = parser.parse_args()
    with TemporaryDirectory() as scratch:
        count_words(args.host, args.port, args.checkpoint_dir or scratch)
