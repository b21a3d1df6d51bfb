"""Memory of workers for a batch of 5,000,000 records in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext

from dstreams.testing import run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
np = pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")

RECORDS, BLOCKS, KEYS = 5_000_000, 80, 1_000_000
LIMIT_KB = 512 << 10


def block_of(number: int) -> Any:
    """Return a block of the batch; each key has five records in it."""
    count = RECORDS // BLOCKS
    keys = np.arange(number * count, (number + 1) * count) % KEYS
    texts = pc.binary_join_element_wise("key", pa.array(keys).cast(pa.string()), "-")
    return pa.record_batch({"key": texts, "value": np.ones(count, np.int64)})


def blocks_of(numbers: Iterator[int]) -> Iterator[Any]:
    return map(block_of, numbers)


def add(keys: Any, values: Any, state: Any) -> Any:
    """The running sum of each key."""
    total = pc.add(pc.fill_null(state.column("total"), 0), pc.fill_null(values.sum("value"), 0))
    return pa.record_batch({"total": total})


def look(block: Any) -> Any:
    """Return how many keys a block of the state has, and their sum."""
    return pa.record_batch({"keys": [block.num_rows], "sum": [pc.sum(block.column("total"))]})


def workers() -> list[psutil.Process]:
    """Return the Python workers of this process, which a daemon has forked, and no daemon."""
    found = {
        child.pid: child
        for child in psutil.Process().children(recursive=True)
        if any(word.endswith("daemon") for word in command_of(child))
    }
    return [child for child in found.values() if child.ppid() in found]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended
        return []


def peak_kb(worker: psutil.Process) -> int:
    lines = Path(f"/proc/{worker.pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.deep
def test_a_large_batch_in_small_workers(sc: SparkContext) -> None:
    """No worker holds more than 512 MB at any time, whichever part of the batch it does."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not report the memory of processes")
    old = workers()
    for worker in old:  # new ones hold nothing of the tests before
        worker.kill()
    psutil.wait_procs(old, timeout=300)
    numbers = [sc.parallelize(range(BLOCKS), 2).mapPartitions(blocks_of) for _ in range(2)]
    seen = run_batches(
        sc,
        numbers,
        lambda blocks: (
            blocks.toBlocks({"key": str, "value": int})
            .updateStateByKey(add, 2, key="key", state={"total": int})
            .mapBlocks(look)
            .toRows()
        ),
    )
    assert [tuple(map(sum, zip(*batch, strict=True))) for batch in seen] == [
        (KEYS, RECORDS),
        (KEYS, 2 * RECORDS),
    ]
    peaks = [peak_kb(worker) for worker in workers()]
    assert peaks
    assert max(peaks) <= LIMIT_KB, peaks
