"""Progress of long work: a bar on a terminal, occasional lines elsewhere.

Progress goes to standard error. If it cannot be written, the work continues without it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

T = TypeVar("T")

_FIRST_S = 5.0
_SHARE = 20
_DELAY_S = 0.3
_REFRESH_S = 0.125
_LEAST_BAR, _MOST_BAR = 10, 40
_COLOURS = {"green": "32", "red": "31"}


class Progress:
    """A receiver of progress; this one shows nothing.

    Work has consecutive stages, each with a number of items, or None if the number is unknown.
    """

    def begin(self, stage: str, total: int | None = None) -> None:
        """Begin a stage, which ends the previous one."""

    def advance(self, count: int = 1) -> None:
        """Report *count* more items as done; 0 reports that work continues."""

    def over(self, items: Collection[T], stage: str) -> Iterator[T]:
        """Yield *items*; each is done when the next one is requested."""
        if items:
            self.begin(stage, len(items))
        for item in items:
            yield item
            self.advance()

    def above(self, out: TextIO) -> TextIO:
        """Return a stream for *out* that prints above the bar if both use one terminal."""
        return out

    def close(self) -> None:
        """Remove the bar."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


SILENT = Progress()


def progress_on(
    out: TextIO,
    command: str,
    *,
    as_json: bool = False,
    is_quiet: bool = False,
    now_s: Callable[[], float] = time.monotonic,
) -> Progress:
    """Return the progress of a command: a bar on a terminal, lines elsewhere."""
    if is_quiet:
        return SILENT
    if is_terminal(out):
        return ProgressBar(out, now_s)
    shown = _Unfailing(out)

    def write(stage: StageProgress) -> None:
        text = json.dumps(stage.to_json()) if as_json else f"{command}: {stage}"
        shown.write(f"{text}\n")
        shown.flush()

    return ProgressLines(write, now_s)


