"""A driver without Spark that counts batches; a file in its directory sets its behaviour.

It takes the arguments of the real one. ``behaviour`` holds one of: well, slow, ends, stubborn,
failing, runs dry, forgetful (reruns a completed batch), unfenced (continues after another driver
took over), behind (its first batches are old, and a stop times out), further behind (the same, and
does not catch up).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

STEPS_OF_A_STOP = ("before the checkpoint at the end",)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pipe", type=int)
    parser.add_argument("--step")
    parser.add_argument("--app")
    options = parser.parse_args()
    behaviour = (options.directory / "behaviour").read_text()
    count, owner, times = (options.directory / name for name in ("count", "owner", "times"))
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: sys.exit(0)
    )
    if options.step == "rec.load":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(owner, str(os.getpid()))
    batches = 0
    again_ms = int(times.read_text()) if behaviour == "forgetful" and times.exists() else None
    while True:
        os.write(options.pipe, b"step clean.done\n")
        time.sleep(0.02)  # what a batch takes
        if behaviour == "slow" or (behaviour == "runs dry" and batches > 30):
            continue
        if behaviour != "unfenced" and owner.read_text() != str(os.getpid()):
            os.write(options.pipe, b"failed process 7 has taken over\n")
            sys.exit("replaced")
        batches += 1
        os.write(options.pipe, b"step commit.start\n")
        now_ms = time.time_ns() // 10**6
        time_ms, again_ms = again_ms or now_ms, None
        if behaviour.endswith("behind"):
            in_stop = options.step in STEPS_OF_A_STOP
            behind_ms = 100_000 if in_stop else 0
            if behaviour == "behind":
                behind_ms = max(0, 100_000 - 10_000 * batches)
            time_ms = now_ms - behind_ms
            if in_stop and behind_ms <= 60_000:
                signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        last = add_one(count)
        replace(times, str(time_ms))
        os.write(options.pipe, b"batch %d\n" % time_ms)
        if behaviour == "ends" and last > 20:
            sys.exit("no more\nof this")
        if behaviour == "failing" and last % 10 == 0:
            os.write(options.pipe, b"failed it was\n")
        if options.step == "commit.start":
            os.kill(os.getpid(), signal.SIGKILL)


def add_one(count: Path) -> int:
    """Count a batch, and return their number; one that was replaced may count at the same time."""
    with count.open("ab") as file:
        file.write(b".")
        file.flush()
        return file.tell()


def replace(file: Path, text: str) -> None:
    """Write a file that is whole, whenever this process is killed."""
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(text)
    new.replace(file)


if __name__ == "__main__":
    main()
