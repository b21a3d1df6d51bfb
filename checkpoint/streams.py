"""Streams of a checkpoint: one directory for each, its life over all its restarts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from checkpoint.commit_log import COMMIT_PREFIX, COMMIT_SUFFIX
from checkpoint.fencing import CLAIM, EPOCH_PREFIX, epochs_with
from checkpoint.files import Files
from checkpoint.graph_snapshot import GRAPH_PREFIX, GRAPH_SUFFIX
from checkpoint.opening import open_files
from checkpoint.record_files import record_ids

_STREAM = re.compile(r"(stream-(\d+)-[0-9a-f]+)/(.+)")
_CLAIM = re.compile(rf"(.+)/{EPOCH_PREFIX}\d{{10,}}\.{CLAIM}")


@dataclass(frozen=True)
class StreamDirectory:
    """A directory of a stream, as a listing shows it.

    Args:
        stream_id: id of the stream, and name of its directory.
        zero_ms: when it began, as its id says.
        epochs: claims in it.
        graphs: graph snapshots in it, void ones included.
        commits: commit records in it, void ones included.
        files: all files in it.
    """

    stream_id: str
    zero_ms: int
    epochs: int
    graphs: int
    commits: int
    files: int


def stream_url(url: str, stream_id: str) -> str:
    """Return the location of the directory of a stream."""
    return f"{url.rstrip('/')}/{stream_id}"


def list_streams(files: Files) -> list[StreamDirectory]:
    """Return the streams below the location of a checkpoint, oldest first.

    Args:
        files: the location that the streams were given, not that of one stream.
    """
    names: dict[tuple[int, str], list[str]] = {}
    for name in files.list(""):
        match = _STREAM.fullmatch(name)
        if match:
            names.setdefault((int(match[2]), match[1]), []).append(match[3])
    return [
        StreamDirectory(
            stream_id,
            zero_ms,
            len(epochs_with(inside, CLAIM)),
            len(record_ids(inside, GRAPH_PREFIX, GRAPH_SUFFIX)),
            len(record_ids(inside, COMMIT_PREFIX, COMMIT_SUFFIX)),
            len(inside),
        )
        for (zero_ms, stream_id), inside in sorted(names.items())
    ]


def list_claimed(files: Files) -> list[str]:
    """Return the directories below a location that a driver has claimed, whatever they are called.

    Such as the checkpoints of structured queries, which their users name.
    """
    return sorted({match[1] for match in map(_CLAIM.fullmatch, files.list("")) if match})


def newest_stream(url: str) -> StreamDirectory | None:
    """Return the newest stream that a restart can go on with: one that has a graph snapshot.

    Args:
        url: the location of the checkpoint.
    """
    with_graph = [stream for stream in list_streams(open_files(url)) if stream.graphs]
    return with_graph[-1] if with_graph else None


def open_stream(url: str, stream_id: str) -> Files:
    """Open the directory of a stream.

    Args:
        url: the location of the checkpoint.
        stream_id: id of the stream.
    """
    return open_files(stream_url(url, stream_id))
