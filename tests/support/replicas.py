"""What tests do with replicas: close all of them, and sweep again in the same process."""

from __future__ import annotations

from checkpoint.state_store import LmdbBackend, maintenance, replica_files
from checkpoint.state_store.replica_files import boot_id


def close_unused() -> None:
    """Close all environments of this process that nobody has now."""
    table = replica_files._table
    with table.lock:
        for path in [path for path, other in table.open.items() if not other.users]:
            table.open.pop(path).env.close()


def sweep_local(backend: LmdbBackend) -> list[str]:
    """Sweep however often that was done, and return the paths that were deleted."""
    boot = backend.boot or boot_id()
    return maintenance._sweep(backend.local_directory, boot, backend.settings.unused_ms)
