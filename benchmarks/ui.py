"""Benchmark: the cost of the live page, with 50 open pages and with 1,000 scrapes a minute.

One stream with ``updateStateByKey`` runs in this process, at most four batches per second. In turn,
for several rounds, there are no clients, open pages in another process, and another process that
scrapes ``/metrics``. The figures are the median and mean time of a batch, and the CPU time of the
driver's Python per batch, everything included.

    python benchmarks/ui.py                        # a minute of each, in four rounds
    python benchmarks/ui.py --rounds 1 --seconds 5

A page is a connection that reads all events but renders nothing, to leave the processors to the
driver.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

PAGES = 50
SCRAPES_A_MINUTE = 1000
PERIOD_S = 0.25
KEYS = 2000
ASKED = 1.05
"""The limit for the added time of a batch with 50 pages."""


@dataclass
class Side:
    """The measurements with one kind of client.

    Args:
        visitor: the kind of client in the other process; None without clients.
        times_s: of each batch.
        cpu_s: processor time of the driver's Python.
        told: the report of the other process.
    """

    visitor: str | None
    times_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    told: list[str] = field(default_factory=list)


SIDES = {"nobody": None, f"{PAGES} pages": "pages", "scrapes": "scrapes"}


def add(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def measure(rounds: int, seconds: float) -> dict[str, Side]:
    """Run all sides in turn, on one stream."""
    from dstreams import Settings, StreamingContext, tuned_context

    sides = {name: Side(visitor) for name, visitor in SIDES.items()}
    sc = tuned_context("benchmark of the page", "local[2,4]")
    settings = Settings(ui_enabled=True, ui_port=0)
    with tempfile.TemporaryDirectory() as directory:
        ssc = StreamingContext(sc, PERIOD_S, settings=settings)
        ssc.checkpoint(directory)
        pairs = sc.parallelize([(n, 1) for n in range(KEYS)], 2).cache()
        stream = ssc.queueStream([pairs], oneAtATime=True, default=pairs)
        stream.updateStateByKey(add, uid="counts").foreachRDD(lambda rdd: rdd.count())
        ssc.step(40)
        for _ in range(rounds):
            for side in sides.values():
                run(ssc, side, seconds)
        ssc.stop(stopSparkContext=False)
    sc.stop()
    return sides


def run(ssc, side: Side, seconds: float) -> None:
    visitors = None
    if side.visitor is not None:
        command = [sys.executable, __file__, "--visit", side.visitor, ssc.uiWebUrl, str(seconds)]
        visitors = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert visitors.stdout is not None
        visitors.stdout.readline()  # all are there
    cpu_s, end_s = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.perf_counter()
        ssc.step()
        took_s = time.perf_counter() - began_s
        side.times_s.append(took_s)
        time.sleep(max(0.0, PERIOD_S - took_s))
    side.cpu_s += time.process_time() - cpu_s
    if visitors is not None:
        side.told.append(visitors.communicate()[0].strip())


async def visit(what: str, port: int, seconds: float) -> None:
    """Run the clients, and print their report."""
    request = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if what == "pages":
        events = [0] * PAGES
        pages = []
        for number in range(PAGES):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
            writer.write(request.format("/events").encode())
            pages.append((asyncio.ensure_future(count_events(reader, events, number)), writer))
        while not all(events):
            await asyncio.sleep(0.01)
        print("there", flush=True)
        before = list(events)
        await asyncio.sleep(seconds)
        seen = [now - then for now, then in zip(events, before, strict=True)]
        print(f"{min(seen)} to {max(seen)} events a page")
        for page, _ in pages:
            page.cancel()
        return
    print("there", flush=True)
    end_s, count, times_s = time.monotonic() + seconds, 0, []
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.format("/metrics").encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:100]
        writer.close()
        count += 1
        times_s.append(time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, 60 / SCRAPES_A_MINUTE - times_s[-1]))
    print(f"{count} scrapes, {1000 * statistics.median(times_s):.1f} ms each")


async def count_events(reader: asyncio.StreamReader, events: list[int], page: int) -> None:
    while line := await reader.readline():
        events[page] += line.startswith(b"data: ")


def main() -> int:
    """Run the cases selected on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15, help="of each side in a round")
    parser.add_argument("--visit", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.visit:
        what, url, seconds = arguments.visit
        asyncio.run(visit(what, int(url.rpartition(":")[2]), float(seconds)))
        return 0
    sides = measure(arguments.rounds, arguments.seconds)
    print(f"{'who looks':>10} {'batches':>8} {'median':>7} {'mean':>7} {'cpu':>7}   (ms a batch)")
    for name, side in sides.items():
        median, mean = statistics.median(side.times_s), statistics.mean(side.times_s)
        cpu = side.cpu_s / len(side.times_s)
        told = "; ".join(side.told)
        print(
            f"{name:>10} {len(side.times_s):>8} {median * 1000:>7.1f} {mean * 1000:>7.1f} "
            f"{cpu * 1000:>7.1f}   {told}"
        )
    alone, *others = (statistics.median(side.times_s) for side in sides.values())
    for name, median in zip(list(sides)[1:], others, strict=True):
        print(f"{name:>10} {median / alone:.3f} times as long   (asked: {ASKED} at most)")
    return 0 if all(median <= ASKED * alone for median in others) else 1


if __name__ == "__main__":
    sys.exit(main())
