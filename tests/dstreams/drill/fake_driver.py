"""A driver without Spark: it counts batches, and behaves as a file in its directory says.

It takes the arguments of the real one. ``behaviour`` holds one of: well, slow, ends, stubborn,
failing, runs dry.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pipe", type=int)
    parser.add_argument("--step")
    parser.add_argument("--app")
    options = parser.parse_args()
    behaviour = (options.directory / "behaviour").read_text()
    count = options.directory / "count"
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: sys.exit(0)
    )
    if options.step == "rec.load":
        os.kill(os.getpid(), signal.SIGKILL)
    batches = 0
    while True:
        time.sleep(0.02)
        if behaviour == "slow" or (behaviour == "runs dry" and batches > 30):
            continue
        batches += 1
        number = int(count.read_text()) + 1 if count.exists() else 1
        count.with_suffix(".new").write_text(str(number))
        count.with_suffix(".new").replace(count)  # whole, whenever this process is killed
        os.write(options.pipe, b"batch %d\n" % (time.time_ns() // 10**6))
        if behaviour == "ends" and number > 20:
            sys.exit("no more\nof this")
        if behaviour == "failing" and number % 10 == 0:
            os.write(options.pipe, b"failed it was\n")
        if options.step == "commit.start":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
