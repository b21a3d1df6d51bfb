"""The methods of StreamingContext by which one life of a program follows another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar, overload

from pyspark import SparkContext

from dstreams.callables import describe, require_arity
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.graph.plan import StreamGraph
from dstreams.runtime.grafting import RestoreReport
from dstreams.runtime.graph_snapshots import read_snapshot, settings_of
from dstreams.runtime.restarting import FoundStream, find_stream, require_restartable, spark_for
from dstreams.runtime.resuming import EarlierRun

logger = logging.getLogger(__name__)

Self = TypeVar("Self", bound="RestartMethods")


class RestartMethods:
    """Which context is active, and one made anew or from what an earlier run left.

    Semantics: pyspark.streaming.StreamingContext (4.3).
    """

    _active: ClassVar[Any] = None
    _checkpoint_directory: str | None
    _earlier: EarlierRun | None
    _graph: StreamGraph
    _sc: SparkContext

    def checkpoint(self, directory: str) -> None:
        """Set the directory where state is made durable."""
        raise NotImplementedError

    def _finish(self) -> None:
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
        """Return the context that an earlier run left in *checkpointPath*, else a new one.

        The streams of the earlier run are made again as they were, with their functions;
        *setupFunc* is not called, and new code has no effect (:meth:`restore` is for that).
        Started, they go on where that run ended: no output of a batch that it committed runs again,
        batches that it had begun run again with the same input, and then those whose time has
        passed. Without an active SparkContext one is made as that of the earlier run was, with the
        master and the addresses of this process.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.
                Called when nothing was left there; the context gets the directory.
            createOnError: begin anew, with a warning, where what was left cannot be taken up.

        Raises:
            InvalidStreamError: the directory cannot be used, or what *setupFunc* returned is no
                StreamingContext.
            RestartError: what the earlier run left cannot be taken up: it is damaged, others could
                have written it, an input cannot be read again, or its code is not there.
        """
        require_arity(setupFunc, (0,), "getOrCreate", "f() -> StreamingContext")
        try:
            found = find_stream(checkpointPath)
            if found is not None:
                return cls._recovered(checkpointPath, found)
        except RestartError as error:
            if not createOnError:
                raise
            logger.warning("beginning anew; what is there stays as it is: %s", error)
        return _with_directory(_set_up(setupFunc), checkpointPath)

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

    @overload
    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: Literal[False] = False,
        allowRemoved: Iterable[str] = (),
    ) -> Self: ...

    @overload
    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: Literal[True],
        allowRemoved: Iterable[str] = (),
    ) -> RestoreReport: ...

    @classmethod
    def restore(
        cls: type[Self],
        checkpointPath: str,
        setupFunc: Callable[[], Self],
        *,
        dryRun: bool = False,
        allowRemoved: Iterable[str] = (),
    ) -> Self | RestoreReport:
        """Return the context that *setupFunc* sets up, with the state that an earlier run left.

        For code that has changed: functions may be others, stateful operators and inputs may be
        added, and the number of partitions of a state may change. State and progress find their
        operators by uid: that given by ``uid=``, else one derived from the place among the
        operators of its kind. Where nothing was left, the streams begin anew.

        After a graceful stop the new code gets the state as the old code left it. After any other
        end the state stands on its newest copy (at every checkpoint interval; stored state has one
        of every batch): the batches since then are computed again, by the new functions, though
        their outputs ran with the old ones. To keep them apart, stop gracefully before an upgrade.
        What has changed otherwise, such as a parameter of an input, is in the log, as a warning.

        Args:
            checkpointPath: path or URL of the checkpoint directory.
            setupFunc: ``f() -> StreamingContext``, defines the streams and does not start them.
            dryRun: only return what would happen, and why it cannot. Nothing is left behind: what
                *setupFunc* has made is stopped again, but for a SparkContext that was there before.
            allowRemoved: uids of operators and inputs whose state or progress may be left behind.

        Returns:
            The context, to be started; with *dryRun* a report, which prints.

        Raises:
            InvalidStreamError: as in :meth:`getOrCreate`, or the streams cannot run.
            RestartError: what was left is damaged, or does not fit the streams; all that does not
                is named, nothing was touched, and a SparkContext that *setupFunc* made is stopped.
        """
        require_arity(setupFunc, (0,), "restore", "f() -> StreamingContext")
        found = find_stream(checkpointPath)
        with _spark_of_setup(is_kept=not dryRun):
            ssc, report = _set_up(setupFunc), RestoreReport(None)
            if found is not None:
                found = found.trusted()
                report, earlier = found.graft(ssc._graph, ssc._sc, tuple(allowRemoved))
                if not dryRun:
                    _require_fit(report, found)
                    ssc._earlier = earlier
            if dryRun:
                ssc._finish()
                return report
            return _with_directory(ssc, checkpointPath)

    @classmethod
    def _recovered(cls: type[Self], directory: str, found: FoundStream) -> Self:
        """Make the context of an earlier run again."""
        found = found.trusted()
        make: Callable[..., Self] = cls
        with spark_for(found.description) as spark:
            seconds = found.description["batch_ms"] / 1000
            ssc = make(spark, seconds, settings=settings_of(found.snapshot))
            ssc._graph = read_snapshot(found.files, found.snapshot, spark, ssc)
            require_restartable(ssc._graph)
            found.require_same_places(ssc._graph)
            ssc._earlier = found.earlier()
            return _with_directory(ssc, directory)


@contextmanager
def _spark_of_setup(*, is_kept: bool) -> Iterator[None]:
    """Stop the SparkContext that is made in the block, unless that goes well and it is kept."""
    before = SparkContext._active_spark_context
    try:
        yield
    except BaseException:
        is_kept = False
        raise
    finally:
        made = SparkContext._active_spark_context
        if not is_kept and made is not None and made is not before:
            made.stop()


def _require_fit(report: RestoreReport, found: FoundStream) -> None:
    """Refuse what a report refuses, and log the rest of it.

    Raises:
        RestartError: the earlier run does not fit.
    """
    if report.refusals:
        raise RestartError(
            f"{found.files.url} cannot be restored into these streams, and nothing was touched:"
            + "".join(f"\n- {refusal}" for refusal in report.refusals)
        )
    logger.info("%s", report)
    for note in report.notes:
        logger.warning("%s", note)


def _with_directory(ssc: Self, directory: str) -> Self:
    if ssc._checkpoint_directory != directory:
        ssc.checkpoint(directory)
    return ssc


def _set_up(setup: Callable[[], Self]) -> Self:
    ssc = setup()
    if not isinstance(ssc, RestartMethods):
        raise InvalidStreamError(
            "setupFunc must return the StreamingContext that it sets up, but "
            f"{describe(setup)} returned {type(ssc).__name__}; end it with: return ssc"
        )
    return ssc
