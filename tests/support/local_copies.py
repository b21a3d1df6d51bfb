"""What tests do with local copies: close all of them, and sweep again in the same process."""

from __future__ import annotations

from checkpoint.state_store import LmdbBases, environments, maintenance
from checkpoint.state_store.local_directory import boot_id


def close_unused() -> None:
    """Close all environments of this process that nobody has now."""
    table = environments._table
    with table.lock:
        for path in [path for path, other in table.open.items() if not other.users]:
            table.open.pop(path).env.close()


def sweep_local(bases: LmdbBases) -> list[str]:
    """Sweep however often that was done, and return the paths that were deleted."""
    boot = bases.boot or boot_id()
    return maintenance._sweep(bases.local_directory, boot, bases.settings.unused_ms)
