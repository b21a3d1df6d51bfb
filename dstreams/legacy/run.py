"""Running a program as Python would, with dstreams in the place of ``pyspark.streaming``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dstreams.errors import EnvironmentNotReadyError
from dstreams.legacy import modules
from dstreams.legacy.spark import TunedSpark
from dstreams.rdd.context import require_spark


def run_program(program: Path, arguments: Sequence[str], submitted: Mapping[str, str]) -> int:
    """Run the file *program* as the main program of this process.

    It sees the name, the arguments and the path that ``python PROGRAM ARGUMENTS...`` gives it.

    Returns:
        0, or 1 after an exception, whose traceback was printed.

    Raises:
        EnvironmentNotReadyError: Java or Spark is missing on this machine.
        KeyboardInterrupt: the program was interrupted and did not handle it.
        SystemExit: the program ended by it.
    """
    require_spark()
    modules.install()
    TunedSpark(submitted, program.name).install()
    sys.argv[:] = [str(program), *arguments]
    if not getattr(sys.flags, "safe_path", False):  # python -P leaves it out as well
        sys.path[0] = str(program.resolve().parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        error.__traceback__ = _frames_of(program, error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _frames_of(program: Path, frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that led into the program; none are left of one that was not entered."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(program):
        frames = frames.tb_next
    return frames
