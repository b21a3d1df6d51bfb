"""``_SUCCESS``: says that the output of a batch is complete, and which batch of which stream it is.

The name is the one by which Hadoop's tools, and what reads their output, know a complete directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from dstreams.errors import OutputConflictError
from dstreams.sinks.output_batch import OutputBatch

SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Manifest:
    """What ``_SUCCESS`` holds.

    Args:
        stream_id: of the stream that wrote the batch.
        batch_id: number of the batch in it.
        batch_time_ms: its time.
        files: names of the files that count; empty where all that are there do.
        beginning: which beginning of the batch it is, as in :class:`OutputBatch`.
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    files: tuple[str, ...] = ()
    beginning: str = ""

    @classmethod
    def of(cls, batch: OutputBatch, files: tuple[str, ...] = ()) -> Manifest:
        """Return the manifest of a batch."""
        return cls(batch.stream_id, batch.batch_id, batch.time_ms, files, batch.beginning)

    def require_of(self, batch: OutputBatch, place: str) -> None:
        """Return if it is this very batch that was written.

        Args:
            batch: the batch.
            place: the directory.

        Raises:
            OutputConflictError: it is another one, which is not replaced.
        """
        if self.stream_id == batch.stream_id:
            remedy = f"remove {place} and the directories of later times beside it"
            batch.require_own(place, self.batch_id, self.beginning, remedy)
            return
        raise OutputConflictError(
            f"{place} is the output of batch {self.batch_id} of {self.stream_id}, not of batch "
            f"{batch.batch_id} of {batch.stream_id}: two streams write there, or one began anew in "
            f"the place of the other; give each its own prefix, or remove {place} and start again"
        )

    def to_text(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of_text(cls, text: str) -> Manifest | None:
        """Return what a file says; None for one that another program wrote, such as an empty one.

        >>> Manifest.of_text(Manifest("stream-1", 0, 1000).to_text())
        Manifest(stream_id='stream-1', batch_id=0, batch_time_ms=1000, files=(), beginning='')
        >>> Manifest.of_text("") is None
        True
        """
        try:
            said = json.loads(text)
            return cls(
                str(said["stream_id"]),
                int(said["batch_id"]),
                int(said["batch_time_ms"]),
                tuple(map(str, said["files"])),
                str(said.get("beginning", "")),
            )
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class Series:
    """The names of the directories of one output: that of a batch, with its time left open.

    Args:
        name: name of the directory of a batch.
        time_ms: its time.
    """

    name: str
    time_ms: int

    @property
    def pattern(self) -> str:
        """A regular expression for all of them; its group 1 is the time."""
        before, _, after = self.name.rpartition(f"-{self.time_ms}")
        return rf"{re.escape(before)}-(\d+){re.escape(after)}"

    def hidden(self, stream_id: str) -> re.Pattern[str]:
        """Names under which a stream writes them, before they are complete."""
        return re.compile(rf"\.{self.pattern}\.{re.escape(stream_id)}\.[0-9a-f]{{32}}")

    def require_left_out(
        self,
        batch: OutputBatch,
        names: Iterable[str],
        place: str,
        read: Callable[[str], Manifest | None],
    ) -> None:
        """Return if none of the batches is there that the stream of *batch* has left out.

        Args:
            batch: the batch.
            names: what is there beside it.
            place: the directory that they are in.
            read: ``f(name) -> what its _SUCCESS says``.

        Raises:
            OutputConflictError: one is there.
        """
        matches = map(re.compile(self.pattern).fullmatch, names)
        times = {int(match[1]): match[0] for match in matches if match}
        for time_ms in sorted(times, reverse=True):
            manifest = read(times[time_ms]) if time_ms < batch.time_ms else None
            if manifest is None or manifest.stream_id != batch.stream_id:
                continue
            if manifest.batch_id in batch.left_out:
                manifest.require_of(batch, f"{place}/{times[time_ms]}")
            if manifest.batch_id < batch.left_out.start:
                return
