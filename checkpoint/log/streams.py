"""Streams of a checkpoint: one directory for each, its life over all its restarts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from checkpoint.log.commit_log import COMMIT_PREFIX, COMMIT_SUFFIX
from checkpoint.log.fencing import CLAIM, EPOCH_PREFIX, epochs_with
from checkpoint.log.graph_record import GRAPH_PREFIX, GRAPH_SUFFIX
from checkpoint.log.record_files import record_ids
from checkpoint.storage.files import Files
from checkpoint.storage.open_location import open_files

_STREAM_ID = re.compile(r"stream-\d+-[0-9a-f]+")
_CLAIM = re.compile(rf"(.+)/{EPOCH_PREFIX}\d{{10,}}\.{CLAIM}")


@dataclass(frozen=True)
class StreamDirectory:
    """A directory of a stream, as a listing shows it."""

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
    """Return the streams below the location of a checkpoint, oldest first."""
    names: dict[str, list[str]] = {}
    for name in files.list(""):
        stream_id, slash, inside = name.partition("/")
        if slash and _STREAM_ID.fullmatch(stream_id):
            names.setdefault(stream_id, []).append(inside)
    return [
        StreamDirectory(
            stream_id,
            began_ms(stream_id),
            len(epochs_with(inside, CLAIM)),
            len(record_ids(inside, GRAPH_PREFIX, GRAPH_SUFFIX)),
            len(record_ids(inside, COMMIT_PREFIX, COMMIT_SUFFIX)),
            len(inside),
        )
        for stream_id, inside in sorted(names.items(), key=lambda item: (began_ms(item[0]), item))
    ]


def list_claimed(files: Files) -> list[str]:
    """Return the directories below a location that a driver has claimed, whatever they are called.

    Such as the checkpoints of structured queries, which their users name.
    """
    return sorted({match[1] for match in map(_CLAIM.fullmatch, files.list("")) if match})


def stream_ids(files: Files) -> list[str]:
    """Return the streams below the location of a checkpoint, the newest first.

    Nothing in their directories is listed.
    """
    found = [name for name in files.directories() if _STREAM_ID.fullmatch(name)]
    return sorted(found, key=lambda stream_id: (began_ms(stream_id), stream_id), reverse=True)


def began_ms(stream_id: str) -> int:
    """Return when a stream began, as its id says."""
    return int(stream_id.split("-")[1])


def open_stream(url: str, stream_id: str) -> Files:
    """Open the directory of a stream."""
    return open_files(stream_url(url, stream_id))
