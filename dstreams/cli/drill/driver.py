"""The driver that a drill kills: its process, and the drill's control of it.

The process resumes from its checkpoint and reports on a pipe, a line per event: ``batch TIME_MS``
after each completed batch, ``failed TEXT`` after a failed one, ``step NAME`` at each step.
"""

from __future__ import annotations

import argparse
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dstreams import StreamingContext, StreamingListener
from dstreams.cli.drill.application import load
from dstreams.cli.drill.oracle import CHECKPOINT
from dstreams.cli.drill.steps import (
    OPENED,
    RUNS,
    STARTED,
    STOP,
    KillStep,
    Whereabouts,
    arm,
    die,
    step_named,
)
from dstreams.common import faults
from dstreams.common.clock import Clock
from dstreams.structured import StreamingQueryListener, StreamSession

_DRIVER = ("-m", "dstreams.cli.drill.driver")
_LOG_LINES = 12
_LOOK_S = 0.1
_PROC = Path("/proc")  # without it, a driver seems to have no child processes


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
        """True if the process has ended."""
        return self.process.poll() is not None

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended it."""
        return self.process.poll() == -signal.SIGKILL

    @property
    def phase(self) -> str:
        """Its current phase, or the last one before it died (:data:`PHASES`)."""
        return STOP if self.is_asked else self.whereabouts.phase

    def kill(self) -> None:
        """Kill only the driver; its JVM and workers must notice."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kill the driver, its JVM and its workers at once."""
        send_signal(session_pids(self.process.pid), signal.SIGKILL)
        self.kill()

    def kill_from_jvm(self) -> None:
        """Kill the driver so that its JVM does not notice before :meth:`bury`."""
        jvm = jvm_pid(self.process.pid)
        if jvm is not None:
            self._held = hold_input(self.process.pid, jvm)
        self.kill()

    def kill_workers(self) -> int:
        """Kill the Python workers, and return their number."""
        return send_signal(worker_pids(self.process.pid), signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the driver and its child processes."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
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
        """End all its processes and close the pipe."""
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
    directory: Path, app: Path | None, step: KillStep | None, clock: Clock, *, query: bool = False
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
    """Send a signal, and return the number of processes that received it."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count


def hold_input(driver: int, jvm: int) -> int | None:
    """Open the other end of a JVM's standard input, which hides the end of its driver.

    Returns:
        A file descriptor; None if the pipe was not found.
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
    """Return state, parent, group, session, ... of a process; empty if it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return ""


class Reporter:
    """Reports batches on a pipe, and arms a step after the first one."""

    def __init__(self, pipe: int, step: KillStep | None) -> None:
        self._pipe = pipe
        self._step = step

    def completed(self, time_ms: int) -> None:
        """Report a completed batch."""
        report(self._pipe, f"batch {time_ms}")
        if self._step is not None:
            arm(self._step)
            self._step = None

    def failed(self, reason: str) -> None:
        """Report a failed batch."""
        report(self._pipe, f"failed {' '.join(reason.split())[:300]}")


class StreamReporter(Reporter, StreamingListener):
    """Reports the batches of a stream."""

    def onBatchCompleted(self, batchCompleted: Any) -> None:  # noqa: N802, N803 - as Spark calls it
        """Report a batch."""
        info = batchCompleted.batchInfo()
        if info.outcome() == "cancelled":
            return  # by a stop that timed out; the next driver runs it
        failure = info.failureReason()
        if failure is None:
            self.completed(info.batchTime().milliseconds())
        else:
            self.failed(failure)


class QueryReporter(Reporter, StreamingQueryListener):
    """Reports the batches of a query; a failed batch ends the query and the process."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as Spark calls it
        """Report a batch."""
        time = datetime.fromisoformat(event.progress.timestamp.replace("Z", "+00:00"))
        self.completed(round(1000 * time.timestamp()))


def report(pipe: int, line: str) -> None:
    """Write a line to the drill, or die if the drill is gone."""
    try:
        os.write(pipe, f"{line}\n".encode())
    except BrokenPipeError:
        die()


def run_driver(argv: list[str] | None = None) -> int:
    """Run the application until it is stopped, or killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--step")
    parser.add_argument("--app", type=Path)
    parser.add_argument("--query", action="store_true")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("dstreams").setLevel(logging.INFO)
    pipe: int = options.pipe
    report(pipe, f"step {STARTED}")
    faults.watch(lambda name: report(pipe, f"step {name}"))
    application = load(options.app, query=options.query)
    step = None if options.step is None else step_named(options.step)
    if step is not None and step.in_restart:
        arm(step)
        step = None
    directory: str = options.directory
    if application.start is not None:
        _run_query(partial(application.start, directory), pipe, step)
    elif application.setup is not None:
        _run_stream(partial(application.setup, directory), directory, pipe, step)
    return 0


def _run_stream(
    setup: Callable[[], StreamingContext], directory: str, pipe: int, step: KillStep | None
) -> None:
    ssc = StreamingContext.getOrCreate(f"{directory}/{CHECKPOINT}", setup)
    ssc.addStreamingListener(StreamReporter(pipe, step))
    report(pipe, f"step {OPENED}")
    ssc.start()
    report(pipe, f"step {RUNS}")
    ssc.awaitTermination()


def _run_query(start: Callable[[], StreamSession], pipe: int, step: KillStep | None) -> None:
    is_asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_asked.set())
    report(pipe, f"step {OPENED}")
    session = start()
    session.streams.addListener(QueryReporter(pipe, step))
    report(pipe, f"step {RUNS}")
    (query,) = session.streams.active
    while not query.awaitTermination(_LOOK_S):
        if is_asked.is_set():
            query.stop()


if __name__ == "__main__":
    sys.exit(run_driver())
