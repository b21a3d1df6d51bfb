"""The methods of StreamingContext by which one life of a program follows another."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from checkpoint import CheckpointError, CommitLog, open_files
from dstreams.callables import describe, require_arity
from dstreams.durations import batch_datetime
from dstreams.errors import InvalidStreamError, RestartError

logger = logging.getLogger(__name__)

_RUN = re.compile(r"(stream-[^/]+)/")
_OF_SPARK = re.compile(r"checkpoint-\d+(\.bk)?")

Self = TypeVar("Self", bound="RestartMethods")


class RestartMethods:
    """Which context is active, and one made anew or from what an earlier run left.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _active: ClassVar[Any] = None
    _checkpoint_directory: str | None

    def checkpoint(self, directory: str) -> None:
        """Set the directory where state is made durable."""
        raise NotImplementedError

    @classmethod
    def getActive(cls: type[Self]) -> Self | None:
        """Return the context of this process that is started and not stopped, if there is one."""
        active: Self | None = cls._active
        return active

    @classmethod
    def getOrCreate(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        createOnError: bool = False,
    ) -> Self:
        """Return the context that *setupFunc* sets up, with *checkpointPath* as its directory.

        To go on from what an earlier run left there is not possible yet, and never left out in
        silence: a directory that holds state is refused.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.
            createOnError: begin anew, with a warning, where the directory holds earlier state.

        Raises:
            InvalidStreamError: the directory cannot be used, or what *setupFunc* returned is no
                StreamingContext.
            RestartError: the directory holds state of an earlier run.
        """
        require_arity(setupFunc, (0,), "getOrCreate", "f() -> StreamingContext")
        require_nothing_to_restore(checkpointPath, begin_anew=createOnError)
        ssc = _set_up(setupFunc)
        if ssc._checkpoint_directory != checkpointPath:
            ssc.checkpoint(checkpointPath)
        return ssc

    @classmethod
    def getActiveOrCreate(
        cls: type[Self], checkpointPath: str | None, setupFunc: Callable[[], Self]
    ) -> Self:
        """Return the active context if there is one, else that of :meth:`getOrCreate`.

        Args:
            checkpointPath: path or URL of the checkpoint directory. None: *setupFunc* is called in
                any case, and sets a directory where it needs one.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.

        Raises:
            InvalidStreamError: as in :meth:`getOrCreate`.
            RestartError: as in :meth:`getOrCreate`.
        """
        require_arity(setupFunc, (0,), "getActiveOrCreate", "f() -> StreamingContext")
        active = cls.getActive()
        if active is not None:
            return active
        if checkpointPath is None:
            return _set_up(setupFunc)
        return cls.getOrCreate(checkpointPath, setupFunc)


def _set_up(setup: Callable[[], Self]) -> Self:
    ssc = setup()
    if not isinstance(ssc, RestartMethods):
        raise InvalidStreamError(
            "setupFunc must return the StreamingContext that it sets up, but "
            f"{describe(setup)} returned {type(ssc).__name__}; end it with: return ssc"
        )
    return ssc


def require_nothing_to_restore(directory: str, begin_anew: bool) -> None:
    """Refuse a checkpoint directory in which an earlier run left what would not be taken up.

    What was only in memory when a run ended is not missed here: nothing can bring it back.

    Args:
        directory: path or URL of the checkpoint directory; made if it is missing.
        begin_anew: log what is left behind, instead of refusing.

    Raises:
        InvalidStreamError: *directory* is no path, or cannot be used.
        RestartError: there is something, and *begin_anew* is False.
    """
    found = _left_behind(directory)
    if found is None:
        return
    if begin_anew:
        logger.warning("beginning anew; %s holds %s, which stays as it is", directory, found)
        return
    raise RestartError(
        f"the checkpoint directory {directory!r} holds {found}, and to go on from files is not "
        "there yet; begin without that state by createOnError=True, by another directory, or by "
        "removing this one"
    )


def _left_behind(directory: str) -> str | None:
    if not isinstance(directory, str) or not directory:
        raise InvalidStreamError(f"checkpointPath must be a path or URL, got {directory!r}")
    try:
        files = open_files(directory)
        names = files.list("")
        runs = sorted({match[1] for match in map(_RUN.match, names) if match})
        if runs:
            return _runs_left(directory, runs)
    except (CheckpointError, ValueError) as error:
        raise InvalidStreamError(
            f"the checkpoint directory {directory!r} cannot be used: {error}"
        ) from error
    of_spark = [name for name in names if _OF_SPARK.fullmatch(name)]
    if of_spark:
        return f"{of_spark[-1]}, a checkpoint of Spark's own streaming, which cannot be read here"
    return None


def _runs_left(directory: str, runs: list[str]) -> str:
    logs = [CommitLog(open_files(f"{directory.rstrip('/')}/{run}")) for run in runs]
    times = [time_ms for log in logs for time_ms in log.times()]
    what = f"files of {runs[-1]}" + (f" and {len(runs) - 1} more runs" if len(runs) > 1 else "")
    if not times:
        return f"{what}, without committed state"
    newest = max(times)
    return f"{what}, with state up to the batch at {newest} ms ({batch_datetime(newest)})"
