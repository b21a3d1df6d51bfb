"""One life of a driver: a process that is started, watched, and killed."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dstreams.cli.drill.steps import STOP, Step, Whereabouts
from dstreams.common.clock import Clock

_PROC = Path("/proc")  # elsewhere a driver seems to have no processes of its own
_LOG_LINES = 12
_DRIVER = ("-m", "dstreams.cli.drill.driver")


@dataclass
class DriverLife:
    """A running driver and its reports; its JVM is a child process in the same session."""

    process: subprocess.Popen[bytes]
    pipe: int
    log: Path
    started_ms: int
    batches: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    first_ms: int | None = None
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    is_asked: bool = False
    _rest: bytes = b""
    _held: int | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    @property
    def was_killed(self) -> bool:
        """Return whether SIGKILL ended it."""
        return self.process.poll() == -signal.SIGKILL

    @property
    def phase(self) -> str:
        """Its current phase, or the last one before it died (:mod:`dstreams.cli.drill.phases`)."""
        return STOP if self.is_asked else self.whereabouts.phase

    def kill(self) -> None:
        """Kill the driver alone; that its JVM and its workers notice is part of the drill."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kill the driver, its JVM and its workers at once."""
        send_signal(session_pids(self.process.pid), signal.SIGKILL)
        self.kill()

    def kill_from_jvm(self) -> None:
        """Kill the driver, and let its JVM finish its job without knowing, until it is buried."""
        jvm = jvm_pid(self.process.pid)
        if jvm is not None:
            self._held = hold_input(self.process.pid, jvm)
        self.kill()

    def kill_workers(self) -> int:
        """Kill the Python workers; returns how many there were."""
        return send_signal(worker_pids(self.process.pid), signal.SIGKILL)

    def pause(self) -> None:
        """Let the driver and all its processes stand still."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue them."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        pids = session_pids(self.process.pid) or [self.process.pid]
        send_signal(pids, number)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the driver."""
        self.is_asked = True
        self.process.send_signal(signal.SIGTERM)

    def bury(self) -> None:
        """End what may be left of it, close the pipe and forget it."""
        self.process.kill()
        send_signal(session_pids(self.process.pid), signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._held is not None:
            os.close(self._held)
        os.close(self.pipe)

    def last_words(self) -> str:
        """Return the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    def hear(self, clock: Clock) -> None:
        """Read its reports since the last call."""
        with suppress(BlockingIOError):
            while data := os.read(self.pipe, 1 << 16):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            kind, _, text = line.decode(errors="replace").partition(" ")
            if kind == "batch":
                self.batches.append(int(text))
                self.first_ms = clock.now_ms() if self.first_ms is None else self.first_ms
            elif kind == "step":
                self.whereabouts.note(text)
            else:
                self.failures.append(text)

    def wait(self, seconds: float) -> None:
        """Wait until it reports something or ends, at most *seconds*."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            selector.select(seconds)


def _environment(app: Path | None) -> dict[str, str]:
    """Let the driver and its workers import modules from the application's directory."""
    if app is None:
        return dict(os.environ)
    paths = [str(app.resolve().parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start_life(
    directory: Path, app: Path | None, step: Step | None, clock: Clock, *, query: bool = False
) -> DriverLife:
    """Start a driver that resumes from the checkpoint in *directory*."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    started_ms = clock.now_ms()
    log = directory / f"driver-{started_ms}.log"
    arguments = [str(directory), "--pipe", str(writing)]
    if step is not None:
        arguments += ["--step", step.name]
    if app is not None:
        arguments += ["--app", str(app)]
    if query:
        arguments += ["--query"]
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own module, without a shell
                [sys.executable, *_DRIVER, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                env=_environment(app),
                start_new_session=True,
            )
    finally:
        os.close(writing)
    return DriverLife(process, reading, log, started_ms)


def session_pids(session: int) -> list[int]:
    """Return the ids of the living processes of a session, the newest last."""
    return sorted(pid for pid, found in _sessions() if found == session)


def jvm_pid(session: int) -> int | None:
    """Return the id of the JVM of a driver that leads its session."""
    found = (pid for pid in session_pids(session) if _name(pid) == "java")
    return next(found, None)


def worker_pids(session: int) -> list[int]:
    """Return the ids of the Python workers of a driver, without the daemon that forks them."""
    jvm = jvm_pid(session)
    pids = session_pids(session)
    daemons = {pid for pid in pids if _parent(pid) == jvm}
    return [pid for pid in pids if _parent(pid) in daemons]


def send_signal(pids: list[int], number: signal.Signals) -> int:
    """Send a signal, and return how many were there to get it."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count


def hold_input(driver: int, jvm: int) -> int | None:
    """Open the other end of a JVM's standard input, so that it does not see its driver go.

    Returns:
        A file descriptor, None when it was not found.
    """
    with suppress(OSError):
        wanted = os.readlink(_PROC / str(jvm) / "fd" / "0")
        for entry in (_PROC / str(driver) / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(entry) == wanted:
                    return os.open(entry, os.O_WRONLY | os.O_CLOEXEC)
    return None


def _sessions() -> Iterator[tuple[int, int]]:
    with suppress(FileNotFoundError):
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
                yield int(entry.name), int(fields[3])


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process; nothing when it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return ""
