"""Running a program as Python would, with dstreams in the place of ``pyspark.streaming``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import TracebackException
from types import TracebackType

from dstreams.common.shadowing import shadow_in
from dstreams.compat import modules
from dstreams.compat.spark import TunedSpark
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, StreamError
from dstreams.monitoring.web.page import page
from dstreams.spark.context import require_spark
from dstreams.spark.failures import make_brief


def run_program(
    program: Path,
    arguments: Sequence[str],
    submitted: Mapping[str, str],
    *,
    is_quiet: bool = False,
    is_as_spark: bool = False,
) -> int:
    """Run the file *program* as the main program of this process.

    It sees the name, the arguments and the path that ``python PROGRAM ARGUMENTS...`` gives it. On a
    terminal its restarts show how far they are, and which defaults of Spark are changed is told,
    unless that is to be quiet.

    Returns:
        0, or 1 after an exception, whose traceback was printed.

    Raises:
        EnvironmentNotReadyError: Java or Spark is missing on this machine.
        InvalidStreamError: a file beside the program has the name of a package of dstreams.
        KeyboardInterrupt: the program was interrupted and did not handle it.
        SystemExit: the program ended by it.
    """
    require_spark()
    is_searched = not getattr(sys.flags, "safe_path", False)  # python -P leaves it out as well
    problem = shadow_in(str(program.resolve().parent)) if is_searched else None
    if problem is not None:
        raise InvalidStreamError(problem)
    modules.install()
    page.prints = not is_quiet
    TunedSpark(submitted, program.name, not is_quiet, is_as_spark).install()
    sys.argv[:] = [str(program), *arguments]
    if is_searched:
        sys.path[0] = str(program.resolve().parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        error.__traceback__ = _frames_of(program, error.__traceback__)
        _print(error)
        return 1
    return 0


def _print(error: Exception) -> None:
    """Print an exception as Python does; one of dstreams without our frames and without its cause.

    Its message has what the user can do something about. A program may hook in and get all of it.
    """
    if sys.excepthook is not sys.__excepthook__ or not isinstance(error, StreamError):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    make_brief(error)
    told = TracebackException.from_exception(error)
    told.__cause__ = None
    sys.stderr.write("".join(told.format()))


def _frames_of(program: Path, frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that led into the program; none are left of one that was not entered."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(program):
        frames = frames.tb_next
    return frames
