"""Durable state without Spark: files created once, framed and checksummed, and a commit log.

Tasks write one state file for each partition, each under a unique name, and return references. The
driver commits a record that names the files that count. Readers follow the newest record, so they
never see files that a dead task or driver left behind. Everything is plain Python on :class:`Files`
(a local directory, or an object store through fsspec), never unpickles a file, and runs the same on
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

from checkpoint.errors import (
    AlreadyExistsError,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    NotDurableError,
    StorageRefusedError,
    StorageUncertainError,
    UntrustedFileError,
)
from checkpoint.log.batch_records import (
    INPUTS_NEEDED_AFTER,
    BeginRecord,
    CommitLog,
    CommitRecord,
    OperatorSnapshot,
    begin_file,
)
from checkpoint.log.block_formats import (
    PairBlock,
    PairForm,
    arrow_metadata,
    arrow_side,
    pair_header,
    rows_of_fields,
    with_origin,
)
from checkpoint.log.fencing import DriverProcess
from checkpoint.log.graph_record import (
    GraphSnapshot,
    all_graphs,
    drop_graphs,
    read_graph,
    read_newest_graph,
    write_graph,
)
from checkpoint.log.inputs import (
    INPUT_BLOCKS,
    INPUT_END,
    INPUT_FILES,
    INPUT_START,
    InputPast,
    InputSnapshots,
    ReceivedBlocks,
    blocks_in,
    files_in,
)
from checkpoint.log.record_files import RecordId
from checkpoint.log.recovery import (
    OwnedStream,
    RecoveryPlan,
    StreamLog,
    began_ms,
    newest_stream,
    open_stream,
    plan_recovery,
    read_log,
    read_plan,
    stream_ids,
    stream_url,
    take_over,
)
from checkpoint.log.state_files import (
    StateFileId,
    StatePartition,
    new_attempt,
    read_state_file,
    state_files_of,
    write_state_file,
)
from checkpoint.log.version_records import PartitionCommit, StoreCommit
from checkpoint.storage.files import Files, PrefixedFiles
from checkpoint.storage.framing import MAX_BLOCK_BYTES, FileRef
from checkpoint.storage.fsspec_files import without_secrets
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.open_location import open_existing, open_files, open_output
from checkpoint.storage.signing import SignedFiles, SigningKey, unsigned
from checkpoint.storage.trust import require_trusted

__all__ = [
    "INPUTS_NEEDED_AFTER",
    "INPUT_BLOCKS",
    "INPUT_END",
    "INPUT_FILES",
    "INPUT_START",
    "MAX_BLOCK_BYTES",
    "AlreadyExistsError",
    "BeginRecord",
    "CheckpointError",
    "CommitLog",
    "CommitRecord",
    "ConcurrentWriterError",
    "CorruptCheckpointError",
    "DriverProcess",
    "FileRef",
    "Files",
    "GraphSnapshot",
    "InputPast",
    "InputSnapshots",
    "LocalFiles",
    "NotDurableError",
    "OperatorSnapshot",
    "OwnedStream",
    "PairBlock",
    "PairForm",
    "PartitionCommit",
    "PrefixedFiles",
    "ReceivedBlocks",
    "RecordId",
    "RecoveryPlan",
    "SignedFiles",
    "SigningKey",
    "StateFileId",
    "StatePartition",
    "StorageRefusedError",
    "StorageUncertainError",
    "StoreCommit",
    "StreamLog",
    "UntrustedFileError",
    "all_graphs",
    "arrow_metadata",
    "arrow_side",
    "began_ms",
    "begin_file",
    "blocks_in",
    "drop_graphs",
    "files_in",
    "new_attempt",
    "newest_stream",
    "open_existing",
    "open_files",
    "open_output",
    "open_stream",
    "pair_header",
    "plan_recovery",
    "read_graph",
    "read_log",
    "read_newest_graph",
    "read_plan",
    "read_state_file",
    "require_trusted",
    "rows_of_fields",
    "state_files_of",
    "stream_ids",
    "stream_url",
    "take_over",
    "unsigned",
    "with_origin",
    "without_secrets",
    "write_graph",
    "write_state_file",
]
