"""Batches in a directory, each once, built from files that are created once and never changed.

Each task attempt writes a file under a unique name. Then one manifest, created only if absent,
lists the files of the batch and its token, by which a later driver accepts the batch or stops: the
rule of :mod:`dstreams.sinks.output_batch`. ::

    out-3000/part-00001-<attempt>                         a stream: a directory for each batch
    out-3000/_SUCCESS

    words/part-0000000003-00001-<attempt>.txt             a query: a directory for all batches
    words/_committed/0000000003

A file that no manifest lists is from a superseded attempt or a dead driver, or is still being
written. Once its batch has a manifest it can never count, and is deleted. A listed file is never
replaced, moved or deleted.

On Hadoop file systems the JVM writes, and some of them cannot create a file only if it is absent:
there :mod:`dstreams.sinks.hadoop_directory` publishes a batch by renames, with the same manifest
and the same rule.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from checkpoint import AlreadyExistsError, CheckpointError, Files, new_attempt
from dstreams.errors import OutputConflictError
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark.worker_gc import settle_worker

logger = logging.getLogger(__name__)

SUCCESS = "_SUCCESS"
_CHUNK_BYTES = 256 << 10

# Checked for skipped batches once per process, not in each batch.
_compared: set[tuple[str, str, range]] = set()


@dataclass(frozen=True)
class Manifest:
    """The identity of a written batch and its files.

    *files* are the names that count, in the order of the partitions; empty if all files of the
    batch's own directory count. *before* has the manifests of earlier batches.
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    files: tuple[str, ...] = ()
    beginning: str = ""
    before: tuple[Manifest, ...] = ()

    @classmethod
    def of(cls, batch: OutputBatch, files: Iterable[str] = ()) -> Manifest:
        return cls(batch.stream_id, batch.batch_id, batch.time_ms, tuple(files), batch.batch_token)

    def require_of(self, batch: OutputBatch, place: str, remedy: str | None = None) -> None:
        """Raise OutputConflictError if the manifest is of another batch; *remedy* makes room."""
        if self.stream_id == batch.stream_id:
            removal = f"remove {place} and the directories of later times next to it"
            batch.require_own(place, self.batch_id, self.beginning, remedy or removal)
            return
        parting = f"give each its own prefix, or remove {place} and restart"
        raise OutputConflictError(
            f"{place} is the output of batch {self.batch_id} of {self.stream_id}, not of batch "
            f"{batch.batch_id} of {batch.stream_id}: two streams write there, or one was started "
            f"without the checkpoint of the other; {remedy or parting}"
        )

    def to_text(self) -> str:
        content = asdict(self)
        if not self.before:
            del content["before"]
        return json.dumps(content) + "\n"

    @classmethod
    def of_text(cls, text: str | bytes) -> Manifest | None:
        """Parse a manifest; return None if another program wrote the file, such as an empty one.

        >>> Manifest.of_text(Manifest("stream-1", 0, 1000, ("part-00000",)).to_text())
        Manifest(stream_id='stream-1', batch_id=0, batch_time_ms=1000, files=('part-00000',), \
beginning='', before=())
        >>> Manifest.of_text("") is None
        True
        """
        try:
            return cls._of(json.loads(text))
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> Manifest:
        return cls(
            str(content["stream_id"]),
            int(content["batch_id"]),
            int(content["batch_time_ms"]),
            tuple(map(str, content["files"])),
            str(content["beginning"]),
            tuple(map(cls._of, content.get("before", ()))),
        )

    @classmethod
    def required(cls, text: bytes, place: str) -> Manifest:
        """Parse a manifest; raise FileExistsError if another program wrote the file."""
        found = cls.of_text(text)
        if found is None:
            raise FileExistsError(
                f"{place} is not the manifest of a batch: another program writes there; remove it, "
                "move it away, or write elsewhere"
            )
        return found


