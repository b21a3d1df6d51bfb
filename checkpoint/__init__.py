"""Durable state without Spark: files created once, framed and checksummed, and a commit log.

Tasks write one state file for each partition, each under a unique name, and return references. The
driver commits a record that names the files that count. Readers follow the newest record, so they
never see files that a dead task or driver left behind. Everything is plain Python on :class:`Files`
(a local directory, HDFS, or an object store), never unpickles a file, and runs the same on
the driver, in a worker, and in a test without a JVM:

>>> files = open_files("memory://demo")
>>> def file_id(partition):
...     return StateFileId("stream-1", "counts", 2000, partition, 2, "stable", 1, new_attempt())
>>> refs = [write_state_file(files, file_id(p), [(b"some records", 3)]) for p in range(2)]
>>> log = CommitLog(files)
>>> counts = OperatorSnapshot("stable", tuple(refs))
>>> _ = log.commit(CommitRecord("stream-1", 1, 2000, 1, {"counts": counts}, {"python": "3.11"}))
>>> record = log.latest()
>>> record.batch_time_ms, sum(ref.records for ref in record.snapshots["counts"].files)
(2000, 6)
>>> wanted = StatePartition("stream-1", "counts", 2000, 0, 2, "stable")
>>> list(read_state_file(files, record.snapshots["counts"].files[0], wanted))
[b'some records']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoint.errors import AlreadyExistsError as AlreadyExistsError
    from checkpoint.errors import CheckpointError as CheckpointError
    from checkpoint.errors import ConcurrentWriterError as ConcurrentWriterError
    from checkpoint.errors import CorruptCheckpointError as CorruptCheckpointError
    from checkpoint.errors import NotDurableError as NotDurableError
    from checkpoint.errors import StorageRefusedError as StorageRefusedError
    from checkpoint.errors import StorageUncertainError as StorageUncertainError
    from checkpoint.errors import UntrustedFileError as UntrustedFileError
    from checkpoint.log.batch_records import INPUTS_NEEDED_AFTER as INPUTS_NEEDED_AFTER
    from checkpoint.log.batch_records import BeginRecord as BeginRecord
    from checkpoint.log.batch_records import CommitLog as CommitLog
    from checkpoint.log.batch_records import CommitRecord as CommitRecord
    from checkpoint.log.batch_records import OperatorSnapshot as OperatorSnapshot
    from checkpoint.log.batch_records import PartitionCommit as PartitionCommit
    from checkpoint.log.batch_records import StoreCommit as StoreCommit
    from checkpoint.log.batch_records import begin_file as begin_file
    from checkpoint.log.fencing import DriverProcess as DriverProcess
    from checkpoint.log.fencing import FenceChecks as FenceChecks
    from checkpoint.log.fencing import newest_driver as newest_driver
    from checkpoint.log.graph_record import GraphSnapshot as GraphSnapshot
    from checkpoint.log.graph_record import drop_graphs as drop_graphs
    from checkpoint.log.graph_record import read_newest_graph as read_newest_graph
    from checkpoint.log.graph_record import write_graph as write_graph
    from checkpoint.log.input_offsets import INPUT_BLOCKS as INPUT_BLOCKS
    from checkpoint.log.input_offsets import INPUT_END as INPUT_END
    from checkpoint.log.input_offsets import INPUT_FILES as INPUT_FILES
    from checkpoint.log.input_offsets import INPUT_START as INPUT_START
    from checkpoint.log.input_offsets import InputPast as InputPast
    from checkpoint.log.input_offsets import InputSnapshots as InputSnapshots
    from checkpoint.log.input_offsets import ReceivedBlocks as ReceivedBlocks
    from checkpoint.log.input_offsets import blocks_in as blocks_in
    from checkpoint.log.input_offsets import files_in as files_in
    from checkpoint.log.record_files import RecordId as RecordId
    from checkpoint.log.recovery import OwnedStream as OwnedStream
    from checkpoint.log.recovery import RecoveryPlan as RecoveryPlan
    from checkpoint.log.recovery import StreamLog as StreamLog
    from checkpoint.log.recovery import began_ms as began_ms
    from checkpoint.log.recovery import discard_stream as discard_stream
    from checkpoint.log.recovery import newest_stream as newest_stream
    from checkpoint.log.recovery import open_stream as open_stream
    from checkpoint.log.recovery import plan_recovery as plan_recovery
    from checkpoint.log.recovery import read_ahead as read_ahead
    from checkpoint.log.recovery import read_log as read_log
    from checkpoint.log.recovery import read_plan as read_plan
    from checkpoint.log.recovery import stream_ids as stream_ids
    from checkpoint.log.recovery import stream_url as stream_url
    from checkpoint.log.recovery import take_over as take_over
    from checkpoint.log.state_files import PairBlock as PairBlock
    from checkpoint.log.state_files import PairForm as PairForm
    from checkpoint.log.state_files import StateFileId as StateFileId
    from checkpoint.log.state_files import StatePartition as StatePartition
    from checkpoint.log.state_files import arrow_metadata as arrow_metadata
    from checkpoint.log.state_files import arrow_side as arrow_side
    from checkpoint.log.state_files import new_attempt as new_attempt
    from checkpoint.log.state_files import pair_header as pair_header
    from checkpoint.log.state_files import read_state_file as read_state_file
    from checkpoint.log.state_files import rows_of_fields as rows_of_fields
    from checkpoint.log.state_files import state_files_of as state_files_of
    from checkpoint.log.state_files import state_pairs as state_pairs
    from checkpoint.log.state_files import with_origin as with_origin
    from checkpoint.log.state_files import write_state_file as write_state_file
    from checkpoint.storage.files import Files as Files
    from checkpoint.storage.files import PrefixedFiles as PrefixedFiles
    from checkpoint.storage.files import without_secrets as without_secrets
    from checkpoint.storage.framing import MAX_BLOCK_BYTES as MAX_BLOCK_BYTES
    from checkpoint.storage.framing import FileRef as FileRef
    from checkpoint.storage.local_files import LocalFiles as LocalFiles
    from checkpoint.storage.open_location import open_existing as open_existing
    from checkpoint.storage.open_location import open_files as open_files
    from checkpoint.storage.open_location import open_output as open_output
    from checkpoint.storage.trust import SignedFiles as SignedFiles
    from checkpoint.storage.trust import SigningKey as SigningKey
    from checkpoint.storage.trust import require_trusted as require_trusted
    from checkpoint.storage.trust import unsigned as unsigned

_HOMES = {
    "AlreadyExistsError": "checkpoint.errors",
    "BeginRecord": "checkpoint.log.batch_records",
    "CheckpointError": "checkpoint.errors",
    "CommitLog": "checkpoint.log.batch_records",
    "CommitRecord": "checkpoint.log.batch_records",
    "ConcurrentWriterError": "checkpoint.errors",
    "CorruptCheckpointError": "checkpoint.errors",
    "DriverProcess": "checkpoint.log.fencing",
    "FenceChecks": "checkpoint.log.fencing",
    "FileRef": "checkpoint.storage.framing",
    "Files": "checkpoint.storage.files",
    "GraphSnapshot": "checkpoint.log.graph_record",
    "INPUTS_NEEDED_AFTER": "checkpoint.log.batch_records",
    "INPUT_BLOCKS": "checkpoint.log.input_offsets",
    "INPUT_END": "checkpoint.log.input_offsets",
    "INPUT_FILES": "checkpoint.log.input_offsets",
    "INPUT_START": "checkpoint.log.input_offsets",
    "InputPast": "checkpoint.log.input_offsets",
    "InputSnapshots": "checkpoint.log.input_offsets",
    "LocalFiles": "checkpoint.storage.local_files",
    "MAX_BLOCK_BYTES": "checkpoint.storage.framing",
    "NotDurableError": "checkpoint.errors",
    "OperatorSnapshot": "checkpoint.log.batch_records",
    "OwnedStream": "checkpoint.log.recovery",
    "PairBlock": "checkpoint.log.state_files",
    "PairForm": "checkpoint.log.state_files",
    "PartitionCommit": "checkpoint.log.batch_records",
    "PrefixedFiles": "checkpoint.storage.files",
    "ReceivedBlocks": "checkpoint.log.input_offsets",
    "RecordId": "checkpoint.log.record_files",
    "RecoveryPlan": "checkpoint.log.recovery",
    "SignedFiles": "checkpoint.storage.trust",
    "SigningKey": "checkpoint.storage.trust",
    "StateFileId": "checkpoint.log.state_files",
    "StatePartition": "checkpoint.log.state_files",
    "StorageRefusedError": "checkpoint.errors",
    "StorageUncertainError": "checkpoint.errors",
    "StoreCommit": "checkpoint.log.batch_records",
    "StreamLog": "checkpoint.log.recovery",
    "UntrustedFileError": "checkpoint.errors",
    "arrow_metadata": "checkpoint.log.state_files",
    "arrow_side": "checkpoint.log.state_files",
    "began_ms": "checkpoint.log.recovery",
    "begin_file": "checkpoint.log.batch_records",
    "blocks_in": "checkpoint.log.input_offsets",
    "discard_stream": "checkpoint.log.recovery",
    "drop_graphs": "checkpoint.log.graph_record",
    "files_in": "checkpoint.log.input_offsets",
    "new_attempt": "checkpoint.log.state_files",
    "newest_driver": "checkpoint.log.fencing",
    "newest_stream": "checkpoint.log.recovery",
    "open_existing": "checkpoint.storage.open_location",
    "open_files": "checkpoint.storage.open_location",
    "open_output": "checkpoint.storage.open_location",
    "open_stream": "checkpoint.log.recovery",
    "pair_header": "checkpoint.log.state_files",
    "plan_recovery": "checkpoint.log.recovery",
    "read_ahead": "checkpoint.log.recovery",
    "read_log": "checkpoint.log.recovery",
    "read_newest_graph": "checkpoint.log.graph_record",
    "read_plan": "checkpoint.log.recovery",
    "read_state_file": "checkpoint.log.state_files",
    "require_trusted": "checkpoint.storage.trust",
    "rows_of_fields": "checkpoint.log.state_files",
    "state_files_of": "checkpoint.log.state_files",
    "state_pairs": "checkpoint.log.state_files",
    "stream_ids": "checkpoint.log.recovery",
    "stream_url": "checkpoint.log.recovery",
    "take_over": "checkpoint.log.recovery",
    "unsigned": "checkpoint.storage.trust",
    "with_origin": "checkpoint.log.state_files",
    "without_secrets": "checkpoint.storage.files",
    "write_graph": "checkpoint.log.graph_record",
    "write_state_file": "checkpoint.log.state_files",
}
"""The module of each public name, which is imported when the name is first used."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
