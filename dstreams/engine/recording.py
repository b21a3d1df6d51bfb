"""Recordings: batches of a stream with their input, in one file, to run again without its sources.

A recording is a zip archive::

    recording.json    the stream, its first and last batch, and the files of the inputs
    inputs/0-1000     the records of the first input for the batch at 1000 ms: a pickled list of
                      partitions
    stream/...        what a restart at the first batch needs of the checkpoint
"""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext, cloudpickle

from checkpoint import CheckpointError, Files, open_existing, open_files, require_trusted
from checkpoint.cli import needed_files
from dstreams.errors import InvalidStreamError, RestartError, SourceError
from dstreams.sources.source import PlannedInput, SourceReader

_MANIFEST, _STREAM = "recording.json", "stream/"
Inputs = Mapping[str, Mapping[int, "RDD[Any] | None"]]


@dataclass(frozen=True)
class Recording:
    """The input of recorded batches.

    Args:
        file: path of the recording.
        stream_id: id of the stream.
        first_ms: time of the first batch.
        last_ms: time of the last one.
        inputs: name of the file of each batch, by uid and batch time; None for no RDD.
    """

    file: str
    stream_id: str
    first_ms: int
    last_ms: int
    inputs: Mapping[str, Mapping[str, str | None]]

    def read(self, spark: SparkContext, uid: str, time_ms: int) -> RDD[Any] | None:
        """Return the records of an input for a batch. Raises SourceError."""
        names = self.inputs.get(uid, {})
        if str(time_ms) not in names:
            raise SourceError(f"{self.file} has no input of {uid} for the batch at {time_ms} ms")
        name = names[str(time_ms)]
        if name is None:
            return None
        with zipfile.ZipFile(self.file) as archive:
            parts = pickle.loads(archive.read(name))
        return spark.parallelize(parts, max(1, len(parts))).flatMap(list)


class RecordedReader(SourceReader):
    """Reads the input of one uid from a recording."""

    def __init__(self, recording: Recording, spark: SparkContext, uid: str) -> None:
        self._recording, self._spark, self._uid = recording, spark, uid

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        return PlannedInput(time_ms, start, start)

    def read(self, planned: PlannedInput) -> RDD[Any] | None:
        return self._recording.read(self._spark, self._uid, planned.time_ms)


def write_recording(
    file: str, stream_id: str, files: Files, inputs: Inputs, span: tuple[int, int], most_bytes: int
) -> int:
    """Write a recording of a copy of a checkpoint, and return the size of its content in bytes.

    Raises InvalidStreamError if it exceeds *most_bytes* or the file exists; then nothing is left.
    """
    names: dict[str, dict[int, str | None]] = {uid: {} for uid in inputs}
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidStreamError(f"{file} exists already; give a new file") from None
    size_bytes = 0
    try:
        with (
            os.fdopen(descriptor, "wb") as target,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, content in _content(files, inputs, names):
                size_bytes += len(content)
                if size_bytes > most_bytes:
                    raise InvalidStreamError(
                        f"a recording of these batches exceeds {most_bytes} bytes at {name}; "
                        "record fewer batches, or allow more"
                    )
                archive.writestr(name, content)
            archive.writestr(_MANIFEST, json.dumps([stream_id, *span, names]))
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(file)
        raise
    return size_bytes


def _content(
    files: Files, inputs: Inputs, names: dict[str, dict[int, str | None]]
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents, and enter those of inputs into *names*."""
    for name in needed_files(files):
        yield f"{_STREAM}{name}", files.read(name)
    for number, (uid, batches) in enumerate(inputs.items()):
        for time_ms, rdd in batches.items():
            names[uid][time_ms] = None if rdd is None else f"inputs/{number}-{time_ms}"
            if rdd is not None:
                parts = rdd.glom().collect()
                yield f"inputs/{number}-{time_ms}", cloudpickle.dumps(parts)


def open_recording(file: str, directory: str) -> Recording:
    """Extract the stream of a recording into a directory. Raises RestartError.

    A recording is unpickled, so only this user may be able to write it.
    """
    parent, name = os.path.split(os.path.abspath(file))
    try:
        require_trusted(open_existing(parent), name)
        with zipfile.ZipFile(file) as archive:
            stream_id, first_ms, last_ms, inputs = json.loads(archive.read(_MANIFEST))
            into = open_files(os.path.join(directory, stream_id))
            for member in archive.namelist():
                if member.startswith(_STREAM):
                    into.create(member.removeprefix(_STREAM), [archive.read(member)])
    except (CheckpointError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise RestartError(f"{file} is not a recording that can be replayed: {error}") from error
    return Recording(file, stream_id, first_ms, last_ms, inputs)
