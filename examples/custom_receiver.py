"""Count the words that a server sends, batch by batch, with a custom receiver.

    nc -lk 9999
    python examples/custom_receiver.py localhost 9999

The receiver runs in the driver, on its own thread. A line counts as received when ``storeAll`` has
returned; a receiver for a message queue would acknowledge it then. Ctrl-C stops the program.
"""

from __future__ import annotations

import argparse
import socket
import threading

from dstreams import Receiver, StreamingContext, tuned_context


class Lines(Receiver):
    """Stores each line that a server sends, and reconnects when the connection ends."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self.address = (host, port)

    def onStart(self) -> None:
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def onStop(self) -> None:
        self.thread.join()

    def receive(self) -> None:
        try:
            with socket.create_connection(self.address, timeout=1) as connection:
                unfinished = b""
                while not self.isStopped():
                    try:
                        data = connection.recv(65536)
                    except TimeoutError:
                        continue  # check isStopped() again
                    if not data:
                        break
                    *lines, unfinished = (unfinished + data).split(b"\n")
                    self.storeAll(line.decode() for line in lines)
            self.restart("the connection has ended")
        except OSError as error:
            self.restart(f"cannot receive from {self.address}", error)


def count_words(host: str, port: int) -> None:
    """Run until Ctrl-C or SIGTERM."""
    sc = tuned_context("custom_receiver", "local[2,4]")
    ssc = StreamingContext(sc, batchDuration=1)

    lines = ssc.receiverStream(Lines(host, port))
    pairs = lines.flatMap(str.split).map(lambda word: (word, 1))
    pairs.reduceByKey(lambda a, b: a + b).pprint()

    ssc.start()
    ssc.awaitTermination()
    sc.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    args = parser.parse_args()
    count_words(args.host, args.port)
