"""Benchmark: JSON lines to a keyed count by window, in rows and in blocks.

    python benchmarks/json_lines.py             # files of 200,000 lines a batch
    python benchmarks/json_lines.py --records 50000 --batches 5
    python benchmarks/json_lines.py --formats   # decoding alone, without Spark

Both sides run in child processes of one run, on the same files, with the same settings of Spark.
Rows: ``json.loads`` for each line, a pair, ``reduceByKeyAndWindow`` with its inverse. Blocks:
``toBlocks(format="json")`` with all members of a line as columns, ``aggregateByKeyAndWindow``. Two
more sides have only the counted member as a column, and lines read by the JVM. A batch is one step,
from listing files to its commit. The table has the median time of a batch and the mean CPU time of
all processes: the driver, the JVM, the workers. Other load on the machine changes the time more
than the CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from operator import add, sub
from pathlib import Path
from typing import Any

import psutil
from where import cpu_of_all

KEYS = 1_000
WINDOW = 5
CONTENTS = 4
"""Files that differ; batches have two of them in turn."""


def lines_of(records: int, seed: int) -> bytes:
    rng = random.Random(seed)
    return "".join(f"{json.dumps(record(rng))}\n" for _ in range(records)).encode()


def put(path: Path, content: bytes) -> None:
    """Move a complete file to the input of a stream."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(content)
    hidden.rename(path)


def record(rng: random.Random) -> dict[str, Any]:
    return {
        "shop": f"shop-{rng.randrange(KEYS)}",
        "cents": rng.randrange(100_000),
        "discount": round(rng.random(), 3),
        "at": f"2026-01-02T03:04:{rng.randrange(60):02}.{rng.randrange(10**6):06}Z",
    }


def pair_of(line: str) -> tuple[str, int]:
    return json.loads(line)["shop"], 1


def schema() -> Any:
    import pyarrow as pa

    return {"shop": str, "cents": int, "discount": float, "at": pa.timestamp("us", "UTC")}


def rows(lines: Any) -> Any:
    return lines.map(pair_of).reduceByKeyAndWindow(add, sub, WINDOW)


def blocks(lines: Any, columns: Any = None) -> Any:
    from dstreams.arrow.aggregates import Count

    decoded = lines.toBlocks(columns or schema(), format="json")
    return decoded.aggregateByKeyAndWindow("shop", WINDOW, sales=Count()).toRows()


def blocks_of_one(lines: Any) -> Any:
    return blocks(lines, {"shop": str})


SIDES: dict[str, Callable[[Any], Any]] = {
    "rows": rows,
    "blocks": blocks,
    "one column": blocks_of_one,
    "lines of the JVM": blocks,
}
JVM_READS = "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength"
"""A setting that workers leave to the JVM; the value below is its default."""


