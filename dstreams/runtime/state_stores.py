"""Where stored state is kept: files for all hosts, and a copy on each host that has it warm."""

from __future__ import annotations

from checkpoint import Files
from checkpoint.state_store import Classes
from dstreams.graph.plan import Plan
from dstreams.graph.stored_states import StoredStates
from dstreams.rdd.state_stores import open_store
from dstreams.settings import Settings


def open_states(
    plan: Plan,
    stream_id: str,
    files: Files | None,
    settings: Settings,
    epoch: int,
    classes: Classes,
) -> StoredStates | None:
    """Return the stored states of a stream, all of them empty; None for a plan that has none.

    Args:
        plan: the frozen graph.
        stream_id: identity of the stream.
        files: the directory of the stream, reachable from driver and executors.
        settings: how values are encoded, and where hosts keep their copies.
        epoch: epoch of this driver.
        classes: the classes of data that the program names.
    """
    if files is None or not plan.stored():
        return None
    directory = settings.state_local_directory
    store = open_store(
        files,
        epoch,
        settings.state_values,
        directory,
        settings.state_checksums,
        settings.state_local_retention_ms,
        classes,
    )
    uids = {node: plan.nodes[node].uid for node in plan.stored()}
    return StoredStates(store, stream_id, uids, plan.zero_ms)
