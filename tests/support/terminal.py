"""Programs on a pseudo terminal: what they write, and what a person sees of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

pyte = pytest.importorskip("pyte", reason="pip install -e '.[dev]'")

ROOT = Path(__file__).parents[2]
LINES = 24
LIMIT_S = 300

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;[0-9;]+)m")
HIDDEN_CURSOR = "\x1b[?25l"


class TerminalProgram:
    """A program whose standard streams are a terminal of so many columns.

    Attributes:
        text: all that it has written.
        screen: what the terminal shows.
    """

    def __init__(self, *command: str, columns: int = 80, **environment: str) -> None:
        self.text = ""
        self.screen = pyte.Screen(columns, LINES)
        self._stream = pyte.ByteStream(self.screen)
        self._terminal, inside = pty.openpty()
        modes = termios.tcgetattr(inside)
        modes[3] &= ~termios.ECHO  # what is typed is not to be mistaken for what is written
        termios.tcsetattr(inside, termios.TCSANOW, modes)
        self._resize(columns)
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        fixed = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        variables: dict[str, str] = {**inherited, **fixed, **environment}
        for name in ("COLUMNS", "LINES"):  # workers of tests have them; this terminal has its own
            variables.pop(name, None)
        self.process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(inside)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Read what the program writes until something is so."""
        until_s = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < until_s, self.text[-500:]
            assert self._read(), self.text[-500:]

    def wait_for(self, text: str) -> None:
        """Wait until the screen shows a text."""
        self.wait_until(lambda: any(text in line for line in self.shown))

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without those that are empty."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def drawn(self) -> list[str]:
        """Each line as it was written or drawn anew, without colours and what moves the cursor."""
        return re.split(r"[\r\n]+", ESCAPES.sub("", self.text))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def resize(self, columns: int) -> None:
        """Give the terminal another width."""
        self._resize(columns)
        self.screen.resize(LINES, columns)

    def hang_up(self) -> None:
        """Take the terminal away."""
        os.close(self._terminal)
        self._terminal = -1

    def end(self) -> int:
        """Wait for the end of the program, and return its exit status."""
        while self._terminal >= 0 and self._read():
            pass
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> TerminalProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        if self._terminal >= 0:
            os.close(self._terminal)

    def _resize(self, columns: int) -> None:
        size = struct.pack("HHHH", LINES, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _read(self) -> bool:
        """Read some of what is written, False where there is nobody to write any more."""
        ready, _, _ = select.select([self._terminal], [], [], LIMIT_S)
        assert ready, self.text[-500:]
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # how Linux says that all have closed the other side
            return False
        self.text += data.decode(errors="replace")
        self._stream.feed(data)
        return bool(data)


def on_terminal(code: str, *arguments: str, columns: int = 80, **changes: str) -> TerminalProgram:
    """Run a piece of Python on a terminal."""
    return TerminalProgram(sys.executable, "-c", code, *arguments, columns=columns, **changes)
