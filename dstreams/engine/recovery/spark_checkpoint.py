"""Checkpoints that Spark's own streaming has written: known by their files, and refused by name.

Their format is another one. Taken for an empty directory, they would be a silent new beginning.
"""

from __future__ import annotations

import re

from checkpoint import Files
from dstreams.errors import RestartError

_OF_QUERY = "offsets/"
_OF_STREAM = "checkpoint-"
_GRAPH = re.compile(r"checkpoint-\d+(\.bk)?")
_INSTEAD = (
    "its format is another one, so that its state and its place in the input cannot be taken up, "
    "and two programs would write there: give a directory of its own, and begin where that one has "
    "stopped"
)


def require_no_query_of_spark(files: Files) -> None:
    """Refuse the checkpointLocation of a query of pyspark.sql.streaming."""
    if files.exists("metadata") and (offsets := files.list(_OF_QUERY)):
        raise RestartError(
            f"{files.url} is the checkpoint of a query of Spark itself, up to {offsets[-1]}: "
            f"{_INSTEAD}"
        )


def require_no_stream_of_spark(files: Files) -> None:
    """Refuse the checkpoint directory of a StreamingContext of pyspark.streaming."""
    graphs = [name for name in files.list(_OF_STREAM) if _GRAPH.fullmatch(name)]
    if graphs:
        raise RestartError(
            f"{files.url} is the checkpoint of a stream of pyspark.streaming, with {graphs[-1]}: "
            f"{_INSTEAD}"
        )
