"""``_SUCCESS``: says that the output of a batch is complete, and which batch of which stream it is.

The name is the one by which Hadoop's tools, and what reads their output, know a complete directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

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
    """

    stream_id: str
    batch_id: int
    batch_time_ms: int
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, batch: OutputBatch, files: tuple[str, ...] = ()) -> Manifest:
        """Return the manifest of a batch."""
        return cls(batch.stream_id, batch.batch_id, batch.time_ms, files)

    def is_of(self, batch: OutputBatch) -> bool:
        """Whether it was this very batch that was written, and not another of the same time."""
        return (self.stream_id, self.batch_id) == (batch.stream_id, batch.batch_id)

    def to_text(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of_text(cls, text: str) -> Manifest | None:
        """Return what a file says; None for one that another program wrote, such as an empty one.

        >>> Manifest.of_text(Manifest("stream-1", 0, 1000).to_text())
        Manifest(stream_id='stream-1', batch_id=0, batch_time_ms=1000, files=())
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
            )
        except (ValueError, TypeError, KeyError):
            return None