@dataclass(frozen=True)
class Series:
    """The directories of one output, which differ in the batch time of their names."""

    parent: str
    name: str
    time_ms: int

    @property
    def pattern(self) -> str:
        """A regular expression for all names; its group 1 is the time."""
        before, _, after = self.name.rpartition(f"-{self.time_ms}")
        return rf"{re.escape(before)}-(\d+){re.escape(after)}"

    def hidden(self, stream_id: str) -> re.Pattern[str]:
        """Return the pattern of the names of a stream's incomplete directories."""
        return re.compile(rf"\.{self.pattern}\.{re.escape(stream_id)}\.[0-9a-f]{{32}}")

    def require_left_out(
        self,
        batch: OutputBatch,
        list_names: Callable[[], Iterable[str]],
        read: Callable[[str], Manifest | None],
    ) -> None:
        """Raise OutputConflictError if there is a batch that the stream of *batch* skipped.

        *read* returns the manifest of a directory. The first batch after a gap checks.
        """
        gap = batch.gap or batch.left_out
        place = (self.parent, self.pattern, gap)
        is_before = batch.batch_id < gap.stop
        if not gap or is_before or place in _compared:
            return
        matches = map(re.compile(self.pattern).fullmatch, list_names())
        times = {int(match[1]): match[0] for match in matches if match}
        oldest: tuple[Manifest, str] | None = None  # whose remedy covers all later ones
        for time_ms in sorted(times, reverse=True):
            manifest = read(times[time_ms]) if time_ms < batch.time_ms else None
            if manifest is None or manifest.stream_id != batch.stream_id:
                continue
            if batch.is_foreign(manifest.batch_id):
                oldest = manifest, times[time_ms]
            if manifest.batch_id < gap.start:
                break
        if oldest is not None:
            oldest[0].require_of(batch, f"{self.parent}/{oldest[1]}")
        _compared.add(place)


class CommittedDirectory:
    """The manifests of a directory, and the files that they list.

    *remedy* is an instruction for conflicts; None if the directory of a batch can be removed.
    """

    def __init__(self, files: Files, remedy: str | None = None) -> None:
        self.files = files
        self._remedy = remedy

    def find(self, name: str, batch: OutputBatch) -> Manifest | None:
        """Return the manifest of a batch, None if missing; raises as :meth:`require_of`."""
        found = self._read(name)
        if found is not None:
            self.require_of(batch, found)
        return found

    def _read(self, name: str) -> Manifest | None:
        try:
            return Manifest.required(self.files.read(name), f"{self.files.url}/{name}")
        except FileNotFoundError:
            return None

    def require_of(self, batch: OutputBatch, found: Manifest) -> None:
        """Require that a manifest is of this batch; raises as :meth:`Manifest.require_of`."""
        found.require_of(batch, self.files.url, self._remedy)

    def commit(self, name: str, batch: OutputBatch, manifest: Manifest) -> bool:
        """Create the manifest of a batch; return False if another driver wrote the batch first."""
        try:
            self.files.create(name, [manifest.to_text().encode()])
        except AlreadyExistsError:
            found = self._read(name)
            if found is None:
                raise
            self.delete(file for file in manifest.files if file not in found.files)
            self.require_of(batch, found)
            return found == manifest
        return True

    def delete_unnamed(self, manifest_of: Callable[[str], Manifest | None]) -> None:
        """Delete files that the manifest of their batch, if any, does not list; never raises."""
        try:
            for name in self.files.list("part-"):
                manifest = manifest_of(name)
                if manifest is not None and name not in manifest.files:
                    self.files.delete(name)
        except CheckpointError as error:
            logger.warning("%s: could not delete superseded files: %s", self.files.url, error)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that do not count; never raises."""
        for name in names:
            try:
                self.files.delete(name)
            except CheckpointError as error:
                logger.warning("could not delete obsolete file %s: %s", name, error)


Encode = Callable[[Iterable[Any]], Iterator[tuple[bytes, int]]]
"""Encodes the records of a partition as chunks of bytes, each with its number of records."""


@dataclass(frozen=True)
class Lines:
    """Encodes each record as a line."""

    line_of: Callable[[Any], bytes]

    def __call__(self, records: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
        """Iterate over chunks of lines."""
        chunk, count = bytearray(), 0
        for line in map(self.line_of, records):
            chunk += line
            chunk += b"\n"
            count += 1
            if len(chunk) >= _CHUNK_BYTES:
                yield bytes(chunk), count
                chunk.clear()
                count = 0
        if chunk:
            yield bytes(chunk), count


@dataclass(frozen=True)
class WritePart:
    """Task: records of a partition -> name of the written file, and number of records."""

    files: Files
    prefix: str
    encode: Encode
    suffix: str = ""
    writes_empty: bool = True

    def __call__(self, split: int, records: Iterable[Any]) -> Iterator[tuple[str, int]]:
        settle_worker()
        counts: list[int] = []
        chunks = self._chunks(records, counts)
        first = next(chunks, None)
        if first is not None or self.writes_empty:
            name = f"{self.prefix}{split:05d}-{new_attempt()}{self.suffix}"
            self.files.create(name, chain(() if first is None else (first,), chunks))
            yield name, sum(counts)

    def _chunks(self, records: Iterable[Any], counts: list[int]) -> Iterator[bytes]:
        for chunk, count in self.encode(records):
            counts.append(count)
            yield chunk