class StageProgress(Progress):
    """A counter of the items of the current stage."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.stage = ""
        self.done = 0
        self.total: int | None = None
        self.began_s = now_s()

    @property
    def seconds(self) -> float:
        """Seconds since the stage began."""
        return self._now_s() - self.began_s

    def begin(self, stage: str, total: int | None = None) -> None:
        self.stage, self.total, self.done, self.began_s = stage, total, 0, self._now_s()

    def advance(self, count: int = 1) -> None:
        self.done += count

    def to_json(self) -> dict[str, object]:
        """Return the progress as a JSON object."""
        return {
            "progress": self.stage,
            "done": self.done,
            "total": self.total,
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        parts = filter(None, (self.count, f"{self.seconds:.0f} s"))
        return f"{self.stage}: {', '.join(parts)}"

    @property
    def count(self) -> str:
        """The number of items done, as text."""
        if self.total is None:
            return f"{self.done:,}" if self.done else ""
        return f"{self.done:,} of {self.total:,}"


class ProgressLines(StageProgress):
    """Lines about the current stage: every five seconds at first, at most 160 in a day."""

    def __init__(
        self, write: Callable[[StageProgress], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(now_s)
        self._write = write
        self._started_s = now_s()
        self._next_s = self._started_s + _FIRST_S

    def begin(self, stage: str, total: int | None = None) -> None:
        super().begin(stage, total)
        self._tell()

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        self._tell()

    def _tell(self) -> None:
        now_s = self._now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + max(_FIRST_S, (now_s - self._started_s) / _SHARE)
            self._write(self)


class ProgressBar(StageProgress):
    """A bar in the last line of a terminal, while work takes longer than a moment.

    A thread draws it, so that work does not wait for the terminal and the clock moves during a long
    step. Text printed in the meantime appears above it. The cursor stays visible, so that a killed
    process leaves the terminal as it was.
    """

    def __init__(self, out: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now_s)
        self._out = out
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._live: Live | None = None
        self._is_line_open = False
        self._streams = self._own_streams = sys.stdout, sys.stderr
        self._thread: threading.Thread | None = None  # noqa: TID251

    def begin(self, stage: str, total: int | None = None) -> None:
        with self._lock:
            super().begin(stage, total)
        if self._thread is None:
            self._streams = sys.stdout, sys.stderr
            self._own_streams = self.above(sys.stdout), self.above(sys.stderr)
            sys.stdout, sys.stderr = self._own_streams
            self._thread = threading.Thread(  # noqa: TID251
                target=self._draw, name="progress", daemon=True
            )
            self._thread.start()

    def above(self, out: TextIO) -> TextIO:
        return cast("TextIO", _Above(out, self._write_above))

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._erase()
        if sys.stdout is self._own_streams[0]:
            sys.stdout = self._streams[0]
        if sys.stderr is self._own_streams[1]:
            sys.stderr = self._streams[1]

    def _draw(self) -> None:
        if self._closed.wait(_DELAY_S):
            return
        console = _console(self._out)
        while not self._closed.wait(_REFRESH_S):
            with self._lock:
                if not self._closed.is_set() and not self._is_line_open:
                    self._refresh(console)

    def _refresh(self, console: Console) -> None:
        from rich.live import Live  # noqa: PLC0415 - rich takes long to import

        if self._live is None:
            self._live = Live(
                get_renderable=lambda: _bar_of(self, console.width),
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.refresh()

    def _erase(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write_above(self, out: TextIO, text: str) -> int:
        """Write to a stream that may share the terminal; the bar returns below it."""
        with self._lock:
            self._erase()
            count = out.write(text)
            out.flush()
            self._is_line_open = not text.endswith("\n") if text else self._is_line_open
        return count


def is_terminal(out: TextIO) -> bool:
    """Return whether *out* is a terminal that understands escape sequences."""
    with suppress(ValueError):  # it is closed
        return out.isatty() and _understands_escapes()
    return False


def painted(text: str, colour: Literal["green", "red"], out: TextIO) -> str:
    """Return *text* in a colour if *out* shows colours, by the rules of rich.

    ``NO_COLOR`` turns colours off, ``FORCE_COLOR`` turns them on without a terminal.
    """
    forced = os.environ.get("FORCE_COLOR")
    shows_colours = is_terminal(out) if forced is None else forced != "" and _understands_escapes()
    if os.environ.get("NO_COLOR") or not shows_colours:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def _understands_escapes() -> bool:
    return os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


class _Above:
    """A stream whose text is written by a bar that shares its terminal."""

    def __init__(self, out: TextIO, write: Callable[[TextIO, str], int]) -> None:
        self._out = out
        self._write = write

    def write(self, text: str) -> int:
        return self._write(self._out, text)

    def writelines(self, lines: Collection[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._out, name)


class _Unfailing:
    """A stream that ignores writes after the first failed one."""

    def __init__(self, out: TextIO) -> None:
        self._out: TextIO | None = out

    def write(self, text: str) -> int:
        self._attempt(lambda out: out.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(lambda out: out.flush())

    def _attempt(self, act: Callable[[TextIO], object]) -> None:
        try:
            if self._out is not None:
                act(self._out)
        except (OSError, ValueError):  # the reader is gone, or it is closed
            self._out = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._out or sys.stderr, name)


def _console(out: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415 - rich takes long to import

    class WithCursor(Console):
        def show_cursor(self, show: bool = True) -> bool:
            """Leave the cursor as it is."""
            return False

    return WithCursor(
        file=cast("TextIO", _Unfailing(out)), force_terminal=True, force_jupyter=False
    )


def _bar_of(progress: StageProgress, width: int) -> Table:
    """Return the line of a bar, with fewer parts on a narrow terminal."""
    from rich.progress_bar import ProgressBar as Bar  # noqa: PLC0415 - rich takes long to import
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    facts = _fitting(progress, width)
    room = width - len("  ".join(facts)) - 2
    cells: list[Text | Bar] = [Text(fact) for fact in facts]
    if room > _LEAST_BAR:
        width = min(room - 2, _MOST_BAR)
        bar = Bar(progress.total, progress.done, width, complete_style="cyan")
        cells.insert(1, bar)
    line = Table.grid(padding=(0, 2, 0, 0))
    for _ in cells:
        line.add_column(no_wrap=True, overflow="crop")
    line.add_row(*cells)
    return line


def _fitting(progress: StageProgress, width: int) -> list[str]:
    """Return the facts of a stage that fit into a line, its name first where there is room."""
    count, seconds, total = progress.count, progress.seconds, progress.total
    percent = left = ""
    if total:  # of one width, so that nothing jumps
        count = count.rjust(2 * len(f"{total:,}") + 4)
        percent = f"{100 * progress.done // total:3} %"
    if total and 0 < progress.done < total and seconds >= _FIRST_S:
        left = f"{_clock(seconds * (total - progress.done) / progress.done)} left"
    facts: list[str] = []
    for choice in (
        [progress.stage, count, percent, _clock(seconds), left],
        [progress.stage, count, _clock(seconds)],
        [progress.stage, percent or count, _clock(seconds)],
        [progress.stage, percent or count],
        [percent or count],
    ):
        facts = [fact for fact in choice if fact]
        if len("  ".join(facts)) < width:
            break
    return facts


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
