"""A process that commits batches of a store until it is killed; run by test_kills.py.

Usage: python state_writer.py FILES LOCAL EPOCH
"""

from __future__ import annotations

import sys

from checkpoint import CommitLog, open_files
from checkpoint.log.batch_records import STORE_PREFIX
from checkpoint.state_store.lmdb_backend import LmdbBackend, LocalSettings
from checkpoint.state_store.maintenance import SnapshotRule, compact_if_due, snapshot_if_due
from checkpoint.state_store.retention import apply_retention, plan_store_retention
from tests.support.stores import named, require_open, run_batch, store_of

STORES = (store_of(0, 2), store_of(1, 2))


def main(url: str, local: str, epoch: int) -> None:
    files = open_files(url)
    settings = LocalSettings(first_map_bytes=1 << 20, writes_through_map=bool(epoch % 2))
    backend = LmdbBackend(files, local, epoch, settings, caches_changelogs=True)
    log = CommitLog(files)
    while True:
        time_ms = run_batch(files, backend, STORES, epoch)
        print(time_ms, flush=True)
        for store, version_id in named(log.latest(), STORES).items():
            require_open(backend, store, version_id)
            snapshot_if_due(backend, store, version_id, SnapshotRule(2, 3))
            compact_if_due(backend, store, min_bytes=1)
        records = [log.read(time) for time in log.times()]
        plan = plan_store_retention(records, files.list(STORE_PREFIX), time_ms - 2000, epoch)
        apply_retention(log, plan, epoch)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
