"""A directory of a batch in a store without rename: it counts when ``_SUCCESS`` is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import RDD

from checkpoint import Files, open_output
from dstreams.sinks.committed_directory import CommittedDirectory, Encode, Lines, WritePart
from dstreams.sinks.manifest import SUCCESS, Manifest, Series
from dstreams.sinks.output_batch import OutputBatch


class ObjectDirectory:
    """The directory that one batch is written to, at a URL of fsspec's.

    Its store has to be able to create a file only if it is absent. Without *encode* the files have
    lines; *ending* is that of their names.
    """

    def __init__(
        self,
        url: str,
        open_at: Callable[[str], Files] = open_output,
        encode: Encode | None = None,
        ending: str = "",
    ) -> None:
        self._url = url
        self._encode = encode
        self._ending = ending
        self._open_at = open_at
        self._directory = CommittedDirectory(open_at(url))

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        """Write a batch, and return False if it was there already.

        Raises:
            OutputConflictError: there is the output of a batch that is not this one, or batches
                are there that the stream has left out.
            FileExistsError: there is a ``_SUCCESS`` that another program wrote.
            CheckpointError: the store refused.
        """
        self._compare(batch)
        directory = self._directory
        found = directory.find(SUCCESS, batch)
        if found is not None:
            directory.delete_unnamed(lambda name: found)
            return False
        encode, is_of_lines = self._encode or Lines(_line_of), self._encode is None
        task = WritePart(directory.files, "part-", encode, self._ending, is_of_lines)
        written = rdd.mapPartitionsWithIndex(task).collect()
        manifest = Manifest.of(batch, sorted(name for name, _ in written))
        is_new = directory.commit(SUCCESS, batch, manifest)
        if is_new:
            directory.delete_unnamed(lambda name: manifest)
        return is_new

    def _compare(self, batch: OutputBatch) -> None:
        """Refuse to go on where there are batches that the stream has left out."""
        parent, _, name = self._url.rstrip("/").rpartition("/")
        suffix = f"/{SUCCESS}"

        def list_names() -> list[str]:
            names = self._open_at(parent).list("")
            return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]

        def read(name: str) -> Manifest | None:
            return Manifest.of_text(self._open_at(parent).read(f"{name}{suffix}"))

        Series(parent, name, batch.time_ms).require_left_out(batch, list_names, read)


def _line_of(record: Any) -> bytes:
    """Return the line of a record, as ``saveAsTextFile`` writes it."""
    line = record if isinstance(record, (str, bytes)) else str(record)
    return line.encode() if isinstance(line, str) else line