def run_side(side: str, records: int, warm_up: int, batches: int) -> None:
    """Run one side, and print its figures as JSON."""
    from dstreams import StreamingContext, tuned_context

    settings = {"spark.default.parallelism": "2"}
    if side == "lines of the JVM":
        settings[JVM_READS] = str(2**31 - 1)
    spark = tuned_context("json lines", "local[2]", settings)
    spark.setLogLevel("ERROR")
    me = psutil.Process()
    times, cpus = [], []
    parts: list[dict[str, float]] = []
    contents = [lines_of(records // 2, seed) for seed in range(CONTENTS)]
    with tempfile.TemporaryDirectory() as directory:
        ssc = StreamingContext(spark, 1)
        ssc.checkpoint(f"{directory}/checkpoint")
        source = Path(directory, "input")
        source.mkdir()
        lines = ssc.fileStream(str(source), newFilesOnly=False, maxFileAge=float("inf"))
        window = SIDES[side](lines)
        found: list[dict[str, int]] = []
        window.foreachRDD(lambda rdd: found.append(dict(rdd.collect())))
        for batch in range(warm_up + batches):
            for part in range(2):
                put(source / f"{batch}-{part}", contents[(batch + part) % CONTENTS])
            if batch % 4 == 3:  # measured separately: reading all threads takes time
                before = cpu_of_all()
                ssc.step()
                after = cpu_of_all()
                parts.append({who: ms - before.get(who, 0.0) for who, ms in after.items()})
                continue
            cpu, begun = cpu_s(me), time.perf_counter()
            ssc.step()
            times.append(time.perf_counter() - begun)
            cpus.append(cpu_s(me) - cpu)
        ssc.stop()
    total = sum(found[-1].values())
    assert total == WINDOW * (records // 2) * 2, total
    measured = slice(-(batches - batches // 4), None)
    said = {
        "time_ms": 1000 * statistics.median(times[measured]),
        # Clocks of processes go by hundredths of a second, so the mean of many says more.
        "cpu_ms": 1000 * statistics.mean(cpus[measured]),
        "parts": {
            who: statistics.median(one.get(who, 0.0) for one in parts[-(batches // 4) :])
            for who in parts[-1]
        },
        "checksum": sorted(found[-1].items())[:3],
    }
    print(json.dumps(said))


def cpu_s(me: psutil.Process) -> float:
    """Return the CPU seconds of a process and all of its children, including ended ones."""
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


def print_formats(records: int) -> None:
    """Print the CPU time of decoding with several libraries, in one process."""
    import msgspec
    import polars
    import pyarrow as pa
    from pyarrow import json as arrow_json

    from dstreams.arrow.decode_lines import decoder_of
    from dstreams.arrow.schemas import schema_of

    rng = random.Random(1)
    lines = [json.dumps(record(rng)).encode() for _ in range(records)]
    text = b"\n".join(lines)
    columns = schema_of(schema(), "benchmark")
    as_text = pa.schema([f if f.name != "at" else pa.field("at", pa.string()) for f in columns])
    options = arrow_json.ParseOptions(explicit_schema=as_text)
    in_one = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    of_polars = {"shop": polars.String, "cents": polars.Int64, "discount": polars.Float64}
    struct = msgspec.defstruct(
        "Sale", [("shop", str), ("cents", int), ("discount", float), ("at", str)]
    )
    decode_lines = msgspec.json.Decoder(struct).decode_lines
    decoder = decoder_of("json", columns, "benchmark")
    cases: dict[str, Callable[[], Any]] = {
        "json.loads": lambda: [json.loads(line) for line in lines],
        "msgspec, objects": lambda: decode_lines(text),
        "polars": lambda: polars.read_ndjson(text, schema={**of_polars, "at": polars.String}),
        "pyarrow": lambda: arrow_json.read_json(pa.BufferReader(text), in_one, options),
        "toBlocks, checked": lambda: [
            decoder.decode(lines[at : at + 16_384]) for at in range(0, records, 16_384)
        ],
    }
    print(f"{records:,} lines of {len(text) // records} bytes, CPU time of one process, best of 5:")
    for name, run in cases.items():
        best = min(timed(run) for _ in range(5))
        print(f"  {name:20} {1000 * best:6.1f} ms  {1e6 * best / records:5.2f} us a line")


def timed(run: Callable[[], Any]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=200_000, help="lines of a batch")
    parser.add_argument("--batches", type=int, default=12, help="batches that are measured")
    parser.add_argument("--warm-up", type=int, default=30, help="batches before, a window or more")
    parser.add_argument("--formats", action="store_true", help="decoding alone")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.formats:
        print_formats(given.records)
        return
    if given.side:
        run_side(given.side, given.records, given.warm_up, given.batches)
        return
    found = {}
    for side in given.sides:
        command = [sys.executable, __file__, "--side", side]
        command += ["--records", str(given.records), "--batches", str(given.batches)]
        command += ["--warm-up", str(given.warm_up)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        found[side] = json.loads(done.stdout.splitlines()[-1])
    assert len({str(said["checksum"]) for said in found.values()}) == 1
    print(f"{given.records:,} lines a batch, {KEYS:,} keys, a window of {WINDOW} batches")
    first = found[given.sides[0]]
    for side, said in found.items():
        ms, cpu = said["time_ms"], said["cpu_ms"]
        times = f"{first['time_ms'] / ms:4.1f} and {first['cpu_ms'] / cpu:4.1f} times"
        print(f"  {side:16} {ms:8.0f} ms a batch  {cpu:8.0f} ms of CPU  {times}")
    print("CPU by process, in the JVM by thread, ms")
    for side, said in found.items():
        parts = sorted(said["parts"].items(), key=lambda part: -part[1])
        print(f"  {side:16} {', '.join(f'{who} {ms:.0f}' for who, ms in parts if ms >= 1)}")


if __name__ == "__main__":
    main()
