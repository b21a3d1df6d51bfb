"""The command ``python -m checkpoint``: look into a checkpoint, judge it, and mend it.

Looking changes nothing, and a stream may run meanwhile. What changes something refuses while a
driver may be at work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from checkpoint.errors import CheckpointError, ConcurrentWriterError
from checkpoint.tools.common import (
    FAILED,
    IN_USE,
    INTERRUPTED,
    MISUSED,
    STATUS,
    SUCCEEDED,
    CommandResult,
    UsageError,
)
from checkpoint.tools.contents import add_diff, add_read
from checkpoint.tools.garbage import add_gc
from checkpoint.tools.help_page import HelpPage, set_help_pages
from checkpoint.tools.inventory import add_list, add_show
from checkpoint.tools.progress import painted
from checkpoint.tools.rewind import add_rewind
from checkpoint.tools.savepoint import add_export, add_import
from checkpoint.tools.state_command import add_state
from checkpoint.tools.verify_command import add_verify

__all__ = ["FAILED", "IN_USE", "MISUSED", "SUCCEEDED", "main"]

_COMMANDS = (
    add_list,
    add_show,
    add_verify,
    add_read,
    add_diff,
    add_rewind,
    add_export,
    add_import,
    add_gc,
    add_state,
)


def main(argv: Sequence[str] | None = None, prog: str = "python -m checkpoint") -> int:
    """Run the command and return its exit status. Raises SystemExit."""
    options = _parser(prog).parse_args(argv)
    try:
        result: CommandResult = options.run(options)
        for line in _shown(result, getattr(options, "json", False)):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if result.note is not None:
            sys.stderr.write(f"checkpoint: {_printable(result.note)}\n")
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except UsageError as error:
        return _complain(error, MISUSED)
    except ConcurrentWriterError as error:
        return _complain(error, IN_USE)
    except (CheckpointError, OSError, RecursionError, TypeError, ValueError) as error:
        return _complain(error, FAILED)
    return result.status


def _complain(error: Exception | str, status: int) -> int:
    lines = map(_printable, str(error).splitlines() or [type(error).__name__])
    sys.stderr.write("checkpoint: {}\n".format("\n".join(lines)))
    return status


def _shown(result: CommandResult, as_json: bool) -> Iterator[str]:
    if result.rows is not None and (as_json or result.lines is None):
        yield from map(json.dumps, result.rows)
    elif as_json or result.lines is None:
        yield json.dumps(result.data, indent=2)
    else:
        yield from map(_printable, result.lines)
        if result.verdict is not None:
            is_good = result.status == SUCCEEDED
            yield painted(_printable(result.verdict), "green" if is_good else "red", sys.stdout)


def _printable(line: str) -> str:
    """Return a line in which nothing can change what the terminal shows of others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        epilog=STATUS,
        formatter_class=HelpPage,
    )
    parser.set_defaults(program=prog)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    set_help_pages(commands)
    return parser
