"""The queries of the drill with a promise broken on purpose, which the drill has to notice.

``BREAKS`` in the environment names the promise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checkpoint.state_store import EMPTY
from dstreams.sinks.output_batch import OutputBatch
from dstreams.spark.state_version import StateVersion
from dstreams.structured.execution.watermarks import Watermarks
from dstreams.structured.sources.committed_files import CommittedFiles
from tests.drills.query_job import main

BREAKS = "DSTREAMS_DRILL_BREAKS"


def lose_rows() -> None:
    """A restart takes the batch that was cut off for one that is written."""
    has, asked = CommittedFiles.has, []

    def has_or_not(self: CommittedFiles, batch: OutputBatch) -> bool:
        asked.append(batch)
        return (batch.batch_id > 0 and len(asked) == 1) or has(self, batch)

    CommittedFiles.has = has_or_not  # type: ignore[method-assign]


def lose_state() -> None:
    """A restart does not find the state of a partition."""
    inner: Callable[..., StateVersion] = StateVersion.committed

    def committed(*arguments: Any) -> StateVersion:
        version = inner(*arguments)
        return replace(version, version_ids=(EMPTY, *version.version_ids[1:]))

    StateVersion.committed = committed  # type: ignore[method-assign, assignment]


def lose_watermark() -> None:
    """A restart does not know how far event time is."""
    inner = Watermarks.fitted

    def fitted(self: Watermarks, operators: int) -> Watermarks:
        return inner(Watermarks.start(operators), operators)

    Watermarks.fitted = fitted  # type: ignore[method-assign]


if __name__ == "__main__":
    {"rows": lose_rows, "state": lose_state, "watermark": lose_watermark}[os.environ[BREAKS]]()
    main()
