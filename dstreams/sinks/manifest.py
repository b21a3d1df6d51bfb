"""The manifest of a batch: says that the output of the batch is complete, and which batch it is.

For a stream it is ``_SUCCESS`` in the directory of the batch, the name by which Hadoop's tools know
a complete directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dstreams.errors import OutputConflictError
from dstreams.sinks.output_batch import OutputBatch

SUCCESS = "_SUCCESS"

# Looked through once in each process, not in each batch: for batches that were left out.
_compared: set[tuple[str, str, range]] = set()


@dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    *files* are the names that count, in the order of the partitions; empty where all count that are
    in a directory of the batch's own. *before* are manifests of earlier batches that this one
    lists.
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
        """Refuse what was written, unless it is this very batch.

        *remedy* says how to make room for it.

        Raises:
            OutputConflictError: it is another batch, which is not replaced.
        """
        if self.stream_id == batch.stream_id:
            removal = f"remove {place} and the directories of later times beside it"
            batch.require_own(place, self.batch_id, self.beginning, remedy or removal)
            return
        parting = f"give each its own prefix, or remove {place} and start again"
        raise OutputConflictError(
            f"{place} is the output of batch {self.batch_id} of {self.stream_id}, not of batch "
            f"{batch.batch_id} of {batch.stream_id}: two streams write there, or one began anew in "
            f"the place of the other; {remedy or parting}"
        )

    def to_text(self) -> str:
        said = asdict(self)
        if not self.before:
            del said["before"]
        return json.dumps(said) + "\n"

    @classmethod
    def of_text(cls, text: str | bytes) -> Manifest | None:
        """Return what a file says; None for one that another program wrote, such as an empty one.

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
    def _of(cls, said: Mapping[str, Any]) -> Manifest:
        return cls(
            str(said["stream_id"]),
            int(said["batch_id"]),
            int(said["batch_time_ms"]),
            tuple(map(str, said["files"])),
            str(said["beginning"]),
            tuple(map(cls._of, said.get("before", ()))),
        )

    @classmethod
    def required(cls, text: bytes, place: str) -> Manifest:
        """Return what a file says, or raise FileExistsError if another program wrote it."""
        found = cls.of_text(text)
        if found is None:
            raise FileExistsError(
                f"{place} is not that of a batch: another program writes there; remove it, move it "
                "away, or write elsewhere"
            )
        return found


@dataclass(frozen=True)
class Series:
    """The names of the directories of one output: that of a batch, with its time left open."""

    parent: str
    name: str
    time_ms: int

    @property
    def pattern(self) -> str:
        """A regular expression for all names; its group 1 is the time."""
        before, _, after = self.name.rpartition(f"-{self.time_ms}")
        return rf"{re.escape(before)}-(\d+){re.escape(after)}"

    def hidden(self, stream_id: str) -> re.Pattern[str]:
        """Return the names under which a stream writes directories that are not complete."""
        return re.compile(rf"\.{self.pattern}\.{re.escape(stream_id)}\.[0-9a-f]{{32}}")

    def require_left_out(
        self,
        batch: OutputBatch,
        list_names: Callable[[], Iterable[str]],
        read: Callable[[str], Manifest | None],
    ) -> None:
        """Refuse to go on where a batch is there that the stream of *batch* has left out.

        *read* returns what the ``_SUCCESS`` of a name in the parent says. A batch that was in
        flight may run before the gap, and leaves the look to the first one after it.
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
